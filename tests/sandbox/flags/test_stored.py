"""Definitions in the database: kept, seeded, and never undone by a seed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from forwarder.core.errors import ConfigurationError
from forwarder.sandbox import SandboxOptions
from forwarder.sandbox.seed_file import read_seed
from tests.sandbox.client import KEY, SandboxClient, talking
from tests.sandbox.defining import SECRET, define, flag, person_is, put, values
from tests.support.cases import cases

OWNER = {"email": "a@example.com", "level": "owner"}


def seeded(folder: Path, **project: Any) -> Path:
    """A seed with one project."""
    path = folder / "seed.yaml"
    path.write_text(yaml.safe_dump({"projects": [{"api_key": KEY, **project}]}))
    return path


async def test_a_restart(tmp_path: Path) -> None:
    """Flags and cohorts stay in a database; without one they are gone."""
    options = SandboxOptions(database=tmp_path / "x.db")
    async with talking(options) as client:
        await put(client, "cohorts/7", {"distinct_ids": ["ann"]})
        await define(client, beta=flag(person_is("id", 7, "in", "cohort")))
    async with talking(options) as client:
        assert [(await values(client, who))["beta"] for who in ("ann", "bob")] == [True, False]
        await client.ask("DELETE", "/sandbox/events")
        assert await values(client) == {"beta": True}


async def test_a_seed(tmp_path: Path) -> None:
    """Both forms of project have flags, cohorts and types of groups."""
    content: dict[str, Any] = {
        "flags": [
            {
                "key": "pros",
                "filters": {"groups": [{"properties": [person_is("id", 3, "in", "cohort")]}]},
            },
            {"key": "companies", "filters": {"groups": [{}], "aggregation_group_type_index": 1}},
        ],
        "cohorts": [
            {
                "id": 3,
                "filters": {"properties": {"type": "AND", "values": [person_is("plan", "pro")]}},
            }
        ],
        "group_types": ["team", "company"],
    }
    inside = {
        "name": "Example",
        "members": [OWNER],
        "projects": [{"api_key": KEY, "name": "Shop", **content}],
    }
    for seed in ({"projects": [{"api_key": KEY, **content}]}, {"organizations": [inside]}):
        path = tmp_path / "seed.yaml"
        path.write_text(yaml.safe_dump(seed))
        async with talking(SandboxOptions(seed=path)) as client:
            given: dict[str, Any] = {
                "person_properties": {"plan": "pro"},
                "groups": {"company": "x"},
            }
            assert await values(client, **given) == {"pros": True, "companies": True}
            assert await values(client) == {"pros": False, "companies": False}


async def test_seeding_again(tmp_path: Path) -> None:
    """What was set since stays as it is; what was deleted comes back; a new entry comes in."""
    database = tmp_path / "x.db"
    seed = seeded(tmp_path, flags=[{"key": "a"}, {"key": "b"}])
    async with talking(SandboxOptions(database=database, seed=seed)) as client:
        await define(client, a={"active": False})
        await client.ask("DELETE", f"/sandbox/flags/b?api_key={KEY}")
    seeded(tmp_path, flags=[{"key": "a"}, {"key": "b"}, {"key": "c"}])
    async with talking(SandboxOptions(database=database, seed=seed)) as client:
        assert await values(client) == {"b": True, "c": True}
        assert (await client.get(f"/sandbox/flags/a?api_key={KEY}"))["version"] == 2


@cases(
    ("project", "words"),
    [
        ({"flags": [{"key": "a"}, {"filters": {}}]}, "flags[1]: key: this is required"),
        (
            {"flags": [{"key": "a", "filters": {"groups": 7}}]},
            "flags[0]: filters.groups: must be a list",
        ),
        (
            {"flags": [{"key": "a", "filters": {"groups": [{"rollout_percentage": "x"}]}}]},
            "filters.groups[0].rollout_percentage",
        ),
        ({"flags": [{"key": "a"}, {"key": "a"}]}, "flags: key a stands there already"),
        ({"flags": ["a"]}, "flags[0]: key: this is required"),
        ({"flags": [{"key": "a", "x": float("inf")}]}, "flags[0]: this can't be written as JSON"),
        ({"cohorts": [{"id": -1}]}, "cohorts[0]: id: must be a number from 1 on"),
        ({"cohorts": [{"name": "x"}]}, "cohorts[0]: id: this is required"),
        (
            {"cohorts": [{"id": 1, "filters": {"properties": {"type": "XOR"}}}]},
            "cohorts[0]: filters.properties.type",
        ),
        ({"cohorts": [{"id": 1, "distinct_ids": "ann"}]}, "cohorts[0]: distinct_ids"),
        ({"surveys": [{}]}, "surveys[0]: name: this is required"),
        (
            {"surveys": [{"name": "x", "targeting_flag_filters": []}]},
            "surveys[0]: targeting_flag_filters",
        ),
        ({"early_access_features": [{"name": "x"}]}, "early_access_features[0]: flagKey"),
        (
            {"early_access_features": [{"name": "x", "flagKey": "y", "stage": "z"}]},
            "early_access_features[0]: stage",
        ),
        ({"experiments": [{"name": "x"}]}, "experiments[0]: feature_flag_key"),
        (
            {
                "experiments": [
                    {
                        "name": "x",
                        "feature_flag_key": "y",
                        "parameters": {"feature_flag_variants": [1]},
                    }
                ]
            },
            "feature_flag_variants",
        ),
        ({"group_types": [""]}, "group_types[0]"),
        ({"flag": []}, "flag: Extra"),
    ],
)
def test_invalid_seeds(tmp_path: Path, project: dict[str, Any], words: str) -> None:
    """An error names the file, the entry, and what in it."""
    with pytest.raises(ConfigurationError) as error:
        read_seed(seeded(tmp_path, **project))
    assert "seed.yaml: projects[0]" in str(error.value)
    assert words in str(error.value)


@cases(
    "form",
    [
        {"filters": {"properties": {"type": "AND", "values": [person_is("plan", "pro")]}}},
        {"groups": [{"properties": [person_is("plan", "pro")]}]},
        {"type": "AND", "values": [person_is("plan", "pro")]},
    ],
)
async def test_each_form_of_a_cohort_decides(form: dict[str, Any]) -> None:
    """Its conditions count wherever the form has them, in the sandbox and in SDKs."""
    async with talking() as client:
        await put(client, "cohorts/7", form)
        await define(client, beta=flag(person_is("id", 7, "in", "cohort")))
        assert [
            (await values(client, person_properties={"plan": plan}))["beta"]
            for plan in ("pro", "free")
        ] == [True, False]
        assert (await definitions(client)).json["cohorts"]["7"]["values"]


async def definitions(client: SandboxClient, **headers: str) -> Any:
    """What an SDK gets."""
    return await client.ask(
        "GET", f"/flags/definitions?token={KEY}&send_cohorts", headers={**SECRET, **headers}
    )


async def test_a_change_is_seen_at_once() -> None:
    """Definitions are parsed once a change: each way to change one is seen by the next request,
    and by its ETag.
    """
    async with talking() as client:
        await define(client, beta=flag(person_is("id", 7, "in", "cohort")))
        seen = [(await definitions(client)).headers["ETag"]]
        assert (await definitions(client, **{"If-None-Match": seen[0]})).status == 304
        for plan in ("pro", "free"):
            content = {"type": "AND", "values": [person_is("plan", plan)]}
            await put(client, "cohorts/7", {"filters": {"properties": content}})
            reply = await definitions(client, **{"If-None-Match": seen[-1]})
            assert reply.json["cohorts"] == {"7": content}
            seen.append(reply.headers["ETag"])
            assert (await values(client, person_properties={"plan": "pro"}))["beta"] is (
                plan == "pro"
            )
        await client.ask("PATCH", "/sandbox/flags?id=1", json.dumps({"active": False}).encode())
        assert (await definitions(client)).headers["ETag"] not in seen
        assert await values(client, person_properties={"plan": "free"}) == {}
