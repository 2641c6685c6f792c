"""The archiver: when files are made, what is in them, when their events are settled, and what
happens if they can't be published.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from forwarder.archive import archiver
from forwarder.archive.folders import PublishFailed
from forwarder.archive.spool import Partition, SpooledFile
from forwarder.core.event import NO_IDS, Ack, Chunk, Lane
from forwarder.core.outcome import HaltReason
from forwarder.core.ports import Fate
from forwarder.storage import failpoints
from tests.archive.rig import LANE, MAX_AGE, ArchiveRig
from tests.support.clock import MIDNIGHT, FakeClock

OTHER = Lane("phc_other-project/1")
HISTORICAL = Lane(LANE.api_key, historical=True)


def event(number: int, **more: str) -> bytes:
    """An event as it stands in the buffer."""
    extra = "".join(f',"{name}":{value}' for name, value in more.items())
    return (
        f'{{"event":"e{number}","distinct_id":"p","uuid":"{number}","properties":{{"n":'
        f"{number}{extra}}}}}"
    ).encode()


async def test_events_are_settled_when_they_are_in_a_complete_file(tmp_path: Path) -> None:
    """Until they are `max_age` old they stay in the buffer; then one file has them, as they were,
    and the books balance.
    """
    async with ArchiveRig(tmp_path) as rig:
        await rig.put(event(1), event(2, price="1.10", name='"\\u00e9"'))
        await rig.put(event(3))
        await rig.clock.advance(MAX_AGE - 1)
        assert rig.buffer.count(LANE) == 3
        assert not rig.files.exists()
        await rig.until(lambda: not rig.buffer.count(LANE), 2)
        [name] = rig.names()
        assert name.startswith("date=2026-01-01/phc_goodgoodgood1234-20260101T000000Z-0123ab")
        assert rig.lines() == [event(1), event(2, price="1.10", name='"\\u00e9"'), event(3)]
        assert rig.books.accounts[LANE].delivered == 3
        assert rig.archiver.statistics().delivered == 3


async def test_line_breaks_between_tokens_become_blanks(tmp_path: Path) -> None:
    """An event that was sent in several lines is one line, alone and among others."""
    async with ArchiveRig(tmp_path) as rig:
        await rig.put(b'{\n "event": "a",\r\n "distinct_id": "p"}')
        await rig.put(b'{"event":\n"b"}', b'{"event": "c\\n"}')
        await rig.archiver.drain(5)
        assert rig.lines() == [
            b'{  "event": "a",   "distinct_id": "p"}',
            b'{"event": "b"}',
            b'{"event": "c\\n"}',
        ]


async def test_each_project_and_kind_has_files_of_its_own(tmp_path: Path) -> None:
    """The key is part of the name; what a file's name can't have, or a folder's, is replaced."""
    async with ArchiveRig(tmp_path) as rig:
        for number, lane in enumerate([LANE, OTHER, HISTORICAL]):
            await rig.put(event(number), lane=lane)
        assert await rig.archiver.drain(5)
        assert rig.lines("/phc_goodgoodgood1234-2026") == [event(0)]
        assert rig.lines("/phc_other_2d_project_2f_1-2026") == [event(1)]
        assert rig.lines("/phc_goodgoodgood1234-historical-2026") == [event(2)]


async def test_files_are_of_one_partition(tmp_path: Path) -> None:
    """By the time of receipt, in UTC: an event of a later hour begins
    another file in another folder.
    """
    clock = FakeClock(MIDNIGHT + 3598)
    async with ArchiveRig(tmp_path, clock, partition=Partition.HOUR) as rig:
        for number in range(4):
            await rig.put(event(number), at=MIDNIGHT + 3598 + number)
        await clock.advance(10)
        assert await rig.archiver.drain(5)
        assert rig.lines("date=2026-01-01/hour=00/") == [event(0), event(1)]
        assert rig.lines("date=2026-01-01/hour=01/") == [event(2), event(3)]


async def test_many_events_are_read_back_from_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits is many times what may be in memory: it gets into files of limited size, in
    order, and nothing stays in memory.
    """
    monkeypatch.setattr(archiver, "FILE_BYTES", 1_000_000)
    monkeypatch.setattr(archiver, "STEP_BYTES", 50_000)
    async with ArchiveRig(tmp_path, window=600_000) as rig:
        wanted = [event(number, filler='"' + "x" * 500 + '"') for number in range(8000)]
        for start in range(0, 8000, 100):
            await rig.put(*wanted[start : start + 100])
        assert rig.buffer.has_backlog
        await rig.until(lambda: not rig.buffer.count(LANE), MAX_AGE)
        assert sorted(rig.lines()) == sorted(wanted)
        assert 3 <= len(rig.names()) <= 8
        assert rig.buffer.memory.used == 0
        assert rig.books.accounts[LANE].delivered == 8000


async def test_a_buffer_that_fills_makes_files_before_their_time(tmp_path: Path) -> None:
    """At a quarter of its size its fullest lane is archived, however young."""
    async with ArchiveRig(tmp_path, max_bytes=16 << 20) as rig:
        await rig.put(event(0), lane=OTHER)
        for number in range(50):
            await rig.put(event(number, filler='"' + "x" * 100_000 + '"'))
        await rig.until(rig.lines, 1)
        await rig.until(lambda: rig.buffer.used < 4 << 20)
        assert not any("other" in name for name in rig.names())


async def test_a_source_that_waits_for_delivery_is_not_held_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its events are archived once some megabytes of them are in memory: it
    reads no further until then.
    """
    monkeypatch.setattr(archiver, "AWAITED_BYTES", 10_000)
    async with ArchiveRig(tmp_path) as rig:
        acknowledged = asyncio.Event()
        data = event(0, filler='"' + "x" * 20_000 + '"')
        rig.buffer.offer(
            [
                Chunk(
                    LANE,
                    data,
                    1,
                    NO_IDS,
                    rig.clock.now(),
                    "kafka",
                    Ack(1, lambda _: acknowledged.set()),
                )
            ]
        )
        rig.archiver.wake()
        await rig.until(acknowledged.is_set, 1)
        assert rig.lines() == [data]


async def test_a_refused_file_halts_its_lanes_and_is_published_later(tmp_path: Path) -> None:
    """Every lane that waits says why; attempts are for the same name, at growing intervals;
    nothing is lost or settled meanwhile.
    """
    async with ArchiveRig(tmp_path) as rig:
        rig.folder.refuse()
        await rig.put(event(1))
        await rig.put(event(2), lane=OTHER)
        await rig.until(lambda: len(rig.folder.attempts) >= 3, MAX_AGE)
        halts = rig.archiver.statistics().halts
        assert [(halt.lane, halt.reason, halt.why) for halt in halts] == [
            (lane, HaltReason.ARCHIVE_UNWRITABLE, "nowhere: Permission denied")
            for lane in (LANE, OTHER)
        ]
        assert halts[0].since < rig.clock.now() < halts[0].next_probe
        assert rig.archiver.statistics().upstream.why == "nowhere: Permission denied"
        assert rig.buffer.count(LANE) == 1
        rig.folder.error = None
        await rig.until(lambda: not rig.buffer.holdings, 60)
        assert len(set(rig.folder.attempts)) == 2
        assert sorted(rig.lines()) == [event(1), event(2)]
        assert not rig.archiver.statistics().halts
        assert not rig.archiver.statistics().upstream.failing


async def test_an_outage_is_no_halt(tmp_path: Path) -> None:
    """What may work later by itself is retried, and the status says that the destination fails."""
    async with ArchiveRig(tmp_path) as rig:
        rig.folder.error = PublishFailed("nowhere: connection refused", refused=False)
        await rig.put(event(1))
        await rig.until(lambda: len(rig.folder.attempts) >= 2, MAX_AGE)
        assert not rig.archiver.statistics().halts
        assert rig.archiver.statistics().upstream.failing
        rig.folder.error = RuntimeError("a bug")
        await rig.until(lambda: len(rig.folder.attempts) >= 4)
        rig.folder.error = None
        await rig.until(lambda: not rig.buffer.holdings)
        assert rig.lines() == [event(1)]


async def test_a_full_disk_delays_the_file_and_loses_nothing(tmp_path: Path) -> None:
    """Neither where the file is made nor where it goes; no torn file is left."""
    async with ArchiveRig(tmp_path) as rig:
        failpoints.arm("archive.spooling=enospc@1,archive.copied=enospc@1")
        try:
            await rig.put(event(1))
            await rig.until(lambda: len(rig.archiver.statistics().halts) == 1, MAX_AGE)
            await rig.until(lambda: not rig.buffer.holdings, 60)
        finally:
            failpoints.arm("")
        assert rig.lines() == [event(1)]
        assert len(rig.names()) == 1


async def test_a_stop_settles_nothing_that_is_not_published(tmp_path: Path) -> None:
    """The next start finds the events in the buffer and archives them."""
    rig = ArchiveRig(tmp_path)
    async with rig:
        rig.folder.hold = asyncio.Event()
        await rig.put(event(1), event(2))
        await rig.until(lambda: rig.folder.attempts, MAX_AGE)
        assert [chunk.count for chunk in rig.archiver.undelivered()] == [2]
    async with ArchiveRig(tmp_path) as again:
        assert again.buffer.count(LANE) == 2
        assert await again.archiver.drain(5)
        assert again.lines() == [event(1), event(2)]


async def test_what_arrives_after_the_close_starts_no_timer(tmp_path: Path) -> None:
    """The buffer is closed after the archiver, and may still find events."""
    async with ArchiveRig(tmp_path) as rig:
        await rig.archiver.close()
        before = rig.clock.pending
        rig.archiver.wake()
        assert rig.clock.pending == before


async def test_a_drain_ends_when_the_archive_fails(tmp_path: Path) -> None:
    """It tries once, however long the wait was; and what is then begun is only what
    was held back.
    """
    async with ArchiveRig(tmp_path) as rig:
        rig.folder.refuse()
        await rig.put(event(1))
        assert not await rig.archiver.drain(5)
        assert len(rig.folder.attempts) == 1
        assert not await rig.archiver.drain_while_it_works(5)
        assert not await rig.archiver.drain(5)
        assert len(rig.folder.attempts) == 2
        rig.folder.error = None
        assert await rig.archiver.drain(5)
        await rig.archiver.finish_in_flight(5)
        await rig.put(event(2))
        await rig.clock.advance(MAX_AGE)
        assert rig.lines() == [event(1)]
        rig.archiver.resume()
        await rig.until(lambda: not rig.buffer.holdings)
        assert len(rig.names()) == 2


async def test_an_unexpected_failure_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The events of that file stay in the buffer for the next start; later ones are archived, and
    settle only themselves.
    """

    def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    async with ArchiveRig(tmp_path) as rig:
        with monkeypatch.context() as patch:
            patch.setattr(SpooledFile, "add", fail)
            await rig.put(event(1))
            await rig.until(
                lambda: rig.archiver.undelivered() and not rig.buffer.waiting_lanes(), MAX_AGE
            )
            await rig.until(lambda: not rig.archiver.oldest())
        await rig.put(event(2))
        await rig.until(rig.lines, MAX_AGE)
        assert rig.lines() == [event(2)]
        await rig.until(lambda: rig.buffer.count(LANE) == 1)
    async with ArchiveRig(tmp_path) as again:
        assert await again.archiver.drain(5)
        assert sorted(again.lines()) == [event(1), event(2)]


async def test_what_is_dropped_while_its_file_is_opened_makes_no_empty_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its source took it back meanwhile. What comes next is archived as ever."""
    async with ArchiveRig(tmp_path) as rig:
        works = rig.archiver._until_it_works
        taken_back: list[Chunk] = []

        async def open_slowly(function: Callable[[], object]) -> object:
            opened = await works(function)
            if not taken_back:
                taken_back.append(rig.buffer.queue(LANE).popleft())
                rig.buffer.settle(taken_back, Fate.DEAD_LETTERED)
            return opened

        monkeypatch.setattr(rig.archiver, "_until_it_works", open_slowly)
        await rig.put(event(1))
        await rig.until(lambda: taken_back and not rig.buffer.holdings, MAX_AGE)
        await rig.put(event(2))
        await rig.until(rig.lines, MAX_AGE)
        assert (rig.lines(), len(rig.folder.attempts)) == ([event(2)], 1)
