"""The table of keys: every setting's dotted name, environment variable, default and meaning, read from the settings themselves.

A list of sections stands in it as a key (the whole list), and as the section and the keys of its first item: what holds for item 0 holds
for each. A path of any other item leads to the table by `in_table`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, TypeAlias, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from forwarder.config.settings import Settings
from forwarder.config.values import Named

PREFIX: Final = "FORWARDER_"
SEPARATOR: Final = "__"
FIRST: Final = "0"
"""The item that stands for all items in the table."""

Path: TypeAlias = tuple[str, ...]
"""A key or section as its parts: `("sources", "http", "listen")`, `("sources", "kafka", "0", "name")`."""

_NUMBER: Final = re.compile(r"0|[1-9]\d{0,3}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Key:
    """One setting. `default` is what JSON can say of it: sizes and times as text, None where there is none.

    A secret is never shown whole (its field is left out of the settings' own text too). `named`: its value may be a mapping of names
    that the user chooses.
    """

    path: Path
    default: Any
    description: str
    secret: bool = False
    named: bool = False

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
    return "".join([f"[{part}]" if is_number(part) else f".{part}" for part in path]).removeprefix(".")


def parts(name: str) -> Path:
    """The path of a dotted name."""
    return tuple(re.findall(r"[^.\[\]]+", name))


def in_table(path: Path) -> Path:
    """The path by which the table knows what stands at `path`."""
    return tuple([FIRST if is_number(part) else part for part in path])


@dataclass(frozen=True, slots=True)
class _Entry:
    """A key, a section or a list of sections, as it was found in the settings."""

    path: Path
    default: Any
    field: FieldInfo | None = None
    """None for an item of a list."""
    section: type[BaseModel] | None = None
    item: type[BaseModel] | None = None


def _walk(model: type[BaseModel], defaults: Mapping[str, Any], path: Path) -> Iterator[_Entry]:
    for name, field in model.model_fields.items():
        inner = (*path, field.alias or name)
        default = defaults[inner[-1]]
        section, item = _model(field.annotation), _item(field.annotation)
        yield _Entry(inner, default, field, section, item)
        if section:
            yield from _walk(section, default, inner)
        elif item:
            values = _plain(item())
            yield _Entry((*inner, FIRST), values, section=item)
            yield from _walk(item, values, (*inner, FIRST))


def _plain(model: BaseModel) -> dict[str, Any]:
    return model.model_dump(mode="json", by_alias=True)


def _model(annotation: Any) -> type[BaseModel] | None:
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _item(annotation: Any) -> type[BaseModel] | None:
    """The sections that a list is of; None if it is no such list."""
    return _model(get_args(annotation)[0]) if get_origin(annotation) is tuple else None


@cache
def _entries() -> tuple[_Entry, ...]:
    return tuple(_walk(Settings, _plain(Settings()), ()))


@cache
def keys() -> Mapping[Path, Key]:
    """All settings, in the order in which they are documented."""
    return {entry.path: _key(entry.path, entry.default, entry.field) for entry in _entries() if entry.field and not entry.section}


def _key(path: Path, default: Any, field: FieldInfo) -> Key:
    named = any(isinstance(marker, Named) for marker in field.metadata)
    return Key(path, default, field.description or "", not field.repr, named)


@cache
def sections() -> Mapping[Path, str]:
    """All sections but the outermost, with their descriptions."""
    return {entry.path: entry.section.__doc__ or "" for entry in _entries() if entry.section}


@cache
def lists() -> frozenset[Path]:
    """All lists of sections."""
    return frozenset({entry.path for entry in _entries() if entry.item})


@cache
def short_forms() -> Mapping[Path, str]:
    """The sections that may be written as text, each with the key that the text then stands for."""
    return {entry.path: short for entry in _entries() if (short := getattr(entry.section, "short", None))}


def leaves(tree: Mapping[str, Any], path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Each key that settings have, with its value; a list of sections, then the keys of each item."""
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
