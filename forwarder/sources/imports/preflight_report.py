"""What a preflight reports and what that means: a closed list of findings, each with what to do;
as JSON, and as a page for people.

Invariants: an import with findings that stop it starts only if each of their codes was accepted by
name. What comes from the source (names, ids, records) is printed as text, never as markup, without
control characters and with keys masked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from forwarder.core.errors import ConfigurationError
from forwarder.core.ports import Reason
from forwarder.core.proposals import proposed
from forwarder.core.secrets import mask_secrets
from forwarder.sources.imports.format import PersonProperties
from forwarder.sources.imports.import_books import RefusalExample
from forwarder.sources.imports.pacing import UNPACED, rate_text
from forwarder.sources.imports.persons import PersonSample
from forwarder.sources.imports.receipts import ZoneShift
from forwarder.sources.imports.recognition import UnfitFile, unfit_table
from forwarder.sources.imports.times import RECENT, SECOND
from forwarder.storage.private import atomic_file
from forwarder.telemetry.readable import duration, plain, plural, size

PREFLIGHT: Final = "preflight.json"
"""The analysis before the first run, in the state folder."""
MANY: Final = 0.01
"""A larger share of refused records is no longer a bad line here and there."""
_SHOWN_NAMES: Final = 20
_SHOWN_PERIODS: Final = 36
_BAR: Final = 24
_LONGEST: Final = 400
_BE: Final = ("is", "are")


class FindingSeverity(StrEnum):
    """What a finding does."""

    STOPS = "stops"
    """The import doesn't start, unless the code is accepted."""
    WARNS = "warns"
    TELLS = "tells"


_STOPS, _WARNS, _TELLS = FindingSeverity
_STYLES: Final = {_STOPS: "bold red", _WARNS: "yellow", _TELLS: "default"}
_REFUSED: Final = (
    "See the reasons and places; refused records become dead letters, which can be repaired "
    "and replayed."
)
_INCOMPLETE: Final = "See the places; repair the records, or leave them out."
FINDINGS: Final[Mapping[str, tuple[FindingSeverity, str]]] = {
    "broken-files": (
        _STOPS,
        "Fetch or export it again before anything is sent: once an import has begun, another file "
        "in its place is another source. "
        "Accepted, all that can be read is imported, and the import never counts as complete.",
    ),
    "cut-off-files": (
        _STOPS,
        (
            "Export them again before anything is sent, in smaller ranges if an export ends early "
            "again. Accepted, their whole records are imported, and what is missing isn't known."
        ),
    ),
    "future-dates": (
        _STOPS,
        (
            "Times are parsed wrongly or were written by wrong clocks: check the format, its time "
            "fields and --zone."
        ),
    ),
    "recent-dates": (
        _STOPS,
        (
            "Leave --until at its default and import the rest later; events so young may also "
            "have arrived live."
        ),
    ),
    "january-1970": (
        _STOPS,
        "Give these records a time in seconds or milliseconds, or leave them out by --since.",
    ),
    "mixed-epochs": (
        _STOPS,
        (
            "Each is read by its size (above 1e10 milliseconds, above 1e13 microseconds): check "
            "days and examples, then accept it."
        ),
    ),
    "no-zone": (
        _STOPS,
        "State the zone that they were written in: --zone Europe/Berlin, --zone UTC.",
    ),
    "quotes": (
        _STOPS,
        "Say whether cells are in quotes: --quote '\"' if they are, --quote none if these are part "
        "of the texts.",
    ),
    "wrong-zone": (
        _STOPS,
        "State the zone that they were written in, by --zone or --time-offset.",
    ),
    "illegal-merges": (
        _STOPS,
        "Give these records ids of their own, or accept that they are left out.",
    ),
    "imported-before": (
        _STOPS,
        (
            "Events can't be taken back: import into another project; or delete those of the "
            "earlier import there (their $import_job_id is that of its manifest), then accept "
            "this; or use the earlier options again, if they were right."
        ),
    ),
    "person-properties": (
        _STOPS,
        (
            "Choose with --person-properties: history (nothing of these persons is live: each "
            "event has the properties of its time), newest (a live project: all of history shows "
            "the newest values, and no live value is overwritten), oldest, or none. What each "
            "makes of three persons is shown above."
        ),
    ),
    "history-unsorted": (
        _STOPS,
        (
            "Add --sort, which sends all events in the order of time; or choose "
            "--person-properties newest, which needs no order."
        ),
    ),
    "unfit-files": (_STOPS, "Leave these files out; accepted, their records become dead letters."),
    "many-refused": (_STOPS, _REFUSED),
    "overwrites-persons": (
        _WARNS,
        (
            "If events of these persons are live, use --person-properties newest, which only adds "
            "what is missing."
        ),
    ),
    "newest-everywhere": (
        _WARNS,
        (
            "If each event should show the properties of its time, and nothing of these persons "
            "is live, use --person-properties history."
        ),
    ),
    "unknown-columns": (
        _WARNS,
        (
            "If they are properties, use a format that sends every column, such as csv, or a "
            "mapping."
        ),
    ),
    "other-format": (
        _WARNS,
        "Their own format reads more of them, and leaves out what isn't sent.",
    ),
    "zone-unknown": (
        _WARNS,
        "Check that the export's times are UTC; else name its zone by --zone (Mixpanel's projects "
        "from before 2023: the project's).",
    ),
    "illegal-ids": (
        _WARNS,
        (
            "Give these records ids of their own if they are of different persons: the service "
            "merges no other id with these, but events can't be taken back."
        ),
    ),
    "nothing-to-send": (_WARNS, "Check the format, the filters, and what is refused."),
    "some-refused": (_WARNS, _REFUSED),
    "no-id": (_WARNS, _INCOMPLETE),
    "no-time": (_WARNS, _INCOMPLETE),
    "too-large": (_WARNS, "Shorten their properties; the service discards such events."),
    "after-until": (_WARNS, "Import them later, or set --until."),
    "unsorted": (
        _WARNS,
        (
            "--sort puts all of them in order; without it, more and smaller batches are sent, and "
            "not oldest first."
        ),
    ),
    "unsorted-files": (_WARNS, "Name the files from the oldest to the newest, or use --sort."),
    "overwrites-groups": (
        _WARNS,
        (
            "If live events say what groups are like, leave these out: --exclude-event "
            "'$groupidentify'."
        ),
    ),
    "reused-uuids": (
        _WARNS,
        (
            "The service keeps each of them as an event of its own; if they are repeats, make "
            "their times equal."
        ),
    ),
    "duplicates": (_TELLS, "Nothing; they are counted in the report."),
    "set-becomes-set-once": (
        _TELLS,
        "Nothing, unless persons should get their newest values: --person-properties newest.",
    ),
    "set-is-dropped": (
        _TELLS,
        "Nothing, unless persons should get them: --person-properties newest.",
    ),
    "lifts-properties": (
        _TELLS,
        (
            "No choice of --person-properties protects these of a live person: a rule can remove "
            "them from the events."
        ),
    ),
    "merges-persons": (_TELLS, "A merge can't be undone: check the examples."),
    "upper-case-ids": (
        _TELLS,
        (
            "If these are ids of devices, not of users, --replace-upper-case-ids takes the ones "
            "from before."
        ),
    ),
}
"""Every finding by its code, in the order in which they are shown: what it does, and what to do."""
CHOICES: Final = frozenset({"person-properties", "history-unsorted"})
"""Those that stop until an option is given: accepting them wouldn't say what to send."""
STOPPING: Final = tuple(
    code for code, (severity, _) in FINDINGS.items() if severity is _STOPS and code not in CHOICES
)
"""Those that can be accepted."""


class KeyCount(Struct, frozen=True):
    """A key, and how often it came."""

    key: str
    count: int
    missed: int = 0
    """At most so many more: it was left out once, when too many others came."""


class KeyEstimate(Struct, frozen=True):
    """What is known of many keys."""

    keys: int = 0
    repeats: int = 0
    """How many came that had come before."""
    differing: int = 0
    """How many keys came with more than one mark."""
    scale: int = 1
    """1: exact. Otherwise one key in so many was sampled, and the figures are multiplied by it."""


class PreflightDay(Struct):
    """A UTC day of what would be sent."""

    day: str
    events: int = 0
    bytes: int = 0


class TimeKind(StrEnum):
    """How a time is written."""

    ZONE = "with_zone"
    NO_ZONE = "without_zone"
    SECONDS = "epoch_seconds"
    MILLISECONDS = "epoch_milliseconds"
    MICROSECONDS = "epoch_microseconds"


class EventTimes(Struct):
    """When events are. Of all that records make, also those that would be left out."""

    now: str
    until: str
    first: str | None = None
    last: str | None = None
    future: int = 0
    recent: int = 0
    """Would be sent, though they are younger than 48 h."""
    after_until: int = 0
    january_1970: int = 0
    """In the first days that computers count: an epoch of the wrong unit, or a zero."""
    kinds: dict[TimeKind, int] = field(default_factory=dict)
    shift: ZoneShift | UnsetType = UNSET
    """What shows that they are those of another zone; there if anything does."""
    without_receipts: int | UnsetType = UNSET
    """Records whose times are numbers that may be of another zone than UTC; there if no zone was
    given, and no record has a time of receipt that shows it.
    """


class OutOfOrder(Struct):
    """How far what would be sent is from the order of time."""

    late: int = 0
    """Older than one before it; `--sort` puts all of them in order."""
    late_in_file: int = 0
    """The same within one file; naming the files in the order of time fixes the others."""
    furthest_seconds: float = 0.0


class RefusedForReason(Struct):
    """Records that would be refused for one reason."""

    reason: str
    records: int = 0
    first: tuple[RefusalExample, ...] = ()


class PersonImpact(Struct):
    """Whose events they are, and what they do to them."""

    policy: PersonProperties
    chosen: bool = True
    """Whether the policy was given."""
    distinct_ids: KeyEstimate = KeyEstimate()
    with_set: int = 0
    with_set_once: int = 0
    with_unset: int = 0
    merging: int = 0
    upper_case_ids: int = 0
    """Events that Mixpanel's option `replace_upper_case_ids` gives the id
    from before, or would give.
    """
    with_group_set: int = 0
    lifting: int = 0
    """Events with properties that the service sets on their persons by itself."""
    lifted: tuple[str, ...] = ()
    """Which these are."""
    index_persons: int = 0
    index_bytes: int = 0
    """The index of `newest`, on disk."""

    @property
    def setting(self) -> int:
        """How many times events say something of their persons."""
        return self.with_set + self.with_set_once + self.with_unset


class SendVolume(Struct):
    """What would be sent, and how long it takes."""

    events: int = 0
    bytes: int = 0
    requests: int = 0
    seconds: float = 0.0
    rate: float = 0.0


class PreflightExample(Struct, frozen=True):
    """A record, and what becomes of it."""

    file: str
    line: int
    record: str
    events: tuple[Raw, ...]


class OtherFormat(Struct, frozen=True):
    """A format that files look like which fit the chosen one, too."""

    format: str
    looks_like: str
    files: int


class QuotedRows(Struct):
    """Rows of tables between tabs with a cell that begins with a quotation mark, while nothing
    says whether their cells are quoted.
    """

    rows: int
    first: PreflightExample


class EarlierImport(Struct, frozen=True):
    """An import of files of this source into the same project, under other options."""

    folder: str
    """Its state folder."""
    job: str
    """Its id: the `$import_job_id` of its events."""
    events: int
    """That it has delivered."""
    files: int
    """That both have in common."""
    differences: tuple[str, ...]
    """What is another now, in words."""


class PreflightReport(Struct, kw_only=True):
    """Everything."""

    records: int = 0
    record_bytes: int = 0
    silent: int = 0
    """Records that stand for no event."""
    events: int = 0
    volume: SendVolume
    names: tuple[KeyCount, ...] = ()
    other_names: int = 0
    days: tuple[PreflightDay, ...] = ()
    other_days: int = 0
    times: EventTimes
    order: OutOfOrder = field(default_factory=OutOfOrder)
    refused: tuple[RefusedForReason, ...] = ()
    max_event: int
    illegal_events: int = 0
    """Events of ids that many share: of one person, to the service."""
    illegal_ids: tuple[KeyCount, ...] = ()
    other_illegal_ids: int = 0
    repeats: KeyEstimate = KeyEstimate()
    """Events that came before on the same day: they are sent once."""
    uuids: KeyEstimate = KeyEstimate()
    """A differing one stands for events that aren't the same: the service keeps each of them."""
    persons: PersonImpact
    samples: tuple[PersonSample, ...] = ()
    earlier: tuple[EarlierImport, ...] = ()
    """Imports of the same files into the same project, by which other events are there."""
    zone_said: bool
    examples: tuple[PreflightExample, ...] = ()
    quotes: QuotedRows | UnsetType = UNSET
    """If there are any."""
    sort: bool = False
    format: str = ""
    """The chosen one."""
    files: int = 0
    """That were read."""
    unfit_files: int = 0
    """Those that have records of which none fits the format."""
    unfit_records: int = 0
    """Of these files, as far as they were read."""
    unfit: tuple[UnfitFile, ...] = ()
    """The first files without a record that fits, also empty ones, with what they look like."""
    cut_off_files: int = 0
    """That end in half a record, or in words that an export ended early."""
    cut_off: tuple[RefusalExample, ...] = ()
    """Where the first of them end, and how."""
    others: tuple[OtherFormat, ...] = ()
    unknown_columns: tuple[str, ...] = ()
    """The first that the format doesn't know: they aren't sent."""
    unchecked: tuple[str, ...] = ()
    """What a dry run couldn't check, and why."""
    broken: tuple[str, ...] = ()
    """Of each file that can't be read to its end: which, where, and why."""

    @property
    def to_send(self) -> int:
        """Events to send, without repeats."""
        return max(0, self.volume.events - self.repeats.repeats)

    @property
    def refused_records(self) -> int:
        """Records that would be refused for any reason."""
        return sum(refusal.records for refusal in self.refused)

    @property
    def refused_share(self) -> float:
        """Of all records, from 0 to 1."""
        return share(self.refused_records, self.records)

    @property
    def fits_nothing(self) -> bool:
        """Whether no file has a record that fits the format."""
        return bool(self.unfit_files) and self.unfit_records >= self.records


class PreflightFinding(Struct, frozen=True):
    """One thing to know before an import."""

    code: str
    severity: FindingSeverity
    sentence: str
    advice: str
    figures: Mapping[str, int | float | str]


def find_all(report: PreflightReport) -> tuple[PreflightFinding, ...]:
    """All findings, those that stop first."""
    findings = {
        finding.code: finding
        for part in (_of_files, _of_records, _of_times, _of_order, _of_persons)
        for finding in part(report)
    }
    return tuple(findings[code] for code in FINDINGS if code in findings)


def unaccepted(
    findings: Iterable[PreflightFinding], accepted: Collection[str]
) -> tuple[PreflightFinding, ...]:
    """What stops an import and wasn't accepted. Raises `ConfigurationError` if
    a code to accept is none.
    """
    unknown = sorted(set(accepted) - FINDINGS.keys())
    if unknown:
        others = ", ".join(code for code in FINDINGS if code not in STOPPING)
        listed = ",".join(unknown).split(",")
        if len(listed) > len(unknown) and FINDINGS.keys() >= {code.strip() for code in listed}:
            hint = f"Write one each: {' '.join(f'--accept {code.strip()}' for code in listed)}."
            raise ConfigurationError(
                f"no finding is called {', '.join(map(repr, unknown))}", hint=hint
            )
        close = get_close_matches(unknown[0].lower().replace("_", "-"), FINDINGS, n=1)
        meant = f"Did you mean {close[0]}? " if close else ""
        hint = (
            f"{meant}The findings that stop an import are {', '.join(STOPPING)}; the others "
            f"are {others}."
        )
        raise ConfigurationError(f"no finding is called {', '.join(map(repr, unknown))}", hint=hint)
    return tuple(
        finding
        for finding in findings
        if finding.severity is _STOPS and (finding.code not in accepted or finding.code in CHOICES)
    )


def _finding(code: str, sentence: str, **figures: float | str) -> PreflightFinding:
    severity, advice = FINDINGS[code]
    return PreflightFinding(code, severity, sentence, advice, figures)


def _of_files(report: PreflightReport) -> Iterator[PreflightFinding]:
    if report.broken:
        more = f", and {len(report.broken) - 1:,} more" if len(report.broken) > 1 else ""
        yield _finding("broken-files", f"{report.broken[0]}{more}.", files=len(report.broken))
    if report.cut_off:
        yield _cut_off(report.cut_off[0], report.cut_off_files)
    for before in report.earlier[:1]:
        files = f"{plural(before.files, 'file')} {'was' if before.files == 1 else 'were'}"
        sentence = (
            f"{files} imported into this project before, by {before.folder}: "
            f"{'; '.join(before.differences)}. {_have(before.events, 'event', _BE)} there "
            f"of import {before.job}, and the same records would be there a second time wherever "
            "their uuid or time is another now."
        )
        if others := len(report.earlier) - 1:
            sentence += (
                f" {plural(others, 'other earlier import')} of these files "
                f"{'is' if others == 1 else 'are'} in the state folders, too."
            )
        yield _finding("imported-before", sentence, events=before.events, files=before.files)
    if report.unfit_files:
        yield _unfit(report)
    if report.others:
        yield _other_format(report)
    if report.unknown_columns:
        yield _unknown_columns(report.unknown_columns)
    if report.quotes is not UNSET:
        first = report.quotes.first
        yield _finding(
            "quotes",
            f"{_have(report.quotes.rows, 'row')} a cell that begins with a quotation mark, which "
            f"is read as part of its text: {first.file}, line {first.line}: {first.record}",
            rows=report.quotes.rows,
        )


def _of_records(report: PreflightReport) -> Iterator[PreflightFinding]:
    # a file of which nothing fits is of another format
    records = report.records - report.unfit_records
    if refused := report.refused_records - report.unfit_records:
        refused_share = share(refused, records)
        sentence = (
            f"{refused:,} of {plural(records, 'record')} would be refused "
            f"({percent(refused_share)})."
        )
        code = "many-refused" if refused_share > MANY else "some-refused"
        yield _finding(code, sentence, records=refused, share=round(refused_share, 6))
    if not report.volume.events:
        yield _finding(
            "nothing-to-send",
            f"Of {plural(report.records, 'record')} nothing would be sent.",
            records=report.records,
        )
    if report.fits_nothing:
        return
    if report.illegal_events:
        ids = ", ".join(repr(illegal.key) for illegal in report.illegal_ids[:5])
        sentence = (
            f"{_have(report.illegal_events, 'event')} an id that many share ({ids}): to the "
            "service they are one person's."
        )
        yield _finding("illegal-ids", sentence, events=report.illegal_events)
    counts = {refusal.reason: refusal.records for refusal in report.refused}
    for code, reason, what in (
        ("illegal-merges", Reason.ILLEGAL_DISTINCT_ID, "a merge by an id that many share"),
        ("no-id", Reason.MISSING_DISTINCT_ID, "no distinct id"),
        ("no-time", Reason.MISSING_TIMESTAMP, "no time that can be read"),
        (
            "too-large",
            Reason.TOO_LARGE,
            f"an event over upstream.max_event ({report.max_event:,} bytes)",
        ),
    ):
        if count := counts.get(reason):
            part = f" ({percent(share(count, report.records))})" if code.startswith("no-") else ""
            yield _finding(
                code, f"{_have(count, 'record')} {what}{part}, and would be refused.", records=count
            )


def _cut_off(first: RefusalExample, files: int) -> PreflightFinding:
    more = f", and {plural(files - 1, 'more file')}" if files > 1 else ""
    sentence = f"{first.file} isn't whole, line {first.line:,}: {first.detail}{more}."
    return _finding("cut-off-files", sentence, files=files)


def _unknown_columns(columns: Sequence[str]) -> PreflightFinding:
    names = ", ".join(map(repr, columns[:5]))
    more = f" and {len(columns) - 5:,} more" if len(columns) > 5 else ""
    sentence = f"{plural(len(columns), 'column')} would not be sent: {names}{more}."
    return _finding("unknown-columns", sentence, columns=len(columns))


def _other_format(report: PreflightReport) -> PreflightFinding:
    other = max(report.others, key=lambda folder: folder.files)
    looks = "looks" if other.files == 1 else "look"
    finding = _finding(
        "other-format",
        f"{other.files:,} of {plural(report.files, 'file')} {looks} like {other.looks_like}.",
        files=other.files,
        format=other.format,
    )
    advice = f"Try `{proposed(f'import {other.format} …')}`. {finding.advice}"
    return msgspec.structs.replace(finding, advice=advice)


def _unfit(report: PreflightReport) -> PreflightFinding:
    looks = list(dict.fromkeys(file.looks.text for file in report.unfit if file.records))
    todo = list(
        dict.fromkeys(filter(None, [file.looks.todo(report.format) for file in report.unfit]))
    )
    if report.fits_nothing:
        what = f"No record of {plural(report.unfit_files, 'file')} fits the format {report.format}"
    else:
        are = _BE[report.unfit_files != 1]
        what = (
            f"{report.unfit_files:,} of {plural(report.files, 'file')} {are} of another "
            f"format than {report.format}"
        )
    like = f": looks like {'; '.join(looks[:3])}" if looks else ""
    finding = _finding(
        "unfit-files", f"{what}{like}.", files=report.unfit_files, records=report.unfit_records
    )
    advice = (
        " ".join(todo[:3])
        if todo
        else "See why their records are refused, and the options of the format."
    )
    return msgspec.structs.replace(
        finding, advice=advice if report.fits_nothing else f"{advice} {finding.advice}"
    )


def _of_times(report: PreflightReport) -> Iterator[PreflightFinding]:
    times = report.times
    kinds = report.times.kinds
    until = {"until": times.until}
    young = f"younger than {RECENT // SECOND // 3600} h, and would be sent"
    for code, count, what, more in (
        (
            "future-dates",
            times.future,
            f"later than now, {times.now}; the latest is of {times.last}",
            {"last": times.last or ""},
        ),
        ("recent-dates", times.recent, young, until),
        (
            "january-1970",
            times.january_1970,
            "of January 1970: an epoch that is wrong by 1000 or more, or a zero for no time",
            {},
        ),
        (
            "after-until",
            times.after_until,
            f"of {times.until} (--until) or later, and left out",
            until,
        ),
    ):
        if count:
            yield _finding(code, f"{_have(count, 'event', _BE)} {what}.", events=count, **more)
    epochs = {kind: count for kind, count in kinds.items() if kind.startswith("epoch_")}
    if len(epochs) > 1:
        seen = ", ".join(
            f"{count:,} in {kind.removeprefix('epoch_')}" for kind, count in epochs.items()
        )
        yield _finding("mixed-epochs", f"Times are numbers of different units: {seen}.", **epochs)
    if (without := kinds.get(TimeKind.NO_ZONE, 0)) and not report.zone_said:
        yield _finding(
            "no-zone",
            f"{_have(without, 'record')} a time that names no zone; it is read as UTC.",
            records=without,
        )
    if times.shift is not UNSET:
        yield _wrong_zone(times.shift)
    if times.without_receipts is not UNSET:
        yield _finding(
            "zone-unknown",
            f"{_have(times.without_receipts, 'record')} a number as time, which is read as UTC, "
            "and no record has a time of receipt that shows whether it is.",
            records=times.without_receipts,
        )


def _wrong_zone(shift: ZoneShift) -> PreflightFinding:
    distances = " or ".join(
        f"{duration(abs(minutes) * 60)} {'after' if minutes > 0 else 'before'}"
        for minutes in shift.minutes
    )
    sentence = (
        f"{shift.shifted:,} of {plural(shift.compared, 'record')} that were compared were received "
        f"{distances} the time that they have, almost to the second: it is of another zone."
    )
    finding = _finding(
        "wrong-zone",
        sentence,
        records=shift.shifted,
        compared=shift.compared,
        zone=shift.zones[0] if shift.zones else "",
    )
    if not (shift.zones or shift.offset):
        return finding
    zones = f"--zone {' or --zone '.join(shift.zones)}" if shift.zones else ""
    named = f"{zones}{', or ' if zones else ''}" if shift.offset else zones
    offset = f"--time-offset {shift.offset}" if shift.offset else ""
    return msgspec.structs.replace(finding, advice=f"The times fit {named}{offset}.")


def _of_order(report: PreflightReport) -> Iterator[PreflightFinding]:
    order = report.order
    uuids = report.uuids
    repeats = report.repeats
    persons = report.persons
    if order.late and not report.sort and persons.policy == "history" and persons.setting:
        yield _finding(
            "history-unsorted",
            (
                f"{_have(order.late, 'event', _BE)} older than one before, and --person-properties "
                "history needs the order of time: persons would end with older values."
            ),
            late=order.late,
        )
    if order.late and not report.sort:
        part = share(order.late, report.volume.events)
        furthest = order.furthest_seconds
        figures = {
            "late": order.late,
            "late_in_file": order.late_in_file,
            "share": round(part, 6),
            "furthest_seconds": furthest,
        }
        older = (
            f"{_have(order.late, 'event', _BE)} older than one before ({percent(part)}), by "
            f"up to {duration(furthest)}"
        )
        if order.late_in_file:
            yield _finding("unsorted", f"{older}; {order.late_in_file:,} within a file.", **figures)
        else:
            yield _finding(
                "unsorted-files", f"The files aren't in the order of time: {older}.", **figures
            )
    about = {words: "" if words.scale == 1 else "About " for words in (uuids, repeats)}
    if uuids.differing:
        sentence = (
            f"{about[uuids]}{_have(uuids.differing, 'uuid')} several events that aren't the same."
        )
        yield _finding("reused-uuids", sentence, uuids=uuids.differing, scale=uuids.scale)
    if repeats.repeats:
        sentence = (
            f"{about[repeats]}{_have(repeats.repeats, 'event', _BE)} there again on the same "
            "day; repeats are left out."
        )
        yield _finding("duplicates", sentence, events=repeats.repeats, scale=repeats.scale)


def _of_persons(report: PreflightReport) -> Iterator[PreflightFinding]:
    persons = report.persons
    figures = {
        "set": persons.with_set,
        "set_once": persons.with_set_once,
        "unset": persons.with_unset,
    }
    setting = f"{_have(persons.with_set, 'event')} $set"
    if not persons.setting:
        pass
    elif not persons.chosen:
        sentence = (
            f"{setting}, {persons.with_set_once:,} $set_once and {persons.with_unset:,} $unset, "
            "and what becomes of these properties of persons was not chosen."
        )
        yield _finding("person-properties", sentence, **figures)
    elif persons.policy == "history":
        sentence = (
            f"{setting} and {persons.with_unset:,} $unset: that changes what the persons have "
            "today, however old the events are."
        )
        yield _finding("overwrites-persons", sentence, **figures)
    elif persons.policy == "newest":
        sentence = (
            f"{setting}, {persons.with_set_once:,} $set_once and {persons.with_unset:,} $unset: "
            "all of history will show the newest values of each person. They are sent as "
            "$set_once, so what a person has already stays, also from an earlier import. The "
            f"index of {plural(persons.index_persons, 'person')} takes "
            f"{size(persons.index_bytes)} in the state folder."
        )
        yield _finding("newest-everywhere", sentence, **figures, bytes=persons.index_bytes)
    elif persons.policy == "oldest" and persons.with_set + persons.with_unset:
        unset = (
            f" {_have(persons.with_unset, 'event')} $unset, which is left out."
            if persons.with_unset
            else ""
        )
        sentence = f"{setting}, sent as $set_once: it only adds what the persons don't have.{unset}"
        yield _finding("set-becomes-set-once", sentence, **figures)
    elif persons.policy == "none":
        sentence = (
            f"{setting}, {persons.with_set_once:,} $set_once and {persons.with_unset:,} "
            "$unset, all of which are left out."
        )
        yield _finding("set-is-dropped", sentence, **figures)
    if persons.lifting:
        shown = ", ".join(persons.lifted[:8])
        more = f" and {len(persons.lifted) - 8:,} more" if len(persons.lifted) > 8 else ""
        yield _finding(
            "lifts-properties",
            (
                f"{_have(persons.lifting, 'event')} properties that the service sets on the person "
                f"by itself, over newer ones, too, and with $initial_…: {shown}{more}."
            ),
            events=persons.lifting,
        )
    for code, count, what in (
        (
            "overwrites-groups",
            persons.with_group_set,
            "$group_set: that changes what groups have today, however old the events are",
        ),
        ("merges-persons", persons.merging, "a second id, and would merge two persons"),
        (
            "upper-case-ids",
            persons.upper_case_ids,
            "an id of capitals, digits and hyphens alone, and another from before Mixpanel merged",
        ),
    ):
        if count:
            yield _finding(code, f"{_have(count, 'event')} {what}.", events=count)


@dataclass(frozen=True, slots=True)
class PreflightResult:
    """The analysis of a source, and what it means for the import."""

    report: PreflightReport
    findings: Sequence[PreflightFinding]
    stopping: Sequence[PreflightFinding]
    """Findings that stop the import, as they were not accepted."""

    @classmethod
    def assess(cls, report: PreflightReport, accepted: Collection[str]) -> PreflightResult:
        """The findings of a report. Raises `ConfigurationError` for an
        unknown code in `accepted`.
        """
        findings = find_all(report)
        return cls(report, findings, unaccepted(findings, accepted))

    def json(self) -> str:
        """All of it, for programs."""
        codes = [finding.code for finding in self.stopping]
        document = msgspec.json.encode(
            {"stopped_by": codes, "findings": self.findings, "report": self.report}
        )
        return mask_secrets(msgspec.json.format(document, indent=2).decode(errors="replace"))

    def save(self, folder: Path) -> None:
        """Write it into the state folder. Raises `ConfigurationError`."""
        with atomic_file(folder / PREFLIGHT, replace=True) as file:
            file.write(f"{self.json()}\n".encode())

    def page(self) -> RenderableType:
        """All of it, for a person, what is to be decided last."""
        shown = []
        for finding in self.findings:
            accepted = (
                "accepted"
                if finding.severity is _STOPS and finding not in self.stopping
                else finding.severity
            )
            text = Text(f"{accepted} {finding.code}: ", style=_STYLES[finding.severity])
            shown.append(
                Text().append_text(text).append(f"{_clean(finding.sentence)}\n  {finding.advice}")
            )
        end = Text("Nothing stops this import.", style="green")
        if self.stopping and (self.report.fits_nothing or not self.report.records):
            end = Text(
                "This import doesn't start: there is nothing in these files that it could send.",
                style="bold red",
            )
        elif self.stopping:
            end = Text(self._stopped(), style="bold red")
        unchecked = [
            Text(f"not checked: {_clean(part)}", style="yellow") for part in self.report.unchecked
        ]
        return Group(
            *_records(self.report),
            *_samples(self.report),
            _figures(self.report),
            Text(),
            *shown,
            *unchecked,
            end,
        )

    def _stopped(self) -> str:
        """Why it doesn't start, and what to type."""
        codes = [finding.code for finding in self.stopping]
        words = "This import doesn't start: what it would do can't be undone."
        if accept := " ".join(f"--accept {code}" for code in codes if code not in CHOICES):
            words = f"{words} Fix the cause, or accept it: {accept}."
        if "person-properties" in codes:
            words = f"{words} Choose: --person-properties history|newest|oldest|none."
        if "history-unsorted" in codes:
            words = f"{words} Add: --sort."
        return words


class _Saved(Struct):
    report: PreflightReport


def saved_report(folder: Path) -> PreflightReport | None:
    """The report that a preflight has left in a state folder; None if it isn't known: it only
    serves to compare.
    """
    try:
        return msgspec.json.decode((folder / PREFLIGHT).read_bytes(), type=_Saved).report
    except (OSError, ValueError):  # msgspec's errors are such, too
        return None


def _records(report: PreflightReport) -> Iterator[RenderableType]:
    """Examples, names, periods, and what is refused."""
    for example in report.examples:
        yield Text(f"{_clean(example.file)}, line {example.line}:", style="bold")
        yield Text(f"  {_clean(example.record)}", style="dim")
        yield from (
            Text(f"  → {_clean(bytes(event).decode(errors='replace'))}") for event in example.events
        )
        yield Text()
    names = [(_clean(name.key), name.count, name.missed) for name in report.names[:_SHOWN_NAMES]]
    yield from _bars(
        "event", names, report.other_names + sum(name.count for name in report.names[_SHOWN_NAMES:])
    )
    for title, length in (
        ("UTC day", len("2026-01-31")),
        ("month", len("2026-01")),
        ("year", len("2026")),
    ):
        periods = Counter[str]()
        for day in report.days:
            periods[day.day[:length]] += day.events
        if len(periods) <= _SHOWN_PERIODS or title == "year":
            yield from _bars(
                title, [(period, count, 0) for period, count in periods.items()], report.other_days
            )
            break
    if report.unfit_files or (report.unfit and not report.events):
        yield from unfit_table(report.unfit, max(0, report.unfit_files - len(report.unfit)))
    for refused in report.refused:
        yield Text(f"{plural(refused.records, 'record')} refused, {refused.reason}:", style="red")
        yield from (
            Text(f"  {_clean(first.file)}, line {first.line}: {_clean(first.detail)}")
            for first in refused.first
        )
    if report.illegal_ids:
        ids = ", ".join(
            f"{_clean(illegal.key)!r} {illegal.count:,}" for illegal in report.illegal_ids
        )
        rest = f", others {report.other_illegal_ids:,}" if report.other_illegal_ids else ""
        yield Text(f"Ids that many share: {ids}{rest}")
    if report.refused:
        yield Text()


def _samples(report: PreflightReport) -> Iterator[RenderableType]:
    """What each choice makes of some persons, in a project that doesn't have them."""
    persons = report.persons
    for sample in report.samples:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column(f"person {_clean(sample.distinct_id)[:40]}", no_wrap=True, max_width=40)
        for choice in ("history", "newest", "oldest", "none"):
            is_chosen = persons.chosen and choice == persons.policy
            table.add_column(f"{choice} (chosen)" if is_chosen else choice, max_width=30)
        for value in sample.properties:
            cells = [
                Text("-" if text is None else _clean(bytes(text).decode(errors="replace")))
                for text in (value.history, value.newest, value.oldest, None)
            ]
            table.add_row(Text(_clean(value.name)), *cells)
        yield table
        yield Text()


def _bars(title: str, rows: Sequence[tuple[str, int, int]], other: int) -> Iterator[RenderableType]:
    """A bar for each name and its events, of which so many more may have been missed; and one for
    all others, if there are any.
    """
    rows = [*rows, ("other", other, 0)] if other else rows
    if not rows:
        return
    most = max(count for _, count, _ in rows)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(title, no_wrap=True, max_width=60)
    table.add_column("events", justify="right")
    table.add_column("")
    for name, count, missed in rows:
        bar = "█" * max(1, round(_BAR * count / most))
        table.add_row(
            Text(name), f"{count:,}", Text(f"{bar} or up to {count + missed:,}" if missed else bar)
        )
    yield table
    yield Text()


def _figures(report: PreflightReport) -> RenderableType:
    times = report.times
    volume = report.volume
    order = report.order
    ids = report.persons.distinct_ids
    sent = (
        f"{plural(volume.events, 'event')}, {size(volume.bytes)}, in "
        f"{plural(volume.requests, 'request')} or more"
    )
    takes = f"{duration(volume.seconds)} or more, at {rate_text(volume.rate)} events/s"
    rows = {
        "records": (
            f"{report.records:,} ({size(report.record_bytes)}), {report.silent:,} of them for "
            "no event"
        ),
        "refused": f"{report.refused_records:,} ({percent(report.refused_share)})",
        "events": f"{report.events:,}, from {times.first} to {times.last}" if times.first else "0",
        "to be sent": f"{sent}, before repeats are left out" if report.repeats.repeats else sent,
        "takes": "as long as the service does" if volume.rate >= UNPACED else takes,
        "times": ", ".join(
            f"{count:,} {kind.replace('_', ' ')}" for kind, count in times.kinds.items()
        )
        or "not looked at",
        "out of order": (
            f"{order.late:,} ({percent(share(order.late, volume.events))}), of which "
            f"{order.late_in_file:,} within a file"
        ),
    }
    for name, figure, scale in (
        ("repeats", report.repeats.repeats, report.repeats.scale),
        ("distinct ids", ids.keys, ids.scale),
    ):
        rows[name] = f"{figure:,}" if scale == 1 else f"about {figure:,} (one in {scale:,} sampled)"
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="dim")
    table.add_column()
    for name, value in rows.items():
        table.add_row(name, Text(value))
    return table


def _clean(text: str) -> str:
    """Without what moves a terminal's cursor, and not endless."""
    shown = plain(mask_secrets(text)[: _LONGEST + 1])
    return shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}…"


def percent(part: float) -> str:
    """A share for a person; never rounded to none or all."""
    if 0 < part < 0.0001:
        return "under 0.01 %"
    return "over 99.99 %" if 0.9999 < part < 1 else f"{part * 100:.4g} %"


def _have(count: int, what: str, verbs: tuple[str, str] = ("has", "have")) -> str:
    return f"{plural(count, what)} {verbs[count != 1]}"


def share(part: int, whole: int) -> float:
    """A part of a whole, from 0 to 1; 0 of nothing."""
    return part / whole if whole else 0.0
