"""What the repository's forge reads: templates of issues, updates of what is pinned, the workflow
of the documents. No forge runs them here, so they are read as data.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import yaml

from tests.support.cases import cases
from tests.support.repository import ROOT, name
from tests.support.typed import command, commands, options

FORGE: Final = ROOT / ".github"
FORMS: Final = sorted(
    path for path in (FORGE / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml"
)
TEXTS: Final = [*FORMS, FORGE / "PULL_REQUEST_TEMPLATE.md", ROOT / "SECURITY.md"]
MANIFESTS: Final = {
    "pip": "*.txt",
    "docker": "Dockerfile",
    "docker-compose": "compose.yaml",
    "npm": "package.json",
    "github-actions": ".github/workflows/*.yml",
}
"""What each kind of update reads in its directories."""
UNUSUAL: Final = {"UUID", "WORD"}
"""What stands for a word of the user's."""


def read(path: Path) -> Any:
    """A file of the forge, as data."""
    return yaml.safe_load(path.read_text("utf-8"))


def fields(path: Path) -> dict[str, dict[str, Any]]:
    """The fields of a form by their ids."""
    return {field["id"]: field for field in read(path)["body"] if field["type"] != "markdown"}


@cases("path", FORMS, ids=name)
def test_a_form_has_what_the_forge_asks_for(path: Path) -> None:
    """A name, a description, fields with labels and ids of their own, and texts as choices: an
    unquoted `No` is a boolean, and the forge then shows no form.
    """
    form = read(path)
    assert {"name", "description", "body"} <= form.keys()
    asked = [field for field in form["body"] if field["type"] != "markdown"]
    assert len(fields(path)) == len(asked) > 0
    assert {field["type"] for field in asked} <= {"input", "textarea", "dropdown"}
    assert all(field["attributes"]["label"] for field in asked)
    choices = [field["attributes"]["options"] for field in asked if field["type"] == "dropdown"]
    assert all(isinstance(choice, str) for offered in choices for choice in offered)


def test_a_bug_comes_with_what_finds_it() -> None:
    """The version, the status, one event's path and the configuration have fields; all but the
    event's are required.
    """
    asked = fields(FORGE / "ISSUE_TEMPLATE" / "bug.yml")
    required = {key for key, field in asked.items() if field.get("validations", {}).get("required")}
    assert {"version", "status", "configuration", "steps", "loss"} <= required
    assert "explain" in asked.keys() - required


@cases("path", TEXTS, ids=name)
def test_what_is_named_exists(path: Path) -> None:
    """Commands with their options, and files of the repository."""
    text = path.read_text("utf-8")
    for typed in re.findall(r"`forwarder ([^`]+)`", text):
        words = [word for word in typed.split() if word not in UNUSUAL]
        if words[0] != "--version":
            assert words[0] in commands(), typed
            asked = {word for word in words if word.startswith("--")}
            assert asked <= options(words) | options(words[:1]), typed
            assert command(words) is not None
    files = re.findall(r"(?<![\w/])((?:[\w-]+/)*[\w-]+\.md)\b", text)
    assert [file for file in files if not (ROOT / file).exists()] == []


def test_updates_find_what_they_update() -> None:
    """Each directory has a file of its kind, and none is an older SDK: those stay old."""
    for update in read(FORGE / "dependabot.yml")["updates"]:
        for directory in update.get("directories") or [update["directory"]]:
            assert list(
                (ROOT / directory.strip("/")).glob(MANIFESTS[update["package-ecosystem"]])
            ), directory
            assert "older" not in directory


def test_continuous_integration_runs_its_script() -> None:
    """On the oldest Python, whose path sudo would leave out; the newer ones run the tests."""
    jobs = read(FORGE / "workflows" / "ci.yml")["jobs"]
    commands_of = {
        name: [step["run"] for step in job["steps"] if "run" in step] for name, job in jobs.items()
    }
    assert commands_of["everything"] == ['sudo env "PATH=$PATH" "CI=$CI" bash .ci/run']
    assert commands_of["tests"] == ["make test PYTHON=python PYTEST=--durations=25"]


def test_the_documents_are_published_from_main_only() -> None:
    """A pull request builds the site by `make docs` and publishes nothing; only the job that
    publishes may write, and it runs nothing of the repository.
    """
    workflow = read(FORGE / "workflows" / "docs.yml")
    build, publish = workflow["jobs"]["build"], workflow["jobs"]["publish"]
    assert workflow["permissions"] == {}
    assert workflow[True]["push"]["branches"] == ["main"]  # YAML 1.1 reads `on` as true
    assert [step["run"] for step in build["steps"] if "run" in step] == ["make docs"]
    assert build["permissions"] == {"contents": "read"}
    assert build["steps"][0]["with"]["persist-credentials"] is False
    assert build["steps"][-1]["with"]["path"].strip("/") == "build/site"
    assert build["steps"][-1]["if"] == publish["if"] == "github.event_name == 'push'"
    assert publish["permissions"] == {"pages": "write", "id-token": "write"}
    assert (publish["needs"], ["run" in step for step in publish["steps"]]) == ("build", [False])
