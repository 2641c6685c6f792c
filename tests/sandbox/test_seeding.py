"""Seeds, as the database has them afterwards."""

from __future__ import annotations

import json
import sqlite3
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from forwarder.contract.endpoints import ENDPOINTS
from forwarder.core.errors import ConfigurationError
from forwarder.sandbox import Sandbox, SandboxOptions
from forwarder.sandbox.seed_entries import Seed
from forwarder.sandbox.seed_file import read_seed
from tests.contract.calls import CalledSandbox, serving
from tests.sandbox.client import KEY, SandboxClient, batch, event, talking
from tests.support import management as seed
from tests.support.cases import cases
from tests.support.clock import MIDNIGHT

EXAMPLE = Path(__file__).parents[2] / "config" / "sandbox-seed.yaml"
PROJECTS = [{"api_key": KEY}]
HELP = "`forwarder help sandbox`"
GROUP = {"group_type": "company", "group_key": "x"}


def written(folder: Path, content: Any) -> Path:
    """A seed's file: text as it is, anything else as JSON."""
    path = folder / "seed.yaml"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


async def test_the_example() -> None:
    """The example has every section but the one that it shows as a comment, and makes the persons,
    groups and events that it says.
    """
    async with Sandbox(SandboxOptions(seed=EXAMPLE, now=lambda: MIDNIGHT)) as sandbox:
        ann, bob = await sandbox.persons()
        assert (ann.distinct_id, len(ann.distinct_ids), ann.is_identified) == (
            "ann@example.com",
            2,
            True,
        )
        assert ann.properties == {"plan": "pro", "signed_up": "2025-11-03"}
        assert (ann.created_at, bob.created_at) == (
            "2025-11-03T09:30:00.000000Z",
            "2026-01-01T00:00:00.000000Z",
        )
        [company] = await sandbox.groups()
        assert (company.group_key, company.properties) == (
            "example-inc",
            {"name": "Example Inc.", "seats": 25},
        )
        placed = next(one for one in await sandbox.events() if one.event == "order placed")
        assert (placed.person, placed.groups) == (ann.id, {"company": "example-inc"})
        assert [survey.survey_id for survey in await sandbox.surveys()] == ["how-was-it"]
        assert set(Seed.model_fields) - read_seed(EXAMPLE).model_fields_set == {"projects"}
        assert await sandbox.organizations() == 1


async def test_planting_again_changes_nothing(tmp_path: Path) -> None:
    """With a database the same file can be given at each start: what came since stays, nothing is
    repeated; a new entry comes in.
    """
    twice = [{"event": "e", "distinct_id": "ann"}] * 2
    seed = {
        "projects": PROJECTS,
        "persons": [{"distinct_id": "ann", "properties": {"a": 1}}],
        "events": twice,
    }
    options = SandboxOptions(database=tmp_path / "x.db", seed=written(tmp_path, seed))
    async with talking(options) as client:
        await client.post("/batch/", batch(event(properties={"$set": {"a": 2}})))
        before = await client.sandbox.summary()
    assert (before.events, before.requests) == (4, 2)
    async with talking(options) as client:
        assert await client.sandbox.summary() == before
        assert [person.properties for person in await client.sandbox.persons()] == [{"a": 2}]
    seed["persons"] = [{"distinct_id": "ann", "properties": {"a": 3}}]
    written(tmp_path, seed)
    async with talking(options) as client:
        assert [person.properties for person in await client.sandbox.persons()] == [{"a": 3}]
        assert (await client.sandbox.summary()).events == before.events + 1


async def test_its_projects_exist(tmp_path: Path) -> None:
    """The keys of a seed's projects are known, beside those of the command, and no others."""
    options = SandboxOptions(
        seed=written(tmp_path, {"projects": PROJECTS}), api_keys=frozenset({"phc_other"})
    )
    async with talking(options) as client:
        answers = [
            (await client.post("/batch/", {**batch(event()), "api_key": key})).status
            for key in (KEY, "phc_other", "phc_third")
        ]
    assert answers == [200, 200, 401]


async def test_json_is_a_seed_too(tmp_path: Path) -> None:
    """A file in JSON is read as well, and an empty one is an empty seed; an entry may name its
    project itself.
    """
    path = written(
        tmp_path,
        {
            "events": [
                {
                    "event": "e",
                    "distinct_id": "a",
                    "api_key": KEY,
                    "timestamp": "2025-01-01T00:00:00+01:00",
                }
            ]
        },
    )
    async with Sandbox(SandboxOptions(seed=path)) as sandbox:
        assert [one.timestamp for one in await sandbox.events()] == ["2024-12-31T23:00:00.000000Z"]
    assert read_seed(written(tmp_path, "")).projects == []


@cases(
    ("number", "value"),
    [("1e5", 100000.0), ("0.1", 0.1), ("12345678901234567890", 12345678901234567890)],
)
def test_numbers_in_json_are_jsons(tmp_path: Path, number: str, value: float) -> None:
    """YAML would read `1e5` as a text; a file that isn't JSON, be it for a comment, is YAML."""
    text = (
        f'{{"projects": [{{"api_key": "{KEY}"}}], "persons": [{{"distinct_id": "a", '
        f'"properties": {{"n": {number}}}}}]}}'
    )
    assert read_seed(written(tmp_path, text)).persons[0].properties == {"n": value}
    commented = read_seed(written(tmp_path, f"{text} # a comment")).persons[0].properties["n"]
    assert commented == ("1e5" if number == "1e5" else value)


@cases(
    ("content", "words", "hint"),
    [
        ({"flags": []}, "no section 'flags'", "organizations, projects, persons, groups, events"),
        ({"projects": [{}]}, "projects[0].api_key: Field required", HELP),
        (
            {"projects": [{"api_key": "phx_secret_personal"}]},
            "projects[0].api_key: this is a personal key, not a project key",
            HELP,
        ),
        ({"projects": PROJECTS, "persons": [{"distinct_id": " "}]}, "persons[0].distinct_id", HELP),
        (
            {"projects": PROJECTS, "persons": [{"distinct_id": "a", "colour": 1}]},
            "persons[0].colour",
            HELP,
        ),
        ({"persons": [{"distinct_id": "a"}]}, "persons[0] doesn't say whose it is", "api_key"),
        (
            {"projects": PROJECTS, "groups": [{**GROUP, "api_key": "phc_third"}]},
            "groups[0].api_key is none",
            "projects",
        ),
        (
            {
                "projects": PROJECTS,
                "events": [{"event": "e", "distinct_id": "a", "timestamp": "2025-01-01"}],
            },
            "events[0].timestamp",
            HELP,
        ),
        (
            {"projects": PROJECTS, "groups": [{"group_type": "company"}]},
            "groups[0].group_key: Field required",
            HELP,
        ),
        (
            f"projects: [api_key: {KEY}]\npersons: [distinct_id: a, properties: {{x: .nan}}]",
            "persons",
            HELP,
        ),
        (
            (
                f"projects: [{{api_key: {KEY}}}]\npersons: [{{distinct_id: a, properties: {{x: "
                f".inf}}}}]"
            ),
            "persons[0].properties",
            "text",
        ),
        ("projects: [", "neither YAML nor JSON in line", HELP),
        ("just words", "the file: Input should be a valid dictionary", HELP),
        ({"projects": ["phc_a"]}, "projects[0]: Input should be a valid dictionary", HELP),
        ("[" * 5000, "nested too deep", HELP),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, content: Any, words: str, hint: str) -> None:
    """The error names the file, the entry and the remedy, and shows no key."""
    with pytest.raises(ConfigurationError) as error:
        read_seed(written(tmp_path, content))
    assert str(tmp_path) in error.value.message
    assert words in error.value.message
    assert hint in error.value.hint
    assert "phx_secret" not in str(error.value)
    assert "instance of" not in str(error.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """A missing file and a folder are named."""
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(ConfigurationError, match=str(path)):
            read_seed(path)


LISTS = ("domains list", "invites list", "members list", "projects list")
OWNER = {"email": "olga@example.com", "level": "owner"}


def options(folder: Path, content: Any, **more: Any) -> SandboxOptions:
    """Options with a seed that says this."""
    path = folder / "seed.yaml"
    path.write_text(yaml.safe_dump(content))
    return SandboxOptions(seed=path, **more)


def changed(*, second: bool = False, **more: Any) -> dict[str, Any]:
    """The usual seed, with something else about its first organization, or its second."""
    content = deepcopy(seed.SEED)
    content["organizations"][second] |= more
    return content


async def everything(service: CalledSandbox) -> list[Any]:
    """What the API tells of the first organization."""
    reported: list[Any] = [await service.items(name) for name in LISTS]
    reported += [
        (await service.call("projects get", id=project)).json
        for project in (seed.PROJECT, seed.SECOND_PROJECT)
    ]
    reported += [
        (await service.call("batch-exports get", id=export)).json
        for export in (seed.EXPORT, seed.PAUSED_EXPORT)
    ]
    return [*reported, await service.items("dashboards list")]


async def test_applying_organizations_again_changes_nothing(tmp_path: Path) -> None:
    """With a database the same file can be given at each start: every id is the same, nothing
    comes twice.
    """
    async with serving(tmp_path, database=tmp_path / "x.db") as service:
        before = await everything(service)
    async with serving(tmp_path, database=tmp_path / "x.db") as service:
        assert await everything(service) == before


async def test_ids_follow_from_what_a_seed_says(tmp_path: Path) -> None:
    """In another database the same seed has the same ids, also where it doesn't give them."""
    content = changed(
        domains=[{"domain": "x.example"}], invites=[{"target_email": "x@example.com"}]
    )
    ids: list[Any] = []
    for _ in range(2):
        async with talking(options(tmp_path, content)) as client:
            service = CalledSandbox(client, None)  # type: ignore[arg-type]  # verifies nothing
            ids.append([[item.get("id") for item in await service.items(name)] for name in LISTS])
    assert ids[0] == ids[1]


async def test_what_was_changed_stays_changed(tmp_path: Path) -> None:
    """What was edited through the API is left as it is; what was deleted comes
    back; what was made stays.
    """
    path = tmp_path / "x.db"
    async with serving(tmp_path, database=path) as service:
        await service.call("members update", {"level": 8}, user__uuid=seed.MEMBER)
        await service.call("batch-exports update", {"name": "Renamed", "paused": True})
        await service.call("domains update", {"saml_entity_id": "entity"})
        await service.call("domains delete", id=seed.VERIFIED_DOMAIN)
        response = await service.call(
            "invites create", {"target_email": "NINA@example.com", "level": 1}
        )
        replaced = response.json
        made = (await service.call("projects create", {"name": "Made"})).json
    async with serving(tmp_path, database=path) as service:
        levels = {
            item["user"]["uuid"]: item["level"] for item in await service.items("members list")
        }
        assert levels == {seed.OWNER: 15, seed.ADMIN: 8, seed.MEMBER: 8}
        export = (await service.call("batch-exports get")).json
        assert (export["name"], export["paused"], len(export["latest_runs"])) == (
            "Renamed",
            True,
            1,
        )
        domains = {item["id"]: item for item in await service.items("domains list")}
        assert domains[seed.DOMAIN]["saml_entity_id"] == "entity"
        assert seed.VERIFIED_DOMAIN in domains
        assert await service.items("invites list") == [replaced]
        assert made["id"] in [item["id"] for item in await service.items("projects list")]


async def test_a_changed_key(tmp_path: Path) -> None:
    """A personal key gets the scopes that the seed says now, since nothing else could
    change them.
    """
    path = tmp_path / "x.db"
    member = deepcopy(seed.SEED["organizations"][0]["members"][0])
    async with serving(tmp_path, database=path) as service:
        assert (await service.call("domains list")).status == 200
    member["personal_api_keys"][0]["scopes"] = ["project:read"]
    async with talking(options(tmp_path, changed(members=[member]), database=path)) as client:
        assert [await status(client, seed.OWNER_KEY, name) for name in ("projects", "domains")] == [
            200,
            403,
        ]
        assert await status(client, seed.ADMIN_KEY, "domains") == 200


async def status(
    client: SandboxClient, key: str, name: str, organization: str = seed.ORGANIZATION
) -> int:
    """The status of a list."""
    response = await client.ask(
        "GET",
        f"/api/organizations/{organization}/{name}/",
        None,
        {"Authorization": f"Bearer {key}"},
    )
    return response.status


async def test_one_user_in_two_organizations(tmp_path: Path) -> None:
    """The same address is the same user, in any case, whose keys are good in both organizations,
    at the level of each.
    """
    steve = seed.SEED["organizations"][1]["members"][0]
    content = changed(
        second=True, members=[steve, {"email": "OLGA@example.com", "level": "member"}]
    )
    async with talking(options(tmp_path, content)) as client:
        assert [
            await status(client, seed.OWNER_KEY, "members", organization)
            for organization in (seed.ORGANIZATION, seed.OTHER)
        ] == [200, 200]
        headers = {"Authorization": f"Bearer {seed.OWNER_KEY}", "Content-Type": "application/json"}
        reply = await client.ask(
            "POST", f"/api/organizations/{seed.OTHER}/projects/", b"{}", headers
        )
        assert reply.status == 403


@cases(
    ("content", "words"),
    [
        (
            {"members": [{**OWNER, "email": "x@example.com", "uuid": seed.STRANGER}]},
            "the uuid of the member x@example.com",
        ),
        (
            {
                "members": [
                    {**OWNER, "personal_api_keys": [{"key": seed.STRANGER_KEY, "scopes": ["*"]}]}
                ]
            },
            "a personal key of olga@example.com",
        ),
        ({"projects": [{"api_key": seed.OTHER_TOKEN}]}, "the api_key of a project of Example Inc."),
        (
            {"projects": [{"api_key": "phc_new_000000000000", "uuid": seed.UNKNOWN}]},
            "the uuid of a project of Example Inc.",
        ),
        (
            {"domains": [{"domain": "taken.example", "verified_at": "2026-01-01T00:00:00Z"}]},
            "the domain taken.example",
        ),
        (
            {"domains": [{"domain": "new.example", "id": seed.OTHER_DOMAIN}]},
            "the id of the domain new.example",
        ),
        (
            {"invites": [{"target_email": "new@example.com", "id": seed.OTHER_INVITE}]},
            "the id of the invite of new@example.com",
        ),
        (
            {
                "projects": [
                    {
                        "api_key": seed.TOKEN,
                        "batch_exports": [
                            {"name": "x", "id": seed.OTHER_EXPORT, "destination": {"type": "x"}}
                        ],
                    }
                ]
            },
            "x",
        ),
        (
            {
                "projects": [
                    {
                        "api_key": seed.TOKEN,
                        "batch_exports": [
                            {
                                "name": "x",
                                "destination": {"type": "x"},
                                "runs": [{"id": seed.OTHER_RUN, "status": "Failed"}],
                            }
                        ],
                    }
                ]
            },
            f"the id of a run {seed.OTHER_RUN}",
        ),
    ],
)
async def test_what_is_anothers(tmp_path: Path, content: dict[str, Any], words: str) -> None:
    """A seed that claims what is another's in the database is refused, and
    nothing of it is planted.
    """
    path = tmp_path / "x.db"
    other = deepcopy(seed.SEED["organizations"][1])
    other["domains"].append({"domain": "taken.example", "verified_at": "2026-01-01T00:00:00Z"})
    other["projects"][0]["uuid"] = seed.UNKNOWN
    async with Sandbox(options(tmp_path, {"organizations": [other]}, database=path)):
        pass
    whole = {"id": seed.ORGANIZATION, "name": "Example Inc.", "members": [OWNER], **content}
    with pytest.raises(ConfigurationError) as error:
        await Sandbox(options(tmp_path, {"organizations": [whole]}, database=path)).__aenter__()
    assert words in error.value.message
    assert "phx_" not in str(error.value)
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT id FROM organizations").fetchall() == [(seed.OTHER,)]
    connection.close()


async def test_dashboards_of_a_project(tmp_path: Path) -> None:
    """The first is the primary one; a project that doesn't speak of dashboards has one to begin
    with, one with an empty list none.
    """
    projects: list[dict[str, Any]] = [
        {"api_key": f"phc_project_00000000000{number}"} for number in range(3)
    ]
    projects[0]["dashboards"] = [{"name": "A"}, {"name": "A", "created_by": "mia@example.com"}]
    projects[2]["dashboards"] = []
    content = changed(projects=projects)
    for _ in range(2):
        async with talking(options(tmp_path, content, database=tmp_path / "x.db")) as client:
            service = CalledSandbox(client, None)  # type: ignore[arg-type]  # verifies nothing
            listed = [
                (await service.call("dashboards list", project_id=number)).json["results"]
                for number in (1, 2, 3)
            ]
            assert [[item["name"] for item in items] for items in listed] == [
                ["A", "A"],
                ["My App Dashboard"],
                [],
            ]
            assert [item["created_by"]["first_name"] for item in listed[0]] == ["Olga", "Mia"]
            primary = [
                (await service.call("projects get", id=number)).json["primary_dashboard"]
                for number in (1, 2, 3)
            ]
            assert primary == [listed[0][0]["id"], listed[1][0]["id"], None]


async def test_the_example_of_organizations(tmp_path: Path) -> None:
    """The sample in `config/` has something of every resource, and a key that
    may call every endpoint.
    """
    [organization] = yaml.safe_load(EXAMPLE.read_text())["organizations"]
    async with talking(SandboxOptions(seed=EXAMPLE)) as client:
        key = organization["members"][0]["personal_api_keys"][0]["key"]
        headers = {"Authorization": f"Bearer {key}"}
        for endpoint in ENDPOINTS:
            if endpoint.paginated:
                path = endpoint.path.format(organization_id=organization["id"], project_id=1)
                reply = await client.ask("GET", path, None, headers)
                assert (reply.status, bool(reply.json["results"])) == (200, True), path
        reported = await client.get("/sandbox/batch-exports")
        assert [len(export["latest_runs"]) for export in reported["results"]] == [0, 2, 0]


async def test_flags_of_the_example_decide() -> None:
    """Each is computed for a person and a company of the example, and for no other; its features
    and surveys are there.
    """
    asked = {
        "api_key": "phc_sandbox_shop_000000001",
        "distinct_id": "ann@example.com",
        "groups": {"company": "example-inc"},
    }
    async with talking(SandboxOptions(seed=EXAMPLE)) as client:
        answer = (await client.post("/flags/?v=2", asked)).json
        assert answer["errorsWhileComputingFlags"] is False
        reasons = {
            key: (flag["enabled"], flag["reason"]["code"]) for key, flag in answer["flags"].items()
        }
        assert (
            reasons["new-checkout"]
            == reasons["company-reports"]
            == reasons["button-color"]
            == (True, "condition_match")
        )
        assert {key for key, (on, _) in reasons.items() if not on} == {
            "express-shipping",
            "wish-lists",
        }
        assert "old-search" not in reasons
        response = await client.post("/flags/?v=2", {**asked, "groups": {"company": "small"}})
        small = response.json["flags"]
        assert small["company-reports"]["enabled"] is False
        for path, section in (
            ("early_access_features", "earlyAccessFeatures"),
            ("surveys", "surveys"),
        ):
            assert len((await client.get(f"/api/{path}/?token={asked['api_key']}"))[section]) == 1
