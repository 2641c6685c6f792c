"""Whose a call is: the organization that its path names, or whose project it names, and what the caller is there."""

from __future__ import annotations

import sqlite3

from forwarder.sandbox.management.call import Caller, not_found


def organization_of(database: sqlite3.Connection, project: int) -> str:
    """The organization of a project. Raises `ManagementError` (404)."""
    row = database.execute("SELECT organization FROM projects WHERE id = ?", (project,)).fetchone()
    if row is None:
        raise not_found()
    return str(row[0])


def caller_in(database: sqlite3.Connection, organization: str, user: int) -> Caller:
    """A user as a member of an organization. Raises `ManagementError`: to everybody else the organization doesn't exist (404)."""
    row = database.execute(
        "SELECT users.uuid, members.level FROM members JOIN users ON users.id = members.user WHERE organization = ? AND user = ?",
        (organization, user),
    ).fetchone()
    if row is None:
        raise not_found()
    return Caller(user, *row)


def count_organizations(database: sqlite3.Connection) -> int:
    """How many there are."""
    return int(database.execute("SELECT count(*) FROM organizations").fetchone()[0])


def project_exists(database: sqlite3.Connection, api_key: str) -> bool | None:
    """Whether a project of an organization has this key; None as long as there is no organization, so that nothing is said."""
    found, any_at_all = database.execute(
        "SELECT EXISTS (SELECT 1 FROM projects WHERE api_token = ?), EXISTS (SELECT 1 FROM organizations)", (api_key,)
    ).fetchone()
    return bool(found) if any_at_all else None
