"""From records to finished events: converted, filtered, deduplicated per day, finished. Every event of an import passes through here.

Which events are selected depends only on the source, read from its start. So a resumed import shows the records that were settled before
again (`skip`), because they count for repeats and for the limit; nothing of them is finished. Whether finishing refuses an event has no
influence on that.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple, Protocol

from forwarder.sources.files.records import RecordBlock, RecordLocation
from forwarder.sources.imports.books import FateKind, RecordFate, RefusalExample
from forwarder.sources.imports.columns import EventColumns, FinishedEvent, JoinedTexts, as_range
from forwarder.sources.imports.finishing import EventFinisher, FinishPolicy, RawEventFinisher
from forwarder.sources.imports.format import Converter, EventBounds, ImportedEvent, RawConverter, RawEvents, RecordRefused, RefusalReason
from forwarder.sources.imports.repeats import Repeats
from forwarder.sources.imports.times import AFTER_LAST

OF_EVENTS: Final = 1 << 40
"""See `ImportDeadLetter.part`."""
NO_EVENT = RecordFate(FateKind.LEFT_OUT, "no_event_of_it")
"""The vendor's record stands for no event."""
REPEATED = RecordFate(FateKind.REPEAT)


@dataclass(frozen=True, slots=True)
class EventFilters:
    """Which events are selected."""

    since: int | None = None
    """Microseconds since 1970, UTC: events from then on."""
    until: int | None = None
    """Events before then."""
    events: Set[str] = frozenset()
    """Only events with these names; empty: all."""
    exclude_events: Set[str] = frozenset()
    """These are left out, even if `events` has them."""
    limit: int | None = None
    """How many events are selected at most, in the order in which they come."""


class FilterReason(StrEnum):
    """Why an event is left out. If several apply, the first in this order counts."""

    BEFORE_SINCE = "before_since"
    FROM_UNTIL_ON = "from_until_on"
    """At `until`, or after it."""
    OTHER_EVENT = "other_event"
    """Names are given, and this isn't one of them."""
    EXCLUDED_EVENT = "excluded_event"
    OVER_LIMIT = "over_limit"


def left_out(event: ImportedEvent, filters: EventFilters) -> FilterReason | None:
    """Why an event is left out whatever came before it; None if it isn't."""
    if filters.since is not None and event.time < filters.since:
        return FilterReason.BEFORE_SINCE
    if filters.until is not None and event.time >= filters.until:
        return FilterReason.FROM_UNTIL_ON
    if filters.events and event.event not in filters.events:
        return FilterReason.OTHER_EVENT
    if event.event in filters.exclude_events:
        return FilterReason.EXCLUDED_EVENT
    return None


def all_pass(bounds: EventBounds, filters: EventFilters) -> bool:
    """Whether none of the events within these bounds is left out (`left_out`)."""
    return not (
        (filters.since is not None and bounds.first < filters.since)
        or (filters.until is not None and bounds.last >= filters.until)
        or (filters.events and not bounds.names.keys() <= filters.events)
        or not bounds.names.keys().isdisjoint(filters.exclude_events)
    )


class ImportDeadLetter(NamedTuple):
    """A record, or one event of several in a record, that isn't sent: a dead letter."""

    place: RecordLocation
    file_number: int
    """Of its file, in the order of the source."""
    number: int
    """Of the record in its file, from 0."""
    part: int
    """Tells what is refused of one record: 0 is all of it, n + 1 what it holds at index n, `OF_EVENTS` + n the n-th event made of it."""
    data: bytes
    """As it was read."""
    why: RefusalReason
    detail: str


@dataclass(slots=True)
class ConvertedRecords:
    """What some neighbouring records of a file became; indexes count from the first of these records."""

    counts: list[int]
    """Of each record: how many events it sends."""
    fates: dict[int, RecordFate] = field(default_factory=dict)
    """Of those that send none: why."""
    partly: dict[int, RecordFate] = field(default_factory=dict)
    """Of those that send some, and of which an event was refused."""
    refused: list[ImportDeadLetter] = field(default_factory=list)
    events: EventColumns = field(default_factory=lambda: EventColumns.of(()))
    """In the order of the source."""


LEFT_OUT: Final = {why: RecordFate(FateKind.LEFT_OUT, why) for why in FilterReason}
"""One of each: of a source of which little is wanted, there are very many."""


class Conversion(Protocol):
    """Makes the events of one source, from its start and in its order."""

    @property
    def is_full(self) -> bool:
        """Whether the limit is reached: no later record can add an event."""

    def convert(self, block: RecordBlock, file: int, skip: int) -> ConvertedRecords:
        """What becomes of a block's records from index `skip` on; those before only count for repeats and the limit."""


def open_conversion(converter: Converter | RawConverter, finish: FinishPolicy, max_event: int, choice: EventSelection) -> Conversion:
    """The way of a format's records."""
    if isinstance(converter, RawConverter):
        return BlockConversion(converter, RawEventFinisher(finish, max_event), choice)
    return RecordConversion(converter, EventFinisher(finish, max_event, of_records=True), choice)


class EventSelection:
    """Selects events: by filters, and each once a day."""

    def __init__(self, filters: EventFilters, repeats: Repeats | None) -> None:
        """`repeats`: None for single records that are converted by themselves, where what came before isn't known."""
        self._filters = filters
        self._repeats = repeats
        self._selected = 0
        self._since = 0 if filters.since is None else filters.since
        self._until = AFTER_LAST if filters.until is None else filters.until
        self._times_alone = not (filters.events or filters.exclude_events) and filters.limit is None
        """Whether the filters ask for nothing else."""

    @property
    def is_full(self) -> bool:
        """Whether the limit is reached."""
        return self._filters.limit is not None and self._selected >= self._filters.limit

    def reason_against(self, event: ImportedEvent) -> RecordFate | None:
        """Why an event is left out; None if it is selected, and then it counts."""
        if not (self._times_alone and self._since <= event.time < self._until):
            why = left_out(event, self._filters) or (FilterReason.OVER_LIMIT if self.is_full else None)
            if why is not None:
                return LEFT_OUT[why]
        if self._repeats is not None and self._repeats.is_repeat(event):
            return REPEATED
        self._selected += 1
        return None

    def reasons_against(self, events: RawEvents) -> dict[int, RecordFate]:
        """The same of neighbouring events without natural keys, by index."""
        if not events:
            return {}
        fates = {} if all_pass(events.bounds, self._filters) else self._left_out(events)
        passing = [index for index in range(len(events)) if index not in fates] if fates else range(len(events))
        again = () if self._repeats is None else self._repeats.among(events.only(passing) if fates else events)
        if self._filters.limit is None:
            fates.update((passing[at], REPEATED) for at in again)
        else:
            self._count_selected(fates, passing, {passing[at] for at in again})
        return fates

    def _count_selected(self, fates: dict[int, RecordFate], passing: Sequence[int], again: Set[int]) -> None:
        for index in passing:
            if self.is_full:
                fates[index] = LEFT_OUT[FilterReason.OVER_LIMIT]
            elif index in again:
                fates[index] = REPEATED
            else:
                self._selected += 1

    def _left_out(self, events: RawEvents) -> dict[int, RecordFate]:
        columns = zip(events.names, events.distinct_ids, events.times, events.uuids, strict=True)
        whys = [left_out(ImportedEvent(name, distinct_id, time, uuid, {}), self._filters) for name, distinct_id, time, uuid in columns]
        return {index: LEFT_OUT[why] for index, why in enumerate(whys) if why is not None}


class RecordConversion:
    """Record by record."""

    def __init__(self, converter: Converter, finisher: EventFinisher, choice: EventSelection) -> None:
        self._convert = converter.convert
        self._finish = finisher.finish
        self._choice = choice

    @property
    def is_full(self) -> bool:
        """See `Conversion`."""
        return self._choice.is_full

    def convert(self, block: RecordBlock, file: int, skip: int) -> ConvertedRecords:
        """See `Conversion`."""
        for index in range(skip):
            self._notice(block, index)
        counts = [0] * (len(block.records) - skip)
        made, sent = ConvertedRecords(counts), _ColumnBuilder()
        convert, reason_against, finish, add = self._convert, self._choice.reason_against, self._finish, sent.add
        for index in range(skip, len(block.records)):
            # No event is kept: that the memory of one is used again for the next makes half of the speed.
            fate: int | RecordFate | None
            try:
                events = convert(block, index)
                if len(events) != 1:
                    fate = self._make_several(sent, events, index)
                else:
                    (event,) = events
                    fate = reason_against(event)
                    if fate is None:
                        add(event, finish(event), index)
                        counts[index - skip] = 1
                        continue
            except RecordRefused as refused:
                _refuse(made, block, file, index, refused, skip=skip)
                continue
            if isinstance(fate, int):
                counts[index - skip] = fate
            else:
                made.fates[index - skip] = fate
        made.events = sent.columns(block, file)
        return made

    def _notice(self, block: RecordBlock, index: int) -> None:
        try:
            events = self._convert(block, index)
        except RecordRefused:
            return
        for event in events:
            self._choice.reason_against(event)

    def _make_several(self, sent: _ColumnBuilder, events: Sequence[ImportedEvent], index: int) -> int | RecordFate:
        """How many of a record's events are sent, or why none is. Raises `RecordRefused`, and then none is."""
        fates = [self._choice.reason_against(event) for event in events]
        selected = [event for event, fate in zip(events, fates, strict=True) if fate is None]
        if not selected:
            return (fates[-1] if fates else None) or NO_EVENT
        for part, (event, data) in enumerate([(event, self._finish(event)) for event in selected]):
            sent.add(event, data, index, part)
        return len(selected)


class _ColumnBuilder:
    """The events of a block that are sent, as columns in the making."""

    __slots__ = ("_columns", "_parts", "add")

    def __init__(self) -> None:
        self._columns: tuple[list[Any], ...] = tuple([] for _ in range(6))
        self._parts: dict[int, int] = {}  # by where in the columns, of those that aren't the first of their record
        times, distinct_ids, names, uuids, bodies, indexes = (column.append for column in self._columns)
        parts, all_indexes = self._parts, self._columns[-1]

        def add(event: ImportedEvent, data: bytes, index: int, part: int = 0) -> None:
            if part:
                parts[len(all_indexes)] = part
            times(event.time)
            distinct_ids(event.distinct_id)
            names(event.event)
            uuids(event.uuid)
            bodies(data)
            indexes(index)

        self.add = add

    def columns(self, block: RecordBlock, file: int) -> EventColumns:
        """All of them; `index` is that of a record in the block."""
        times, distinct_ids, names, uuids, bodies, indexes = self._columns
        numbers, lines, get_part = as_range([block.first + index for index in indexes]), block.lines, self._parts.get
        parts = [get_part(at, 0) for at in range(len(indexes))] if self._parts else ()
        return EventColumns(file, times, distinct_ids, names, uuids, bodies, [lines[index] for index in indexes], numbers, parts)


class BlockConversion:
    """Block by block, in columns: see `format.RawEvents`."""

    def __init__(self, converter: RawConverter, finisher: RawEventFinisher, choice: EventSelection) -> None:
        self._convert = converter.convert_block
        self._finish = finisher.finish
        self._choice = choice

    @property
    def is_full(self) -> bool:
        """See `Conversion`."""
        return self._choice.is_full

    def convert(self, block: RecordBlock, file: int, skip: int) -> ConvertedRecords:
        """See `Conversion`."""
        events = self._convert(block)
        left = self._choice.reasons_against(events)
        if not (left or skip or events.refused) and events.are_records(len(block.records)):
            finished = self._finish(events)
            # The usual case: every record is one event, and all are sent.
            if isinstance(finished, JoinedTexts) or {*map(type, finished)} == {bytes}:
                return ConvertedRecords([1] * len(events), events=_all_of(block, file, events, finished))
        return self._make(block, file, skip, events, left)

    def _make(self, block: RecordBlock, file: int, skip: int, events: RawEvents, left: dict[int, RecordFate]) -> ConvertedRecords:
        events.apart()
        made = ConvertedRecords([0] * (len(block.records) - skip))
        self._note_left_out(made, events, left, skip)
        if left or skip:
            selected_events = events.only([at for at, record in enumerate(events.records) if at not in left and record >= skip])
        else:
            selected_events = events
        self._finish_all(made, block, file, selected_events, skip)
        for each in events.refused:
            if each.record >= skip:
                part = 0 if each.member is None else each.member + 1
                _refuse(made, block, file, each.record, each.why, skip=skip, text=each.text, part=part)
        for at, count in enumerate(made.counts):
            if not count and at not in made.fates:
                made.fates[at] = NO_EVENT
        return made

    @staticmethod
    def _note_left_out(made: ConvertedRecords, events: RawEvents, left: dict[int, RecordFate], skip: int) -> None:
        for index, fate in left.items():
            if events.records[index] >= skip:
                made.fates[events.records[index] - skip] = fate

    def _finish_all(self, made: ConvertedRecords, block: RecordBlock, file: int, events: RawEvents, skip: int) -> None:
        """Finish what was selected; a record of which an event is sent has no fate."""
        finished = self._finish(events)
        alone = len(set(events.records)) == len(events.records)
        parts: Sequence[int] = [0] * len(finished) if alone else _parts(events.records)
        first, lines, counts = block.first, block.lines, made.counts
        columns = zip(events.times, events.distinct_ids, events.names, events.uuids, finished, events.records, parts, strict=True)
        sent: list[FinishedEvent] = []
        for time, distinct_id, name, uuid, data, record, part in columns:
            if isinstance(data, bytes):
                sent.append(FinishedEvent(time, distinct_id, name, uuid, data, file, lines[record], first + record, part))
                counts[record - skip] += 1
                made.fates.pop(record - skip, None)
        made.events = EventColumns.of(sent)
        for index, body in enumerate(finished):
            if isinstance(body, RecordRefused):
                record = events.records[index]
                _refuse(made, block, file, record, body, skip=skip, text=events.texts[index], part=OF_EVENTS + parts[index])


def _all_of(block: RecordBlock, file: int, events: RawEvents, finished: Sequence[Any]) -> EventColumns:
    """The events of a block of which every record is one."""
    numbers = range(block.first, block.first + len(finished))
    texts = events.distinct_ids, events.names, events.uuids
    return EventColumns(file, events.times, *texts, finished, block.lines, numbers, bounds=events.bounds, packed=events.packed)


def _parts(records: Sequence[int]) -> list[int]:
    """Of each event its turn among those of its record."""
    seen: dict[int, int] = {}
    parts = []
    for record in records:
        parts.append(seen.get(record, 0))
        seen[record] = parts[-1] + 1
    return parts


def _refuse(
    made: ConvertedRecords,
    block: RecordBlock,
    file: int,
    index: int,
    refused: RecordRefused,
    *,
    skip: int,
    text: bytes | None = None,
    part: int = 0,
) -> None:
    """A record, or an event of it (`text`), is refused."""
    at, place = index - skip, block.place(index)
    fate = RecordFate(FateKind.REFUSED, refused.why, RefusalExample.at(place, refused.detail))
    if made.counts[at]:
        made.partly[at] = fate
    elif (known := made.fates.get(at)) is None or known.kind is not FateKind.REFUSED:
        made.fates[at] = fate
    data = block.records[index] if text is None else text
    made.refused.append(ImportDeadLetter(place, file, block.first + index, part, bytes(data), RefusalReason(refused.why), refused.detail))
