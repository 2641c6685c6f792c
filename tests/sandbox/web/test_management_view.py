"""What `/sandbox/organizations` and its like show of the management half."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import pytest_asyncio
from pydantic import TypeAdapter

from forwarder.sandbox.web.management_view import MANAGEMENT_LISTINGS
from tests.sandbox.client import SandboxClient, batch, event, talking
from tests.support import management as seed
from tests.support.clock import MIDNIGHT
from tests.support.management import SEED, seeded

NAMES = tuple(MANAGEMENT_LISTINGS)
ALL = {
    "organizations": 2,
    "projects": 3,
    "members": 4,
    "invites": 2,
    "domains": 3,
    "dashboards": 7,
    "batch-exports": 3,
}
SECRETS = (
    "hidden-secret",
    seed.TOKEN,
    seed.OTHER_TOKEN,
    seed.OWNER_KEY,
    seed.STRANGER_KEY,
    "phx_test",
    "digest",
)


@pytest_asyncio.fixture
async def shown(tmp_path: Path) -> AsyncIterator[SandboxClient]:
    """A sandbox with two organizations, one minute after midnight."""
    async with talking(seeded(tmp_path, now=lambda: MIDNIGHT)) as client:
        yield client


async def one(client: SandboxClient, name: str, identity: object) -> Any:
    """The one of that id."""
    listing = await client.get(f"/sandbox/{name}?id={identity}")
    assert listing["count"] == 1
    return listing["results"][0]


def bearer(key: str) -> dict[str, str]:
    """A personal key, as it is sent."""
    return {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}


@pytest.mark.parametrize("name", NAMES)
async def test_all_are_listed_without_a_key(shown: SandboxClient, name: str) -> None:
    """Every listing has what all organizations have, no matter who asks, and each item fits its
    type to the letter.
    """
    listing = await shown.get(f"/sandbox/{name}")
    assert (listing["count"], len(listing["results"])) == (ALL[name], ALL[name])
    schema = TypeAdapter(MANAGEMENT_LISTINGS[name].record).json_schema(mode="serialization")
    for item in listing["results"]:
        jsonschema.Draft202012Validator(schema).validate(item)
        assert set(item) == set(schema["properties"])


@pytest.mark.parametrize("name", NAMES)
async def test_pages(shown: SandboxClient, name: str) -> None:
    """Limit, offset and order are those of the other listings: the oldest first unless the newest
    are asked for.
    """
    items = (await shown.get(f"/sandbox/{name}"))["results"]
    part = await shown.get(f"/sandbox/{name}?limit=1&offset=1")
    assert part == {"count": ALL[name], "results": [items[1]]}
    assert (await shown.get(f"/sandbox/{name}?order=newest"))["results"] == items[::-1]
    assert (await shown.get(f"/sandbox/{name}?limit=x&offset=-1"))["results"] == items


@pytest.mark.parametrize("name", NAMES)
async def test_no_secret_is_shown(shown: SandboxClient, name: str) -> None:
    """Neither a project key nor a personal one nor a secret of a destination
    is anywhere in a listing.
    """
    text = json.dumps(await shown.get(f"/sandbox/{name}"))
    assert [secret for secret in SECRETS if secret in text] == []
    assert "aws_secret_access_key" in json.dumps(SEED)


@pytest.mark.parametrize(
    ("query", "names"),
    [
        (f"organizations?id={seed.ORGANIZATION}", ["Example Inc."]),
        ("organizations?text=LTD", ["Other Ltd."]),
        ("organizations?text=%25", []),
        ("organizations?id=nonsense", []),
        (f"projects?organization={seed.OTHER}", ["Theirs"]),
        ("projects?id=2", ["App"]),
        ("projects?id=x", []),
        ("projects?text=sho", ["Shop"]),
        (f"projects?api_key={seed.SECOND_TOKEN}", ["App"]),
        ("dashboards?project=3", ["Theirs"]),
        (f"dashboards?organization={seed.OTHER}", ["Theirs"]),
        ("dashboards?text=board%205", ["Dashboard 5"]),
        ("batch-exports?project=1", ["All events", "Persons"]),
        ("batch-exports?project=1&text=pers", ["Persons"]),
        (f"batch-exports?organization={seed.ORGANIZATION}&project=3", []),
        ("batch-exports?text='%20OR%201=1%20--", []),
    ],
)
async def test_filters(shown: SandboxClient, query: str, names: list[str]) -> None:
    """Each filter, and several together; what is no id finds nothing, and signs of a pattern are
    only signs.
    """
    listing = await shown.get(f"/sandbox/{query}")
    assert ([item["name"] for item in listing["results"]], listing["count"]) == (names, len(names))


async def test_an_organization_says_how_much_it_has(shown: SandboxClient) -> None:
    """Its members, projects, domains and pending invites are counted, and
    no other organization's.
    """
    item = await one(shown, "organizations", seed.ORGANIZATION)
    counts = {name: item[name] for name in ("members", "projects", "domains", "pending_invites")}
    assert counts == {"members": 3, "projects": 2, "domains": 2, "pending_invites": 1}


async def test_a_project(shown: SandboxClient) -> None:
    """Its key is masked, its settings are all there, and it tells whether events have
    come for it.
    """
    await shown.post("/batch/", {**batch(event()), "api_key": seed.TOKEN})
    first = await one(shown, "projects", 1)
    second = await one(shown, "projects", 2)
    assert (first["api_key"], first["dashboards"], first["batch_exports"]) == ("phc_…0001", 5, 2)
    assert (first["ingested_event"], second["ingested_event"]) == (True, False)
    assert first["organization"] == {"id": seed.ORGANIZATION, "name": "Example Inc."}
    assert first["settings"]["timezone"] == "UTC"


async def test_an_address_of_a_webhook_is_a_secret(shown: SandboxClient) -> None:
    """Who knows it may write there; so it isn't shown, and neither are keys that someone wrote
    where they don't belong.
    """
    body = {
        "name": f"graphs_overview of {seed.TOKEN}\n{seed.OWNER_KEY}",
        "slack_incoming_webhook": "https://hooks.example.com/secret",
        "app_urls": ["https://a:b@c.example"],
        "extra_settings": {seed.TOKEN: [seed.OTHER_TOKEN]},
    }
    path = f"/api/organizations/{seed.ORGANIZATION}/projects/"
    made = await shown.ask("POST", path, json.dumps(body).encode(), bearer(seed.OWNER_KEY))
    assert made.status == 201
    item = await one(shown, "projects", made.json["id"])
    assert (item["name"], item["settings"]["slack_incoming_webhook"]) == (
        "graphs_overview of phc_…0001\nphx_…0001",
        "…",
    )
    assert (item["settings"]["app_urls"], item["settings"]["extra_settings"]) == (
        ["https://…@c.example"],
        {"phc_…0001": ["phc_…0003"]},
    )


async def test_a_member_with_keys(shown: SandboxClient) -> None:
    """Of a personal key there is its label and what it is good for."""
    listing = await shown.get(f"/sandbox/members?user={seed.ADMIN}")
    (member,) = listing["results"]
    assert (member["user"]["email"], member["level"], member["level_name"]) == (
        "adam@example.com",
        8,
        "admin",
    )
    (key,) = member["personal_api_keys"]
    assert (key["label"], key["scopes"], set(key)) == (
        "everything",
        ["*"],
        {"label", "scopes", "created_at"},
    )
    assert (await shown.get("/sandbox/members?text=OLGA"))["results"][0]["level_name"] == "owner"


async def test_an_invite_expires(tmp_path: Path) -> None:
    """It is pending until the moment it expires at, and is then no longer counted
    among its organization's.
    """
    now = [MIDNIGHT]
    async with talking(seeded(tmp_path, now=lambda: now[0])) as client:
        states = []
        for passed in (0, 3 * 86_400 - 1, 3 * 86_400):
            now[0] = MIDNIGHT + passed
            invite = await one(client, "invites", seed.INVITE)
            organization = await one(client, "organizations", seed.ORGANIZATION)
            states.append((invite["is_expired"], organization["pending_invites"]))
        assert states == [(False, 1), (False, 1), (True, 0)]
        assert (invite["level_name"], invite["created_by"]["email"]) == (
            "admin",
            "olga@example.com",
        )


async def test_a_domain_with_what_to_set(shown: SandboxClient) -> None:
    """A domain says the DNS record that verifies it."""
    item = await one(shown, "domains", seed.DOMAIN)
    challenge = item["verification_challenge"]
    assert item["dns_record"] == {
        "type": "TXT",
        "name": "_posthog-challenge.example.com",
        "value": challenge,
    }
    assert (
        item["is_verified"],
        (await one(shown, "domains", seed.VERIFIED_DOMAIN))["is_verified"],
    ) == (False, True)


async def test_dashboards_and_batch_exports(shown: SandboxClient) -> None:
    """A dashboard says whose it is and whether it is the first; a batch export has its newest
    runs, and a destination without secrets.
    """
    first, third = [
        (await shown.get(f"/sandbox/dashboards?text=Dashboard%20{number}"))["results"][0]
        for number in (1, 3)
    ]
    assert (first["is_primary"], third["is_primary"], first["pinned"], third["pinned"]) == (
        True,
        False,
        False,
        True,
    )
    assert first["project"] == {"id": 1, "name": "Shop"}
    export = await one(shown, "batch-exports", seed.EXPORT)
    assert export["destination"] == {
        "type": "S3",
        "config": {"bucket_name": "exports", "region": "eu-central-1"},
    }
    assert (export["runs"], [run["id"] for run in export["latest_runs"]]) == (1, [seed.RUN])
    assert (await one(shown, "batch-exports", seed.PAUSED_EXPORT))["paused"] is True


async def test_clearing_is_about_events(shown: SandboxClient) -> None:
    """To forget everything that arrived leaves organizations and what they have."""
    before = [await shown.get(f"/sandbox/{name}") for name in NAMES]
    assert (await shown.ask("DELETE", "/sandbox/events")).status == 204
    assert [await shown.get(f"/sandbox/{name}") for name in NAMES] == before


async def test_other_sites_read_nothing(shown: SandboxClient) -> None:
    """No header lets a page of another site read a listing."""
    answer = await shown.ask(
        "GET", "/sandbox/members", headers={"Origin": "https://elsewhere.example"}
    )
    assert [name for name in answer.headers if name.lower().startswith("access-control")] == []
