"""Persons and groups, as arrivals create and change them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from forwarder.sandbox import SandboxOptions
from forwarder.sandbox.store.database import Store
from forwarder.sandbox.store.effects import STEP, STEP_BYTES
from forwarder.sandbox.store.records import IngestedEvent, ListingPage, PersonFilter, RequestRecord
from forwarder.sandbox.store.thread import StoreThread
from tests.sandbox.client import KEY, UUID, Client, batch, event, talking
from tests.support.cases import cases
from tests.support.clock import MIDNIGHT

ALL = ListingPage(limit=None)
TIME = "2026-01-01T00:00:00.000000Z"
IDS = st.sampled_from("abcde")


class Step(NamedTuple):
    """One event: what it is, whose, and the other distinct id or the value that it names."""

    kind: str
    distinct_id: str
    other: str
    value: int


STEPS = st.lists(
    st.builds(
        Step,
        st.sampled_from(["seen", "anonymous", "$identify", "$create_alias", "$merge_dangerously"]),
        IDS,
        IDS,
        st.integers(0, 2),
    ),
    max_size=12,
)


class Model:
    """Persons as the documents describe them, without a database: each a dictionary, named by
    their distinct ids.
    """

    def __init__(self) -> None:
        self.owners: dict[str, dict[str, Any]] = {}

    def person(self, distinct_id: str) -> dict[str, Any]:
        """The owner of an id; made if there is none."""
        if distinct_id not in self.owners:
            self.owners[distinct_id] = {
                "main": distinct_id,
                "ids": {distinct_id},
                "properties": {},
                "identified": False,
            }
        return self.owners[distinct_id]

    def merge(
        self, merged: str, surviving: str, *, becomes_main: bool, even_identified: bool
    ) -> None:
        """Make the owners of two ids one."""
        if merged == surviving:
            return
        newcomer = surviving not in self.owners and merged in self.owners
        if newcomer:
            person = self.owners[merged]
            person["main"] = person["main"] if person["identified"] else surviving
        else:
            person = self.person(surviving)
            other = self.owners.get(merged, person)
            if other is not person and other["identified"] and not even_identified:
                return
            person["properties"] = {**other["properties"], **person["properties"]}
            person["ids"] |= other["ids"]
        person["ids"] |= {merged, surviving}
        person["main"] = surviving if becomes_main else person["main"]
        person["identified"] = True
        self.owners.update(dict.fromkeys(person["ids"], person))

    def apply(self, step: Step, arrival: int) -> None:
        """What an event does."""
        if step.kind == "anonymous":
            return
        if step.kind == "$identify":
            self.merge(step.other, step.distinct_id, becomes_main=False, even_identified=False)
            self.person(step.distinct_id)["identified"] = True
        elif step.kind == "$create_alias":
            self.merge(step.distinct_id, step.other, becomes_main=True, even_identified=True)
        elif step.kind == "$merge_dangerously":
            self.merge(step.other, step.distinct_id, becomes_main=False, even_identified=True)
        self.person(step.distinct_id)["properties"][step.distinct_id] = step.value
        self.person(step.distinct_id)["changed"] = arrival

    def changed(self) -> dict[str, int]:
        """The arrival that changed each distinct id's person last."""
        return {distinct_id: person["changed"] for distinct_id, person in self.owners.items()}

    def shown(self) -> list[tuple[Any, ...]]:
        """The persons, so that they can be compared."""
        persons = {id(person): person for person in self.owners.values()}.values()
        return sorted(
            (one["main"], sorted(one["ids"]), one["properties"], one["identified"])
            for one in persons
        )


def event_of(step: Step, position: int) -> IngestedEvent:
    """The event as the store takes it."""
    properties: dict[str, Any] = {"$set": {step.distinct_id: step.value}}
    if step.kind == "anonymous":
        properties["$process_person_profile"] = False
    else:
        properties["$anon_distinct_id" if step.kind == "$identify" else "alias"] = step.other
    raw = json.dumps(
        {"event": step.kind, "distinct_id": step.distinct_id, "properties": properties}
    )
    return IngestedEvent(
        position,
        None,
        step.kind,
        step.distinct_id,
        None,
        TIME,
        json.dumps(properties),
        raw.encode(),
    )


def arrival(*events: IngestedEvent) -> RequestRecord:
    """A request of these events."""
    return RequestRecord(TIME, "/batch/", "", {}, 200, "", api_key=KEY, events=events)


def shown(store: Store) -> list[tuple[Any, ...]]:
    """The persons of a store, so that they can be compared."""
    found = store.persons(PersonFilter(), ALL)[1]
    return sorted(
        (one.distinct_id, sorted(one.distinct_ids), one.properties, one.is_identified)
        for one in found
    )


def changed(store: Store) -> dict[str, int]:
    """The arrival that changed each distinct id's person last."""
    statement = (
        "SELECT ids.distinct_id, persons.changed FROM distinct_ids AS ids JOIN persons ON "
        "persons.id = ids.person"
    )
    return dict(store.connection.execute(statement).fetchall())


@given(STEPS)
def test_persons_follow_the_model(steps: Sequence[Step]) -> None:
    """Whatever comes in whatever order: each distinct id has one owner, and the persons are those
    of a few dictionaries.
    """
    model = Model()
    at_once = Store(None)
    one_by_one = Store(None)
    for position, step in enumerate(steps):
        model.apply(step, position + 1)
        one_by_one.add(arrival(event_of(step, position)))
        one_by_one.effects.finish()
    at_once.add(arrival(*[event_of(step, position) for position, step in enumerate(steps)]))
    assert shown(at_once) == shown(one_by_one) == model.shown()
    assert changed(at_once) == changed(one_by_one) == model.changed()
    assert at_once.persons(PersonFilter(), ALL) == one_by_one.persons(PersonFilter(), ALL)
    owned = [distinct_id for _, ids, _, _ in shown(at_once) for distinct_id in ids]
    assert len(owned) == len(set(owned))
    at_once.close()
    one_by_one.close()


async def test_a_long_backlog_lets_others_pass() -> None:
    """What waits is folded in step by step, and other work gets its turn in between."""
    arrivals = StoreThread(None)
    many = [event_of(Step("seen", f"u{n}", "", 0), n) for n in range(STEP * 3)]
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
    others up; the next goes on after it.
    """
    store = Store(None)
    text = "x" * (STEP_BYTES // 2)
    large = [event_of(Step("seen", f"u{n}", text, n), n) for n in range(5)]
    store.add(arrival(*large))
    persons = []
    while store.effects.advance():
        persons.append(store.effects.persons.count())
    assert persons == [2, 4]
    assert store.effects.persons.count() == 5
    store.close()


async def test_a_file_goes_on_where_it_was(tmp_path: Path) -> None:
    """After a restart nothing is folded in twice, and what nobody had asked
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


OTHER = "phc_another_key_000000002"


def identify(distinct_id: str, anonymous: str | None = None, **properties: Any) -> dict[str, Any]:
    """What an SDK sends when a user logs in."""
    known = {} if anonymous is None else {"$anon_distinct_id": anonymous}
    return event(
        event="$identify", distinct_id=distinct_id, properties={**known, "$set": properties}
    )


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
        return await shown_person(client)


async def shown_person(client: Client, query: str = "") -> list[dict[str, Any]]:
    """The persons that the sandbox shows."""
    listing: dict[str, Any] = await client.get(f"/sandbox/persons?{query}")
    assert listing["count"] == len(listing["results"])
    results: list[dict[str, Any]] = listing["results"]
    return results


async def test_an_identified_event_makes_a_person() -> None:
    """The default event makes a person of its distinct id, which is not
    identified and has no properties.
    """
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
    """`$process_person_profile: false` makes no person and sets nothing; it is of its id's person,
    if there is one, also later.
    """
    anonymous = event(properties={"$process_person_profile": False, "$set": {"a": 1}})
    async with talking() as client:
        await client.post("/batch/", batch(anonymous))
        assert await shown_person(client) == []
        assert [one["person"] for one in (await client.get("/sandbox/events"))["results"]] == [None]
        await client.post("/batch/", batch(event(), anonymous))
        [person] = await shown_person(client)
        assert person["properties"] == {}
        assert [one["person"] for one in (await client.get("/sandbox/events"))["results"]] == [
            person["id"]
        ] * 3


@cases(
    ("events", "properties"),
    [
        ([identify("u", plan="pro", n=1)], {"plan": "pro", "n": 1}),
        ([setting("u", a=1, b=1), setting("u", b=2)], {"a": 1, "b": 2}),
        (
            [setting("u", a=1, b=0, c=True), setting("u", a=True, b=0.0, c=1)],
            {"a": True, "b": 0.0, "c": 1},
        ),
        ([once("u", a=1), once("u", a=2, b=2)], {"a": 1, "b": 2}),
        ([event(distinct_id="u", properties={"$set": {"a": 1}, "$set_once": {"a": 2}})], {"a": 1}),
        ([event(distinct_id="u", **{"$set": {"a": 1}, "$set_once": {"b": 2}})], {"a": 1, "b": 2}),
        (
            [event(distinct_id="u", properties={"$set": {"a": 1, "b": 1}}, **{"$set": {"a": 2}})],
            {"a": 2, "b": 1},
        ),
        (
            [
                setting("u", a=1, b=2),
                event(distinct_id="u", properties={"$unset": ["a", 7, "none"]}),
            ],
            {"b": 2},
        ),
        ([setting("u", a=1, b=2), event(distinct_id="u", **{"$unset": ["b"]})], {"a": 1}),
        ([event(distinct_id="u", properties={"$set": "no", "$set_once": [1], "$unset": "x"})], {}),
        (
            [setting("u", a={"b": [1, None, True]}, e="é\ud83d\ude00")],
            {"a": {"b": [1, None, True]}, "e": "é😀"},
        ),
    ],
)
async def test_properties(events: list[dict[str, Any]], properties: dict[str, Any]) -> None:
    """`$set` overwrites, `$set_once` doesn't, `$unset` takes away; also beside the properties;
    what has another form is nothing.
    """
    [person] = await persons(*events)
    # to Python 1 == True
    assert json.dumps(person["properties"], sort_keys=True) == json.dumps(
        properties, sort_keys=True
    )


async def test_identify_merges_the_anonymous_person() -> None:
    """`$anon_distinct_id` brings what the anonymous person had; the identified one's properties
    win, and its id stays the main one.
    """
    [person] = await persons(
        setting("anon", a=1, b=1), setting("user", b=2), identify("user", "anon", c=3)
    )
    assert (person["distinct_id"], person["distinct_ids"]) == ("user", ["anon", "user"])
    assert person["properties"] == {"a": 1, "b": 2, "c": 3}
    assert person["is_identified"]


async def test_identify_of_a_user_who_is_new() -> None:
    """Where only the anonymous person exists it stays itself and gets the user's id as its main
    one; where neither does, one is made.
    """
    async with talking() as client:
        await client.post("/batch/", batch(setting("anon", a=1)))
        [before] = await shown_person(client)
        await client.post("/batch/", batch(identify("user", "anon")))
        [after] = await shown_person(client)
        assert (after["id"], after["distinct_id"], after["distinct_ids"]) == (
            before["id"],
            "user",
            ["anon", "user"],
        )
    [person] = await persons(identify("user", "anon"))
    assert (person["distinct_id"], person["distinct_ids"]) == ("user", ["user", "anon"])


async def test_identify_takes_nobody_who_is_identified() -> None:
    """Two users of one browser stay two: an identified person is not merged by `$identify`, and
    the event still does the rest.
    """
    one, other = await persons(identify("one"), setting("two", a=1), identify("two", "one", b=2))
    assert (one["distinct_ids"], other["distinct_ids"]) == (["one"], ["two"])
    assert other["properties"] == {"a": 1, "b": 2}


async def test_alias_becomes_the_main_id() -> None:
    """`$create_alias` merges distinct_id into alias: the alias's properties win, and it becomes
    the main id of whoever it is.
    """
    [person] = await persons(setting("old", a=1, b=1), setting("new", b=2), alias("old", "new"))
    assert (person["distinct_id"], person["properties"], person["is_identified"]) == (
        "new",
        {"a": 1, "b": 2},
        True,
    )
    [person] = await persons(
        identify("user"), alias("anon", "user"), alias("user", "later"), alias("user", "anon")
    )
    assert (person["distinct_id"], person["distinct_ids"]) == ("anon", ["user", "anon", "later"])


async def test_aliases_that_say_nothing() -> None:
    """An alias to itself, an empty one or none at all is an event like others."""
    [person] = await persons(
        alias("u", "u"),
        alias("u", " "),
        event(event="$create_alias", distinct_id="u", properties={}),
    )
    assert (person["distinct_ids"], person["is_identified"]) == (["u"], False)


async def test_merging_dangerously() -> None:
    """`$merge_dangerously` merges also an identified person, into the event's own, whose
    properties win and whose main id stays.
    """
    merge = event(event="$merge_dangerously", distinct_id="one", properties={"alias": "two"})
    [person] = await persons(identify("one", a=1), identify("two", a=2, b=2), merge)
    assert (person["distinct_id"], person["properties"]) == ("one", {"a": 1, "b": 2})


async def test_a_merged_person_has_the_earlier_beginning() -> None:
    """`created_at` is that of the one who was there first, by the events' times."""
    [person] = await persons(
        event(distinct_id="a", timestamp="2025-03-01T00:00:00Z"),
        event(distinct_id="b", timestamp="2025-02-01T00:00:00Z"),
        alias("b", "a"),
    )
    assert person["created_at"].startswith("2025-02-01")


async def test_events_of_both_are_the_merged_persons() -> None:
    """After a merge the events of every id are the surviving person's, and are found by it."""
    async with talking() as client:
        await client.post(
            "/batch/",
            batch(
                event(distinct_id="a"),
                event(distinct_id="b"),
                event(distinct_id="c"),
                alias("a", "b"),
            ),
        )
        merged, other = await shown_person(client)
        listing = await client.get(f"/sandbox/events?person={merged['id']}")
        assert [one["distinct_id"] for one in listing["results"]] == ["a", "b", "a"]
        assert {one["person"] for one in listing["results"]} == {merged["id"]}
        assert (await client.get(f"/sandbox/events?person={other['id']}"))["count"] == 1
        assert (await client.get("/sandbox/events?person=nobody"))["count"] == 0


async def test_repeats_and_conflicts_change_nothing() -> None:
    """What has a uuid that is here already has no effect, whether it repeats the first or
    contradicts it; arrival decides, not time.
    """
    first = {**setting("u", a=1), "uuid": UUID, "timestamp": "2025-12-01T00:00:00Z"}
    [person] = await persons(first, setting("u", a=2), first, {**setting("u", a=3), "uuid": UUID})
    assert person["properties"] == {"a": 2}
    async with talking() as client:
        await client.post("/batch/", batch(setting("u", a=1)))
        await client.post(
            "/batch/",
            batch(
                {**setting("u", a=0), "timestamp": "2020-01-01T00:00:00Z"},
                historical_migration=True,
            ),
        )
        assert [one["properties"] for one in await shown_person(client)] == [{"a": 0}]


async def test_numbers_no_double_holds() -> None:
    """A number beyond every double becomes null in a person's properties, one with any number of
    digits stays.
    """
    async with talking() as client:
        long = f'{{"x":{"1" * 5000},"$set":{{"c":1}}}}'
        for distinct_id, properties in (
            ("a", '{"$set":{"a":1e999,"b":[1e999,12345678901234567890]}}'),
            ("b", long),
        ):
            body = (
                f'{{"api_key":"{KEY}","event":"e","distinct_id":"{distinct_id}","properties":'
                f"{properties}}}"
            )
            assert (await client.post("/capture/", body.encode())).status == 200
        assert [one["properties"] for one in await shown_person(client)] == [
            {"a": None, "b": [None, 12345678901234567890]},
            {"c": 1},
        ]


async def test_deeply_nested_properties_are_shown() -> None:
    """Whatever nesting is taken can be shown."""
    async with talking() as client:
        body = (
            f'{{"api_key":"{KEY}","event":"e","distinct_id":"u","properties":{{"$set":{{"a":'
            f"{'[' * 790}{']' * 790}}}}}}}"
        )
        assert (await client.post("/capture/", body.encode())).status == 200
        answer = await client.ask("GET", "/sandbox/persons")
        assert answer.status == 200
        assert "[" * 790 in answer.text


async def test_projects_are_apart() -> None:
    """The same distinct id in two projects is two persons, with ids of their own."""
    async with talking() as client:
        await client.post("/batch/", batch(setting("u", a=1)))
        await client.post("/batch/", {**batch(setting("u", a=2)), "api_key": OTHER})
        one, other = await shown_person(client)
        assert one["id"] != other["id"]
        assert [
            person["properties"] for person in await shown_person(client, f"api_key={OTHER}")
        ] == [{"a": 2}]
        assert KEY not in str(one)


async def test_finding_persons() -> None:
    """By any of their distinct ids, by id, in pages, the newest first."""
    async with talking() as client:
        await client.post(
            "/batch/", batch(*[event(distinct_id=f"u{n}") for n in range(5)], alias("u0", "u1"))
        )
        ids = [person["id"] for person in await shown_person(client)]
        for name in ("u0", "u1"):
            assert [
                person["id"] for person in await shown_person(client, f"distinct_id={name}")
            ] == ids[:1]
        assert [person["id"] for person in await shown_person(client, f"person={ids[2]}")] == [
            ids[2]
        ]
        page = await client.get("/sandbox/persons?limit=2&offset=1&order=newest")
        assert (page["count"], [person["id"] for person in page["results"]]) == (
            4,
            [ids[2], ids[1]],
        )
        assert [person.id for person in await client.sandbox.persons()] == ids


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
    """Without type or key there is no group; the event is recorded like others. A number is a key
    as well as a text is.
    """
    async with talking() as client:
        await client.post(
            "/batch/",
            batch(
                group(None, "x"), group("company", ""), event(event="$groupidentify", properties={})
            ),
        )
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
        assert (page["count"], [one["group_type"] for one in page["results"]]) == (
            7,
            ["type5", "type4"],
        )
