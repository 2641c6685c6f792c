"""Blocks: neighbouring records of an import on their way through the pipeline, from the source to what a checkpoint counts.

A block is settled as one: one span of the source's watermark, one acknowledgement over its chunks. Its chunks hold the events of one UTC
day each, since a request never mixes days (wire facts: What the service does not tell). What it counts is known when it is made; the few
events that the service refuses are taken off again.

Invariants: a chunk's events are in the order of the source, and two events of one id are in chunks of that order; all of a record's events
are in one block, except where the events were sorted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from itertools import chain
from operator import itemgetter
from typing import Final, NamedTuple

from forwarder.core.event import Chunk, Lane, Where
from forwarder.sources.files.records import BrokenSource, SourceFile
from forwarder.sources.imports.books import DayTally, RecordBooks, RecordFate, RefusalExample, count_kind
from forwarder.sources.imports.checkpoint import SpoolIndex
from forwarder.sources.imports.columns import MERGES, EventColumns, EventKey
from forwarder.sources.imports.conversion import ConvertedRecords, ImportDeadLetter
from forwarder.sources.imports.letters import SOURCE, where_of
from forwarder.sources.imports.times import AFTER_LAST, DAY
from forwarder.sources.imports.uuid_digest import uuid_hash, uuid_hashes
from forwarder.wire.identity import ids_of


class ImportChunk(Chunk):
    """Events of one UTC day. A part of it is another one."""

    __slots__ = ("_events", "_files")

    def __init__(  # noqa: PLR0917 - as `Chunk`
        self, lane: Lane, data: bytes, ids: frozenset[str], received_at: float, events: EventColumns, files: Mapping[int, SourceFile]
    ) -> None:
        """`events`: those of the chunk, without their data. `files`: by number, those that they are of at least."""
        super().__init__(lane, data, len(events), ids, received_at, SOURCE)
        self._events = events
        self._files = files

    @property
    def day(self) -> int:
        """The UTC day of its events, counted from 1970."""
        return self._events.times[0] // DAY

    def part(self, data: bytes, count: int, ids: frozenset[str], at: int) -> ImportChunk:
        """See `Chunk.part`."""
        part = ImportChunk(self.lane, data, ids, self.received_at, self._events[at : at + count], self._files)
        part.ack = self.ack
        return part

    def where(self, index: int) -> Where:
        """See `Chunk.where`."""
        return where_of(event := self._events[index], self._files[event.file])


@dataclass(frozen=True, slots=True)
class ChunkLimits:
    """How large chunks are: so many of them make a batch that a batch is filled, and none is cut."""

    max_bytes: int
    max_events: int

    @classmethod
    def of_batches(cls, max_bytes: int, max_events: int) -> ChunkLimits:
        """For batches of at most so many bytes and events."""
        return cls(max(max_bytes // _A_BATCH, 1), max_events // _A_BATCH if max_events >= _MANY else max_events)


_A_BATCH: Final = 4
_MANY: Final = 400
"""Events of a batch that is worth being filled by parts."""


class SharedRecord(NamedTuple):
    """What is to be known of a sorted event that isn't all of its record."""

    is_last: bool
    """Whether it is the last of its record's in the order of time: with it the record is settled."""
    reason: str = ""
    """Why the format refused an event of the record; empty if it refused none."""
    detail: str = ""


@dataclass(slots=True)
class ImportBlock:
    """See the module."""

    files: Mapping[int, SourceFile]
    """The files of the source by number; more may come."""
    records: int = 0
    """How many it has."""
    books: dict[int, RecordBooks] = field(default_factory=dict)
    """Of its records, by the numbers of their files."""
    examples: list[tuple[str, RefusalExample]] = field(default_factory=list)
    """Of what its format refused, with the reasons."""
    letters: list[ImportDeadLetter] = field(default_factory=list)
    """What its format refused."""
    parts: list[EventColumns] = field(default_factory=list)
    """What is sent: the events of each chunk. Without their data once they are in chunks."""
    days: dict[int, DayTally] = field(default_factory=dict)
    """By day, counted from 1970."""
    names: Counter[str] = field(default_factory=Counter)
    """Of its events."""
    refused: set[tuple[int, int]] = field(default_factory=set)
    """Records, by file and number, that send events and count as refused: the format or the service refused one of their events."""
    first: int = AFTER_LAST
    last: int = -1
    """The earliest and the latest time of its events."""
    file: int | None = None
    """The number of its file; None where it has records of several, or none."""
    digest: str = ""
    """The running digest of the file after these records."""
    ended: bool = False
    """Whether the file has no more records."""
    broken: BrokenSource | None = None
    """Why the file can't be read to its end."""
    sorted: SpoolIndex | None = None
    """Before the first sorted events: what sorting found. All that came before is to be settled first."""
    entries: int = 0
    """How many sorted events it has."""
    shared: Mapping[EventKey, SharedRecord] = field(default_factory=dict)
    """Of sorted events that aren't all of their records."""
    shared_refused: dict[EventKey, RecordFate] = field(default_factory=dict)
    """Of these, those that the service has refused."""

    @classmethod
    def of(cls, made: ConvertedRecords, number: int, first: int, files: Mapping[int, SourceFile], limits: ChunkLimits) -> ImportBlock:
        """What became of neighbouring records of the file with this number, from the record `first` on."""
        books = RecordBooks(len(made.counts), len(made.counts) - len(made.fates) - len(made.partly))
        block = cls(files, books.read, {number: books}, letters=made.refused, file=number)
        for _, fate in sorted([*made.fates.items(), *made.partly.items()], key=itemgetter(0)):
            block._count(number, fate)
        block.refused = {(number, first + index) for index in made.partly}
        block.send(made.events, limits)
        return block

    def send(self, events: EventColumns, limits: ChunkLimits) -> None:
        """Add events to what is sent, and count them."""
        if not len(events):
            return
        names, first, last = events.bounds
        self.names.update(names)
        self.first, self.last = min(self.first, first), max(self.last, last)
        for part in cut_by_day(events, limits):
            self.parts.append(part)
            self.days.setdefault(part.times[0] // DAY, DayTally()).add(len(part), len(part), uuid_hashes(part.uuids))

    def chunks(self, lane: Lane, now: float) -> list[Chunk]:
        """The chunks of its events, once: it forgets their data."""
        parts, self.parts = self.parts, [part.without_data() for part in self.parts]
        return [ImportChunk(lane, part.joined(), part.ids(), now, slim, self.files) for part, slim in zip(parts, self.parts, strict=True)]

    @property
    def counts(self) -> bool:
        """Whether a checkpoint says more once it is passed: not while a source is sorted."""
        return self.file is not None or self.sorted is not None or self.entries > 0

    def line_of(self, key: EventKey) -> int:
        """The line of the record of one of its events."""
        return next(event.line for event in chain.from_iterable(self.parts) if event.key == key)

    def refuse(self, refusals: MutableMapping[EventKey, RecordFate]) -> None:
        """Take off its counts the events that the service has refused; they are taken out of `refusals`."""
        if not refusals:
            return
        arrived: list[int] = []
        for event in chain.from_iterable(self.parts):
            key = event.key
            fate = refusals.pop(key, None)
            if fate is None:
                arrived.append(event.time)
                continue
            self.days[event.day].add(0, -1, -uuid_hash(event.uuid))
            self.names[event.event] -= 1
            if key in self.shared:  # the record waits for its other events
                self.shared_refused[key] = fate
            elif key[:2] not in self.refused:
                self.refused.add(key[:2])  # it counts as refused once, whichever of its events was
                self.books[key[0]].delivered -= 1
                self._count(key[0], fate)
        self.first, self.last = min(arrived, default=AFTER_LAST), max(arrived, default=-1)

    def _count(self, file: int, fate: RecordFate) -> None:
        """A record of a file isn't delivered."""
        count_kind(self.books[file], fate)
        if fate.example is not None:
            self.examples.append((fate.reason, fate.example))


def cut_by_day(events: EventColumns, limits: ChunkLimits) -> Iterator[EventColumns]:
    """The events in parts of one day each, within the limits, in an order that keeps that of each id.

    An event may join the other events of its day only if nothing that comes after those has one of its ids.
    """
    if events.bounds.first // DAY == events.bounds.last // DAY:
        yield from _cut(events, limits)
        return
    groups: list[list[int]] = []
    of_day: dict[int, int] = {}
    latest: dict[str, int] = {}
    for at, (time, own, name) in enumerate(zip(events.times, events.distinct_ids, events.names, strict=True)):
        ids = (own, *ids_of(events.data[at])) if name in MERGES else (own,)
        group = of_day.get(time // DAY)
        if group is None or any(latest.get(each, group) > group for each in ids):
            group = of_day[time // DAY] = len(groups)
            groups.append([])
        groups[group].append(at)
        latest.update(dict.fromkeys(ids, group))
    for indexes in groups:
        yield from _cut(events.only(indexes), limits)


def _cut(events: EventColumns, limits: ChunkLimits) -> Iterator[EventColumns]:
    """The events in parts within the limits; one that alone is larger is a part alone."""
    if len(events) <= limits.max_events and events.size + len(events) <= limits.max_bytes:
        yield events
        return
    start = size = 0
    for at, data in enumerate(events.data):
        if at > start and (at - start >= limits.max_events or size + len(data) + 1 > limits.max_bytes):
            yield events[start:at]
            start, size = at, 0
        size += len(data) + 1
    yield events[start:]
