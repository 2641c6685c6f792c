"""Building blocks of the status page. They escape plain text; values that are markup already have
the type `Markup`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import NewType

from forwarder.telemetry.attention import HealthState
from forwarder.telemetry.readable import relative

Markup = NewType("Markup", str)


def text(words: object) -> Markup:
    """Words as they are, whatever is in them."""
    return Markup(escape(str(words)))


def code(words: str, title: str = "") -> Markup:
    """A name, an address, a key, with more about it on hover."""
    more = f' title="{escape(title)}"' if title else ""
    return Markup(f"<code{more}>{escape(words)}</code>")


def pill(condition: HealthState) -> Markup:
    """A state in a word."""
    return Markup(f'<span class="pill {condition.severity}">{escape(condition.word)}</span>')


def moment(at: float, now: float, words: str = "") -> Markup:
    """A time in seconds since 1970 as it is seen from now, or in `words`;
    the exact one is its title.
    """
    exact = datetime.fromtimestamp(at, UTC)
    ticks = "" if words else " data-ago"
    shown = escape(words or relative(at, now))
    return Markup(
        f'<time datetime="{exact:%Y-%m-%dT%H:%M:%SZ}" title="{exact:%Y-%m-%d %H:%M:%S} '
        f'UTC"{ticks}>{shown}</time>'
    )


def counted(count: int, what: str, of: str) -> Markup:
    """A figure that only grows, with room for its rate: `what` is counted, `of` a lane
    or of all.
    """
    return Markup(
        f'<span class="counted" data-count="{count}" '
        f'data-of="{escape(f"{what} {of}")}">{count:,}</span>'
    )


def breakdown(counts: Mapping[str, int]) -> Markup:
    """Figures by name, those that aren't 0."""
    parts = [
        f"<li><span>{escape(name)}</span> {count:,}</li>" for name, count in counts.items() if count
    ]
    return Markup(f'<ul class="breakdown">{"".join(parts)}</ul>' if parts else "")


def section(name: str, title: str, body: str, kind: str = "card") -> Markup:
    """A part of the page under a heading; `name` is what the script knows it by."""
    return Markup(
        f'<section class="{kind}" data-part="{escape(name)}" '
        f'aria-labelledby="{escape(name)}-title">'
        f'<h2 id="{escape(name)}-title">{escape(title)}</h2>{body}</section>'
    )


def table(
    heads: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]], caption: str, kind: str = ""
) -> Markup:
    """A table; each row is a class and its cells, all markup already. The first cell names the row.

    With the kind `stacked`, each row is a block of its own in a narrow window, with the heads
    beside its figures. Such a table has roles, because a browser takes what isn't laid out as a
    table for none.
    """
    head = "".join(f'<th scope="col" role="columnheader">{escape(name)}</th>' for name in heads)
    body = "".join(_row(severity, heads, cells) for severity, cells in rows)
    if not body:
        return Markup('<p class="soft">None yet.</p>')
    return Markup(
        f'<div class="across" tabindex="0" role="group" aria-label="{escape(caption)}"><table '
        f'role="table" class="{kind}">'
        f'<thead role="rowgroup"><tr role="row">{head}</tr></thead><tbody '
        f'role="rowgroup">{body}</tbody></table></div>'
    )


def _row(severity: str, heads: Sequence[str], cells: Sequence[str]) -> str:
    rest = "".join(_cell(head, cell) for head, cell in zip(heads[1:], cells[1:], strict=True))
    return (
        f'<tr role="row" class="{severity}"><th scope="row" '
        f'role="rowheader">{cells[0]}</th>{rest}</tr>'
    )


def _cell(head: str, cell: str) -> str:
    return f'<td role="cell" data-head="{escape(head)}">{cell}</td>'
