"""The keys in docs/reference/configuration.md and docs/reference/configuration-sources.md, made
from the settings: a heading for each section and each key.

.venv/bin/python -m tests.support.configuration_pages      writes them into the pages again
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

from forwarder.config.display import inline
from forwarder.config.keys import FIRST, Key, dotted, keys, sections, variable
from forwarder.config.keys import Path as KeyPath
from forwarder.config.rule_settings import MatchSettings
from forwarder.config.section import Kind, Members, Optional, Section, Words
from forwarder.config.source_settings import MappingSettings
from forwarder.config.values import Count, Duration, Size
from tests.support.documents import page

FILES: Final = (page("configuration"), page("configuration-sources"))
SHARED: Final[dict[type[Section], str]] = {MappingSettings: "mapping", MatchSettings: "match"}
"""Sections that are in several places, and the heading below which their keys stand once."""
MARK: Final = "<!-- keys -->\n"
"""Stands between what is written by hand about a section and its keys."""
_NOTHING: Final[tuple[Any, ...]] = (None, "", [], {})
"""Defaults that say nothing."""
_MARKED: Final = re.compile(
    rf"^(## `([a-z_.]+)`\n(?:(?!## ).*\n)*?{MARK})(?:(?!## ).*\n)*", re.MULTILINE
)


@cache
def tops() -> dict[str, Path]:
    """The headings of sections, and the page that each is in."""
    return {match[2]: file for file in FILES for match in _MARKED.finditer(file.read_text("utf-8"))}


def entries() -> Iterator[KeyPath]:
    """All sections and keys, as a file has them."""
    seen = set[KeyPath]()
    for path in keys():
        for length in range(1, len(path) + 1):
            around = path[:length]
            if around not in seen and (around in sections() or around in keys()):
                yield around
            seen.add(around)


def documented(path: KeyPath) -> str:
    """The name by which a key or section has its heading: its own, or that in the section where
    it stands once for several places.
    """
    for length in range(1, len(path) + 1):
        shared = SHARED.get(sections().get(path[:length], Section))
        if shared:
            return dotted((shared, *path[length:]))
    if path[:2] == ("upstreams", FIRST) and ("upstream", *path[2:]) in keys():
        return dotted(("upstream", *path[2:]))
    return dotted(path)


def below(top: str, file: Path) -> str:
    """What the settings say of a section and its keys, as Markdown."""
    first = list[str]()
    others = dict[str, str]()
    for path in entries():
        own, name = dotted(path), documented(path)
        section = sections().get(path)
        if section in SHARED and _is_below(own, top):
            others[own] = f"`{variable(path)}__…`. {_link(name, file)} has its keys."
        if not _is_below(name, top):
            continue
        text = _about(section) if section else _describe(keys()[path], is_shared=own != name)
        if name not in {top, f"{top}[{FIRST}]"}:
            others.setdefault(name, text)
        elif text not in first:
            first.append(text)
    return "\n".join(
        [
            *(f"{text}\n" for text in first),
            *(f"### `{name}`\n{text}\n" for name, text in others.items()),
        ]
    )


def _is_below(name: str, top: str) -> bool:
    """Whether this is the nearest heading of a section above a key."""
    around = [section for section in tops() if re.match(rf"{re.escape(section)}(?:[.\[]|$)", name)]
    return bool(around) and max(around, key=len) == top


def _link(name: str, file: Path) -> str:
    other = tops()[name]
    return f"[`{name}`]({'' if other == file else other.name}#{name})"


def _about(section: type[Section]) -> str:
    return " ".join((inspect.getdoc(section) or "").split())


def _describe(key: Key, *, is_shared: bool) -> str:
    """Meaning; then variable, values and default."""
    names = [] if is_shared and key.path[0] != "upstreams" else [f"`{key.variable}`"]
    values = _values(key.field.kind)
    default = [] if key.default in _NOTHING else [f"default `{inline(key.default)}`"]
    facts = ", ".join([*names, *([values] if values else []), *default])
    return f"{key.description}\n\n{facts}" if facts else key.description


def _values(kind: Kind) -> str:
    """The values that are allowed, where they can be listed or have bounds."""
    match kind:
        case Optional(inner=inner):
            return _values(inner)
        case Words(words=words):
            return _either(words)
        case Members(members=members):
            return _either([str(member.value) for member in members])
        case Duration(minimum=minimum, maximum=maximum, never=never):
            return f"{minimum} to {maximum}" + (" or `never`" if never else "")
        case Size(minimum=minimum, maximum=maximum):
            return f"{minimum} to {maximum}"
        case Count(minimum=minimum, maximum=maximum, words=words):
            return " or ".join([*(f"`{word}`" for word in words), f"{minimum} to {maximum}"])
    return ""


def _either(words: tuple[str, ...] | list[str]) -> str:
    *others, last = [f"`{word}`" for word in words]
    return f"{', '.join(others)} or {last}"


def current(file: Path) -> str:
    """The page as it should be."""
    return (
        _MARKED.sub(
            lambda match: f"{match[1]}\n{below(match[2], file)}\n", file.read_text("utf-8")
        ).rstrip()
        + "\n"
    )


if __name__ == "__main__":
    for document in FILES:
        document.write_text(current(document), "utf-8")
