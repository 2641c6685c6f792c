"""The preflight: everything that can be known about an import before anything is sent, since
nothing can be taken back afterwards.

Every record is converted and finished as the import would, and counted instead of sent.

Invariants: nothing is written, and the time is passed in; memory is bounded however many records
come and whatever they hold; how the stream is cut into parts changes nothing; results are the same
in every process (no salted hash), and totals are always exact.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import tzinfo
from hashlib import blake2b
from typing import Any, Final
from zlib import crc32

import msgspec
from msgspec import UNSET, Raw

from forwarder.contract.lifted import LIFTED
from forwarder.core.ports import Reason
from forwarder.sources.files.framing import delimiter_of, framing_of, is_unquoted
from forwarder.sources.files.record_blocks import (
    REFETCH,
    BrokenSource,
    Framing,
    LineRecords,
    ReadOptions,
    RecordBlock,
    RecordLocation,
    RowRecords,
)
from forwarder.sources.files.source import FileSource
from forwarder.sources.imports.conversion import (
    EventFilters,
    EventFinisher,
    FinishedBlock,
    FinishPolicy,
    left_out,
)
from forwarder.sources.imports.format import (
    ChosenFormat,
    ImportedEvent,
    ImportFormat,
    NativeEvents,
    PersonProperties,
    RecordRefused,
)
from forwarder.sources.imports.import_books import RefusalExample
from forwarder.sources.imports.persons import PersonSamples
from forwarder.sources.imports.preflight_report import (
    EventTimes,
    KeyCount,
    KeyEstimate,
    OtherFormat,
    PersonImpact,
    PreflightDay,
    PreflightExample,
    PreflightReport,
    QuotedRows,
    RefusedForReason,
    SendVolume,
    TimeKind,
)
from forwarder.sources.imports.receipts import ReceiptDistances
from forwarder.sources.imports.recognition import SHOWN, UnfitFile, looks_of, other_format
from forwarder.sources.imports.times import (
    AFTER_LAST,
    DAY,
    RECENT,
    SECOND,
    date_of,
    parse_time,
    when,
)
from forwarder.sources.imports.values import is_shared

TOP_NAMES: Final = 1000
TOP_ILLEGAL: Final = 50
PLACES: Final = 5
"""Of each reason to refuse."""
EXAMPLES: Final = 3
KEYS: Final = 65_536
"""Ids, uuids and what makes repeats, that are counted exactly; of more, a part."""
LONGEST: Final = 200
"""Characters that are kept of a key; what differs only after them counts as one."""
MOST_DAYS: Final = 36_600
"""A century. A source that has more days is no history of events; those past
it are counted together.
"""
HOPELESS: Final = 10_000
"""Records of a file none of which fits its format: no more of them are read."""
_SAMPLE: Final = 20
"""Records of a file by which it is seen that it looks like another format, although it fits."""
COMPARED: Final = 5_000
"""The first records, all of which are compared with their receipts."""
_EVERY: Final = 16
"""Of those after them one in so many is."""
_LONGEST_EXAMPLE: Final = 16_384
"""A longer record is no use as an example."""
_FIRST_MONTH: Final = 31 * DAY
_PERSON_MEMBERS: Final = frozenset({"$set", "$set_once", "$unset"})
_MERGING: Final = frozenset({"$create_alias", "$merge_dangerously"})
_ABSENT: Final = Raw(b"null")
_ZONE: Final = re.compile(
    rb"(?:UTC|GMT|[0-9 ][+-][0-9]{2}(?::?[0-9]{2})?(?::?[0-9]{2})?)$", re.IGNORECASE
)
_DATE: Final = len("2026-01-31")
_EPOCH: Final = re.compile(rb"[0-9]{1,19}(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{1,2})?")
_MAIL: Final = re.compile(
    rb"(?:[A-Za-z]{3},? )?[0-9]{1,2} [A-Za-z]{3} [0-9]{4} [0-9:]+(?P<zone> .+)?"
)
_QUOTE_IN_ROW: Final = b'\\"'
_QUOTED_CELL: Final = re.compile(rb':"\\"')
"""In the object of a row; in a row that isn't one, it is the next."""
_QUOTED_TEXT: Final = re.compile(rb'(?:^|\t)"')
_DATE_WITHOUT_HYPHENS: Final = len("20260131")
_decode_members: Final = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_raw: Final = msgspec.json.Decoder(Raw).decode
_TERMINATED: Final = b"terminated early"
_TRUNCATED: Final = "truncated"
"""As msgspec says that a JSON text has no end."""


@dataclass(frozen=True, slots=True)
class PreflightTerms:
    """The settings of an import, and the time of its preflight."""

    now: int
    """Microseconds since 1970."""
    max_event: int
    """`upstream.max_event`."""
    batch_events: int
    batch_bytes: int
    rate: float
    """Events per second."""
    until: int | None = None
    """Events from then on are left out; None: `RECENT` before now."""
    person_properties: PersonProperties = "oldest"
    persons_chosen: bool = True
    """Whether `person_properties` was given."""
    sort: bool = False
    """Events are sorted before they are sent."""
    unfit_accepted: bool = False
    """Files of which nothing fits the format are read to their ends."""
    zone_said: bool = False
    """Times without a zone are known for what they are: the format says so, or `--time-offset`."""

    @property
    def recent(self) -> int:
        """Events from then on are too young for a historical import."""
        return self.now - RECENT

    @property
    def end(self) -> int:
        """Events from then on are left out."""
        return self.recent if self.until is None else self.until


def run_preflight(
    source: FileSource,
    chosen: ChosenFormat,
    finish: FinishPolicy,
    *,
    filters: EventFilters,
    terms: PreflightTerms,
    progress: Callable[[int, int], None],
    formats: Sequence[ImportFormat[Any]] = (),
) -> tuple[PreflightReport, tuple[BrokenSource, ...]]:
    """Read the whole source: the report, and the files that couldn't be read to their end.

    `progress` gets the records and bytes so far, a block at a time. `formats`: by which files are
    recognized that don't fit the chosen one; of such a file only the beginning is read, unless it
    was accepted. Synchronous: one pass, in bounded memory.
    """
    preflight = Preflight(
        terms,
        chosen.time_fields,
        receipts=chosen.receipts,
        clock=chosen.clock,
        shifts_epochs=chosen.shifts_epochs,
    )
    converter = chosen.make(filters.until)
    finisher = EventFinisher(finish)
    # the preflight itself reports what `--until` leaves out
    but_until = replace(filters, until=None)
    broken: list[BrokenSource] = []
    fit = FormatFit()
    records = size = selected = 0

    def is_full() -> bool:
        return filters.limit is not None and selected >= filters.limit

    def accepts(name: str, time: int) -> bool:
        """Repeats are selected, so that they are shown."""
        nonlocal selected
        if is_full() or left_out(name, time, but_until) is not None:
            return False
        if filters.until is None or time < filters.until:
            # others don't count against the limit, as they don't when events are sent
            selected += 1
        return True

    for file in source.files():
        before = preflight.records
        doubtful = may_be_quoted(file.name, source.options)
        fit.begin(file.name)
        with source.blocks(file) as reading:
            try:
                for block in reading:
                    analysed = PreflightBlock(finisher)
                    converter.convert_block(block, analysed)
                    analysed.show(preflight, block, accepts)
                    if not block.first:
                        fit.other = _other_format(block.records, formats, chosen.name)
                    fit.add(block, analysed)
                    if doubtful:
                        preflight.count_quotes(block)
                    records += len(block.records)
                    size += sum(map(len, block.records))
                    progress(records, size)
                    if is_full() or (fit.is_hopeless and not terms.unfit_accepted):
                        break
                else:
                    fit.check_end(source.options.max_record)
            except BrokenSource as error:
                broken.append(error)
        fit.end(preflight.records - before)
        if is_full():
            break
    upper_case: int = getattr(converter, "upper_case_ids", 0)  # of Mixpanel alone
    report = preflight.report(upper_case_ids=upper_case, broken=[*map(_words, broken)])
    report.format = chosen.name
    report.unknown_columns = tuple(getattr(converter, "unknown_columns", ()))  # of posthog alone
    fit.tell(report)
    looks = looks_of(source, [name for name, _, _ in fit.unfit], formats)
    report.unfit = tuple(
        UnfitFile(name, count, looks[name], why) for name, count, why in fit.unfit if name in looks
    )
    return report, tuple(broken)


def _other_format(
    records: Sequence[bytes], formats: Sequence[ImportFormat[Any]], chosen: str
) -> ImportFormat[Any] | None:
    """The format that a file's first records look like, if that isn't the chosen one. The rows of
    a table are only those of a format that reads tables.
    """
    if isinstance(records, RowRecords):
        formats = [form for form in formats if Framing.CSV in form.framings]
    return other_format(records[:_SAMPLE], formats, chosen)


def may_be_quoted(name: str, options: ReadOptions) -> bool:
    """Whether a file of this name is, if it is a table, one between tabs, and nothing says if its
    cells are quoted.
    """
    return (
        framing_of(name, options) is Framing.CSV
        and not options.quote
        and is_unquoted(delimiter_of(name, options), options)
    )


def _cut_off(place: RecordLocation, record: bytes) -> Iterator[RefusalExample]:
    """Why a file isn't whole, from its last record: it is half a record, or the words of an export
    that ended early (Mixpanel's, which answers 200 nevertheless). What comes after a whole record
    isn't known to have been there.
    """
    if record.rstrip(b'"\r\n\t ').endswith(_TERMINATED):
        yield RefusalExample(*place, "it ends with the words 'terminated early'")
        return
    try:
        _decode_raw(record)
    except (ValueError, RecursionError) as error:  # of msgspec
        if record.lstrip()[:1] not in (b"{", b"["):
            yield RefusalExample(*place, "its last row is cut off, or no row of the table")
        elif _TRUNCATED in str(error):
            yield RefusalExample(*place, "its last record is cut off")


def _words(error: BrokenSource) -> str:
    """Why a file can't be read, and what to do if that isn't to fetch it again."""
    return (
        error.message
        if error.hint == REFETCH
        else f"{error.message}. {error.hint.removesuffix('.')}"
    )


class FormatFit:
    """Which files have no record that fits the format: the first of them, and how many
    there are.
    """

    def __init__(self) -> None:
        self.files = self.unfit_files = self.unfit_records = 0
        """`unfit_records`: as the report counts them."""
        self.unfit: list[tuple[str, int, str]] = []
        """Names of files, how many of their records were converted, and why the first of these
        doesn't fit.
        """
        self.other: ImportFormat[Any] | None = None
        """The format that the file looks like, if that isn't the chosen one."""
        self.others: dict[str, tuple[ImportFormat[Any], int]] = {}
        """Formats by their names that files look like which fit nevertheless, and how many do."""
        self.cut_off: list[RefusalExample] = []
        """Of each file that isn't whole: where it ends, and how."""
        self._name = self._why = ""
        self._last: tuple[RecordLocation, bytes] | None = None
        self._records = self._fitting = 0

    @property
    def is_hopeless(self) -> bool:
        """Whether so many records of a file were converted in vain that the rest of it isn't worth
        the time.
        """
        return not self._fitting and self._records >= HOPELESS

    def begin(self, name: str) -> None:
        """The records of the next file come."""
        self._name = name
        self.other = None
        self._last = None
        self._why = ""
        self._records = 0
        self._fitting = 0

    def add(self, block: RecordBlock, made: FinishedBlock) -> None:
        """A block's records were converted."""
        records = len(block.records)
        self._last = block.place(-1), block.records[-1]
        self._records += records
        self._fitting += records
        if made.refused:
            self._fitting -= len({record for record, *_ in made.refused}.difference(made.records))
            self._why = self._why or made.refused[0][1].detail

    def check_end(self, max_record: int) -> None:
        """All of the file was read: is it whole, if it is of this format? A record that is longer
        was cut by reading.
        """
        if self._fitting and self._last is not None and len(self._last[1]) < max_record:
            self.cut_off += _cut_off(*self._last)

    def end(self, counted: int) -> None:
        """The file ends; so many of its records count in the report."""
        self.files += 1
        if self._fitting:
            if self.other is not None:
                _, count = self.others.get(self.other.name, (self.other, 0))
                self.others[self.other.name] = self.other, count + 1
            return
        self.unfit_files += bool(self._records)
        self.unfit_records += counted if self._records else 0
        if len(self.unfit) < SHOWN:
            self.unfit.append((self._name, self._records, self._why))

    def tell(self, report: PreflightReport) -> None:
        """Fill in what the report says of files."""
        report.files = self.files
        report.unfit_files = self.unfit_files
        report.unfit_records = self.unfit_records
        report.cut_off_files = len(self.cut_off)
        report.cut_off = tuple(self.cut_off[:PLACES])
        report.others = tuple(
            OtherFormat(form.name, form.looks_like, count) for form, count in self.others.values()
        )


class Preflight:
    """Counts every record of a source and what its format makes of it, in the order in which they
    are read.

    Filters other than `--until` have been applied before: what they leave out isn't counted.
    """

    def __init__(
        self,
        terms: PreflightTerms,
        time_fields: Sequence[str] = (),
        *,
        keys: int = KEYS,
        receipts: Sequence[str] = (),
        clock: tzinfo | None = None,
        shifts_epochs: bool = False,
    ) -> None:
        """`time_fields` is where records have their times (`ImportFormat.times`), `receipts` where
        they have those of their receipt; `clock` is what times without a zone are read as.
        `shifts_epochs`: whether numbers may be times of another zone.
        """
        self._terms = terms
        self._time_fields = time_fields
        self._receipts = receipts
        self._clock = clock
        self._shifts_epochs = shifts_epochs
        self._distances = ReceiptDistances(clock)
        self._found = PreflightReport(
            volume=SendVolume(rate=terms.rate),
            times=EventTimes(when(terms.now), when(terms.end)),
            max_event=terms.max_event,
            persons=PersonImpact(terms.person_properties, terms.persons_chosen),
            zone_said=terms.zone_said,
            sort=terms.sort,
        )
        self._first = AFTER_LAST
        self._last = 0
        self._file = ""
        self._latest = self._latest_in_file = 0
        self._refused: dict[Reason, RefusedForReason] = {}
        self._examples: dict[str, PreflightExample] = {}
        self._more_examples: list[PreflightExample] = []
        # What grows, each to its bound:
        self.names = TopCounts(8 * TOP_NAMES)
        self.illegal_ids = TopCounts(1000)
        """Those that many share, by the events that have them."""
        self.repeats = SampledKeys(keys)
        self.uuids = SampledKeys(keys)
        self.distinct_ids = SampledKeys(keys)
        self.samples = PersonSamples(is_sorted=terms.sort)
        self._lifted: set[str] = set()
        self.days: dict[int, PreflightDay] = {}
        self._other_days = PreflightDay("other")
        """Those that came when there were too many."""

    @property
    def records(self) -> int:
        """How many were counted so far."""
        return self._found.records

    def add(
        self,
        place: RecordLocation,
        record: bytes,
        outcome: Sequence[ImportedEvent] | RecordRefused,
        finished: Sequence[bytes] = (),
    ) -> None:
        """Count the next record; `finished` has each of its events as it would be sent."""
        self._found.records += 1
        self._found.record_bytes += len(record)
        if (
            outcome
            and not isinstance(outcome, RecordRefused)
            and (largest := max(map(len, finished))) > self._terms.max_event
        ):
            outcome = RecordRefused(
                Reason.TOO_LARGE, f"{largest:,} bytes are more than upstream.max_event"
            )
        if isinstance(outcome, RecordRefused):
            counted = self._refused.setdefault(outcome.why, RefusedForReason(outcome.why.value))
            counted.records += 1
            if len(counted.first) < PLACES:
                counted.first += (RefusalExample(place.file, place.line, outcome.detail[:LONGEST]),)
        elif not outcome:
            self._found.silent += 1
        else:
            if (kind := time_kind(record, self._time_fields)) is not None:
                self._found.times.kinds[kind] = self._found.times.kinds.get(kind, 0) + 1
            if self._receipts and (
                self._found.records <= COMPARED or self._found.records % _EVERY == 0
            ):
                self._compare_receipt(record, outcome[-1].time)
            for event, body in zip(outcome, finished, strict=True):
                self._add_event(place.file, event, len(body))
            self._add_example(place, record, outcome[0].event, finished)

    def _compare_receipt(self, record: bytes, time: int) -> None:
        receipt = first_value(record, self._receipts)
        if receipt is not None:
            with suppress(RecordRefused):  # one that can't be read shows nothing
                self._distances.add(time, parse_time(receipt, None))  # UTC, whatever the zone

    def _add_event(self, file: str, event: ImportedEvent, size: int) -> None:
        report = self._found
        times = self._found.times
        terms = self._terms
        time = event.time
        report.events += 1
        self._first = min(self._first, time)
        self._last = max(self._last, time)
        times.january_1970 += time < _FIRST_MONTH
        times.future += time > terms.now
        if time >= terms.end:
            times.after_until += 1
            return
        times.recent += time >= terms.recent
        persons = report.persons
        properties = event.properties
        self.names.add(event.event)
        day = self.days.get(number := time // DAY)
        if day is None:
            day = (
                self._other_days
                if len(self.days) >= MOST_DAYS
                else self.days.setdefault(number, PreflightDay(date_of(number)))
            )
        for amount in (report.volume, day):
            amount.events += 1
            amount.bytes += size
        self._compare(file, time)
        same = f"{time} {len(event.event)} {event.event}{event.distinct_id}"
        self.uuids.add(event.uuid, crc32(same.encode(errors="surrogatepass")))
        # What makes a repeat is what `repeats` says.
        self.repeats.add(
            f"{number} {len(event.event)} {event.event}{event.uuid}"
            if event.keyed
            else f"{event.uuid} {same}"
        )
        self.distinct_ids.add(event.distinct_id)
        if is_shared(event.distinct_id):
            report.illegal_events += 1
            self.illegal_ids.add(event.distinct_id)
        persons.with_set += "$set" in properties
        persons.with_set_once += "$set_once" in properties
        persons.with_unset += "$unset" in properties
        persons.with_group_set += "$group_set" in properties
        if not _PERSON_MEMBERS.isdisjoint(properties):
            self.samples.add(event.distinct_id, time, properties)
        if not LIFTED.isdisjoint(properties):
            persons.lifting += 1
            self._lifted.update(LIFTED.intersection(properties))
        persons.merging += event.event in _MERGING or "$anon_distinct_id" in properties

    def _add_example(
        self, place: RecordLocation, record: bytes, name: str, finished: Sequence[bytes]
    ) -> None:
        """Three records of different events show more than three of the same; those stand in where
        there are no others.
        """
        known = self._examples
        more = self._more_examples
        if (
            len(known) == EXAMPLES
            or len(record) > _LONGEST_EXAMPLE
            or (name in known and len(more) == EXAMPLES - 1)
        ):
            return
        shown = tuple(Raw(body) for body in finished[:EXAMPLES] if len(body) <= _LONGEST_EXAMPLE)
        example = PreflightExample(place.file, place.line, record.decode(errors="replace"), shown)
        if known.setdefault(name, example) is not example:
            more.append(example)

    def count_quotes(self, block: RecordBlock) -> None:
        """Count the rows of a table that a reader of quotes would read otherwise."""
        records = block.records
        if isinstance(records, LineRecords) and _QUOTE_IN_ROW not in records.text:
            return
        for index, record in enumerate(records):
            if not (_QUOTED_CELL if record[:1] == b"{" else _QUOTED_TEXT).search(record):
                continue
            if self._found.quotes is UNSET:
                shown = record[:_LONGEST_EXAMPLE].decode(errors="replace")
                first = PreflightExample(*block.place(index), shown, ())
                self._found.quotes = QuotedRows(0, first)
            self._found.quotes.rows += 1

    def _compare(self, file: str, time: int) -> None:
        """Compare the next event with those that came before, in the source as a whole and within
        its file.
        """
        order = self._found.order
        if file != self._file:
            self._file = file
            self._latest_in_file = 0
        order.late_in_file += time < self._latest_in_file
        self._latest_in_file = max(time, self._latest_in_file)
        if time >= self._latest:
            self._latest = time
        else:
            order.late += 1
            order.furthest_seconds = max(order.furthest_seconds, (self._latest - time) / SECOND)

    def report(self, *, upper_case_ids: int = 0, broken: Sequence[str] = ()) -> PreflightReport:
        """What is known so far. `upper_case_ids` is what the Mixpanel format counted, `broken` the
        messages of broken files.
        """
        report = self._found
        terms = self._terms
        sent = self._found.volume
        kinds = self._found.times.kinds
        report.times.shift = self._distances.shift() or UNSET
        epochs = sum(count for kind, count in kinds.items() if kind.startswith("epoch_"))
        if epochs and self._shifts_epochs and not (self._distances.compared or terms.zone_said):
            report.times.without_receipts = epochs
        if report.events:
            report.times.first = when(self._first)
            report.times.last = when(self._last)
        report.times.kinds = {kind: kinds[kind] for kind in TimeKind if kind in kinds}
        report.days = tuple(self.days[day] for day in sorted(self.days))
        report.other_days = self._other_days.events
        amounts = [
            (-(-day.events // terms.batch_events), -(-day.bytes // terms.batch_bytes))
            for day in (*report.days, self._other_days)
        ]
        # These are the fewest requests: none spans two days.
        sent.requests = sum(map(max, amounts))
        sent.seconds = round(sent.events / terms.rate, 3)
        report.names = self.names.top(TOP_NAMES)
        report.other_names = self.names.other(TOP_NAMES)
        report.refused = tuple(
            sorted(self._refused.values(), key=lambda refusal: (-refusal.records, refusal.reason))
        )
        report.illegal_ids = self.illegal_ids.top(TOP_ILLEGAL)
        report.other_illegal_ids = self.illegal_ids.other(TOP_ILLEGAL)
        report.repeats = self.repeats.estimate()
        report.uuids = self.uuids.estimate()
        report.persons.distinct_ids = self.distinct_ids.estimate()
        report.persons.upper_case_ids = upper_case_ids
        report.persons.lifted = tuple(sorted(self._lifted))
        report.samples = self.samples.chosen()
        report.examples = (*self._examples.values(), *self._more_examples)[:EXAMPLES]
        report.broken = tuple(broken)
        return report


class PreflightBlock(FinishedBlock):
    """What a format makes of a block, with what only the preflight looks at."""

    def __init__(self, finisher: EventFinisher) -> None:
        super().__init__(finisher)
        self._properties: list[dict[str, Any]] = []
        """Of events that aren't native: as they were before they were finished."""
        self._found: list[bytes] = []
        """Of native events: how each stood in its record."""

    def add(self, records: Sequence[int], events: Sequence[ImportedEvent]) -> None:
        self._properties += [event.properties.copy() for event in events]
        super().add(records, events)

    def extend(self, records: Sequence[int], events: NativeEvents) -> None:
        self._found += events.found
        super().extend(records, events)

    def show(
        self, preflight: Preflight, block: RecordBlock, accepts: Callable[[str, int], bool]
    ) -> None:
        """Let the preflight count the block's records, and native events as if each were one;
        `accepts` selects events by name and time.

        A record of which an event is refused is refused. One of whose events none is selected
        isn't counted.
        """
        selected = [
            at
            for at, event in enumerate(zip(self.names, self.times, strict=True))
            if accepts(*event)
        ]
        if self.texts or any(text is not None for _, _, text, _ in self.refused):
            rows = [
                (self.records[at], self._found[at], self.unfinished.get(at), [at])
                for at in selected
            ]
            rows += [(record, text or b"", why, []) for record, why, text, _ in self.refused]
        else:
            of: dict[int, list[int]] = {record: [] for record in self.records}
            for at in selected:
                of[self.records[at]].append(at)
            whys = {
                self.records[at]: self.unfinished[at]
                for at in reversed(selected)
                if at in self.unfinished
            }
            whys.update((record, why) for record, why, _, _ in self.refused)
            some = (
                (record, text, whys.get(record), of.get(record))
                for record, text in enumerate(block.records)
            )
            rows = [
                (record, text, why, ats or [])
                for record, text, why, ats in some
                if why or ats != []
            ]
        for record, text, why, ats in rows:
            outcome = why or [self._event(at) for at in ats]
            preflight.add(block.place(record), text, outcome, [self.data[at] for at in ats])

    def _event(self, at: int) -> ImportedEvent:
        properties = _properties(self.texts[at]) if self.texts else self._properties[at]
        return ImportedEvent(
            self.names[at],
            self.distinct_ids[at],
            self.times[at],
            self.uuids[at],
            properties,
            self.keyed[at],
        )


def _properties(text: bytes) -> dict[str, Any]:
    """A native event's properties, and what about persons stands beside them."""
    members = _decode_members(text)
    properties: dict[str, Any] = {
        name: members[name] for name in ("$set", "$set_once", "$unset") if name in members
    }
    if bytes(members.get("properties", b""))[:1] == b"{":
        properties.update(_decode_members(members["properties"]))
    return properties


class TopCounts:
    """How often each key came. Past `capacity` keys the rarer half of them is merged into `other`,
    so the frequent ones stay.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._counts: dict[str, int] = {}
        self._missed: dict[str, int] = {}
        self._left_out = 0
        self._left_out_at_most = 0

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, key: str) -> None:
        """Count a key once."""
        key = key if len(key) <= LONGEST else f"{key[: LONGEST - 1]}…"
        if key not in self._counts:
            if len(self._counts) >= self._capacity:
                self._prune()
            if self._left_out_at_most:
                self._missed[key] = self._left_out_at_most
        self._counts[key] = self._counts.get(key, 0) + 1

    def top(self, most: int) -> tuple[KeyCount, ...]:
        """The most frequent keys, the most frequent first."""
        return tuple(
            KeyCount(key, self._counts[key], self._missed.get(key, 0))
            for key in self._ranked()[:most]
        )

    def other(self, most: int) -> int:
        """How often any other than those came."""
        return self._left_out + sum(self._counts[key] for key in self._ranked()[most:])

    def _ranked(self) -> list[str]:
        return sorted(self._counts, key=lambda key: (-self._counts[key], key))

    def _prune(self) -> None:
        leaving = self._ranked()[self._capacity // 2 :]
        # Any one key may have been left out each time, with as many as the most frequent of those
        # that left.
        self._left_out_at_most += self._counts[leaving[0]]
        for key in leaving:
            self._left_out += self._counts.pop(key)
            self._missed.pop(key, None)


class SampledKeys:
    """Which keys came again. Past `limit` keys only those count whose digest ends in a zero bit,
    then in two, and so on.

    A key that still counts has counted from the first: so the figures don't depend on the order in
    which keys come.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._mask = 0
        self._times: dict[int, int] = {}
        self._marks: dict[int, int] = {}
        self._differing: set[int] = set()

    def __len__(self) -> int:
        return len(self._times)

    def add(self, key: str, mark: int = 0) -> None:
        """Count a key; `mark` is what should be the same whenever it comes."""
        digest = int.from_bytes(
            blake2b(key.encode(errors="surrogatepass"), digest_size=8).digest(), "little"
        )
        if digest & self._mask:
            return
        seen = self._times.get(digest, 0)
        self._times[digest] = seen + 1
        if not seen:
            if mark:
                self._marks[digest] = mark
            if len(self._times) > self._limit:
                self._thin_out()
        elif self._marks.get(digest, 0) != mark:
            self._differing.add(digest)

    def estimate(self) -> KeyEstimate:
        """What is known so far."""
        scale = self._mask + 1
        keys = len(self._times)
        return KeyEstimate(
            keys * scale,
            (sum(self._times.values()) - keys) * scale,
            len(self._differing) * scale,
            scale,
        )

    def _thin_out(self) -> None:
        while len(self._times) > self._limit:
            mask = self._mask = self._mask * 2 + 1
            self._times = {
                digest: times for digest, times in self._times.items() if not digest & mask
            }
        self._marks = {
            digest: mark for digest, mark in self._marks.items() if digest in self._times
        }
        self._differing &= self._times.keys()


def kind_of(value: bytes) -> TimeKind | None:
    """How a time is written, from its JSON; None if it isn't one in a form that is known."""
    is_text = value[:1] == b'"'
    text = value[1:-1].strip() if is_text else value
    if not is_text or (text.replace(b".", b"", 1).isdigit() and len(text) != _DATE_WITHOUT_HYPHENS):
        if not _EPOCH.fullmatch(text):
            return None
        number = float(text)  # the bounds are those of `times`
        if number <= 1e10:
            return TimeKind.SECONDS
        return TimeKind.MILLISECONDS if number <= 1e13 else TimeKind.MICROSECONDS
    if match := _MAIL.fullmatch(text):
        return TimeKind.ZONE if match["zone"] else TimeKind.NO_ZONE
    if not text[:4].isdigit():
        return None
    named = text[-1:] in b"zZ" or _ZONE.search(text[_DATE:])
    return TimeKind.ZONE if named and len(text) > _DATE else TimeKind.NO_ZONE


def time_kind(record: bytes, fields: Sequence[str]) -> TimeKind | None:
    """How a record's time is written, in the first of these fields that has a value. None if
    unknown.
    """
    value = first_value(record, fields)
    return None if value is None else kind_of(value)


def first_value(record: bytes, fields: Sequence[str]) -> bytes | None:
    """The JSON of the first of some fields that has a value; `name.name` is one level down. None
    if none has, or the record can't be read: then it is refused elsewhere.
    """
    try:
        members = _decode_members(record) if fields else {}
        for path in fields:
            outer, _, inner = path.partition(".")
            value = members.get(outer, _ABSENT)
            if inner and value is not _ABSENT:
                value = _decode_members(value).get(inner, _ABSENT)
            if bytes(value) not in (b"null", b'""'):
                return bytes(value)
    except (ValueError, RecursionError):  # of msgspec
        return None
    return None
