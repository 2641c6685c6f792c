"""Flags by places: which address counts, and what its database knows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from forwarder.core.errors import ConfigurationError
from forwarder.sandbox import Sandbox, SandboxOptions
from forwarder.sandbox.flags.places import Places, client_address
from tests.sandbox.client import KEY, batch, event, talking
from tests.sandbox.defining import define, flag, person_is, values
from tests.support.cases import cases
from tests.support.places import write_places

GERMAN = "203.0.113.9"
JAPANESE = "2001:db8::7"


def test_the_seven_properties(tmp_path: Path) -> None:
    """A city database has all of them; an address that it doesn't know has none."""
    places = Places(write_places(tmp_path / "places.mmdb"))
    assert places.properties(GERMAN) == {
        "$geoip_city_name": "Berlin",
        "$geoip_country_name": "Germany",
        "$geoip_country_code": "DE",
        "$geoip_continent_name": "Continent of Germany",
        "$geoip_continent_code": "XX",
        "$geoip_postal_code": "DE-1",
        "$geoip_time_zone": "Example/Berlin",
    }
    assert places.properties(JAPANESE)["$geoip_country_code"] == "JP"
    assert places.properties("8.8.8.8") == {}
    places.close()


@cases(
    ("headers", "expected"),
    [
        ({}, "198.51.100.1"),
        ({"x-forwarded-for": f"{GERMAN}, 10.0.0.1"}, GERMAN),
        ({"x-forwarded-for": f"10.0.0.1, {GERMAN}"}, "10.0.0.1"),
        ({"x-forwarded-for": f"{GERMAN}:4711"}, GERMAN),
        ({"x-forwarded-for": f"unknown, {GERMAN}"}, "198.51.100.1"),
        ({"x-forwarded-for": f"[{JAPANESE}]:80"}, JAPANESE),
        ({"x-forwarded-for": f"::ffff:{GERMAN}"}, GERMAN),
        ({"http_x_forwarded_for": JAPANESE, "x-forwarded-for": GERMAN}, JAPANESE),
        ({"http_x_forwarded_for": "192.168.0.1", "x-forwarded-for": GERMAN}, "192.168.0.1"),
        ({"http_x_forwarded_for": " ", "x-forwarded-for": GERMAN}, GERMAN),
        ({"x-forwarded-for": "fe80::1%eth0, nonsense"}, "fe80::1"),
    ],
)
def test_which_address_counts(headers: dict[str, str], expected: str) -> None:
    """The first of the contract's header, else of the usual one, else the peer's."""
    assert client_address(headers, "198.51.100.1") == expected
    assert client_address({}, "") is None


async def test_places_decide(tmp_path: Path) -> None:
    """The client's place counts above stored properties and below given ones, unless the request
    asks for none.
    """
    options = SandboxOptions(geoip=write_places(tmp_path / "places.mmdb"))
    async with talking(options) as client:
        await define(client, german=flag(person_is("$geoip_country_code", "DE")))
        stored = {"$set": {"$geoip_country_code": "JP"}}
        await client.post("/batch/", batch(event(properties=stored)))
        for header in ("HTTP_X_FORWARDED_FOR", "X-Forwarded-For"):
            asked = json.dumps({"api_key": KEY, "distinct_id": "ann"}).encode()
            reply = await client.ask("POST", "/decide/?v=3", asked, {header: GERMAN})
            assert reply.json["featureFlags"] == {"german": True}, header
        forwarded = {"X_Forwarded_For": GERMAN}
        assert await values(client) == {"german": False}
        assert await values(client, headers=forwarded) == {"german": True}
        assert await values(client, headers=forwarded, geoip_disable=True) == {"german": False}
        assert await values(
            client, headers=forwarded, person_properties={"$geoip_country_code": "FR"}
        ) == {"german": False}
        assert await values(client, headers={"X_Forwarded_For": "127.0.0.1"}) == {"german": False}


@cases("content", [None, b"", b"no database", "folder"])
async def test_a_file_that_is_no_database(tmp_path: Path, content: Any) -> None:
    """The sandbox doesn't start, and names the file."""
    path = tmp_path / "places.mmdb"
    if content == "folder":
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"places\.mmdb") as error:
        async with Sandbox(SandboxOptions(geoip=path)):
            raise AssertionError
    assert error.value.hint
