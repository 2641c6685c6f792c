"""What the committer leaves behind."""

from __future__ import annotations

from forwarder.storage.committer import CommitJob, Committer
from tests.support.clock import FakeClock


class Failing:
    """Never has a job ready."""

    awaited = 0

    def prepare(self) -> CommitJob | None:
        raise OSError("no space left")

    def finish(self, job: CommitJob, error: Exception | None) -> None:
        raise AssertionError("there is no job")


async def test_closed_committer_leaves_no_timer() -> None:
    """A commit that failed is not tried again once the committer is closed."""
    clock = FakeClock()
    committer = Committer(clock)
    committer.add(Failing())
    committer.add(Failing())
    committer.start()
    committer.request()
    await committer.settle()
    assert clock.pending == 1
    await committer.close()
    assert clock.pending == 0


async def test_a_request_for_later_leaves_no_timer() -> None:
    """Of several only the earliest is kept, and none behind the close."""
    clock = FakeClock()
    committer = Committer(clock)
    committer.start()
    for seconds in (1.0, 0.2, 0.5):
        committer.request_within(seconds)
    assert clock.pending == 1
    await committer.close()
    committer.request_within(0.2)
    assert clock.pending == 0
