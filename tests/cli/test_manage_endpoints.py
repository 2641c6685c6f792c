"""Every endpoint of the management API through its command, against the sandbox; and what is
refused, by a command of each kind. That every endpoint refuses the same is shown over HTTP, in
`tests/contract/test_endpoints.py`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from forwarder.contract.endpoints import ENDPOINTS, IdKind, KeyScope
from tests.cli.managing import BY_NAME, Manager, least, line
from tests.contract.calls import ROWS, ids_of, serving
from tests.support import management as seed
from tests.support.cases import cases

EVERY = [endpoint.name for endpoint in ENDPOINTS]
LISTS = [endpoint.name for endpoint in ENDPOINTS if endpoint.paginated]
KINDS = (
    *("domains list", "domains get", "domains update", "invites bulk"),
    *("batch-exports delete", "batch-export-runs retry"),
)
"""A list, a thing, a change that is answered, one of several things, a removal, and an action
without an answer.
"""
WITH_BODY = [name for name in KINDS if BY_NAME[name].takes_body]
SHOWN = [
    *(endpoint.name for endpoint in ENDPOINTS if endpoint.method == "GET"),
    *("invites create", "members update", "batch-exports pause"),
]
"""All that is read, and a change of each kind; together they leave each other as they were."""
MORE = ("one", "two")


@pytest.fixture
async def manager(tmp_path: Path) -> AsyncIterator[Manager]:
    """Someone who types commands for a sandbox; the DNS has the challenge of
    the organization's domain.
    """
    async with serving(tmp_path) as service:
        challenge = (await service.call("domains get")).json["verification_challenge"]
        service.dns.challenges = {"_posthog-challenge.example.com": [challenge]}
        yield Manager(service)


async def everything(manager: Manager) -> dict[str, Any]:
    """All that the organization has, as lists and single things show it."""
    lists = {name: await manager.service.items(name) for name in LISTS}
    return {
        **lists,
        **{
            name: (await manager.service.call(name)).json
            for name in ("batch-exports get", "projects get")
        },
    }


@pytest.mark.parametrize("name", EVERY)
async def test_a_command_does_what_its_endpoint_does(manager: Manager, name: str) -> None:
    """Exit code 0; as JSON what the service answered, and nothing where it answers nothing."""
    endpoint = BY_NAME[name]
    done = await manager.call(name)
    assert (done.code, done.err) == (0, "")
    if endpoint.answers_body and endpoint.method == "GET":
        assert done.json == (await manager.service.call(name)).json
    elif endpoint.answers_body:
        assert set(endpoint.response.__annotations__) <= set(done.json)
    else:
        assert done.out == ""
    if endpoint.destructive:
        assert (await manager.call(name)).code == 1


@cases("name", SHOWN)
async def test_on_a_terminal_a_command_says_what_it_did(manager: Manager, name: str) -> None:
    """As a table: what was answered, or that it is done."""
    words = line(name)
    done = await manager.type(*words[: words.index("--output")])
    assert (done.code, done.err) == (0, "")
    shown = (
        "phc_"
        if name.startswith("projects")
        else "@example.com"
        if BY_NAME[name].resource in {"invites", "members"}
        else ""
    )
    assert shown in done.out if BY_NAME[name].answers_body else done.out.startswith(f"Done: {name}")


@cases("name", KINDS)
async def test_without_a_key_nothing_is_called(manager: Manager, name: str) -> None:
    """Exit code 2, and how to give one; an unknown key is exit code 3."""
    before = await everything(manager)
    none = await manager.call(name, key=None)
    assert (none.code, none.out) == (2, "")
    assert "FORWARDER_MANAGEMENT__API_KEY" in none.err
    unknown = await manager.call(name, key="phx_nobody_has_this_key_0000")
    assert (unknown.code, unknown.out) == (3, "")
    assert "HTTP 401 authentication_failed" in unknown.err
    assert "phx_nobody" not in unknown.err
    assert await everything(manager) == before


@cases("name", KINDS)
async def test_a_missing_scope_is_named(manager: Manager, name: str) -> None:
    """Exit code 3, with the scope that the key lacks."""
    scope = BY_NAME[name].scope
    other = next(
        key_scope
        for key_scope in KeyScope
        if key_scope.partition(":")[0] != scope.partition(":")[0]
    )
    refused = await manager.call(name, key=seed.scoped_key(other))
    assert (refused.code, refused.out) == (3, "")
    assert f"API key missing required scope '{scope}'" in refused.err


@cases("name", KINDS)
async def test_another_organization_is_not_there(manager: Manager, name: str) -> None:
    """Exit code 1: neither by its own ids, nor its things by the ids of one's own organization;
    nothing there changes.
    """
    stranger = await manager.call(name, other=True, key=seed.OWNER_KEY)
    assert (stranger.code, stranger.out) == (1, "")
    assert "HTTP 404 not_found" in stranger.err
    inner = {
        key: value
        for key, value in ids_of(ROWS[name], other=True).items()
        if key not in {"organization_id", "project_id"}
    }
    if inner:
        mixed = await manager.call(name, ids=inner)
        assert (mixed.code, mixed.out) == (1, "")
        assert "HTTP 404 not_found" in mixed.err


@cases("name", [name for name in KINDS if len(BY_NAME[name].parameters) > 1])
async def test_an_id_that_nothing_has(manager: Manager, name: str) -> None:
    """Exit code 1, and the ids to check; a malformed one is as unknown."""
    for parameter in BY_NAME[name].parameters:
        unknown = seed.UNKNOWN if parameter.kind is IdKind.UUID else seed.UNKNOWN_NUMBER
        for value in (unknown, "no-id-at-all"):
            done = await manager.call(name, ids={parameter.name: value})
            assert (done.code, done.out) == (1, "")
            assert "HTTP 404 not_found" in done.err
            assert f"{parameter.name} {value}" in done.err


@cases("name", WITH_BODY)
async def test_a_field_that_the_service_refuses(manager: Manager, name: str) -> None:
    """Exit code 1, with the field and the service's words; nothing changes."""
    before = await everything(manager)
    field = next(iter(sorted(BY_NAME[name].request.__annotations__)))
    done = await manager.call(name, data={**least(name), field: {"no": "value"}})
    assert (done.code, done.out) == (1, "")
    assert "HTTP 400" in done.err
    assert field in done.err
    assert await everything(manager) == before


@cases("name", WITH_BODY)
async def test_read_only_fields_are_ignored(manager: Manager, name: str) -> None:
    """Through `--data` they can be sent; they change nothing, which is said on stderr where the
    answer shows it.
    """
    strange = {
        "id": seed.UNKNOWN,
        "uuid": seed.UNKNOWN,
        "created_at": "1999-12-31T23:59:59Z",
        "is_expired": True,
        "strange": [1],
    }
    done = await manager.call(name, data={**strange, **least(name)})
    said = f"Ignored: id, uuid, created_at, is_expired, strange. {name} does not accept them.\n"
    assert (done.code, done.err) == (0, said if BY_NAME[name].answers_body else "")
    assert seed.UNKNOWN not in done.out
    assert "1999" not in done.out
    assert "1999" not in json.dumps(await everything(manager))


@pytest.mark.parametrize("name", LISTS)
async def test_pages(manager: Manager, name: str) -> None:
    """First, middle and last page as asked for, with what is left said on stderr; all of them, an
    item a line, without.
    """
    await more_of(manager, name)
    items = await manager.service.items(name)
    assert len(items) >= 3
    first, middle = [
        await manager.call(name, "--limit", "1", "--offset", offset) for offset in ("0", "1")
    ]
    last = await manager.call(name, "--limit", "1", "--offset", str(len(items) - 1))
    assert [done.json["results"] for done in (first, middle, last)] == [
        items[:1],
        items[1:2],
        items[-1:],
    ]
    assert [done.json["previous"] is None for done in (first, middle, last)] == [True, False, False]
    assert (
        middle.err == f"1 of {len(items)} are shown; --offset 2 shows the next, --all shows all.\n"
    )
    assert (last.json["next"], last.err) == (None, "")
    whole = await manager.call(name, "--limit", "2", "--all")
    assert [json.loads(output_line) for output_line in whole.out.splitlines()] == items
    assert whole.err == ""


async def more_of(manager: Manager, name: str) -> None:
    """Make at least three of what a list has."""
    resource = BY_NAME[name].resource
    bodies = {
        "domains": [{"domain": f"{label}.example.net"} for label in MORE],
        "invites": [{"target_email": f"{label}@example.net"} for label in MORE],
        "projects": [{"name": label} for label in MORE],
    }
    for body in bodies.get(resource, []):
        assert (await manager.service.call(f"{resource} create", body)).status == 201
