"""Who belongs to an organization: its members and its invites.

An organization always has an owner: the last one can neither be removed nor demoted nor leave. A
member cannot change a member above their own level, promote one above it, or change their own
level. So only another owner can demote an owner, and that owner stays.

There is at most one unexpired invite for an address. A new invite replaces those before it; with
`combine_pending_invites` it takes over the highest level and all access of the unexpired ones. A
member cannot invite above their own level, nor replace a pending invite above it. The sandbox
sends no e-mail: `emailing_attempt_made` says what the service would do. Users have no endpoint: a
seed creates them.
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

from forwarder.contract.endpoints import (
    BULK_INVITE,
    CREATE_INVITE,
    DELETE_INVITE,
    DELETE_MEMBER,
    LIST_INVITES,
    LIST_MEMBERS,
    UPDATE_MEMBER,
    Endpoint,
)
from forwarder.contract.payloads import MOST_INVITES
from forwarder.contract.resources import ADMIN, MEMBER, OWNER, User
from forwarder.sandbox.manage.call import Handler, Listing, ManagementCall, list_page, row, rows
from forwarder.sandbox.protocol.http import ManagementError, forbidden, invalid, not_found
from forwarder.sandbox.protocol.times import format_time, parse_time

INVITE_LIFETIME: Final = timedelta(days=3)
_MEMBERS: Final = """
SELECT members.*, users.uuid, users.is_2fa_enabled, users.has_social_auth, users.last_login
FROM members JOIN users ON users.id = members.user
"""
_LEVELS_OF_ACCESS: Final = ("member", "admin")
"""Of a project; the last is the highest."""
_INVITES: Final = "SELECT * FROM invites WHERE organization = ?"
_MEMBER_ADDRESSES: Final = (
    "SELECT email AS target_email FROM members JOIN users ON users.id = members.user WHERE "
    "organization = ?"
)
ProjectAccessList: TypeAlias = Sequence[Mapping[str, Any]] | None


def member_resource(database: sqlite3.Connection, member: sqlite3.Row) -> dict[str, Any]:
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


def _list_members(call: ManagementCall) -> Listing:
    statement = f"{_MEMBERS} WHERE members.organization = ? ORDER BY members.number"
    return list_page(
        call.database,
        call.page,
        partial(member_resource, call.database),
        statement,
        call.organization,
    )


def _update_member(call: ManagementCall) -> dict[str, Any]:
    member = _find_member(call)
    level: int | None = call.body.get("level")
    if level is None:
        return member_resource(call.database, member)
    _reject_above(call, member)
    if level > call.caller.level:
        raise forbidden("You can't give a level above your own.")
    if level != member["level"]:
        if member["user"] == call.caller.user:
            raise forbidden("You can't change your own level.")
        call.database.execute(
            "UPDATE members SET level = ?, updated_at = ? WHERE id = ?",
            (level, format_time(call.now), member["id"]),
        )
    return member_resource(call.database, _find_member(call))


def _remove_member(call: ManagementCall) -> None:
    member = _find_member(call)
    if member["user"] != call.caller.user:
        if call.caller.level < ADMIN:
            raise forbidden("Only admins and owners can remove other members.")
        _reject_above(call, member)
    _keep_an_owner(call, member)
    call.database.execute("DELETE FROM members WHERE id = ?", (member["id"],))


def _find_member(call: ManagementCall) -> sqlite3.Row:
    statement = f"{_MEMBERS} WHERE users.uuid = ? AND members.organization = ?"
    member = row(call.database, statement, call.ids["user__uuid"], call.organization)
    if member is None:
        raise not_found()
    return member


def _reject_above(call: ManagementCall, member: sqlite3.Row) -> None:
    if member["level"] > call.caller.level:
        raise forbidden("You can't change a member above your own level.")


def _keep_an_owner(call: ManagementCall, member: sqlite3.Row) -> None:
    others = "SELECT 1 FROM members WHERE organization = ? AND level = ? AND id <> ?"
    if (
        member["level"] == OWNER
        and row(call.database, others, call.organization, OWNER, member["id"]) is None
    ):
        raise invalid(
            None,
            "An organization keeps an owner: make another member an owner first.",
            "last_owner",
        )


def invite_resource(
    database: sqlite3.Connection, now: datetime, invite: sqlite3.Row
) -> dict[str, Any]:
    """An invite as it is answered."""
    return {
        "id": invite["id"],
        "target_email": invite["target_email"],
        "first_name": invite["first_name"],
        "emailing_attempt_made": bool(invite["emailing_attempt_made"]),
        "level": invite["level"],
        "is_expired": is_expired(invite, now),
        "created_by": embedded_user(database, invite["created_by"]),
        "created_at": invite["created_at"],
        "updated_at": invite["updated_at"],
        "message": invite["message"],
        "private_project_access": json.loads(invite["private_project_access"]),
        "send_email": bool(invite["send_email"]),
        "combine_pending_invites": bool(invite["combine_pending_invites"]),
    }


def is_expired(invite: Mapping[str, Any] | sqlite3.Row, now: datetime) -> bool:
    """Whether an invite has expired."""
    created = parse_time(invite["created_at"])
    return created is None or now - created >= INVITE_LIFETIME


def normalized_email(text: str) -> str:
    """An e-mail address as it is kept: its domain in lower case."""
    local, _, domain = text.rpartition("@")
    return f"{local}@{domain.lower()}"


def _list_invites(call: ManagementCall) -> Listing:
    show = partial(invite_resource, call.database, call.now)
    return list_page(
        call.database, call.page, show, f"{_INVITES} ORDER BY number", call.organization
    )


def _create_invite(call: ManagementCall) -> dict[str, Any]:
    email = normalized_email(call.body["target_email"])
    _reject_member(call, email)
    earlier = _of_address(call, _INVITES, email)
    access = call.body.get("private_project_access")
    _reject_unknown_projects(call, access)
    pending = [invite for invite in earlier if not is_expired(invite, call.now)]
    _reject_higher(call, pending)
    combined = pending if call.body.get("combine_pending_invites", False) else []
    level = max([call.body.get("level", MEMBER), *(invite["level"] for invite in combined)])
    access = _union(
        [*(json.loads(invite["private_project_access"]) for invite in combined), access]
    )
    call.database.executemany(
        "DELETE FROM invites WHERE id = ?", [(invite["id"],) for invite in earlier]
    )
    return _insert_invite(call, email, level, access)


def _bulk_invite(call: ManagementCall) -> None:
    if len(call.body) > MOST_INVITES:
        raise invalid(None, f"At most {MOST_INVITES} people can be invited at once.", "max_length")
    for number, body in enumerate(call.body):
        try:
            _create_invite(replace(call, body=body))
        except ManagementError as error:
            attr = (
                f"{number}__{error.attr}"
                if error.attr and isinstance(call.body, list)
                else error.attr
            )
            raise ManagementError(
                error.status, error.kind, error.code, error.detail, attr
            ) from None


def _delete_invite(call: ManagementCall) -> None:
    invite = row(
        call.database,
        "SELECT * FROM invites WHERE id = ? AND organization = ?",
        call.ids["id"],
        call.organization,
    )
    if invite is None:
        raise not_found()
    if call.caller.level < ADMIN and invite["created_by"] != call.caller.user:
        raise forbidden("Only admins and owners can take back the invites of others.")
    call.database.execute("DELETE FROM invites WHERE id = ?", (invite["id"],))


def _insert_invite(
    call: ManagementCall, email: str, level: int, access: ProjectAccessList
) -> dict[str, Any]:
    body = call.body
    identity = str(uuid4())
    now = format_time(call.now)
    send = body.get("send_email", True)
    call.database.execute(
        "INSERT INTO invites VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *(
                identity,
                call.organization,
                email,
                body.get("first_name", ""),
                send,
                level,
                call.caller.user,
                now,
                now,
            ),
            *(
                body.get("message", ""),
                json.dumps(access),
                send,
                body.get("combine_pending_invites", False),
            ),
        ),
    )
    (written,) = rows(call.database, "SELECT * FROM invites WHERE id = ?", identity)
    return invite_resource(call.database, call.now, written)


def _reject_member(call: ManagementCall, email: str) -> None:
    if _of_address(call, _MEMBER_ADDRESSES, email):
        raise invalid("target_email", "This is the address of a member already.", "already_member")


def _of_address(call: ManagementCall, statement: str, email: str) -> list[sqlite3.Row]:
    """What there is of an address in the organization, whatever its case; SQLite knows the case of
    ASCII only.
    """
    if email.isascii():
        # S608: the statement is one of two constants of this module.
        same = f"SELECT * FROM ({statement}) WHERE target_email = ? COLLATE NOCASE"  # noqa: S608
        return rows(call.database, same, call.organization, email)
    others = (
        row
        for row in rows(call.database, statement, call.organization)
        if not row["target_email"].isascii()
    )
    return [other for other in others if other["target_email"].casefold() == email.casefold()]


def _reject_higher(call: ManagementCall, pending: Sequence[sqlite3.Row]) -> None:
    """Replacing an invite deletes it, which requires at least its level."""
    if call.body.get("level", MEMBER) > call.caller.level:
        raise forbidden("You can't invite to a level above your own.")
    if any(invite["level"] > call.caller.level for invite in pending):
        raise forbidden("There is an invite for this address to a level above your own.")


def _reject_unknown_projects(call: ManagementCall, access: ProjectAccessList) -> None:
    known = {
        row["id"]
        for row in rows(
            call.database, "SELECT id FROM projects WHERE organization = ?", call.organization
        )
    }
    unknown = [str(entry["id"]) for entry in access or () if entry["id"] not in known]
    if unknown:
        raise invalid(
            "private_project_access",
            f"The organization has no project {', '.join(unknown)}.",
            "does_not_exist",
        )


def _union(each_access: Iterable[ProjectAccessList]) -> ProjectAccessList:
    given = [access for access in each_access if access is not None]
    levels: dict[int, str] = {}
    for entry in (entry for access in given for entry in access):
        levels[entry["id"]] = max(
            entry["level"],
            levels.get(entry["id"], _LEVELS_OF_ACCESS[0]),
            key=_LEVELS_OF_ACCESS.index,
        )
    return [{"id": project, "level": level} for project, level in levels.items()] if given else None


def embedded_user(database: sqlite3.Connection, user: int) -> User:
    """A user by number. There must be one."""
    row = database.execute(
        "SELECT id, uuid, distinct_id, first_name, last_name, email, is_email_verified, "
        "hedgehog_config, role_at_organization"
        " FROM users WHERE id = ?",
        (user,),
    ).fetchone()
    (
        number,
        uuid,
        distinct_id,
        first_name,
        last_name,
        email,
        is_email_verified,
        hedgehog_config,
        role_at_organization,
    ) = row
    return User(
        id=number,
        uuid=uuid,
        distinct_id=distinct_id,
        first_name=first_name,
        last_name=last_name,
        email=email,
        is_email_verified=bool(is_email_verified),
        hedgehog_config=json.loads(hedgehog_config),
        role_at_organization=role_at_organization,
    )


HANDLERS: Final[Mapping[Endpoint[Any, Any], Handler]] = {
    LIST_MEMBERS: _list_members,
    UPDATE_MEMBER: _update_member,
    DELETE_MEMBER: _remove_member,
    LIST_INVITES: _list_invites,
    CREATE_INVITE: _create_invite,
    DELETE_INVITE: _delete_invite,
    BULK_INVITE: _bulk_invite,
}
