"""Who the events make: persons, their properties, and how they become one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from forwarder.sandbox import SandboxOptions
from tests.sandbox.client import KEY, UUID, Client, batch, event, talking
from tests.support.clock import MIDNIGHT

OTHER = "phc_another_key_000000002"


def identify(distinct_id: str, anonymous: str | None = None, **properties: Any) -> dict[str, Any]:
    """What an SDK sends when a user logs in."""
    known = {} if anonymous is None else {"$anon_distinct_id": anonymous}
    return event(event="$identify", distinct_id=distinct_id, properties={**known, "$set": properties})


def alias(distinct_id: str, into: str) -> dict[str, Any]:
    """What an SDK sends to say that two ids are one person's."""
    return event(event="$create_alias", distinct_id=distinct_id, properties={"alias": into})


def setting(distinct_id: str, **properties: Any) -> dict[str, Any]:
    """An event that sets properties of its person."""
    return event(distinct_id=distinct_id, properties={"$set": properties})


def once(distinct_id: str, **properties: Any) -> dict[str, Any]:
    """An event that sets properties of its person where there are none."""
    return event(distinct_id=distinct_id, properties={"$set_once": properties})


async def persons(*events: dict[str, Any]) -> list[dict[str, Any]]:
    """The persons that these events make, one request each."""
    async with talking(SandboxOptions(now=lambda: MIDNIGHT)) as client:
        for one in events:
            assert (await client.post("/batch/", batch(one))).status == 200
        return await shown(client)


async def shown(client: Client, query: str = "") -> list[dict[str, Any]]:
    """The persons that the sandbox shows."""
    listing: dict[str, Any] = await client.get(f"/sandbox/persons?{query}")
    assert listing["count"] == len(listing["results"])
    results: list[dict[str, Any]] = listing["results"]
    return results


async def test_an_identified_event_makes_a_person() -> None:
    """The default event makes a person of its distinct id, which is not identified and has no properties."""
    [person] = await persons(event(timestamp="2025-12-01T10:00:00Z"), event())
    assert len(person.pop("id")) == 36
    assert person == {
        "api_key": "phc_…0001",
        "distinct_id": "ann",
        "distinct_ids": ["ann"],
        "properties": {},
        "created_at": "2025-12-01T10:00:00.000000Z",
        "is_identified": False,
    }


async def test_an_anonymous_event_makes_none() -> None:
    """`$process_person_profile: false` makes no person and sets nothing; it is of its id's person, if there is one, also later."""
    anonymous = event(properties={"$process_person_profile": False, "$set": {"a": 1}})
    async with talking() as client:
        await client.post("/batch/", batch(anonymous))
        assert await shown(client) == []
        assert [one["person"] for one in (await client.get("/sandbox/events"))["results"]] == [None]
        await client.post("/batch/", batch(event(), anonymous))
        [person] = await shown(client)
        assert person["properties"] == {}
        assert [one["person"] for one in (await client.get("/sandbox/events"))["results"]] == [person["id"]] * 3


@pytest.mark.parametrize(
    ("events", "properties"),
    [
        ([identify("u", plan="pro", n=1)], {"plan": "pro", "n": 1}),
        ([setting("u", a=1, b=1), setting("u", b=2)], {"a": 1, "b": 2}),
        ([setting("u", a=1, b=0, c=True), setting("u", a=True, b=0.0, c=1)], {"a": True, "b": 0.0, "c": 1}),
        ([once("u", a=1), once("u", a=2, b=2)], {"a": 1, "b": 2}),
        ([event(distinct_id="u", properties={"$set": {"a": 1}, "$set_once": {"a": 2}})], {"a": 1}),
        ([event(distinct_id="u", **{"$set": {"a": 1}, "$set_once": {"b": 2}})], {"a": 1, "b": 2}),
        ([event(distinct_id="u", properties={"$set": {"a": 1, "b": 1}}, **{"$set": {"a": 2}})], {"a": 2, "b": 1}),
        ([setting("u", a=1, b=2), event(distinct_id="u", properties={"$unset": ["a", 7, "none"]})], {"b": 2}),
        ([setting("u", a=1, b=2), event(distinct_id="u", **{"$unset": ["b"]})], {"a": 1}),
        ([event(distinct_id="u", properties={"$set": "no", "$set_once": [1], "$unset": "x"})], {}),
        ([setting("u", a={"b": [1, None, True]}, e="é\ud83d\ude00")], {"a": {"b": [1, None, True]}, "e": "é😀"}),
    ],
)
async def test_properties(events: list[dict[str, Any]], properties: dict[str, Any]) -> None:
    """`$set` overwrites, `$set_once` doesn't, `$unset` takes away; also beside the properties; what has another form is nothing."""
    [person] = await persons(*events)
    assert json.dumps(person["properties"], sort_keys=True) == json.dumps(properties, sort_keys=True)  # to Python 1 == True


async def test_identify_merges_the_anonymous_person() -> None:
    """`$anon_distinct_id` brings what the anonymous person had; the identified one's properties win, and its id stays the main one."""
    [person] = await persons(setting("anon", a=1, b=1), setting("user", b=2), identify("user", "anon", c=3))
    assert (person["distinct_id"], person["distinct_ids"]) == ("user", ["anon", "user"])
    assert person["properties"] == {"a": 1, "b": 2, "c": 3}
    assert person["is_identified"]


async def test_identify_of_a_user_who_is_new() -> None:
    """Where only the anonymous person exists it stays itself and gets the user's id as its main one; where neither does, one is made."""
    async with talking() as client:
        await client.post("/batch/", batch(setting("anon", a=1)))
        [before] = await shown(client)
        await client.post("/batch/", batch(identify("user", "anon")))
        [after] = await shown(client)
        assert (after["id"], after["distinct_id"], after["distinct_ids"]) == (before["id"], "user", ["anon", "user"])
    [person] = await persons(identify("user", "anon"))
    assert (person["distinct_id"], person["distinct_ids"]) == ("user", ["user", "anon"])


async def test_identify_takes_nobody_who_is_identified() -> None:
    """Two users of one browser stay two: an identified person is not merged by `$identify`, and the event still does the rest."""
    one, other = await persons(identify("one"), setting("two", a=1), identify("two", "one", b=2))
    assert (one["distinct_ids"], other["distinct_ids"]) == (["one"], ["two"])
    assert other["properties"] == {"a": 1, "b": 2}


async def test_alias_becomes_the_main_id() -> None:
    """`$create_alias` merges distinct_id into alias: the alias's properties win, and it becomes the main id of whoever it is."""
    [person] = await persons(setting("old", a=1, b=1), setting("new", b=2), alias("old", "new"))
    assert (person["distinct_id"], person["properties"], person["is_identified"]) == ("new", {"a": 1, "b": 2}, True)
    [person] = await persons(identify("user"), alias("anon", "user"), alias("user", "later"), alias("user", "anon"))
    assert (person["distinct_id"], person["distinct_ids"]) == ("anon", ["user", "anon", "later"])


async def test_aliases_that_say_nothing() -> None:
    """An alias to itself, an empty one or none at all is an event like others."""
    [person] = await persons(alias("u", "u"), alias("u", " "), event(event="$create_alias", distinct_id="u", properties={}))
    assert (person["distinct_ids"], person["is_identified"]) == (["u"], False)


async def test_merging_dangerously() -> None:
    """`$merge_dangerously` merges also an identified person, into the event's own, whose properties win and whose main id stays."""
    merge = event(event="$merge_dangerously", distinct_id="one", properties={"alias": "two"})
    [person] = await persons(identify("one", a=1), identify("two", a=2, b=2), merge)
    assert (person["distinct_id"], person["properties"]) == ("one", {"a": 1, "b": 2})


async def test_a_merged_person_has_the_earlier_beginning() -> None:
    """`created_at` is that of the one who was there first, by the events' times."""
    [person] = await persons(
        event(distinct_id="a", timestamp="2025-03-01T00:00:00Z"), event(distinct_id="b", timestamp="2025-02-01T00:00:00Z"), alias("b", "a")
    )
    assert person["created_at"].startswith("2025-02-01")


async def test_events_of_both_are_the_merged_persons() -> None:
    """After a merge the events of every id are the surviving person's, and are found by it."""
    async with talking() as client:
        await client.post("/batch/", batch(event(distinct_id="a"), event(distinct_id="b"), event(distinct_id="c"), alias("a", "b")))
        merged, other = await shown(client)
        listing = await client.get(f"/sandbox/events?person={merged['id']}")
        assert [one["distinct_id"] for one in listing["results"]] == ["a", "b", "a"]
        assert {one["person"] for one in listing["results"]} == {merged["id"]}
        assert (await client.get(f"/sandbox/events?person={other['id']}"))["count"] == 1
        assert (await client.get("/sandbox/events?person=nobody"))["count"] == 0


async def test_repeats_and_conflicts_change_nothing() -> None:
    """What has a uuid that is here already has no effect, whether it repeats the first or contradicts it; arrival decides, not time."""
    first = {**setting("u", a=1), "uuid": UUID, "timestamp": "2025-12-01T00:00:00Z"}
    [person] = await persons(first, setting("u", a=2), first, {**setting("u", a=3), "uuid": UUID})
    assert person["properties"] == {"a": 2}
    async with talking() as client:
        await client.post("/batch/", batch(setting("u", a=1)))
        await client.post("/batch/", batch({**setting("u", a=0), "timestamp": "2020-01-01T00:00:00Z"}, historical_migration=True))
        assert [one["properties"] for one in await shown(client)] == [{"a": 0}]


async def test_numbers_no_double_holds() -> None:
    """A number beyond every double becomes null in a person's properties, one with any number of digits stays."""
    async with talking() as client:
        long = f'{{"x":{"1" * 5000},"$set":{{"c":1}}}}'
        for distinct_id, properties in (("a", '{"$set":{"a":1e999,"b":[1e999,12345678901234567890]}}'), ("b", long)):
            body = f'{{"api_key":"{KEY}","event":"e","distinct_id":"{distinct_id}","properties":{properties}}}'
            assert (await client.post("/capture/", body.encode())).status == 200
        assert [one["properties"] for one in await shown(client)] == [{"a": None, "b": [None, 12345678901234567890]}, {"c": 1}]


async def test_deeply_nested_properties_are_shown() -> None:
    """Whatever nesting is taken can be shown."""
    async with talking() as client:
        body = f'{{"api_key":"{KEY}","event":"e","distinct_id":"u","properties":{{"$set":{{"a":{"[" * 900}{"]" * 900}}}}}}}'
        assert (await client.post("/capture/", body.encode())).status == 200
        answer = await client.ask("GET", "/sandbox/persons")
        assert answer.status == 200
        assert "[" * 900 in answer.text


async def test_projects_are_apart() -> None:
    """The same distinct id in two projects is two persons, with ids of their own."""
    async with talking() as client:
        await client.post("/batch/", batch(setting("u", a=1)))
        await client.post("/batch/", {**batch(setting("u", a=2)), "api_key": OTHER})
        one, other = await shown(client)
        assert one["id"] != other["id"]
        assert [person["properties"] for person in await shown(client, f"api_key={OTHER}")] == [{"a": 2}]
        assert KEY not in str(one)


async def test_finding_persons() -> None:
    """By any of their distinct ids, by id, in pages, the newest first."""
    async with talking() as client:
        await client.post("/batch/", batch(*[event(distinct_id=f"u{n}") for n in range(5)], alias("u0", "u1")))
        ids = [person["id"] for person in await shown(client)]
        for name in ("u0", "u1"):
            assert [person["id"] for person in await shown(client, f"distinct_id={name}")] == ids[:1]
        assert [person["id"] for person in await shown(client, f"person={ids[2]}")] == [ids[2]]
        page = await client.get("/sandbox/persons?limit=2&offset=1&order=newest")
        assert (page["count"], [person["id"] for person in page["results"]]) == (4, [ids[2], ids[1]])
        assert [person.id for person in await client.sandbox.persons()] == ids
