"""Blocks: neighbouring records of an import on their way through the pipeline, from the source's
files to what a checkpoint counts.

Reading is synchronous, for a thread of its own. A resumed import reads its source again from the
start: that shows that it is the same (its running digest), and restores what follows from earlier
records: repeats, limits, first times. Settled records aren't sent again.

A block is settled as one: one span of the source's watermark, one acknowledgement over its chunks.
Its chunks hold the events of one UTC day each, since a request never mixes days (wire facts: What
the service does not tell). What it counts is known when it is made; the few events that the
service refuses are taken off again.

Invariants: a chunk's events are in the order of the source, and two events of one id are in chunks
of that order; all of a record's events are in one block, except where the events were sorted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import itemgetter
from typing import Final, NamedTuple

import msgspec

from forwarder.core.event import Chunk, Lane, Where
from forwarder.core.ports import DeadLetter
from forwarder.sources.files.record_blocks import BrokenSource, RecordBlock, SourceFile
from forwarder.sources.files.source import BlockReader, FileSource
from forwarder.sources.imports.checkpoint import SettledFile, SourceChanged, SpoolIndex
from forwarder.sources.imports.columns import MERGES, EventColumns, EventKey
from forwarder.sources.imports.conversion import (
    OF_EVENTS,
    Conversion,
    ConvertedRecords,
    ImportDeadLetter,
)
from forwarder.sources.imports.import_books import (
    DayTally,
    RecordBooks,
    RecordFate,
    RefusalExample,
    count_kind,
    uuid_hash,
    uuid_hashes,
)
from forwarder.sources.imports.times import AFTER_LAST, DAY, day_of
from forwarder.wire.identity import ids_of

SOURCE: Final = "import"
_NUMBERS: Final = 40
"""Bits of a place for the number of a record in its file."""
_OF_MEMBERS: Final = 1 << 32
"""Among the events of a record, those that were made of single members of it after a repair."""
_A_BATCH: Final = 4
_MANY: Final = 400
"""Events of a batch that is worth being filled by parts."""
RecordKey = tuple[int, int]
"""A record of an import: the number of its file, and its own in its file."""


class ImportChunk(Chunk):
    """Events of one UTC day. A part of it is another one."""

    __slots__ = ("_events", "_files")

    def __init__(  # noqa: PLR0917 - as `Chunk`
        self,
        lane: Lane,
        data: bytes,
        ids: frozenset[str],
        received_at: float,
        events: EventColumns,
        files: Mapping[int, SourceFile],
    ) -> None:
        """`events`: those of the chunk, without their data. `files`: by number, those that they
        are of at least.
        """
        super().__init__(lane, data, len(events), ids, received_at, SOURCE)
        self._events = events
        self._files = files

    @property
    def day(self) -> int:
        """The UTC day of its events, counted from 1970."""
        return self._events.times[0] // DAY

    def part(self, data: bytes, count: int, ids: frozenset[str], at: int) -> ImportChunk:
        part = ImportChunk(
            self.lane, data, ids, self.received_at, self._events[at : at + count], self._files
        )
        part.ack = self.ack
        return part

    def where(self, index: int) -> Where:
        event = self._events[index]
        file = self._files[event.file]
        origin = EventOrigin(
            event.file, event.number, file.identity, event.part, day_of(event.time)
        )
        return origin.where(file.name, event.line, OF_EVENTS + event.part)


@dataclass(frozen=True, slots=True)
class ChunkLimits:
    """How large chunks are: so many of them make a batch that a batch is filled, and
    none is cut.
    """

    max_bytes: int
    max_events: int

    @classmethod
    def of_batches(cls, max_bytes: int, max_events: int) -> ChunkLimits:
        """For batches of at most so many bytes and events."""
        return cls(
            max(max_bytes // _A_BATCH, 1),
            max_events // _A_BATCH if max_events >= _MANY else max_events,
        )


class SharedRecord(NamedTuple):
    """What is to be known of a sorted event that isn't all of its record."""

    is_last: bool
    """Whether it is the last of its record's in the order of time: with it the record is settled.
    """
    reason: str = ""
    """Why the format refused an event of the record; empty if it refused none."""
    detail: str = ""


@dataclass(slots=True)
class ImportBlock:
    """Neighbouring records that are settled as one."""

    files: Mapping[int, SourceFile]
    """The files of the source by number; more may come."""
    records: int = 0
    """How many it has."""
    books: dict[int, RecordBooks] = field(default_factory=dict)
    """Of its records, by the numbers of their files."""
    examples: list[tuple[str, RefusalExample]] = field(default_factory=list)
    """Of what its format refused, with the reasons."""
    dead_letters: list[ImportDeadLetter] = field(default_factory=list)
    """What its format refused."""
    parts: list[EventColumns] = field(default_factory=list)
    """What is sent: the events of each chunk. Without their data once they are in chunks."""
    days: dict[int, DayTally] = field(default_factory=dict)
    """By day, counted from 1970."""
    names: Counter[str] = field(default_factory=Counter)
    """Of its events."""
    refused: set[tuple[int, int]] = field(default_factory=set)
    """Records, by file and number, that send events and count as refused: the format or the
    service refused one of their events.
    """
    first: int = AFTER_LAST
    last: int = -1
    """The earliest and the latest time of its events."""
    file: int = -1
    """The number of its file, in the order in which they begin; -1 where it has records of
    several, or none.
    """
    made: ConvertedRecords | None = None
    """What became of its records, unless it has taken that."""
    digest: str = ""
    """The running digest of the file after these records."""
    ended: bool = False
    """Whether the file has no more records."""
    broken: BrokenSource | None = None
    """Why the file can't be read to its end."""
    sorted: SpoolIndex | None = None
    """Before the first sorted events: what sorting found. All that came
    before is to be settled first.
    """
    entries: int = 0
    """How many sorted events it has."""
    shared: Mapping[EventKey, SharedRecord] = field(default_factory=dict)
    """Of sorted events that aren't all of their records."""
    shared_refused: dict[EventKey, RecordFate] = field(default_factory=dict)
    """Of these, those that the service has refused."""

    def take(self, made: ConvertedRecords, limits: ChunkLimits) -> None:
        """What became of its records is counted, and sent."""
        self.records = len(made.counts)
        self.dead_letters = made.refused
        self.books[self.file] = RecordBooks(
            self.records, self.records - len(made.fates) - len(made.partly)
        )
        for _, fate in sorted([*made.fates.items(), *made.partly.items()], key=itemgetter(0)):
            self._count(self.file, fate)
        self.refused = {(self.file, made.first + index) for index in made.partly}
        self.send(made.events, limits)

    def send(self, events: EventColumns, limits: ChunkLimits) -> None:
        """Add events to what is sent, and count them."""
        if not len(events):
            return
        names, first, last = events.bounds
        self.names.update(names)
        self.first = min(self.first, first)
        self.last = max(self.last, last)
        for part in cut_by_day(events, limits):
            self.parts.append(part)
            self.days.setdefault(part.times[0] // DAY, DayTally()).add(
                len(part), len(part), uuid_hashes(part.uuids)
            )

    def chunks(self, lane: Lane, now: float) -> list[Chunk]:
        """The chunks of its events, once: it forgets their data."""
        parts = self.parts
        self.parts = [replace(part, data=(b"",) * len(part)) for part in self.parts]
        pairs = zip(parts, self.parts, strict=True)
        return [
            ImportChunk(lane, b",".join(part.data), part.ids(), now, slim, self.files)
            for part, slim in pairs
        ]

    def refuse(self, refusals: MutableMapping[EventKey, RecordFate]) -> None:
        """Take off its counts the events that the service has refused; they are
        taken out of `refusals`.
        """
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
        self.first = min(arrived, default=AFTER_LAST)
        self.last = max(arrived, default=-1)

    def _count(self, file: int, fate: RecordFate) -> None:
        """A record of a file isn't delivered."""
        count_kind(self.books[file], fate)
        if fate.example is not None:
            self.examples.append((fate.reason, fate.example))


def cut_by_day(events: EventColumns, limits: ChunkLimits) -> Iterator[EventColumns]:
    """The events in parts of one day each, within the limits, in an order that keeps that of each
    id.

    An event may join the other events of its day only if nothing that comes after those has one of
    its ids.
    """
    _, first, last = events.bounds
    if first // DAY == last // DAY:
        yield from _cut(events, limits)
        return
    groups: list[list[int]] = []
    of_day: dict[int, int] = {}
    latest: dict[str, int] = {}
    for at, (time, own, name) in enumerate(
        zip(events.times, events.distinct_ids, events.names, strict=True)
    ):
        ids = (own, *ids_of(events.data[at])) if name in MERGES else (own,)
        group = of_day.get(time // DAY)
        if group is None or any(latest.get(distinct_id, group) > group for distinct_id in ids):
            group = of_day[time // DAY] = len(groups)
            groups.append([])
        groups[group].append(at)
        latest.update(dict.fromkeys(ids, group))
    for indexes in groups:
        yield from _cut(events.only(indexes), limits)


def _cut(events: EventColumns, limits: ChunkLimits) -> Iterator[EventColumns]:
    """The events in parts within the limits; one that alone is larger is a part alone."""
    if (
        len(events) <= limits.max_events
        and sum(map(len, events.data)) + len(events) <= limits.max_bytes
    ):
        yield events
        return
    start = size = 0
    for at, data in enumerate(events.data):
        if at > start and (
            at - start >= limits.max_events or size + len(data) + 1 > limits.max_bytes
        ):
            yield events[start:at]
            start = at
            size = 0
        size += len(data) + 1
    yield events[start:]


def source_blocks(
    source: FileSource,
    conversion: Conversion,
    saved: Mapping[str, SettledFile],
    limits: ChunkLimits | None,
) -> Generator[ImportBlock]:
    """The blocks of a source; `saved` is by the files' names. Records that were settled are read,
    and not given.

    `limits`: None: a block is as large as what is read at once, and only holds what was made of
    its records (`ImportBlock.made`). Raises `SourceChanged` before anything of a file that isn't
    the same is sent.
    """
    files: dict[int, SourceFile] = {}
    missing = {name for name, progress in saved.items() if progress.records}
    for number, file in enumerate(source.files()):
        missing.discard(file.name)
        files[number] = file
        yield ImportBlock(files, file=number)
        yield from _of_last(
            files, source.blocks(file), conversion, saved.get(file.name, SettledFile()), limits
        )
        if conversion.is_full:
            return
    for name in missing:
        raise _changed(
            name, f"it no longer exists, {saved[name].records:,} records of it were imported before"
        )


def _of_last(
    files: Mapping[int, SourceFile],
    reading: BlockReader,
    conversion: Conversion,
    saved: SettledFile,
    limits: ChunkLimits | None,
) -> Iterator[ImportBlock]:
    read = 0
    number = len(files) - 1
    end = ImportBlock(files, file=number, ended=True)
    with reading:
        try:
            for records in (part for whole in reading for part in _parts(whole, limits)):
                before = read
                read = records.first + len(records.records)
                if (
                    before <= saved.digested <= read
                    and saved.digest
                    and reading.digest_at(saved.digested) != saved.digest
                ):
                    raise _changed(
                        records.file.name,
                        f"its first {saved.digested:,} records aren't those that were imported",
                    )
                settled = min(max(0, saved.records - records.first), len(records.records))
                made = conversion.convert(records, number, settled)
                # if all of it is settled without any, so that whoever reads can stop
                block = ImportBlock(files, file=number)
                if len(records.records) > settled:
                    block.digest = reading.digest_at(read)
                    if limits is None:
                        block.made = made
                    else:
                        block.take(made, limits)
                yield block
                if conversion.is_full:
                    break
            else:
                if read < saved.records:
                    raise _changed(
                        reading.name,
                        f"it has {read:,} records, {saved.records:,} were imported before",
                    )
        except BrokenSource as error:
            end = ImportBlock(files, file=number, broken=error)
    yield end


def _parts(block: RecordBlock, limits: ChunkLimits | None) -> Iterator[RecordBlock]:
    """The block in parts of at most so many records."""
    if limits is None or len(block.records) <= limits.max_events:
        return iter((block,))
    return (
        block.part(start, start + limits.max_events)
        for start in range(0, len(block.records), limits.max_events)
    )


def _changed(name: str, how: str) -> SourceChanged:
    return SourceChanged(
        f"{name}: {how}",
        hint=(
            "Bring the file back as it was, and run the same command again; or import what it "
            "is now as a job of its own, with `--state`."
        ),
    )


class ReadableDeadLetter(NamedTuple):
    """A dead letter that is marked to be replayed."""

    number: int
    file: SourceFile
    line: int
    data: bytes
    origin: RecordOrigin | EventOrigin
    together: int
    """How many letters there are of its record, this one included."""

    @property
    def block(self) -> RecordBlock:
        """What it holds, by itself, as its format reads it: in its old place, from which its uuid
        may follow.
        """
        origin = self.origin
        members = None
        if isinstance(origin, EventOrigin):
            members = [origin.event]
        elif origin.part:
            members = [origin.part - OF_EVENTS if origin.part >= OF_EVENTS else origin.part - 1]
        return RecordBlock(self.file, origin.record, [self.data], [self.line], members)


class DeadLetterOrigin(msgspec.Struct, frozen=True, tag_field="holds"):
    """A dead letter's attributes: with its place they say how it becomes a record or an event
    again.

    Its place (`core.ports.DeadLetter.place`) is its record, as file and number in one, and the
    part that it holds of the record (`ImportDeadLetter.part`). Its coordinates are `file:line`,
    for people. From the file's identity the uuid of a record may follow.
    """

    file: int = msgspec.field(name="file_number")
    """In the order of the source."""
    record: int
    """The record's number in its file, from 0."""
    identity: str = msgspec.field(name="file_identity")
    """Of the file's content."""

    @property
    def key(self) -> RecordKey:
        """Its record."""
        return self.file, self.record

    def where(self, name: str, line: int, part: int) -> Where:
        """All of it, as a letter has it."""
        return Where(
            f"{name}:{line}",
            (((self.file + 1) << _NUMBERS) + self.record, part),
            msgspec.json.encode(self).decode(),
        )


class RecordOrigin(DeadLetterOrigin, frozen=True, tag="record"):
    """The letter holds a record as it was read, or one event of a record that holds several."""

    part: int
    why: str = msgspec.field(name="refused_as")


class EventOrigin(DeadLetterOrigin, frozen=True, tag="event"):
    """The letter holds an event as it was sent, which the service refused."""

    event: int
    """Which of the record's it is."""
    day: str
    """The UTC day under which the source has it."""


_read: Final[Callable[[str], RecordOrigin | EventOrigin]] = msgspec.json.Decoder(
    RecordOrigin | EventOrigin
).decode


def read_origin(attributes: str) -> RecordOrigin | EventOrigin | None:
    """A letter's attributes; None if they aren't those of an import's letter."""
    try:
        return _read(attributes)
    except (msgspec.DecodeError, UnicodeError):
        return None


def dead_letter_of(
    record: ImportDeadLetter, file: SourceFile, lane: Lane, now: float
) -> DeadLetter:
    """The dead letter of a record that its format refused."""
    origin = RecordOrigin(
        record.file_number, record.number, file.identity, record.part, record.why.value
    )
    where = origin.where(record.place.file, record.place.line, record.part)
    return DeadLetter(record.why, lane, record.data, now, record.detail, SOURCE, *where)


def event_key(place: tuple[int, int] | None) -> EventKey:
    """The event that a letter with this place holds, as it was sent (`ImportChunk.where`)."""
    if place is None:
        raise ValueError("an event of an import has a place")
    record, part = place
    return (record >> _NUMBERS) - 1, record & ((1 << _NUMBERS) - 1), part - OF_EVENTS


def event_of(part: int, turn: int) -> int:
    """The part of its record (`FinishedEvent.part`) of an event that was made of a repaired part;
    no other event has it.
    """
    if not part:
        return turn
    return part - OF_EVENTS if part >= OF_EVENTS else _OF_MEMBERS + part - 1
