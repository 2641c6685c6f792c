"""The moment of an import's next batch, as delivery asks for it: first for the batch, then when it is due."""

from __future__ import annotations

from forwarder.buffer.memory import MemoryBuffer
from forwarder.core.event import Chunk, Lane
from forwarder.imports.batching import DayBatcher
from forwarder.sources.imports.pacing import ImportPace
from tests.support.clock import MIDNIGHT, FakeClock

LANE = Lane("phc_batches_in_time_000001", historical=True)
NONE: frozenset[str] = frozenset()


class BusyClock(FakeClock):
    """A clock whose time also passes while somebody looks at it, as on a busy machine."""

    def monotonic(self) -> float:
        """A tenth of a second later each time."""
        self._monotonic += 100_000_000
        return super().monotonic()


async def test_a_batch_that_becomes_due_between_two_questions_is_not_forgotten() -> None:
    """Both questions of one pass have one answer: not yet, and when. Otherwise no timer is set, and the import stands still for ever."""
    buffer = MemoryBuffer(1 << 20)
    batcher = DayBatcher(buffer, ImportPace(8.0), BusyClock(), max_body=1 << 20)
    buffer.offer([Chunk(LANE, b"{}", 1, NONE, MIDNIGHT, "import") for _ in range(4)])
    taken, moments = 0, [MIDNIGHT + turn for turn in range(20)]
    for wall in moments:
        while batcher.next(LANE, wall, blocked=NONE, max_body=None, flush=False) is not None:
            taken += 1
        due = batcher.due_at(LANE, wall)
        assert due is None or due > wall
    assert taken == 4
