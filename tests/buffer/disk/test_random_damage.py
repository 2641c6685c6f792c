"""Random damage to random bytes of a log: reading it never fails, no event comes back changed, and
what wasn't touched is found.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeAlias

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from forwarder.buffer.disk.format import RecordKind
from forwarder.buffer.disk.reading import events_of
from forwarder.buffer.disk.recovery import recover
from forwarder.core.event import Lane
from tests.support.damage import SegmentFile, aside, segments
from tests.support.disk import DiskRig

pytestmark = pytest.mark.slow

LANES: Final = (
    Lane("phc_randomrandom1234"),
    Lane("phc_otherotherother1"),
    Lane("phc_otherotherother1", historical=True),
)
Hit: TypeAlias = tuple[int, float, int, int]
"""Which segment, where in it, how many bytes, and the seed of what they become; 0 makes them zeros.
"""

HITS: Final = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.floats(0, 1, exclude_max=True),
        st.sampled_from([1, 8, 100, 4096, 20_000]),
        st.integers(0, 1000),
    ),
    min_size=1,
    max_size=6,
)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of three segments, three lanes, events of many sizes; some are
    settled, one request in part.
    """
    directory = tmp_path_factory.mktemp("template") / "worker-0"
    rig = DiskRig(directory)
    for number in range(150):
        events = [
            b'{"event":"%d-%d","p":"%b"}' % (number, index, b"x" * (number * 37 % 5000))
            for index in range(1 + number % 3)
        ]
        rig.put(LANES[number % 3], *events)
        if number % 10 == 9:
            rig.deliver(LANES[number // 10 % 3])
    rig.abandon()
    return directory


class Before:
    """What was in the log before the damage: each record's bytes, and what of it was unsettled."""

    def __init__(self, files: list[SegmentFile], directory: Path) -> None:
        recovered = recover(directory)
        self.unsettled = {record.sequence: set(record.events) for record in recovered.records()}
        self.places = [
            (
                number,
                item.offset,
                item.offset + item.header.length,
                item.header.sequence,
                item.header.kind,
            )
            for number, file in enumerate(files)
            for item in file.records()
        ]

    @property
    def events(self) -> set[bytes]:
        """All that waited."""
        return {event for events in self.unsettled.values() for event in events}

    def touched(self, hits: list[tuple[int, int, int]]) -> Iterator[tuple[int, int]]:
        """The records that damage has hit, by sequence and kind."""
        for number, begin, end, sequence, kind in self.places:
            if any(file == number and at < end and stop > begin for file, at, stop in hits):
                yield sequence, kind


def hit(files: list[SegmentFile], damage: list[Hit]) -> list[tuple[int, int, int]]:
    """Damage the files; which places of them."""
    done = []
    for number, place, wanted, seed in damage:
        file = files[number]
        at = int(place * len(file.data))
        size = min(wanted, len(file.data) - at)
        file.write(at, random.Random(seed).randbytes(size) if seed else bytes(size))
        done.append((number, at, at + size))
    return done


@settings(max_examples=60, deadline=None)
@given(damage=HITS)
@example(damage=[(number, 0.0, 4096, 0) for number in range(3)])
@example(damage=[(number, 0.0, 131_072, number) for number in range(3)])
def test_undamaged_records_are_found_unchanged(template: Path, damage: list[Hit]) -> None:
    """Events of untouched records are all there; nothing is there that wasn't received; the books
    balance, at this opening and the next.
    """
    folder = Path(tempfile.mkdtemp())
    try:
        directory = folder / "worker-0"
        shutil.copytree(template, directory)
        files = segments(directory / "log")
        before = Before(files, directory / "log")
        data = [item for file in files for item in file.records(RecordKind.DATA)]
        everything = {
            event for item in data for event in events_of(bytes(item.body), item.header.events)
        }
        touched = set(before.touched(hit(files, damage)))
        rig = DiskRig(directory)
        for _ in range(2):
            stored_events = [event for lane in LANES for event in rig.events(lane)]
            assert len(stored_events) == len(set(stored_events))
            whole = [
                events
                for sequence, events in before.unsettled.items()
                if (sequence, RecordKind.DATA) not in touched
            ]
            safe = {event for events in whole for event in events}
            assert set(stored_events) >= safe
            if not any(kind == RecordKind.MARKS for _, kind in touched):
                assert set(stored_events) <= before.events
            assert set(stored_events) <= everything
            for lane in LANES:
                assert rig.open_events(lane) == rig.buffer.count(lane) == len(rig.events(lane))
            copies = aside(directory)
            rig.abandon()
            rig.open()
        assert aside(directory) == copies
        rig.abandon()
    finally:
        shutil.rmtree(folder)
