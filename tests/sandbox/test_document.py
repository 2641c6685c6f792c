"""The pages about the sandbox are compared with it: what they list is there, and
what is there is listed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import get_args

import pytest

from forwarder.contract.resources import Domain, RunStatus
from forwarder.sandbox.conditions.matching import OPERATORS
from forwarder.sandbox.exports.export_records import EVENT_COLUMNS, PERSON_COLUMNS
from forwarder.sandbox.openapi import LISTINGS, document
from forwarder.sandbox.seed_entries import (
    SETTINGS,
    Seed,
    SeedDashboard,
    SeedDomain,
    SeedEntry,
    SeedEvent,
    SeedExport,
    SeedGroup,
    SeedInvite,
    SeedKey,
    SeedMember,
    SeedOrganization,
    SeedPerson,
    SeedProject,
    SeedProjectKey,
    SeedRun,
)
from tests.support.cases import cases
from tests.support.documents import text_of

TEXT = text_of("sandbox", "sandbox-flags", "sandbox-exports")
ENDPOINTS = TEXT + text_of("sandbox-faults", "testing-http")
SIGN_ON = set(Domain.__annotations__) - {
    "id",
    "domain",
    "is_verified",
    "verified_at",
    "verification_challenge",
    "has_saml",
}
SECTIONS: dict[str, type[SeedEntry]] = {
    "`organizations`": SeedOrganization,
    "`projects`": SeedProjectKey,
    "`persons`": SeedPerson,
    "`groups`": SeedGroup,
    "`events`": SeedEvent,
    "`members`": SeedMember,
    "`personal_api_keys` of a member": SeedKey,
    "`domains`": SeedDomain,
    "`invites`": SeedInvite,
    "`dashboards` of a project": SeedDashboard,
    "`batch_exports` of a project": SeedExport,
    "`runs` of a batch export": SeedRun,
}


def row(first: str, place: int = 0) -> list[str]:
    """The cells of the row that begins with this cell: of the first such row, or of a later one."""
    rows = [line for line in TEXT.splitlines() if line.startswith(f"| {first} |")]
    return [cell.strip() for cell in rows[place].strip("|").split(" | ")]


def keys(section: type[SeedEntry]) -> set[str]:
    """The keys that an entry can have, without those of a payload."""
    return {field.alias or name for name, field in section.model_fields.items()} - {SETTINGS}


@cases("path", LISTINGS)
def test_every_listing_is_there_with_its_parameters(path: str) -> None:
    """Each listing has a row with the parameters that aren't those of all, and no other."""
    said = set(re.findall(r"`(\w+)`", row(f"`GET {path}`")[2]))
    assert said == set(LISTINGS[path][1]) - {"order", "limit", "offset"}
    assert {"limit", "offset"} <= set(LISTINGS[path][1])


@cases("name", SECTIONS)
def test_every_key_of_a_seed_is_there(name: str) -> None:
    """Each section has a row with the keys of its entries; those of a payload are where the
    interface's document has them.
    """
    said = set(re.findall(r"`(\w+)`", row(name)[1])) | (SIGN_ON if name == "`domains`" else set())
    assert said - {"target_email"} == keys(SECTIONS[name])


def test_projects_of_organizations_and_sections_are_there() -> None:
    """The projects of an organization are said beside those without one,
    and no section is left out.
    """
    assert set(re.findall(r"`(\w+)`", row("`projects`", 1)[1])) == keys(SeedProject)
    assert {f"`{name}`" for name in Seed.model_fields} <= set(SECTIONS)


@pytest.mark.parametrize(
    ("model", "columns"),
    [("`events`", EVENT_COLUMNS), ("`persons`", PERSON_COLUMNS)],
    ids=["events", "persons"],
)
def test_every_column_of_an_export_is_there(model: str, columns: Mapping[str, object]) -> None:
    """In the order in which records have them."""
    assert re.findall(r"`([$\w]+)`", row(model, 1)[1]) == list(columns)


def test_every_status_of_a_run_is_there() -> None:
    """Each says what makes it."""
    assert {name for name in get_args(RunStatus) if row(f"`{name}`")[1]} == set(get_args(RunStatus))


def test_every_operator_of_a_condition_is_there() -> None:
    """In a row that says what it matches."""
    section = TEXT.partition("| operator | matches")[2].partition("\n\n")[0]
    assert (
        set(
            re.findall(
                r"`([a-z_]+)`", "\n".join(line.split(" | ")[0] for line in section.splitlines())
            )
        )
        == OPERATORS
    )


@cases("path", [path for path in document()["paths"] if path.startswith("/sandbox/")])
def test_every_endpoint_of_its_own_is_there(path: str) -> None:
    """By its whole path; the description of the endpoints is compared with
    the application elsewhere.
    """
    assert re.search(rf"{re.escape(path)}(?![\w/])", ENDPOINTS)
