"""Rows of the management half's tables, by the names of their columns."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from typing import Any

from forwarder.sandbox.management.call import Bounds, Listing


def rows(database: sqlite3.Connection, statement: str, *parameters: object) -> list[sqlite3.Row]:
    """What a statement finds."""
    cursor = database.cursor()
    cursor.row_factory = sqlite3.Row
    return cursor.execute(statement, parameters).fetchall()


def row(database: sqlite3.Connection, statement: str, *parameters: object) -> sqlite3.Row | None:
    """The first row that a statement finds."""
    found = rows(database, statement, *parameters)
    return found[0] if found else None


def listing(
    database: sqlite3.Connection, page: Bounds, show: Callable[[sqlite3.Row], Mapping[str, Any]], statement: str, *parameters: object
) -> Listing:
    """A page of what a statement finds, which says the order."""
    counting, paging = f"SELECT count(*) FROM ({statement})", f"{statement} LIMIT ? OFFSET ?"  # noqa: S608 - a constant of the caller
    (count,) = database.execute(counting, parameters).fetchone()
    found = rows(database, paging, *parameters, page.limit, page.offset)
    return Listing(count, [show(each) for each in found])
