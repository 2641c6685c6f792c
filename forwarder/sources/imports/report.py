"""What is kept and said of an import: its manifest, and derived from it the report as text, as
JSON and as an HTML page, and its progress.

The manifest says what was read, what became of it, and how it can be verified, and contains only
what is settled. Manifest and report are written to the state folder when a run ends. A run that is
killed after its last checkpoint leaves none, or those of the run before; `complete_reports`
derives them from the checkpoint, which holds everything that they say. Times are ISO 8601 in UTC.

Invariants: the same manifest gives the same page. Text from outside (names of events and files,
the service's words) is shown as text: each value of the page is escaped where it is inserted and
stands in `bdi`, so its direction of writing ends with it. The page loads nothing and has no
script; its own policy forbids both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, timedelta
from hashlib import sha256
from html import escape
from pathlib import Path
from string import Template
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct, field
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from forwarder import __version__
from forwarder.core.error_text import error_text
from forwarder.core.errors import ConfigurationError
from forwarder.core.stamps import utc_text
from forwarder.sources.imports.checkpoint import ImportCheckpoint, ImportJob, SourceContent
from forwarder.sources.imports.import_books import (
    DayTally,
    RecordBooks,
    RefusalExample,
    check_days,
    renamed,
)
from forwarder.sources.imports.times import SECOND, when
from forwarder.storage.private import atomic_file
from forwarder.telemetry.readable import duration, plain, plural

VERSION: Final = 1
MANIFEST: Final = "manifest.json"
JSON: Final = "report.json"
PAGE: Final = "report.html"
VERIFIED: Final = "verified.json"
PERIODS: Final = {"day": 92, "week": 156 * 7, "month": 240 * 30}
"""Days that are shown one by one at most, or by the week or month; more are shown by the year."""
UNFINISHED: Final = "not complete: the same command resumes it"
NAMES: Final = 50
FILES: Final = 200
_TOP: Final = 10
_HEIGHT: Final = 100
_BAR: Final = 0.7
"""The share of its period's width that a bar has: the rest is the gap to the next one."""
_FEW: Final = 16
"""Periods that a chart has room for at least: a few bars stay bars, and don't become blocks."""
_TEMPLATE: Final = Path(__file__).with_name("report.html")


class FileManifest(Struct, frozen=True, forbid_unknown_fields=True):
    """One file of the source, or one member of an archive."""

    name: str
    identity: str
    books: RecordBooks
    digest: str = ""
    """The SHA-256 of what was read of it, in records that each end with a line feed; of all of it,
    if it is complete.
    """
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

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "examples", renamed(self.examples))

    @property
    def source_events(self) -> int:
        """Events that the source has: repeats, and what was left out, not among them."""
        return sum(day.source for day in self.days.values())

    @property
    def seconds(self) -> float:
        """From the beginning of the first run to the end of the last."""
        started = datetime.fromisoformat(self.started)
        return (datetime.fromisoformat(self.ended) - started).total_seconds()


def manifest_of(checkpoint: ImportCheckpoint, ended: float | None = None) -> ImportManifest:
    """The manifest of a job that stands at this checkpoint; without `ended` (seconds since 1970),
    as if it had ended with it.
    """
    totals = checkpoint.totals
    return ImportManifest(
        version=VERSION,
        forwarder=__version__,
        job=checkpoint.job,
        complete=checkpoint.complete,
        started=when(int(checkpoint.started_at) * SECOND),
        ended=when(int(checkpoint.written_at if ended is None else ended) * SECOND),
        books=checkpoint.books,
        events=sum(day.delivered for day in totals.days.values()),
        first=None if totals.first is None else when(totals.first),
        last=None if totals.last is None else when(totals.last),
        sources=checkpoint.contents,
        files=[
            FileManifest(file.name, file.identity, file.books, file.digest, file.complete)
            for file in checkpoint.files
        ],
        days=dict(sorted(totals.days.items())),
        names=dict(by_count(totals.names)),
        examples=totals.examples,
    )


def read_manifest(path: Path) -> ImportManifest:
    """The manifest in a file. Raises `ConfigurationError` if there is none,
    or it can't be relied on.
    """
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=ImportManifest)
        _check(manifest)
    except (OSError, ValueError) as error:  # msgspec's errors are such, too
        why = error_text(error)
        hint = "Name the manifest.json that an import wrote."
        raise ConfigurationError(f"{path} can't be used as a manifest: {why}", hint=hint) from error
    return manifest


def _check(manifest: ImportManifest) -> None:
    if manifest.version != VERSION:
        raise ValueError(
            f"it is of version {manifest.version}, this forwarder reads version {VERSION}"
        )
    check_days(manifest.days)
    total = RecordBooks()
    for file in manifest.files:
        total.add(file.books)
    if (
        total != manifest.books
        or total.difference
        or any(file.books.unrepaired < 0 for file in manifest.files)
    ):
        raise ValueError("its books don't balance")
    if manifest.events != sum(day.delivered for day in manifest.days.values()):
        raise ValueError("its days don't add up")


class VerifiedImport(Struct, frozen=True, forbid_unknown_fields=True):
    """What `import verify` found last."""

    at: str
    against: str
    """What the import was compared with: a sandbox's address, or files."""
    same: bool
    words: list[str]
    days: str
    """What identifies the counts that were compared: of others it says nothing."""


def save_verification(
    manifest: ImportManifest, folder: Path, *, at: float, against: str, same: bool, words: list[str]
) -> None:
    """Keep what `import verify` found, and show it in the report; `at`: seconds since 1970. Raises
    `ConfigurationError` if that can't be written.
    """
    verification = VerifiedImport(when(int(at) * SECOND), against, same, words, _days_of(manifest))
    with atomic_file(folder / VERIFIED, replace=True) as file:
        file.write(msgspec.json.encode(verification) + b"\n")
    write_reports(manifest, folder)


def _verification(manifest: ImportManifest, folder: Path) -> VerifiedImport | None:
    """What was kept of the last verification of these counts, if there was one."""
    try:
        verification = msgspec.json.decode((folder / VERIFIED).read_bytes(), type=VerifiedImport)
    except (OSError, ValueError):  # msgspec's errors are such, too
        return None
    return verification if verification.days == _days_of(manifest) else None


def _days_of(manifest: ImportManifest) -> str:
    return sha256(msgspec.json.encode(manifest.days)).hexdigest()[:16]


class ReportPeriod(NamedTuple):
    """A day, a week, a month or a year on both sides."""

    label: str
    source: int
    delivered: int


def periods(days: Mapping[str, DayTally]) -> tuple[str, list[ReportPeriod]]:
    """Events by day, week, month or year, whichever can be read at once, and which of them it is.

    Periods without events are there, too, but for years: one event of the year 9999 is enough for
    thousands of them.
    """
    if not days:
        return "day", []
    known = {date.fromisoformat(day): figures for day, figures in days.items()}
    first = min(known)
    span = (max(known) - min(known)).days + 1
    unit = next((unit for unit, most in PERIODS.items() if span <= most), "year")
    every = (
        sorted(known)
        if unit == "year"
        else [first + timedelta(days=number) for number in range(span)]
    )
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
    refused = sum(books.refused.values())
    left_out = sum(books.left_out.values())
    sides = (
        f"{books.delivered:,} delivered + {refused:,} refused + {left_out:,} left out + "
        f"{plural(books.repeats, 'repeat')}"
    )
    repaired = (
        f" (of the refused, {books.repaired:,} repaired and delivered "
        f"since{', all of them' if not books.unrepaired else ''})"
    )
    return f"{plural(books.read, 'record')} read = {sides}{repaired if books.repaired else ''}"


def _shard(job: ImportJob) -> str:
    """Which shard of it a job is, if it is one."""
    return "" if job.shard is None else f", shard {job.shard}"


def balance(books: RecordBooks) -> str:
    """Whether they do."""
    if not books.difference:
        return "balanced"
    return (
        f"{books.difference:,} missing"
        if books.difference > 0
        else f"{-books.difference:,} too many"
    )


def outcome(manifest: ImportManifest) -> str:
    """The import in one line."""
    rate = manifest.events / max(1.0, manifest.seconds)
    words = f"{plural(manifest.events, 'event')} delivered in {duration(manifest.seconds)}"
    return f"{words} ({rate:,.{0 if rate >= 10 else 1}f}/s)" if rate >= 0.1 else words


def top(names: Mapping[str, int], most: int) -> list[tuple[str, int]]:
    """The most frequent names, and what is left together."""
    listed = list(names.items())
    rest = listed[most:]
    return [
        *listed[:most],
        *([(f"({len(rest):,} more names)", sum(count for _, count in rest))] if rest else []),
    ]


def by_count(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """The most frequent first."""
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def write_reports(imported: ImportManifest, folder: Path) -> None:
    """Write the manifest, too, instead of former ones. Raises
    `ConfigurationError` if that can't be.
    """
    manifest = msgspec.json.format(msgspec.json.encode(imported), indent=2)
    verified = _verification(imported, folder)
    for name, text in (
        (JSON, as_json(imported, verified) + b"\n"),
        (PAGE, html_page(imported, verified)),
        (MANIFEST, manifest + b"\n"),
    ):
        with atomic_file(folder / name, replace=True) as file:
            file.write(text)


def complete_reports(saved: ImportCheckpoint, folder: Path) -> ImportManifest:
    """The manifest of an import that is complete; it and the reports are made of the checkpoint,
    if they aren't there.

    Raises `ConfigurationError` if they can't be written.
    """
    with suppress(ConfigurationError):  # there is no manifest, or it can't be relied on
        manifest = read_manifest(folder / MANIFEST)
        if (
            manifest.complete
            and manifest.books == saved.books
            and all((folder / name).is_file() for name in (JSON, PAGE))
        ):
            return manifest
    made = manifest_of(saved)
    write_reports(made, folder)
    return made


def as_json(manifest: ImportManifest, verified: VerifiedImport | None = None) -> bytes:
    """For machines: what the text says. Files and days are in the manifest."""
    copied = (
        "job",
        "forwarder",
        "complete",
        "started",
        "ended",
        "events",
        "source_events",
        "first",
        "last",
        "names",
        "examples",
    )
    shown = [period._asdict() for period in periods(manifest.days)[1]]
    rest = {
        "seconds": manifest.seconds,
        "books": _books(manifest.books),
        "days": len(manifest.days),
        "periods": shown,
    }
    if verified is not None:
        rest["verified"] = verified
    return msgspec.json.encode({name: getattr(manifest, name) for name in copied} | rest)


def _books(books: RecordBooks) -> dict[str, Any]:
    return {**msgspec.to_builtins(books), "difference": books.difference}


def as_text(manifest: ImportManifest) -> RenderableType:
    """For a terminal, or a log."""
    books = manifest.books
    job = manifest.job
    head = Text(f"Import {job.id} ({plain(job.format)}, {plain(job.source)}{_shard(job)}): ")
    head.append(outcome(manifest), style="bold")
    head.append(
        ", complete" if manifest.complete else f", {UNFINISHED}",
        style="green" if manifest.complete else "yellow",
    )
    parts: list[RenderableType] = [
        head,
        Text(
            f"  events from {manifest.first} to {manifest.last}"
            if manifest.first
            else "  no events"
        ),
    ]
    balanced = Text(f"  {sentence(books)}: ")
    balanced.append(balance(books), style="bold red" if books.difference else "green")
    parts.append(balanced)
    examples = {
        why: f"{example[0].file}:{example[0].line} {example[0].detail}"
        f"{' (repaired)' if example[0].repaired else ''}"
        for why, example in manifest.examples.items()
        if example
    }
    for columns, rows in (
        (
            ("refused because", "records", "for example"),
            [(*counted, examples.get(counted[0], "")) for counted in by_count(books.refused)],
        ),
        (("left out by", "records"), list(books.left_out.items())),
        (("event", "events"), top(manifest.names, _TOP)),
    ):
        if rows:
            table = Table(box=None, pad_edge=True, header_style="dim")
            for place, name in enumerate(columns):
                table.add_column(name, justify="right" if place == 1 else "left")
            for row in rows:
                table.add_row(
                    *(f"{cell:,}" if isinstance(cell, int) else Text(plain(cell)) for cell in row)
                )
            parts += [Text(), table]
    return Group(*parts)


def html_page(manifest: ImportManifest, verified: VerifiedImport | None = None) -> bytes:
    """The page, in UTF-8."""
    job = manifest.job
    books = manifest.books
    left_out = by_count(manifest.books.left_out)
    span = (
        f"Events from {_day(manifest.first)} to {_day(manifest.last)}."
        if manifest.first and manifest.last
        else "No events."
    )
    tiles = [
        (books.read, "record read", "records read", ""),
        (manifest.events, "event delivered", "events delivered", ""),
        (
            sum(books.refused.values()),
            "record refused",
            "records refused",
            "warn" if books.unrepaired > 0 else "",
        ),
        *(
            [(books.repaired, "of these repaired since", "of these repaired since", "")]
            if books.repaired
            else []
        ),
        (sum(books.left_out.values()), "record left out", "records left out", ""),
        (books.repeats, "repeat", "repeats", ""),
    ]
    state = "good" if manifest.complete else "bad"
    table = _html_table("Left out", ("by", "records"), left_out)
    page = Template(_TEMPLATE.read_text()).substitute(
        id=escape(plain(job.id)),
        outcome=escape(outcome(manifest)),
        state=f'<span class="pill {state}">{"" if manifest.complete else "not "}complete</span>',
        format=_text(job.format),
        source=_text(job.source),
        span=span if manifest.complete else f"{span} It is {UNFINISHED}.",
        tiles="".join(_tile(*tile) for tile in tiles),
        sentence=sentence(books),
        mood="bad" if books.difference else "good",
        balance=balance(books),
        verified="" if verified is None else _verified(verified),
        chart=_chart(manifest),
        refused=_card("Refused", _refused(manifest)),
        left_out=_card("Left out", table) if left_out else "",
        names=_card("Delivered by name", _names(manifest.names)) if manifest.names else "",
        files=_card("Files", _files(manifest.files), "card files"),
        options=_card("The import", _options(manifest)),
    )
    return page.encode("utf-8", "replace")


def _verified(verified: VerifiedImport) -> str:
    state = "good" if verified.same else "bad"
    words = "<br>".join(_text(line) for line in verified.words)
    return (
        f'<p style="margin-top:10px"><span class="pill {state}">'
        f"{'verified' if verified.same else 'different'}</span> {_moment(verified.at)}, compared "
        f"with {_text(verified.against)}: {words}</p>"
    )


def _tile(count: int, one: str, many: str, mood: str) -> str:
    words = one if count == 1 else many
    return f'<div class="card {mood}"><dt>{words}</dt><dd>{count:,}</dd></div>'


class _Markup(str):
    """Text of a page that is escaped."""

    __slots__ = ()


def _text(value: str) -> _Markup:
    return _Markup(f"<bdi>{escape(plain(value))}</bdi>")


def _day(time: str) -> _Markup:
    """The day of a time in UTC; the exact one is its title."""
    return _moment(time, "%-d %b %Y")


def _moment(time: str, form: str = "%-d %b %Y, %H:%M:%S UTC") -> _Markup:
    exact = datetime.fromisoformat(time)
    return _Markup(
        f'<time datetime="{escape(time)}" title="{exact:%Y-%m-%d %H:%M:%S} '
        f'UTC">{exact.strftime(form)}</time>'
    )


def _card(title: str, body: str, kind: str = "card") -> str:
    return f'<section class="{kind}"><h2>{title}</h2>{body}</section>'


def _html_table(
    caption: str, head: Sequence[str], rows: Sequence[Sequence[str | int]], kind: str = ""
) -> str:
    """A table of figures, markup, and text, which is escaped. One of the kind `stacked` has a
    block a row in a narrow window.
    """
    columns = zip(head, rows[-1] if rows else head, strict=True)
    heads = "".join(
        '<th scope="col" role="columnheader"'
        f"{' class=n' if isinstance(cell, int) else ''}>{name}</th>"
        for name, cell in columns
    )
    body = "".join(f'<tr role="row">{"".join(map(_cell, head, row))}</tr>' for row in rows)
    return (
        f'<div class="wide" tabindex="0" role="group" aria-label="{caption}"><table role="table" '
        f'class="{kind}">'
        f'<thead role="rowgroup"><tr role="row">{heads}</tr></thead><tbody '
        f'role="rowgroup">{body}</tbody></table></div>'
    )


def _cell(head: str, value: str | int) -> str:
    if isinstance(value, int):
        return f'<td class=n role="cell" data-head="{head}">{value:,}</td>'
    return (
        '<td role="cell" '
        f'data-head="{head}">{value if isinstance(value, _Markup) else _text(value)}</td>'
    )


def _chart(manifest: ImportManifest) -> str:
    unit, shown = periods(manifest.days)
    if not shown:
        return _card("Events", '<p class="soft">None were delivered.</p>')
    most = max(max(period.source, period.delivered) for period in shown) or 1
    bars = "".join(_bar(place, period, most) for place, period in enumerate(shown))
    source = sum(period.source for period in shown)
    delivered = sum(period.delivered for period in shown)
    missing = sum(max(0, period.source - period.delivered) for period in shown)
    said = (
        f"Events per {unit}, from {shown[0].label} to {shown[-1].label}: {delivered:,} "
        f"delivered, {missing:,} not delivered."
    )
    figures = [(*period, period.source - period.delivered) for period in shown]
    table = _html_table(
        f"Events per {unit}", (unit, "source", "delivered", "not delivered"), figures
    )
    width = max(len(shown), _FEW)
    lines = "".join(
        f'<line class="grid" x1="0" x2="{width}" y1="{y}" y2="{y}" '
        'vector-effect="non-scaling-stroke"/>'
        for y in (0, 50)
    )
    key = (
        f'<span class="key"><i class="missing"></i>not delivered {missing:,}</span>'
        if missing
        else ""
    )
    last = f"<span>{shown[-1].label}</span>" if len(shown) > 1 else ""
    return f"""<section class="card">
<h2>Events per {unit}</h2>
<p class="soft">\
<span class="key"><i class="delivered"></i>delivered {delivered:,} of {source:,}</span>{key}</p>
<figure class="chart">
<div class="scale" aria-hidden="true"><span>{most:,}</span><span>0</span></div>
<svg viewBox="0 0 {width} {_HEIGHT}" preserveAspectRatio="none" role="img" \
aria-label="{said}">{lines}{bars}</svg>
<div class="ends" aria-hidden="true" \
style="width:{100 * len(shown) / width:.1f}%"><span>{shown[0].label}</span>{last}</div>
</figure>
<details><summary>As a table</summary>{table}</details>
</section>"""


def _bar(place: int, period: ReportPeriod, most: int) -> str:
    """What was delivered, and on top of it what is missing of the source."""
    delivered = period.delivered * _HEIGHT / most
    missing = max(0, period.source - period.delivered) * _HEIGHT / most
    x = place + (1 - _BAR) / 2
    width = _BAR
    rest = (
        (
            f'<rect class="missing" x="{x:.2f}" width="{width}" '
            f'y="{_HEIGHT - delivered - missing:.2f}" height="{missing:.2f}"/>'
        )
        if missing
        else ""
    )
    return (
        f"<g><title>{period.label}: {period.delivered:,} of {plural(period.source, 'event')} "
        "delivered</title>"
        f'<rect class="delivered" x="{x:.2f}" width="{width}" y="{_HEIGHT - delivered:.2f}" '
        f'height="{delivered:.2f}"/>{rest}</g>'
    )


_REPAIRED: Final = ' <span class="pill good">repaired</span>'


def _refused(manifest: ImportManifest) -> str:
    rows = []
    for reason, count in by_count(manifest.books.refused):
        places = (
            (
                _text(f"{example.file}:{example.line}"),
                _Markup(f"{_text(example.detail)}{_REPAIRED if example.repaired else ''}"),
            )
            for example in manifest.examples.get(reason, [])
        )
        rows.append(
            (
                reason,
                count,
                _Markup(
                    "<br>".join(
                        f'<span class="mono">{place}</span> {detail}' for place, detail in places
                    )
                ),
            )
        )
    return (
        _html_table("Refused", ("reason", "records", "for example"), rows, "stacked reasons")
        if rows
        else '<p class="soft">None.</p>'
    )


def _names(names: Mapping[str, int]) -> str:
    """Each name with its count, and below it a bar as long as its share of the most frequent; the
    rest together has none.
    """
    most = max(names.values())
    rest = len(names) > NAMES
    rows = []
    for place, (name, count) in enumerate(top(names, NAMES)):
        share = 0.0 if rest and place == NAMES else 100 * count / most
        bar = f'<i class="bar" style="width:{share:.1f}%"></i>' if share else ""
        rows.append((_Markup(f"{_text(name)}{bar}"), count))
    return _html_table("Delivered by name", ("event", "events"), rows, "named")


def _files(files: Sequence[FileManifest]) -> str:
    rows = []
    for file in files[:FILES]:
        books = file.books
        counts = (
            books.read,
            books.delivered,
            sum(books.refused.values()),
            sum(books.left_out.values()),
            books.repeats,
        )
        rows.append((file.name, *counts, _Markup("yes" if file.complete else "no")))
    more = (
        f'<p class="soft">And {len(files) - FILES:,} more: the manifest has all.</p>'
        if len(files) > FILES
        else ""
    )
    return (
        _html_table(
            "Files",
            ("file", "read", "delivered", "refused", "left out", "repeats", "complete"),
            rows,
            "stacked files",
        )
        + more
    )


def _options(manifest: ImportManifest) -> str:
    job = manifest.job
    options = {f"--{name}": _text(value) for name, value in sorted(manifest.job.options.items())}
    known = {
        "job": _text(job.id),
        "started": _moment(manifest.started),
        "ended": _moment(manifest.ended),
    }
    shard = (
        {}
        if job.shard is None
        else {"--shard": _text(f"{job.shard}, of {plural(job.shard.files, 'file')}")}
    )
    rows = {**known, "forwarder": _text(manifest.forwarder), **shard, **options}.items()
    body = "".join(
        f"<tr><th scope=row>{escape(plain(name))}</th>"
        f'<td><span class="mono">{value}</span></td></tr>'
        for name, value in rows
    )
    return f"<table><tbody>{body}</tbody></table>"


class ImportStatus(Struct, frozen=True):
    """The progress of an import, from its last checkpoint."""

    folder: Path
    checkpoint: ImportCheckpoint | None
    """None: nothing is settled yet."""
    running: bool
    """Whether a process has the folder now."""
    counted: int | None = None
    """Records that the preflight counted; None: not known."""

    def words(self, now: float) -> Iterator[str]:
        """A line with what it is, and some with how it is."""
        saved = self.checkpoint
        if saved is None:
            yield (
                f"{plain(self.folder.name)}: "
                f"{'running, nothing is settled yet' if self.running else UNFINISHED}"
            )
            yield f"  in {plain(str(self.folder))}"
            return
        made = manifest_of(saved)
        if self.running:
            state = "running"
        elif made.complete:
            state = "complete"
        else:
            state = UNFINISHED
        yield f"{plain(made.job.format)} {plain(made.job.source)}{_shard(made.job)}: {state}"
        yield f"  import {made.job.id}, in {plain(str(self.folder))}"
        written = (
            f"last checkpoint {to_second(saved.written_at)}, {duration(now - saved.written_at)} ago"
        )
        if self.running and saved.waiting:
            yield f"  waiting: {plain(saved.waiting)}"
        yield f"  started {to_second(saved.started_at)}, {written}"
        yield f"  {sentence(made.books)}: {balance(made.books)}"
        if self.counted and not made.complete:
            yield (
                f"  {made.books.read / self.counted:.0%} of the {self.counted:,} records that "
                "were counted before it began"
            )
        span = f", of {made.first} to {made.last}" if made.first else ""
        done, known, all_known = file_progress(saved)
        more = "" if all_known or not known else ", as far as they are known"
        yield (
            f"  {plural(made.events, 'event')} delivered{span}; {done:,} of "
            f"{plural(known, 'file')} done{more}"
        )

    def plain(self) -> dict[str, Any]:
        """For machines."""
        saved = self.checkpoint
        if saved is None:
            return {
                "folder": str(self.folder),
                "job": None,
                "running": self.running,
                "complete": False,
            }
        made = manifest_of(saved)
        return {
            "folder": str(self.folder),
            "job": made.job,
            "running": self.running,
            "waiting": saved.waiting if self.running else "",
            "complete": made.complete,
            "started": to_second(saved.started_at),
            "written": to_second(saved.written_at),
            "counted": self.counted,
            "books": _books(made.books),
            "events": made.events,
            "first": made.first,
            "last": made.last,
            "files": dict(zip(("done", "known", "all_known"), file_progress(saved), strict=True)),
        }


def file_progress(checkpoint: ImportCheckpoint) -> tuple[int, int, bool]:
    """How many files are settled to their end, of how many, members of archives one by one; and
    whether none is still to be found.

    What is in an archive is known once it is read; until then the archive counts as one:
    `a.zip!b.json` is in `a.zip`.
    """
    begun = {
        name[:end]
        for name in (f"{file.name}!" for file in checkpoint.files)
        for end in range(len(name))
        if name[end] == "!"
    }
    waiting = sum(content.name not in begun for content in checkpoint.contents)
    return (
        sum(file.complete for file in checkpoint.files),
        len(checkpoint.files) + waiting,
        checkpoint.exhausted,
    )


def to_second(moment: float) -> str:
    """A time in seconds since 1970, as it is said of checkpoints."""
    return utc_text(int(moment), "seconds")
