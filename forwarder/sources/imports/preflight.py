"""The preflight: everything that can be known about an import before anything is sent, since nothing can be taken back afterwards.

Every record is converted and finished as the import would, and analysed instead of sent.

Invariants: nothing is written, and the time is passed in; memory is bounded however many records come and whatever they hold; how the
stream is cut into parts changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple
from zlib import crc32

import msgspec
from msgspec import Raw, Struct, field

from forwarder.sources.files.records import BrokenSource, RecordBlock, RecordLocation
from forwarder.sources.files.source import FileSource
from forwarder.sources.imports.conversion import EventFilters, left_out
from forwarder.sources.imports.finishing import EventFinisher, FinishPolicy, RawEventFinisher
from forwarder.sources.imports.format import ChosenFormat, Converter, ImportedEvent, RawConverter, RawEvents, RecordRefused, RefusalReason
from forwarder.sources.imports.preflight_counters import LONGEST, DayAmounts, SampledKeys, TimeInspector, TimeKind, TimeOrder, TopCounts
from forwarder.sources.imports.preflight_report import (
    EventTimes,
    OutOfOrder,
    PersonImpact,
    PreflightDay,
    PreflightExample,
    PreflightReport,
    PreflightTerms,
    RefusedForReason,
    RefusedLine,
    SendVolume,
)
from forwarder.sources.imports.times import DAY, SECOND, date_of, when
from forwarder.wire.identity import ABSENT

TOP_NAMES: Final = 1000
TOP_ILLEGAL: Final = 50
PLACES: Final = 5
"""Of each reason to refuse."""
EXAMPLES: Final = 3
KEYS: Final = 65_536
"""Ids, uuids and natural keys that are counted exactly; of more, a part."""
_LONGEST_EXAMPLE: Final = 16_384
"""A longer record is no use as an example."""
_FIRST_MONTH: Final = 31 * DAY
_MERGING: Final = frozenset({"$create_alias", "$merge_dangerously"})
_QUOTED: Final = re.compile(r"(['\"])(.*)\1", re.DOTALL)
_decode_members: Final = msgspec.json.Decoder(dict[str, Raw]).decode


def run_preflight(
    source: FileSource,
    chosen: ChosenFormat,
    finish: FinishPolicy,
    *,
    filters: EventFilters,
    terms: PreflightTerms,
    progress: Callable[[int, int], None],
) -> tuple[PreflightReport, tuple[BrokenSource, ...]]:
    """Read the whole source: the report, and the files that couldn't be read to their end.

    `progress` gets the records and bytes so far, a block at a time. Synchronous: one pass, in bounded memory.
    """
    preflight = Preflight(terms, chosen.time_fields)
    converter = chosen.make()
    selection = _PreflightSelection(filters)
    analyse: Callable[[RecordBlock], Iterator[PreflightItem]]
    if isinstance(converter, RawConverter):
        analyse = partial(_items_of_block, converter, RawEventFinisher(finish), selection)
    else:
        analyse = partial(_items_of_records, converter, EventFinisher(finish), selection)
    broken: list[BrokenSource] = []
    records = size = 0
    for file in source.files():
        with source.blocks(file) as reading:
            try:
                for block in reading:
                    for each in analyse(block):
                        preflight.add(*each)
                    records += len(block.records)
                    size += sum(map(len, block.records))
                    progress(records, size)
                    if selection.is_full:
                        break
            except BrokenSource as error:
                broken.append(error)
        if selection.is_full:
            break
    upper_case: int = getattr(converter, "upper_case_ids", 0)  # of Mixpanel alone
    return preflight.report(upper_case_ids=upper_case, broken=[error.message for error in broken]), tuple(broken)


class _PreflightSelection:
    """The filters except `--until`: the preflight itself reports what that one leaves out. Repeats count here, so that they are shown."""

    def __init__(self, filters: EventFilters) -> None:
        self._filters = replace(filters, until=None)
        self._until = filters.until
        self._selected = 0

    @property
    def is_full(self) -> bool:
        return self._filters.limit is not None and self._selected >= self._filters.limit

    def accepts(self, event: ImportedEvent) -> bool:
        if self.is_full or left_out(event, self._filters) is not None:
            return False
        if self._until is None or event.time < self._until:
            self._selected += 1  # others don't count against the limit, as they don't when events are sent
        return True


def _items_of_records(
    converter: Converter, finisher: EventFinisher, selection: _PreflightSelection, block: RecordBlock
) -> Iterator[PreflightItem]:
    for index, record in enumerate(block.records):
        place = block.place(index)
        try:
            events = converter.convert(block, index)
            selected = [event for event in events if selection.accepts(event)]
            if selected or not events:
                yield PreflightItem(place, record, selected, [finisher.finish(event) for event in selected])
        except RecordRefused as refused:
            yield PreflightItem(place, record, refused)


def _items_of_block(
    converter: RawConverter, finisher: RawEventFinisher, selection: _PreflightSelection, block: RecordBlock
) -> Iterator[PreflightItem]:
    events = converter.convert_block(block)
    columns = zip(events.names, events.distinct_ids, events.times, events.uuids, strict=True)
    selected = [index for index, event in enumerate(_events(columns)) if selection.accepts(event)]
    chosen = events.only(selected) if len(selected) < len(events) else events
    chosen.refused = events.refused
    return preflight_items(block, chosen, finisher.finish(chosen))


def _events(columns: Iterable[tuple[str, str, int, str]]) -> Iterator[ImportedEvent]:
    return (ImportedEvent(name, distinct_id, time, uuid, {}) for name, distinct_id, time, uuid in columns)


class Preflight:
    """Looks at every record of a source and what its format makes of it, in the order in which they are read.

    Filters other than `--until` have been applied before: what they leave out isn't shown here.
    """

    def __init__(self, terms: PreflightTerms, time_fields: Sequence[str] = (), *, keys: int = KEYS) -> None:
        """`time_fields` is where records have their times (`ImportFormat.times`)."""
        self._terms = terms
        self._look = TimeInspector(time_fields)
        self._records = self._record_bytes = self._silent = self._events = 0
        self._refusals = _RefusalCounts()
        self._whens = _TimeCounts(terms)
        self._sent = _SentCounts(keys)
        self._persons = _PersonCounts(keys)
        self._examples: dict[str, PreflightExample] = {}
        self._more_examples: list[PreflightExample] = []

    def add(
        self, place: RecordLocation, record: bytes, outcome: Sequence[ImportedEvent] | RecordRefused, finished: Sequence[bytes] = ()
    ) -> None:
        """Look at the next record; `finished` has each of its events as it would be sent."""
        self._records += 1
        self._record_bytes += len(record)
        if isinstance(outcome, RecordRefused):
            self._refusals.add(place, outcome)
        elif not outcome:
            self._silent += 1
        elif max(map(len, finished)) > self._terms.max_event:
            detail = f"{max(map(len, finished)):,} bytes are more than upstream.max_event"
            self._refusals.add(place, RecordRefused(RefusalReason.TOO_LARGE, detail))
        else:
            self._whens.look(self._look.kind(record))
            for event, body in zip(outcome, finished, strict=True):
                self._take(place, event, len(body))
            if len(self._examples) < EXAMPLES and len(record) <= _LONGEST_EXAMPLE and self._is_wanted(outcome[0].event):
                self._show(place, record, outcome[0].event, finished)

    def _take(self, place: RecordLocation, event: ImportedEvent, size: int) -> None:
        self._events += 1
        if self._whens.add(event.time):
            self._sent.add(place.file, event, size)
            self._persons.add(event)

    def _show(self, place: RecordLocation, record: bytes, name: str, finished: Sequence[bytes]) -> None:
        shown = tuple(Raw(body) for body in finished[:EXAMPLES] if len(body) <= _LONGEST_EXAMPLE)
        example = PreflightExample(place.file, place.line, record.decode(errors="replace"), shown)
        if name in self._examples:
            self._more_examples.append(example)
        else:
            self._examples[name] = example

    def _is_wanted(self, name: str) -> bool:
        """Three records of different events show more than three of the same; those stand in where there are no others."""
        return name not in self._examples or len(self._more_examples) < EXAMPLES - 1

    def report(self, *, upper_case_ids: int = 0, broken: Sequence[str] = ()) -> PreflightReport:
        """What is known so far. `upper_case_ids` is what the Mixpanel format counted, `broken` the messages of broken files."""
        terms, sent = self._terms, self._sent
        return PreflightReport(
            records=self._records,
            record_bytes=self._record_bytes,
            silent=self._silent,
            events=self._events,
            volume=sent.volume(terms),
            names=sent.names.top(TOP_NAMES),
            other_names=sent.names.other(TOP_NAMES),
            days=tuple(PreflightDay(date_of(day), amount.events, amount.bytes) for day, amount in sent.days.items()),
            other_days=sent.days.other.events,
            times=self._whens.times(),
            order=OutOfOrder(sent.order.late, sent.order.late_in_file, sent.order.furthest / SECOND),
            refused=self._refusals.by_reason(),
            max_event=terms.max_event,
            illegal_ids=self._refusals.illegal_ids.top(TOP_ILLEGAL),
            other_illegal_ids=self._refusals.illegal_ids.other(TOP_ILLEGAL),
            repeats=sent.repeats.estimate(),
            uuids=sent.uuids.estimate(),
            persons=self._persons.persons(terms, upper_case_ids),
            zone_said=terms.zone_said,
            examples=(*self._examples.values(), *self._more_examples)[:EXAMPLES],
            sort=terms.sort,
            broken=tuple(broken),
        )

    def sizes(self) -> dict[str, int]:
        """How many entries each container holds, whose bounds this module promises."""
        sent, refusals = self._sent, self._refusals
        return {
            "names": len(sent.names),
            "days": len(sent.days),
            "repeats": len(sent.repeats),
            "uuids": len(sent.uuids),
            "distinct_ids": len(self._persons.ids),
            "illegal_ids": len(refusals.illegal_ids),
            "places": sum(len(each.first) for each in refusals.by_reason()),
            "examples": len(self._examples) + len(self._more_examples),
        }


class _RefusalCounts:
    """What would be refused, by reason, with the first places of each."""

    def __init__(self) -> None:
        self.illegal_ids = TopCounts(1000)
        self._counts: dict[RefusalReason, int] = {}
        self._first: dict[RefusalReason, list[RefusedLine]] = {}

    def add(self, place: RecordLocation, refused: RecordRefused) -> None:
        why = refused.why
        self._counts[why] = self._counts.get(why, 0) + 1
        first = self._first.setdefault(why, [])
        if len(first) < PLACES:
            first.append(RefusedLine(place.file, place.line, refused.detail[:LONGEST]))
        if why is RefusalReason.ILLEGAL_ID:
            quoted = _QUOTED.search(refused.detail)
            self.illegal_ids.add(quoted[2] if quoted else refused.detail)

    def by_reason(self) -> tuple[RefusedForReason, ...]:
        """The most frequent first."""
        ranked = sorted(self._counts, key=lambda why: (-self._counts[why], why))
        return tuple(RefusedForReason(str(why), self._counts[why], tuple(self._first[why])) for why in ranked)


class _TimeCounts:
    """The times of all events."""

    def __init__(self, terms: PreflightTerms) -> None:
        self._terms = terms
        self._now, self._recent, self._end = terms.now, terms.recent, terms.end
        self._first: int | None = None
        self._last: int | None = None
        self._future = self._young = self._after = self._january = 0
        self._kinds: dict[TimeKind, int] = {}

    def look(self, kind: TimeKind | None) -> None:
        """Count how a record writes its time."""
        if kind is not None:
            self._kinds[kind] = self._kinds.get(kind, 0) + 1

    def add(self, time: int) -> bool:
        """Count an event; whether its time lets it be sent."""
        if self._first is None or time < self._first:
            self._first = time
        if self._last is None or time > self._last:
            self._last = time
        if time < _FIRST_MONTH:
            self._january += 1
        if time < self._recent and time < self._end:
            return True
        if time > self._now:
            self._future += 1
        if time >= self._end:
            self._after += 1
            return False
        self._young += 1
        return True

    def times(self) -> EventTimes:
        first, last = (None if time is None else when(time) for time in (self._first, self._last))
        kinds = {kind: self._kinds[kind] for kind in TimeKind if kind in self._kinds}
        now, until = when(self._now), when(self._end)
        return EventTimes(now, until, first, last, self._future, self._young, self._after, self._january, kinds)


class _SentCounts:
    """What would be sent."""

    def __init__(self, keys: int) -> None:
        self.names = TopCounts(8 * TOP_NAMES)
        self.days = DayAmounts()
        self.order = TimeOrder()
        self.repeats = SampledKeys(keys)
        self.uuids = SampledKeys(keys)
        self._events = self._bytes = 0

    def add(self, file: str, event: ImportedEvent, size: int) -> None:
        time = event.time
        self._events += 1
        self._bytes += size
        self.names.add(event.event)
        self.days.add(time, size)
        self.order.add(file, time)
        same = f"{time} {len(event.event)} {event.event}{event.distinct_id}"
        self.uuids.add(event.uuid, crc32(same.encode(errors="surrogatepass")))
        # What makes a repeat is what `repeats` says.
        key = event.natural_key
        self.repeats.add(f"{event.uuid} {same}" if key is None else f"{time // DAY} {len(event.event)} {event.event}{key}")

    def volume(self, terms: PreflightTerms) -> SendVolume:
        requests = self.days.requests(terms.batch_events, terms.batch_bytes)
        return SendVolume(self._events, self._bytes, requests, round(self._events / terms.rate, 3), terms.rate)


class _PersonCounts:
    """Whose events would be sent."""

    def __init__(self, keys: int) -> None:
        self.ids = SampledKeys(keys)
        self._with_set = self._with_set_once = self._with_unset = self._merging = self._with_group_set = 0

    def add(self, event: ImportedEvent) -> None:
        self.ids.add(event.distinct_id)
        properties = event.properties
        self._with_set += "$set" in properties
        self._with_set_once += "$set_once" in properties
        self._with_unset += "$unset" in properties
        self._with_group_set += "$group_set" in properties
        self._merging += event.event in _MERGING or "$anon_distinct_id" in properties

    def persons(self, terms: PreflightTerms, upper_case_ids: int) -> PersonImpact:
        counts = (self._with_set, self._with_set_once, self._with_unset, self._merging, upper_case_ids)
        return PersonImpact(terms.person_properties, self.ids.estimate(), *counts, self._with_group_set)


class PreflightItem(NamedTuple):
    """What `Preflight.add` is given."""

    place: RecordLocation
    record: bytes
    """The event as it stood in its record."""
    outcome: Sequence[ImportedEvent] | RecordRefused
    finished: Sequence[bytes] = ()


class _EventFields(Struct, gc=False):
    """An event's properties, and what about persons may stand beside them."""

    properties: Raw = ABSENT
    set: Raw = field(name="$set", default=ABSENT)
    set_once: Raw = field(name="$set_once", default=ABSENT)
    unset: Raw = field(name="$unset", default=ABSENT)


_decode_head: Final = msgspec.json.Decoder(_EventFields).decode


def preflight_items(block: RecordBlock, events: RawEvents, finished: Sequence[bytes | RecordRefused]) -> Iterator[PreflightItem]:
    """Each event of a block with its finished form, in the block's order; then what was refused of it."""
    events.apart()
    for number, (index, text, body) in enumerate(zip(events.records, events.texts, finished, strict=True)):
        place, record = block.place(index), events.as_found.get(number, text)
        if isinstance(body, RecordRefused):
            yield PreflightItem(place, record, body)
        else:
            yield PreflightItem(place, record, (_event(events, number, text),), (body,))
    for part in events.refused:
        yield PreflightItem(block.place(part.record), part.text, part.why)


def _event(events: RawEvents, number: int, text: bytes) -> ImportedEvent:
    head = _decode_head(text)
    beside = {"$set": head.set, "$set_once": head.set_once, "$unset": head.unset}
    properties: dict[str, Any] = {key: value for key, value in beside.items() if value is not ABSENT}
    if bytes(head.properties)[:1] == b"{":
        properties.update(_decode_members(head.properties))
    return ImportedEvent(events.names[number], events.distinct_ids[number], events.times[number], events.uuids[number], properties)
