"""A member can do nothing beyond their level, and a key nothing beyond its scope: every endpoint
is tried.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forwarder.contract import endpoints as table
from forwarder.contract.endpoints import ENDPOINTS, Endpoint, IdKind, KeyScope, Method
from forwarder.contract.resources import ADMIN, OWNER
from forwarder.contract.resources import MEMBER as PLAIN_MEMBER
from tests.end_to_end.halves import BODIES, EVERY, REFUSED, halves
from tests.support import management as seed


async def test_a_removed_members_key_is_rejected(tmp_path: Path) -> None:
    """The key of a member who was removed is good for nothing from then on: every
    endpoint is 404.
    """
    ids = {
        "organization_id": seed.ORGANIZATION,
        "project_id": str(seed.PROJECT),
        "batch_export_id": seed.EXPORT,
        "user__uuid": seed.MEMBER,
    }
    async with halves(tmp_path) as half:
        gone = await half.call(table.DELETE_MEMBER, ids, key=seed.OWNER_KEY)
        assert gone.status == 204
        for endpoint in ENDPOINTS:
            reply = await half.call(
                endpoint, {**ids, "id": own_of_first(endpoint)}, key=seed.MEMBER_KEY
            )
            assert (reply.status, reply.json) == (404, REFUSED), endpoint.name


def own_of_first(endpoint: Endpoint[Any, Any]) -> str:
    """An id of the first organization that an endpoint is meant for."""
    return {
        "domains": seed.DOMAIN,
        "invites": seed.INVITE,
        "projects": str(seed.PROJECT),
        "batch-export-runs": seed.RUN,
    }.get(endpoint.resource, seed.EXPORT)


@EVERY
async def test_a_level_reaches_no_further(endpoint: Endpoint[Any, Any], tmp_path: Path) -> None:
    """A plain member is refused with 403 where the table asks for more, whatever the body, and
    nothing changes.
    """
    ids = {
        "organization_id": seed.ORGANIZATION,
        "project_id": str(seed.PROJECT),
        "batch_export_id": seed.EXPORT,
        "user__uuid": seed.ADMIN,
    }
    async with halves(tmp_path) as half:
        before = await half.everything()
        for body in (BODIES.get(endpoint.request), None, {"level": "x"}):
            reply = await half.call(
                endpoint, {**ids, "id": own_of_first(endpoint)}, body, seed.MEMBER_KEY
            )
            if endpoint.level > PLAIN_MEMBER:
                assert (reply.status, reply.json["code"]) == (403, "permission_denied")
        if endpoint.level > PLAIN_MEMBER or endpoint.method is Method.GET:
            assert await half.everything() == before


@pytest.mark.parametrize(
    ("key", "endpoint", "whom", "body"),
    [
        (
            seed.MEMBER_KEY,
            table.CREATE_INVITE,
            "",
            {"target_email": "a@example.net", "level": ADMIN},
        ),
        (
            seed.MEMBER_KEY,
            table.BULK_INVITE,
            "",
            [{"target_email": "a@example.net"}, {"target_email": "b@example.net", "level": OWNER}],
        ),
        (seed.MEMBER_KEY, table.DELETE_INVITE, "", None),
        (seed.MEMBER_KEY, table.DELETE_MEMBER, seed.ADMIN, None),
        (seed.MEMBER_KEY, table.DELETE_MEMBER, seed.OWNER, None),
        (seed.MEMBER_KEY, table.UPDATE_MEMBER, seed.MEMBER, {"level": OWNER}),
        (
            seed.ADMIN_KEY,
            table.CREATE_INVITE,
            "",
            {"target_email": "a@example.net", "level": OWNER},
        ),
        (seed.ADMIN_KEY, table.UPDATE_MEMBER, seed.ADMIN, {"level": OWNER}),
        (seed.ADMIN_KEY, table.UPDATE_MEMBER, seed.MEMBER, {"level": OWNER}),
        (seed.ADMIN_KEY, table.UPDATE_MEMBER, seed.OWNER, {"level": PLAIN_MEMBER}),
        (seed.ADMIN_KEY, table.DELETE_MEMBER, seed.OWNER, None),
        (seed.OWNER_KEY, table.UPDATE_MEMBER, seed.OWNER, {"level": PLAIN_MEMBER}),
    ],
)
async def test_no_member_raises_their_own_level(
    key: str, endpoint: Endpoint[Any, Any], whom: str, body: Any, tmp_path: Path
) -> None:
    """No one invites, lifts, lowers or removes beyond their own level, nor changes their own: 403,
    and nothing changes.
    """
    ids = {"organization_id": seed.ORGANIZATION, "id": seed.INVITE, "user__uuid": whom}
    async with halves(tmp_path) as half:
        before = await half.everything()
        reply = await half.call(endpoint, ids, body, key)
        assert (reply.status, reply.json["type"], reply.json["code"]) == (
            403,
            "authentication_error",
            "permission_denied",
        )
        assert await half.everything() == before


@pytest.mark.parametrize("scope", KeyScope)
async def test_a_scope_reaches_no_further(scope: KeyScope, tmp_path: Path) -> None:
    """A key of one scope gets into the endpoints of that scope, and of reading where it is one of
    writing; elsewhere it is 403.
    """
    nothing = {IdKind.UUID: seed.UNKNOWN, IdKind.INTEGER: str(seed.UNKNOWN_NUMBER)}
    reached = {scope, scope.replace(":write", ":read")}
    async with halves(tmp_path) as half:
        before = await half.everything()
        for endpoint in ENDPOINTS:
            ids = {parameter.name: nothing[parameter.kind] for parameter in endpoint.parameters}
            reply = await half.call(endpoint, ids, key=seed.scoped_key(scope))
            if endpoint.scope in reached:
                assert (reply.status, reply.json) == (404, REFUSED), endpoint.name
            else:
                detail = f"API key missing required scope '{endpoint.scope}'"
                assert (reply.status, reply.json["code"], reply.json["detail"]) == (
                    403,
                    "permission_denied",
                    detail,
                ), endpoint.name
        assert await half.everything() == before
