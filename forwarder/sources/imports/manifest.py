"""The manifest of an import: what was read, what became of it, and how it can be verified, as one JSON file that is kept.

It is derived from the last checkpoint and contains only what is settled. Times are ISO 8601 in UTC. Below it: the figures that the
report, its page and `import status` derive from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct, field

from forwarder.core.errors import ConfigurationError
from forwarder.sources.imports.books import DayTally, RecordBooks, RefusalExample, check_days
from forwarder.sources.imports.checkpoint import ImportCheckpoint, ImportJob, SourceContent
from forwarder.sources.imports.times import SECOND, when
from forwarder.storage.private import atomic_file
from forwarder.telemetry.readable import duration

VERSION: Final = 1
FILE: Final = "manifest.json"
PREFLIGHT: Final = "preflight.json"
"""The analysis before the first run, in the same folder."""
PERIODS: Final = {"day": 92, "week": 156 * 7, "month": 240 * 30}
"""Days that are shown one by one at most, or by the week or month; more are shown by the year."""
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

    @property
    def seconds(self) -> float:
        """From the beginning of the first run to the end of the last."""
        return (datetime.fromisoformat(self.ended) - datetime.fromisoformat(self.started)).total_seconds()


def manifest_of(checkpoint: ImportCheckpoint, forwarder: str, now: float) -> ImportManifest:
    """The manifest of a job that stands at this checkpoint."""
    totals = checkpoint.totals
    return ImportManifest(
        version=VERSION,
        forwarder=forwarder,
        job=checkpoint.job,
        complete=checkpoint.complete,
        started=when(int(checkpoint.started_at) * SECOND),
        ended=when(int(now) * SECOND),
        books=checkpoint.books,
        events=sum(day.delivered for day in totals.days.values()),
        first=None if totals.first is None else when(totals.first),
        last=None if totals.last is None else when(totals.last),
        sources=checkpoint.contents,
        files=[FileManifest(each.name, each.identity, each.books, each.digest, each.complete) for each in checkpoint.files],
        days=dict(sorted(totals.days.items())),
        names=dict(by_count(totals.names)),
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
    except (OSError, ValueError) as error:  # msgspec's errors are such, too
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        hint = "Name the manifest.json that an import wrote."
        raise ConfigurationError(f"{path} can't be used as a manifest: {why}", hint=hint) from error
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
    known = {date.fromisoformat(day): figures for day, figures in days.items()}
    first, span = min(known), (max(known) - min(known)).days + 1
    unit = next((unit for unit, most in PERIODS.items() if span <= most), "year")
    every = sorted(known) if unit == "year" else [first + timedelta(days=number) for number in range(span)]
    sums = {label: ReportPeriod(label, 0, 0) for label in (_label(day, unit) for day in every)}
    for day, figures in known.items():
        label, source, delivered = sums[_label(day, unit)]
        sums[label] = ReportPeriod(label, source + figures.source, delivered + figures.delivered)
    return unit, [*sums.values()]


def _label(day: date, unit: str) -> str:
    """What a day's period is called: by its first day, its month or its year."""
    first = day - timedelta(days=day.weekday()) if unit == "week" else day
    return first.isoformat()[: {"year": 4, "month": 7}.get(unit)]


def sentence(books: RecordBooks) -> str:
    """How the books balance, in figures."""
    refused, left_out = sum(books.refused.values()), sum(books.left_out.values())
    sides = f"{books.delivered:,} delivered + {refused:,} refused + {left_out:,} left out + {books.repeats:,} repeats"
    mended = f" (of the refused, {books.mended:,} repaired and delivered since{', all of them' if not books.unmended else ''})"
    return f"{books.read:,} records read = {sides}{mended if books.mended else ''}"


def balance(books: RecordBooks) -> str:
    """Whether they do."""
    if not books.difference:
        return "balanced"
    return f"{books.difference:,} missing" if books.difference > 0 else f"{-books.difference:,} too many"


def outcome(manifest: ImportManifest) -> str:
    """The import in one line."""
    rate = manifest.events / max(1.0, manifest.seconds)
    return f"{manifest.events:,} events delivered in {duration(manifest.seconds)} ({rate:,.{0 if rate >= 10 else 1}f}/s)"


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


def plural(count: int, what: str) -> str:
    """A count for a person: `1 record`, `2,000 records`."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"
