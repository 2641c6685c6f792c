"""The report of an import as one HTML page that can be sent around: nothing is loaded, nothing runs, and everything from outside is text.

Invariants: the page names no host and has no script (its own policy forbids both); each value is escaped where it is put in, and names
from outside stand in `bdi`, so that their direction of writing ends with them; the same manifest gives the same page.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Final

from forwarder.sources.imports.manifest import FileManifest, ImportManifest
from forwarder.sources.imports.report import UNFINISHED, ReportPeriod, balance, by_count, outcome, periods, plain, sentence, top
from forwarder.sources.imports.report_style import STYLE
from forwarder.sources.imports.tallies import RefusalExample

NAMES: Final = 50
FILES: Final = 200
_HEIGHT: Final = 100


def page(manifest: ImportManifest) -> bytes:
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
        **({"of these mended since": books.mended} if books.mended else {}),
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
<details><summary>As a table</summary>{_table((unit, "source", "delivered", "not delivered"), (_cells(row) for row in rows))}</details>
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
    body = _table(("reason", "records", "for example"), rows) if rows else '<p class="soft">None.</p>'
    return f'<section class="card"><h2>Refused</h2>{body}</section>'


def _places(examples: Iterable[RefusalExample]) -> str:
    return "<br>".join(f'<span class="mono">{_text(f"{each.file}:{each.line}")}</span> {_text(each.detail)}' for each in examples)


def _left_out(manifest: ImportManifest) -> str:
    counts = by_count(manifest.books.left_out)
    if not counts:
        return ""
    return f'<section class="card"><h2>Left out</h2>{_table(("by", "records"), (_cells(each) for each in counts))}</section>'


def _names(names: Mapping[str, int]) -> str:
    if not names:
        return ""
    most = max(names.values())
    rows = [
        (_text(name), f"{count:,}", f'<i class="delivered" style="width:{min(100.0, 100 * count / most):.1f}%"></i>')
        for name, count in top(names, NAMES)
    ]
    return f'<section class="card"><h2>Delivered by name</h2>{_table(("event", "events", ""), rows)}</section>'


def _files(files: Sequence[FileManifest]) -> str:
    rows = []
    for file in files[:FILES]:
        books = file.books
        counts = (books.read, books.delivered, sum(books.refused.values()), sum(books.left_out.values()), books.repeats)
        rows.append((_text(file.name), *(f"{count:,}" for count in counts), "yes" if file.complete else "no"))
    more = f'<p class="soft">And {len(files) - FILES:,} more: the manifest has all.</p>' if len(files) > FILES else ""
    head = ("file", "read", "delivered", "refused", "left out", "repeats", "complete")
    return f'<section class="card files"><h2>Files</h2>{_table(head, rows)}{more}</section>'


def _options(manifest: ImportManifest) -> str:
    known = {"job": manifest.job.id, "started": manifest.started, "ended": manifest.ended, "forwarder": manifest.forwarder}
    options = {f"--{name}": value for name, value in sorted(manifest.job.options.items())}
    rows = [(escape(plain(name)), f'<span class="mono">{_text(value)}</span>') for name, value in {**known, **options}.items()]
    body = "".join(f"<tr><th scope=row>{name}</th><td>{value}</td></tr>" for name, value in rows)
    return f'<section class="card"><h2>The import</h2><div class="wide"><table><tbody>{body}</tbody></table></div></section>'


def _cells(row: Sequence[str | int]) -> Sequence[str]:
    return [f"{each:,}" if isinstance(each, int) else _text(each) for each in row]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
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
