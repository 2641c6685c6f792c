"""Arrivals are folded into persons and groups step by step; groups, as arrivals create and change
them.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from forwarder.sandbox import SandboxOptions
from forwarder.sandbox.store.database import Store
from forwarder.sandbox.store.effects import STEP, STEP_BYTES
from forwarder.sandbox.store.stored_records import IngestedEvent, RequestRecord
from forwarder.sandbox.store.thread import StoreThread
from tests.sandbox.client import KEY, batch, event, talking
from tests.support.cases import cases

TIME = "2026-01-01T00:00:00.000000Z"
OTHER = "phc_another_key_000000002"


def setting(number: int, value: object) -> IngestedEvent:
    """An event of a person of its own, as the store takes it."""
    properties = {"$set": {"a": value}}
    raw = json.dumps({"event": "seen", "distinct_id": f"u{number}", "properties": properties})
    return IngestedEvent(
        number, None, "seen", f"u{number}", None, TIME, json.dumps(properties), raw.encode()
    )


def arrival(*events: IngestedEvent) -> RequestRecord:
    """A request of these events."""
    return RequestRecord(TIME, "/batch/", "", {}, 200, "", api_key=KEY, events=events)


async def test_a_long_backlog_lets_others_pass() -> None:
    """What waits is folded in step by step, and other work gets its turn in between."""
    arrivals = StoreThread(None)
    many = [setting(number, 0) for number in range(STEP * 3)]
    await arrivals.run(lambda store: store.add(arrival(*many)))
    asking = asyncio.ensure_future(arrivals.ask(lambda store: store.summary()))
    seen = set[int]()
    while not asking.done():
        seen.add(
            await arrivals.run(
                lambda store: int(store.select("SELECT arrival FROM progress", [])[0][0])
            )
        )
    assert seen & {STEP, STEP * 2}
    assert (await asking).persons == STEP * 3
    await arrivals.close()


def test_a_step_of_large_events_is_short() -> None:
    """A step ends at so many bytes, too, so that large events neither fill the memory nor hold
    others up; the next continues after it.
    """
    store = Store(None)
    text = "x" * (STEP_BYTES // 2)
    large = [setting(number, text) for number in range(5)]
    store.add(arrival(*large))
    persons = []
    while store.effects.advance():
        persons.append(store.effects.persons.count())
    assert persons == [2, 4]
    assert store.effects.persons.count() == 5
    store.close()


async def test_a_file_continues_where_it_was(tmp_path: Path) -> None:
    """After a restart nothing is folded in twice, and what no one had asked
    for yet is folded in then.
    """
    options = SandboxOptions(database=tmp_path / "x.db")
    async with talking(options) as client:
        await client.post("/batch/", batch(event(properties={"$set": {"a": 1}})))
        before = await client.sandbox.persons()
        await client.post("/batch/", batch(event(properties={"$set": {"b": 2}})))
    async with talking(options) as client:
        [person] = await client.sandbox.persons()
        assert (person.id, person.properties) == (before[0].id, {"a": 1, "b": 2})
        await client.sandbox.clear()
        assert (
            await client.sandbox.persons(),
            await client.sandbox.groups(),
            await client.sandbox.events(),
        ) == ([], [], [])
        await client.post("/batch/", batch(event(properties={"$set": {"c": 3}})))
        assert [one.properties for one in await client.sandbox.persons()] == [{"c": 3}]


def group(group_type: Any, group_key: Any, **properties: Any) -> dict[str, Any]:
    """What an SDK sends to describe a group."""
    named = {"$group_type": group_type, "$group_key": group_key, "$group_set": properties}
    return event(event="$groupidentify", properties=named, timestamp="2025-12-01T10:00:00Z")


async def test_groupidentify_makes_and_changes_a_group() -> None:
    """The first makes the group, later ones set more of its properties; a date is the text that
    was sent.
    """
    async with talking() as client:
        await client.post(
            "/batch/", batch(group("company", "x", name="X", founded="2020-01-01T00:00:00Z"))
        )
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
    """`$groups` says whose an event is, creates nothing, and the event is found by it; type and
    key belong together.
    """
    async with talking() as client:
        events = [
            event(properties={"$groups": {"company": "x", "team": 7}}),
            event(properties={"$groups": {"company": 7, "team": "x"}}),
        ]
        await client.post("/batch/", batch(*events, event(properties={"$groups": ["company"]})))
        assert (await client.get("/sandbox/groups"))["count"] == 0
        listing = await client.get("/sandbox/events")
        assert [one["groups"] for one in listing["results"]] == [
            {"company": "x", "team": "7"},
            {"company": "7", "team": "x"},
            {},
        ]
        for query, count in (
            ("group_type=company&group_key=x", 1),
            ("group_type=company", 2),
            ("group_key=x", 2),
            ("group_type=none", 0),
        ):
            assert (await client.get(f"/sandbox/events?{query}"))["count"] == count


async def test_a_group_without_a_name() -> None:
    """Without type or key there is no group; the event is recorded like others. A number other
    than 0 is a key as well as a text is.
    """
    async with talking() as client:
        await client.post(
            "/batch/",
            batch(
                *(group(None, "x"), group("company", ""), group("company", 0), group(False, "x")),
                event(event="$groupidentify", properties={}),
            ),
        )
        assert (await client.sandbox.summary()).groups == 0
        await client.post("/batch/", batch(group("company", 7, a=1)))
        [made] = await client.sandbox.groups()
        assert (made.group_key, made.properties) == ("7", {"a": 1})
        assert (await client.sandbox.summary()).events == 6


@cases(
    ("changes", "kind"),
    [
        (
            {"$process_person_profile": False},
            "invalid_event_when_process_person_profile_is_false",
        ),
        ({"$group_set": ["a"]}, "invalid_group_set"),
        ({"$group_key": "x" * 399 + "\U0001f600"}, "group_key_too_long"),
    ],
)
async def test_a_group_event_that_does_nothing(changes: dict[str, Any], kind: str) -> None:
    """An anonymous one and one of too long a key, which the service drops, and one that sets no
    object: there is no group, and the event has the warning.
    """
    async with talking() as client:
        one = group("company", "x")
        one["properties"].update(changes)
        await client.post("/batch/", batch(one))
        assert (await client.sandbox.summary()).groups == 0
        [shown] = (await client.get("/sandbox/events"))["results"]
        assert shown["warnings"] == [kind]


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
        assert (page["count"], [one["group_type"] for one in page["results"]]) == (
            7,
            ["type5", "type4"],
        )
