"""Every field of every table by plain HTTP: what an operation accepts is kept, what it doesn't is
ignored, what is wrong is refused.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, Final

from tests.contract.calls import ROWS, CalledSandbox, error_of, least, serving
from tests.contract.tables import EndpointRow, FieldRow, fields, misfits, plain, rows
from tests.contract.values import read_only, right, wrong
from tests.sandbox.client import SandboxReply
from tests.support import management as seed
from tests.support.cases import cases

TAKING: Final = [row for row in ROWS.values() if row.body]
EVERY: Final = cases("row", TAKING, ids=[row.call for row in TAKING])
WRITING: Final = [row for row in TAKING if row.answer]
VERIFIED: Final = {"jit_provisioning_enabled", "sso_enforcement"}
"""What can be set of a verified domain only."""
STAYS: Final = {"domain"}
"""What an update accepts only as it is."""
CODES: Final = {plain(row["code"]) for row in rows("Errors") if row["status"] == "400"} - {
    "parse_error"
}


def refused(field: FieldRow, value: Any, reply: SandboxReply) -> str:
    """Why a value isn't refused as documented; empty: it is."""
    if reply.status != 400:
        return f"{field.name} = {value!r}: {reply.status}"
    status, kind, code, attr = error_of(reply)
    if (status, kind, attr) != (400, "validation_error", field.name) or code not in CODES:
        return f"{field.name} = {value!r}: {reply.text}"
    return (
        ""
        if value is not None or code == "null" or field.name == "level"
        else f"{field.name} = null: {code}"
    )


@EVERY
async def test_wrong_values(row: EndpointRow, service: CalledSandbox) -> None:
    """A value that a field doesn't take is 400 about that field, with a documented code, and null
    has a code of its own.
    """
    for name, field in row.accepted.items():
        for value in wrong(field):
            reply = await service.call(row.call, {**least(row), name: value})
            assert refused(field, value, reply) == ""


async def test_wrong_values_in_an_array(tmp_path: Path) -> None:
    """In an array of invites an error names the element and its field, and none of them is made."""
    async with serving(tmp_path) as service:
        for name, field in ROWS["invites bulk"].accepted.items():
            for value in wrong(field):
                body = [
                    {"target_email": "first@example.com"},
                    {"target_email": "second@example.com", name: value},
                ]
                assert error_of(await service.call("invites bulk", body))[3] == f"1__{name}", value
        assert [invite["id"] for invite in await service.items("invites list")] == [seed.INVITE]


@EVERY
async def test_needed_fields(row: EndpointRow, tmp_path: Path) -> None:
    """Without a field that is needed it is 400 about that field; where none
    is, no body at all does.
    """
    async with serving(tmp_path) as service:
        reply = await service.call(row.call, None)
        if row.needed:
            assert error_of(reply) == (400, "validation_error", "required", *row.needed)
        else:
            assert reply.status == row.status


@EVERY
async def test_bodies_that_are_no_object(row: EndpointRow, service: CalledSandbox) -> None:
    """A body of another shape is 400, about no field; an array is one where several are taken."""
    for body in (7, "text", True, [7] if row.several else [least(row)]):
        status, kind, code, attr = error_of(await service.call(row.call, body))
        assert (status, kind, code, attr) == (400, "validation_error", "invalid", None)


@EVERY
async def test_what_is_read_only(row: EndpointRow, tmp_path: Path) -> None:
    """Fields that an operation doesn't accept, unknown ones too, are ignored, whatever their
    values are.
    """
    assert row.body is not None
    heading = {"Retry": "BatchExportRun"}.get(row.body[0], row.body[0])
    strange = {
        name: value
        for name, value in read_only(heading, row.body[1]).items()
        if name not in row.accepted
    }
    async with serving(tmp_path) as service:
        reply = await service.call(row.call, {**least(row), **strange, "unknown": {"a": 1}})
        assert reply.status == row.status
        if row.answer:
            assert misfits(reply.json, row.answer) == ""
            assert [name for name, value in strange.items() if reply.json[name] == value] == []


@cases("row", WRITING, ids=[row.call for row in WRITING])
async def test_what_is_accepted_is_there(row: EndpointRow, tmp_path: Path) -> None:
    """Each accepted field has the value that was sent, in the answer and whenever it is read, and
    the others stay as they are.
    """
    async with serving(tmp_path) as service:
        for name, field in row.accepted.items():
            for value in right(field):
                await _check_set(service, row, name, value)


async def _check_set(service: CalledSandbox, row: EndpointRow, name: str, value: Any) -> None:
    ids = {"id": seed.VERIFIED_DOMAIN} if row.call == "domains update" else {}
    body = {name: value} if row.method == "PATCH" else {**least(row), name: value}
    if (name, row.call) == ("domain", "domains update"):
        body = {name: "verified.example.com"}
    before = await _read(service, row, ids) if row.method == "PATCH" else None
    reply = await service.call(row.call, body, ids)
    assert reply.status == row.status, (name, value, reply.text)
    answered = reply.json
    assert misfits(answered, row.answer or "") == ""
    if not (row.call == "domains create" and name in VERIFIED):
        assert _same(answered[name], body[name]), (name, value, answered[name])
    if before is not None:
        moving = {
            name,
            "updated_at",
            "last_updated_at",
            "last_paused_at",
            "has_saml",
            "latest_runs",
        }
        assert {field: answered[field] for field in answered if field not in moving} == {
            field: before[field] for field in before if field not in moving
        }
    assert (await _read(service, row, ids or {"id": answered["id"]}))[name] == answered[name]
    if row.call == "domains create":
        await service.call("domains delete", id=answered["id"])


async def _read(service: CalledSandbox, row: EndpointRow, ids: dict[str, Any]) -> dict[str, Any]:
    """What was written, as it is read afterwards: by itself if that can be, else in the list."""
    if row.resource + " get" in ROWS:
        reply = await service.call(
            row.resource + " get", ids=ids if row.resource != "batch-exports" else {}
        )
        resource: dict[str, Any] = reply.json
        return resource
    wanted = ids.get("id")
    everyone = await service.items(row.resource + " list")
    return next(
        resource
        for resource in everyone
        if wanted in (None, resource["id"])
        and resource.get("user", {"uuid": seed.MEMBER})["uuid"] == seed.MEMBER
    )


def _same(answered: Any, sent: Any) -> bool:
    """Times are the same if they are the same moment, however they are spelled."""
    if isinstance(sent, str) and sent.endswith("T12:00:00Z"):
        return str(answered).startswith(sent[:19])
    return bool(answered == sent) and type(answered) is type(sent)


@cases("row", [row for row in TAKING if row.answer is None], ids=lambda row: row.call)
async def test_what_actions_accept(row: EndpointRow, tmp_path: Path) -> None:
    """Operations that answer no body accept every documented field, each with every value that it
    takes, and change none of them.
    """
    async with serving(tmp_path) as service:
        before = await service.call("batch-exports get")
        for name, field in row.accepted.items():
            for value in right(field):
                if row.call == "batch-exports backfill" and name == "end_at" and value is not None:
                    continue
                reply = await service.call(row.call, {**least(row), name: value})
                assert (reply.status, reply.text) == (row.status, ""), (name, value, reply.text)
        after = await service.call("batch-exports get")
        changing = {"paused", "last_paused_at", "last_updated_at", "latest_runs"}
        assert {name: after.json[name] for name in after.json if name not in changing} == {
            name: before.json[name] for name in before.json if name not in changing
        }


@cases("call", ["domains create", "invites create", "projects create"])
async def test_defaults(call: str, tmp_path: Path) -> None:
    """What no one sent has the documented default."""
    row = ROWS[call]
    async with serving(tmp_path) as service:
        made = (await service.call(call)).json
    documented = {
        field.name: json.loads(field.default) for field in fields(row.answer or "") if field.default
    }
    assert {name: made[name] for name in documented} == documented
    assert set(row.accepted) - set(documented) - row.needed == (
        {"primary_dashboard"} if call == "projects create" else set()
    )


async def test_destination_is_typed(tmp_path: Path) -> None:
    """A destination has its two fields wherever it is answered, and no secret."""
    async with serving(tmp_path) as service:
        shown = (await service.call("batch-exports get")).json["destination"]
        assert misfits(shown, "Destination") == ""
        assert "hidden-secret" not in json.dumps(shown)


async def test_embedded_users_are_the_members(tmp_path: Path) -> None:
    """The user that is embedded in a member is the one that its other appearances show."""
    async with serving(tmp_path) as service:
        members, invites, dashboards = await asyncio.gather(
            *(service.items(f"{name} list") for name in ("members", "invites", "dashboards"))
        )
        owner = next(member["user"] for member in members if member["user"]["uuid"] == seed.OWNER)
        assert [invite["created_by"] for invite in invites] == [owner]
        assert all(dashboard["created_by"] in (owner, None) for dashboard in dashboards)
