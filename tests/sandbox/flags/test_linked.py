"""Surveys, early access features and experiments: in the forms of SDKs, and their flags."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from forwarder.sandbox import SandboxOptions
from tests.sandbox.client import KEY, talking
from tests.sandbox.defining import define, person_is, values


def seeded(folder: Path, **project: Any) -> SandboxOptions:
    """Options with a seed of one project, and a database."""
    path = folder / "seed.yaml"
    path.write_text(yaml.safe_dump({"projects": [{"api_key": KEY, **project}]}))
    return SandboxOptions(seed=path, database=folder / "x.db")


async def test_surveys(tmp_path: Path) -> None:
    """A survey has every field that an SDK reads; its flag for whom it targets is decided as all
    flags are; archived ones are left out.
    """
    targeted = {"groups": [{"properties": [person_is("plan", "pro")]}]}
    surveys = [
        {
            "id": "s-1",
            "name": "How was it?",
            "questions": [{"type": "open", "question": "Well?"}],
            "targeting_flag_filters": targeted,
        },
        {"name": "Old", "archived": True},
        {"name": "Linked", "linked_flag_key": "beta", "start_date": "2026-01-01T00:00:00Z"},
    ]
    async with talking(seeded(tmp_path, surveys=surveys, flags=[{"key": "beta"}])) as client:
        first, second = (await client.get(f"/api/surveys/?token={KEY}"))["surveys"]
        key = first["targeting_flag_key"]
        assert (first["id"], first["type"], first["conditions"], first["end_date"]) == (
            "s-1",
            "popover",
            None,
            None,
        )
        assert first["questions"] == [{"type": "open", "question": "Well?"}]
        assert first["feature_flag_keys"] == [{"key": "targeting_flag_key", "value": key}]
        assert (second["linked_flag_key"], second["targeting_flag_key"], second["start_date"]) == (
            "beta",
            None,
            "2026-01-01T00:00:00Z",
        )
        assert await values(client) == {"beta": True, key: False}
        assert await values(client, person_properties={"plan": "pro"}) == {"beta": True, key: True}
        assert (await client.get(f"/array/{KEY}/config"))["surveys"] is True


async def test_early_access_features(tmp_path: Path) -> None:
    """A feature's flag is made if it isn't there, and is on for anyone who has enrolled, off for
    anyone who has opted out.
    """
    features = [
        {"name": "Dark mode", "flagKey": "dark", "documentation_url": "https://example.com/dark"},
        {"name": "Someday", "flag_key": "someday", "stage": "concept"},
        {"name": "Draft", "flagKey": "draft", "stage": "draft"},
    ]
    flags = [
        {"key": "someday", "filters": {"groups": [{"properties": [person_is("plan", "pro")]}]}}
    ]
    async with talking(seeded(tmp_path, early_access_features=features, flags=flags)) as client:
        answer = await client.get(f"/api/early_access_features/?token={KEY}")
        [dark] = answer["earlyAccessFeatures"]
        assert (dark["name"], dark["flagKey"], dark["stage"], dark["documentationUrl"]) == (
            "Dark mode",
            "dark",
            "beta",
            "https://example.com/dark",
        )
        both = await client.get(f"/api/early_access_features/?token={KEY}&stage=concept&stage=beta")
        assert [feature["name"] for feature in both["earlyAccessFeatures"]] == [
            "Dark mode",
            "Someday",
        ]
        assert await values(client) == {"dark": False, "someday": False}
        enrolled = {"$feature_enrollment/dark": "true", "$feature_enrollment/someday": "true"}
        assert await values(client, person_properties=enrolled) == {"dark": True, "someday": True}
        refused = {"$feature_enrollment/someday": "false", "plan": "pro"}
        assert await values(client, person_properties=refused) == {"dark": False, "someday": False}
        assert await values(client, person_properties={"plan": "pro"}) == {
            "dark": False,
            "someday": True,
        }


async def test_experiments(tmp_path: Path) -> None:
    """An experiment makes its flag with the variants, names itself in it, and a draft's is off; a
    flag that is there keeps its own.
    """
    variants = [
        {"key": "control", "rollout_percentage": 0},
        {"key": "new", "rollout_percentage": 100},
    ]
    experiments = [
        {
            "id": 5,
            "name": "Checkout",
            "feature_flag_key": "checkout",
            "parameters": {"feature_flag_variants": variants},
        },
        {"name": "Halves", "feature_flag_key": "halves"},
        {"name": "Not yet", "feature_flag_key": "later", "start_date": None},
        {"name": "Page", "feature_flag_key": "mine", "type": "web"},
    ]
    options = seeded(tmp_path, experiments=experiments, flags=[{"key": "mine", "active": False}])
    async with talking(options) as client:
        flag_values = await values(client)
        assert flag_values.pop("halves") in ("control", "test")
        assert flag_values == {"checkout": "new"}
        made = await client.get(f"/sandbox/flags/checkout?api_key={KEY}")
        assert (made["experiment_set"], made["filters"]["multivariate"]["variants"]) == (
            [5],
            variants,
        )
        reply = await client.post("/flags/?v=2", {"api_key": KEY, "distinct_id": "ann"})
        assert {
            key: answer["metadata"]["has_experiment"] for key, answer in reply.json["flags"].items()
        } == dict.fromkeys([*flag_values, "halves"], True)
        [page] = (await client.get(f"/api/web_experiments/?token={KEY}"))["experiments"]
        assert page["name"] == "Page"
        await define(client, checkout={"active": False})
    async with talking(options) as client:
        assert "checkout" not in await values(client)
