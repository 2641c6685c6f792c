"""docs/sandbox.md is held against the sandbox: what it lists is there, and what is there is listed."""

from __future__ import annotations

import re

import pytest

from forwarder.contract.resources import Domain
from forwarder.sandbox.openapi import LISTINGS
from forwarder.sandbox.seed_file import (
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
from tests.support.repository import ROOT

TEXT = (ROOT / "docs" / "sandbox.md").read_text()
SIGN_ON = set(Domain.__annotations__) - {"id", "domain", "is_verified", "verified_at", "verification_challenge", "has_saml"}
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
    found = [line for line in TEXT.splitlines() if line.startswith(f"| {first} |")]
    return [cell.strip() for cell in found[place].strip("|").split(" | ")]


def keys(section: type[SeedEntry]) -> set[str]:
    """The keys that an entry can have, without those of a payload."""
    return {field.alias or name for name, field in section.model_fields.items()} - {SETTINGS}


@pytest.mark.parametrize("path", LISTINGS)
def test_every_listing_is_there_with_its_parameters(path: str) -> None:
    """Each listing has a row with all its parameters, and no other."""
    assert set(re.findall(r"`(\w+)`", row(f"`GET {path}`")[2])) == set(LISTINGS[path][1])


@pytest.mark.parametrize("name", SECTIONS)
def test_every_key_of_a_seed_is_there(name: str) -> None:
    """Each section has a row with the keys of its entries; those of a payload are where the interface's document has them."""
    said = set(re.findall(r"`(\w+)`", row(name)[1])) | (SIGN_ON if name == "`domains`" else set())
    assert said - {"target_email"} == keys(SECTIONS[name])


def test_projects_of_organizations_and_sections_are_there() -> None:
    """The projects of an organization are said beside those without one, and no section is left out."""
    assert set(re.findall(r"`(\w+)`", row("`projects`", 1)[1])) == keys(SeedProject)
    assert {f"`{name}`" for name in Seed.model_fields} <= set(SECTIONS)
