"""A run of an import against a scripted service: where it stands when it is stopped, killed, or
fails, and where the next run resumes.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forwarder.core.errors import ConfigurationError
from forwarder.core.event import Batch
from forwarder.core.outcome import Reply
from forwarder.daemon.import_dead_letters import ImportDeadLetters
from forwarder.daemon.imports import STOP_SECONDS
from forwarder.delivery.batching import BatchPolicy
from forwarder.sources.files.record_blocks import ReadOptions
from forwarder.sources.imports.blocks import ReadableDeadLetter
from forwarder.sources.imports.checkpoint import SourceChanged
from forwarder.sources.imports.conversion import EventFilters
from forwarder.sources.imports.import_books import DayTally, digest_hex, uuid_hashes
from forwarder.sources.imports.source import ImportLedger, ImportProgress
from forwarder.sources.imports.times import date_of
from tests.daemon.imports import (
    FIRST_DAY,
    OK,
    ScriptedSink,
    Setting,
    after,
    assert_all_there,
    by_file,
    line,
    refusing,
    three_files,
    times,
    uuid_of,
    write,
)

A_RECORD = ReadOptions(block_bytes=1)
"""Blocks of one record each."""


async def test_each_batch_is_saved_when_it_is_settled(tmp_path: Path) -> None:
    """So a kill brings back what was in flight, and not what was settled since some second: here
    the fourth answer never comes.
    """
    setting = Setting(
        [write(tmp_path / "a.jsonl", map(line, range(60)))],
        tmp_path / "state",
        concurrency=1,
        reading=A_RECORD,
    )
    setting.service.answer = times(3, OK, lambda _: None)
    saved = 0

    async def killed_with_the_fourth(it: Setting) -> None:
        nonlocal saved
        if (
            len(it.service.sent) == 4
            and it.saved is not None
            and it.saved.books.delivered == len(it.service.taken)
        ):
            saved = len(it.service.taken)
            it.kill()

    await setting.run(killed_with_the_fourth, seconds=30)
    assert saved
    assert setting.saved is not None
    assert setting.saved.books.read == saved
    setting.service.answer = lambda _: OK
    await setting.run()
    assert len(setting.service.uuids) == len(set(setting.service.uuids)) == 60


@pytest.mark.parametrize("by_service", [False, True])
async def test_a_record_counts_once_its_dead_letter_is_durable(
    tmp_path: Path, by_service: bool
) -> None:
    """No matter who refused it, the format or the service: a kill before would lose it. What comes
    after it arrives meanwhile.
    """
    lines = [b'{"cut' if not n and not by_service else line(n) for n in range(10)]
    setting = Setting([write(tmp_path / "a.jsonl", lines)], tmp_path / "state", reading=A_RECORD)
    setting.service.answer = refusing(0) if by_service else lambda _: OK
    setting.fill_disk()

    async def make_room(it: Setting) -> None:
        if not it.letters:
            assert it.saved is None or not it.saved.books.read
        if it.clock.monotonic() > 1060:
            it.make_room()

    await setting.run(make_room)
    assert_all_there(setting, 10)
    assert len(setting.letters) == 1


async def test_a_stopped_import_settles_what_is_in_flight(tmp_path: Path) -> None:
    """Nothing new begins; the next run sends what is left, and nothing of what was settled."""
    setting = Setting(three_files(tmp_path), tmp_path / "state", rate=10.0, reading=A_RECORD)
    await setting.run(after(3, lambda it: it.pipeline.stop()))
    first = len(setting.service.sent)
    assert first < 12
    assert setting.saved is not None
    assert setting.saved.books.delivered == len(setting.service.taken)
    await setting.run()
    assert_all_there(setting, 60)
    assert len(setting.service.uuids) == 60


async def test_stopped_it_doesn_t_begin_what_waits_for_its_turn(tmp_path: Path) -> None:
    """At a slow rate a window of events would take minutes; only requests that are in progress are
    waited for.
    """
    setting = Setting(three_files(tmp_path), tmp_path / "state", rate=1.0)
    began = setting.clock.monotonic()
    await setting.run(after(2, lambda it: it.pipeline.stop()))
    assert len(setting.service.sent) == 2
    assert setting.clock.monotonic() - began < 10


async def test_stopped_it_ends_soon_though_an_answer_never_comes(tmp_path: Path) -> None:
    """What was in progress is sent again by the next run, the same bytes."""
    setting = Setting(
        three_files(tmp_path), tmp_path / "state", service=ScriptedSink(lambda _: None)
    )
    await setting.run(after(1, lambda it: it.pipeline.stop()), seconds=STOP_SECONDS + 10)
    lost = setting.service.sent[0]
    setting.service.answer = lambda _: OK
    await setting.run()
    assert_all_there(setting, 60)
    assert lost in setting.service.sent[1:]


async def test_stopped_in_an_outage_it_ends_at_once(tmp_path: Path) -> None:
    """What waits to be sent again isn't in flight: the next run sends it."""
    setting = Setting(
        three_files(tmp_path),
        tmp_path / "state",
        service=ScriptedSink(lambda _: Reply(None, error="connection refused")),
    )
    began = setting.clock.monotonic()
    await setting.run(after(4, lambda it: it.pipeline.stop()), seconds=100)
    stopped = next(report for report in setting.reported if report.waiting)
    assert "connection refused" in stopped.waiting
    assert setting.clock.monotonic() - began < 12
    setting.service.answer = lambda _: OK
    await setting.run()
    assert_all_there(setting, 60)


async def test_stopped_while_marked_letters_can_t_be_read_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All else is there by then, and saved."""
    setting = Setting(three_files(tmp_path), tmp_path / "state")
    unreadable = asyncio.Event()
    asked = False

    async def never(_: ImportDeadLetters) -> Sequence[ReadableDeadLetter]:
        nonlocal asked
        asked = True
        await unreadable.wait()
        return ()

    monkeypatch.setattr(ImportDeadLetters, "take_marked", never)

    async def stop_at_the_end(it: Setting) -> None:
        if asked and it.saved is not None and it.saved.complete:
            it.pipeline.stop()

    await setting.run(stop_at_the_end, seconds=100)
    assert_all_there(setting, 60)


async def test_stopped_before_it_began_it_leaves_a_checkpoint(tmp_path: Path) -> None:
    """A signal may come first."""
    setting = Setting(three_files(tmp_path), tmp_path / "state")
    await setting.run(after(0, lambda it: it.pipeline.stop()))
    assert setting.saved is not None
    await setting.run()
    assert_all_there(setting, 60)


async def test_stopped_while_dead_letters_can_t_be_written_it_ends(tmp_path: Path) -> None:
    """It says why nothing could be saved; once there is room, nothing is missing."""
    paths = [write(tmp_path / "a.jsonl", [line(0), b"{", line(1)])]
    setting = Setting(paths, tmp_path / "state")
    setting.fill_disk()

    async def stop_once_the_disk_is_full(it: Setting) -> None:
        if (
            any("No space left" in progress.waiting for progress in it.reported)
            and it.clock.monotonic() > 1010
        ):
            it.pipeline.stop()

    with pytest.raises(ConfigurationError, match="No space left"):
        await setting.run(stop_once_the_disk_is_full, seconds=100)
    setting.make_room()
    await setting.run()
    saved = setting.saved
    assert saved is not None
    assert saved.complete
    assert (saved.books.delivered, len(setting.letters)) == (2, 1)


async def test_a_state_folder_that_can_t_be_written_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sending on without a checkpoint would send it all again after a kill. What was saved before
    is where the next run continues.
    """
    setting = Setting(three_files(tmp_path), tmp_path / "state", rate=5.0)
    saves = 0

    def full(*_: Any) -> None:
        nonlocal saves
        saves += 1
        if saves > 1:
            raise ConfigurationError("state can't be written: no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("tests.daemon.imports.Mortal.save", full)
        with pytest.raises(ConfigurationError, match="no space"):
            await setting.run()
    assert len(setting.service.taken) < 60
    await setting.run()
    assert {*setting.service.uuids} == {uuid_of(n) for n in range(60)}


async def test_a_mistake_in_settling_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It isn't waited for what will never be settled."""

    def fail(*_: Any) -> None:
        raise ValueError("records 3 to 4 aren't open")

    monkeypatch.setattr(ImportLedger, "add", fail)
    setting = Setting(three_files(tmp_path), tmp_path / "state")
    with pytest.raises(ValueError, match="aren't open"):
        await setting.run(seconds=60)


async def test_a_progress_that_can_t_be_reported_ends_the_run(tmp_path: Path) -> None:
    """What was settled by then is saved."""
    setting = Setting(three_files(tmp_path), tmp_path / "state", rate=5.0, reading=A_RECORD)

    class BrokenProgress(list[ImportProgress]):
        def append(self, progress: ImportProgress) -> None:
            if progress.events:
                raise BrokenPipeError("nobody reads")

    setting.reported = BrokenProgress()
    with pytest.raises(BrokenPipeError):
        await setting.run(seconds=60)
    assert setting.saved is not None
    assert 0 < setting.saved.books.delivered == len(setting.service.taken) < 60


async def test_a_source_that_changed_in_mid_run_ends_it_and_what_arrived_is_saved(
    tmp_path: Path,
) -> None:
    """A file whose first records aren't those that were imported is reported
    before anything of it is sent.
    """
    paths = three_files(tmp_path, count=60)
    setting = Setting(paths, tmp_path / "state")
    await setting.run(after(12, lambda it: it.pipeline.stop()))
    saved = setting.saved
    assert saved is not None
    assert saved.files[0].digested > 0
    other = [line(1000 + n) for n in range(60)]
    write(paths[0], other)
    sent = len(setting.service.sent)
    with pytest.raises(SourceChanged, match="aren't those that were imported"):
        await setting.run()
    assert len(setting.service.sent) == sent
    assert setting.saved is not None
    assert setting.saved.books == saved.books


@pytest.mark.parametrize("left", [0, 5])
async def test_a_file_with_fewer_records_than_were_imported_is_refused(
    tmp_path: Path, left: int
) -> None:
    """Continuing in it would leave out events."""
    paths = three_files(tmp_path)
    setting = Setting(paths, tmp_path / "state")
    await setting.run()
    remaining = paths[1].read_bytes().splitlines()[:left]
    write(paths[1], remaining)
    with pytest.raises(SourceChanged, match=r"b\.jsonl"):
        await setting.run()


async def test_a_file_that_is_gone_is_refused(tmp_path: Path) -> None:
    """As one of an archive that changed in its middle."""
    paths = three_files(tmp_path)
    setting = Setting(paths, tmp_path / "state")
    await setting.run()
    setting.paths = paths[:2]
    with pytest.raises(SourceChanged, match=r"c\.jsonl: it no longer exists"):
        await setting.run()


async def test_a_limit_holds_over_runs(tmp_path: Path) -> None:
    """Also where it is reached in the middle of a block, and the run before ended in that block."""
    setting = Setting(three_files(tmp_path), tmp_path / "state", filters=EventFilters(limit=27))
    await setting.run(after(4, lambda it: it.pipeline.stop()))
    await setting.run()
    assert len(set(setting.service.uuids)) == 27
    saved = setting.saved
    assert saved is not None
    assert saved.complete
    assert saved.books.difference == 0
    sent = len(setting.service.sent)
    await setting.run()
    assert len(setting.service.sent) == sent


@dataclass(frozen=True)
class Fortune:
    """What happens to an import of 36 records."""

    script: list[int]
    """The first answers; 0: none."""
    bad: set[int]
    """Events that the service refuses."""
    garbage: set[int]
    """Records that are none."""
    persons: int
    days: list[int]
    kills: list[int]
    """After how many requests each run but the last is killed."""
    block_bytes: int
    """Of the source: one record, or several."""
    max_bytes: int
    """Of a batch; the buffer holds five such."""


FORTUNES = st.builds(
    Fortune,
    script=st.lists(st.sampled_from([200, 200, 200, 503, 500, 413, 429, 0, 302]), max_size=12),
    bad=st.sets(st.integers(1, 35), max_size=3),
    garbage=st.sets(st.integers(1, 35), max_size=3),
    persons=st.integers(1, 5),
    days=st.lists(st.integers(0, 2), min_size=36, max_size=36),
    kills=st.lists(st.integers(1, 8), max_size=3),
    block_bytes=st.sampled_from([1, 500, 1500, 10_000]),
    max_bytes=st.sampled_from([900, 4_000]),
)


@pytest.mark.slow
@given(FORTUNES)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_event_settles_whatever_the_answers_and_kills(
    fortune: Fortune,
) -> None:
    """It arrives, or is a dead letter; what is sent again is the same; the books are right, and
    persons keep their order.
    """
    with tempfile.TemporaryDirectory() as name:
        asyncio.run(_survives(Path(name), fortune))


async def _survives(folder: Path, fortune: Fortune) -> None:
    bad = fortune.bad
    garbage = fortune.garbage
    days = fortune.days
    lines = [
        b'{"cut' if n in garbage else line(n, day=days[n], person=f"p{n % fortune.persons}")
        for n in range(36)
    ]
    paths = [write(folder / "a.jsonl", lines[:20]), write(folder / "b.jsonl", lines[20:])]
    refuse = refusing(*bad)
    left = list(fortune.script)

    def answer(batch: Batch) -> Reply | None:
        status = left.pop(0) if left else 200
        if status == 0:
            return Reply(None, error="no whole answer within 30 s")
        # or a good event is a dead letter
        if status == 200 or (status == 413 and batch.count == 1):
            return refuse(batch)
        return Reply(status, body=b"scripted")

    setting = Setting(
        paths,
        folder / "state",
        service=ScriptedSink(answer),
        batches=BatchPolicy(fortune.max_bytes, 4, 1.0, by_day=True),
    )
    setting.reading = ReadOptions(block_bytes=fortune.block_bytes)
    settled: set[int] = set()
    for requests in fortune.kills:
        await _run(setting, settled, after(len(setting.service.sent) + requests, Setting.kill))
        settled = _settled(setting, fortune, settled)
    await _run(setting, settled)
    assert _settled(setting, fortune, settled) == {*range(36)}
    saved = setting.saved
    assert saved is not None
    assert saved.complete
    assert by_file(saved) == {"a.jsonl": 20, "b.jsonl": 16}
    lost = {uuid_of(n) for n in range(36) if n not in garbage} - set(setting.service.uuids)
    assert lost >= {uuid_of(n) for n in bad - garbage}
    assert len(setting.letters) == len(lost) + len(garbage)
    same: dict[str, bytes] = {}
    for event in [event for batch in setting.service.sent for event in batch]:
        assert same.setdefault(msgspec.json.decode(event)["uuid"], event) == event
    for batch in setting.service.sent:
        assert len({msgspec.json.decode(event)["timestamp"][:10] for event in batch}) == 1
        assert len(batch) <= 4
    first: dict[str, list[int]] = {}
    counted = Counter[str]()
    for event in map(msgspec.json.decode, setting.service.taken):
        counted[event["uuid"]] += 1
        if counted[event["uuid"]] == 1:
            first.setdefault(event["distinct_id"], []).append(event["properties"]["n"])
    assert all(numbers == sorted(numbers) for numbers in first.values()), first
    if not fortune.kills:
        # witnesses
        assert sum(counted.values()) - len(counted) <= sum(
            1 for batch in setting.service.sent if len(batch) == 1
        )


async def _run(
    setting: Setting, settled: Set[int], during: Callable[[Setting], Awaitable[None]] | None = None
) -> None:
    """A run, which sends nothing that an earlier checkpoint counts as settled but
    single witnesses.
    """
    before = len(setting.service.sent)
    await setting.run(during, seconds=3000)
    for batch in setting.service.sent[before:]:
        again = settled & {msgspec.json.decode(event)["properties"]["n"] for event in batch}
        assert not again or len(batch) == 1


def _settled(setting: Setting, fortune: Fortune, before: Set[int]) -> set[int]:
    """The records that the checkpoint counts, after it was compared with what has arrived and what
    is a dead letter: none is both.
    """
    saved = setting.saved
    read = {} if saved is None else by_file(saved)
    numbers = {*range(read.get("a.jsonl", 0)), *range(20, 20 + read.get("b.jsonl", 0))}
    assert numbers >= before, "a checkpoint never goes back"
    if saved is None:
        return numbers
    letters = Counter(where.rpartition("/")[2] for where, _ in setting.letters)
    delivered = set(setting.service.uuids)
    assert not [where for where, count in letters.items() if count > 1]
    refused = {
        n for n in numbers if (f"a.jsonl:{n + 1}" if n < 20 else f"b.jsonl:{n - 19}") in letters
    }
    arrived = {n for n in numbers if n not in fortune.garbage and uuid_of(n) in delivered}
    assert (arrived | refused, arrived & refused) == (numbers, set())
    assert (saved.books.read, saved.books.delivered, saved.books.difference) == (
        len(numbers),
        len(arrived),
        0,
    )
    assert sum(saved.books.refused.values()) == len(refused)
    for day in range(3):
        tally = saved.totals.days.get(date_of(FIRST_DAY + day), DayTally())
        good = [n for n in numbers if fortune.days[n] == day and n not in fortune.garbage]
        uuids = [uuid_of(n) for n in good if n in arrived]
        assert (tally.source, tally.delivered, tally.uuids) == (
            len(good),
            len(uuids),
            digest_hex(uuid_hashes(uuids)),
        )
    return numbers
