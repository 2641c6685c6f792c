"""Reads the tables of `docs/maintainers/interface.md`: what a person reads there is what
tests go by.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, TypeAlias

from tests.support.documents import page

DOCUMENT: Final = page("interface")
NOTHING: Final = "—"

Row: TypeAlias = dict[str, str]
"""A row by the names of its columns, as it is written."""


@dataclass(frozen=True, slots=True)
class FieldRow:
    """A row of the table of a resource."""

    name: str
    type: str
    null: str
    """`yes`, `no`, `not yet`."""
    written_by: dict[str, bool]
    """The operations that accept it, and whether they need it."""
    rule: str
    default: str
    """JSON, or empty."""


@dataclass(frozen=True, slots=True)
class EndpointRow:
    """A row of the table of management endpoints."""

    call: str
    method: str
    path: str
    scope: str
    level: str
    body: tuple[str, str] | None
    """The heading of the table of fields that it accepts, and the operation there."""
    several: bool
    status: int
    answer: str | None
    """The heading of the table of fields that it answers, page by page if there are `pages`."""
    pages: bool

    @property
    def resource(self) -> str:
        """The first word of the call."""
        return self.call.partition(" ")[0]

    @property
    def parameters(self) -> tuple[str, ...]:
        """The ids in its path."""
        return tuple(re.findall(r"\{(\w+)\}", self.path))

    @property
    def accepted(self) -> dict[str, FieldRow]:
        """The fields that it accepts."""
        if self.body is None:
            return {}
        heading, operation = self.body
        return {field.name: field for field in fields(heading) if operation in field.written_by}

    @property
    def needed(self) -> set[str]:
        """Those without which it doesn't work."""
        return {
            name
            for name, field in self.accepted.items()
            if self.body is not None and field.written_by[self.body[1]]
        }


@cache
def _tables() -> dict[str, tuple[Row, ...]]:
    tables: dict[str, tuple[Row, ...]] = {}
    for section in re.split(r"^#+ ", DOCUMENT.read_text("utf-8"), flags=re.MULTILINE)[1:]:
        heading, _, text = section.partition("\n")
        blocks = re.findall(r"(?:^\|.*\|$\n?)+", text, re.MULTILINE)
        assert len(blocks) <= 1, f"two tables under {heading!r}: a test would see only one of them"
        for block in blocks:
            lines = [
                [cell.strip() for cell in line.strip().strip("|").split("|")]
                for line in block.strip().splitlines()
            ]
            assert heading not in tables, f"two headings {heading!r}"
            assert {len(line) for line in lines} == {len(lines[0])}, (
                f"under {heading!r} a row has another number of cells"
            )
            tables[heading] = tuple(dict(zip(lines[0], line, strict=True)) for line in lines[2:])
    return tables


def headings() -> set[str]:
    """All headings that a table stands under."""
    return set(_tables())


def rows(heading: str) -> tuple[Row, ...]:
    """The table under a heading."""
    return _tables()[heading]


def plain(cell: str) -> str:
    """A cell without links and backticks; nothing for a dash."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", cell).replace("`", "")
    return "" if text == NOTHING else text


def spans(cell: str) -> list[str]:
    """What stands in backticks in a cell."""
    return re.findall(r"`([^`]+)`", cell)


def fields(heading: str) -> tuple[FieldRow, ...]:
    """The table of a resource."""
    return tuple(_field(row) for row in rows(heading))


def _field(row: Row) -> FieldRow:
    writers = [writer.partition(" (") for writer in plain(row["written by"]).split(", ") if writer]
    default = spans(row["default"])
    return FieldRow(
        plain(row["field"]),
        plain(row["type"]),
        row["null"],
        {name: needed == "needed)" for name, _, needed in writers},
        "" if row["rule"] == NOTHING else row["rule"],
        default[0] if default else "",
    )


@cache
def endpoints() -> tuple[EndpointRow, ...]:
    """The table of management endpoints."""
    return tuple(_endpoint(row) for row in rows("Endpoints"))


def _endpoint(row: Row) -> EndpointRow:
    body = plain(row["body"]).split(", ")
    return EndpointRow(
        plain(row["call"]),
        row["method"],
        plain(row["path"]),
        plain(row["scope"]),
        row["level"],
        (body[0], body[1]) if body[0] else None,
        len(body) > 2,
        int(row["status"]),
        plain(row["answer"]) or None,
        {"yes": True, "no": False}[row["pages"]],
    )


def misfit(value: Any, kind: str, null: str = "no") -> str:
    """Why a value isn't of a type of the document; empty: it is."""
    if value is None:
        return "" if null != "no" or kind == "JSON" else "null"
    if kind.startswith("list of ") and isinstance(value, list):
        return next(
            filter(None, (misfit(entry, kind.removeprefix("list of ")) for entry in value)), ""
        )
    if kind.startswith("object of ") and isinstance(value, dict):
        return next(
            filter(
                None, (misfit(entry, kind.removeprefix("object of ")) for entry in value.values())
            ),
            "",
        )
    if " or " in kind:
        return (
            ""
            if any(not misfit(value, alternative) for alternative in kind.split(" or "))
            else f"{value!r} is neither of {kind}"
        )
    if kind in headings():
        return misfits(value, kind)
    return "" if _PLAIN[kind](value) else f"{value!r} is no {kind}"


def misfits(value: Any, heading: str) -> str:
    """Why an object doesn't have the fields of a table, each with its type, and no others; empty:
    it does.
    """
    if not isinstance(value, dict):
        return f"{value!r} is no {heading}"
    documented = {plain(row["field"]): row for row in rows(heading)}
    if set(value) != set(documented):
        return f"{heading}: {sorted(set(value) ^ set(documented))} differ"
    wrong = {
        name: misfit(value[name], plain(row["type"]), row.get("null", "no"))
        for name, row in documented.items()
    }
    return "; ".join(f"{heading}.{name}: {why}" for name, why in wrong.items() if why)


_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)")
_PLAIN: Final[dict[str, Callable[[Any], bool]]] = {
    "UUID": lambda value: isinstance(value, str) and bool(_UUID.fullmatch(value)),
    "time": lambda value: isinstance(value, str) and bool(_TIME.fullmatch(value)),
    "e-mail address": lambda value: isinstance(value, str) and "@" in value,
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "boolean": lambda value: isinstance(value, bool),
    "object": lambda value: isinstance(value, dict),
    "list": lambda value: isinstance(value, list),
    "JSON": lambda _: True,
}
