"""Where each value came from (a line of the file, an environment variable, or the default), and
what is wrong with it.

A layer is what one place says: values by key, with where each stands. Layers are laid over each
other key by key, so that the environment can change one key of a section, or of an item of a list,
that the file sets. A list that a layer gives as a whole takes the place of the whole list below it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

from forwarder.config.keys import Path, in_table, keys, lists
from forwarder.core.errors import ConfigurationError
from forwarder.core.proposals import proposed
from forwarder.core.secrets import mask_secrets


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing to fix: where it stands (file and line, or environment variable), the dotted key,
    what is wrong and what to do.
    """

    where: str
    key: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        """One line, two with a hint; secrets masked."""
        first = ": ".join([part for part in (self.where, self.key, self.message) if part])
        return mask_secrets(f"{first}\n    {self.hint}" if self.hint else first)

    def as_json(self) -> dict[str, str | None]:
        """The same for programs."""
        return {
            "where": mask_secrets(self.where) or None,
            "key": mask_secrets(self.key) or None,
            "message": mask_secrets(self.message),
            "hint": mask_secrets(self.hint) or None,
        }


def what_and_hint(error: Exception | str) -> tuple[str, str]:
    """An error's text, written as "what is wrong: how to fix it", in its two parts; a hint that
    holds a colon has a line of its own.
    """
    text = str(error)
    if "\n" in text:
        what, _, hint = text.partition("\n")
        return what, hint
    return (text[:at], text[at + 2 :]) if (at := text.rfind(": ")) >= 0 else (text, "")


class InvalidConfiguration(ConfigurationError):
    """The configuration can't be used. Its text lists every problem that was found; exit code 2."""

    code = "invalid_configuration"

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        things = "1 thing" if len(self.problems) == 1 else f"{len(self.problems)} things"
        super().__init__(
            "\n".join([f"the configuration has {things} to fix", *map(str, self.problems)]),
            hint=f"When fixed: {proposed('config check')}",
        )


class Place(StrEnum):
    """The kinds of place that a value can come from, from weak to strong."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value came from. `name` is the file or the variable; lines count from 1, and 0 means
    none in particular.
    """

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
    """A value with its origin; for a list, or a mapping of names, also the origin of each item."""

    value: Any
    origin: Origin
    items: Mapping[int | str, Origin] = field(default_factory=dict)

    def at(self, item: object) -> Origin:
        """The origin of an item, or of the whole if that isn't known."""
        return self.items.get(item, self.origin) if isinstance(item, int | str) else self.origin


Values: TypeAlias = Mapping[Path, Sourced]


@dataclass(slots=True)
class Layer:
    """What one place says, and what is wrong with it."""

    values: dict[Path, Sourced] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    lists: dict[Path, Origin] = field(default_factory=dict)
    """Lists of sections that it gives as a whole."""
    items: dict[Path, Origin] = field(default_factory=dict)
    """Items of lists that it says something of, if only that they are there."""

    def lay(self, other: Layer) -> None:
        """Lay another layer over this one."""
        for path in other.lists:
            self.forget(path)
        self.values.update(other.values)
        self.items = {**other.items, **self.items}
        self.lists.update(other.lists)
        self.problems += other.problems

    def forget(self, path: Path) -> None:
        """Leave out all that is said of what stands at a path and below it."""
        for said in (self.values, self.items):
            for below in [known for known in said if known[: len(path)] == path]:
                del said[below]

    def origin(self, path: Path) -> Origin:
        """Where the value of a key came from."""
        if path in self.values:
            return self.values[path].origin
        first = next((origin for item, origin in self.items.items() if item[:-1] == path), DEFAULT)
        return self.lists.get(path, first)

    def nearest(self, path: Path) -> Origin:
        """Where a key is said, or else the item that it would be part of, if that stands
        somewhere: not if single variables make it.
        """
        if path in self.values:
            return self.values[path].origin
        item = next(
            (path[:length] for length in range(len(path), 0, -1) if path[:length] in self.items),
            None,
        )
        if item is None:
            return self.lists.get(path, DEFAULT)
        origin = self.items[item]
        return (
            origin if origin.place is Place.FILE or origin == self.lists.get(item[:-1]) else DEFAULT
        )


def overlay(*layers: Layer) -> Layer:
    """What all layers say; a later one wins."""
    merged = Layer()
    for layer in layers:
        merged.lay(layer)
    return merged


def nested(values: Values, items: Iterable[Path] = ()) -> dict[str, Any]:
    """The values as a tree of sections and lists of them; `items` are there even if they have no
    values.
    """
    tree: dict[str, Any] = {}
    for item in items:
        _section(tree, item)
    for path, sourced in values.items():
        _section(tree, path[:-1])[path[-1]] = sourced.value
    return {name: _listed(value, (name,)) for name, value in tree.items()}


def _section(tree: dict[str, Any], path: Path) -> dict[str, Any]:
    for name in path:
        tree = tree.setdefault(name, {})
    return tree


def _listed(value: Any, path: Path) -> Any:
    """`value` with numbered sections made lists."""
    known = in_table(path)
    if not isinstance(value, dict) or (known in keys() and known not in lists()):
        return value
    inner = {name: _listed(below, (*path, name)) for name, below in value.items()}
    return [inner[number] for number in sorted(inner, key=int)] if known in lists() else inner
