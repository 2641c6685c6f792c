"""The preflight: everything that can be known about an import before anything is sent, since nothing can be taken back afterwards.

Every record is converted and finished as the import would, and analysed instead of sent.

Invariants: nothing is written, and the time is passed in; memory is bounded however many records come and whatever they hold; how the
stream is cut into parts changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, Final
from zlib import crc32

from msgspec import Raw, structs

from forwarder.sources.files.records import BrokenSource, RecordBlock, RecordLocation
from forwarder.sources.files.source import FileSource
from forwarder.sources.imports.books import RefusalExample
from forwarder.sources.imports.conversion import EventFilters, left_out
from forwarder.sources.imports.finishing import EventFinisher, FinishPolicy, RawEventFinisher
from forwarder.sources.imports.format import ChosenFormat, Converter, ImportedEvent, RawConverter, RawEvents, RecordRefused, RefusalReason
from forwarder.sources.imports.preflight_report import (
    LONGEST,
    DayAmounts,
    EventTimes,
    PersonImpact,
    PreflightExample,
    PreflightReport,
    PreflightTerms,
    RefusedForReason,
    SampledKeys,
    SendVolume,
    TimeKind,
    TimeOrder,
    TopCounts,
    decode_members,
    time_kind,
)
from forwarder.sources.imports.times import DAY, when

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
    if isinstance(converter, RawConverter):
        analyse = partial(_analyse_block, preflight, converter, RawEventFinisher(finish), selection)
    else:
        analyse = partial(_analyse_records, preflight, converter, EventFinisher(finish), selection)
    broken: list[BrokenSource] = []
    records = size = 0
    for file in source.files():
        with source.blocks(file) as reading:
            try:
                for block in reading:
                    analyse(block)
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


def _analyse_records(
    preflight: Preflight, converter: Converter, finisher: EventFinisher, selection: _PreflightSelection, block: RecordBlock
) -> None:
    for index, record in enumerate(block.records):
        try:
            events = converter.convert(block, index)
            selected = [event for event in events if selection.accepts(event)]
            finished = [finisher.finish(event) for event in selected]
        except RecordRefused as refused:
            preflight.add(block.place(index), record, refused)
        else:
            if selected or not events:
                preflight.add(block.place(index), record, selected, finished)


def _analyse_block(
    preflight: Preflight, converter: RawConverter, finisher: RawEventFinisher, selection: _PreflightSelection, block: RecordBlock
) -> None:
    events = converter.convert_block(block)
    columns = zip(events.names, events.distinct_ids, events.times, events.uuids, strict=True)
    selected = [index for index, column in enumerate(columns) if selection.accepts(ImportedEvent(*column, {}))]
    chosen = events.only(selected) if len(selected) < len(events) else events
    chosen.refused = events.refused
    preflight.add_events(block, chosen, finisher.finish(chosen))


class Preflight:
    """Looks at every record of a source and what its format makes of it, in the order in which they are read.

    Filters other than `--until` have been applied before: what they leave out isn't shown here.
    """

    def __init__(self, terms: PreflightTerms, time_fields: Sequence[str] = (), *, keys: int = KEYS) -> None:
        """`time_fields` is where records have their times (`ImportFormat.times`)."""
        self._terms = terms
        self._time_fields = time_fields
        self._records = self._record_bytes = self._silent = self._events = 0
        self._times = EventTimes(when(terms.now), when(terms.end))
        self._first: int | None = None
        self._last: int | None = None
        self._refused: dict[RefusalReason, RefusedForReason] = {}
        self._sent = SendVolume(rate=terms.rate)
        self._persons = PersonImpact(terms.person_properties)
        self._order = TimeOrder()
        self._examples: dict[str, PreflightExample] = {}
        self._more_examples: list[PreflightExample] = []
        # What grows, each to its bound:
        self.names, self.illegal_ids, self.days = TopCounts(8 * TOP_NAMES), TopCounts(1000), DayAmounts()
        self.repeats, self.uuids, self.distinct_ids = SampledKeys(keys), SampledKeys(keys), SampledKeys(keys)

    def add(
        self, place: RecordLocation, record: bytes, outcome: Sequence[ImportedEvent] | RecordRefused, finished: Sequence[bytes] = ()
    ) -> None:
        """Look at the next record; `finished` has each of its events as it would be sent."""
        self._records += 1
        self._record_bytes += len(record)
        if isinstance(outcome, RecordRefused):
            self._add_refused(place, outcome)
        elif not outcome:
            self._silent += 1
        elif (largest := max(map(len, finished))) > self._terms.max_event:
            detail = f"{largest:,} bytes are more than upstream.max_event"
            self._add_refused(place, RecordRefused(RefusalReason.TOO_LARGE, detail))
        else:
            kind, kinds = time_kind(record, self._time_fields), self._times.kinds
            if kind is not None:
                kinds[kind] = kinds.get(kind, 0) + 1
            for event, body in zip(outcome, finished, strict=True):
                if self._add_time(event.time):
                    self._add_sent(place.file, event, len(body))
            self._add_example(place, record, outcome[0].event, finished)

    def add_events(self, block: RecordBlock, events: RawEvents, finished: Sequence[bytes | RecordRefused]) -> None:
        """Look at the events of a block, each as it stood in its record and as it would be sent; then at what was refused of it."""
        events.apart()
        for number, (index, text, body) in enumerate(zip(events.records, events.texts, finished, strict=True)):
            place, record = block.place(index), events.as_found.get(number, text)
            if isinstance(body, RecordRefused):
                self.add(place, record, body)
                continue
            members = decode_members(text)
            properties: dict[str, Any] = {name: members[name] for name in ("$set", "$set_once", "$unset") if name in members}
            if bytes(members.get("properties", b""))[:1] == b"{":
                properties.update(decode_members(members["properties"]))
            said = (events.names[number], events.distinct_ids[number], events.times[number], events.uuids[number])
            self.add(place, record, (ImportedEvent(*said, properties),), (body,))
        for part in events.refused:
            self.add(block.place(part.record), part.text, part.why)

    def _add_refused(self, place: RecordLocation, refused: RecordRefused) -> None:
        counted = self._refused.setdefault(refused.why, RefusedForReason(refused.why.value))
        counted.records += 1
        if len(counted.first) < PLACES:
            counted.first += (RefusalExample(place.file, place.line, refused.detail[:LONGEST]),)
        if refused.why is RefusalReason.ILLEGAL_ID:
            quoted = _QUOTED.search(refused.detail)
            self.illegal_ids.add(quoted[2] if quoted else refused.detail)

    def _add_time(self, time: int) -> bool:
        """Count an event; whether its time lets it be sent."""
        times, terms = self._times, self._terms
        self._events += 1
        self._first = time if self._first is None else min(self._first, time)
        self._last = time if self._last is None else max(self._last, time)
        times.january_1970 += time < _FIRST_MONTH
        times.future += time > terms.now
        if time >= terms.end:
            times.after_until += 1
            return False
        times.recent += time >= terms.recent
        return True

    def _add_sent(self, file: str, event: ImportedEvent, size: int) -> None:
        time, persons, properties = event.time, self._persons, event.properties
        self._sent.events += 1
        self._sent.bytes += size
        self.names.add(event.event)
        self.days.add(time, size)
        self._order.add(file, time)
        same = f"{time} {len(event.event)} {event.event}{event.distinct_id}"
        self.uuids.add(event.uuid, crc32(same.encode(errors="surrogatepass")))
        # What makes a repeat is what `repeats` says.
        key = event.natural_key
        self.repeats.add(f"{event.uuid} {same}" if key is None else f"{time // DAY} {len(event.event)} {event.event}{key}")
        self.distinct_ids.add(event.distinct_id)
        persons.with_set += "$set" in properties
        persons.with_set_once += "$set_once" in properties
        persons.with_unset += "$unset" in properties
        persons.with_group_set += "$group_set" in properties
        persons.merging += event.event in _MERGING or "$anon_distinct_id" in properties

    def _add_example(self, place: RecordLocation, record: bytes, name: str, finished: Sequence[bytes]) -> None:
        """Three records of different events show more than three of the same; those stand in where there are no others."""
        known, more = self._examples, self._more_examples
        if len(known) == EXAMPLES or len(record) > _LONGEST_EXAMPLE or (name in known and len(more) == EXAMPLES - 1):
            return
        shown = tuple(Raw(body) for body in finished[:EXAMPLES] if len(body) <= _LONGEST_EXAMPLE)
        example = PreflightExample(place.file, place.line, record.decode(errors="replace"), shown)
        if known.setdefault(name, example) is not example:
            more.append(example)

    def report(self, *, upper_case_ids: int = 0, broken: Sequence[str] = ()) -> PreflightReport:
        """What is known so far. `upper_case_ids` is what the Mixpanel format counted, `broken` the messages of broken files."""
        terms, kinds = self._terms, self._times.kinds
        first, last = (None if time is None else when(time) for time in (self._first, self._last))
        times = structs.replace(self._times, first=first, last=last, kinds={kind: kinds[kind] for kind in TimeKind if kind in kinds})
        requests = self.days.requests(terms.batch_events, terms.batch_bytes)
        persons = structs.replace(self._persons, distinct_ids=self.distinct_ids.estimate(), upper_case_ids=upper_case_ids)
        return PreflightReport(
            records=self._records,
            record_bytes=self._record_bytes,
            silent=self._silent,
            events=self._events,
            volume=structs.replace(self._sent, requests=requests, seconds=round(self._sent.events / terms.rate, 3)),
            names=self.names.top(TOP_NAMES),
            other_names=self.names.other(TOP_NAMES),
            days=self.days.all(),
            other_days=self.days.other.events,
            times=times,
            order=copy(self._order.found),
            refused=tuple(sorted(map(copy, self._refused.values()), key=lambda each: (-each.records, each.reason))),
            max_event=terms.max_event,
            illegal_ids=self.illegal_ids.top(TOP_ILLEGAL),
            other_illegal_ids=self.illegal_ids.other(TOP_ILLEGAL),
            repeats=self.repeats.estimate(),
            uuids=self.uuids.estimate(),
            persons=persons,
            zone_said=terms.zone_said,
            examples=(*self._examples.values(), *self._more_examples)[:EXAMPLES],
            sort=terms.sort,
            broken=tuple(broken),
        )
