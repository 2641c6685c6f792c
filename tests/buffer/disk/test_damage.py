"""Opening a damaged log: what is readable continues, what isn't lies aside whole, everything is
reported, and the books balance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from structlog.testing import capture_logs

from forwarder.buffer.disk.format import (
    RECORD_HEADER_SIZE,
    SEGMENT_HEADER_SIZE,
    RecordKind,
    SegmentHeader,
    encode_segment_header,
)
from forwarder.core.event import Lane
from tests.support.damage import PAGE, SegmentFile, aside, notes, segments
from tests.support.disk import DiskRig

LANE: Final = Lane("phc_damagedamage1234")
COUNT: Final = 40
EACH: Final = 4
PADDING: Final = 2000


def request(number: int) -> list[bytes]:
    """The events of request `number`."""
    return [
        b'{"event":"%d-%d","p":"%b"}' % (number, index, b"x" * PADDING) for index in range(EACH)
    ]


@dataclass
class Damaged:
    """A rig whose log holds `COUNT` requests in three segments; `delivered` of them are settled."""

    rig: DiskRig
    delivered: int = 0

    @property
    def files(self) -> list[SegmentFile]:
        """The segments, oldest first."""
        return segments(self.rig.log_directory)

    def reopen(self) -> list[Any]:
        """Open it as after kill -9; what was logged as warning or error."""
        with capture_logs() as logs:
            self.rig.open()
        return [line for line in logs if line["log_level"] in ("warning", "error")]

    def check(self, lost: set[int]) -> None:
        """All but those requests are there, unchanged and once, and the books say so; and new
        events can be taken and survive.
        """
        expected = [
            event
            for number in range(self.delivered, COUNT)
            if number not in lost
            for event in request(number)
        ]
        assert self.rig.events(LANE) == expected
        assert self.rig.open_events(LANE) == self.rig.buffer.count(LANE) == len(expected)
        assert self.rig.dropped(LANE) == ({"damaged": EACH * len(lost)} if lost else {})
        self.rig.put(LANE, b'{"event":"afterwards"}')
        assert self.rig.buffer.commits.refusing == ""
        assert self.rig.events(LANE) == [*expected, b'{"event":"afterwards"}']

    def holding(self, where: Callable[[int, int], bool]) -> dict[int, set[int]]:
        """The requests whose records overlap a place of a segment, by segment."""
        records = [
            (number, item)
            for number, file in enumerate(self.files)
            for item in file.records(RecordKind.DATA)
        ]
        hit = [
            (number, item)
            for number, item in records
            if where(item.offset, item.offset + item.header.length)
        ]
        return {
            number: {item.header.sequence - 1 for segment, item in hit if segment == number}
            for number, _ in hit
        }


@pytest.fixture
def damaged(tmp_path: Path) -> Iterator[Damaged]:
    """A log of three segments after kill -9, of which the first five requests are delivered."""
    rig = DiskRig(tmp_path / "worker-0", window=1 << 20)
    log = Damaged(rig, delivered=5)
    for number in range(COUNT):
        rig.put(LANE, *request(number))
        if number == 10:
            rig.deliver(LANE, log.delivered)
    rig.abandon()
    assert len(log.files) == 3
    yield log
    rig.abandon()


def sequences(file: SegmentFile) -> list[int]:
    """The requests in a segment."""
    return [item.header.sequence - 1 for item in file.records(RecordKind.DATA)]


def test_an_intact_log_reports_no_damage(damaged: Damaged) -> None:
    """After kill -9 everything is there, nothing is reported, nothing lies aside."""
    assert damaged.reopen() == []
    damaged.check(set())
    assert not (damaged.rig.directory / "aside").exists()


@pytest.mark.parametrize("index", [1, 2], ids=["before the last checkpoint", "behind it"])
@pytest.mark.parametrize("kind", ["zero_page", "garble_page"])
def test_a_garbled_page_costs_the_records_that_it_is_in(
    damaged: Damaged, kind: str, index: int
) -> None:
    """Records are found again behind the page; the damaged bytes are copied aside with file, place
    and what it was.
    """
    file = damaged.files[index]
    page = file.records(RecordKind.DATA)[3].offset // PAGE + 1
    held = damaged.holding(lambda begin, end: begin < (page + 1) * PAGE and end > page * PAGE)
    lost = held[index]
    getattr(file, kind)(page)
    lines = damaged.reopen()
    assert {line["event"] for line in lines} >= {
        "part of the buffer's files is damaged; a copy is quarantined"
    }
    assert lines[0]["file"] == str(file.path)
    damaged.check(lost)
    copies = aside(damaged.rig.directory)
    assert sum(map(len, copies.values())) >= PAGE
    for name, copy in copies.items():
        at = int(name.split("-at-")[1].removesuffix(".bytes"))
        assert file.data[at : at + len(copy)] == copy
    assert [line.split(": ")[0] for line in notes(damaged.rig.directory)] == sorted(copies)


@pytest.mark.parametrize("index", [1, 2], ids=["before the last checkpoint", "behind it"])
def test_a_flipped_bit_in_an_event_costs_its_record(damaged: Damaged, index: int) -> None:
    """No changed event is ever delivered; its record's events are counted and dropped, the report
    says how many they are.
    """
    file = damaged.files[index]
    item = file.records(RecordKind.DATA)[2]
    file.flip(item.offset + item.header.length - 10)
    lines = damaged.reopen()
    assert lines[0] | {"copy": "", "hint": ""} == {
        "event": "part of the buffer's files is damaged; a copy is quarantined",
        "log_level": "error",
        "file": str(file.path),
        "at": item.offset,
        "bytes": item.header.length,
        "what": "a record's body",
        "events": EACH,
        "copy": "",
        "hint": "",
    }
    assert lines[1]["event"] == "events of the buffer are missing; they count as dropped"
    assert lines[1]["events"] == EACH
    damaged.check({item.header.sequence - 1})
    ((name, copy),) = aside(damaged.rig.directory).items()
    assert copy == file.data[item.offset : item.offset + item.header.length]
    assert notes(damaged.rig.directory)[0].startswith(f"{name}: a record's body: ")


def test_a_flipped_bit_in_a_records_header_costs_that_record(damaged: Damaged) -> None:
    """The next record is found by its own header; the books know from the checkpoint how many
    events are gone.
    """
    file = damaged.files[1]
    item = file.records(RecordKind.DATA)[2]
    file.flip(item.offset + 30)
    lines = damaged.reopen()
    assert [line["what"] for line in lines if "what" in line] == ["bytes between records"]
    damaged.check({item.header.sequence - 1})


def test_a_header_behind_the_last_checkpoint_that_cannot_be_read_was_never_counted(
    damaged: Damaged,
) -> None:
    """How many events were in it is unknown: it is reported and lies aside, and the books
    balance without it.
    """
    file = damaged.files[2]
    item = file.records(RecordKind.DATA)[1]
    file.flip(item.offset + 30)
    (line,) = damaged.reopen()
    assert line["events"] == "unknown"
    assert (
        damaged.rig.open_events(LANE)
        == damaged.rig.buffer.count(LANE)
        == EACH * (COUNT - damaged.delivered - 1)
    )
    assert file.data[item.offset :].startswith(next(iter(aside(damaged.rig.directory).values())))


def test_a_segments_header_that_cannot_be_read_costs_nothing(damaged: Damaged) -> None:
    """Each record says which generation it is of."""
    damaged.files[1].flip(20)
    (line,) = damaged.reopen()
    assert line["what"] == "the segment's header; its records can be read"
    damaged.check(set())
    assert [len(copy) for copy in aside(damaged.rig.directory).values()] == [SEGMENT_HEADER_SIZE]


def test_a_segment_without_header_and_records_is_quarantined_whole(damaged: Damaged) -> None:
    """Garbage from beginning to end: the file is kept, what was in it is counted."""
    file = damaged.files[1]
    lost = set(sequences(file))
    garbage = bytes(range(1, 256)) * 100
    file.path.write_bytes(garbage)
    lines = damaged.reopen()
    assert lines[0]["event"] == "a file of the buffer can't be used; it was quarantined whole"
    assert lines[0]["what"] == "neither its header nor any record in it can be read"
    assert lines[1]["event"] == "the buffer's files aren't complete"
    damaged.check(lost)
    ((name, moved),) = aside(damaged.rig.directory).items()
    assert moved == garbage
    assert notes(damaged.rig.directory) == [
        f"{name}: neither its header nor any record in it can be read"
    ]


@pytest.mark.parametrize("content", [b"", bytes(300_000)], ids=["empty", "zeros"])
def test_an_emptied_segment_is_quarantined(damaged: Damaged, content: bytes) -> None:
    """A file of no bytes, or of zeros, was never made by forwarder: it is quarantined
    and reported.
    """
    file = damaged.files[1]
    lost = set(sequences(file))
    file.path.write_bytes(content)
    lines = damaged.reopen()
    assert lines[0]["event"] == "a file of the buffer can't be used; it was quarantined whole"
    damaged.check(lost)
    assert list(aside(damaged.rig.directory).values()) == [content]


def test_a_missing_log_is_reported(damaged: Damaged) -> None:
    """All segments are empty files: there is nothing to continue with, and each is reported."""
    for file in damaged.files:
        file.path.write_bytes(b"")
    lines = damaged.reopen()
    assert [line["what"] for line in lines] == ["it is empty"] * 3
    assert len(aside(damaged.rig.directory)) == 3
    assert damaged.rig.buffer.count(LANE) == 0


@pytest.mark.parametrize("within", [True, False], ids=["in a record", "between two"])
def test_a_segment_that_was_cut_off(damaged: Damaged, within: bool) -> None:
    """What is before the cut continues, what was behind it is counted."""
    file = damaged.files[1]
    items = file.records(RecordKind.DATA)
    cut = items[4].offset + (RECORD_HEADER_SIZE + 500 if within else 0)
    lost = {item.header.sequence - 1 for item in items[4:]}
    size = file.path.stat().st_size
    file.truncate(cut)
    lines = damaged.reopen()
    assert f"the file was cut off at {cut} of {size} bytes" in [line.get("what") for line in lines]
    damaged.check(lost)
    if within:
        assert any(copy for copy in aside(damaged.rig.directory).values())


def test_the_last_segment_cut_off(damaged: Damaged) -> None:
    """Nothing is written behind the cut: the log continues in a new segment."""
    file = damaged.files[2]
    items = file.records(RecordKind.DATA)
    file.truncate(items[2].offset + 1000)
    damaged.reopen()
    expected = [
        event for number in range(5, items[2].header.sequence - 1) for event in request(number)
    ]
    assert damaged.rig.events(LANE) == expected
    assert damaged.rig.open_events(LANE) == len(expected)
    assert damaged.rig.buffer.log.tail is not None
    assert damaged.rig.buffer.log.tail.generation > file.generation


def test_a_missing_segment(damaged: Damaged) -> None:
    """It is reported, and what was in it is counted; the next opening has nothing to add."""
    file = damaged.files[1]
    lost = set(sequences(file))
    file.path.unlink()
    lines = damaged.reopen()
    assert (lines[0]["event"], lines[0]["what"]) == (
        "the buffer's files aren't complete",
        "1 segments before it are missing",
    )
    assert lines[1]["event"] == "events of the buffer are missing; they count as dropped"
    damaged.check(lost)
    damaged.rig.abandon()
    assert damaged.reopen() == []


def test_the_oldest_segment_is_missing(damaged: Damaged) -> None:
    """It could have been freed; the books tell that it wasn't."""
    file = damaged.files[0]
    lost = set(sequences(file)[5:])
    file.path.unlink()
    (line,) = damaged.reopen()
    assert (line["event"], line["events"]) == (
        "events of the buffer are missing; they count as dropped",
        EACH * len(lost),
    )
    damaged.check(lost)


def test_a_segment_of_another_version_is_quarantined_whole(damaged: Damaged) -> None:
    """The rest continues; the forwarder that wrote it can read it."""
    file = damaged.files[1]
    lost = set(sequences(file))
    file.write(
        0, encode_segment_header(SegmentHeader(7, file.path.stat().st_size, file.generation, 0.0))
    )
    content = file.data
    lines = damaged.reopen()
    assert lines[0]["event"] == "a file of the buffer can't be used; it was quarantined whole"
    assert lines[0]["what"] == "it is of version 7 of the format; this forwarder reads version 1"
    damaged.check(lost)
    assert list(aside(damaged.rig.directory).values()) == [content]


def test_the_newest_checkpoint_cannot_be_read(damaged: Damaged) -> None:
    """The one before serves: no event is lost, and the books are counted from there."""
    file = damaged.files[2]
    (item,) = file.records(RecordKind.CHECKPOINT)
    file.flip(item.offset + item.header.length - 5)
    (line,) = damaged.reopen()
    assert line["what"] == "a record's body"
    damaged.check(set())


def test_no_checkpoint_can_be_read(damaged: Damaged) -> None:
    """Then the records themselves are counted."""
    for file in damaged.files:
        (item,) = file.records(RecordKind.CHECKPOINT)
        file.flip(item.offset + item.header.length - 5)
    assert len(damaged.reopen()) == 3
    damaged.check(set())


def test_marks_that_cannot_be_read_mean_that_events_are_sent_again(damaged: Damaged) -> None:
    """Rather twice than never: the books say so too."""
    file = damaged.files[0]
    for item in file.records(RecordKind.MARKS):
        file.flip(item.offset + item.header.length - 1)
    damaged.reopen()
    damaged.delivered = 0
    damaged.check(set())


def test_a_torn_record_is_quarantined_and_counted(damaged: Damaged) -> None:
    """kill -9 in the middle of a write: the torn record lies aside, and counts, for a sender may
    have been answered.
    """
    file = damaged.files[2]
    item = file.records(RecordKind.DATA)[-1]
    rest = item.offset + item.header.length - 3000
    file.write(rest, bytes(file.path.stat().st_size - rest))
    lines = damaged.reopen()
    assert (lines[0]["what"], lines[0]["events"]) == ("a record's body", EACH)
    assert damaged.rig.events(LANE) == [
        event for number in range(5, COUNT - 1) for event in request(number)
    ]
    assert damaged.rig.dropped(LANE) == {"damaged": EACH}
    assert damaged.rig.open_events(LANE) == damaged.rig.buffer.count(LANE)


def test_a_foreign_file_is_put_away_or_left_alone(damaged: Damaged) -> None:
    """What is named like a segment and isn't one is quarantined;
    anything else isn't forwarder's.
    """
    directory = damaged.rig.log_directory
    (directory / "notes.txt").write_text("mine")
    (directory / "notes.segment").write_text("mine, too")
    (directory / "00000077.segment").mkdir()
    lines = damaged.reopen()
    assert [(line["what"], Path(line["file"]).name) for line in lines] == [
        ("it is not a segment", "00000077.segment"),
        ("it is not a segment", "notes.segment"),
    ]
    damaged.check(set())
    assert (directory / "notes.txt").read_text() == "mine"
    assert aside(damaged.rig.directory).popitem()[1] == b"mine, too"


def test_a_copy_of_a_segment_is_quarantined(damaged: Damaged) -> None:
    """Two files of one generation: the first counts, and nothing is there twice."""
    file = damaged.files[1]
    (damaged.rig.log_directory / "00000099.segment").write_bytes(file.data)
    (line,) = damaged.reopen()
    assert line["what"] == f"it is a copy of {file.path.name}"
    damaged.check(set())


def test_an_unfinished_new_segment_is_ignored(damaged: Damaged) -> None:
    """A process that ended while it made a segment left nothing to report."""
    (damaged.rig.log_directory / "00000099.new").write_bytes(bytes(5000))
    assert damaged.reopen() == []
    assert not (damaged.rig.log_directory / "00000099.new").exists()
    damaged.check(set())


def test_repeated_damage_is_reported_again_and_copied_once(damaged: Damaged) -> None:
    """An operator who overlooked it sees it at each start, as long as it is there; what is aside
    stays as it was.
    """
    file = damaged.files[1]
    item = file.records(RecordKind.DATA)[2]
    file.flip(item.offset + item.header.length - 10)
    first = damaged.reopen()
    damaged.check({item.header.sequence - 1})
    copies = aside(damaged.rig.directory)
    lines = notes(damaged.rig.directory)
    damaged.rig.abandon()
    damaged.rig.clock.time += 1000
    again = damaged.reopen()
    assert again == [first[0]]
    assert (aside(damaged.rig.directory), notes(damaged.rig.directory)) == (copies, lines)
    assert damaged.rig.dropped(LANE) == {"damaged": EACH}
