"""The members of an organization. It always keeps an owner: the last one can neither be removed nor demoted nor leave.

Nobody touches a member above their own level, nor lifts one above it, nor changes their own level. So whoever lowers an owner is another
one, and stays.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from forwarder.contract.endpoints import DELETE_MEMBER, LIST_MEMBERS, UPDATE_MEMBER, Endpoint
from forwarder.contract.kinds import ADMIN, OWNER
from forwarder.sandbox.management.call import Call, Handler, Listing, forbidden, invalid, not_found
from forwarder.sandbox.management.rows import listing, row
from forwarder.sandbox.management.users import embedded_user
from forwarder.sandbox.timing import format_time

_MEMBERS: Final = """
SELECT members.*, users.uuid, users.is_2fa_enabled, users.has_social_auth, users.last_login
FROM members JOIN users ON users.id = members.user
"""


def shown(database: sqlite3.Connection, member: sqlite3.Row) -> dict[str, Any]:
    """A member as it is answered."""
    return {
        "id": member["id"],
        "user": embedded_user(database, member["user"]),
        "level": member["level"],
        "joined_at": member["joined_at"],
        "updated_at": member["updated_at"],
        "is_2fa_enabled": bool(member["is_2fa_enabled"]),
        "has_social_auth": bool(member["has_social_auth"]),
        "last_login": member["last_login"],
    }


def _list(call: Call) -> Listing:
    statement = f"{_MEMBERS} WHERE members.organization = ? ORDER BY members.number"
    return listing(call.database, call.page, partial(shown, call.database), statement, call.organization)


def _update(call: Call) -> dict[str, Any]:
    member = _found(call)
    level: int | None = call.body.get("level")
    if level is None:
        return shown(call.database, member)
    _refuse_above(call, member)
    if level > call.caller.level:
        raise forbidden("You can't give a level above your own.")
    if level != member["level"]:
        if member["user"] == call.caller.user:
            raise forbidden("You can't change your own level.")
        call.database.execute("UPDATE members SET level = ?, updated_at = ? WHERE id = ?", (level, format_time(call.now), member["id"]))
    return shown(call.database, _found(call))


def _delete(call: Call) -> None:
    member = _found(call)
    if member["user"] != call.caller.user:
        if call.caller.level < ADMIN:
            raise forbidden("Only admins and owners can remove other members.")
        _refuse_above(call, member)
    _refuse_last_owner(call, member)
    call.database.execute("DELETE FROM members WHERE id = ?", (member["id"],))


def _found(call: Call) -> sqlite3.Row:
    statement = f"{_MEMBERS} WHERE users.uuid = ? AND members.organization = ?"
    member = row(call.database, statement, call.ids["user__uuid"], call.organization)
    if member is None:
        raise not_found()
    return member


def _refuse_above(call: Call, member: sqlite3.Row) -> None:
    if member["level"] > call.caller.level:
        raise forbidden("You can't change a member above your own level.")


def _refuse_last_owner(call: Call, member: sqlite3.Row) -> None:
    others = "SELECT 1 FROM members WHERE organization = ? AND level = ? AND id <> ?"
    if member["level"] == OWNER and row(call.database, others, call.organization, OWNER, member["id"]) is None:
        raise invalid(None, "An organization keeps an owner: make somebody else one first.", "last_owner")


HANDLERS: Final[Mapping[Endpoint[Any, Any], Handler]] = {LIST_MEMBERS: _list, UPDATE_MEMBER: _update, DELETE_MEMBER: _delete}
