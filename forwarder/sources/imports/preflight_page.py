"""A preflight for people, as text, and for programs, as JSON.

Invariant: what comes from the source (names, ids, records) is printed as text, never as markup, without control characters and with
keys masked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from forwarder.core.secrets import mask_secrets
from forwarder.sources.imports.preflight_counters import KeyCount, KeyEstimate, share
from forwarder.sources.imports.preflight_report import FindingSeverity, PreflightDay, PreflightFinding, PreflightReport, percent, plural
from forwarder.telemetry.readable import duration, size

_SHOWN_NAMES: Final = 20
_SHOWN_PERIODS: Final = 36
_BAR: Final = 24
_LONGEST: Final = 400
_UNPACED: Final = 1e9
"""Nobody means such a rate: there is none."""
_STYLES: Final = {FindingSeverity.STOPS: "bold red", FindingSeverity.WARNS: "yellow", FindingSeverity.TELLS: "default"}


def as_json(report: PreflightReport, findings: Sequence[PreflightFinding], stopping: Sequence[PreflightFinding]) -> str:
    """Everything for programs; `stopping` is what `unaccepted` gave."""
    codes = [each.code for each in stopping]
    document = msgspec.json.encode({"stopped_by": codes, "findings": findings, "report": report})
    return mask_secrets(msgspec.json.format(document, indent=2).decode(errors="replace"))


def page(report: PreflightReport, findings: Sequence[PreflightFinding], stopping: Sequence[PreflightFinding]) -> RenderableType:
    """Everything for a person, what is to be decided last; `stopping` is what `unaccepted` gave."""
    parts: list[RenderableType] = [*_examples(report), *_names(report), *_periods(report), *_refused(report), _figures(report), Text()]
    parts.extend(_finding(each, stops=each in stopping) for each in findings)
    parts.append(_end(stopping))
    return Group(*parts)


def _figures(report: PreflightReport) -> RenderableType:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="dim")
    table.add_column()
    for name, value in _rows(report):
        table.add_row(name, Text(value))
    return table


def _rows(report: PreflightReport) -> Iterable[tuple[str, str]]:
    times, volume, order = report.times, report.volume, report.order
    yield "records", f"{report.records:,} ({size(report.record_bytes)}), {report.silent:,} of them for no event"
    yield "refused", f"{report.refused_records:,} ({percent(report.refused_share)})"
    yield "events", f"{report.events:,}, from {times.first} to {times.last}" if times.first else "0"
    sent = f"{plural(volume.events, 'event')}, {size(volume.bytes)}, in {plural(volume.requests, 'request')} or more"
    yield "to be sent", f"{sent}, before repeats are left out" if report.repeats.repeats else sent
    fast = volume.rate >= _UNPACED
    yield "takes", "as long as the service does" if fast else f"{duration(volume.seconds)} or more, at {volume.rate:,.10g} events/s"
    yield "times", ", ".join(f"{count:,} {kind.replace('_', ' ')}" for kind, count in times.kinds.items()) or "not looked at"
    yield "out of order", f"{order.late:,} ({percent(share(order.late, volume.events))}), of which {order.late_in_file:,} within a file"
    yield "repeats", _estimate(report.repeats, report.repeats.repeats)
    yield "distinct ids", _estimate(report.persons.distinct_ids, report.persons.distinct_ids.keys)


def _estimate(estimate: KeyEstimate, figure: int) -> str:
    return f"{figure:,}" if estimate.scale == 1 else f"about {figure:,} (one in {estimate.scale:,} sampled)"


def _examples(report: PreflightReport) -> Iterable[RenderableType]:
    for example in report.examples:
        yield Text(f"{_clean(example.file)}, line {example.line}:", style="bold")
        yield Text(f"  {_clean(example.record)}", style="dim")
        for event in example.events:
            yield Text(f"  → {_clean(bytes(event).decode(errors='replace'))}")
        yield Text()


def _names(report: PreflightReport) -> Iterable[RenderableType]:
    shown = report.names[:_SHOWN_NAMES]
    rest = report.other_names + sum(each.count for each in report.names[_SHOWN_NAMES:])
    rows = [(_clean(each.key), each.count, _missed(each)) for each in shown]
    yield from _bars("event", [*rows, ("other", rest, "")] if rest else rows)


def _missed(counted: KeyCount) -> str:
    return f"or up to {counted.count + counted.missed:,}" if counted.missed else ""


def _periods(report: PreflightReport) -> Iterable[RenderableType]:
    forms = {"UTC day": len("2026-01-31"), "month": len("2026-01"), "year": len("2026")}
    by = {title: _by_period(report.days, length) for title, length in forms.items()}
    title = next((title for title, periods in by.items() if len(periods) <= _SHOWN_PERIODS), "year")
    rows = [(period, count, "") for period, count in by[title].items()]
    yield from _bars(title, [*rows, ("other", report.other_days, "")] if report.other_days else rows)


def _by_period(days: Iterable[PreflightDay], length: int) -> dict[str, int]:
    periods: dict[str, int] = {}
    for each in days:
        periods[each.day[:length]] = periods.get(each.day[:length], 0) + each.events
    return periods


def _bars(title: str, rows: Sequence[tuple[str, int, str]]) -> Iterable[RenderableType]:
    if not rows:
        return
    most = max(count for _, count, _ in rows)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(title, no_wrap=True, max_width=60)
    table.add_column("events", justify="right")
    table.add_column("")
    for name, count, note in rows:
        table.add_row(Text(name), f"{count:,}", Text(" ".join(filter(None, ("█" * max(1, round(_BAR * count / most)), note)))))
    yield table
    yield Text()


def _refused(report: PreflightReport) -> Iterable[RenderableType]:
    for each in report.refused:
        yield Text(f"{plural(each.records, 'record')} refused, {each.reason}:", style="red")
        for first in each.first:
            yield Text(f"  {_clean(first.file)}, line {first.line}: {_clean(first.detail)}")
    if report.illegal_ids:
        ids = ", ".join(f"{_clean(each.key)!r} {each.count:,}" for each in report.illegal_ids)
        rest = f", others {report.other_illegal_ids:,}" if report.other_illegal_ids else ""
        yield Text(f"Illegal ids: {ids}{rest}")
    if report.refused:
        yield Text()


def _finding(finding: PreflightFinding, *, stops: bool) -> Text:
    accepted = finding.severity is FindingSeverity.STOPS and not stops
    text = Text()
    text.append(f"{'accepted' if accepted else finding.severity} {finding.code}: ", style=_STYLES[finding.severity])
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
