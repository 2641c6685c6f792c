"""What a preflight found, complete, as it is written to JSON; and what that means: a closed list of findings, each with what to do.

Invariant: an import with findings that stop it starts only if each of their codes was accepted by name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from msgspec import Raw, Struct

from forwarder.core.errors import ConfigurationError
from forwarder.sources.imports.format import PersonProperties, RefusalReason
from forwarder.sources.imports.preflight_counters import KeyCount, KeyEstimate, TimeKind, share
from forwarder.sources.imports.times import SECOND
from forwarder.telemetry.readable import duration

RECENT: Final = 48 * 3600 * SECOND
"""Historical events should be older than this (wire facts: What the service does not tell)."""
MANY: Final = 0.01
"""A larger share of refused records is no longer a bad line here and there."""


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
    person_properties: PersonProperties = "set_once"
    sort: bool = False
    """Events are sorted before they are sent."""
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


class PreflightDay(Struct, frozen=True):
    """A UTC day of what would be sent."""

    day: str
    events: int
    bytes: int


class EventTimes(Struct, frozen=True):
    """When events are. Of all that records make, also those that would be left out."""

    now: str
    until: str
    first: str | None
    last: str | None
    future: int
    """Later than now."""
    recent: int
    """Would be sent, though they are younger than 48 h."""
    after_until: int
    january_1970: int
    """In the first days that computers count: an epoch of the wrong unit, or a zero."""
    kinds: Mapping[TimeKind, int]
    """How records write them, as far as that is seen."""


class OutOfOrder(Struct, frozen=True):
    """Of what would be sent."""

    late: int
    """Older than one before it; `--sort` puts all of them in order."""
    late_in_file: int
    """The same within one file; naming the files in the order of time fixes the others."""
    furthest_seconds: float


class RefusedLine(Struct, frozen=True):
    """One record that would be refused."""

    file: str
    line: int
    detail: str


class RefusedForReason(Struct, frozen=True):
    """Records that would be refused for one reason."""

    reason: str
    records: int
    first: tuple[RefusedLine, ...]


class PersonImpact(Struct, frozen=True):
    """Whose events they are, and what they do to them."""

    policy: PersonProperties
    distinct_ids: KeyEstimate
    with_set: int
    """Events that have `$set`."""
    with_set_once: int
    with_unset: int
    merging: int
    """Events that merge two persons."""
    upper_case_ids: int
    """Events that Mixpanel's option `replace_upper_case_ids` gives the id from before, or would give."""
    with_group_set: int
    """Events that have `$group_set`."""


class SendVolume(Struct, frozen=True):
    """What would be sent, and how long it takes."""

    events: int
    bytes: int
    requests: int
    seconds: float
    rate: float


class PreflightExample(Struct, frozen=True):
    """A record, and what becomes of it."""

    file: str
    line: int
    record: str
    events: tuple[Raw, ...]


class PreflightReport(Struct, frozen=True):
    """Everything."""

    records: int
    record_bytes: int
    silent: int
    """Records that stand for no event."""
    events: int
    volume: SendVolume
    names: tuple[KeyCount, ...]
    other_names: int
    """Events with any other name."""
    days: tuple[PreflightDay, ...]
    other_days: int
    times: EventTimes
    order: OutOfOrder
    refused: tuple[RefusedForReason, ...]
    max_event: int
    illegal_ids: tuple[KeyCount, ...]
    other_illegal_ids: int
    repeats: KeyEstimate
    """Events that came before on the same day: they are sent once."""
    uuids: KeyEstimate
    """A differing one stands for events that aren't the same: the service keeps each of them."""
    persons: PersonImpact
    zone_said: bool
    examples: tuple[PreflightExample, ...]
    sort: bool = False
    """Whether events are sorted before they are sent."""
    broken: tuple[str, ...] = ()
    """Of each file that can't be read to its end: which, where, and why."""

    @property
    def refused_records(self) -> int:
        """Records that would be refused for any reason."""
        return sum(each.records for each in self.refused)

    @property
    def refused_share(self) -> float:
        """Of all records, from 0 to 1."""
        return share(self.refused_records, self.records)

    def refused_for(self, reason: str) -> int:
        """Records that would be refused for this reason."""
        return sum(each.records for each in self.refused if each.reason == reason)


class FindingCode(StrEnum):
    """Every finding there is."""

    BROKEN_FILES = "broken-files"
    FUTURE_DATES = "future-dates"
    RECENT_DATES = "recent-dates"
    JANUARY_1970 = "january-1970"
    MIXED_EPOCHS = "mixed-epochs"
    NO_ZONE = "no-zone"
    ILLEGAL_IDS = "illegal-ids"
    OVERWRITES_PERSONS = "overwrites-persons"
    MANY_REFUSED = "many-refused"
    NOTHING_TO_SEND = "nothing-to-send"
    SOME_REFUSED = "some-refused"
    NO_ID = "no-id"
    NO_TIME = "no-time"
    TOO_LARGE = "too-large"
    AFTER_UNTIL = "after-until"
    UNSORTED = "unsorted"
    UNSORTED_FILES = "unsorted-files"
    OVERWRITES_GROUPS = "overwrites-groups"
    REUSED_UUIDS = "reused-uuids"
    DUPLICATES = "duplicates"
    SET_BECOMES_SET_ONCE = "set-becomes-set-once"
    SET_IS_DROPPED = "set-is-dropped"
    MERGES_PERSONS = "merges-persons"
    UPPER_CASE_IDS = "upper-case-ids"


class FindingSeverity(StrEnum):
    """What a finding does."""

    STOPS = "stops"
    """The import doesn't start, unless the code is accepted."""
    WARNS = "warns"
    TELLS = "tells"


_STOPPING: Final = (
    FindingCode.BROKEN_FILES,
    FindingCode.FUTURE_DATES,
    FindingCode.RECENT_DATES,
    FindingCode.JANUARY_1970,
    FindingCode.MIXED_EPOCHS,
    FindingCode.NO_ZONE,
    FindingCode.ILLEGAL_IDS,
    FindingCode.OVERWRITES_PERSONS,
    FindingCode.MANY_REFUSED,
)


_TELLING: Final = (
    FindingCode.DUPLICATES,
    FindingCode.SET_BECOMES_SET_ONCE,
    FindingCode.SET_IS_DROPPED,
    FindingCode.MERGES_PERSONS,
    FindingCode.UPPER_CASE_IDS,
)


SEVERITIES: Final[Mapping[FindingCode, FindingSeverity]] = {
    code: FindingSeverity.STOPS if code in _STOPPING else FindingSeverity.TELLS if code in _TELLING else FindingSeverity.WARNS
    for code in FindingCode
}


class PreflightFinding(Struct, frozen=True):
    """One thing to know before an import."""

    code: FindingCode
    severity: FindingSeverity
    sentence: str
    advice: str
    """What to do."""
    figures: Mapping[str, int | float | str]


def find_all(report: PreflightReport) -> tuple[PreflightFinding, ...]:
    """All findings, those that stop first."""
    found = [each for part in (_of_files, _of_times, _of_refusals, _of_order, _of_keys, _of_persons, _of_volume) for each in part(report)]
    rank, order = list(FindingSeverity), list(FindingCode)
    return tuple(sorted(found, key=lambda each: (rank.index(each.severity), order.index(each.code))))


def unaccepted(findings: Iterable[PreflightFinding], accepted: Collection[str]) -> tuple[PreflightFinding, ...]:
    """What stops an import and wasn't accepted. Raises `ConfigurationError` if a code to accept is none."""
    unknown = sorted(set(accepted) - set(FindingCode))
    if unknown:
        message = f"no finding is called {', '.join(map(repr, unknown))}"
        raise ConfigurationError(message, hint=f"The findings that stop an import are {', '.join(_STOPPING)}; the others are {_others()}.")
    return tuple(each for each in findings if each.severity is FindingSeverity.STOPS and each.code not in accepted)


def _others() -> str:
    return ", ".join(code for code in FindingCode if code not in _STOPPING)


def _finding(code: FindingCode, sentence: str, advice: str, **figures: float | str) -> PreflightFinding:
    return PreflightFinding(code, SEVERITIES[code], sentence, advice, figures)


def _of_files(report: PreflightReport) -> Iterator[PreflightFinding]:
    if report.broken:
        more = f", and {len(report.broken) - 1:,} more" if len(report.broken) > 1 else ""
        advice = (
            "Fetch or export it again before anything is sent: once an import has begun, another file in its place is another source. "
            "Accepted, all that can be read is imported, and the import never counts as complete."
        )
        yield _finding(FindingCode.BROKEN_FILES, f"{report.broken[0]}{more}.", advice, files=len(report.broken))


def _of_times(report: PreflightReport) -> Iterator[PreflightFinding]:
    times = report.times
    if times.future:
        sentence = f"{_are(times.future, 'event')} later than now, {times.now}; the latest is of {times.last}."
        advice = "Times are parsed wrongly or were written by wrong clocks: check the format, its time fields and --time-offset."
        yield _finding(FindingCode.FUTURE_DATES, sentence, advice, events=times.future, last=times.last or "")
    if times.recent:
        sentence = f"{_are(times.recent, 'event')} younger than {RECENT // SECOND // 3600} h, and would be sent."
        advice = "Leave --until at its default and import the rest later; events so young may also have arrived live."
        yield _finding(FindingCode.RECENT_DATES, sentence, advice, events=times.recent, until=times.until)
    if times.january_1970:
        sentence = f"{_are(times.january_1970, 'event')} of January 1970: an epoch that is wrong by 1000 or more, or a zero for no time."
        advice = "Give these records a time in seconds or milliseconds, or leave them out by --since."
        yield _finding(FindingCode.JANUARY_1970, sentence, advice, events=times.january_1970)
    if times.after_until:
        sentence = f"{_are(times.after_until, 'event')} of {times.until} (--until) or later, and left out."
        yield _finding(FindingCode.AFTER_UNTIL, sentence, "Import them later, or set --until.", events=times.after_until, until=times.until)
    yield from _of_kinds(report)


def _of_kinds(report: PreflightReport) -> Iterator[PreflightFinding]:
    kinds = report.times.kinds
    epochs = {kind: kinds[kind] for kind in (TimeKind.SECONDS, TimeKind.MILLISECONDS, TimeKind.MICROSECONDS) if kind in kinds}
    if len(epochs) > 1:
        seen = ", ".join(f"{count:,} in {kind.removeprefix('epoch_')}" for kind, count in epochs.items())
        advice = "Each is read by its size (above 1e10 milliseconds, above 1e13 microseconds): check days and examples, then accept it."
        yield _finding(FindingCode.MIXED_EPOCHS, f"Times are numbers of different units: {seen}.", advice, **epochs)
    without = kinds.get(TimeKind.NO_ZONE, 0)
    if without and not report.zone_said:
        sentence = f"{_have(without, 'record')} a time that names no zone; it is read as UTC."
        advice = "State the zone that they were written in with --time-offset (0 for UTC)."
        yield _finding(FindingCode.NO_ZONE, sentence, advice, records=without)


def _of_refusals(report: PreflightReport) -> Iterator[PreflightFinding]:
    refused, illegal = report.refused_records, report.refused_for(RefusalReason.ILLEGAL_ID)
    if refused:
        code = FindingCode.MANY_REFUSED if report.refused_share > MANY else FindingCode.SOME_REFUSED
        sentence = f"{refused:,} of {plural(report.records, 'record')} would be refused ({percent(report.refused_share)})."
        advice = "See the reasons and places; refused records become dead letters, which can be repaired and replayed."
        yield _finding(code, sentence, advice, records=refused, share=round(report.refused_share, 6))
    if illegal:
        shown = ", ".join(f"{each.key!r}" for each in report.illegal_ids[:5])
        sentence = f"{_have(illegal, 'record')} an id that many share ({shown}), and would be refused."
        advice = "Give these records ids of their own, or accept that they are left out."
        yield _finding(FindingCode.ILLEGAL_IDS, sentence, advice, records=illegal)
    for code, why, what in (
        (FindingCode.NO_ID, RefusalReason.NO_ID, "distinct id"),
        (FindingCode.NO_TIME, RefusalReason.NO_TIME, "time that can be read"),
    ):
        count = report.refused_for(why)
        if count:
            sentence = f"{_have(count, 'record')} no {what} ({percent(share(count, report.records))}), and would be refused."
            yield _finding(code, sentence, "See the places; repair the records, or leave them out.", records=count)
    large = report.refused_for(RefusalReason.TOO_LARGE)
    if large:
        sentence = f"{_have(large, 'record')} an event over upstream.max_event ({report.max_event:,} bytes), and would be refused."
        yield _finding(FindingCode.TOO_LARGE, sentence, "Shorten their properties; the service discards such events.", records=large)


def _of_order(report: PreflightReport) -> Iterator[PreflightFinding]:
    order = report.order
    if not order.late or report.sort:
        return
    part, back = order.late / report.volume.events, duration(order.furthest_seconds)
    figures = {"late": order.late, "late_in_file": order.late_in_file, "share": round(part, 6), "furthest_seconds": order.furthest_seconds}
    older = f"{_are(order.late, 'event')} older than one before ({percent(part)}), by up to {back}"
    if order.late_in_file:
        sentence = f"{older}; {order.late_in_file:,} within a file."
        advice = "--sort puts all of them in order; without it, more and smaller batches are sent, and not oldest first."
        yield _finding(FindingCode.UNSORTED, sentence, advice, **figures)
    else:
        advice = "Name the files from the oldest to the newest, or use --sort."
        yield _finding(FindingCode.UNSORTED_FILES, f"The files aren't in the order of time: {older}.", advice, **figures)


def _of_keys(report: PreflightReport) -> Iterator[PreflightFinding]:
    uuids, repeats = report.uuids, report.repeats
    if uuids.differing:
        sentence = f"{_roughly(uuids.scale)}{_have(uuids.differing, 'uuid')} several events that aren't the same."
        advice = "The service keeps each of them as an event of its own; if they are repeats, make their times equal."
        yield _finding(FindingCode.REUSED_UUIDS, sentence, advice, uuids=uuids.differing, scale=uuids.scale)
    if repeats.repeats:
        sentence = f"{_roughly(repeats.scale)}{_are(repeats.repeats, 'event')} there again on the same day; repeats are left out."
        yield _finding(
            FindingCode.DUPLICATES, sentence, "Nothing; they are counted in the report.", events=repeats.repeats, scale=repeats.scale
        )


def _of_persons(report: PreflightReport) -> Iterator[PreflightFinding]:
    persons = report.persons
    figures = {"set": persons.with_set, "set_once": persons.with_set_once, "unset": persons.with_unset}
    if persons.policy == "set":
        changing = f"{_have(persons.with_set, 'event')} $set and {persons.with_unset:,} $unset"
        sentence = f"{changing}: that changes what the persons have today, however old the events are."
        advice = "Use --person-properties set_once, which only adds what is missing."
        yield _finding(FindingCode.OVERWRITES_PERSONS, sentence, advice, **figures)
    elif persons.policy == "set_once" and persons.with_set + persons.with_unset:
        unset = f" {_have(persons.with_unset, 'event')} $unset, which is left out." if persons.with_unset else ""
        sentence = f"{_have(persons.with_set, 'event')} $set, sent as $set_once: it only adds what the persons don't have.{unset}"
        advice = "Nothing, unless old values should win: --person-properties set."
        yield _finding(FindingCode.SET_BECOMES_SET_ONCE, sentence, advice, **figures)
    elif persons.policy == "none" and any(figures.values()):
        which = f"{persons.with_set_once:,} $set_once and {persons.with_unset:,} $unset"
        sentence = f"{_have(persons.with_set, 'event')} $set, {which}, all of which are left out."
        advice = "Nothing, unless persons should get them: --person-properties set_once."
        yield _finding(FindingCode.SET_IS_DROPPED, sentence, advice, **figures)
    if persons.with_group_set:
        sentence = f"{_have(persons.with_group_set, 'event')} $group_set: that changes what groups have today, however old the events are."
        advice = "If live events say what groups are like, leave these out: --exclude-event '$groupidentify'."
        yield _finding(FindingCode.OVERWRITES_GROUPS, sentence, advice, events=persons.with_group_set)
    if persons.merging:
        sentence = f"{_have(persons.merging, 'event')} a second id, and would merge two persons."
        yield _finding(FindingCode.MERGES_PERSONS, sentence, "A merge can't be undone: check the examples.", events=persons.merging)
    if persons.upper_case_ids:
        what = "an id of capitals, digits and hyphens alone, and another from before Mixpanel merged"
        sentence = f"{_have(persons.upper_case_ids, 'event')} {what}."
        advice = "If these are ids of devices, not of users, --replace-upper-case-ids takes the ones from before."
        yield _finding(FindingCode.UPPER_CASE_IDS, sentence, advice, events=persons.upper_case_ids)


def _of_volume(report: PreflightReport) -> Iterator[PreflightFinding]:
    if not report.volume.events:
        sentence = f"Of {plural(report.records, 'record')} nothing would be sent."
        yield _finding(FindingCode.NOTHING_TO_SEND, sentence, "Check the format, the filters, and what is refused.", records=report.records)


def percent(part: float) -> str:
    """A share for a person; never rounded to none or all."""
    if 0 < part < 0.0001:
        return "under 0.01 %"
    return "over 99.99 %" if 0.9999 < part < 1 else f"{part * 100:.4g} %"


def plural(count: int, what: str) -> str:
    """A count for a person: `1 record`, `2,000 records`."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def _are(count: int, what: str) -> str:
    return f"{plural(count, what)} {'is' if count == 1 else 'are'}"


def _have(count: int, what: str) -> str:
    return f"{plural(count, what)} {'has' if count == 1 else 'have'}"


def _roughly(scale: int) -> str:
    return "" if scale == 1 else "About "
