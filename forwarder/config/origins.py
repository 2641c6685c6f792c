"""Where each value came from: a line of the file, an environment variable, or the default.

A layer is what one place says: values by key, with where each stands. Layers are laid over each other key by key, so that the
environment can change one key of a section that the file sets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

from forwarder.config.keys import Path
from forwarder.config.problems import Problem


class Place(StrEnum):
    """The kinds of place that a value can come from, from weak to strong."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value came from. `name` is the file or the variable; lines count from 1, and 0 means none in particular."""

    place: Place = Place.DEFAULT
    name: str = ""
    line: int = 0

    def __str__(self) -> str:
        """As shown: `default`, `forwarder.yaml:12`, `FORWARDER_UPSTREAM__URL`."""
        if self.place is Place.DEFAULT:
            return "default"
        return f"{self.name}:{self.line}" if self.line else self.name


DEFAULT = Origin()


@dataclass(frozen=True, slots=True)
class Sourced:
    """A value with its origin; for a list also the origin of each item."""

    value: Any
    origin: Origin
    items: tuple[Origin, ...] = ()

    def at(self, index: object) -> Origin:
        """The origin of an item, or of the whole if that isn't known."""
        return self.items[index] if isinstance(index, int) and index < len(self.items) else self.origin


Values: TypeAlias = Mapping[Path, Sourced]


@dataclass(slots=True)
class Layer:
    """What one place says, and what is wrong with it."""

    values: dict[Path, Sourced] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def overlay(*layers: Layer) -> dict[Path, Sourced]:
    """The values of all layers; a later one wins."""
    merged: dict[Path, Sourced] = {}
    for layer in layers:
        merged.update(layer.values)
    return merged


def nested(values: Values) -> dict[str, Any]:
    """The values as a tree of sections."""
    tree: dict[str, Any] = {}
    for path, sourced in values.items():
        section = tree
        for name in path[:-1]:
            section = section.setdefault(name, {})
        section[path[-1]] = sourced.value
    return tree
