"""An authorized call of an endpoint, and the tools of its handler: result types and queries by
column name.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeAlias

from forwarder.contract.endpoints import Endpoint


@dataclass(frozen=True, slots=True)
class CallingMember:
    """The owner of the key, as a member of the organization."""

    user: int
    uuid: str
    level: int


@dataclass(frozen=True, slots=True)
class PageBounds:
    """The requested page of a list."""

    limit: int
    offset: int


@dataclass(frozen=True, slots=True)
class Listing:
    """A page of a list: how many items there are in all, and those of this
    page as they are answered.
    """

    count: int
    items: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class ManagementCall:
    """An authorized call: key, scope, membership, level and body are checked.

    For an endpoint of an environment the project exists, and `organization` is its. Other
    ids are only well-formed: the handler checks whether the resource exists in this
    organization or project.
    """

    endpoint: Endpoint[Any, Any]
    database: sqlite3.Connection
    now: datetime
    caller: CallingMember
    organization: str
    project: int | None = None
    ids: Mapping[str, str] = field(default_factory=dict)
    """The ids of the path by their names, as text: UUIDs in lower case with hyphens, numbers
    without leading zeros.
    """
    body: Any = None
    """The accepted fields that were sent, as `endpoint.request` has them; where
    `endpoint.several`, a list of such, or of one that came by itself a tuple.
    """
    page: PageBounds = PageBounds(100, 0)
    strict: bool = False


Result: TypeAlias = Mapping[str, Any] | Listing | None
Handler: TypeAlias = Callable[[ManagementCall], Result]
"""Does its work in the transaction of the store's thread; raises `ManagementError`, which undoes
it. A mapping is answered as the body, and None as no body; so what only the real service answers
is returned only if `call.strict`.
"""

Run: TypeAlias = Callable[[Handler], Awaitable[Any]]
"""Runs a handler on the store's thread, after authorizing the call again, and returns its result.
"""
AsyncHandler: TypeAlias = Callable[[Run], Awaitable[Result]]


def rows(database: sqlite3.Connection, statement: str, *parameters: object) -> list[sqlite3.Row]:
    """What a statement finds."""
    cursor = database.cursor()
    cursor.row_factory = sqlite3.Row
    return cursor.execute(statement, parameters).fetchall()


def row(database: sqlite3.Connection, statement: str, *parameters: object) -> sqlite3.Row | None:
    """The first row that a statement finds."""
    first_rows = rows(database, statement, *parameters)
    return first_rows[0] if first_rows else None


def list_page(
    database: sqlite3.Connection,
    page: PageBounds,
    show: Callable[[sqlite3.Row], Mapping[str, Any]],
    statement: str,
    *parameters: object,
) -> Listing:
    """A page of what a statement finds, which says the order."""
    # S608: the statement is a constant of the caller, its values have placeholders.
    counting = f"SELECT count(*) FROM ({statement})"  # noqa: S608
    paging = f"{statement} LIMIT ? OFFSET ?"
    (count,) = database.execute(counting, parameters).fetchone()
    shown_rows = rows(database, paging, *parameters, page.limit, page.offset)
    return Listing(count, [show(row) for row in shown_rows])
