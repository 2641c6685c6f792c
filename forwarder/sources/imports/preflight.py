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
from typing import Any, Final
from zlib import crc32

from msgspec import Raw, structs

from forwarder.sources.files.records import BrokenSource, RecordBlock, RecordLocation
from forwarder.sources.files.source import FileSource
from forwarder.sources.imports.books import RefusalExample
from forwarder.sources.imports.conversion import EventFilters, left_out
from forwarder.sources.imports.finishing import EventFinisher, FinishPolicy
from forwarder.sources.imports.format import ChosenFormat, ImportedEvent, NativeEvents, RecordRefused, RefusalReason
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
"""Ids, uuids and what makes repeats, that are counted exactly; of more, a part."""
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
    finisher = EventFinisher(finish)
    broken: list[BrokenSource] = []
    records = size = 0
    for file in source.files():
        with source.blocks(file) as reading:
            try:
                for block in reading:
                    analysed = PreflightBlock(preflight, block, finisher, selection.accepts)
                    converter.convert_block(block, analysed)
                    analysed.end()
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

    def accepts(self, name: str, time: int) -> bool:
        if self.is_full or left_out(name, time, self._filters) is not None:
            return False
        if self._until is None or time < self._until:
            self._selected += 1  # others don't count against the limit, as they don't when events are sent
        return True


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
        self.repeats.add(f"{time // DAY} {len(event.event)} {event.event}{event.uuid}" if event.keyed else f"{event.uuid} {same}")
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


class PreflightBlock:
    """Shows what a format makes of a block (`EventSink`) to a preflight; `accepts` selects events by name and time."""

    def __init__(self, preflight: Preflight, block: RecordBlock, finisher: EventFinisher, accepts: Callable[[str, int], bool]) -> None:
        self._preflight = preflight
        self._block = block
        self._finisher = finisher
        self._accepts = accepts
        self._made: dict[int, list[tuple[ImportedEvent, bytes]] | RecordRefused] = {}
        """The events of each record, or why it is refused."""
        self._parts: list[tuple[int, bytes, RecordRefused]] = []
        """Refused of native records."""
        self._is_native = False

    def add(self, record: int, event: ImportedEvent) -> None:
        """See `EventSink`. A record of which an event is refused is refused."""
        made = self._made.setdefault(record, [])
        if not self._accepts(event.event, event.time) or isinstance(made, RecordRefused):
            return
        kept = structs.replace(event, properties=event.properties.copy())  # finishing changes them
        try:
            body = self._finisher.finish(event)
            if refusals := self._finisher.refusals([body]):
                raise refusals[0]
        except RecordRefused as refused:
            self._made[record] = refused
        else:
            made.append((kept, body))

    def extend(self, records: Sequence[int], events: NativeEvents) -> None:
        """See `EventSink`."""
        self._is_native = True
        finished = self._finisher.finish_texts(events.texts, events.gaps)
        refusals = self._finisher.refusals(finished)
        rows = zip(records, events.names, events.distinct_ids, events.times, events.uuids, events.texts, events.found, strict=True)
        for index, (record, name, distinct_id, time, uuid, text, found) in enumerate(rows):
            if self._accepts(name, time):
                outcome = refusals.get(index) or (ImportedEvent(name, distinct_id, time, uuid, _properties(text)),)
                self._preflight.add(self._block.place(record), found, outcome, (finished[index],))

    def refuse(self, record: int, why: RecordRefused, text: bytes | None = None, _member: int | None = None, /) -> None:
        """See `EventSink`."""
        if text is None:
            self._made[record] = why
        else:
            self._is_native = True
            self._parts.append((record, text, why))

    def end(self) -> None:
        """The format is done with the block."""
        for record, text in enumerate(() if self._is_native else self._block.records):
            made = self._made.get(record)
            if isinstance(made, RecordRefused):
                self._preflight.add(self._block.place(record), text, made)
            elif made is None or made:
                self._preflight.add(self._block.place(record), text, [event for event, _ in made or ()], [body for _, body in made or ()])
        for record, text, why in self._parts:
            self._preflight.add(self._block.place(record), text, why)


def _properties(text: bytes) -> dict[str, Any]:
    """An event's properties, and what about persons stands beside them."""
    members = decode_members(text)
    properties: dict[str, Any] = {name: members[name] for name in ("$set", "$set_once", "$unset") if name in members}
    if bytes(members.get("properties", b""))[:1] == b"{":
        properties.update(decode_members(members["properties"]))
    return properties
