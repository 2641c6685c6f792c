"""Every row of the table of management endpoints by plain HTTP: what it answers, who may, and what
there isn't.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from forwarder.contract.endpoints import KeyScope
from tests.contract.calls import CalledSandbox, error_of, ids_of, is_number, least, path_of, serving
from tests.contract.tables import EndpointRow, endpoints, misfits, plain, rows
from tests.sandbox.client import SandboxReply
from tests.support import management as seed
from tests.support.cases import cases

ROWS: Final = endpoints()
EVERY: Final = cases("row", ROWS, ids=[row.call for row in ROWS])
SCOPES: Final = [plain(row["scope"]) for row in rows("Scopes")]
STRICT: Final = {plain(row["call"]): row["answer"] for row in rows("Strict answers")}
NOT_FOUND: Final = (404, "invalid_request", "not_found", None)
FORBIDDEN: Final = (403, "authentication_error", "permission_denied", None)


def fits(row: EndpointRow, reply: SandboxReply) -> str:
    """Why an answer isn't the documented one; empty: it is."""
    if reply.status != row.status:
        return f"{reply.status}: {reply.text}"
    if row.answer is None:
        return reply.text or reply.headers.get("Content-Type", "")
    if not reply.headers["Content-Type"].startswith("application/json"):
        return reply.headers["Content-Type"]
    if not row.pages:
        return misfits(reply.json, row.answer)
    return misfits(reply.json, "Envelope") or "; ".join(
        filter(None, (misfits(result, row.answer) for result in reply.json["results"]))
    )


@EVERY
async def test_success(row: EndpointRow, tmp_path: Path) -> None:
    """Each endpoint answers with the documented status, and a body of the documented fields and
    types, or none.
    """
    async with serving(tmp_path) as service:
        assert fits(row, await service.call(row.call)) == ""


@cases("path", sorted({row.path for row in ROWS}))
async def test_without_the_slash(path: str, tmp_path: Path) -> None:
    """Without the slash at the end of the path the answer is the same, and not a redirect."""
    own = [row for row in ROWS if row.path == path]
    async with serving(tmp_path) as service:
        for row in sorted(own, key=lambda row: row.method == "DELETE"):
            reply = await service.ask(row.method, path_of(row).removesuffix("/"), least(row))
            assert fits(row, reply) == "", row.call


@EVERY
async def test_strict_answers(row: EndpointRow, tmp_path: Path) -> None:
    """In strict mode the tabulated endpoints answer the service's bodies; all others answer the
    same as otherwise.
    """
    async with serving(tmp_path, strict=True) as service:
        reply = await service.call(row.call)
        if row.call not in STRICT:
            assert fits(row, reply) == ""
        elif "Domain" in STRICT[row.call]:
            assert misfits(reply.json, "Domain") == ""
        elif "results" in STRICT[row.call]:
            assert (
                await service.call(
                    "batch-exports backfill",
                    {"start_at": "2026-01-01T00:00:00Z", "end_at": "2026-01-01T01:00:00Z"},
                )
            ).json
            await service.settle()
            lines = (await service.call(row.call)).json["results"]
            assert lines
            assert all(list(line) == re.findall(r'"(\w+)"', STRICT[row.call])[1:] for line in lines)
        else:
            assert reply.status == row.status
            spelled = reply.json | {name: "UUID" for name in reply.json if name == "backfill_id"}
            assert STRICT[row.call] == f"`{spelled}`".replace("'", '"').replace(
                '"UUID"', "UUID"
            ).replace("T", "t").replace("F", "f")


def test_strict_answers_are_of_endpoints() -> None:
    """The table of strict answers names only what there is."""
    assert set(STRICT) < {row.call for row in ROWS}


@EVERY
async def test_no_key_and_unknown_keys(row: EndpointRow, service: CalledSandbox) -> None:
    """Without a key, and with one that no one has, a project's among them, it is 401; only the
    Authorization header counts.
    """
    nobody = (401, "authentication_error", "not_authenticated", None)
    assert error_of(await service.call(row.call, key=None)) == nobody
    in_query = f"?personal_api_key={seed.OWNER_KEY}"
    assert error_of(await service.call(row.call, key=None, query=in_query)) == nobody
    for key in ("phx_nobody_has_this_one", seed.TOKEN, seed.OWNER_KEY + "x"):
        assert error_of(await service.call(row.call, key=key)) == (
            401,
            "authentication_error",
            "authentication_failed",
            None,
        )


@EVERY
async def test_scopes(row: EndpointRow, tmp_path: Path) -> None:
    """A key with any one other scope is refused by name of the scope that it lacks; the documented
    one is enough, and so is its write.
    """
    enough = {row.scope, row.scope.replace(":read", ":write")}
    async with serving(tmp_path) as service:
        for scope in set(SCOPES) - enough:
            reply = await service.call(row.call, key=_only(scope))
            assert error_of(reply) == FORBIDDEN
            assert reply.json["detail"] == f"API key missing required scope '{row.scope}'"
        for scope in enough & set(SCOPES):
            assert fits(row, await service.call(row.call, key=_only(scope))) == ""


def _only(scope: str) -> str:
    return next(seed.scoped_key(key_scope) for key_scope in KeyScope if key_scope == scope)


@EVERY
async def test_levels(row: EndpointRow, tmp_path: Path) -> None:
    """A member is refused where an admin is needed, before the body is looked at; anyone who has
    the level is not.
    """
    async with serving(tmp_path) as service:
        if row.level == "admin":
            assert (
                error_of(
                    await service.call(row.call, {"level": "x", "domain": 7}, key=seed.MEMBER_KEY)
                )
                == FORBIDDEN
            )
            assert fits(row, await service.call(row.call, key=seed.ADMIN_KEY)) == ""
        else:
            ids = await _own_invite(service) if row.call == "invites delete" else {}
            assert fits(row, await service.call(row.call, ids=ids, key=seed.MEMBER_KEY)) == ""


async def _own_invite(service: CalledSandbox) -> dict[str, object]:
    """Of invites a member deletes only those that it made."""
    return {"id": (await service.call("invites create", key=seed.MEMBER_KEY)).json["id"]}


@EVERY
async def test_another_organization(row: EndpointRow, tmp_path: Path) -> None:
    """What is another organization's isn't there: neither for its ids as a whole nor for any of
    them, and not for its members either.
    """
    own = ids_of(row)
    other = ids_of(row, other=True)
    async with serving(tmp_path) as service:
        for ids in (other, *({**own, name: other[name]} for name in own)):
            assert error_of(await service.call(row.call, ids=ids)) == NOT_FOUND
        assert error_of(await service.call(row.call, key=seed.STRANGER_KEY)) == NOT_FOUND
        assert fits(
            row, await service.call(row.call, ids=other, key=seed.STRANGER_KEY)
        ) == "" or row.call.startswith("members ")


@EVERY
async def test_unknown_and_malformed_ids(row: EndpointRow, service: CalledSandbox) -> None:
    """An id that nothing has is 404, and one that can't be an id too."""
    for name in row.parameters:
        unknown = seed.UNKNOWN_NUMBER if is_number(row, name) else seed.UNKNOWN
        malformed = ["x", "1.5", "-1", " ", "%", "9" * 40, "\u0663", "a/b", "\0", "0" * 32]
        for value in (unknown, *malformed):
            reply = await service.call(row.call, ids={name: value})
            assert error_of(reply) == NOT_FOUND, (name, value)


@cases("path", sorted({row.path for row in ROWS}))
async def test_other_methods(path: str, service: CalledSandbox) -> None:
    """A method that the path doesn't have is 405, with those that it has in Allow."""
    own = [row for row in ROWS if row.path == path]
    for method in {"GET", "POST", "PATCH", "PUT", "DELETE"} - {row.method for row in own}:
        reply = await service.ask(method, path_of(own[0]))
        assert error_of(reply) == (405, "invalid_request", "method_not_allowed", None)
        assert {allowed.strip() for allowed in reply.headers["Allow"].split(",")} - {"HEAD"} == {
            row.method for row in own
        }
