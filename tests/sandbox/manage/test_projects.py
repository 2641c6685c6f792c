"""Projects and their dashboards."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from pydantic import TypeAdapter

from forwarder.contract.endpoints import LIST_DASHBOARDS
from forwarder.contract.payloads import NewProject
from forwarder.contract.resources import ADMIN, MEMBER, Project, ProjectItem
from forwarder.sandbox.manage.call import Listing, PageBounds
from forwarder.sandbox.manage.projects import (
    CAN_EDIT,
    CAN_VIEW,
    DEFAULTS,
    DashboardDraft,
    add_dashboard,
    is_timezone,
    new_token,
)
from tests.contract.calls import CalledSandbox, error_of, serving
from tests.sandbox.client import event
from tests.sandbox.half import ManagementTables
from tests.support import management as seed
from tests.support.cases import cases

UNKNOWN = "phc_key_of_no_project_at_all"


async def created(
    service: CalledSandbox, body: dict[str, Any] | None = None, **rest: Any
) -> dict[str, Any]:
    """A new project, which is of the documented type."""
    reply = await service.call("projects create", body or {}, **rest)
    assert reply.status == 201
    return dict(TypeAdapter(Project).validate_python(reply.json, strict=True))


async def sent(service: CalledSandbox, api_key: str, path: str = "/batch/", **more: Any) -> int:
    """The status of what is sent with a key."""
    answer = await service.client.post(
        path, {"api_key": api_key, "batch": [event()], **event(), **more}
    )
    return answer.status


def test_defaults() -> None:
    """Every field that can be set has a default, which is of its type."""
    assert set(DEFAULTS) == set(get_type_hints(NewProject))
    TypeAdapter(NewProject).validate_python({**DEFAULTS}, strict=True)


def test_tokens() -> None:
    """A key is `phc_` and 43 letters and digits, and none comes twice."""
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100
    assert all(re.fullmatch(r"phc_[A-Za-z0-9]{43}", token) for token in tokens)


@cases(
    ("name", "known"),
    [
        ("UTC", True),
        ("Europe/Berlin", True),
        ("Europe", False),
        ("", False),
        ("../etc/passwd", False),
        ("europe/berlin", False),
        ("localtime", False),
    ],
)
def test_time_zones(name: str, known: bool) -> None:
    """Those of the tz database are known, spelled as there."""
    assert is_timezone(name) is known


async def test_what_is_sent_is_kept(tmp_path: Path) -> None:
    """Fields that are sent come back from create and get as they are, all
    others have their defaults.
    """
    body = {
        "name": "Shop",
        "timezone": "Asia/Tokyo",
        "app_urls": ["https://a.example"],
        "modifiers": {"a": [None, 1.5, "ü"]},
        "test_account_filters": None,
        "session_recording_sample_rate": "0.25",
        "week_start_day": 1,
        "heatmaps_opt_in": True,
    }
    async with serving(tmp_path) as service:
        project = await created(
            service,
            {**body, "id": 5, "api_token": "phc_mine_000000000000", "organization": seed.OTHER},
        )
        assert {name: project[name] for name in body} == body
        untouched = {
            name: value
            for name, value in DEFAULTS.items()
            if name not in body and name != "primary_dashboard"
        }
        assert {name: project[name] for name in untouched} == untouched
        assert (project["organization"], project["id"]) == (seed.ORGANIZATION, 4)
        assert (await service.call("projects get", id=project["id"])).json == project
        [*_, item] = await service.items("projects list")
        assert item == {name: project[name] for name in ProjectItem.__annotations__}


@cases(
    ("body", "code", "attr"),
    [
        ({"timezone": "Mars/Olympus"}, "invalid_choice", "timezone"),
        ({"primary_dashboard": seed.UNKNOWN_NUMBER}, "does_not_exist", "primary_dashboard"),
        ({"primary_dashboard": 7}, "does_not_exist", "primary_dashboard"),
        ({"primary_dashboard": -1}, "does_not_exist", "primary_dashboard"),
    ],
)
async def test_what_there_has_to_be(
    tmp_path: Path, body: dict[str, Any], code: str, attr: str
) -> None:
    """A time zone that there isn't and a dashboard that isn't the organization's make no project;
    the other organization's is none.
    """
    async with serving(tmp_path) as service:
        assert 7 in [
            item["id"] for item in await dashboards(service, seed.OTHER_PROJECT, seed.STRANGER_KEY)
        ]
        assert error_of(await service.call("projects create", body)) == (
            400,
            "validation_error",
            code,
            attr,
        )
        assert len(await service.items("projects list")) == 2


async def dashboards(
    service: CalledSandbox, project: int, key: str = seed.OWNER_KEY
) -> list[dict[str, Any]]:
    """The dashboards of a project."""
    return list(
        (await service.call("dashboards list", key=key, project_id=project)).json["results"]
    )


async def test_the_primary_dashboard(tmp_path: Path) -> None:
    """A project gets a dashboard of its own, created by its creator, unless it is given one of
    the organization, or none.
    """
    async with serving(tmp_path) as service:
        project = await created(service, key=seed.ADMIN_KEY)
        [own] = await dashboards(service, project["id"])
        assert (own["id"], own["created_by"]["uuid"]) == (project["primary_dashboard"], seed.ADMIN)
        [first, *_] = await dashboards(service, seed.PROJECT)
        for reported in (first["id"], None):
            project = await created(service, {"primary_dashboard": reported})
            assert project["primary_dashboard"] == reported
            assert await dashboards(service, project["id"]) == []


async def test_the_level_is_the_callers(tmp_path: Path) -> None:
    """`effective_membership_level` is that of the one who asks."""
    async with serving(tmp_path) as service:
        for key, level in ((seed.OWNER_KEY, 15), (seed.ADMIN_KEY, 8), (seed.MEMBER_KEY, 1)):
            answer = await service.call("projects get", key=key)
            assert answer.json["effective_membership_level"] == level


@cases("path", ["/batch/", "/capture/", "/decide?v=3", "/flags/?v=2", "/i/v0/e/", "/s/"])
async def test_ingestion_takes_a_new_key_at_once(tmp_path: Path, path: str) -> None:
    """What is sent with a key is taken as soon as the project is there, and after a restart; other
    keys never are.
    """
    options = {"database": tmp_path / "x.db"}
    async with serving(tmp_path, **options) as service:
        for key in (seed.TOKEN, seed.OTHER_TOKEN, (await created(service))["api_token"]):
            assert await sent(service, key, path) == 200
        assert await sent(service, UNKNOWN, path) == 401
        new_key = (await created(service))["api_token"]
    async with serving(tmp_path, **options) as service:
        assert await sent(service, new_key, path) == 200
        assert await sent(service, UNKNOWN, path) == 401


async def test_keys_of_no_organization(tmp_path: Path) -> None:
    """Keys of the command line are taken beside those of projects, also with `--strict`, where
    other keys' events are dropped.
    """
    for strict in (False, True):
        async with serving(
            tmp_path, api_keys=frozenset({"phc_of_the_command_line"}), strict=strict
        ) as service:
            for key in (seed.TOKEN, "phc_of_the_command_line", UNKNOWN):
                assert await sent(service, key) == (401 if key == UNKNOWN and not strict else 200)
            assert {one.api_key for one in await service.client.sandbox.events()} == {
                seed.TOKEN,
                "phc_of_the_command_line",
            }


async def test_what_arrived(tmp_path: Path) -> None:
    """`ingested_event` and `has_group_types` say what has come with a project's own key: an event
    that was ingested, a group.
    """
    group = event(
        event="$groupidentify",
        properties={"$group_type": "company", "$group_key": "x", "$group_set": {}},
    )
    async with serving(tmp_path) as service:
        project = await created(service)

        async def known() -> tuple[bool, bool, bool]:
            one = (await service.call("projects get", id=project["id"])).json
            item = next(
                item for item in await service.items("projects list") if item["id"] == project["id"]
            )
            return one["ingested_event"], item["ingested_event"], one["has_group_types"]

        assert await sent(service, seed.TOKEN, batch=[group]) == 200
        answer = await service.client.post(
            "/batch/", {"api_key": project["api_token"], "batch": [event(event="")]}
        )
        assert answer.status == 200
        assert await known() == (False, False, False)
        assert await sent(service, project["api_token"]) == 200
        assert await known() == (True, True, False)
        assert await sent(service, project["api_token"], batch=[group]) == 200
        assert await known() == (True, True, True)
        await service.client.sandbox.clear()
        assert await known() == (False, False, False)


async def test_many_at_once(tmp_path: Path) -> None:
    """Projects that are made at the same time are all made, each with a number and a key of its
    own, and each key is taken.
    """
    async with serving(tmp_path, database=tmp_path / "x.db") as service:

        async def one(number: int) -> tuple[int, str, str]:
            project = await created(service, {"name": f"{number}"})
            assert await sent(service, project["api_token"]) == 200
            return project["id"], project["api_token"], project["name"]

        made = await asyncio.gather(*(one(number) for number in range(50)))
        assert len({number for number, _, _ in made}) == len({token for _, token, _ in made}) == 50
        listed = [
            (item["id"], item["api_token"], item["name"])
            for item in await service.items("projects list")
        ]
        assert sorted(listed[2:]) == sorted(made)


NOW = "2026-01-01T00:00:00.000000Z"


def test_a_dashboard(half: ManagementTables) -> None:
    """It is shown as it was created, with its creator, or none."""
    project = half.project()
    add_dashboard(
        half.database,
        project,
        DashboardDraft(
            "One", NOW, half.owner.user, "words", True, True, True, "template", ["a", 1]
        ),
    )
    add_dashboard(half.database, project, DashboardDraft("Two", NOW, None))
    one, two = half.items(LIST_DASHBOARDS, project=project)
    assert (one["name"], one["description"], one["created_at"], one["created_by"]["uuid"]) == (
        "One",
        "words",
        NOW,
        half.owner.uuid,
    )
    assert (one["pinned"], one["is_shared"], one["deleted"], one["creation_mode"], one["tags"]) == (
        True,
        True,
        True,
        "template",
        ["a", 1],
    )
    assert (two["created_by"], two["pinned"], two["is_shared"], two["deleted"], two["tags"]) == (
        None,
        False,
        False,
        False,
        [],
    )
    assert two["id"] > one["id"]


@pytest.mark.parametrize(
    ("level", "restriction", "made", "edits"),
    [
        (MEMBER, CAN_VIEW, False, True),
        (MEMBER, CAN_EDIT, False, False),
        (MEMBER, CAN_EDIT, True, True),
        (ADMIN, CAN_EDIT, False, True),
    ],
)
def test_permissions_of_a_level(
    half: ManagementTables, level: int, restriction: int, made: bool, edits: bool
) -> None:
    """A restricted dashboard is edited by admins and its creator, any other by every member;
    anyone who may not can still see it.
    """
    project = half.project()
    somebody = half.member("x@example.com", level)
    maker = somebody.user if made else half.owner.user
    add_dashboard(
        half.database, project, DashboardDraft("One", NOW, maker, restriction_level=restriction)
    )
    [one] = half.items(LIST_DASHBOARDS, project=project, by=somebody)
    assert (one["restriction_level"], one["effective_restriction_level"]) == (
        restriction,
        restriction,
    )
    assert (one["effective_privilege_level"], one["user_access_level"]) == (
        (CAN_EDIT, "editor") if edits else (CAN_VIEW, "viewer")
    )


def test_pages_of_one_project(half: ManagementTables) -> None:
    """Only the project's own are listed, the oldest first, page by page."""
    project = half.project()
    other = half.project()
    for number in range(5):
        add_dashboard(half.database, project, DashboardDraft(f"{number}", NOW, None))
        add_dashboard(half.database, other, DashboardDraft("other", NOW, None))
    pages = [
        half.items(LIST_DASHBOARDS, project=project, page=PageBounds(2, offset))
        for offset in (0, 2, 4, 6)
    ]
    assert [[item["name"] for item in page] for page in pages] == [
        ["0", "1"],
        ["2", "3"],
        ["4"],
        [],
    ]
    listing = half.call(LIST_DASHBOARDS, project=project, page=PageBounds(2, 4))
    assert isinstance(listing, Listing)
    assert listing.count == 5
