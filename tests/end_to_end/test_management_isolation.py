"""One organization can do nothing to another: every endpoint is tried, with every id of the first,
in every mixture with own ones.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any, Final

import pytest

from forwarder.contract import endpoints as table
from forwarder.contract.endpoints import ENDPOINTS, Endpoint, IdKind
from forwarder.sandbox.store.schema import MANAGEMENT
from tests.end_to_end.halves import BODIES, EVERY, OF_ORGANIZATION, REFUSED, halves
from tests.sandbox.client import SandboxReply
from tests.support import management as seed

OWN: Final[Mapping[str, str]] = {
    "organization_id": seed.OTHER,
    "project_id": str(seed.OTHER_PROJECT),
    "user__uuid": seed.STRANGER,
    "batch_export_id": seed.OTHER_EXPORT,
    "domains": seed.OTHER_DOMAIN,
    "invites": seed.OTHER_INVITE,
    "projects": str(seed.OTHER_PROJECT),
    "organization-batch-exports": seed.OTHER_EXPORT,
    "batch-exports": seed.OTHER_EXPORT,
    "batch-export-runs": seed.OTHER_RUN,
}
"""The stranger's ids, by the parameter's name; of `id` by the resource."""
UUIDS: Final = (
    *(seed.ORGANIZATION, seed.OWNER, seed.ADMIN, seed.MEMBER, seed.DOMAIN, seed.VERIFIED_DOMAIN),
    *(seed.INVITE, seed.EXPORT, seed.PAUSED_EXPORT, seed.RUN),
)
NUMBERS: Final = (str(seed.PROJECT), str(seed.SECOND_PROJECT))
THEIRS: Final[Mapping[IdKind, tuple[str, ...]]] = {IdKind.UUID: UUIDS, IdKind.INTEGER: NUMBERS}
"""The first organization's ids."""
TRACES: Final = (
    *UUIDS,
    seed.TOKEN,
    seed.SECOND_TOKEN,
    "Example Inc",
    "olga@",
    "adam@",
    "mia@",
    "nina@",
    "verified.example",
    "Shop",
    "All events",
    "hidden-secret",
    "phx_",
)
"""What would show in an answer that the first organization shows through."""


def mixtures(
    endpoint: Endpoint[Any, Any], *, theirs: Mapping[IdKind, tuple[str, ...]] = THEIRS
) -> Iterator[dict[str, str]]:
    """All ids of the path in every mixture of the stranger's own and the first organization's, but
    for those that are all own.
    """
    choices = [
        (own(endpoint, parameter.name), *theirs[parameter.kind])
        for parameter in endpoint.parameters
    ]
    for chosen in product(*choices):
        ids = {
            parameter.name: one for parameter, one in zip(endpoint.parameters, chosen, strict=True)
        }
        if any(one != own(endpoint, name) for name, one in ids.items()):
            yield ids


def own(endpoint: Endpoint[Any, Any], name: str) -> str:
    """The stranger's own id."""
    return OWN[endpoint.resource if name == "id" else name]


def traces(text: str) -> list[str]:
    """What a text tells of the first organization."""
    return [trace for trace in TRACES if trace in text]


def test_the_tables_are_all_compared() -> None:
    """No table of the management half is left out of the comparison."""
    assert set(re.findall(r"CREATE TABLE (\w+)", MANAGEMENT)) == set(OF_ORGANIZATION)


@EVERY
async def test_ids_of_another_organization_are_404(
    endpoint: Endpoint[Any, Any], tmp_path: Path
) -> None:
    """With any id of the first organization, in every mixture with own ones, an endpoint is 404 to
    a stranger, and nothing changes.
    """
    async with halves(tmp_path) as half:
        before = await half.everything()
        for ids in mixtures(endpoint):
            reply = await half.call(endpoint, ids)
            assert (reply.status, reply.json) == (404, REFUSED), ids
        assert await half.everything() == before


@EVERY
async def test_foreign_and_missing_objects_have_the_same_answer(
    endpoint: Endpoint[Any, Any], tmp_path: Path
) -> None:
    """A stranger gets the same answer for an id of the first organization as for one of nothing:
    same status, headers and bytes.
    """
    nothing = {IdKind.UUID: (seed.UNKNOWN,), IdKind.INTEGER: (str(seed.UNKNOWN_NUMBER),)}
    async with halves(tmp_path) as half:
        unknown = [await half.call(endpoint, ids) for ids in mixtures(endpoint, theirs=nothing)]
        known = [
            await half.call(endpoint, ids)
            for ids in mixtures(endpoint, theirs={kind: ids[:1] for kind, ids in THEIRS.items()})
        ]
        assert {comparable(reply) for reply in known} == {comparable(reply) for reply in unknown}


def comparable(reply: SandboxReply) -> tuple[Any, ...]:
    """An answer without what differs from second to second."""
    return (
        reply.status,
        reply.text,
        tuple((name, value) for name, value in reply.headers.items() if name != "Date"),
    )


@EVERY
async def test_own_use_shows_and_changes_nothing_of_another(
    endpoint: Endpoint[Any, Any], tmp_path: Path
) -> None:
    """What a stranger does in an organization of their own leaves the first as it was, and no
    answer tells anything of it.
    """
    async with halves(tmp_path) as half:
        before = await half.everything()
        ids = {parameter.name: own(endpoint, parameter.name) for parameter in endpoint.parameters}
        reply = await half.call(endpoint, ids)
        assert reply.status in (endpoint.status, 400, 403)
        pointing = {
            "organization": seed.ORGANIZATION,
            "id": seed.DOMAIN,
            "team_id": seed.PROJECT,
            "batch_export": seed.EXPORT,
        }
        pointing |= {
            "project": seed.PROJECT,
            "created_by": 1,
            "user": {"id": 1, "uuid": seed.OWNER},
            "uuid": seed.OWNER,
        }
        answers = [reply]
        if endpoint.takes_body:
            answers.append(await half.call(endpoint, ids, {**BODIES[endpoint.request], **pointing}))
        assert [traces(answer.text) for answer in answers if traces(answer.text)] == []
        assert await half.everything() == before


@pytest.mark.parametrize(
    ("endpoint", "body", "attr"),
    [
        (
            table.CREATE_INVITE,
            {"target_email": "a@example.net", "private_project_access": "THEIRS"},
            "private_project_access",
        ),
        (
            table.BULK_INVITE,
            [
                {"target_email": "a@example.net"},
                {"target_email": "b@example.net", "private_project_access": "THEIRS"},
            ],
            "1__",
        ),
        (table.CREATE_PROJECT, {"name": "Mine", "primary_dashboard": 1}, "primary_dashboard"),
    ],
    ids=["invite", "bulk", "project"],
)
async def test_bodies_do_not_reach_across(
    endpoint: Endpoint[Any, Any], body: Any, attr: str, tmp_path: Path
) -> None:
    """A body of an own resource that refers to the first organization's project or dashboard is
    400, and makes nothing on either side.
    """
    async with halves(tmp_path) as half:
        before = await half.everything(), await half.everything(seed.OTHER, seed.STRANGER_KEY)
        for project in (seed.PROJECT, seed.SECOND_PROJECT):
            access = json.dumps([{"id": project, "level": "admin"}])
            reply = await half.call(
                endpoint, OWN, json.loads(json.dumps(body).replace('"THEIRS"', access))
            )
            assert (reply.status, reply.json["code"], str(reply.json["attr"]).startswith(attr)) == (
                400,
                "does_not_exist",
                True,
            )
            assert traces(reply.text) == []
        assert (
            await half.everything(),
            await half.everything(seed.OTHER, seed.STRANGER_KEY),
        ) == before


async def test_lists_hold_what_is_own(tmp_path: Path) -> None:
    """Every list of a stranger's organization, read in pages of one, holds their own and nothing
    of the first organization.
    """
    async with halves(tmp_path) as half:
        for endpoint in (row for row in ENDPOINTS if row.paginated):
            path = endpoint.path.format_map(
                {parameter.name: OWN[parameter.name] for parameter in endpoint.parameters}
            )
            reply = await half.ask("GET", f"{path}?limit=1")
            seen = []
            while reply.json["next"]:
                seen.append(reply.text)
                reply = await half.ask("GET", path + "?" + reply.json["next"].partition("?")[2])
            seen.append(reply.text)
            assert len(seen) == reply.json["count"]
            assert traces("".join(seen)) == []


async def test_an_address_can_be_in_two_organizations(tmp_path: Path) -> None:
    """A stranger may invite a member of the first organization and add its unverified domain:
    neither tells them that there is one.
    """
    async with halves(tmp_path) as half:
        before = await half.everything()
        invited = await half.call(table.CREATE_INVITE, OWN, {"target_email": "olga@example.com"})
        domain = await half.call(table.CREATE_DOMAIN, OWN, {"domain": "example.com"})
        assert (invited.status, domain.status) == (201, 201)
        assert invited.json["created_by"]["uuid"] == seed.STRANGER
        assert await half.everything() == before
