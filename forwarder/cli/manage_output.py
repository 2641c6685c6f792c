"""What `forwarder manage` prints: what the service answered, as JSON, or as tables for a person.

Invariants: JSON is all that was answered; lists are cut at the width of a terminal only; nothing of the service is read as markup, and
its control characters are seen, not obeyed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from forwarder.cli.manage_words import RUNS, WORDS
from forwarder.cli.visible import as_json, visible
from forwarder.contract.endpoints import Endpoint
from forwarder.contract.resources import LEVELS

_GAP: Final = 2
"""Blanks between columns."""
_LEAST: Final = 8
"""No column gets narrower than this, or it would say nothing; a terminal that is too narrow for two columns breaks the lines."""
_KNOWN_BY: Final = 24
"""Before the second column gets narrower than this, others are left out."""
_LEVEL_FIELDS: Final = ("level", "effective_membership_level")
_TABLES: Final = {"latest_runs": RUNS}
"""Fields that are lists of things with a table of their own, and its columns."""


def print_json(value: Any) -> None:
    """One JSON document; of nothing, nothing."""
    if value is not None:
        _write(as_json(value, indent=2))


def print_lines(values: Iterable[Any]) -> None:
    """A JSON document a line, for whoever waits for them."""
    for value in values:
        _write(as_json(value))
    sys.stdout.flush()


def print_answer(endpoint: Endpoint[Any, Any], ids: Mapping[str, object], value: Any) -> None:
    """What one call answered, for a person."""
    if not isinstance(value, dict):
        named = " ".join(visible(str(each)) for each in ids.values())
        _write(f"Done: {endpoint.name} {named}".rstrip() if value is None else as_json(value, indent=2))
        return
    tables = {name: value[name] for name in _TABLES if _is_table(value.get(name))}
    print_fields({name: each for name, each in value.items() if name not in tables})
    for name, rows in tables.items():
        _write(f"\n {_title(name)}")
        Rows(_TABLES[name]).print(rows)


def print_fields(fields: Mapping[str, Any]) -> None:
    """A field a line. Nothing is cut: ids, keys and challenges are there to be copied."""
    names = [visible(name) for name in fields]
    width = max(map(cell_len, names), default=0) + _GAP
    lines = [
        Text.assemble((f" {shown}{' ' * (width - cell_len(shown))}", "dim"), cell(name, value))
        for shown, (name, value) in zip(names, fields.items(), strict=True)
    ]
    Console(highlight=False).print(Text("\n").join(lines), soft_wrap=True)


class Rows:
    """A table that comes in pieces. Each has its titles on a terminal, which cuts it anew; elsewhere the first one, and later ones are as
    wide at least."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = columns
        self._titles = [_title(column) for column in columns]
        self._widths: list[int] = []

    @property
    def begun(self) -> bool:
        """Whether the titles have been printed."""
        return bool(self._widths)

    def print(self, items: Sequence[Mapping[str, Any]]) -> None:
        """A row an item; in words if there are none."""
        if not items:
            _write("None.")
            return
        rows = [[cell(column, inside(item, column)) for column in self._columns] for item in items]
        titles = self._titles if sys.stdout.isatty() or not self.begun else []
        widest = zip(self._widths or map(len, self._titles), *rows, strict=True)
        self._widths = [max([width, *map(cell_len, column)]) for width, *column in widest]
        _print(titles, rows, self._widths)


def _print(titles: Sequence[str], rows: Sequence[Sequence[str]], widths: Sequence[int]) -> None:
    """A table; on a terminal cut to its width."""
    screen = Console(highlight=False)
    fitting = _fitting(widths, screen.width) if sys.stdout.isatty() else widths
    table = Table(box=None, pad_edge=True, header_style="dim", show_header=bool(titles))
    for number, width in enumerate(fitting):
        table.add_column(_cut(titles[number], width) if titles else "", width=width, no_wrap=True)
    for row in rows:
        table.add_row(*map(_cut, row, fitting))  # as many as fit
    screen.width = sum(fitting) + _GAP * len(fitting)  # or it would cut the table in its own way
    screen.print(table, crop=False)


def _fitting(widths: Sequence[int], room: int) -> list[int]:
    """The widths of the columns that there is room for: the later one is, the sooner it is cut, or left out. The first, by which a thing
    is named, is whole, and the second, by which a person knows it, is there.
    """
    least = [*widths[:1], *(min(width, _KNOWN_BY) for width in widths[1:2]), *(min(width, _LEAST) for width in widths[2:])]
    fitting = list(widths[: max(2, sum(total <= room for total in accumulate(width + _GAP for width in least)))])
    for number in range(len(fitting) - 1, 0, -1):
        excess = max(0, sum(fitting) + _GAP * len(fitting) - room)
        fitting[number] = max(min(fitting[number], _LEAST), fitting[number] - excess)
    return fitting


def _cut(text: str, width: int) -> Text:
    shown = Text(text)
    shown.truncate(width, overflow="ellipsis")
    return shown


def columns_of(endpoint: Endpoint[Any, Any]) -> tuple[str, ...]:
    """The columns of an endpoint's list."""
    return WORDS[endpoint.resource].columns


def cell(field: str, value: Any) -> str:
    """A value on one line: what a person calls it, else JSON."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if field in _LEVEL_FIELDS and isinstance(value, int):
        return LEVELS.get(value, str(value))
    if isinstance(value, dict) and isinstance(value.get("email"), str):
        return visible(value["email"])
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return visible(", ".join(value))
    return visible(value) if isinstance(value, str) else as_json(value)


def inside(item: Any, path: str) -> Any:
    """A field, or one inside of another (`user.email`); None if it isn't there."""
    for name in path.split("."):
        item = item.get(name) if isinstance(item, dict) else None
    return item


def _title(path: str) -> str:
    return path.rpartition(".")[2].replace("_", " ")


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, dict) for each in value)


def _write(text: str) -> None:
    sys.stdout.write(f"{text}\n")
