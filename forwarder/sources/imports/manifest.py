"""The manifest of an import: what was read, what became of it, and how it can be verified, as one JSON file that is kept.

It is derived from the last checkpoint and contains only what is settled. Times are ISO 8601 in UTC. Below it: the figures that the
report, its page and the status derive from a manifest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct, field

from forwarder.core.errors import ConfigurationError
from forwarder.sources.imports.books import DayTally, RecordBooks, RefusalExample, check_days
from forwarder.sources.imports.checkpoint import ImportCheckpoint, ImportJob, SourceContent
from forwarder.sources.imports.times import when
from forwarder.storage.private import atomic_file
from forwarder.telemetry.readable import duration

VERSION: Final = 1
FILE: Final = "manifest.json"
DAYS: Final = 92
"""So many days are shown one by one; more by the week, and years by the month."""
WEEKS: Final = 156
MONTHS: Final = 240
UNFINISHED: Final = "not complete: the same command resumes it"


class FileManifest(Struct, frozen=True, forbid_unknown_fields=True):
    """One file of the source, or one member of an archive."""

    name: str
    identity: str
    books: RecordBooks
    digest: str = ""
    """The SHA-256 of what was read of it, in records that each end with a line feed; of all of it, if it is complete."""
    complete: bool = False


class ImportManifest(Struct, frozen=True, forbid_unknown_fields=True):
    """What an import did."""

    version: int
    forwarder: str
    """The version that wrote it."""
    job: ImportJob
    complete: bool
    """Whether all that the source has is settled."""
    started: str
    ended: str
    books: RecordBooks
    events: int
    """Events delivered: a record may make several, or none."""
    first: str | None
    """Time of the oldest event delivered."""
    last: str | None
    sources: list[SourceContent]
    files: list[FileManifest]
    days: dict[str, DayTally]
    names: dict[str, int]
    examples: dict[str, list[RefusalExample]] = field(default_factory=dict)

    @property
    def source_events(self) -> int:
        """Events that the source has: repeats, and what was left out, not among them."""
        return sum(day.source for day in self.days.values())


def manifest_of(checkpoint: ImportCheckpoint, forwarder: str, now: float) -> ImportManifest:
    """The manifest of a job that stands at this checkpoint."""
    totals = checkpoint.totals
    files = [FileManifest(each.name, each.identity, each.books, each.digest, each.complete) for each in checkpoint.files]
    return ImportManifest(
        version=VERSION,
        forwarder=forwarder,
        job=checkpoint.job,
        complete=checkpoint.complete,
        started=_second(checkpoint.started_at),
        ended=_second(now),
        books=checkpoint.books,
        events=sum(day.delivered for day in totals.days.values()),
        first=None if totals.first is None else when(totals.first),
        last=None if totals.last is None else when(totals.last),
        sources=checkpoint.contents,
        files=files,
        days=dict(sorted(totals.days.items())),
        names=dict(sorted(totals.names.items(), key=lambda each: (-each[1], each[0]))),
        examples=totals.examples,
    )


def encode(manifest: ImportManifest) -> bytes:
    """A manifest as it stands in its file: indented, for people."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"


def write(manifest: ImportManifest, path: Path) -> None:
    """Write it, instead of a former one. Raises `ConfigurationError` if it can't be written."""
    with atomic_file(path, replace=True) as file:
        file.write(encode(manifest))


def read(path: Path) -> ImportManifest:
    """The manifest in a file. Raises `ConfigurationError` if there is none, or it can't be relied on."""
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=ImportManifest)
        _check(manifest)
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from error
    except ValueError as error:  # msgspec's errors are, too
        raise _unreadable(path, str(error)) from error
    return manifest


def _check(manifest: ImportManifest) -> None:
    if manifest.version != VERSION:
        raise ValueError(f"it is of version {manifest.version}, this forwarder reads version {VERSION}")
    check_days(manifest.days)
    total = RecordBooks()
    for file in manifest.files:
        total.add(file.books)
    if total != manifest.books or total.difference or any(file.books.unmended < 0 for file in manifest.files):
        raise ValueError("its books don't balance")
    if manifest.events != sum(day.delivered for day in manifest.days.values()):
        raise ValueError("its days don't add up")


def _second(moment: float) -> str:
    return when(int(moment) * 1_000_000)


def _unreadable(path: Path, why: str) -> ConfigurationError:
    return ConfigurationError(f"{path} can't be used as a manifest: {why}", hint="Name the manifest.json that an import wrote.")


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
    return f" (of the refused, {books.mended:,} repaired and delivered since{', all of them' if not books.unmended else ''})"


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


def top(names: Mapping[str, int], most: int) -> list[tuple[str, int]]:
    """The most frequent names, and what is left together."""
    listed = list(names.items())
    rest = listed[most:]
    return [*listed[:most], *([(f"({len(rest):,} more names)", sum(count for _, count in rest))] if rest else [])]


def by_count(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """The most frequent first."""
    return sorted(counts.items(), key=lambda each: (-each[1], each[0]))


def plain(text: str) -> str:
    """A text from outside without what a terminal would obey."""
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)
