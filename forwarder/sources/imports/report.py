"""The report of an import: text for a terminal, JSON for machines, and an HTML page; written to the state folder when a run ends.

A run that is killed after its last checkpoint leaves no report, or that of the run before; `complete_reports` derives it from the
checkpoint, which holds everything that a report says.

Invariants: everything comes from the manifest, and the same manifest gives the same page. Text from outside (names of events and files, the
service's words) is shown as text: each value of the page is escaped where it is inserted and stands in `bdi`, so its direction of writing
ends with it. The page loads nothing and has no script; its own policy forbids both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from forwarder import __version__
from forwarder.core.errors import ConfigurationError
from forwarder.sources.imports import manifest as manifests
from forwarder.sources.imports.books import RecordBooks, RefusalExample
from forwarder.sources.imports.checkpoint import ImportCheckpoint
from forwarder.sources.imports.manifest import (
    UNFINISHED,
    FileManifest,
    ImportManifest,
    ReportPeriod,
    balance,
    by_count,
    manifest_of,
    outcome,
    periods,
    plain,
    seconds,
    sentence,
    top,
)
from forwarder.storage.private import atomic_file

_TOP: Final = 10
NAMES: Final = 50
FILES: Final = 200
_HEIGHT: Final = 100
STYLE: Final = """
:root { color-scheme: light dark; --ground: #f4f6f9; --surface: #fff; --line: #dde3ea; --text: #17202b; --soft: #566273;
  --accent: #1f5fd0; --source: #a9c3ee; --good: #136c34; --good-soft: #e3f4e8; --bad: #b3201a; --bad-soft: #fdebe9; }
@media (prefers-color-scheme: dark) { :root { --ground: #0e1217; --surface: #161c24; --line: #2a3440; --text: #e7ecf2; --soft: #a0adbc;
  --accent: #7fb0ff; --source: #38527d; --good: #74d493; --good-soft: #15301f; --bad: #ff958c; --bad-soft: #3a1b1a; } }
* { box-sizing: border-box; }
html { text-size-adjust: 100%; }
body { margin: 0; background: var(--ground); color: var(--text);
  font: 14px/1.5 "Segoe UI", "Helvetica Neue", Arial, system-ui, sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 24px 20px 48px; display: grid; gap: 16px; grid-template-columns: minmax(0, 1fr); }
h1, h2, p, dl, dd, figure { margin: 0; }
h1 { font-size: 22px; line-height: 1.25; letter-spacing: -.01em; }
h2 { font-size: 15px; margin-bottom: 10px; }
.soft { color: var(--soft); }
.card { background: var(--surface); border: 1px solid var(--line); border-radius: 10px; padding: 16px 18px; min-width: 0; }
.mono { font: 12.5px/1.5 ui-monospace, "SF Mono", Menlo, Consolas, "Liberation Mono", monospace; overflow-wrap: anywhere; }
.tiles { display: grid; gap: 10px; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); }
.tiles div { display: flex; flex-direction: column-reverse; justify-content: flex-end; padding: 10px 14px; }
.tiles dt { color: var(--soft); font-size: 12px; }
.tiles dd { font-size: 22px; font-weight: 650; font-variant-numeric: tabular-nums; line-height: 1.3; }
.pill { display: inline-block; padding: 1px 10px; border-radius: 99px; font-size: 12px; font-weight: 600; white-space: nowrap; }
.good { color: var(--good); background: var(--good-soft); }
.bad { color: var(--bad); background: var(--bad-soft); }
.chart { display: grid; grid-template-columns: auto minmax(0, 1fr); gap: 0 8px; color: var(--soft); font-size: 12px; }
.chart svg { display: block; width: 100%; height: 220px; border-bottom: 1px solid var(--line); }
.scale { display: flex; flex-direction: column; justify-content: space-between; text-align: right; font-variant-numeric: tabular-nums;
  line-height: 1; }
.ends { grid-column: 2; display: flex; justify-content: space-between; gap: 12px; padding-top: 4px; }
.key { display: inline-flex; align-items: center; gap: 6px; margin-right: 14px; }
.key i { width: 12px; height: 12px; border-radius: 3px; }
.source { fill: var(--source); background: var(--source); }
.delivered { fill: var(--accent); background: var(--accent); }
.grid { stroke: var(--line); }
.wide { overflow-x: auto; }
table { width: 100%; border-collapse: collapse; font-size: 13px; }
th, td { text-align: left; vertical-align: top; padding: 5px 12px 5px 0; border-bottom: 1px solid var(--line); overflow-wrap: anywhere; }
th { color: var(--soft); font-weight: 500; white-space: nowrap; }
tbody tr:last-child > * { border-bottom: 0; }
td:first-child { min-width: 8em; }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.bar { min-width: 60px; width: 24%; }
.bar i { display: block; height: 8px; margin-top: 6px; border-radius: 2px; }
.pair { display: grid; gap: 16px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr)); }
.stack { display: grid; gap: 16px; align-content: start; grid-template-columns: minmax(0, 1fr); }
.files table { min-width: 620px; }
summary { cursor: pointer; color: var(--accent); margin-top: 10px; }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
@media (max-width: 560px) { main { padding: 14px 12px 32px; } .card { padding: 13px 13px; } .chart svg { height: 150px; }
  th, td { padding-right: 8px; } .bar { display: none; } }
@media print { body { background: none; } .card { break-inside: avoid; } }
"""
JSON: Final = "report.json"
PAGE: Final = "report.html"


def as_json(manifest: ImportManifest) -> bytes:
    """For machines: what the text says. Files and days are in the manifest."""
    copied = ("job", "forwarder", "complete", "started", "ended", "events", "source_events", "first", "last", "names", "examples")
    _, shown = periods(manifest.days)
    books = {**msgspec.structs.asdict(manifest.books), "difference": manifest.books.difference}
    rest = {"seconds": seconds(manifest), "books": books, "days": len(manifest.days), "periods": [each._asdict() for each in shown]}
    return msgspec.json.encode({**{name: getattr(manifest, name) for name in copied}, **rest})


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


def _table(what: str, unit: str, *more: str) -> Table:
    table = Table(box=None, pad_edge=True, header_style="dim")
    table.add_column(what)
    table.add_column(unit, justify="right")
    for name in more:
        table.add_column(name)
    return table


def html_page(manifest: ImportManifest) -> bytes:
    """The page, in UTF-8."""
    unit, shown = periods(manifest.days)
    parts = [
        _head(manifest),
        _tiles(manifest),
        _chart(unit, shown),
        f'<div class="pair"><div class="stack">{_refusals(manifest)}{_left_out(manifest)}</div>{_names(manifest.names)}</div>',
        _files(manifest.files),
        _options(manifest),
    ]
    policy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>Import {escape(plain(manifest.job.id))}</title>
<style>{STYLE}</style>
</head>
<body>
<main>
{"".join(parts)}
</main>
</body>
</html>
""".encode("utf-8", "replace")


def _text(value: str) -> str:
    return f"<bdi>{escape(plain(value))}</bdi>"


def _head(manifest: ImportManifest) -> str:
    job = manifest.job
    span = f"Events from {escape(manifest.first or '')} to {escape(manifest.last or '')}." if manifest.first else "No events."
    pill = '<span class="pill good">complete</span>' if manifest.complete else '<span class="pill bad">not complete</span>'
    return f"""<header>
<h1>{escape(outcome(manifest))} {pill}</h1>
<p class="soft">{_text(job.format)} from {_text(job.source)}. {span}{"" if manifest.complete else f" It is {UNFINISHED}."}</p>
</header>"""


def _tiles(manifest: ImportManifest) -> str:
    books = manifest.books
    figures = {
        "records read": books.read,
        "events delivered": manifest.events,
        "records refused": sum(books.refused.values()),
        **({"of these repaired since": books.mended} if books.mended else {}),
        "records left out": sum(books.left_out.values()),
        "repeats": books.repeats,
    }
    tiles = "".join(f'<div class="card"><dt>{name}</dt><dd>{count:,}</dd></div>' for name, count in figures.items())
    mood = "bad" if books.difference else "good"
    return f"""<section aria-label="Books">
<dl class="tiles">{tiles}</dl>
<p style="margin-top:10px">{sentence(books)} <span class="pill {mood}">{balance(books)}</span></p>
</section>"""


def _chart(unit: str, shown: Sequence[ReportPeriod]) -> str:
    if not shown:
        return '<section class="card"><h2>Events</h2><p class="soft">None were delivered.</p></section>'
    most = max(max(each.source, each.delivered) for each in shown) or 1
    bars = "".join(_bar(place, each, most) for place, each in enumerate(shown))
    source, delivered = sum(each.source for each in shown), sum(each.delivered for each in shown)
    said = f"Events per {unit}, from {shown[0].label} to {shown[-1].label}: the source has {source:,}, {delivered:,} were delivered."
    rows = [(each.label, each.source, each.delivered, each.source - each.delivered) for each in shown]
    lines = "".join(f'<line class="grid" x1="0" x2="{len(shown)}" y1="{y}" y2="{y}" vector-effect="non-scaling-stroke"/>' for y in (0, 50))
    return f"""<section class="card">
<h2>Events per {unit}, source against delivered</h2>
<p class="soft"><span class="key"><i class="source"></i>source {source:,}</span>
<span class="key"><i class="delivered"></i>delivered {delivered:,}</span></p>
<figure class="chart" style="margin-top:12px">
<div class="scale" aria-hidden="true"><span>{most:,}</span><span>0</span></div>
<svg viewBox="0 0 {len(shown)} {_HEIGHT}" preserveAspectRatio="none" role="img" aria-label="{said}">{lines}{bars}</svg>
<div class="ends" aria-hidden="true"><span>{shown[0].label}</span><span>{shown[-1].label if len(shown) > 1 else ""}</span></div>
</figure>
<details><summary>As a table</summary>{_html_table((unit, "source", "delivered", "not delivered"), (_cells(row) for row in rows))}</details>
</section>"""


def _bar(place: int, each: ReportPeriod, most: int) -> str:
    """What the source has, and on it, narrower, what was delivered: where all was, both end at the same height."""
    source, delivered = each.source * _HEIGHT / most, each.delivered * _HEIGHT / most
    return (
        f"<g><title>{each.label}: source {each.source:,}, delivered {each.delivered:,}</title>"
        f'<rect class="source" x="{place + 0.06:.2f}" width="0.88" y="{_HEIGHT - source:.2f}" height="{source:.2f}"/>'
        f'<rect class="delivered" x="{place + 0.22:.2f}" width="0.56" y="{_HEIGHT - delivered:.2f}" height="{delivered:.2f}"/></g>'
    )


def _refusals(manifest: ImportManifest) -> str:
    rows = [(_text(reason), f"{count:,}", _places(manifest.examples.get(reason, []))) for reason, count in by_count(manifest.books.refused)]
    body = _html_table(("reason", "records", "for example"), rows) if rows else '<p class="soft">None.</p>'
    return f'<section class="card"><h2>Refused</h2>{body}</section>'


def _places(examples: Iterable[RefusalExample]) -> str:
    return "<br>".join(f'<span class="mono">{_text(f"{each.file}:{each.line}")}</span> {_text(each.detail)}' for each in examples)


def _left_out(manifest: ImportManifest) -> str:
    counts = by_count(manifest.books.left_out)
    if not counts:
        return ""
    return f'<section class="card"><h2>Left out</h2>{_html_table(("by", "records"), (_cells(each) for each in counts))}</section>'


def _names(names: Mapping[str, int]) -> str:
    if not names:
        return ""
    most = max(names.values())
    rows = [
        (_text(name), f"{count:,}", f'<i class="delivered" style="width:{min(100.0, 100 * count / most):.1f}%"></i>')
        for name, count in top(names, NAMES)
    ]
    return f'<section class="card"><h2>Delivered by name</h2>{_html_table(("event", "events", ""), rows)}</section>'


def _files(files: Sequence[FileManifest]) -> str:
    rows = []
    for file in files[:FILES]:
        books = file.books
        counts = (books.read, books.delivered, sum(books.refused.values()), sum(books.left_out.values()), books.repeats)
        rows.append((_text(file.name), *(f"{count:,}" for count in counts), "yes" if file.complete else "no"))
    more = f'<p class="soft">And {len(files) - FILES:,} more: the manifest has all.</p>' if len(files) > FILES else ""
    head = ("file", "read", "delivered", "refused", "left out", "repeats", "complete")
    return f'<section class="card files"><h2>Files</h2>{_html_table(head, rows)}{more}</section>'


def _options(manifest: ImportManifest) -> str:
    known = {"job": manifest.job.id, "started": manifest.started, "ended": manifest.ended, "forwarder": manifest.forwarder}
    options = {f"--{name}": value for name, value in sorted(manifest.job.options.items())}
    rows = [(escape(plain(name)), f'<span class="mono">{_text(value)}</span>') for name, value in {**known, **options}.items()]
    body = "".join(f"<tr><th scope=row>{name}</th><td>{value}</td></tr>" for name, value in rows)
    return f'<section class="card"><h2>The import</h2><div class="wide"><table><tbody>{body}</tbody></table></div></section>'


def _cells(row: Sequence[str | int]) -> Sequence[str]:
    return [f"{each:,}" if isinstance(each, int) else _text(each) for each in row]


def _html_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of escaped cells; columns of figures are those whose cells are."""
    made = []
    numbers = [False] * len(head)
    for row in rows:
        numbers = [cell.replace(",", "").isdigit() for cell in row]
        made.append("".join(_cell(cell) for cell in row))
    columns = zip(head, numbers, strict=True)
    heads = "".join(f'<th scope="col"{" class=n" if number else ""}>{escape(name)}</th>' for name, number in columns)
    body = "".join(f"<tr>{row}</tr>" for row in made)
    return f'<div class="wide" tabindex="0"><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(cell: str) -> str:
    if cell.startswith('<i class="delivered"'):
        return f'<td class="bar">{cell}</td>'
    return f"<td{' class=n' if cell.replace(',', '').isdigit() else ''}>{cell}</td>"


def write_reports(found: ImportManifest, folder: Path) -> None:
    """Write all of them, instead of former ones. Raises `ConfigurationError` if that can't be."""
    for name, text in ((JSON, as_json(found) + b"\n"), (PAGE, html_page(found))):
        with atomic_file(folder / name, replace=True) as file:
            file.write(text)
    manifests.write(found, folder / manifests.FILE)


def complete_reports(saved: ImportCheckpoint, folder: Path) -> ImportManifest:
    """The manifest of an import that is complete; it and the reports are made of the checkpoint, if they aren't there.

    Raises `ConfigurationError` if they can't be written.
    """
    kept = _kept(folder)
    if kept is not None and kept.complete and kept.books == saved.books:
        return kept
    made = manifest_of(saved, __version__, saved.written_at)
    write_reports(made, folder)
    return made


def _kept(folder: Path) -> ImportManifest | None:
    """The manifest in the folder; None if it can't be relied on, or the files beside it aren't there."""
    if not all((folder / name).is_file() for name in (JSON, PAGE)):
        return None
    try:
        return manifests.read(folder / manifests.FILE)
    except ConfigurationError:
        return None
