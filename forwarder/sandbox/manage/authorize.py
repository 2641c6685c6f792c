"""Authentication and authorization of a call, in this order: key, scope, organization, membership,
level, body.

All of it runs on the store's thread in one transaction with the handler, so a key, a member or a
project cannot disappear in between. For anyone who is not a member an organization and its
projects do not exist. Only the digest of a personal key is kept, so that no file of the sandbox
reveals a key.
"""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from forwarder.contract.endpoints import Endpoint, IdKind, KeyScope
from forwarder.contract.resources import LEVELS
from forwarder.sandbox.manage.call import CallingMember, ManagementCall, PageBounds
from forwarder.sandbox.manage.validation import SentBody, body_of
from forwarder.sandbox.protocol.http import (
    authentication_failed,
    forbidden,
    not_authenticated,
    not_found,
)

_UUID: Final = re.compile(
    r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE | re.ASCII
).fullmatch
_DIGITS: Final = 18
"""Digits of a number that the database accepts."""
ALL_SCOPES: Final = "*"
"""The scope that is every scope."""
FLAG_SCOPES: Final = ("feature_flag:read", "feature_flag:write")
"""What a key needs one of for the definitions of flags, which are no part of the management API
here.
"""
_WRITE: Final = ":write"


@dataclass(frozen=True, slots=True)
class UncheckedCall:
    """A request for an endpoint, before any check."""

    endpoint: Endpoint[Any, Any]
    authorization: str = field(repr=False)
    ids: Mapping[str, str]
    page: PageBounds
    sent: SentBody = field(repr=False)
    now: datetime
    strict: bool


def authorize(asked: UncheckedCall, database: sqlite3.Connection) -> ManagementCall:
    """The call of a request. Raises `ManagementError`."""
    endpoint = asked.endpoint
    user, scopes = authenticate(database, asked.authorization)
    check_scope(scopes, endpoint.scope)
    ids = _ids(asked)
    project = int(ids["project_id"]) if "project_id" in ids else None
    organization = ids["organization_id"] if project is None else organization_of(database, project)
    caller = calling_member(database, organization, user)
    if caller.level < endpoint.level:
        raise forbidden(
            f"Your membership level is too low: this takes level {endpoint.level} "
            f"({LEVELS[endpoint.level]})."
        )
    body = body_of(endpoint, asked.sent)
    return ManagementCall(
        endpoint,
        database,
        asked.now,
        caller,
        organization,
        project,
        ids,
        body,
        asked.page,
        asked.strict,
    )


def _ids(asked: UncheckedCall) -> dict[str, str]:
    return {
        parameter.name: _id(asked.ids[parameter.name], parameter.kind)
        for parameter in asked.endpoint.parameters
    }


def _id(text: str, kind: IdKind) -> str:
    """An id in its stored form. Raises `ManagementError` (404) if it is malformed."""
    if kind is IdKind.UUID and _UUID(text):
        return text.lower()
    if kind is IdKind.INTEGER and text.isascii() and text.isdecimal() and len(text) <= _DIGITS:
        return str(int(text))
    raise not_found()


def key_digest(key: str) -> str:
    """The digest that is stored for a key. It exists for malformed text, too,
    and then matches no key.
    """
    return hashlib.sha256(key.encode(errors="surrogateescape")).hexdigest()


def authenticate(database: sqlite3.Connection, authorization: str) -> tuple[int, frozenset[str]]:
    """The user whose key an Authorization header carries, and the key's scopes. Raises
    `ManagementError` (401).
    """
    scheme, _, key = authorization.strip().partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        raise not_authenticated()
    row = database.execute(
        "SELECT user, scopes FROM personal_keys WHERE digest = ?", (key_digest(key.strip()),)
    ).fetchone()
    if row is None:
        raise authentication_failed()
    return int(row[0]), frozenset(json.loads(row[1]))


def check_scope(scopes: frozenset[str], needed: KeyScope) -> None:
    """Raise `ManagementError` (403) unless one of the scopes is the needed one or implies it: to
    write implies to read.
    """
    name = str(needed)
    implied_by = name.removesuffix(":read") + _WRITE
    if scopes.isdisjoint({ALL_SCOPES, name, implied_by}):
        raise forbidden(f"API key missing required scope '{name}'")


def organization_of(database: sqlite3.Connection, project: int) -> str:
    """The organization of a project. Raises `ManagementError` (404)."""
    row = database.execute("SELECT organization FROM projects WHERE id = ?", (project,)).fetchone()
    if row is None:
        raise not_found()
    return str(row[0])


def calling_member(database: sqlite3.Connection, organization: str, user: int) -> CallingMember:
    """A user as a member of an organization. Raises `ManagementError`: to everybody else the
    organization doesn't exist (404).
    """
    row = database.execute(
        (
            "SELECT users.uuid, members.level FROM members JOIN users ON users.id = members.user "
            "WHERE organization = ? AND user = ?"
        ),
        (organization, user),
    ).fetchone()
    if row is None:
        raise not_found()
    return CallingMember(user, *row)
