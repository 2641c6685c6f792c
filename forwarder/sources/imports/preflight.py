"""The preflight: everything that can be known about an import before anything is sent, since nothing can be taken back afterwards.

Invariants: nothing is read or written here, and the time is given; memory is bounded however many records come and whatever they hold;
how the stream is cut into parts changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final
from zlib import crc32

from msgspec import Raw

from forwarder.sources.files.records import RecordLocation
from forwarder.sources.imports.counting import LONGEST, SampledKeys, TopCounts
from forwarder.sources.imports.events import ImportedEvent, RecordRefused, RefusalReason
from forwarder.sources.imports.moments import DAY, SECOND, date_of, when
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
from forwarder.sources.imports.time_kinds import TimeInspector, TimeKind
from forwarder.sources.imports.timeline import DayAmounts, TimeOrder

TOP_NAMES: Final = 1000
TOP_ILLEGAL: Final = 50
PLACES: Final = 5
"""Of each reason to refuse."""
EXAMPLES: Final = 3
KEYS: Final = 65_536
"""Ids, uuids and natural keys that are counted exactly; of more, a part."""

_LONGEST_EXAMPLE: Final = 16_384
"""A longer record shows nobody anything."""
_FIRST_MONTH: Final = 31 * DAY
_MERGING: Final = frozenset({"$create_alias", "$merge_dangerously"})
_QUOTED: Final = re.compile(r"(['\"])(.*)\1", re.DOTALL)


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
        """What is known so far. `upper_case_ids` is what the Mixpanel format counted, `broken` what was told of files."""
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
