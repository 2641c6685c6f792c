"""The dashboards of a project. The only endpoint lists them; a seed makes them, and each new project comes with one."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from forwarder.contract.endpoints import LIST_DASHBOARDS, Endpoint
from forwarder.contract.kinds import ADMIN
from forwarder.contract.resources import Dashboard
from forwarder.sandbox.management.call import Call, Caller, Handler, Listing
from forwarder.sandbox.management.rows import listing
from forwarder.sandbox.management.users import embedded_user

CAN_VIEW, CAN_EDIT = 21, 37
"""Privilege levels. As a restriction, the first lets everybody of the project edit, the second only some: whoever made the dashboard, and
admins (gap `dashboard-access`)."""


@dataclass(frozen=True, slots=True)
class NewDashboard:
    """A dashboard to make."""

    name: str
    created_at: str
    created_by: int | None
    description: str = ""
    pinned: bool = False
    is_shared: bool = False
    deleted: bool = False
    creation_mode: str = "default"
    tags: Sequence[Any] = ()
    restriction_level: int = CAN_VIEW


def add_dashboard(database: sqlite3.Connection, project: int, new: NewDashboard) -> int:
    """Make a dashboard of a project; its id."""
    cursor = database.execute(
        "INSERT INTO dashboards VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *(project, new.name, new.description, new.pinned, new.created_at, new.created_by, new.is_shared, new.deleted),
            *(new.creation_mode, json.dumps(list(new.tags)), new.restriction_level),
        ),
    )
    return cursor.lastrowid or 0


def shown(database: sqlite3.Connection, caller: Caller, dashboard: sqlite3.Row) -> Dashboard:
    """A dashboard as it is answered, with what the caller may do to it."""
    edits = dashboard["restriction_level"] < CAN_EDIT or caller.level >= ADMIN or dashboard["created_by"] == caller.user
    return Dashboard(
        id=dashboard["id"],
        name=dashboard["name"],
        description=dashboard["description"],
        pinned=bool(dashboard["pinned"]),
        created_at=dashboard["created_at"],
        created_by=None if dashboard["created_by"] is None else embedded_user(database, dashboard["created_by"]),
        is_shared=bool(dashboard["is_shared"]),
        deleted=bool(dashboard["deleted"]),
        creation_mode=dashboard["creation_mode"],
        tags=json.loads(dashboard["tags"]),
        restriction_level=dashboard["restriction_level"],
        effective_restriction_level=dashboard["restriction_level"],
        effective_privilege_level=CAN_EDIT if edits else CAN_VIEW,
        user_access_level="editor" if edits else "viewer",
        access_control_version="v2",
    )


def _list(call: Call) -> Listing:
    statement = "SELECT * FROM dashboards WHERE project = ? ORDER BY id"
    return listing(call.database, call.page, partial(shown, call.database, call.caller), statement, call.project)


HANDLERS: Final[Mapping[Endpoint[Any, Any], Handler]] = {LIST_DASHBOARDS: _list}
