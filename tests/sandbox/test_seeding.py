"""What is there from the start: a seed's file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from forwarder.core.errors import ConfigurationError
from forwarder.sandbox import Sandbox, SandboxOptions
from forwarder.sandbox.seeding import Seed, read_seed
from tests.sandbox.client import KEY, batch, event, talking
from tests.support.clock import MIDNIGHT

EXAMPLE = Path(__file__).parents[2] / "config" / "sandbox-seed.yaml"
PROJECTS = [{"api_key": KEY}]
GROUP = {"group_type": "company", "group_key": "x"}


def written(folder: Path, content: Any) -> Path:
    """A seed's file: text as it is, anything else as JSON."""
    path = folder / "seed.yaml"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


async def test_the_example() -> None:
    """The example has every section but the one that it shows as a comment, and makes the persons, groups and events that it says."""
    async with Sandbox(SandboxOptions(seed=EXAMPLE, now=lambda: MIDNIGHT)) as sandbox:
        ann, bob = await sandbox.persons()
        assert (ann.distinct_id, len(ann.distinct_ids), ann.is_identified) == ("ann@example.com", 2, True)
        assert ann.properties == {"plan": "pro", "signed_up": "2025-11-03"}
        assert (ann.created_at, bob.created_at) == ("2025-11-03T09:30:00.000000Z", "2026-01-01T00:00:00.000000Z")
        [company] = await sandbox.groups()
        assert (company.group_key, company.properties) == ("example-inc", {"name": "Example Inc.", "seats": 25})
        placed = next(one for one in await sandbox.events() if one.event == "order placed")
        assert (placed.person, placed.groups) == (ann.id, {"company": "example-inc"})
        assert [survey.survey_id for survey in await sandbox.surveys()] == ["how-was-it"]
        assert set(Seed.model_fields) - read_seed(EXAMPLE).model_fields_set == {"projects"}
        assert await sandbox.organizations() == 1


async def test_planting_again_changes_nothing(tmp_path: Path) -> None:
    """With a database the same file can be given at each start: what came since stays, nothing is repeated; a new entry comes in."""
    twice = [{"event": "e", "distinct_id": "ann"}] * 2
    seed = {"projects": PROJECTS, "persons": [{"distinct_id": "ann", "properties": {"a": 1}}], "events": twice}
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
    options = SandboxOptions(seed=written(tmp_path, {"projects": PROJECTS}), api_keys=frozenset({"phc_other"}))
    async with talking(options) as client:
        answers = [(await client.post("/batch/", {**batch(event()), "api_key": key})).status for key in (KEY, "phc_other", "phc_third")]
    assert answers == [200, 200, 401]


async def test_json_is_a_seed_too(tmp_path: Path) -> None:
    """A file in JSON is read as well, and an empty one is an empty seed; an entry may name its project itself."""
    path = written(tmp_path, {"events": [{"event": "e", "distinct_id": "a", "api_key": KEY, "timestamp": "2025-01-01T00:00:00+01:00"}]})
    async with Sandbox(SandboxOptions(seed=path)) as sandbox:
        assert [one.timestamp for one in await sandbox.events()] == ["2024-12-31T23:00:00.000000Z"]
    assert read_seed(written(tmp_path, "")).projects == []


@pytest.mark.parametrize(
    ("content", "words", "hint"),
    [
        ({"flags": []}, "no section 'flags'", "organizations, projects, persons, groups, events"),
        ({"projects": [{}]}, "projects[0].api_key: Field required", "docs/sandbox.md"),
        ({"projects": [{"api_key": "phx_secret_personal"}]}, "projects[0].api_key: this is a personal key, not a project key", "docs"),
        ({"projects": PROJECTS, "persons": [{"distinct_id": " "}]}, "persons[0].distinct_id", "docs"),
        ({"projects": PROJECTS, "persons": [{"distinct_id": "a", "colour": 1}]}, "persons[0].colour", "docs"),
        ({"persons": [{"distinct_id": "a"}]}, "persons[0] doesn't say whose it is", "api_key"),
        ({"projects": PROJECTS, "groups": [{**GROUP, "api_key": "phc_third"}]}, "groups[0].api_key is none", "projects"),
        ({"projects": PROJECTS, "events": [{"event": "e", "distinct_id": "a", "timestamp": "2025-01-01"}]}, "events[0].timestamp", "docs"),
        ({"projects": PROJECTS, "groups": [{"group_type": "company"}]}, "groups[0].group_key: Field required", "docs"),
        (f"projects: [api_key: {KEY}]\npersons: [distinct_id: a, properties: {{x: .nan}}]", "persons", "docs"),
        (f"projects: [{{api_key: {KEY}}}]\npersons: [{{distinct_id: a, properties: {{x: .inf}}}}]", "persons[0].properties", "text"),
        ("projects: [", "neither YAML nor JSON in line", "docs"),
        ("just words", "the file: Input should be a valid dictionary", "docs"),
        ({"projects": ["phc_a"]}, "projects[0]: Input should be a valid dictionary", "docs"),
        ("[" * 5000, "nested too deep", "docs"),
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
