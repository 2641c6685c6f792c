"""Building blocks of the status page. They escape plain text; values that are markup already have the type `Markup`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import NewType

Markup = NewType("Markup", str)


def text(words: object) -> Markup:
    """Words as they are, whatever is in them."""
    return Markup(escape(str(words)))


def code(words: str) -> Markup:
    """A name, an address, a key."""
    return Markup(f"<code>{escape(words)}</code>")


def pill(word: str, mood: str = "") -> Markup:
    """A state in a word; `mood`: good, warn, bad, or none."""
    return Markup(f'<span class="pill {mood}">{escape(word)}</span>')


def counted(count: int, what: str, of: str) -> Markup:
    """A figure that only grows, with room for its rate: `what` is counted, `of` a lane or of all."""
    return Markup(f'<span class="counted" data-count="{count}" data-of="{escape(f"{what} {of}")}">{count:,}</span>')


def breakdown(counts: Mapping[str, int]) -> Markup:
    """Figures by name, those that aren't 0."""
    parts = [f"<li><span>{escape(name)}</span> {count:,}</li>" for name, count in counts.items() if count]
    return Markup(f'<ul class="breakdown">{"".join(parts)}</ul>' if parts else "")


def section(name: str, title: str, body: str, kind: str = "card") -> Markup:
    """A part of the page under a heading; `name` is what the script knows it by."""
    return Markup(
        f'<section class="{kind}" data-part="{escape(name)}" aria-labelledby="{escape(name)}-title">'
        f'<h2 id="{escape(name)}-title">{escape(title)}</h2>{body}</section>'
    )


def table(heads: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]], caption: str) -> Markup:
    """A table; each row is a class and its cells, all markup already. The first cell names the row."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in heads)
    body = "".join(_row(kind, cells) for kind, cells in rows)
    if not body:
        return Markup('<p class="soft">None yet.</p>')
    return Markup(
        f'<div class="across" tabindex="0" role="region" aria-label="{escape(caption)}"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _row(kind: str, cells: Sequence[str]) -> str:
    first, *rest = cells
    return f'<tr class="{kind}"><th scope="row">{first}</th>' + "".join(f"<td>{cell}</td>" for cell in rest) + "</tr>"
