"""What a preflight means: a closed list of findings, each with what to do; all of it as JSON, and as a page for people.

Invariants: an import with findings that stop it starts only if each of their codes was accepted by name. What comes from the source (names,
ids, records) is printed as text, never as markup, without control characters and with keys masked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from forwarder.core.errors import ConfigurationError
from forwarder.core.secrets import mask_secrets
from forwarder.sources.imports.format import RefusalReason
from forwarder.sources.imports.manifest import PREFLIGHT, plural
from forwarder.sources.imports.preflight_report import RECENT, KeyEstimate, PreflightReport, TimeKind, share
from forwarder.sources.imports.times import SECOND
from forwarder.storage.private import atomic_file
from forwarder.telemetry.readable import duration, size

MANY: Final = 0.01
"""A larger share of refused records is no longer a bad line here and there."""
_SHOWN_NAMES: Final = 20
_SHOWN_PERIODS: Final = 36
_BAR: Final = 24
_LONGEST: Final = 400
_UNPACED: Final = 1e9
"""A rate that stands for none."""


class FindingSeverity(StrEnum):
    """What a finding does."""

    STOPS = "stops"
    """The import doesn't start, unless the code is accepted."""
    WARNS = "warns"
    TELLS = "tells"


_STOPS, _WARNS, _TELLS = FindingSeverity
_REFUSED: Final = "See the reasons and places; refused records become dead letters, which can be repaired and replayed."
_INCOMPLETE: Final = "See the places; repair the records, or leave them out."
FINDINGS: Final[Mapping[str, tuple[FindingSeverity, str]]] = {
    "broken-files": (
        _STOPS,
        "Fetch or export it again before anything is sent: once an import has begun, another file in its place is another source. "
        "Accepted, all that can be read is imported, and the import never counts as complete.",
    ),
    "future-dates": (
        _STOPS,
        "Times are parsed wrongly or were written by wrong clocks: check the format, its time fields and --time-offset.",
    ),
    "recent-dates": (_STOPS, "Leave --until at its default and import the rest later; events so young may also have arrived live."),
    "january-1970": (_STOPS, "Give these records a time in seconds or milliseconds, or leave them out by --since."),
    "mixed-epochs": (
        _STOPS,
        "Each is read by its size (above 1e10 milliseconds, above 1e13 microseconds): check days and examples, then accept it.",
    ),
    "no-zone": (_STOPS, "State the zone that they were written in with --time-offset (0 for UTC)."),
    "illegal-ids": (_STOPS, "Give these records ids of their own, or accept that they are left out."),
    "overwrites-persons": (_STOPS, "Use --person-properties set_once, which only adds what is missing."),
    "many-refused": (_STOPS, _REFUSED),
    "nothing-to-send": (_WARNS, "Check the format, the filters, and what is refused."),
    "some-refused": (_WARNS, _REFUSED),
    "no-id": (_WARNS, _INCOMPLETE),
    "no-time": (_WARNS, _INCOMPLETE),
    "too-large": (_WARNS, "Shorten their properties; the service discards such events."),
    "after-until": (_WARNS, "Import them later, or set --until."),
    "unsorted": (_WARNS, "--sort puts all of them in order; without it, more and smaller batches are sent, and not oldest first."),
    "unsorted-files": (_WARNS, "Name the files from the oldest to the newest, or use --sort."),
    "overwrites-groups": (_WARNS, "If live events say what groups are like, leave these out: --exclude-event '$groupidentify'."),
    "reused-uuids": (_WARNS, "The service keeps each of them as an event of its own; if they are repeats, make their times equal."),
    "duplicates": (_TELLS, "Nothing; they are counted in the report."),
    "set-becomes-set-once": (_TELLS, "Nothing, unless old values should win: --person-properties set."),
    "set-is-dropped": (_TELLS, "Nothing, unless persons should get them: --person-properties set_once."),
    "merges-persons": (_TELLS, "A merge can't be undone: check the examples."),
    "upper-case-ids": (_TELLS, "If these are ids of devices, not of users, --replace-upper-case-ids takes the ones from before."),
}
"""Every finding by its code, in the order in which they are shown: what it does, and what to do."""
STOPPING: Final = tuple(code for code, (severity, _) in FINDINGS.items() if severity is _STOPS)


class PreflightFinding(Struct, frozen=True):
    """One thing to know before an import."""

    code: str
    severity: FindingSeverity
    sentence: str
    advice: str
    """What to do."""
    figures: Mapping[str, int | float | str]


def find_all(report: PreflightReport) -> tuple[PreflightFinding, ...]:
    """All findings, those that stop first."""
    found = [each for part in (_of_records, _of_times, _of_order, _of_persons) for each in part(report)]
    return tuple(sorted(found, key=lambda each: [*FINDINGS].index(each.code)))


def unaccepted(findings: Iterable[PreflightFinding], accepted: Collection[str]) -> tuple[PreflightFinding, ...]:
    """What stops an import and wasn't accepted. Raises `ConfigurationError` if a code to accept is none."""
    unknown = sorted(set(accepted) - FINDINGS.keys())
    if unknown:
        others = ", ".join(code for code in FINDINGS if code not in STOPPING)
        hint = f"The findings that stop an import are {', '.join(STOPPING)}; the others are {others}."
        raise ConfigurationError(f"no finding is called {', '.join(map(repr, unknown))}", hint=hint)
    return tuple(each for each in findings if each.severity is _STOPS and each.code not in accepted)


def _finding(code: str, sentence: str, **figures: float | str) -> PreflightFinding:
    severity, advice = FINDINGS[code]
    return PreflightFinding(code, severity, sentence, advice, figures)


def _of_records(report: PreflightReport) -> Iterator[PreflightFinding]:
    if report.broken:
        more = f", and {len(report.broken) - 1:,} more" if len(report.broken) > 1 else ""
        yield _finding("broken-files", f"{report.broken[0]}{more}.", files=len(report.broken))
    if refused := report.refused_records:
        sentence = f"{refused:,} of {plural(report.records, 'record')} would be refused ({percent(report.refused_share)})."
        code = "many-refused" if report.refused_share > MANY else "some-refused"
        yield _finding(code, sentence, records=refused, share=round(report.refused_share, 6))
    if not report.volume.events:
        yield _finding("nothing-to-send", f"Of {plural(report.records, 'record')} nothing would be sent.", records=report.records)
    ids = ", ".join(repr(each.key) for each in report.illegal_ids[:5])
    for code, reason, what in (
        ("illegal-ids", RefusalReason.ILLEGAL_ID, f"an id that many share ({ids})"),
        ("no-id", RefusalReason.NO_ID, f"no distinct id ({_refused_part(report, RefusalReason.NO_ID)})"),
        ("no-time", RefusalReason.NO_TIME, f"no time that can be read ({_refused_part(report, RefusalReason.NO_TIME)})"),
        ("too-large", RefusalReason.TOO_LARGE, f"an event over upstream.max_event ({report.max_event:,} bytes)"),
    ):
        if count := report.refused_for(reason):
            yield _finding(code, f"{_have(count, 'record')} {what}, and would be refused.", records=count)


def _refused_part(report: PreflightReport, reason: RefusalReason) -> str:
    return percent(share(report.refused_for(reason), report.records))


def _of_times(report: PreflightReport) -> Iterator[PreflightFinding]:
    times, kinds = report.times, report.times.kinds
    until, young = {"until": times.until}, f"younger than {RECENT // SECOND // 3600} h, and would be sent"
    for code, count, what, more in (
        ("future-dates", times.future, f"later than now, {times.now}; the latest is of {times.last}", {"last": times.last or ""}),
        ("recent-dates", times.recent, young, until),
        ("january-1970", times.january_1970, "of January 1970: an epoch that is wrong by 1000 or more, or a zero for no time", {}),
        ("after-until", times.after_until, f"of {times.until} (--until) or later, and left out", until),
    ):
        if count:
            yield _finding(code, f"{_are(count, 'event')} {what}.", events=count, **more)
    epochs = {kind: count for kind, count in kinds.items() if kind.startswith("epoch_")}
    if len(epochs) > 1:
        seen = ", ".join(f"{count:,} in {kind.removeprefix('epoch_')}" for kind, count in epochs.items())
        yield _finding("mixed-epochs", f"Times are numbers of different units: {seen}.", **epochs)
    if (without := kinds.get(TimeKind.NO_ZONE, 0)) and not report.zone_said:
        yield _finding("no-zone", f"{_have(without, 'record')} a time that names no zone; it is read as UTC.", records=without)


def _of_order(report: PreflightReport) -> Iterator[PreflightFinding]:
    order, uuids, repeats = report.order, report.uuids, report.repeats
    if order.late and not report.sort:
        part, furthest = share(order.late, report.volume.events), order.furthest_seconds
        figures = {"late": order.late, "late_in_file": order.late_in_file, "share": round(part, 6), "furthest_seconds": furthest}
        older = f"{_are(order.late, 'event')} older than one before ({percent(part)}), by up to {duration(furthest)}"
        if order.late_in_file:
            yield _finding("unsorted", f"{older}; {order.late_in_file:,} within a file.", **figures)
        else:
            yield _finding("unsorted-files", f"The files aren't in the order of time: {older}.", **figures)
    if uuids.differing:
        sentence = f"{_roughly(uuids.scale)}{_have(uuids.differing, 'uuid')} several events that aren't the same."
        yield _finding("reused-uuids", sentence, uuids=uuids.differing, scale=uuids.scale)
    if repeats.repeats:
        sentence = f"{_roughly(repeats.scale)}{_are(repeats.repeats, 'event')} there again on the same day; repeats are left out."
        yield _finding("duplicates", sentence, events=repeats.repeats, scale=repeats.scale)


def _of_persons(report: PreflightReport) -> Iterator[PreflightFinding]:
    persons = report.persons
    figures = {"set": persons.with_set, "set_once": persons.with_set_once, "unset": persons.with_unset}
    setting = f"{_have(persons.with_set, 'event')} $set"
    if persons.policy == "set":
        sentence = f"{setting} and {persons.with_unset:,} $unset: that changes what the persons have today, however old the events are."
        yield _finding("overwrites-persons", sentence, **figures)
    elif persons.policy == "set_once" and persons.with_set + persons.with_unset:
        unset = f" {_have(persons.with_unset, 'event')} $unset, which is left out." if persons.with_unset else ""
        sentence = f"{setting}, sent as $set_once: it only adds what the persons don't have.{unset}"
        yield _finding("set-becomes-set-once", sentence, **figures)
    elif persons.policy == "none" and any(figures.values()):
        sentence = f"{setting}, {persons.with_set_once:,} $set_once and {persons.with_unset:,} $unset, all of which are left out."
        yield _finding("set-is-dropped", sentence, **figures)
    for code, count, what in (
        ("overwrites-groups", persons.with_group_set, "$group_set: that changes what groups have today, however old the events are"),
        ("merges-persons", persons.merging, "a second id, and would merge two persons"),
        ("upper-case-ids", persons.upper_case_ids, "an id of capitals, digits and hyphens alone, and another from before Mixpanel merged"),
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
        """The findings of a report. Raises `ConfigurationError` for an unknown code in `accepted`."""
        findings = find_all(report)
        return cls(report, findings, unaccepted(findings, accepted))

    def json(self) -> str:
        """All of it, for programs."""
        codes = [each.code for each in self.stopping]
        document = msgspec.json.encode({"stopped_by": codes, "findings": self.findings, "report": self.report})
        return mask_secrets(msgspec.json.format(document, indent=2).decode(errors="replace"))

    def save(self, folder: Path) -> None:
        """Write it into the state folder. Raises `ConfigurationError`."""
        with atomic_file(folder / PREFLIGHT, replace=True) as file:
            file.write(f"{self.json()}\n".encode())

    def page(self) -> RenderableType:
        """All of it, for a person, what is to be decided last."""
        shown = (_shown(each, stops=each in self.stopping) for each in self.findings)
        return Group(*_records(self.report), _figures(self.report), Text(), *shown, _end(self.stopping))


class _Saved(Struct):
    report: PreflightReport


def saved_report(folder: Path) -> PreflightReport | None:
    """The report that a preflight has left in a state folder; None if it isn't known: it only serves to compare."""
    try:
        return msgspec.json.decode((folder / PREFLIGHT).read_bytes(), type=_Saved).report
    except (OSError, ValueError):  # msgspec's errors are such, too
        return None


def _records(report: PreflightReport) -> Iterator[RenderableType]:
    """Examples, names, periods, and what is refused."""
    for example in report.examples:
        yield Text(f"{_clean(example.file)}, line {example.line}:", style="bold")
        yield Text(f"  {_clean(example.record)}", style="dim")
        yield from (Text(f"  → {_clean(bytes(event).decode(errors='replace'))}") for event in example.events)
        yield Text()
    names = [(_clean(each.key), each.count, each.missed) for each in report.names[:_SHOWN_NAMES]]
    yield from _bars("event", names, report.other_names + sum(each.count for each in report.names[_SHOWN_NAMES:]))
    for title, length in (("UTC day", len("2026-01-31")), ("month", len("2026-01")), ("year", len("2026"))):
        periods = Counter[str]()
        for day in report.days:
            periods[day.day[:length]] += day.events
        if len(periods) <= _SHOWN_PERIODS or title == "year":
            yield from _bars(title, [(period, count, 0) for period, count in periods.items()], report.other_days)
            break
    for refused in report.refused:
        yield Text(f"{plural(refused.records, 'record')} refused, {refused.reason}:", style="red")
        yield from (Text(f"  {_clean(first.file)}, line {first.line}: {_clean(first.detail)}") for first in refused.first)
    if report.illegal_ids:
        ids = ", ".join(f"{_clean(each.key)!r} {each.count:,}" for each in report.illegal_ids)
        rest = f", others {report.other_illegal_ids:,}" if report.other_illegal_ids else ""
        yield Text(f"Illegal ids: {ids}{rest}")
    if report.refused:
        yield Text()


def _bars(title: str, rows: Sequence[tuple[str, int, int]], other: int) -> Iterator[RenderableType]:
    """A bar for each name and its events, of which so many more may have been missed; and one for all others, if there are any."""
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
        table.add_row(Text(name), f"{count:,}", Text(f"{bar} or up to {count + missed:,}" if missed else bar))
    yield table
    yield Text()


def _figures(report: PreflightReport) -> RenderableType:
    times, volume, order = report.times, report.volume, report.order
    sent = f"{plural(volume.events, 'event')}, {size(volume.bytes)}, in {plural(volume.requests, 'request')} or more"
    takes = f"{duration(volume.seconds)} or more, at {volume.rate:,.10g} events/s"
    kinds = ", ".join(f"{count:,} {kind.replace('_', ' ')}" for kind, count in times.kinds.items())
    rows = {
        "records": f"{report.records:,} ({size(report.record_bytes)}), {report.silent:,} of them for no event",
        "refused": f"{report.refused_records:,} ({percent(report.refused_share)})",
        "events": f"{report.events:,}, from {times.first} to {times.last}" if times.first else "0",
        "to be sent": f"{sent}, before repeats are left out" if report.repeats.repeats else sent,
        "takes": "as long as the service does" if volume.rate >= _UNPACED else takes,
        "times": kinds or "not looked at",
        "out of order": f"{order.late:,} ({percent(share(order.late, volume.events))}), of which {order.late_in_file:,} within a file",
        "repeats": _estimate(report.repeats, report.repeats.repeats),
        "distinct ids": _estimate(report.persons.distinct_ids, report.persons.distinct_ids.keys),
    }
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="dim")
    table.add_column()
    for name, value in rows.items():
        table.add_row(name, Text(value))
    return table


def _estimate(estimate: KeyEstimate, figure: int) -> str:
    return f"{figure:,}" if estimate.scale == 1 else f"about {figure:,} (one in {estimate.scale:,} sampled)"


def _shown(finding: PreflightFinding, *, stops: bool) -> Text:
    accepted = finding.severity is _STOPS and not stops
    style = {_STOPS: "bold red", _WARNS: "yellow", _TELLS: "default"}[finding.severity]
    text = Text()
    text.append(f"{'accepted' if accepted else finding.severity} {finding.code}: ", style=style)
    text.append(f"{_clean(finding.sentence)}\n  {finding.advice}")
    return text


def _end(stopping: Sequence[PreflightFinding]) -> Text:
    if not stopping:
        return Text("Nothing stops this import.", style="green")
    accept = " ".join(f"--accept {each.code}" for each in stopping)
    return Text(f"This import doesn't start: what it would do can't be undone. Fix the cause, or accept it: {accept}", style="bold red")


def _clean(text: str) -> str:
    """Without what moves a terminal's cursor, and not endless."""
    shown = "".join(each if each.isprintable() else "�" for each in mask_secrets(text)[: _LONGEST + 1])
    return shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}…"


def percent(part: float) -> str:
    """A share for a person; never rounded to none or all."""
    if 0 < part < 0.0001:
        return "under 0.01 %"
    return "over 99.99 %" if 0.9999 < part < 1 else f"{part * 100:.4g} %"


def _are(count: int, what: str) -> str:
    return f"{plural(count, what)} {'is' if count == 1 else 'are'}"


def _have(count: int, what: str) -> str:
    return f"{plural(count, what)} {'has' if count == 1 else 'have'}"


def _roughly(scale: int) -> str:
    return "" if scale == 1 else "About "
