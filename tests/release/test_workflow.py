"""The workflow of a release, read as data: there is no forge to run it on in every place that runs
the tests.
"""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from forwarder import __version__
from tests.release.__main__ import wrong_tag
from tests.support.dockerfile import FORWARDER
from tests.support.repository import ROOT

TEXT = (ROOT / ".github" / "workflows" / "release.yml").read_text()
WORKFLOW: dict[Any, Any] = yaml.safe_load(TEXT)
JOBS: dict[str, Any] = WORKFLOW["jobs"]


def steps(job: str, action: str) -> list[dict[str, Any]]:
    """The steps of a job that use an action."""
    return [step for step in JOBS[job]["steps"] if step.get("uses", "").startswith(f"{action}@")]


def test_it_begins_with_a_tag_and_the_check() -> None:
    """Nothing is released before wheel and source archive are proved, and the
    tag is that of the version.
    """
    assert WORKFLOW[True] == {"push": {"tags": ["v*"]}}  # YAML 1.1 reads `on` as true
    commands = [step["run"] for step in JOBS["check"]["steps"] if "run" in step]
    assert commands == [
        'make release-check RELEASE="--tag $GITHUB_REF_NAME --output dist"',
        "make sbom",
    ]
    assert {name: job.get("needs") for name, job in JOBS.items()} == {
        "check": None,
        "packages": ["check", "images"],
        "images": "check",
    }


def test_both_images_are_for_both_platforms_with_sbom_and_provenance() -> None:
    """And each is a stage of the Dockerfile: the last one, and `full`."""
    [build] = steps("images", "docker/build-push-action")
    assert {name: build["with"][name] for name in ("platforms", "push", "sbom", "provenance")} == {
        "platforms": "linux/amd64,linux/arm64",
        "push": True,
        "sbom": True,
        "provenance": "mode=max",
    }
    targets = [image["target"] for image in JOBS["images"]["strategy"]["matrix"]["include"]]
    assert set(targets) == {"", "full"} <= {name for name, _, _ in FORWARDER.stages}
    assert steps("images", "docker/setup-qemu-action")


def test_a_candidate_is_a_prerelease() -> None:
    """Else it would be shown as the latest release."""
    [step] = [step for step in JOBS["packages"]["steps"] if "run" in step]
    assert '--prerelease="$PRERELEASE"' in step["run"]
    assert step["env"]["PRERELEASE"] == "${{ contains(github.ref_name, 'rc') }}"


def test_what_was_proved_is_attested() -> None:
    """The files of the check are those of the release, and each has an
    attestation of where it was built.
    """
    [uploaded] = steps("check", "actions/upload-artifact")
    [fetched] = steps("packages", "actions/download-artifact")
    assert uploaded["with"]["name"] == fetched["with"]["name"]
    [attested] = steps("packages", "actions/attest-build-provenance")
    assert attested["with"]["subject-path"] == "dist/*"


@pytest.mark.parametrize(
    ("job", "allowed"),
    [
        ("check", {"contents": "read"}),
        ("packages", {"contents": "write", "id-token": "write", "attestations": "write"}),
        ("images", {"contents": "read", "packages": "write"}),
    ],
)
def test_jobs_have_the_permissions_that_they_need(job: str, allowed: dict[str, str]) -> None:
    """No job has another; by default there are none, and a checkout leaves no token behind."""
    assert WORKFLOW["permissions"] == {}
    assert JOBS[job]["permissions"] == allowed
    assert [
        step
        for step in steps(job, "actions/checkout")
        if step["with"]["persist-credentials"] is not False
    ] == []


@pytest.mark.parametrize(
    ("tag", "right"),
    [(f"v{__version__}", True), (__version__, False), ("v0.0.0-rc1", False), ("", False)],
)
def test_a_tag_names_the_version(tag: str, right: bool) -> None:
    """Any other tag is refused, with the one that is meant."""
    assert (wrong_tag(tag) == "") is right
    assert right or f"v{__version__}" in wrong_tag(tag)
