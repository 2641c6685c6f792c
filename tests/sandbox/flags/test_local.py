"""Definitions for SDKs: what is in them, cohorts, dependencies in order, the older list."""

from __future__ import annotations

from typing import Any

from tests.sandbox.client import KEY, SandboxClient, talking
from tests.sandbox.defining import SECRET, define, flag, person_is, put

PRO = person_is("plan", "pro")
BIG = person_is("seats", 9, "gt")


def needs(key: str, *, value: bool = True) -> dict[str, Any]:
    """A condition on another flag."""
    return person_is(key, value, "flag_evaluates_to", "flag")


async def definitions(client: SandboxClient) -> Any:
    """What an SDK gets."""
    reply = await client.ask("GET", f"/flags/definitions?token={KEY}", headers=SECRET)
    assert reply.status == 200
    return reply.json


def conditions(flags: list[dict[str, Any]], key: str) -> list[list[dict[str, Any]]]:
    """The conditions of a flag, by groups."""
    content = next(definition for definition in flags if definition["key"] == key)
    return [group["properties"] for group in content["filters"]["groups"]]


async def test_flags_as_they_were_set() -> None:
    """Inactive flags are there, deleted ones not; a flag is as it was set, with its id
    and version.
    """
    async with talking() as client:
        await define(client, a={**flag(PRO), "active": False, "tags": ["x"]}, b={"deleted": True})
        [one] = (await definitions(client))["flags"]
        assert (one["key"], one["active"], one["version"], one["tags"]) == (
            "a",
            False,
            1,
            ["x"],
        )
        assert one["filters"] == flag(PRO)["filters"]
        assert one == {
            **await client.get(f"/sandbox/flags/a?api_key={KEY}"),
            "has_experiment": False,
            "filters": one["filters"],
        }


async def test_dependencies() -> None:
    """A condition on a flag names it by key, though it was set by id, with what to evaluate before
    it; a cycle has no order.
    """
    async with talking() as client:
        await define(client, base=flag(PRO))
        number = (await client.get(f"/sandbox/flags/base?api_key={KEY}"))["id"]
        await define(
            client,
            second=flag(needs(str(number))),
            third=flag(needs("base"), needs("second", value=False)),
            fourth=flag(needs("third")),
            left=flag(needs("right")),
            right=flag(needs("left")),
            lost=flag(needs("nowhere")),
        )
        flags = (await definitions(client))["flags"]
        chains = {
            definition["key"]: [
                one["dependency_chain"]
                for one in conditions(flags, definition["key"])[0]
                if one["type"] == "flag"
            ]
            for definition in flags
        }
        assert chains == {
            "base": [],
            "second": [["base"]],
            "third": [["base"], ["base", "second"]],
            "fourth": [["base", "second", "third"]],
            "left": [[]],
            "right": [[]],
            "lost": [[]],
        }
        assert conditions(flags, "second")[0][0]["key"] == "base"


async def test_cohorts() -> None:
    """Those that flags use, also within each other, without static ones."""
    nested = {
        "type": "OR",
        "values": [{"type": "AND", "values": [PRO, person_is("id", 2, "in", "cohort")]}],
    }
    async with talking() as client:
        await put(client, "cohorts/1", {"filters": {"properties": nested}})
        await put(
            client, "cohorts/2", {"filters": {"properties": {"type": "AND", "values": [BIG]}}}
        )
        await put(client, "cohorts/3", {"distinct_ids": ["ann"]})
        await put(
            client, "cohorts/4", {"filters": {"properties": {"type": "AND", "values": [BIG]}}}
        )
        await define(
            client,
            a=flag(person_is("id", 1, "in", "cohort")),
            b=flag(person_is("id", 3, "in", "cohort")),
        )
        answer = await definitions(client)
        assert answer["cohorts"] == {"1": nested, "2": {"type": "AND", "values": [BIG]}}
        assert conditions(answer["flags"], "a") == [[person_is("id", 1, "in", "cohort")]]


async def test_the_older_list() -> None:
    """posthog 1.x gets the flags on a page, with whether they are simple rollouts."""
    async with talking() as client:
        await define(
            client, half={"filters": {"groups": [{"rollout_percentage": 50}]}}, pros=flag(PRO)
        )
        page = (await client.ask("GET", f"/api/feature_flag/?token={KEY}", headers=SECRET)).json
        assert (page["count"], page["next"]) == (2, None)
        assert [
            (definition["key"], definition["is_simple_flag"], definition["rollout_percentage"])
            for definition in page["results"]
        ] == [
            ("half", True, 50),
            ("pros", False, None),
        ]
