"""The methods of the groups: one for each row of the table, typed as the table says."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator
from typing import Any, assert_type, get_args, get_type_hints

import pytest
from typing_extensions import Unpack

from forwarder.contract.endpoints import CREATE_DOMAIN, ENDPOINTS, LIST_DOMAINS, Endpoint, Method
from forwarder.contract.errors import Envelope
from forwarder.contract.kinds import JsonObject
from forwarder.contract.resources import BatchExport, Dashboard, Domain, Invite, Member, Project, ProjectItem
from forwarder.management import Client, InvalidCall, Pages, SyncClient, SyncPages
from forwarder.management.groups import Group
from tests.management.scripted import DOMAIN, KEY, ORGANIZATION, envelope, raw, said, talking
from tests.support.upstream import Answer, Request

EVERY = pytest.mark.parametrize("endpoint", ENDPOINTS, ids=[endpoint.name for endpoint in ENDPOINTS])


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    """A client that calls nobody."""
    async with Client("http://service.invalid", KEY) as unused:
        yield unused


def groups_of(client: Client) -> dict[str, Group]:
    """Its groups, by name."""
    return {name: value for name, value in vars(client).items() if isinstance(value, Group)}


async def test_there_is_a_method_for_each_row_and_no_other(client: Client) -> None:
    """Groups are named as resources, and methods as verbs."""
    verbs = {name: [verb for verb in vars(type(group)) if not verb.startswith("_")] for name, group in groups_of(client).items()}
    methods = {f"{name.replace('_', '-')} {verb}" for name, found in verbs.items() for verb in found}
    assert methods == {endpoint.name for endpoint in ENDPOINTS}


@EVERY
async def test_a_method_takes_what_its_row_takes(client: Client, endpoint: Endpoint[Any, Any]) -> None:
    """Ids by position, in the order of the path; the accepted fields as keywords; and it is told in the types what comes back."""
    group = groups_of(client)[endpoint.resource.replace("-", "_")]
    method = getattr(type(group), endpoint.verb)
    hints = get_type_hints(method)
    parameters = list(inspect.signature(method).parameters.values())[1:]
    positional = [each.name for each in parameters if each.kind is inspect.Parameter.POSITIONAL_ONLY]
    assert len(positional) == len(endpoint.parameters) + endpoint.several
    assert all(given.endswith(_last_word(wanted.name)) for given, wanted in zip(positional, endpoint.parameters, strict=False))
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
    answer = said(envelope(count=0)) if endpoint.paginated else said({}) if endpoint.answers_body else raw(b"", 200, "")
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
        assert_type(await client.domains.create("o", domain="example.com", jit_provisioning_enabled=True), Domain)
        assert_type(await client.domains.update("o", "d", sso_enforcement="saml"), Domain)
        assert_type(await client.domains.verify("o", "d"), Domain | None)
        assert_type([each async for each in client.invites.list("o")], list[Invite])
        assert_type(await client.invites.create("o", target_email="a@example.com", level=8), Invite)
        assert_type(await client.invites.bulk("o", [{"target_email": "a@example.com"}]), list[Invite] | None)
        assert_type(await client.members.update("o", "u", level=15), Member)
        assert_type(await client.projects.list("o", page_size=5).page(), Envelope[ProjectItem])
        assert_type(await client.projects.create("o", name="Shop", week_start_day=1), Project)
        assert_type(await client.projects.get("o", 7), Project)
        assert_type(await client.batch_exports.update(7, "b", interval="every 5 minutes", destination={"type": "S3"}), BatchExport)
        assert_type(await client.batch_exports.backfill(7, "b", start_at="2026-01-01T00:00:00Z"), JsonObject | None)
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
        assert [each async for each in listed] == []
    assert service.requests[0].path == f"/api/organizations/{ORGANIZATION}/domains/"


async def test_bad_ids_of_a_list_are_told_when_it_is_read() -> None:
    """A list asks nothing when it is made, and so refuses nothing; then it names the id."""
    async with talking() as (client, _):
        listed = client.domains.list("../other")
        with pytest.raises(InvalidCall, match="organization_id"):
            await listed.count()


async def test_what_a_call_takes(client: Client) -> None:
    """The generic call refuses ids that its row doesn't have, and a list is of a row that gives one."""
    with pytest.raises(InvalidCall, match="domains create: it doesn't answer a list"):
        client.pages(CREATE_DOMAIN, {"organization_id": "o"})
    assert CREATE_DOMAIN.method is Method.POST
    with pytest.raises(InvalidCall, match="domains create: id isn't an id that it takes"):
        await client.call(CREATE_DOMAIN, {"organization_id": "o", "id": DOMAIN}, {"domain": "example.com"})


async def test_bodies_that_nobody_expects() -> None:
    """Where an object or a list may come, nothing else is returned as one."""
    async with talking(None, said([1]), said({"invites": []}), said([{"id": "i"}])) as (client, _):
        assert await client.batch_exports.pause(1, "b") is None
        assert await client.invites.bulk("o", [{"target_email": "a@example.com"}]) is None
        assert [invite["id"] for invite in await client.invites.bulk("o", []) or []] == ["i"]
