"""The dead letters of an import."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

from structlog.testing import capture_logs

from forwarder.core.ports import Reason
from forwarder.daemon.import_dead_letters import ImportDeadLetters
from forwarder.deadletter.room import DEAD_LETTER_OVERHEAD
from forwarder.deadletter.schema import open_writable
from forwarder.deadletter.selection import mark_for_drop
from forwarder.sources.imports.blocks import EventOrigin, RecordOrigin, read_origin
from forwarder.sources.imports.conversion import OF_EVENTS
from forwarder.sources.imports.import_books import FateKind, RecordFate, RefusalExample
from forwarder.storage import failpoints
from forwarder.storage.directory import DEAD_LETTERS
from tests.daemon.lettered import (
    FILE,
    LANE,
    bury,
    event,
    mark,
    offer,
    opened,
    refused,
    refused_events,
    rows,
)
from tests.deadletter.rig import query
from tests.support.clock import FakeClock
from tests.support.waiting import eventually

KILLED = """
import asyncio, sys
from pathlib import Path
from forwarder.storage import failpoints
from tests.daemon.lettered import bury, opened, refused

async def main():
    async with opened(Path(sys.argv[1])) as letters:
        failpoints.arm("dead_letters.committed=kill")
        await bury(letters, [refused(3), refused(4, part=1), refused(4, part=2)])
        print("the records count as read")

asyncio.run(main())
"""


async def test_a_refused_record_is_kept_with_file_and_line(tmp_path: Path) -> None:
    """It is on the disk when its burying returns: with its bytes, whatever they are, and all that
    a replay needs.
    """
    async with opened(tmp_path) as letters:
        await bury(letters, [refused(16, b"\xff{cut", why=Reason.MISSING_TIMESTAMP)])
        ((reason, key, why, source, where, data, attributes),) = rows(
            tmp_path, "reason, api_key, why, source, coordinates, data, attributes"
        )
    assert (reason, key, why, source) == (
        "missing_timestamp",
        LANE.api_key,
        "missing_timestamp it is",
        "import",
    )
    assert (where, data) == ("export/a.json.gz:17", b"\xff{cut")
    assert json.loads(attributes) == {
        "holds": "record",
        "file_number": 0,
        "record": 16,
        "file_identity": FILE.identity,
        "part": 0,
        "refused_as": "missing_timestamp",
    }


async def test_refused_events_have_file_and_line(tmp_path: Path) -> None:
    """Each event of a chunk its own, also after the chunk was cut; and the day
    under which it was counted.
    """
    async with opened(tmp_path) as letters:
        assert letters.add(refused_events([event(1, day=2), event(7, part=1, day=2)]))
        await letters.durable()
        first, second = rows(tmp_path, "reason, why, coordinates, idx, attributes")
    assert first[:4] == ("refused", "400: no", "export/a.json.gz:2", OF_EVENTS)
    assert second[:4] == ("refused", "400: no", "export/a.json.gz:8", OF_EVENTS + 1)
    origin = {
        "holds": "event",
        "file_number": 0,
        "record": 7,
        "file_identity": FILE.identity,
        "event": 1,
        "day": "1970-01-03",
    }
    assert json.loads(second[4]) == origin


async def test_the_same_refusal_is_there_once(tmp_path: Path) -> None:
    """A run that was killed before its checkpoint refuses the same again; other parts of the
    record, and other records, are others.
    """
    for _ in range(2):
        async with opened(tmp_path) as letters:
            await bury(
                letters, [refused(3), refused(3, part=1), refused(4), refused(3 + (1 << 30))]
            )
            assert letters.add(refused_events([event(3), event(4)]))
            await letters.durable()
            assert letters.add(refused_events([event(3)]))
    assert len(rows(tmp_path)) == 6


def test_a_kill_between_the_letter_and_the_checkpoint(tmp_path: Path) -> None:
    """Killed with -9 once the letters are on the disk, before anybody knows:
    the next run has them once.
    """
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)], capture_output=True, check=False, text=True
    )
    assert (killed.returncode, killed.stdout) == (-signal.SIGKILL, ""), killed.stderr
    assert len(rows(tmp_path)) == 3

    async def again() -> None:
        async with opened(tmp_path) as letters:
            await bury(letters, [refused(3), refused(4, part=1), refused(4, part=2), refused(5)])

    asyncio.run(again())
    assert [where for where, _ in rows(tmp_path)] == [
        f"export/a.json.gz:{line}" for line in (4, 5, 5, 6)
    ]


async def test_while_nothing_can_be_written_a_refused_record_waits(tmp_path: Path) -> None:
    """It says why meanwhile; what was begun is there in the end, and what comes then."""
    clock = FakeClock()
    with capture_logs():
        async with opened(tmp_path, clock=clock) as letters:
            failpoints.arm("dead_letters.begin=enospc")
            assert offer(letters, [refused(1)])
            await eventually(lambda: "No space left" in letters.waiting)
            assert (
                offer(letters, [refused(2)]),
                letters.add(refused_events([event(9)])),
                letters.refusals,
            ) == (False, False, {})
            durable = asyncio.create_task(letters.durable())
            await clock.advance(3)
            assert not durable.done()
            failpoints.arm("")
            await _turn(clock, durable)
            assert offer(letters, [refused(2)])
            assert letters.waiting == ""
    assert len(rows(tmp_path)) == 2


async def test_without_room_it_says_what_to_do(tmp_path: Path) -> None:
    """Letters that are marked to be dropped make room at the next try, of the
    format's and of the service's.
    """
    data = b"x" * DEAD_LETTER_OVERHEAD
    async with opened(tmp_path, 2500) as letters:
        await bury(letters, [refused(1, data), refused(2, data)])
        attempts = (
            partial(offer, letters, [refused(3, data)]),
            partial(letters.add, refused_events([event(9)])),
        )
        for number, attempt in enumerate(attempts, 1):
            assert not attempt()
            assert f"forwarder dead-letters ls --path {tmp_path}" in letters.waiting
            connection = open_writable(tmp_path / DEAD_LETTERS)
            mark_for_drop(connection, [number])
            connection.close()
            await eventually(attempt)
            assert letters.waiting == ""
        await letters.durable()
    assert [where for where, _ in rows(tmp_path)] == ["export/a.json.gz:4", "export/a.json.gz:10"]


async def test_how_many_are_marked(tmp_path: Path) -> None:
    """An import that has some isn't done; those that are waited for are given once, and with what
    was put in their place.
    """
    async with opened(tmp_path) as letters:
        await bury(letters, [refused(1), refused(2), refused(3, part=1), refused(3, part=2)])
        assert (letters.marked_in(tmp_path), await letters.take_marked()) == (0, ())
    mark(tmp_path, {1: b"{}", 3: None})
    assert ImportDeadLetters.marked_in(tmp_path) == 2
    async with opened(tmp_path) as letters:
        first, second = await letters.take_marked()
        assert (first.number, first.data, first.together) == (1, b"{}", 1)
        assert first.origin == RecordOrigin(0, 1, FILE.identity, 0, "undecodable")
        assert (second.number, second.file, second.line, second.together) == (3, FILE, 4, 2)
        assert await letters.take_marked() == ()
        letters.unmark(1, "still no event")
        letters.remove([3])
        assert not letters.is_gone(3)
        assert await letters.take_marked() == ()
        assert letters.is_gone(3)
        assert ImportDeadLetters.marked_in(tmp_path) == 0
    assert rows(tmp_path, "number, mark, note") == [
        (1, None, "still no event"),
        (2, None, None),
        (4, None, None),
    ]


def test_a_folder_without_letters_has_none_marked(tmp_path: Path) -> None:
    """Nor has one whose letters can't be read; looking makes no file."""
    assert ImportDeadLetters.marked_in(tmp_path) == 0
    assert list(tmp_path.iterdir()) == []
    (tmp_path / DEAD_LETTERS).write_text("garbled")
    assert ImportDeadLetters.marked_in(tmp_path) == 0


async def test_replayed_letters_are_removed_at_the_start(tmp_path: Path) -> None:
    """Killed between the checkpoint and the removal: it isn't sent again, and no other letter gets
    its number.
    """
    async with opened(tmp_path) as letters:
        await bury(letters, [refused(1), refused(2)])
    mark(tmp_path, {2: None})
    async with opened(tmp_path, replayed=[2]) as letters:
        assert await letters.take_marked() == ()
        await bury(letters, [refused(3)])
    assert rows(tmp_path, "number") == [(1,), (3,)]


async def test_dead_letters_that_remain_are_reported(tmp_path: Path) -> None:
    """While nothing can be written, checkpoints have to keep naming them."""
    clock = FakeClock()
    async with opened(tmp_path, clock=clock) as letters:
        await bury(letters, [refused(1)])
        mark(tmp_path, {1: None})
        await letters.take_marked()
        with capture_logs():
            failpoints.arm("dead_letters.begin=eio")
            assert letters.add(refused_events([event(9)]))
            letters.remove([1])
            await eventually(lambda: letters.waiting)
            assert not letters.is_gone(1)
            failpoints.arm("")
            await _turn(clock, asyncio.create_task(letters.durable()))
        assert letters.is_gone(1)


async def test_an_event_that_is_refused_again_stays_the_letter_that_it_is(tmp_path: Path) -> None:
    """With a note that says so; no second letter, though its bytes were edited. Both are said to
    be refused.
    """
    async with opened(tmp_path) as letters:
        letters.add(refused_events([event(1)]))
        await letters.durable()
        assert letters.refusals.pop((0, 1, 0)) == RecordFate(
            FateKind.REFUSED, "refused", RefusalExample(FILE.name, 2, "400: no")
        )
        letters.returning[0, 1, 0] = 1
        edited = event(1)._replace(data=event(1).data.replace(b"ann", b"bob"))
        assert letters.add(refused_events([edited, event(2)], "413"))
        assert letters.refusals.keys() == {(0, 1, 0), (0, 2, 0)}
        await letters.durable()
    (first, second) = rows(tmp_path, "data, note")
    assert first == (event(1).data, "the service refused it again: 413")
    assert second == (event(2).data, None)


async def test_damaged_and_foreign_letters_stay(tmp_path: Path) -> None:
    """The disk may have changed a letter's bytes; a letter that a daemon wrote isn't taken for a
    record of an import.
    """
    assert read_origin('{"topic":"x"}') is None
    assert read_origin("") is None
    async with opened(tmp_path) as letters:
        letters.add(refused_events([event(1, day=2), event(2), event(3)]))
        await letters.durable()
        query(tmp_path, "UPDATE letters SET attributes = '', coordinates = '' WHERE number = 2")
        query(tmp_path, "UPDATE letters SET data = ? WHERE number = 3", (event(4).data,))
        mark(tmp_path, {2: None, 3: None})
        assert await letters.take_marked() == ()
        mark(tmp_path, {1: None, 3: event(3).data})
        first, third = await letters.take_marked()
    assert first.origin == EventOrigin(0, 1, FILE.identity, 0, "1970-01-03")
    assert (third.number, third.data) == (3, event(3).data)
    notes = dict(rows(tmp_path, "number, note"))
    assert "which record it was" in notes[2]
    assert notes[3] is None


async def _turn(clock: FakeClock, *tasks: asyncio.Task[bool]) -> None:
    """Let the clock continue until they are done."""
    passing = asyncio.create_task(_pass(clock))
    await asyncio.gather(*tasks)
    passing.cancel()
    await asyncio.gather(passing, return_exceptions=True)


async def _pass(clock: FakeClock) -> None:
    while True:
        await clock.advance(0.5)
