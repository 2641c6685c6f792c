"""Who is invited to an organization, and for how long. There is at most one invite for an address that hasn't expired.

A new invite takes the place of those before it; with `combine_pending_invites` it takes over the highest level and all access of those that
haven't expired. Nobody invites above their own level, nor replaces a pending invite above it. The sandbox writes to nobody:
`emailing_attempt_made` says what the service would do.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, TypeAlias
from uuid import uuid4

from forwarder.contract.endpoints import BULK_INVITE, CREATE_INVITE, DELETE_INVITE, LIST_INVITES, Endpoint
from forwarder.contract.kinds import ADMIN, MEMBER
from forwarder.contract.payloads import MOST_INVITES
from forwarder.sandbox.management.call import Call, Handler, Listing, ManagementError, forbidden, invalid, not_found
from forwarder.sandbox.management.rows import listing, row, rows
from forwarder.sandbox.management.users import embedded_user
from forwarder.sandbox.timing import format_time, parse_time

GOOD_FOR: Final = timedelta(days=3)
_LEVELS_OF_ACCESS: Final = ("member", "admin")
"""Of a project; the last is the highest."""

_INVITES: Final = "SELECT * FROM invites WHERE organization = ?"
_MEMBERS: Final = "SELECT email AS target_email FROM members JOIN users ON users.id = members.user WHERE organization = ?"

Access: TypeAlias = Sequence[Mapping[str, Any]] | None


def shown(database: sqlite3.Connection, now: datetime, invite: sqlite3.Row) -> dict[str, Any]:
    """An invite as it is answered."""
    return {
        "id": invite["id"],
        "target_email": invite["target_email"],
        "first_name": invite["first_name"],
        "emailing_attempt_made": bool(invite["emailing_attempt_made"]),
        "level": invite["level"],
        "is_expired": expired(invite, now),
        "created_by": embedded_user(database, invite["created_by"]),
        "created_at": invite["created_at"],
        "updated_at": invite["updated_at"],
        "message": invite["message"],
        "private_project_access": json.loads(invite["private_project_access"]),
        "send_email": bool(invite["send_email"]),
        "combine_pending_invites": bool(invite["combine_pending_invites"]),
    }


def expired(invite: Mapping[str, Any] | sqlite3.Row, now: datetime) -> bool:
    """Whether an invite is good no more."""
    created = parse_time(invite["created_at"])
    return created is None or now - created >= GOOD_FOR


def address(text: str) -> str:
    """An e-mail address as it is kept: its domain in lower case."""
    local, _, domain = text.rpartition("@")
    return f"{local}@{domain.lower()}"


def _list(call: Call) -> Listing:
    show = partial(shown, call.database, call.now)
    return listing(call.database, call.page, show, f"{_INVITES} ORDER BY number", call.organization)


def _create(call: Call) -> dict[str, Any]:
    email = address(call.body["target_email"])
    _refuse_member(call, email)
    earlier = _of_address(call, _INVITES, email)
    access = call.body.get("private_project_access")
    _refuse_unknown_projects(call, access)
    pending = [each for each in earlier if not expired(each, call.now)]
    _refuse_higher(call, pending)
    combined = pending if call.body.get("combine_pending_invites", False) else []
    level = max([call.body.get("level", MEMBER), *(each["level"] for each in combined)])
    access = _union([*(json.loads(each["private_project_access"]) for each in combined), access])
    call.database.executemany("DELETE FROM invites WHERE id = ?", [(each["id"],) for each in earlier])
    return _write(call, email, level, access)


def _bulk(call: Call) -> None:
    if len(call.body) > MOST_INVITES:
        raise invalid(None, f"At most {MOST_INVITES} people can be invited at once.", "max_length")
    for number, body in enumerate(call.body):
        try:
            _create(replace(call, body=body))
        except ManagementError as error:
            attr = f"{number}__{error.attr}" if error.attr and isinstance(call.body, list) else error.attr
            raise ManagementError(error.status, error.kind, error.code, error.detail, attr) from None


def _delete(call: Call) -> None:
    invite = row(call.database, "SELECT * FROM invites WHERE id = ? AND organization = ?", call.ids["id"], call.organization)
    if invite is None:
        raise not_found()
    if call.caller.level < ADMIN and invite["created_by"] != call.caller.user:
        raise forbidden("Only admins and owners can take back the invites of others.")
    call.database.execute("DELETE FROM invites WHERE id = ?", (invite["id"],))


def _write(call: Call, email: str, level: int, access: Access) -> dict[str, Any]:
    body, identity, now = call.body, str(uuid4()), format_time(call.now)
    send = body.get("send_email", True)
    call.database.execute(
        "INSERT INTO invites VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *(identity, call.organization, email, body.get("first_name", ""), send, level, call.caller.user, now, now),
            *(body.get("message", ""), json.dumps(access), send, body.get("combine_pending_invites", False)),
        ),
    )
    (written,) = rows(call.database, "SELECT * FROM invites WHERE id = ?", identity)
    return shown(call.database, call.now, written)


def _refuse_member(call: Call, email: str) -> None:
    if _of_address(call, _MEMBERS, email):
        raise invalid("target_email", "This is the address of a member already.", "already_member")


def _of_address(call: Call, statement: str, email: str) -> list[sqlite3.Row]:
    """What there is of an address in the organization, whatever its case; SQLite knows the case of ASCII only."""
    if email.isascii():
        same = f"SELECT * FROM ({statement}) WHERE target_email = ? COLLATE NOCASE"  # noqa: S608 - one of two constants
        return rows(call.database, same, call.organization, email)
    others = (each for each in rows(call.database, statement, call.organization) if not each["target_email"].isascii())
    return [each for each in others if each["target_email"].casefold() == email.casefold()]


def _refuse_higher(call: Call, pending: Sequence[sqlite3.Row]) -> None:
    """To replace an invite is to take it back, which isn't for those below its level."""
    if call.body.get("level", MEMBER) > call.caller.level:
        raise forbidden("You can't invite to a level above your own.")
    if any(each["level"] > call.caller.level for each in pending):
        raise forbidden("There is an invite for this address to a level above your own.")


def _refuse_unknown_projects(call: Call, access: Access) -> None:
    known = {each["id"] for each in rows(call.database, "SELECT id FROM projects WHERE organization = ?", call.organization)}
    unknown = [str(each["id"]) for each in access or () if each["id"] not in known]
    if unknown:
        raise invalid("private_project_access", f"The organization has no project {', '.join(unknown)}.", "does_not_exist")


def _union(each_access: Iterable[Access]) -> Access:
    given = [access for access in each_access if access is not None]
    levels: dict[int, str] = {}
    for entry in (entry for access in given for entry in access):
        levels[entry["id"]] = max(entry["level"], levels.get(entry["id"], _LEVELS_OF_ACCESS[0]), key=_LEVELS_OF_ACCESS.index)
    return [{"id": project, "level": level} for project, level in levels.items()] if given else None


HANDLERS: Final[Mapping[Endpoint[Any, Any], Handler]] = {
    LIST_INVITES: _list,
    CREATE_INVITE: _create,
    DELETE_INVITE: _delete,
    BULK_INVITE: _bulk,
}
