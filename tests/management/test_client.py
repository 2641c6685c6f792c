"""The methods of the groups: one for each row of the table, typed as the table says."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any, assert_type, get_args, get_type_hints

import pytest
from pydantic import TypeAdapter
from typing_extensions import Unpack

from forwarder.contract.endpoints import (
    CREATE_DOMAIN,
    ENDPOINTS,
    LIST_DOMAINS,
    Endpoint,
    IdKind,
    KeyScope,
    Method,
)
from forwarder.contract.resources import (
    BatchExport,
    Dashboard,
    Domain,
    Invite,
    JsonObject,
    Member,
    PageEnvelope,
    Project,
    ProjectItem,
)
from forwarder.management import Client, InvalidCall, Pages, SyncClient, SyncPages
from forwarder.management.client import OperationGroup
from tests.contract.calls import ROWS, ids_of
from tests.contract.values import wrong
from tests.management.faces import BY_NAME, LISTS, Face, facing
from tests.management.scripted import DOMAIN, KEY, ORGANIZATION, envelope, raw, said, talking
from tests.support import management as seed
from tests.support.cases import cases
from tests.support.upstream import Answer, Request

EVERY = cases("endpoint", ENDPOINTS, ids=[endpoint.name for endpoint in ENDPOINTS])


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    """A client that calls no one."""
    async with Client("http://service.invalid", KEY) as unused:
        yield unused


def groups_of(client: Client) -> dict[str, OperationGroup]:
    """Its groups, by name."""
    return {
        name: value for name, value in vars(client).items() if isinstance(value, OperationGroup)
    }


async def test_there_is_a_method_for_each_row_and_no_other(client: Client) -> None:
    """Groups are named as resources, and methods as verbs."""
    verbs = {
        name: [verb for verb in vars(type(group)) if not verb.startswith("_")]
        for name, group in groups_of(client).items()
    }
    methods = {
        f"{name.replace('_', '-')} {verb}"
        for name, group_verbs in verbs.items()
        for verb in group_verbs
    }
    assert methods == {endpoint.name for endpoint in ENDPOINTS}


@EVERY
async def test_a_method_takes_what_its_row_takes(
    client: Client, endpoint: Endpoint[Any, Any]
) -> None:
    """Ids by position, in the order of the path; the accepted fields as keywords; and the
    types say what comes back.
    """
    group = groups_of(client)[endpoint.resource.replace("-", "_")]
    method = getattr(type(group), endpoint.verb)
    hints = get_type_hints(method)
    parameters = list(inspect.signature(method).parameters.values())[1:]
    positional = [
        parameter.name
        for parameter in parameters
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY
    ]
    assert len(positional) == len(endpoint.parameters) + endpoint.several
    assert all(
        given.endswith(_last_word(wanted.name))
        for given, wanted in zip(positional, endpoint.parameters, strict=False)
    )
    if endpoint.paginated:
        assert get_args(hints["return"]) == (endpoint.response,)
    elif endpoint.answers_body:
        assert hints["return"] is endpoint.response
    if endpoint.takes_body and not endpoint.several:
        assert hints["fields"] == Unpack[endpoint.request]
    elif endpoint.several:
        assert get_args(hints[positional[-1]]) == (endpoint.request,)
    assert inspect.getdoc(method)


def _last_word(name: str) -> str:
    return name.rpartition("_")[2]


@EVERY
async def test_a_method_calls_its_row(endpoint: Endpoint[Any, Any]) -> None:
    """Each method makes its row's request: ids in their places, and the fields as the body."""
    answer = (
        said(envelope(count=0))
        if endpoint.paginated
        else said({})
        if endpoint.answers_body
        else raw(b"", 200, "")
    )
    ids = [f"id-{number}" for number in range(len(endpoint.parameters))]
    async with talking(None, answer) as (client, service):
        method = getattr(getattr(client, endpoint.resource.replace("-", "_")), endpoint.verb)
        if endpoint.paginated:
            assert [item async for item in method(*ids)] == []
        elif endpoint.several:
            assert await method(*ids, [{"target_email": "a@example.com"}]) is None
        else:
            fields = {"level": 8} if endpoint.takes_body else {}
            assert await method(*ids, **fields) == ({} if endpoint.answers_body else None)
    request = service.requests[0]
    assert request.path == endpoint.path.format_map(
        {parameter.name: text for parameter, text in zip(endpoint.parameters, ids, strict=True)}
    )
    assert (request.json if request.wire else None) == _body(endpoint)


def _body(endpoint: Endpoint[Any, Any]) -> Any:
    if endpoint.several:
        return [{"target_email": "a@example.com"}]
    return {"level": 8} if endpoint.takes_body else None


def answered(request: Request) -> Answer:
    """What fits a path."""
    return said({**envelope(request.path, count=1), "id": request.path})


async def test_types_of_answers() -> None:
    """A type checker knows what each method returns; this test is mostly for it."""
    async with talking() as (client, service):
        service.answer = answered
        assert_type(
            await client.domains.create("o", domain="example.com", jit_provisioning_enabled=True),
            Domain,
        )
        assert_type(await client.domains.update("o", "d", sso_enforcement="saml"), Domain)
        assert_type(await client.domains.verify("o", "d"), Domain | None)
        assert_type([invite async for invite in client.invites.list("o")], list[Invite])
        assert_type(await client.invites.create("o", target_email="a@example.com", level=8), Invite)
        assert_type(
            await client.invites.bulk("o", [{"target_email": "a@example.com"}]), list[Invite] | None
        )
        assert_type(await client.members.update("o", "u", level=15), Member)
        assert_type(await client.projects.list("o", page_size=5).page(), PageEnvelope[ProjectItem])
        assert_type(await client.projects.create("o", name="Shop", week_start_day=1), Project)
        assert_type(await client.projects.get("o", 7), Project)
        assert_type(
            await client.batch_exports.update(
                7, "b", interval="every 5 minutes", destination={"type": "S3"}
            ),
            BatchExport,
        )
        assert_type(
            await client.batch_exports.backfill(7, "b", start_at="2026-01-01T00:00:00Z"),
            JsonObject | None,
        )
        assert_type(await client.batch_export_runs.retry(7, "b", "r"), JsonObject | None)
        assert_type(client.dashboards.list(7), Pages[Dashboard])
        assert_type(client.pages(LIST_DOMAINS, {"organization_id": "o"}), Pages[Domain])
        assert_type((await client.domains.get("o", "d")).get("is_verified"), bool)


def test_types_of_blocking_answers() -> None:
    """The blocking methods have the same types."""

    def use(client: SyncClient) -> None:
        assert_type(client.domains.create("o", domain="example.com"), Domain)
        assert_type(client.domains.list("o", page_size=3), SyncPages[Domain])
        assert_type(list(client.members.list("o")), list[Member])
        assert_type(client.projects.get("o", 7), Project)
        assert_type(client.batch_exports.pause(7, "b", name="x"), JsonObject | None)
        assert_type(client.pages(LIST_DOMAINS, {"organization_id": "o"}), SyncPages[Domain])
        client.domains.create("o")  # type: ignore[call-arg]  # it needs a domain
        client.members.update("o", "u", level=7)  # type: ignore[arg-type]  # there is no such level
        client.projects.create("o", nam="x")  # type: ignore[call-arg]  # there is no such field

    assert callable(use)


async def test_a_list_keeps_its_ids() -> None:
    """What happens to a caller's dictionary afterwards is nothing to a list."""
    ids: dict[str, object] = {"organization_id": ORGANIZATION}
    async with talking(None, said(envelope(count=0))) as (client, service):
        listed = client.pages(LIST_DOMAINS, ids)
        ids.clear()
        assert [domain async for domain in listed] == []
    assert service.requests[0].path == f"/api/organizations/{ORGANIZATION}/domains/"


async def test_bad_ids_of_a_list_are_reported_when_it_is_read() -> None:
    """A list asks nothing when it is made, and so refuses nothing; then it names the id."""
    async with talking() as (client, _):
        listed = client.domains.list("../other")
        with pytest.raises(InvalidCall, match="organization_id"):
            await listed.count()


async def test_what_a_call_takes(client: Client) -> None:
    """The generic call refuses ids that its row doesn't have, and a list is
    of a row that gives one.
    """
    with pytest.raises(InvalidCall, match="domains create: it doesn't answer a list"):
        client.pages(CREATE_DOMAIN, {"organization_id": "o"})
    assert CREATE_DOMAIN.method is Method.POST
    with pytest.raises(InvalidCall, match="domains create: id isn't an id that it takes"):
        await client.call(
            CREATE_DOMAIN, {"organization_id": "o", "id": DOMAIN}, {"domain": "example.com"}
        )


async def test_unexpected_bodies() -> None:
    """Where an object or a list may come, nothing else is returned as one."""
    async with talking(None, said([1]), said({"invites": []}), said([{"id": "i"}])) as (client, _):
        assert await client.batch_exports.pause(1, "b") is None
        assert await client.invites.bulk("o", [{"target_email": "a@example.com"}]) is None
        assert [invite["id"] for invite in await client.invites.bulk("o", []) or []] == ["i"]


KINDS = (
    *("domains list", "domains update", "invites bulk", "batch-exports update"),
    *("batch-exports delete", "batch-export-runs retry"),
)
"""A list, changes with fields, of several things and with fields in fields, a removal, and an
action without an answer. That every endpoint refuses the same is shown over HTTP, in
`tests/contract/test_endpoints.py`: here it is how the client reports it.
"""
LEAST: dict[str, dict[str, str]] = {
    "domains create": {"domain": "new.example.com"},
    "invites create": {"target_email": "new@example.com"},
    "invites bulk": {"target_email": "new@example.com"},
}
STRICT = {"paused": {"pause", "unpause"}, "backfill_id": {"backfill", "retry"}}
MORE_THAN_THE_CONTRACT = {verb for verbs in STRICT.values() for verb in verbs} | {"logs", "verify"}


@pytest.fixture
async def faces(tmp_path: Path) -> AsyncIterator[list[Face]]:
    """Clients of both kinds, and one sandbox, for what changes nothing in the way of
    other calls.
    """
    async with facing("async", tmp_path) as one:
        yield [one, Face(one.service, "blocking")]


def check(name: str, answer: Any) -> None:
    """The answer is of the type that the table says."""
    endpoint = BY_NAME[name]
    for entry in answer if endpoint.paginated else [answer]:
        TypeAdapter(endpoint.response).validate_python(entry, strict=True)


@cases("name", BY_NAME)
async def test_success(name: str, tmp_path: Path) -> None:
    """Each method returns what the table says, typed; and nothing where there is nothing. What is
    deleted is gone. The blocking client's methods are derived from these: see `test_sync.py`.
    """
    async with facing("async", tmp_path) as face:
        answer = await face.do(name)
        check(name, answer)
        if BY_NAME[name].paginated:
            assert answer == await face.service.items(name)
        if BY_NAME[name].destructive:
            assert (await face.refused(name)).status == 404


@cases("name", KINDS)
async def test_an_unknown_key(faces: list[Face], name: str) -> None:
    """401, with a hint at the key, which isn't in the error; a project's key never gets so far."""
    for face in faces:
        error = await face.refused(name, key="phx_nobody_has_this_key_0000")
        assert (error.status, error.type, error.code) == (
            401,
            "authentication_error",
            "authentication_failed",
        )
        assert "phx_nobody" not in f"{error}{error.hint}{vars(error)}"
        assert "personal API key" in error.hint


@cases("name", KINDS)
async def test_a_missing_scope(faces: list[Face], name: str) -> None:
    """403, and the hint names the scope."""
    scope = BY_NAME[name].scope
    other = next(
        key_scope
        for key_scope in KeyScope
        if key_scope.partition(":")[0] != scope.partition(":")[0]
    )
    for face in faces:
        error = await face.refused(name, key=seed.scoped_key(other))
        assert (error.status, error.type, error.code) == (
            403,
            "authentication_error",
            "permission_denied",
        )
        assert error.detail == f"API key missing required scope '{scope}'"
        assert error.hint == f"Give the key the scope {scope}."


@cases("name", ["domains update", "projects create"])
async def test_a_level_that_is_too_low(faces: list[Face], name: str) -> None:
    """403 for a plain member where it takes an admin, and the hint says so."""
    for face in faces:
        error = await face.refused(name, key=seed.MEMBER_KEY)
        assert (error.status, error.type, error.code) == (
            403,
            "authentication_error",
            "permission_denied",
        )
        assert "membership of at least the level 'admin'" in error.hint


@cases("name", KINDS)
async def test_another_organization(faces: list[Face], name: str) -> None:
    """404, whether the stranger comes to us or we to them, or their things are looked for here;
    and nothing changes.
    """
    theirs = ids_of(ROWS[name], other=True)
    inner = [parameter.name for parameter in BY_NAME[name].parameters][1:]
    before = await faces[0].everything()
    for face in faces:
        errors = [
            await face.refused(name, other=True),
            await face.refused(name, key=seed.STRANGER_KEY),
        ]
        errors += [
            await face.refused(name, ids={parameter: theirs[parameter]}) for parameter in inner
        ]
        assert {(error.status, error.type, error.code) for error in errors} == {
            (404, "invalid_request", "not_found")
        }
        assert all("another organization" in error.hint for error in errors)
    assert await faces[0].everything() == before


@cases("name", KINDS)
async def test_ids_of_nothing(faces: list[Face], name: str) -> None:
    """404 for an id that nothing has, and for one that none could have; the hint shows the ids."""
    for face, parameter in itertools.product(faces, BY_NAME[name].parameters):
        unknown: object = seed.UNKNOWN if parameter.kind is IdKind.UUID else seed.UNKNOWN_NUMBER
        for value in (unknown, "no-id", "a?b=c&d#e%2F..", "9" * 200):
            error = await face.refused(name, ids={parameter.name: value})
            assert (error.status, error.type, error.code) == (
                404,
                "invalid_request",
                "not_found",
            ), (parameter, value)
            assert f"{parameter.name} {str(value)[:60]}" in error.hint


@cases("name", [name for name in KINDS if BY_NAME[name].takes_body])
async def test_bad_fields(faces: list[Face], name: str) -> None:
    """400, and the error names the field; nothing changes."""
    before = await faces[0].everything()
    for number, field in enumerate(ROWS[name].accepted.values()):
        for value in wrong(field)[:1]:
            error = await faces[number % 2].refused(
                name, {**LEAST.get(name, {}), field.name: value}
            )
            assert (error.status, error.type) == (400, "validation_error"), (field, value)
            assert (error.field or "").removeprefix("0__").partition("__")[0] == field.name
            assert field.name in error.hint
    assert await faces[0].everything() == before


@cases("name", LISTS)
async def test_pages(faces: list[Face], name: str) -> None:
    """First, middle and last page, by limit and offset; all of them in pages of any size; and how
    many there are.
    """
    face = faces[0]
    create = f"{BY_NAME[name].resource} create"
    field = {"domains": "domain", "invites": "target_email", "projects": "name"}
    for number in range(3) if BY_NAME[name].resource in field else ():
        value = {
            "domains": f"{number}.example.net",
            "invites": f"{number}@example.net",
            "projects": f"Project {number}",
        }
        await face.do(create, {field[BY_NAME[name].resource]: value[BY_NAME[name].resource]})
    items = await face.service.items(name)
    owner = BY_NAME[name].parameters[0].name
    ids = {owner: seed.ORGANIZATION if owner == "organization_id" else seed.PROJECT}
    assert len(items) >= 3

    def listed(client: Client | SyncClient, size: int | None = None) -> Any:
        return client.pages(BY_NAME[name], ids, page_size=size)

    pages = [await face.using(partial(_page, listed, number)) for number in (0, 1, len(items) - 1)]
    assert [page["results"] for page in pages] == [items[:1], items[1:2], items[-1:]]
    assert [page["previous"] is None for page in pages] == [True, False, False]
    assert [page["next"] is None for page in pages] == [False, False, True]
    for size in (1, 2, len(items), 10_000):
        assert await face.using(partial(listed, size=size)) == items
    assert await face.using(lambda client: listed(client).count()) == len(items)


def _page(listed: Any, offset: int, client: Client | SyncClient) -> Any:
    return listed(client).page(1, offset)


@cases("name", [name for name in BY_NAME if name.split()[1] in MORE_THAN_THE_CONTRACT])
async def test_the_service_real_answers(name: str, tmp_path: Path) -> None:
    """Where the real service answers with more than the contract says, that is returned."""
    verb = BY_NAME[name].verb
    async with facing("async", tmp_path, strict=True) as face:
        answer = await face.do(name)
        if verb in STRICT["paused"]:
            assert answer == {"paused": verb == "pause"}
        elif verb in STRICT["backfill_id"]:
            assert list(answer) == ["backfill_id"]
        elif verb == "logs":
            assert answer == {"results": []}
        else:
            assert answer == (await face.service.call("domains get")).json
