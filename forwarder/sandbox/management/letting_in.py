"""What stands between a call and its handler, in this order: key, scope, organization, membership, level, body.

All of it is one piece of work on the store's thread together with what the handler does, so a key, a member or a project can't go away in
between. To whoever isn't a member an organization and its projects don't exist.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from forwarder.contract.endpoints import Endpoint, IdKind
from forwarder.contract.kinds import LEVELS
from forwarder.sandbox.management.call import Bounds, Call, forbidden, not_found
from forwarder.sandbox.management.keys import authenticated, check_scope
from forwarder.sandbox.management.organizations import caller_in, organization_of
from forwarder.sandbox.management.validation import Sent, body_of

_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE | re.ASCII).fullmatch
_DIGITS: Final = 18
"""Of a number that the database takes."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request for an endpoint as it came, nothing of it checked."""

    endpoint: Endpoint[Any, Any]
    authorization: str = field(repr=False)
    ids: Mapping[str, str]
    page: Bounds
    sent: Sent = field(repr=False)
    now: datetime
    strict: bool


def let_in(asked: Asked, database: sqlite3.Connection) -> Call:
    """The call that a request is. Raises `ManagementError`."""
    endpoint = asked.endpoint
    user, scopes = authenticated(database, asked.authorization)
    check_scope(scopes, endpoint.scope)
    ids = _ids(asked)
    project = int(ids["project_id"]) if "project_id" in ids else None
    organization = ids["organization_id"] if project is None else organization_of(database, project)
    caller = caller_in(database, organization, user)
    if caller.level < endpoint.level:
        raise forbidden(f"Your membership level is too low: this takes level {endpoint.level} ({LEVELS[endpoint.level]}).")
    body = body_of(endpoint, asked.sent)
    return Call(endpoint, database, asked.now, caller, organization, project, ids, body, asked.page, asked.strict)


def _ids(asked: Asked) -> dict[str, str]:
    return {parameter.name: _id(asked.ids[parameter.name], parameter.kind) for parameter in asked.endpoint.parameters}


def _id(text: str, kind: IdKind) -> str:
    """An id in the only way in which it is kept. Raises `ManagementError`: what can't be an id is nobody's (404)."""
    if kind is IdKind.UUID and _UUID(text):
        return text.lower()
    if kind is IdKind.INTEGER and text.isascii() and text.isdecimal() and len(text) <= _DIGITS:
        return str(int(text))
    raise not_found()
