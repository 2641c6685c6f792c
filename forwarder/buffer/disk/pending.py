"""What is pending for the next group: records of offered events, marks of settled ones, and the
group with what is in it.

Small chunks of a lane that keeps no order are merged into one record and one chunk: that makes an
fsync for each request affordable, and its batches cheaper.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from forwarder.buffer.disk.compaction import MovedPiece
from forwarder.buffer.disk.format import ALL, HISTORICAL, RecordKind, encode_meta
from forwarder.buffer.disk.log import LogGroup, MarksRecord, Placement
from forwarder.buffer.disk.log_books import LogBooks
from forwarder.core.ack import AckCallback
from forwarder.core.event import Ack, Chunk, Lane
from forwarder.core.ports import DropCause, Fate

MERGE_BELOW: Final = 64 << 10
"""Chunks smaller than this are merged."""

MARK_BYTES: Final = 16

MERGED_BYTES: Final = 256 << 10
MERGED_EVENTS: Final = 1000
"""Most bytes and events of a merged record."""


Offer: TypeAlias = tuple[Sequence[Chunk], AckCallback | None, int]
"""Events offered together, the callback (None: the buffer has accepted them already), and what
they count for.
"""


class NewRecord:
    """Chunks that are written as one record."""

    __slots__ = (
        "ack",
        "count",
        "data",
        "ids",
        "lane",
        "origin",
        "placement",
        "received_at",
        "sequence",
        "size",
        "source",
        "uncounted",
    )

    def __init__(self, chunk: Chunk, *, counted: bool) -> None:
        self.lane = chunk.lane
        self.source = chunk.source
        self.data = [chunk.data]
        self.size = len(chunk.data)
        self.count = chunk.count
        self.ids = chunk.ids
        self.received_at = chunk.received_at
        self.ack: Ack | None = chunk.ack
        self.origin = chunk.origin
        self.uncounted = 0 if counted else chunk.count
        """Events that the lane's count doesn't have yet."""
        self.sequence = 0
        self.placement: Placement | None = None

    def add(self, chunk: Chunk, *, counted: bool) -> None:
        """Append a chunk."""
        self.data += (b",", chunk.data)
        self.size += len(chunk.data) + 1
        self.count += chunk.count
        if not counted:
            self.uncounted += chunk.count

    def takes(self, chunk: Chunk, most: int) -> bool:
        """Whether another small chunk may be appended."""
        return (
            self.size + len(chunk.data) < most
            and self.count < MERGED_EVENTS
            and chunk.source == self.source
        )

    @property
    def flags(self) -> int:
        """The record's flags."""
        return HISTORICAL if self.lane.historical else 0


def merge(offers: Sequence[Offer], most: int = MERGED_BYTES) -> Iterator[NewRecord]:
    """The records of the offers, each lane's in order; small chunks are
    merged to about `most` bytes.
    """
    open_records: dict[Lane, NewRecord] = {}
    for chunks, held, _ in offers:
        counted = held is None
        for chunk in chunks:
            record = open_records.get(chunk.lane)
            small = (
                len(chunk.data) < MERGE_BELOW
                and not chunk.ids
                and chunk.ack is None
                and not chunk.origin
            )
            if record is not None and small and record.takes(chunk, most):
                record.add(chunk, counted=counted)
                continue
            if record is not None:
                yield open_records.pop(chunk.lane)
            if small:
                open_records[chunk.lane] = NewRecord(chunk, counted=counted)
            else:
                yield NewRecord(chunk, counted=counted)
    yield from open_records.values()


@dataclass(slots=True)
class LaneMarks:
    """Settled events of one lane and fate."""

    lane: Lane
    fate: Fate | DropCause
    marks: array[int]
    events: int = 0

    def add(self, sequence: int, first: int, count: int, *, whole: bool) -> None:
        """Events of a record are settled; `whole`: all that it ever held."""
        self.marks.append(sequence)
        self.marks.append(ALL if whole else first << 32 | count)
        self.events += count

    def parts(self, most: int) -> Iterator[LaneMarks]:
        """The same in parts of at most `most` bytes each; the first of them counts all
        the events.
        """
        step = max(1, most // MARK_BYTES) * 2
        for at in range(0, len(self.marks), step):
            yield LaneMarks(
                self.lane, self.fate, self.marks[at : at + step], 0 if at else self.events
            )

    def record(self) -> MarksRecord:
        """As a record of the log."""
        flags = HISTORICAL if self.lane.historical else 0
        return MarksRecord(
            encode_meta(self.fate.value, self.lane.api_key),
            self.marks.tobytes(),
            flags,
            self.events,
        )


class Marks:
    """What was settled since the last group."""

    def __init__(self) -> None:
        self._lanes: dict[tuple[Lane, Fate | DropCause], LaneMarks] = {}

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def of(self, lane: Lane, fate: Fate | DropCause) -> LaneMarks:
        """The marks of a lane and fate."""
        marks = self._lanes.get((lane, fate))
        if marks is None:
            marks = self._lanes[lane, fate] = LaneMarks(lane, fate, array("Q"))
        return marks

    def take(self, *, dead_lettered: bool) -> list[LaneMarks]:
        """Remove and return those of dead-lettered events, or the others."""
        lane_marks = {
            key: marks
            for key, marks in self._lanes.items()
            if (key[1] is Fate.DEAD_LETTERED) == dead_lettered
        }
        for key in lane_marks:
            del self._lanes[key]
        return list(lane_marks.values())

    def put_back(self, lane_marks: Sequence[LaneMarks]) -> None:
        """Add marks that were not written."""
        for marks in lane_marks:
            mine = self.of(marks.lane, marks.fate)
            mine.marks.extend(marks.marks)
            mine.events += marks.events


def add_piece(group: LogGroup, piece: MovedPiece) -> Placement:
    """Add a copy of the rest of an old record to the group. Raises `BufferFull`."""
    return group.add(
        RecordKind.DATA,
        (piece.data,),
        meta=piece.meta,
        flags=piece.flags,
        events=piece.count,
        sequence=piece.sequence,
        first=piece.first,
        received_at=piece.received_at,
        origin=piece.origin,
        moved_from=piece.segment.generation,
    )


def add_record(group: LogGroup, record: NewRecord) -> Placement:
    """Add new events to the group. Raises `BufferFull`."""
    return group.add(
        RecordKind.DATA,
        record.data,
        meta=encode_meta(record.source, record.lane.api_key),
        fresh=True,
        flags=record.flags,
        events=record.count,
        sequence=record.sequence,
        received_at=record.received_at,
        origin=record.origin,
    )


class OffersDontFitError(Exception):
    """Offers take more room than estimated: none of them goes into the group."""


class PendingGroup:
    """The group that is being built or written, and what is in it."""

    __slots__ = (
        "dead_lettered",
        "group",
        "incomplete",
        "marks",
        "moved",
        "moving",
        "offers",
        "records",
        "refused",
        "size",
        "tally",
    )

    def __init__(self, group: LogGroup) -> None:
        self.group = group
        self.offers: list[Offer] = []
        self.refused: list[Offer] = []
        self.records: list[NewRecord] = []
        self.marks: list[LaneMarks] = []
        self.dead_lettered: list[LaneMarks] = []
        self.moved: list[tuple[MovedPiece, Placement]] = []
        self.incomplete = False
        """Whether marks had no room in it."""
        self.moving = False
        """Whether the pieces to be moved are in it."""
        self.tally: LogBooks | None = None
        self.size = 0
