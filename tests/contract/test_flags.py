"""Flags by plain HTTP, as the document and its gaps have them: how they are made, found, answered,
and what of a failed one is answered.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from tests.contract.calls import CalledSandbox, serving
from tests.contract.tables import misfits, plain, rows
from tests.support import management as seed
from tests.support.places import PLACES, write_places

VARIANTS: Final = [{"key": "green", "rollout_percentage": 100}]
PRO: Final = {"key": "plan", "type": "person", "operator": "exact", "value": "pro"}
OLD: Final = {"key": "age", "type": "person", "operator": "gt", "value": 30}


async def put(
    service: CalledSandbox,
    key: str,
    *conditions: Mapping[str, Any],
    status: int = 200,
    **filters: Any,
) -> Any:
    """Set a flag that is on for who matches all conditions."""
    return await put_flag(
        service, key, {"filters": {"groups": [{"properties": list(conditions)}], **filters}}, status
    )


async def put_flag(service: CalledSandbox, key: str, flag: Any, status: int = 200) -> Any:
    """Set a flag; what is answered."""
    path = f"/sandbox/flags/{key}?api_key={seed.SECOND_TOKEN}"
    reply = await service.client.ask(
        "PUT", path, json.dumps(flag).encode(), {"Content-Type": "application/json"}
    )
    assert reply.status == status, reply.text
    return reply.json


async def decided(
    service: CalledSandbox,
    address: str = "/decide?v=3",
    headers: Mapping[str, str] | None = None,
    **body: Any,
) -> Any:
    """What is answered about a person's flags."""
    sent = json.dumps({"api_key": seed.SECOND_TOKEN, "distinct_id": "ann", **body}).encode()
    reply = await service.client.ask(
        "POST", address, sent, {"Content-Type": "application/json", **(headers or {})}
    )
    assert reply.status == 200, reply.text
    return reply.json


async def test_flags_are_set_in_the_services_form(tmp_path: Path) -> None:
    """What is set is decided by at once, and is what SDKs get; unknown fields are kept; another
    form is 400 and names the place.
    """
    async with serving(tmp_path) as service:
        assert (await decided(service))["featureFlags"] == {}
        shown = await put_flag(
            service, "beta", {"filters": {"groups": [{"rollout_percentage": 100}]}, "tags": ["new"]}
        )
        assert (shown["key"], shown["tags"]) == ("beta", ["new"])
        assert (await decided(service))["featureFlags"] == {"beta": True}
        bearer = {"Authorization": f"Bearer {seed.OWNER_KEY}"}
        response = await service.client.ask(
            "GET", f"/flags/definitions?token={seed.SECOND_TOKEN}", None, bearer
        )
        definitions = response.json
        assert [flag["key"] for flag in definitions["flags"]] == ["beta"]
        wrong = await put_flag(
            service, "beta", {"filters": {"groups": [{"rollout_percentage": 101}]}}, status=400
        )
        assert wrong["attr"] == "filters.groups[0].rollout_percentage"
        assert (await decided(service))["featureFlags"] == {"beta": True}
        await put_flag(service, "beta", {"active": False})
        assert (await decided(service))["featureFlags"] == {}
        response = await service.client.ask(
            "DELETE", f"/sandbox/flags/beta?api_key={seed.SECOND_TOKEN}", None, {}
        )
        assert response.status == 204
        assert (await decided(service))["featureFlags"] == {}


async def test_the_versions_of_answers(tmp_path: Path) -> None:
    """v=1, or no number, lists what is on, v=2 maps it, v=3 has what is off and payloads too, v=4
    an object for each flag.
    """
    async with serving(tmp_path) as service:
        await put(
            service,
            "on",
            multivariate={"variants": VARIANTS},
            payloads={"green": '{"hex": "#0f0"}'},
        )
        await put(service, "off", PRO)
        assert (await decided(service, "/decide"))["featureFlags"] == ["on"]
        assert (await decided(service, "/decide?v=1"))["featureFlags"] == ["on"]
        assert (await decided(service, "/decide?v=x"))["featureFlags"] == ["on"]
        assert (await decided(service, "/decide?v=2"))["featureFlags"] == {"on": "green"}
        third = await decided(service)
        assert misfits(third, "Decide answer") == ""
        assert (third["featureFlags"], third["featureFlagPayloads"]) == (
            {"on": "green", "off": False},
            {"on": '{"hex": "#0f0"}'},
        )
        for address in ("/decide?v=4", "/flags/?v=2"):
            nested = (await decided(service, address))["flags"]
            assert {
                key: (flag["key"], flag["enabled"], flag["variant"]) for key, flag in nested.items()
            } == {
                "on": ("on", True, "green"),
                "off": ("off", False, None),
            }
            assert nested["on"]["reason"]["code"] == "condition_match"
            assert nested["on"]["metadata"]["payload"] == '{"hex": "#0f0"}'


async def test_properties_of_the_request_come_first_one_by_one(tmp_path: Path) -> None:
    """They count instead of stored ones, for this request and for the properties that it names."""
    async with serving(tmp_path) as service:
        await put(service, "old-pro", PRO, OLD)
        stored = {"$set": {"plan": "pro", "age": 20}}
        await service.client.post(
            "/capture/",
            {
                "api_key": seed.SECOND_TOKEN,
                "event": "$identify",
                "distinct_id": "ann",
                "properties": stored,
            },
        )
        for properties, on in (
            ({}, False),
            ({"age": 40}, True),
            ({"age": 40, "plan": "free"}, False),
            ({}, False),
        ):
            assert (await decided(service, person_properties=properties))["featureFlags"] == {
                "old-pro": on
            }


async def test_a_flag_of_groups_is_about_the_named_group(tmp_path: Path) -> None:
    """It is false where the request names no group of its type; its properties are the stored ones
    and those of the request.
    """
    large = {"key": "size", "type": "group", "group_type_index": 0, "operator": "gte", "value": 7}
    async with serving(tmp_path) as service:
        await put(service, "for-large", large, aggregation_group_type_index=0)
        group = {"$group_type": "company", "$group_key": "acme", "$group_set": {"size": 7}}
        body = {
            "api_key": seed.SECOND_TOKEN,
            "event": "$groupidentify",
            "distinct_id": "ann",
            "properties": group,
        }
        await service.client.post("/capture/", body)
        acme = {"groups": {"company": "acme"}}
        for named, on in (
            ({}, False),
            (acme, True),
            ({**acme, "group_properties": {"company": {"size": 1}}}, False),
        ):
            assert (await decided(service, **named))["featureFlags"] == {"for-large": on}


@pytest.mark.parametrize("header", ["X-Forwarded-For", "HTTP_X_FORWARDED_FOR"])
async def test_places_follow_from_the_documented_header(header: str, tmp_path: Path) -> None:
    """Either spelling of it decides all seven properties, above stored ones and
    below those of the request.
    """
    addresses = write_places(tmp_path / "places.mmdb", {"9.0.0.0/8": PLACES["203.0.113.0/24"]})
    async with serving(tmp_path, geoip=addresses) as service:
        await put(
            service,
            "german",
            {"key": "$geoip_country_code", "type": "person", "operator": "exact", "value": "DE"},
        )
        for row in rows("Places"):
            name = plain(row["property"])
            await put(
                service,
                name.removeprefix("$"),
                {"key": name, "type": "person", "operator": "is_set", "value": "is_set"},
            )
        assert set((await decided(service))["featureFlags"].values()) == {False}
        located = await decided(service, headers={header: "9.1.2.3"})
        assert set(located["featureFlags"].values()) == {True}
        assert set(
            (await decided(service, headers={header: "8.8.8.8"}))["featureFlags"].values()
        ) == {False}
        said = await decided(
            service, headers={header: "9.1.2.3"}, person_properties={"$geoip_country_code": "FR"}
        )
        assert said["featureFlags"]["german"] is False


async def test_one_flag_that_fails_leaves_the_others_right(tmp_path: Path) -> None:
    """It is false, or failed where flags are objects, and the answer says that some are; one
    that depends on an unknown flag is false.
    """
    async with serving(tmp_path) as service:
        await put(service, "good")
        await put(
            service,
            "bad",
            {"key": "plan", "type": "person", "operator": "resembles", "value": "pro"},
        )
        await put(
            service,
            "needs-unknown",
            {"key": "unknown", "type": "flag", "operator": "flag_evaluates_to", "value": True},
        )
        answer = await decided(service, person_properties={"plan": "pro"})
        assert (answer["errorsWhileComputingFlags"], answer["featureFlags"]) == (
            True,
            {"good": True, "bad": False, "needs-unknown": False},
        )
        nested = await decided(service, "/flags/?v=2", person_properties={"plan": "pro"})
        assert nested["errorsWhileComputingFlags"] is True
        assert {
            key: (flag["enabled"], flag.get("failed", False))
            for key, flag in nested["flags"].items()
        } == {
            "good": (True, False),
            "bad": (False, True),
            "needs-unknown": (False, False),
        }
