"""Persons, as arrivals create, merge and change them by the service's rules."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from forwarder.sandbox import SandboxOptions
from forwarder.sandbox.store.database import Store
from forwarder.sandbox.store.stored_records import (
    EventFilter,
    IngestedEvent,
    ListingPage,
    PersonFilter,
    RequestRecord,
)
from tests.sandbox.client import KEY, UUID, SandboxClient, batch, event, talking
from tests.support.cases import cases
from tests.support.clock import MIDNIGHT

ALL = ListingPage(limit=None)
TIME = "2026-01-01T00:00:00.000000Z"

NAMES = ["plan", "$browser", "$initial_browser", "$os", "utm_source"]
VALUES = st.sampled_from([1, True, "1", None, {"a": 1}])
IDS = st.sampled_from(["a", "b", "A", "null"])
OTHER_IDS = st.sampled_from(["a", "b", "A", "null", 7])
SETTING = st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=2)
PROPERTIES = st.fixed_dictionaries(
    {},
    optional={
        "$set": SETTING | st.just("no"),
        "$set_once": SETTING | st.just(["x"]),
        "$unset": st.lists(st.sampled_from(NAMES), max_size=2),
        "$browser": st.sampled_from(["X", "Y", None]),
        "$os_name": st.sampled_from(["Mac", None]),
        "$os": st.just("Linux"),
        "$is_server": st.booleans(),
        "utm_source": st.sampled_from(["ad", None]),
        "$process_person_profile": st.sampled_from([True, False, False, "no"]),
        "$anon_distinct_id": OTHER_IDS,
        "alias": OTHER_IDS,
        "$groups": st.just({"company": "x"}),
    },
)
EVENTS = st.fixed_dictionaries(
    {
        "event": st.sampled_from(
            [
                *("seen", "seen", "$set", "$exception", "$groupidentify"),
                *("$identify", "$identify", "$create_alias", "$merge_dangerously"),
            ]
        ),
        "distinct_id": IDS,
        "properties": PROPERTIES,
    },
    optional={"$set": SETTING},
)


class PersonModel:
    """The service's rules on plain dictionaries: the owner of each distinct id."""

    def __init__(self) -> None:
        self.owners: dict[str, dict[str, Any]] = {}
        self.warnings: list[str] = []

    def take(self, number: int, said: Mapping[str, Any]) -> tuple[Any, list[str]]:
        """What the event has of its person, and the warnings about it."""
        self.warnings = []
        name = said["event"]
        inside = said["properties"]
        merging = ("$identify", "$create_alias", "$merge_dangerously")
        about_persons = (*merging, "$groupidentify")
        if name == "$exception":
            owner = self.owners.get(said["distinct_id"])
            return owner and owner["has"], self.warnings
        for other in ("$anon_distinct_id", "alias"):
            if name in merging and inside.get(other) == 7:
                return None, [f"invalid_{other.strip('$')}"]
        profile = inside.get("$process_person_profile", True)
        if profile is False:
            dropped = "invalid_event_when_process_person_profile_is_false"
            return None, [dropped] if name in about_persons else []
        if profile is not True:
            self.warnings.append("invalid_process_person_profile")
        person = self.owner(number, said)
        sets = self.change(number, person, said) if name != "$groupidentify" else {}
        return {**person["has"], **sets}, self.warnings

    def owner(self, number: int, said: Mapping[str, Any]) -> dict[str, Any]:
        """The person of the event, after its merge."""
        mine = said["distinct_id"]
        key = "$anon_distinct_id" if said["event"] == "$identify" else "alias"
        merging = said["event"] in ("$identify", "$create_alias", "$merge_dangerously")
        other = said["properties"].get(key, mine) if merging else mine
        if other != mine and "null" in (mine, other):
            self.warnings.append("cannot_merge_with_illegal_distinct_id")
        if other == mine or "null" in (mine, other):
            if mine == "A" and "A" not in self.owners and "a" in self.owners:
                self.warnings.append("distinct_id_case_collision")
            return self.made(number, mine)
        if mine in self.owners and other in self.owners:
            person = self.owners[mine]
            gone = self.owners[other]
            if gone is not person:
                if gone["identified"] and said["event"] != "$merge_dangerously":
                    self.warnings.append("cannot_merge_already_identified")
                    return self.identified(number, person)
                for kept in ("has", "from"):
                    person[kept] = {**gone[kept], **person[kept]}
                person["ids"] |= gone["ids"]
                person["changed"] = number
        else:
            # the one that is there gets the other id
            person = self.made(number, other if other in self.owners else mine)
            if mine not in person["ids"] and not person["identified"]:
                person["main"] = mine
            person["ids"] |= {mine, other}
            person["changed"] = number
        if said["event"] == "$create_alias":
            person["main"] = other
        for one in person["ids"]:
            self.owners[one] = person
        return self.identified(number, person)

    def made(self, number: int, distinct_id: str) -> dict[str, Any]:
        """The person of an id; a new one if there is none."""
        new = {
            "main": distinct_id,
            "ids": {distinct_id},
            "has": {},
            "from": {},
            "identified": False,
            "changed": number,
        }
        return self.owners.setdefault(distinct_id, new)

    @staticmethod
    def identified(number: int, person: dict[str, Any]) -> dict[str, Any]:
        """The person, identified from now on."""
        if not person["identified"]:
            person["identified"] = True
            person["changed"] = number
        return person

    @staticmethod
    def change(number: int, person: dict[str, Any], said: Mapping[str, Any]) -> dict[str, Any]:
        """Set properties; all of what the event sets."""
        inside = said["properties"]
        text = {} if any(key in inside for key in (*NAMES, "$os_name")) else {"0": "n", "1": "o"}
        sets = inside.get("$set", {})
        sets = {**(text if sets == "no" else sets), **said.get("$set", {})}
        once = inside.get("$set_once", {})
        once = {"0": "x"} if once == ["x"] else dict(once)
        spoken = {*sets, *once}
        server = inside.get("$is_server") is True
        device = {key: inside[key] for key in ("$browser", "utm_source") if key in inside}
        if server and "$os_name" in inside:
            device["$os_name"] = inside["$os_name"]
        elif not server and ("$os" in inside or "$os_name" in inside):
            device["$os"] = inside.get("$os", inside.get("$os_name"))
        for key, value in device.items():
            if key not in sets:
                spoken.discard(key)
            sets.setdefault(key, value)
            if value is not None:
                once.setdefault("$initial_" + key.replace("$", ""), value)
        old = person["has"]
        new: dict[str, tuple[Any, str]] = {}
        for key, value in once.items():
            if key not in sets and (key not in old or (old[key] is None and value is not None)):
                new[key] = (value, "$set_once")
        for key, value in sets.items():
            equal = key in old and json.dumps(old[key]) == json.dumps(value)
            if not equal or isinstance(value, dict):
                new[key] = (value, "$set")
        gone = [key for key in inside.get("$unset", []) if key in old]
        loud = [key for key in new if key not in old or key not in ("$browser", "$os", "$os_name")]
        forced = said["event"] in ("$set", "$identify", "$create_alias", "$merge_dangerously")
        if (new or gone) and (forced or loud or gone):
            person["has"] = {**old, **{key: value for key, (value, _) in new.items()}}
            person["from"] = {
                **person["from"],
                **{key: (number, how, key not in spoken) for key, (_, how) in new.items()},
            }
            for key in set(gone):
                del person["has"][key]
                del person["from"][key]
            person["changed"] = number
        return sets

    def shown(self) -> list[tuple[Any, ...]]:
        """The persons, so that they can be compared."""
        persons = {id(person): person for person in self.owners.values()}.values()
        return sorted(
            (
                *(one["main"], sorted(one["ids"]), one["identified"], one["changed"]),
                *(json.dumps(one["has"], sort_keys=True), sorted(one["from"].items())),
            )
            for one in persons
        )


def ingested(said: Mapping[str, Any], position: int) -> IngestedEvent:
    """The event as the store takes it."""
    properties = json.dumps(said["properties"])
    raw = json.dumps(said).encode()
    return IngestedEvent(
        position, None, said["event"], said["distinct_id"], None, TIME, properties, raw
    )


def arrival(*events: IngestedEvent) -> RequestRecord:
    """A request of these events."""
    return RequestRecord(TIME, "/batch/", "", {}, 200, "", api_key=KEY, events=events)


def shown(store: Store) -> list[tuple[Any, ...]]:
    """The persons of a store, so that they can be compared."""
    found = []
    for one in store.persons(PersonFilter(), ALL)[1]:
        details = store.person(one.id)
        assert details is not None
        sources = {
            name: (source.event.arrival, source.operation, source.lifted)
            for name, source in details.sources.items()
        }
        [(changed,)] = store.select("SELECT changed FROM persons WHERE uuid = ?", [one.id])
        found.append(
            (
                *(one.distinct_id, sorted(one.distinct_ids), one.is_identified, changed),
                *(json.dumps(one.properties, sort_keys=True), sorted(sources.items())),
            )
        )
    return sorted(found)


def of_events(store: Store) -> list[tuple[Any, list[str]]]:
    """What each event has of its person, and the warnings about it."""
    return [
        (one.person_properties and json.loads(one.person_properties), sorted(one.warnings))
        for one in store.events(EventFilter(), ALL)[1]
    ]


@given(st.lists(EVENTS, max_size=10))
def test_persons_follow_the_model(said: Sequence[dict[str, Any]]) -> None:
    """Whatever comes in whatever order, at once or one by one: the persons, what set their
    properties, what each event has of its person, and the warnings are those of a few
    dictionaries.
    """
    model = PersonModel()
    expected = [
        (json.loads(json.dumps(has)), sorted(warnings))
        for has, warnings in (model.take(number, one) for number, one in enumerate(said, 1))
    ]
    at_once = Store(None)
    one_by_one = Store(None)
    for position, one in enumerate(said):
        one_by_one.add(arrival(ingested(one, position)))
        one_by_one.effects.finish()
    at_once.add(arrival(*[ingested(one, position) for position, one in enumerate(said)]))
    assert shown(at_once) == shown(one_by_one) == model.shown()
    assert json.dumps(of_events(at_once), sort_keys=True) == json.dumps(expected, sort_keys=True)
    assert of_events(one_by_one) == of_events(at_once)
    at_once.close()
    one_by_one.close()


OTHER = "phc_another_key_000000002"


def identify(distinct_id: str, anonymous: Any = ..., **properties: Any) -> dict[str, Any]:
    """What an SDK sends when a user logs in."""
    known = {} if anonymous is ... else {"$anon_distinct_id": anonymous}
    return event(
        event="$identify", distinct_id=distinct_id, properties={**known, "$set": properties}
    )


def alias(
    distinct_id: str, other: Any, kind: str = "$create_alias", **properties: Any
) -> dict[str, Any]:
    """What an SDK sends to say that two ids are one person's."""
    return event(event=kind, distinct_id=distinct_id, properties={"alias": other, **properties})


def sending(distinct_id: str = "u", **properties: Any) -> dict[str, Any]:
    """An event with these properties; `S_` at the beginning of a name is a `$`."""
    named = {name.replace("S_", "$", 1): value for name, value in properties.items()}
    return event(distinct_id=distinct_id, properties=named)


def setting(distinct_id: str, **properties: Any) -> dict[str, Any]:
    """An event that sets properties of its person."""
    return event(distinct_id=distinct_id, properties={"$set": properties})


def uuid(number: int) -> str:
    """The uuid of an event."""
    return f"{UUID[:-1]}{number}"


def once(distinct_id: str, **properties: Any) -> dict[str, Any]:
    """An event that sets properties of its person where there are none."""
    return event(distinct_id=distinct_id, properties={"$set_once": properties})


async def persons(*events: dict[str, Any]) -> list[dict[str, Any]]:
    """The persons that these events make, one request each."""
    async with talking(SandboxOptions(now=lambda: MIDNIGHT)) as client:
        for one in events:
            assert (await client.post("/batch/", batch(one))).status == 200
        return await shown_person(client)


async def shown_person(client: SandboxClient, query: str = "") -> list[dict[str, Any]]:
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
            {"a": True, "b": 0, "c": 1},
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
        (
            [setting("u", a=1), event(distinct_id="u", properties={"$unset": {"a": 0, "b": 1}})],
            {},
        ),
        (
            [
                setting("u", a=1),
                event(distinct_id="u", properties={"$set": {"a": 2, "b": 2}, "$unset": ["a", "b"]}),
            ],
            {"b": 2},
        ),
        ([setting("u", a=1), event(distinct_id="u", **{"$unset": ["a"]})], {"a": 1}),
        ([setting("u", a=None), once("u", a=1)], {"a": 1}),
        ([setting("u", a=None), once("u", a=None)], {"a": None}),
        (
            [
                setting("u", a=None),
                event(distinct_id="u", properties={"$set": {"a": None}, "$set_once": {"a": 1}}),
            ],
            {"a": None},
        ),
        (
            [
                event(distinct_id="u", properties={"$set": "no", "$set_once": [1, None]}),
                event(distinct_id="u", properties={"$set": {"2": 2}, "$unset": "x"}),
            ],
            {"1": "o", "2": 2},
        ),
        ([event(distinct_id="u", properties={"$set": 5, "$set_once": True, "$unset": 7})], {}),
        ([event(distinct_id="u", properties={"$set": "x" * 80_001})], {}),
        (
            [setting("u", a={"b": [1, None, True]}, e="é\ud83d\ude00")],
            {"a": {"b": [1, None, True]}, "e": "é😀"},
        ),
    ],
)
async def test_properties(events: list[dict[str, Any]], properties: dict[str, Any]) -> None:
    """`$set` overwrites what differs, `$set_once` only nothing and null, `$unset` takes away what
    was there before; the first two also beside the properties. A text has its characters as
    members, a list its items.
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


@cases(
    ("kind", "merged"),
    [("$identify", False), ("$create_alias", False), ("$merge_dangerously", True)],
)
async def test_merging_identified_persons(kind: str, merged: bool) -> None:
    """Two users of one browser stay two, also by an alias: only `$merge_dangerously` merges a
    person that is identified. A refused merge has a warning, identifies all the same, and the
    event does the rest.
    """
    key = "$anon_distinct_id" if kind == "$identify" else "alias"
    asking = event(event=kind, distinct_id="two", properties={key: "one", "$set": {"b": 2}})
    async with talking() as client:
        for each in (identify("one", "anon", a=1, b=1), setting("two", c=3), asking):
            await client.post("/batch/", batch({**each, "uuid": UUID} if each is asking else each))
        *others, two = await shown_person(client)
        assert two["is_identified"]
        if merged:
            assert (others, sorted(two["distinct_ids"])) == ([], ["anon", "one", "two"])
            assert two["properties"] == {"a": 1, "b": 2, "c": 3}
            assert (await client.get("/sandbox/warnings"))["count"] == 0
            return
        [one] = others
        assert (sorted(one["distinct_ids"]), one["properties"]) == (
            ["anon", "one"],
            {"a": 1, "b": 1},
        )
        assert (two["distinct_ids"], two["properties"]) == (["two"], {"b": 2, "c": 3})
        [warning] = (await client.get("/sandbox/warnings"))["results"]
        assert (warning["type"], warning["event"]["uuid"], warning["person"]) == (
            "cannot_merge_already_identified",
            UUID,
            two["id"],
        )
        assert warning["details"] == {
            "sourcePersonDistinctId": "one",
            "targetPersonDistinctId": "two",
            "personId": two["id"],
            "otherPersonId": one["id"],
        }


@cases(
    "events",
    [
        [identify("u", a=1)],
        [identify("u", "u")],
        [alias("u", "u")],
        [alias("u", "")],
        [alias("u", None)],
        [event(event="$create_alias", distinct_id="u", properties={})],
    ],
)
async def test_only_a_merge_identifies(events: list[dict[str, Any]]) -> None:
    """An `$identify` without another id sets properties and identifies no one; neither does an
    alias to the same id, an empty one or none at all.
    """
    [person] = await persons(*events)
    assert (person["distinct_ids"], person["is_identified"]) == (["u"], False)


@cases(
    ("other", "spelled"),
    [
        *(("anonymous", None), ("Guest", None), ("UNDEFINED", None), ("email", None)),
        *(("0", None), ("null", None), ("NaN", None), ("None", None), ("[object Object]", None)),
        *(("'id'", None), ('"true"', None), (" ", None), ("a" * 401, None), ("a\0b", "a\0b")),
        (None, "null"),
    ],
)
async def test_ids_that_block_merging(other: Any, spelled: str | None) -> None:
    """They are never merged, from either side, and the event has a warning; events of such ids are
    ingested and make persons like others.
    """
    async with talking() as client:
        await client.post("/batch/", batch(identify("u", other, a=1)))
        if isinstance(other, str) and other.strip() and len(other) < 200 and "\0" not in other:
            await client.post("/batch/", batch(identify(other, "u", b=1)))
        for person in await shown_person(client):
            assert (len(person["distinct_ids"]), person["is_identified"]) == (1, False)
            assert len(person["properties"]) == 1
        for warning in (await client.get("/sandbox/warnings"))["results"]:
            assert warning["type"] == "cannot_merge_with_illegal_distinct_id"
            assert warning["details"]["illegalDistinctId"] == (
                other if spelled is None else spelled
            )


@cases("other", ["nan", "NONE", " guest ", "'nan'", "a" * 400, "\U0001f600" * 400])
async def test_ids_that_look_like_those(other: str) -> None:
    """They are merged like others."""
    [person] = await persons(identify("u", other))
    assert person["distinct_ids"] == ["u", other]


@cases(
    ("sent", "kind"),
    [
        (identify("u", 7, a=1), "invalid_anon_distinct_id"),
        (identify("u", ["a"]), "invalid_anon_distinct_id"),
        (alias("u", {"a": 1}), "invalid_alias"),
        (alias("u", False, "$merge_dangerously"), "invalid_alias"),
        (alias("u", 0, "$identify"), "invalid_alias"),
        (
            alias("u", 7, "$create_alias", **{"$process_person_profile": False}),
            "invalid_alias",
        ),
        (
            identify("u", "a") | {"properties": {"$process_person_profile": False}},
            "invalid_event_when_process_person_profile_is_false",
        ),
    ],
)
async def test_events_that_the_service_drops_do_nothing(sent: dict[str, Any], kind: str) -> None:
    """Such an event is kept with the warning, and does nothing."""
    async with talking() as client:
        await client.post("/batch/", batch(sent))
        [shown] = (await client.get("/sandbox/events"))["results"]
        assert (shown["warnings"], shown["person_properties"]) == ([kind], None)
        assert await shown_person(client) == []


async def test_distinct_ids_that_differ_in_case() -> None:
    """They are two persons. The one with upper case has a warning, if it is made after the other
    one, and not by a merge.
    """
    async with talking() as client:
        sent = (event(distinct_id="ann@x"), identify("ANN@x", "phone"), event(distinct_id="Ann@x"))
        await client.post("/batch/", batch(*sent, event(distinct_id="Ann@x")))
        lower, _, upper = await shown_person(client)
        [warning] = (await client.get("/sandbox/warnings"))["results"]
        assert (warning["type"], warning["person"]) == ("distinct_id_case_collision", upper["id"])
        assert warning["details"] == {
            "distinctId": "Ann@x",
            "existingDistinctId": "ann@x",
            "personId": lower["id"],
        }
    assert len(await persons(event(distinct_id="Ann@x"), event(distinct_id="ann@x"))) == 2


async def test_alias_becomes_the_main_id() -> None:
    """`$create_alias` merges the person of `alias` into the event's, whose properties win; `alias`
    is the main id afterwards, as the contract has it.
    """
    [person] = await persons(setting("old", a=1, b=1), setting("new", b=2), alias("old", "new"))
    assert (person["distinct_id"], person["properties"], person["is_identified"]) == (
        "new",
        {"a": 1, "b": 1},
        True,
    )


@cases(
    ("sent", "has"),
    [
        (
            sending(S_browser="X", utm_source="ad", other=1),
            {
                "$browser": "X",
                "$initial_browser": "X",
                "utm_source": "ad",
                "$initial_utm_source": "ad",
            },
        ),
        (sending(S_browser=None), {"$browser": None}),
        (
            sending(S_browser="X", S_set={"$browser": "own"}, S_set_once={"$initial_browser": 1}),
            {"$browser": "own", "$initial_browser": 1},
        ),
        (sending(S_os_name="Mac"), {"$os": "Mac", "$initial_os": "Mac"}),
        (sending(S_os="Linux", S_os_name="Mac"), {"$os": "Linux", "$initial_os": "Linux"}),
        (sending(S_os=None, S_os_name="Mac"), {"$os": None, "$initial_os": "Mac"}),
        (sending(S_is_server=True, S_os="Linux", S_os_version="6"), {}),
        (
            sending(S_is_server=True, S_os_name="Mac"),
            {"$os_name": "Mac", "$initial_os_name": "Mac"},
        ),
        (sending(S_set="no", S_browser="X"), {"$browser": "X", "$initial_browser": "X"}),
        (
            {**sending(fbclid="click"), "timestamp": "2025-12-01T10:00:00Z"},
            {
                "fbclid": "click",
                "$initial_fbclid": "click",
                "$fbc": "fb.1.1764547200000.click",
            },
        ),
        (sending(fbclid="a b"), {"fbclid": "a b", "$initial_fbclid": "a b"}),
        (
            {**sending(), "event": "survey shown", "timestamp": "2025-12-01T10:00:00Z"},
            {"$survey_last_seen_date": "2025-12-01T10:00:00.000000Z"},
        ),
        ({**sending(S_browser="X"), "event": "$snapshot"}, {}),
        (
            event(
                event="$groupidentify",
                distinct_id="u",
                properties={"$set": {"a": 1}, "$browser": "X"},
            ),
            {},
        ),
    ],
)
async def test_lifted_properties(sent: dict[str, Any], has: dict[str, Any]) -> None:
    """Device, page and campaign of an event become properties of its person, the first ones as
    `$initial_…`; what the event sets itself wins, and a null is no first value.
    """
    properties = {"$survey_id": "s", **sent["properties"]}
    [person] = await persons({**sent, "properties": properties})
    assert person["properties"] == has


@cases(
    ("later", "has"),
    [
        (sending(S_browser="Y"), {"$browser": "X", "$initial_browser": "X", "a": 1}),
        (sending(S_browser="Y", a=2), {"$browser": "X", "$initial_browser": "X", "a": 1}),
        (
            sending(S_browser="Y", S_set={"a": 2}),
            {"$browser": "Y", "$initial_browser": "X", "a": 2},
        ),
        (
            sending(S_browser="Y", S_set={"a": 1}),
            {"$browser": "X", "$initial_browser": "X", "a": 1},
        ),
        (sending(S_set={"$browser": "Y"}), {"$browser": "X", "$initial_browser": "X", "a": 1}),
        (
            sending(S_browser="Y", S_unset=["a"]),
            {"$browser": "Y", "$initial_browser": "X"},
        ),
        (
            sending(S_browser="Y", S_app_version="2"),
            {
                "$browser": "Y",
                "$initial_browser": "X",
                "a": 1,
                "$app_version": "2",
                "$initial_app_version": "2",
            },
        ),
        (
            {**sending(S_browser="Y"), "event": "$set"},
            {"$browser": "Y", "$initial_browser": "X", "a": 1},
        ),
        (
            {**sending(S_browser="Y"), "event": "$identify"},
            {"$browser": "Y", "$initial_browser": "X", "a": 1},
        ),
    ],
)
async def test_some_changes_alone_are_left_out(later: dict[str, Any], has: dict[str, Any]) -> None:
    """Another browser or page is no reason to update a person, unless something else changes, too,
    or the event is about the person; the event has the new value in any case.
    """
    async with talking() as client:
        await client.post("/batch/", batch(sending(S_browser="X", S_set={"a": 1})))
        await client.post("/batch/", batch(later))
        [person] = await shown_person(client)
        assert person["properties"] == has
        _, second = (await client.get("/sandbox/events"))["results"]
        assert second["person_properties"] == {**has, "$browser": "Y"}


async def test_properties_as_ingested() -> None:
    """An event keeps what its person had then, whatever comes later: also when that person is
    merged away. An anonymous event has nothing; an error, also an anonymous one, and a model's
    event only read.
    """
    sent = [
        setting("anon", a=1),
        event(
            event="$exception",
            distinct_id="anon",
            properties={"$set": {"a": 9}, "$process_person_profile": False},
        ),
        {**setting("anon", a=9), "event": "$ai_generation"},
        {**setting("nobody", a=9), "event": "$exception"},
        setting("user", b=1),
        event(distinct_id="anon", properties={"$process_person_profile": False, "$set": {"a": 9}}),
        identify("user", "anon", c=1),
        setting("user", a=2),
        event(distinct_id="anon"),
    ]
    async with talking() as client:
        for one in sent:
            await client.post("/batch/", batch(one))
        listing = await client.get("/sandbox/events")
        assert [one["person_properties"] for one in listing["results"]] == [
            *({"a": 1}, {"a": 1}, {"a": 1}, None, {"b": 1}, None),
            *({"a": 1, "b": 1, "c": 1}, {"a": 2, "b": 1, "c": 1}, {"a": 2, "b": 1, "c": 1}),
        ]
        assert (await client.sandbox.summary()).persons == 1


async def test_a_migration_is_like_everything_else() -> None:
    """`historical_migration` changes nothing of persons: old events overwrite newer properties,
    are lifted and merged.
    """
    old = [
        {**sending(S_browser="Old", S_set={"plan": "old"}), "timestamp": "2020-01-01T00:00:00Z"},
        {**identify("u", "anon", b=1), "timestamp": "2020-01-02T00:00:00Z"},
    ]
    found = []
    for historical in (False, True):
        async with talking(SandboxOptions(now=lambda: MIDNIGHT)) as client:
            await client.post("/batch/", batch(sending(S_browser="New", S_set={"plan": "new"})))
            await client.post("/batch/", batch(*old, historical_migration=historical))
            found.append(await shown_person(client))
    assert found[0] == found[1]
    [person] = found[0]
    assert person["properties"] == {
        "plan": "old",
        "b": 1,
        "$browser": "Old",
        "$initial_browser": "New",
    }


async def test_how_a_person_became_so() -> None:
    """One query has where each property comes from, the merges in their order, the groups and the
    warnings, also of a person that was merged in.
    """
    sent = [
        sending(
            "anon", S_browser="X", S_set_once={"first": 1, "$browser": 0}, S_groups={"company": "x"}
        ),
        identify("user", "anon", plan="pro"),
        setting("other", b=2),
        alias("user", "other"),
        identify("user", "null"),
        sending("other", S_groups={"company": "x", "team": 7}),
    ]
    async with talking() as client:
        for number, one in enumerate(sent):
            await client.post("/batch/", batch({**one, "uuid": uuid(number)}))
        [person] = await shown_person(client)
        found = await client.get(f"/sandbox/persons/{person['id']}")
        assert found["person"] == person
        assert found["created_by"]["uuid"] == uuid(0)
        assert {
            name: (one["event"]["uuid"], one["operation"], one["lifted"])
            for name, one in found["sources"].items()
        } == {
            "$browser": (uuid(0), "$set", True),
            "$initial_browser": (uuid(0), "$set_once", True),
            "first": (uuid(0), "$set_once", False),
            "plan": (uuid(1), "$set", False),
            "b": (uuid(2), "$set", False),
        }
        assert [
            (one["event"]["uuid"], one["outcome"], one["source"], one["target"])
            for one in found["merges"]
        ] == [
            (uuid(1), "attached", "anon", "user"),
            (uuid(3), "merged", "other", "user"),
        ]
        assert [one["merged_person"] is None for one in found["merges"]] == [True, False]
        assert [
            (one["group_type"], one["group_key"], one["event"]["uuid"]) for one in found["groups"]
        ] == [("company", "x", uuid(5)), ("team", "7", uuid(5))]
        [warning] = found["warnings"]
        assert (warning["event"]["uuid"], KEY in str(found)) == (uuid(4), False)
        assert (await client.ask("GET", "/sandbox/persons/nobody")).status == 404


async def test_finding_warnings() -> None:
    """By what they are, by person, distinct id, event and project, in pages."""
    async with talking() as client:
        odd = {**sending("u1", S_process_person_profile="no"), "uuid": UUID}
        await client.post("/batch/", batch(identify("u0", "null"), odd, identify("u1", "0")))
        [_, person] = await shown_person(client)
        for query, count in (
            ("", 3),
            ("type=invalid_process_person_profile", 1),
            (f"person={person['id']}", 2),
            ("distinct_id=u0", 1),
            (f"uuid={UUID}", 1),
            (f"api_key={KEY}", 3),
            (f"api_key={OTHER}", 0),
        ):
            assert (await client.get(f"/sandbox/warnings?{query}"))["count"] == count, query
        page = await client.get("/sandbox/warnings?order=newest&limit=1&offset=1")
        [warning] = page["results"]
        assert (page["count"], warning["details"]) == (
            3,
            {"event": "seen", "$process_person_profile": "no"},
        )


def test_a_person_costs_what_it_shows() -> None:
    """The query of one person takes as many steps among 2,000 events as among 20."""
    steps = []
    for number in (20, 2000):
        store = Store(None)
        said = {"event": "seen", "distinct_id": "a", "properties": {"$set": {"n": 1}}}
        others = [
            ingested({**said, "distinct_id": f"u{n}", "properties": {"$browser": "X"}}, n)
            for n in range(number)
        ]
        store.add(arrival(*others, ingested(said, number)))
        [person] = store.persons(PersonFilter(distinct_id="a"), ALL)[1]
        taken = [0]

        def count(taken: list[int] = taken) -> int:
            taken[0] += 1
            return 0

        store.connection.set_progress_handler(count, 1)
        assert store.person(person.id) is not None
        steps.append(taken[0])
        store.close()
    assert steps[1] < steps[0] * 1.2


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
