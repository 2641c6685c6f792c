"""What is told of an import when it ends, for a terminal and for machines; `report_page` makes a page of the same.

Invariants: everything comes from the manifest; what comes from outside (names of events and files, the service's words) is printed as text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date, datetime, timedelta
from typing import Final, NamedTuple

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from forwarder.sources.imports.manifest import ImportManifest
from forwarder.sources.imports.tallies import DayTally, RecordBooks, RefusalExample
from forwarder.telemetry.readable import duration

DAYS: Final = 92
"""So many days are shown one by one; more by the week, and years by the month."""
WEEKS: Final = 156
MONTHS: Final = 240
UNFINISHED: Final = "not complete: the same command goes on with it"
_TOP: Final = 10


class ReportPeriod(NamedTuple):
    """A day, a week, a month or a year on both sides."""

    label: str
    source: int
    delivered: int


def periods(days: Mapping[str, DayTally]) -> tuple[str, list[ReportPeriod]]:
    """Events by day, week, month or year, whichever can be read at once, and which of them it is.

    Periods without events are there, too, but for years: one event of the year 9999 is enough for thousands of them.
    """
    if not days:
        return "day", []
    known = [date.fromisoformat(day) for day in days]
    span = (max(known) - min(known)).days + 1
    unit = "day" if span <= DAYS else "week" if span <= WEEKS * 7 else "month" if span <= MONTHS * 30 else "year"
    beginnings = {_beginning(each, unit) for each in known} if unit == "year" else _steps(min(known), max(known), unit)
    sums: dict[date, tuple[int, int]] = dict.fromkeys(sorted(beginnings), (0, 0))
    for day, figures in zip(known, days.values(), strict=True):
        source, delivered = sums[_beginning(day, unit)]
        sums[_beginning(day, unit)] = (source + figures.source, delivered + figures.delivered)
    return unit, [ReportPeriod(_label(each, unit), *figures) for each, figures in sums.items()]


def _beginning(day: date, unit: str) -> date:
    match unit:
        case "year":
            return day.replace(month=1, day=1)
        case "month":
            return day.replace(day=1)
        case "week":
            return day - timedelta(days=day.weekday())
    return day


def _steps(first: date, last: date, unit: str) -> Iterable[date]:
    each, end = _beginning(first, unit), _beginning(last, unit)
    while each < end:
        yield each
        each = _beginning(each + timedelta(days=31), unit) if unit == "month" else each + timedelta(days=7 if unit == "week" else 1)
    yield end


def _label(day: date, unit: str) -> str:
    return day.isoformat()[: {"year": 4, "month": 7}.get(unit)]


def sentence(books: RecordBooks) -> str:
    """How the books balance, in figures."""
    refused, left_out = sum(books.refused.values()), sum(books.left_out.values())
    sides = f"{books.delivered:,} delivered + {refused:,} refused + {left_out:,} left out + {books.repeats:,} repeats"
    return f"{books.read:,} records read = {sides}{_mended(books)}"


def _mended(books: RecordBooks) -> str:
    if not books.mended:
        return ""
    return f" (of the refused, {books.mended:,} mended and delivered since{', all of them' if not books.unmended else ''})"


def balance(books: RecordBooks) -> str:
    """Whether they do."""
    if not books.difference:
        return "balanced"
    return f"{books.difference:,} missing" if books.difference > 0 else f"{-books.difference:,} too many"


def seconds(manifest: ImportManifest) -> float:
    """From the beginning of the first run to the end of the last."""
    return (datetime.fromisoformat(manifest.ended) - datetime.fromisoformat(manifest.started)).total_seconds()


def outcome(manifest: ImportManifest) -> str:
    """The import in one line."""
    rate = manifest.events / max(1.0, seconds(manifest))
    return f"{manifest.events:,} events delivered in {duration(seconds(manifest))} ({rate:,.{0 if rate >= 10 else 1}f}/s)"


def as_json(manifest: ImportManifest) -> bytes:
    """For machines: what the text says. Files and days are in the manifest."""
    taken = ("job", "forwarder", "complete", "started", "ended", "events", "source_events", "first", "last", "names", "examples")
    _, shown = periods(manifest.days)
    books = {**msgspec.structs.asdict(manifest.books), "difference": manifest.books.difference}
    rest = {"seconds": seconds(manifest), "books": books, "days": len(manifest.days), "periods": [each._asdict() for each in shown]}
    return msgspec.json.encode({**{name: getattr(manifest, name) for name in taken}, **rest})


def as_text(manifest: ImportManifest) -> RenderableType:
    """For a terminal, or a log."""
    books = manifest.books
    head = Text(f"Import {manifest.job.id} ({plain(manifest.job.format)}, {plain(manifest.job.source)}): ")
    head.append(outcome(manifest), style="bold")
    head.append(", complete" if manifest.complete else f", {UNFINISHED}", style="green" if manifest.complete else "yellow")
    parts: list[RenderableType] = [head, Text(f"  events from {manifest.first} to {manifest.last}" if manifest.first else "  no events")]
    balanced = Text(f"  {sentence(books)}: ")
    balanced.append(balance(books), style="bold red" if books.difference else "green")
    parts.append(balanced)
    if books.refused:
        parts += [Text(), _reasons(books, manifest.examples)]
    if books.left_out:
        parts += [Text(), _counts("left out by", books.left_out.items(), "records")]
    if manifest.names:
        parts += [Text(), _counts("event", top(manifest.names, _TOP), "events")]
    return Group(*parts)


def top(names: Mapping[str, int], most: int) -> list[tuple[str, int]]:
    """The most frequent names, and what is left together."""
    listed = list(names.items())
    rest = listed[most:]
    return [*listed[:most], *([(f"({len(rest):,} more names)", sum(count for _, count in rest))] if rest else [])]


def _counts(what: str, counts: Iterable[tuple[str, int]], unit: str) -> Table:
    table = _table(what, unit)
    for name, count in counts:
        table.add_row(Text(plain(name)), f"{count:,}")
    return table


def _reasons(books: RecordBooks, examples: Mapping[str, list[RefusalExample]]) -> Table:
    table = _table("refused because", "records", "for example")
    for reason, count in by_count(books.refused):
        shown = examples.get(reason, [])[:1]
        table.add_row(Text(plain(reason)), f"{count:,}", *(Text(f"{plain(each.file)}:{each.line} {plain(each.detail)}") for each in shown))
    return table


def by_count(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """The most frequent first."""
    return sorted(counts.items(), key=lambda each: (-each[1], each[0]))


def _table(what: str, unit: str, *more: str) -> Table:
    table = Table(box=None, pad_edge=True, header_style="dim")
    table.add_column(what)
    table.add_column(unit, justify="right")
    for name in more:
        table.add_column(name)
    return table


def plain(text: str) -> str:
    """A text from outside without what a terminal would obey."""
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)
