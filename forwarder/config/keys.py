"""The table of keys: every setting's dotted name, environment variable, default and meaning, read from the settings themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, TypeAlias

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from forwarder.config.settings import Settings

PREFIX: Final = "FORWARDER_"
SEPARATOR: Final = "__"

Path: TypeAlias = tuple[str, ...]
"""A key or section as its parts: `("sources", "http", "listen")`."""


@dataclass(frozen=True, slots=True)
class Key:
    """One setting. `default` is what JSON can say of it: sizes and times as text, None where there is none.

    A secret is never shown whole (its field is left out of the settings' own text too).
    """

    path: Path
    default: Any
    description: str
    secret: bool = False

    @property
    def name(self) -> str:
        """As in documents and messages: `sources.http.listen`."""
        return ".".join(self.path)

    @property
    def variable(self) -> str:
        """The environment variable: `FORWARDER_SOURCES__HTTP__LISTEN`."""
        return variable(self.path)


def variable(path: Path) -> str:
    """The environment variable of a key, or the beginning of those of a section's keys."""
    return PREFIX + SEPARATOR.join(path).upper()


def _walk(model: type[BaseModel], defaults: Mapping[str, Any], path: Path) -> Iterator[tuple[Path, Any, FieldInfo]]:
    for name, field in model.model_fields.items():
        yield (*path, name), defaults[name], field
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _walk(field.annotation, defaults[name], (*path, name))


def _is_section(field: FieldInfo) -> bool:
    return isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)


@cache
def keys() -> Mapping[Path, Key]:
    """All settings, in the order in which they are documented."""
    found = _walk(Settings, Settings().model_dump(mode="json"), ())
    return {path: Key(path, default, field.description or "", not field.repr) for path, default, field in found if not _is_section(field)}


@cache
def sections() -> Mapping[Path, str]:
    """All sections but the outermost, with their descriptions."""
    found = _walk(Settings, Settings().model_dump(mode="json"), ())
    return {path: _described(field) for path, _, field in found if _is_section(field)}


def _described(field: FieldInfo) -> str:
    return (field.annotation.__doc__ or "") if field.annotation else ""
