"""What a seed file can hold, and the errors of what it can't."""

from __future__ import annotations

from copy import deepcopy
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml

from forwarder.core.errors import ConfigurationError
from forwarder.sandbox.seed_file import read_seed
from tests.support import management as seed
from tests.support.cases import cases

KEY = {"key": "phx_sixteen_signs", "scopes": ["*"]}
OWNER = {"email": "a@example.com", "level": "owner"}
PROJECT = {"api_key": "phc_project_000000000000"}
EXPORT = {"name": "All", "destination": {"type": "NoOp"}}
WHOLE: dict[str, Any] = {"name": "Example", "members": [OWNER]}


def written(folder: Path, content: Any) -> Path:
    """A seed's file."""
    path = folder / "seed.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return path


def of(**more: Any) -> dict[str, Any]:
    """A seed with one organization that has an owner and what is given."""
    return {"organizations": [{**WHOLE, **more}]}


def exporting(**more: Any) -> dict[str, Any]:
    """A seed with one batch export."""
    return of(projects=[{**PROJECT, "batch_exports": [{**EXPORT, **more}]}])


PLACE = "organizations[0]"


@cases(
    ("content", "words"),
    [
        ({"organizations": [{}]}, f"{PLACE}.name: Field required"),
        ({"organizations": [{"name": "x"}]}, f"{PLACE}: one of its members has to be an owner"),
        (
            of(members=[{"email": "a@example.com"}]),
            f"{PLACE}: one of its members has to be an owner",
        ),
        (of(colour="red"), f"{PLACE}.colour: Extra"),
        (of(id="1"), f"{PLACE}.id"),
        (of(members=[{**OWNER, "level": "boss"}]), f"{PLACE}.members[0].level"),
        (of(members=[{**OWNER, "level": 2}]), f"{PLACE}.members[0].level"),
        (of(members=[{**OWNER, "email": "nobody"}]), f"{PLACE}.members[0].email"),
        (
            of(members=[OWNER, {**OWNER, "email": "A@EXAMPLE.com"}]),
            f"{PLACE}.members[1].email stands there already",
        ),
        (
            of(members=[{**OWNER, "hedgehog_config": {"a": float("inf")}}]),
            f"{PLACE}: This number is out of range",
        ),
        (
            of(members=[{**OWNER, "last_login": "2026-01-01T00:00:00"}]),
            f"{PLACE}.members[0].last_login",
        ),
        (
            of(members=[{**OWNER, "personal_api_keys": [{**KEY, "key": "phc_secret_0000000000"}]}]),
            "personal_api_keys[0].key",
        ),
        (
            of(members=[{**OWNER, "personal_api_keys": [{**KEY, "key": "phx_secret"}]}]),
            "personal_api_keys[0].key",
        ),
        (
            of(members=[{**OWNER, "personal_api_keys": [{**KEY, "scopes": []}]}]),
            "personal_api_keys[0].scopes",
        ),
        (
            of(members=[{**OWNER, "personal_api_keys": [{**KEY, "scopes": ["project"]}]}]),
            "scopes[0]: there is no such scope",
        ),
        (
            of(members=[{**OWNER, "personal_api_keys": [KEY, KEY]}]),
            "members[0].personal_api_keys[1].key stands there already",
        ),
        (
            {"projects": [{"api_key": "phc_a_b_c", "flags": [{"key": "a", "variants": []}]}]},
            "variants: there is no such member, did you mean filters.multivariate.variants?",
        ),
        (of(domains=[{"domain": "nonsense"}]), f"{PLACE}.domains[0].domain"),
        (
            of(domains=[{"domain": "a.example"}, {"domain": "A.example"}]),
            f"{PLACE}.domains[1] stands there already",
        ),
        (
            of(domains=[{"domain": "a.example", "sso_enforcement": "saml"}]),
            f"{PLACE}.domains[0]: jit_provisioning_enabled and",
        ),
        (of(invites=[{}]), f"{PLACE}.invites[0]: target_email: This field is required"),
        (
            of(invites=[{"target_email": "b@example.com", "level": "boss"}]),
            f"{PLACE}.invites[0]: level",
        ),
        (
            of(invites=[{"target_email": "b@example.com", "created_by": "c@example.com"}]),
            f"{PLACE}: created_by is the email",
        ),
        (
            of(invites=[{"target_email": "b@example.com"}] * 2),
            f"{PLACE}.invites[1].target_email stands there already",
        ),
        (of(projects=[{}]), f"{PLACE}.projects[0].api_key"),
        (of(projects=[{"api_key": "phx_secret_0000000000000"}]), "this is a personal key"),
        (of(projects=[PROJECT, PROJECT]), f"{PLACE}.projects[1].api_key stands there already"),
        (
            {**of(projects=[PROJECT]), "projects": [PROJECT]},
            f"{PLACE}.projects[0].api_key stands there already",
        ),
        (
            of(projects=[{**PROJECT, "week_start_day": 9}]),
            f"{PLACE}.projects[0]: week_start_day: Ensure",
        ),
        (of(projects=[{**PROJECT, "timezone": "Mars"}]), f"{PLACE}.projects[0]: timezone"),
        (
            of(projects=[{**PROJECT, "primary_dashboard": 1}]),
            f"{PLACE}.projects[0]: primary_dashboard",
        ),
        (of(projects=[{**PROJECT, "colour": 1}]), f"{PLACE}.projects[0].colour: Extra"),
        (of(projects=[{**PROJECT, "dashboards": [{}]}]), "dashboards[0].name: Field required"),
        (
            of(
                projects=[{**PROJECT, "dashboards": [{"name": "x", "created_by": "c@example.com"}]}]
            ),
            f"{PLACE}: created_by",
        ),
        (
            of(projects=[{**PROJECT, "dashboards": [{"name": "x", "restriction_level": 5}]}]),
            "dashboards[0].restriction_level",
        ),
        (exporting(interval="month"), "batch_exports[0].interval"),
        (exporting(destination={}), "batch_exports[0].destination.type"),
        (
            exporting(start_at="2026-01-02T00:00:00Z", end_at="2026-01-01T00:00:00Z"),
            "batch_exports[0]: start_at has to be before",
        ),
        (exporting(runs=[{"status": "Done"}]), "batch_exports[0].runs[0].status"),
        (
            exporting(runs=[{"status": "Failed", "records_completed": -1}]),
            "batch_exports[0].runs[0].records_completed",
        ),
        (exporting(filters={"when": date(2026, 1, 1)}), "batch_exports[0].filters"),
        ({"organizations": [WHOLE, WHOLE]}, "organizations[1] stands there already"),
        (
            {"organizations": [{**WHOLE, "id": seed.OTHER}, {**WHOLE, "id": seed.OTHER}]},
            "organizations[1] stands there already",
        ),
        ('organizations: [{name: "\\0"}]', f"{PLACE}: Null characters"),
        ('organizations: [{name: "\\ud800"}]', f"{PLACE}: Half a surrogate pair"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, content: Any, words: str) -> None:
    """The error names the file and the entry, and shows no key."""
    with pytest.raises(ConfigurationError) as error:
        read_seed(written(tmp_path, content))
    assert str(tmp_path) in error.value.message
    assert words in error.value.message
    assert "settings" not in error.value.message
    assert "secret" not in str(error.value)
    assert "sixteen" not in str(error.value)


@cases(
    ("thing", "field"), [("domains", "domain"), ("invites", "target_email"), ("members", "email")]
)
def test_what_two_organizations_can_have(tmp_path: Path, thing: str, field: str) -> None:
    """Two organizations may invite the same person, have the same members, and ask for the same
    domain, which one of them verified.
    """
    content = deepcopy(seed.SEED)
    first, second = content["organizations"]
    entry = {name: value for name, value in first[thing][0].items() if name in (field, "level")}
    read = read_seed(
        written(tmp_path, {"organizations": [first, {**second, thing: [*second[thing], entry]}]})
    )
    assert len(read.organizations) == 2
    for domains in (first["domains"], second["domains"]):
        domains.append({"domain": "both.example", "verified_at": "2026-01-01T00:00:00Z"})
    with pytest.raises(ConfigurationError, match="stands there already"):
        read_seed(written(tmp_path, content))


def test_a_key_is_nowhere_to_be_seen(tmp_path: Path) -> None:
    """The seed as text shows neither personal keys nor the config of destinations."""
    text = repr(read_seed(written(tmp_path, seed.SEED)))
    assert "phx_" not in text
    assert "hidden-secret" not in text


def test_whose_an_entry_is(tmp_path: Path) -> None:
    """With one project in all, an organization's, persons are that project's; with several they
    have to say whose they are.
    """
    person = {"persons": [{"distinct_id": "ann"}]}
    assert (
        read_seed(written(tmp_path, {**of(projects=[PROJECT]), **person})).only_project
        == PROJECT["api_key"]
    )
    with pytest.raises(ConfigurationError, match="doesn't say whose"):
        read_seed(
            written(
                tmp_path,
                {
                    **of(projects=[PROJECT]),
                    "projects": [{"api_key": "phc_other_0000000000000"}],
                    **person,
                },
            )
        )
    several = read_seed(
        written(
            tmp_path,
            {**of(projects=[PROJECT]), "projects": [{"api_key": "phc_other_0000000000000"}]},
        )
    )
    assert several.api_keys == {PROJECT["api_key"], "phc_other_0000000000000"}
