"""Groups: made by `$groupidentify`, named by events."""

from __future__ import annotations

from typing import Any

from tests.sandbox.client import KEY, batch, event, talking

OTHER = "phc_another_key_000000002"


def group(group_type: Any, group_key: Any, **properties: Any) -> dict[str, Any]:
    """What an SDK sends to describe a group."""
    named = {"$group_type": group_type, "$group_key": group_key, "$group_set": properties}
    return event(event="$groupidentify", properties=named, timestamp="2025-12-01T10:00:00Z")


async def test_groupidentify_makes_and_changes_a_group() -> None:
    """The first makes the group, later ones set more of its properties; a date is the text that was sent."""
    async with talking() as client:
        await client.post("/batch/", batch(group("company", "x", name="X", founded="2020-01-01T00:00:00Z")))
        later = {**group("company", "x", name="Y"), "timestamp": "2025-12-02T10:00:00Z"}
        await client.post("/batch/", batch(later))
        assert await client.get("/sandbox/groups") == {
            "count": 1,
            "results": [
                {
                    "group_type": "company",
                    "group_key": "x",
                    "api_key": "phc_…0001",
                    "properties": {"name": "Y", "founded": "2020-01-01T00:00:00Z"},
                    "created_at": "2025-12-01T10:00:00.000000Z",
                    "updated_at": "2025-12-02T10:00:00.000000Z",
                }
            ],
        }


async def test_events_of_groups_make_none() -> None:
    """`$groups` says whose an event is, creates nothing, and the event is found by it; type and key belong together."""
    async with talking() as client:
        events = [event(properties={"$groups": {"company": "x", "team": 7}}), event(properties={"$groups": {"company": 7, "team": "x"}})]
        await client.post("/batch/", batch(*events, event(properties={"$groups": ["company"]})))
        assert (await client.get("/sandbox/groups"))["count"] == 0
        listing = await client.get("/sandbox/events")
        assert [one["groups"] for one in listing["results"]] == [{"company": "x", "team": "7"}, {"company": "7", "team": "x"}, {}]
        for query, count in (("group_type=company&group_key=x", 1), ("group_type=company", 2), ("group_key=x", 2), ("group_type=none", 0)):
            assert (await client.get(f"/sandbox/events?{query}"))["count"] == count


async def test_a_group_without_a_name() -> None:
    """Without type or key there is no group; the event is recorded like others. A number is a key as well as a text is."""
    async with talking() as client:
        await client.post("/batch/", batch(group(None, "x"), group("company", ""), event(event="$groupidentify", properties={})))
        assert (await client.sandbox.summary()).groups == 0
        await client.post("/batch/", batch(group("company", 7, a=1)))
        [made] = await client.sandbox.groups()
        assert (made.group_key, made.properties) == ("7", {"a": 1})
        assert (await client.sandbox.summary()).events == 4


async def test_an_anonymous_event_makes_a_group() -> None:
    """What concerns no person concerns a group all the same."""
    async with talking() as client:
        one = group("company", "x")
        one["properties"]["$process_person_profile"] = False
        await client.post("/batch/", batch(one))
        summary = await client.sandbox.summary()
        assert (summary.persons, summary.groups) == (0, 1)


async def test_finding_groups() -> None:
    """By project, type and key, in pages; more types than five are kept."""
    async with talking() as client:
        await client.post("/batch/", batch(*[group(f"type{n}", f"key{n}") for n in range(6)]))
        await client.post("/batch/", {**batch(group("type0", "key0")), "api_key": OTHER})
        for query, count in (
            ("", 7),
            (f"api_key={KEY}", 6),
            ("group_type=type0", 2),
            ("group_key=key3", 1),
            ("group_type=type1&group_key=key2", 0),
        ):
            assert (await client.get(f"/sandbox/groups?{query}"))["count"] == count
        page = await client.get("/sandbox/groups?order=newest&limit=2&offset=1")
        assert (page["count"], [one["group_type"] for one in page["results"]]) == (7, ["type5", "type4"])
