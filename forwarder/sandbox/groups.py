"""The groups of the projects: made and changed by `$groupidentify`, by nothing else (interface document: Events).

Invariant: one group for each project, type and key. The contract names no limit of types, so there is none (the real service keeps five a
project). Everything here blocks and belongs to the store's thread.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from forwarder.sandbox.meaning import GroupChange, dump
from forwarder.sandbox.selection import GroupFilter, Page

_GROUP: Final = "SELECT group_type, group_key, api_key, properties, created_at, updated_at FROM groups WHERE "
_FIND: Final = "SELECT id, properties FROM groups WHERE api_key = ? AND group_type = ? AND group_key = ?"


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """One group; times are ISO 8601 in UTC."""

    group_type: str
    group_key: str
    api_key: str
    properties: Mapping[str, Any]
    created_at: str
    """The time of the event that made it."""
    updated_at: str
    """The time of the event that was the last to arrive."""


class Groups:
    """The groups in a database; transactions are the caller's."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._execute = connection.execute

    def apply(self, api_key: str, timestamp: str, change: GroupChange) -> None:
        """Make a group, or set properties of one that is there."""
        row = self._execute(_FIND, (api_key, change.group_type, change.group_key)).fetchone()
        if row is None:
            self._execute(
                "INSERT INTO groups VALUES (NULL, ?, ?, ?, ?, ?, ?)",
                (api_key, change.group_type, change.group_key, dump(change.properties), timestamp, timestamp),
            )
            return
        properties = dump({**json.loads(row[1]), **change.properties})
        self._execute("UPDATE groups SET properties = ?, updated_at = ? WHERE id = ?", (properties, timestamp, row[0]))

    def types(self, api_key: str) -> list[str]:
        """The types of a project's groups, in the order in which the first of each was made."""
        rows = self._execute("SELECT group_type FROM groups WHERE api_key = ? GROUP BY group_type ORDER BY min(id)", (api_key,))
        return [group_type for (group_type,) in rows]

    def count(self) -> int:
        """How many there are."""
        return int(self._execute("SELECT count(*) FROM groups").fetchone()[0])

    def listing(self, wanted: GroupFilter, page: Page) -> tuple[int, list[StoredGroup]]:
        """How many groups the filter lets through, and a page of them, in the order in which they were made."""
        condition, parameters = wanted.condition()
        count = self._execute(f"SELECT count(*) FROM groups WHERE {condition}", parameters).fetchone()[0]  # noqa: S608 - fixed clauses
        rows = self._execute(_GROUP + condition + page.ordered("id"), [*parameters, *page.bounds()]).fetchall()
        return int(count), [_stored(row) for row in rows]


def _stored(row: Sequence[Any]) -> StoredGroup:
    group_type, group_key, api_key, properties, created_at, updated_at = row
    return StoredGroup(group_type, group_key, api_key, json.loads(properties), created_at, updated_at)
