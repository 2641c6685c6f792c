"""What compaction copies is there once, whatever of the copies the disk has at a crash."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from forwarder.buffer.disk.compaction import CompactionCycle
from forwarder.buffer.disk.format import RECORD_HEADER_SIZE, RecordKind
from forwarder.core.event import Lane
from forwarder.core.ports import Fate
from forwarder.wire.envelope import cut_at
from tests.support.damage import SegmentFile, segments
from tests.support.disk import DiskRig

LANE: Final = Lane("phc_copiedcopied1234")
OTHER: Final = Lane("phc_otherotherother1")


def event(number: int) -> bytes:
    """Event number so and so."""
    return b'{"event":"%d","p":"%b"}' % (number, b"x" * 3000)


def settle_some(rig: DiskRig, numbers: set[int]) -> None:
    """Deliver single events of the lane's first chunk; the others are in flight."""
    rest = rig.buffer.queue(LANE).popleft()
    done = []
    for number in range(rest.count):
        parts = cut_at(rest, 1) if rest.count > 1 else [rest]
        if rest.count > 1:
            rig.buffer.replace(rest, parts)
        rest = parts[-1]
        if number in numbers:
            done.append(parts[0])
    rig.buffer.settle(done, Fate.DELIVERED)
    rig.pump()


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DiskRig]:
    """A log of two segments. In the first: six events, of which two are settled,
    and that was just copied.
    """
    rig = DiskRig(tmp_path / "worker-0")
    rig.put(LANE, *map(event, range(6)))
    settle_some(rig, {2, 4})
    while len(rig.buffer.log.in_use) < 2:
        rig.put(OTHER, event(100))
        rig.deliver(OTHER)
    with monkeypatch.context() as patched:
        patched.setattr(
            CompactionCycle,
            "is_due",
            lambda _, in_use, **__: in_use[0].live > 0 and not in_use[0].busy and len(in_use) > 1,
        )
        rig.put(OTHER, event(101))
        rig.deliver(OTHER)
    assert rig.buffer.log.in_use[0].generation == 2
    rig.abandon()
    yield rig
    rig.abandon()


def copies(rig: DiskRig) -> tuple[SegmentFile, list[tuple[int, int]]]:
    """The copies in the second segment: where they begin and end."""
    file = segments(rig.log_directory)[1]
    copied = [item for item in file.records(RecordKind.DATA) if item.header.moved_from]
    assert [(item.header.first, item.header.events) for item in copied] == [(0, 2), (3, 1), (5, 1)]
    return file, [(item.offset, item.offset + item.header.length) for item in copied]


def check(rig: DiskRig) -> None:
    """The four events are there, once and in order; so they are after they were copied again, and
    after a restart.
    """
    for _ in range(3):
        assert rig.events(LANE) == [event(number) for number in (0, 1, 3, 5)]
        assert rig.open_events(LANE) == rig.buffer.count(LANE) == 4
        rig.put(OTHER, event(102))
        rig.deliver(OTHER)
        rig.abandon()
        rig.open()
    rig.buffer.settle(
        [rig.buffer.queue(LANE).popleft() for _ in range(len(rig.buffer.queue(LANE)))],
        Fate.DELIVERED,
    )
    rig.pump()
    rig.abandon()
    rig.open()
    assert rig.buffer.count(LANE) == rig.open_events(LANE) == 0


def test_complete_copies_replace_the_record(rig: DiskRig) -> None:
    """The record that they are of is still there, and counts no more: its segment is free."""
    assert [file.generation for file in segments(rig.log_directory)] == [1, 2]
    rig.open()
    assert set(rig.buffer.segments) == {2}
    check(rig)


@pytest.mark.parametrize("which", [{0}, {1}, {2}, {0, 1}, {1, 2}, {0, 2}, {0, 1, 2}])
@pytest.mark.parametrize("part", ["header", "body"])
def test_incomplete_copies_are_not_used(rig: DiskRig, which: set[int], part: str) -> None:
    """The disk has only some of what was written in the group: then the record itself is used, and
    nothing is there twice.
    """
    file, places = copies(rig)
    for index in which:
        begin, end = places[index]
        file.write(
            begin if part == "header" else end - 10,
            bytes(RECORD_HEADER_SIZE if part == "header" else 10),
        )
    rig.open()
    check(rig)


@pytest.mark.parametrize("left", [0, 1, 2])
def test_a_crash_while_copies_are_written(rig: DiskRig, left: int) -> None:
    """The group was cut off: nothing behind some of the copies is on the disk."""
    file, places = copies(rig)
    file.write(places[left][0], bytes(file.path.stat().st_size - places[left][0]))
    rig.open()
    check(rig)


def test_copies_of_a_record_that_is_gone_are_used_as_far_as_they_are_there(rig: DiskRig) -> None:
    """The first segment can't be read any more, and one of the copies neither: its events are
    dropped, the others continue.
    """
    file, places = copies(rig)
    segments(rig.log_directory)[0].path.unlink()
    file.flip(places[0][1] - 3)
    rig.open()
    assert rig.events(LANE) == [event(3), event(5)]
    assert rig.dropped(LANE) == {"damaged": 2}
    assert rig.open_events(LANE) == rig.buffer.count(LANE) == 2
