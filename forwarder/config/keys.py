"""The table of keys: every setting's dotted name, environment variable, default and meaning, read
from the settings themselves.

A list of sections stands in it as a key (the whole list), and as the section and the keys of its
first item: what holds for item 0 holds for each. A path of any other item leads to the table by
`in_table`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, TypeAlias

from forwarder.config.section import Items, Kind, Nested, Section, SectionKey, descriptions, keys_of
from forwarder.config.settings import Settings
from forwarder.config.values import Named

PREFIX: Final = "FORWARDER_"
SEPARATOR: Final = "__"
FIRST: Final = "0"
"""The item that stands for all items in the table."""

Path: TypeAlias = tuple[str, ...]
"""A key or section as its parts: `("sources", "http", "listen")`,
`("sources", "kafka", "0", "name")`.
"""

_NUMBER: Final = re.compile(r"0|[1-9]\d{0,3}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Key:
    """One setting. A secret is never shown whole (its field is left out of the settings' own text
    too).
    """

    path: Path
    section: type[Section]
    field: SectionKey
    default: Any
    """What JSON can say of it: sizes and times as text, None where there is none."""

    @property
    def description(self) -> str:
        """What it means."""
        return descriptions(self.section).get(self.field.attribute, "")

    @property
    def secret(self) -> bool:
        """Whether it is never shown whole."""
        return self.field.secret

    @property
    def named(self) -> bool:
        """Whether its value may be a mapping of names that the user chooses."""
        return isinstance(self.field.kind, Named)

    @property
    def name(self) -> str:
        """As in documents and messages: `sources.http.listen`, `sources.kafka[0].name`."""
        return dotted(self.path)

    @property
    def variable(self) -> str:
        """The environment variable: `FORWARDER_SOURCES__HTTP__LISTEN`."""
        return variable(self.path)


def variable(path: Path) -> str:
    """The environment variable of a key, or the beginning of those of a section's keys."""
    return PREFIX + SEPARATOR.join(path).upper()


def is_number(part: str) -> bool:
    """Whether a part of a path is the number of an item."""
    return _NUMBER.fullmatch(part) is not None


def dotted(path: Path) -> str:
    """A path as in messages: `sources.kafka[0].name`."""
    return "".join([f"[{part}]" if is_number(part) else f".{part}" for part in path]).removeprefix(
        "."
    )


def parts(name: str) -> Path:
    """The path of a dotted name."""
    return tuple(re.findall(r"[^.\[\]]+", name))


def in_table(path: Path) -> Path:
    """The path by which the table knows what stands at `path`."""
    return tuple([FIRST if is_number(part) else part for part in path])


@cache
def keys() -> Mapping[Path, Key]:
    """All settings, in the order in which they are documented."""
    return {entry.path: entry for entry in _entries() if isinstance(entry, Key)}


@cache
def sections() -> Mapping[Path, type[Section]]:
    """All sections but the outermost."""
    return {entry[0]: entry[1] for entry in _entries() if not isinstance(entry, Key)}


@cache
def lists() -> frozenset[Path]:
    """All lists of sections."""
    return frozenset({key.path for key in keys().values() if _item(key.field.kind)})


@cache
def short_forms() -> Mapping[Path, str]:
    """The sections that may be written as text, each with the key that the text then stands for."""
    return {path: section.short for path, section in sections().items() if section.short}


@cache
def _entries() -> tuple[Key | tuple[Path, type[Section]], ...]:
    return tuple(_walk(Settings, Settings().as_document(), ()))


def _walk(
    section: type[Section], defaults: Mapping[str, Any], path: Path
) -> Iterator[Key | tuple[Path, type[Section]]]:
    """The keys and sections in a section, each list of sections with its first item."""
    for name, field in keys_of(section).items():
        inner = (*path, name)
        default = defaults[name]
        if isinstance(field.kind, Nested):
            yield inner, field.kind.section
            yield from _walk(field.kind.section, default, inner)
            continue
        yield Key(inner, section, field, default)
        if item := _item(field.kind):
            yield (*inner, FIRST), item
            yield from _walk(item, item().as_document(), (*inner, FIRST))


def _item(kind: Kind) -> type[Section] | None:
    """The sections that a list is of; None if it is no such list."""
    return kind.item.section if isinstance(kind, Items) and isinstance(kind.item, Nested) else None


def leaves(tree: Mapping[str, Any], path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Each key that settings have, with its value; a list of sections, then the keys
    of each item.
    """
    for name, value in tree.items():
        inner = (*path, name)
        known = in_table(inner)
        if known in sections():
            yield from leaves(value, inner)
            continue
        yield inner, value
        if known in lists():
            for number, item in enumerate(value):
                yield from leaves(item, (*inner, str(number)))
