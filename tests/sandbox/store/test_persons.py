"""Persons, as events create, merge and change them by the service's rules."""

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
OTHER_KEY = "phc_another_key_000000002"

NAMES = ["plan", "$browser", "$initial_browser", "$os", "utm_source"]
VALUES = st.sampled_from([1, True, "1", None, {"a": 1}])
# "A" differs from "a" only in case; "null" is never merged; 7 is not text, so its event is dropped.
IDS = st.sampled_from(["a", "b", "A", "null"])
IDS_TO_MERGE = st.sampled_from(["a", "b", "A", "null", 7])
VALUES_BY_NAME = st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=2)
PROPERTIES = st.fixed_dictionaries(
    {},
    optional={
        "$set": VALUES_BY_NAME | st.just("no"),
        "$set_once": VALUES_BY_NAME | st.just(["x"]),
        "$unset": st.lists(st.sampled_from(NAMES), max_size=2),
        "$browser": st.sampled_from(["X", "Y", None]),
        "$os_name": st.sampled_from(["Mac", None]),
        "$os": st.just("Linux"),
        "$is_server": st.booleans(),
        "utm_source": st.sampled_from(["ad", None]),
        "$process_person_profile": st.sampled_from([True, False, False, "no"]),
        "$anon_distinct_id": IDS_TO_MERGE,
        "alias": IDS_TO_MERGE,
        "$groups": st.just({"company": "x"}),
    },
)
MERGING = ("$identify", "$create_alias", "$merge_dangerously")
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
    optional={"$set": VALUES_BY_NAME},
)


class PersonModel:
    """The service's rules on plain dictionaries: one for each person, found by its distinct ids."""

    def __init__(self) -> None:
        self.owners: dict[str, dict[str, Any]] = {}
        self.warnings: list[str] = []

    def apply(self, arrival: int, sent: Mapping[str, Any]) -> tuple[Any, list[str]]:
        """Apply an event. Returns the person's properties that it keeps, and its warnings."""
        self.warnings = []
        name = sent["event"]
        properties = sent["properties"]
        if name == "$exception":
            owner = self.owners.get(sent["distinct_id"])
            return owner and owner["properties"], self.warnings
        for key in ("$anon_distinct_id", "alias"):
            if name in MERGING and properties.get(key) == 7:
                return None, [f"invalid_{key.strip('$')}"]
        profile = properties.get("$process_person_profile", True)
        if profile is False:
            dropped = "invalid_event_when_process_person_profile_is_false"
            return None, [dropped] if name in (*MERGING, "$groupidentify") else []
        if profile is not True:
            self.warnings.append("invalid_process_person_profile")
        person = self.find_or_merge(arrival, sent)
        own = self.set_properties(arrival, person, sent) if name != "$groupidentify" else {}
        return {**person["properties"], **own}, self.warnings

    def find_or_merge(self, arrival: int, sent: Mapping[str, Any]) -> dict[str, Any]:
        """The person of the event, after the merge that it asks for."""
        target = sent["distinct_id"]
        key = "$anon_distinct_id" if sent["event"] == "$identify" else "alias"
        source = sent["properties"].get(key, target) if sent["event"] in MERGING else target
        if source != target and "null" in (target, source):
            self.warnings.append("cannot_merge_with_illegal_distinct_id")
        if source == target or "null" in (target, source):
            if target == "A" and "A" not in self.owners and "a" in self.owners:
                self.warnings.append("distinct_id_case_collision")
            return self.find_or_create(arrival, target)
        if target in self.owners and source in self.owners:
            person = self.owners[target]
            absorbed = self.owners[source]
            if absorbed is not person:
                if absorbed["identified"] and sent["event"] != "$merge_dangerously":
                    self.warnings.append("cannot_merge_already_identified")
                    return self.identify(arrival, person)
                for field in ("properties", "sources"):
                    person[field] = {**absorbed[field], **person[field]}
                person["ids"] |= absorbed["ids"]
                person["changed"] = arrival
        else:
            # The id that has a person, if one does, gives it the other id.
            person = self.find_or_create(arrival, source if source in self.owners else target)
            if target not in person["ids"] and not person["identified"]:
                person["main"] = target
            person["ids"] |= {target, source}
            person["changed"] = arrival
        if sent["event"] == "$create_alias":
            person["main"] = source
        for distinct_id in person["ids"]:
            self.owners[distinct_id] = person
        return self.identify(arrival, person)

    def find_or_create(self, arrival: int, distinct_id: str) -> dict[str, Any]:
        """The person of an id; a new one if there is none."""
        new = {
            "main": distinct_id,
            "ids": {distinct_id},
            "properties": {},
            "sources": {},
            "identified": False,
            "changed": arrival,
        }
        return self.owners.setdefault(distinct_id, new)

    @staticmethod
    def identify(arrival: int, person: dict[str, Any]) -> dict[str, Any]:
        """Mark the person as identified, and return it."""
        if not person["identified"]:
            person["identified"] = True
            person["changed"] = arrival
        return person

    @staticmethod
    def set_properties(
        arrival: int, person: dict[str, Any], sent: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Change the person's properties. Returns everything that the event's `$set` and its lifted
        properties say, whether the person is changed or not.
        """
        properties = sent["properties"]
        always = properties.get("$set", {})
        if always == "no":
            # JavaScript's members of a text are its characters, but lifted properties replace it.
            lifts = any(key in properties for key in (*NAMES, "$os_name"))
            always = {} if lifts else {"0": "n", "1": "o"}
        always = {**always, **sent.get("$set", {})}
        once = properties.get("$set_once", {})
        once = {"0": "x"} if once == ["x"] else dict(once)
        not_lifted = {*always, *once}
        is_server = properties.get("$is_server") is True
        device = {key: properties[key] for key in ("$browser", "utm_source") if key in properties}
        if is_server and "$os_name" in properties:
            device["$os_name"] = properties["$os_name"]
        elif not is_server and ("$os" in properties or "$os_name" in properties):
            device["$os"] = properties.get("$os", properties.get("$os_name"))
        for key, value in device.items():
            if key not in always:
                not_lifted.discard(key)
            always.setdefault(key, value)
            if value is not None:
                once.setdefault("$initial_" + key.replace("$", ""), value)
        old = person["properties"]
        new: dict[str, tuple[Any, str]] = {}
        for key, value in once.items():
            if key not in always and (key not in old or (old[key] is None and value is not None)):
                new[key] = (value, "$set_once")
        for key, value in always.items():
            equal = key in old and json.dumps(old[key]) == json.dumps(value)
            if not equal or isinstance(value, dict):
                new[key] = (value, "$set")
        unset = [key for key in properties.get("$unset", []) if key in old]
        important = [
            key for key in new if key not in old or key not in ("$browser", "$os", "$os_name")
        ]
        forced = sent["event"] in ("$set", *MERGING)
        if (new or unset) and (forced or important or unset):
            person["properties"] = {**old, **{key: value for key, (value, _) in new.items()}}
            person["sources"] = {
                **person["sources"],
                **{
                    key: (arrival, operation, key not in not_lifted)
                    for key, (_, operation) in new.items()
                },
            }
            for key in set(unset):
                del person["properties"][key]
                del person["sources"][key]
            person["changed"] = arrival
        return always

    def comparable_persons(self) -> list[tuple[Any, ...]]:
        """The persons, as `comparable_persons` has those of a store."""
        persons = {id(person): person for person in self.owners.values()}.values()
        return sorted(
            (
                person["main"],
                sorted(person["ids"]),
                person["identified"],
                person["changed"],
                json.dumps(person["properties"], sort_keys=True),
                sorted(person["sources"].items()),
            )
            for person in persons
        )


def ingested_event(sent: Mapping[str, Any], position: int) -> IngestedEvent:
    """The event as `Store.add` accepts it."""
    properties = json.dumps(sent["properties"])
    raw = json.dumps(sent).encode()
    return IngestedEvent(
        position, None, sent["event"], sent["distinct_id"], None, TIME, properties, raw
    )


def request_with(*events: IngestedEvent) -> RequestRecord:
    """A request of these events."""
    return RequestRecord(TIME, "/batch/", "", {}, 200, "", api_key=KEY, events=events)


def comparable_persons(store: Store) -> list[tuple[Any, ...]]:
    """The persons of a store without their ids."""
    persons = []
    for person in store.persons(PersonFilter(), ALL)[1]:
        details = store.person(person.id)
        assert details is not None
        sources = {
            name: (source.event.arrival, source.operation, source.lifted)
            for name, source in details.sources.items()
        }
        [(changed,)] = store.select("SELECT changed FROM persons WHERE uuid = ?", [person.id])
        persons.append(
            (
                person.distinct_id,
                sorted(person.distinct_ids),
                person.is_identified,
                changed,
                json.dumps(person.properties, sort_keys=True),
                sorted(sources.items()),
            )
        )
    return sorted(persons)


def properties_and_warnings(store: Store) -> list[tuple[Any, list[str]]]:
    """For each event the person's properties that it keeps, and its warnings."""
    return [
        (stored.person_properties and json.loads(stored.person_properties), sorted(stored.warnings))
        for stored in store.events(EventFilter(), ALL)[1]
    ]


def identify(distinct_id: str, anonymous: Any = ..., **properties: Any) -> dict[str, Any]:
    """What an SDK sends when a user logs in."""
    merge = {} if anonymous is ... else {"$anon_distinct_id": anonymous}
    return event(
        event="$identify", distinct_id=distinct_id, properties={**merge, "$set": properties}
    )


def alias(
    distinct_id: str, other: Any, name: str = "$create_alias", **properties: Any
) -> dict[str, Any]:
    """What an SDK sends to say that two ids are one person's."""
    return event(event=name, distinct_id=distinct_id, properties={"alias": other, **properties})


def event_with(distinct_id: str = "u", **properties: Any) -> dict[str, Any]:
    """An event with these properties. `S_` at the beginning of a name stands for `$`, which a
    keyword can't have.
    """
    named = {name.replace("S_", "$", 1): value for name, value in properties.items()}
    return event(distinct_id=distinct_id, properties=named)


def set_event(distinct_id: str, **properties: Any) -> dict[str, Any]:
    """An event with `$set`."""
    return event(distinct_id=distinct_id, properties={"$set": properties})


def set_once_event(distinct_id: str, **properties: Any) -> dict[str, Any]:
    """An event with `$set_once`."""
    return event(distinct_id=distinct_id, properties={"$set_once": properties})


def event_uuid(number: int) -> str:
    """A uuid that ends with this digit."""
    return f"{UUID[:-1]}{number}"


async def persons_created_by(*events: dict[str, Any]) -> list[dict[str, Any]]:
    """The persons of a new sandbox after these events, each sent in a request of its own."""
    async with talking(SandboxOptions(now=lambda: MIDNIGHT)) as client:
        for sent in events:
            assert (await client.post("/batch/", batch(sent))).status == 200
        return await listed_persons(client)


async def listed_persons(client: SandboxClient, query: str = "") -> list[dict[str, Any]]:
    """The persons that the sandbox lists."""
    listing: dict[str, Any] = await client.get(f"/sandbox/persons?{query}")
    assert listing["count"] == len(listing["results"])
    results: list[dict[str, Any]] = listing["results"]
    return results


@given(st.lists(EVENTS, max_size=10))
def test_store_agrees_with_the_model(events: Sequence[dict[str, Any]]) -> None:
    """For any events, folded in at once or one by one, the persons, the sources of their
    properties, and each event's properties and warnings are those of the model.
    """
    model = PersonModel()
    expected = [
        (json.loads(json.dumps(properties)), sorted(warnings))
        for properties, warnings in (
            model.apply(arrival, sent) for arrival, sent in enumerate(events, 1)
        )
    ]
    at_once = Store(None)
    one_by_one = Store(None)
    for position, sent in enumerate(events):
        one_by_one.add(request_with(ingested_event(sent, position)))
        one_by_one.effects.finish()
    at_once.add(
        request_with(*[ingested_event(sent, position) for position, sent in enumerate(events)])
    )
    assert comparable_persons(at_once) == model.comparable_persons()
    assert comparable_persons(one_by_one) == model.comparable_persons()
    # As text, because 1 == True in Python.
    assert json.dumps(properties_and_warnings(at_once), sort_keys=True) == json.dumps(
        expected, sort_keys=True
    )
    assert properties_and_warnings(one_by_one) == properties_and_warnings(at_once)
    at_once.close()
    one_by_one.close()


async def test_default_event_creates_an_unidentified_person() -> None:
    """The person has the event's distinct id and no properties."""
    [person] = await persons_created_by(event(timestamp="2025-12-01T10:00:00Z"), event())
    assert len(person.pop("id")) == 36
    assert person == {
        "api_key": "phc_…0001",
        "distinct_id": "ann",
        "distinct_ids": ["ann"],
        "properties": {},
        "created_at": "2025-12-01T10:00:00.000000Z",
        "is_identified": False,
    }


async def test_anonymous_event_creates_and_changes_no_person() -> None:
    """`$process_person_profile: false` creates no person and sets nothing. The event is listed with
    the person of its distinct id, even if that is created later.
    """
    anonymous = event(properties={"$process_person_profile": False, "$set": {"a": 1}})
    async with talking() as client:
        await client.post("/batch/", batch(anonymous))
        assert await listed_persons(client) == []
        [stored] = (await client.get("/sandbox/events"))["results"]
        assert stored["person"] is None
        await client.post("/batch/", batch(event(), anonymous))
        [person] = await listed_persons(client)
        assert person["properties"] == {}
        listing = await client.get("/sandbox/events")
        assert [stored["person"] for stored in listing["results"]] == [person["id"]] * 3


@cases(
    ("events", "properties"),
    [
        ([identify("u", plan="pro", n=1)], {"plan": "pro", "n": 1}),
        ([set_event("u", a=1, b=1), set_event("u", b=2)], {"a": 1, "b": 2}),
        (
            [set_event("u", a=1, b=0, c=True), set_event("u", a=True, b=0.0, c=1)],
            {"a": True, "b": 0, "c": 1},
        ),
        ([set_once_event("u", a=1), set_once_event("u", a=2, b=2)], {"a": 1, "b": 2}),
        ([event(distinct_id="u", properties={"$set": {"a": 1}, "$set_once": {"a": 2}})], {"a": 1}),
        ([event(distinct_id="u", **{"$set": {"a": 1}, "$set_once": {"b": 2}})], {"a": 1, "b": 2}),
        (
            [event(distinct_id="u", properties={"$set": {"a": 1, "b": 1}}, **{"$set": {"a": 2}})],
            {"a": 2, "b": 1},
        ),
        (
            [
                set_event("u", a=1, b=2),
                event(distinct_id="u", properties={"$unset": ["a", 7, "none"]}),
            ],
            {"b": 2},
        ),
        (
            [set_event("u", a=1), event(distinct_id="u", properties={"$unset": {"a": 0, "b": 1}})],
            {},
        ),
        (
            [
                set_event("u", a=1),
                event(distinct_id="u", properties={"$set": {"a": 2, "b": 2}, "$unset": ["a", "b"]}),
            ],
            {"b": 2},
        ),
        ([set_event("u", a=1), event(distinct_id="u", **{"$unset": ["a"]})], {"a": 1}),
        ([set_event("u", a=None), set_once_event("u", a=1)], {"a": 1}),
        ([set_event("u", a=None), set_once_event("u", a=None)], {"a": None}),
        (
            [
                set_event("u", a=None),
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
            [set_event("u", a={"b": [1, None, True]}, e="é\ud83d\ude00")],
            {"a": {"b": [1, None, True]}, "e": "é😀"},
        ),
    ],
)
async def test_set_set_once_and_unset_change_properties(
    events: list[dict[str, Any]], properties: dict[str, Any]
) -> None:
    """`$set` overwrites a different value, `$set_once` a missing one or null, and `$unset` removes
    a property that existed before the event. The first two also count beside the event's
    properties. As in JavaScript, the members of a text are its characters, those of a list its
    items.
    """
    [person] = await persons_created_by(*events)
    # As text, because 1 == True in Python.
    assert json.dumps(person["properties"], sort_keys=True) == json.dumps(
        properties, sort_keys=True
    )


async def test_identify_merges_the_anonymous_person() -> None:
    """The user's person also gets the ids and properties of the person of `$anon_distinct_id`. Its
    own properties win, and its id stays the main one.
    """
    [person] = await persons_created_by(
        set_event("anon", a=1, b=1), set_event("user", b=2), identify("user", "anon", c=3)
    )
    assert (person["distinct_id"], person["distinct_ids"]) == ("user", ["anon", "user"])
    assert person["properties"] == {"a": 1, "b": 2, "c": 3}
    assert person["is_identified"]


async def test_identify_of_a_new_user_keeps_the_anonymous_person() -> None:
    """If only the anonymous person exists, it gets the user's id as its main one. If neither
    exists, one person with both ids is created.
    """
    async with talking() as client:
        await client.post("/batch/", batch(set_event("anon", a=1)))
        [before] = await listed_persons(client)
        await client.post("/batch/", batch(identify("user", "anon")))
        [after] = await listed_persons(client)
        assert (after["id"], after["distinct_id"], after["distinct_ids"]) == (
            before["id"],
            "user",
            ["anon", "user"],
        )
    [person] = await persons_created_by(identify("user", "anon"))
    assert (person["distinct_id"], person["distinct_ids"]) == ("user", ["user", "anon"])


@cases(
    ("name", "merged"),
    [("$identify", False), ("$create_alias", False), ("$merge_dangerously", True)],
)
async def test_only_merge_dangerously_merges_an_identified_person(name: str, merged: bool) -> None:
    """Two users of one browser stay two persons. A refused merge causes a warning, but identifies
    the event's person and sets its properties.
    """
    key = "$anon_distinct_id" if name == "$identify" else "alias"
    merge = event(event=name, distinct_id="two", properties={key: "one", "$set": {"b": 2}})
    async with talking() as client:
        for sent in (
            identify("one", "anon", a=1, b=1),
            set_event("two", c=3),
            {**merge, "uuid": UUID},
        ):
            await client.post("/batch/", batch(sent))
        *others, two = await listed_persons(client)
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
async def test_event_without_a_second_id_identifies_no_person(
    events: list[dict[str, Any]],
) -> None:
    """The second id is missing, empty, null, or the event's own."""
    [person] = await persons_created_by(*events)
    assert (person["distinct_ids"], person["is_identified"]) == (["u"], False)


@cases(
    ("other", "in_warning"),
    [
        *(("anonymous", None), ("Guest", None), ("UNDEFINED", None), ("email", None)),
        *(("0", None), ("null", None), ("NaN", None), ("None", None), ("[object Object]", None)),
        *(("'id'", None), ('"true"', None), (" ", None), ("a" * 401, None), ("a\0b", "a\0b")),
        (None, "null"),
    ],
)
async def test_illegal_ids_are_never_merged(other: Any, in_warning: str | None) -> None:
    """Neither as the event's id nor as the second one: the event has a warning, which names the id
    as sent unless `in_warning` says otherwise. Both ids can have a person of their own.
    """
    async with talking() as client:
        await client.post("/batch/", batch(identify("u", other, a=1)))
        # The others are rejected or changed as the `distinct_id` of an event.
        if isinstance(other, str) and other.strip() and len(other) < 200 and "\0" not in other:
            await client.post("/batch/", batch(identify(other, "u", b=1)))
        for person in await listed_persons(client):
            assert (len(person["distinct_ids"]), person["is_identified"]) == (1, False)
            assert len(person["properties"]) == 1
        for warning in (await client.get("/sandbox/warnings"))["results"]:
            assert warning["type"] == "cannot_merge_with_illegal_distinct_id"
            assert warning["details"]["illegalDistinctId"] == (
                other if in_warning is None else in_warning
            )


@cases("other", ["nan", "NONE", " guest ", "'nan'", "a" * 400, "\U0001f600" * 400])
async def test_ids_similar_to_illegal_ones_are_merged(other: str) -> None:
    """Words in another case, spaces around a word, and the greatest allowed length."""
    [person] = await persons_created_by(identify("u", other))
    assert person["distinct_ids"] == ["u", other]


@cases(
    ("sent", "warning"),
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
async def test_event_that_the_service_drops_creates_no_person(
    sent: dict[str, Any], warning: str
) -> None:
    """The event is kept, with the warning."""
    async with talking() as client:
        await client.post("/batch/", batch(sent))
        [stored] = (await client.get("/sandbox/events"))["results"]
        assert (stored["warnings"], stored["person_properties"]) == ([warning], None)
        assert await listed_persons(client) == []


async def test_distinct_ids_that_differ_in_case_are_two_persons() -> None:
    """The event that creates the one with upper case has a warning, if the one in lower case exists
    and the event isn't a merge.
    """
    async with talking() as client:
        sent = (event(distinct_id="ann@x"), identify("ANN@x", "phone"), event(distinct_id="Ann@x"))
        await client.post("/batch/", batch(*sent, event(distinct_id="Ann@x")))
        lower, _, upper = await listed_persons(client)
        [warning] = (await client.get("/sandbox/warnings"))["results"]
        assert (warning["type"], warning["person"]) == ("distinct_id_case_collision", upper["id"])
        assert warning["details"] == {
            "distinctId": "Ann@x",
            "existingDistinctId": "ann@x",
            "personId": lower["id"],
        }
    assert (
        len(await persons_created_by(event(distinct_id="Ann@x"), event(distinct_id="ann@x"))) == 2
    )


async def test_alias_becomes_the_main_id() -> None:
    """`$create_alias` merges the person of `alias` into the event's, whose properties win. `alias`
    is the main id afterwards, as the contract says.
    """
    [person] = await persons_created_by(
        set_event("old", a=1, b=1), set_event("new", b=2), alias("old", "new")
    )
    assert (person["distinct_id"], person["properties"], person["is_identified"]) == (
        "new",
        {"a": 1, "b": 1},
        True,
    )


@cases(
    ("sent", "properties"),
    [
        (
            event_with(S_browser="X", utm_source="ad", other=1),
            {
                "$browser": "X",
                "$initial_browser": "X",
                "utm_source": "ad",
                "$initial_utm_source": "ad",
            },
        ),
        (event_with(S_browser=None), {"$browser": None}),
        (
            event_with(
                S_browser="X", S_set={"$browser": "own"}, S_set_once={"$initial_browser": 1}
            ),
            {"$browser": "own", "$initial_browser": 1},
        ),
        (event_with(S_os_name="Mac"), {"$os": "Mac", "$initial_os": "Mac"}),
        (event_with(S_os="Linux", S_os_name="Mac"), {"$os": "Linux", "$initial_os": "Linux"}),
        (event_with(S_os=None, S_os_name="Mac"), {"$os": None, "$initial_os": "Mac"}),
        (event_with(S_is_server=True, S_os="Linux", S_os_version="6"), {}),
        (
            event_with(S_is_server=True, S_os_name="Mac"),
            {"$os_name": "Mac", "$initial_os_name": "Mac"},
        ),
        (event_with(S_set="no", S_browser="X"), {"$browser": "X", "$initial_browser": "X"}),
        (
            {**event_with(fbclid="click"), "timestamp": "2025-12-01T10:00:00Z"},
            {
                "fbclid": "click",
                "$initial_fbclid": "click",
                "$fbc": "fb.1.1764547200000.click",
            },
        ),
        (event_with(fbclid="a b"), {"fbclid": "a b", "$initial_fbclid": "a b"}),
        (
            {**event_with(), "event": "survey shown", "timestamp": "2025-12-01T10:00:00Z"},
            {"$survey_last_seen_date": "2025-12-01T10:00:00.000000Z"},
        ),
        ({**event_with(S_browser="X"), "event": "$snapshot"}, {}),
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
async def test_device_page_and_campaign_are_lifted(
    sent: dict[str, Any], properties: dict[str, Any]
) -> None:
    """These properties of an event become properties of its person, and their first values also
    `$initial_…`. What the event sets itself wins, and a null is not a first value.
    """
    # The survey event needs the id; the others ignore it.
    with_survey = {"$survey_id": "s", **sent["properties"]}
    [person] = await persons_created_by({**sent, "properties": with_survey})
    assert person["properties"] == properties


@cases(
    ("later", "properties"),
    [
        (event_with(S_browser="Y"), {"$browser": "X", "$initial_browser": "X", "a": 1}),
        (event_with(S_browser="Y", a=2), {"$browser": "X", "$initial_browser": "X", "a": 1}),
        (
            event_with(S_browser="Y", S_set={"a": 2}),
            {"$browser": "Y", "$initial_browser": "X", "a": 2},
        ),
        (
            event_with(S_browser="Y", S_set={"a": 1}),
            {"$browser": "X", "$initial_browser": "X", "a": 1},
        ),
        (event_with(S_set={"$browser": "Y"}), {"$browser": "X", "$initial_browser": "X", "a": 1}),
        (
            event_with(S_browser="Y", S_unset=["a"]),
            {"$browser": "Y", "$initial_browser": "X"},
        ),
        (
            event_with(S_browser="Y", S_app_version="2"),
            {
                "$browser": "Y",
                "$initial_browser": "X",
                "a": 1,
                "$app_version": "2",
                "$initial_app_version": "2",
            },
        ),
        (
            {**event_with(S_browser="Y"), "event": "$set"},
            {"$browser": "Y", "$initial_browser": "X", "a": 1},
        ),
        (
            {**event_with(S_browser="Y"), "event": "$identify"},
            {"$browser": "Y", "$initial_browser": "X", "a": 1},
        ),
    ],
)
async def test_unimportant_change_alone_does_not_update_a_person(
    later: dict[str, Any], properties: dict[str, Any]
) -> None:
    """A new browser or page is written only if something else changes too, or the event is about
    the person. The event itself always keeps the new value.
    """
    async with talking() as client:
        await client.post("/batch/", batch(event_with(S_browser="X", S_set={"a": 1})))
        await client.post("/batch/", batch(later))
        [person] = await listed_persons(client)
        assert person["properties"] == properties
        _, second = (await client.get("/sandbox/events"))["results"]
        assert second["person_properties"] == {**properties, "$browser": "Y"}


async def test_event_keeps_the_properties_that_its_person_had() -> None:
    """Later events don't change them, nor does a merge that deletes the person. An anonymous event
    has none. An error (anonymous or not) and an event of a language model have them, but set none.
    """
    events = [
        set_event("anon", a=1),
        event(
            event="$exception",
            distinct_id="anon",
            properties={"$set": {"a": 9}, "$process_person_profile": False},
        ),
        {**set_event("anon", a=9), "event": "$ai_generation"},
        {**set_event("unknown", a=9), "event": "$exception"},
        set_event("user", b=1),
        event(distinct_id="anon", properties={"$process_person_profile": False, "$set": {"a": 9}}),
        identify("user", "anon", c=1),
        set_event("user", a=2),
        event(distinct_id="anon"),
    ]
    async with talking() as client:
        for sent in events:
            await client.post("/batch/", batch(sent))
        listing = await client.get("/sandbox/events")
        assert [stored["person_properties"] for stored in listing["results"]] == [
            *({"a": 1}, {"a": 1}, {"a": 1}, None, {"b": 1}, None),
            *({"a": 1, "b": 1, "c": 1}, {"a": 2, "b": 1, "c": 1}, {"a": 2, "b": 1, "c": 1}),
        ]
        assert (await client.sandbox.summary()).persons == 1


async def test_historical_events_change_persons_like_live_ones() -> None:
    """With `historical_migration`, too, old events overwrite newer properties and merge persons."""
    old = [
        {**event_with(S_browser="Old", S_set={"plan": "old"}), "timestamp": "2020-01-01T00:00:00Z"},
        {**identify("u", "anon", b=1), "timestamp": "2020-01-02T00:00:00Z"},
    ]
    persons = []
    for historical in (False, True):
        async with talking(SandboxOptions(now=lambda: MIDNIGHT)) as client:
            await client.post("/batch/", batch(event_with(S_browser="New", S_set={"plan": "new"})))
            await client.post("/batch/", batch(*old, historical_migration=historical))
            persons.append(await listed_persons(client))
    assert persons[0] == persons[1]
    [person] = persons[0]
    assert person["properties"] == {
        "plan": "old",
        "b": 1,
        "$browser": "Old",
        "$initial_browser": "New",
    }


async def test_details_show_sources_merges_groups_and_warnings() -> None:
    """Those of persons that were merged in are included."""
    events = [
        event_with(
            "anon", S_browser="X", S_set_once={"first": 1, "$browser": 0}, S_groups={"company": "x"}
        ),
        identify("user", "anon", plan="pro"),
        set_event("other", b=2),
        alias("user", "other"),
        identify("user", "null"),
        event_with("other", S_groups={"company": "x", "team": 7}),
    ]
    async with talking() as client:
        for number, sent in enumerate(events):
            await client.post("/batch/", batch({**sent, "uuid": event_uuid(number)}))
        [person] = await listed_persons(client)
        details = await client.get(f"/sandbox/persons/{person['id']}")
        assert details["person"] == person
        assert details["created_by"]["uuid"] == event_uuid(0)
        assert {
            name: (source["event"]["uuid"], source["operation"], source["lifted"])
            for name, source in details["sources"].items()
        } == {
            "$browser": (event_uuid(0), "$set", True),
            "$initial_browser": (event_uuid(0), "$set_once", True),
            "first": (event_uuid(0), "$set_once", False),
            "plan": (event_uuid(1), "$set", False),
            "b": (event_uuid(2), "$set", False),
        }
        assert [
            (merge["event"]["uuid"], merge["outcome"], merge["source"], merge["target"])
            for merge in details["merges"]
        ] == [
            (event_uuid(1), "attached", "anon", "user"),
            (event_uuid(3), "merged", "other", "user"),
        ]
        assert [merge["merged_person"] is None for merge in details["merges"]] == [True, False]
        assert [
            (group["group_type"], group["group_key"], group["event"]["uuid"])
            for group in details["groups"]
        ] == [("company", "x", event_uuid(5)), ("team", "7", event_uuid(5))]
        [warning] = details["warnings"]
        assert (warning["event"]["uuid"], KEY in str(details)) == (event_uuid(4), False)
        assert (await client.ask("GET", "/sandbox/persons/unknown")).status == 404


async def test_warnings_are_filtered_and_paged() -> None:
    """The filters are the type, the person, and the event's distinct id, uuid and project."""
    async with talking() as client:
        invalid_profile = {**event_with("u1", S_process_person_profile="no"), "uuid": UUID}
        await client.post(
            "/batch/", batch(identify("u0", "null"), invalid_profile, identify("u1", "0"))
        )
        [_, person] = await listed_persons(client)
        for query, count in (
            ("", 3),
            ("type=invalid_process_person_profile", 1),
            (f"person={person['id']}", 2),
            ("distinct_id=u0", 1),
            (f"uuid={UUID}", 1),
            (f"api_key={KEY}", 3),
            (f"api_key={OTHER_KEY}", 0),
        ):
            assert (await client.get(f"/sandbox/warnings?{query}"))["count"] == count, query
        page = await client.get("/sandbox/warnings?order=newest&limit=1&offset=1")
        [warning] = page["results"]
        assert (page["count"], warning["details"]) == (
            3,
            {"event": "seen", "$process_person_profile": "no"},
        )


def test_details_cost_the_same_however_many_events_there_are() -> None:
    """SQLite needs as many steps for one person's details among 2,000 events as among 20."""
    steps_by_number = []
    for number in (20, 2000):
        store = Store(None)
        sent = {"event": "seen", "distinct_id": "a", "properties": {"$set": {"n": 1}}}
        others = [
            ingested_event({**sent, "distinct_id": f"u{n}", "properties": {"$browser": "X"}}, n)
            for n in range(number)
        ]
        store.add(request_with(*others, ingested_event(sent, number)))
        [person] = store.persons(PersonFilter(distinct_id="a"), ALL)[1]
        steps = [0]

        # 0 lets the query continue.
        def count_step(steps: list[int] = steps) -> int:
            steps[0] += 1
            return 0

        store.connection.set_progress_handler(count_step, 1)
        assert store.person(person.id) is not None
        steps_by_number.append(steps[0])
        store.close()
    assert steps_by_number[1] < steps_by_number[0] * 1.2


async def test_merge_keeps_the_earlier_created_at() -> None:
    """The events' times decide, not the order of arrival."""
    [person] = await persons_created_by(
        event(distinct_id="a", timestamp="2025-03-01T00:00:00Z"),
        event(distinct_id="b", timestamp="2025-02-01T00:00:00Z"),
        alias("b", "a"),
    )
    assert person["created_at"].startswith("2025-02-01")


async def test_merge_moves_events_to_the_surviving_person() -> None:
    """The listing by person has the events of all its ids, and shows it with each of them."""
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
        survivor, other = await listed_persons(client)
        listing = await client.get(f"/sandbox/events?person={survivor['id']}")
        assert [stored["distinct_id"] for stored in listing["results"]] == ["a", "b", "a"]
        assert {stored["person"] for stored in listing["results"]} == {survivor["id"]}
        assert (await client.get(f"/sandbox/events?person={other['id']}"))["count"] == 1
        assert (await client.get("/sandbox/events?person=unknown"))["count"] == 0


async def test_duplicates_and_conflicts_change_nothing() -> None:
    """An event has no effect if its uuid has arrived before, with the same bytes or others."""
    first = {**set_event("u", a=1), "uuid": UUID, "timestamp": "2025-12-01T00:00:00Z"}
    [person] = await persons_created_by(
        first, set_event("u", a=2), first, {**set_event("u", a=3), "uuid": UUID}
    )
    assert person["properties"] == {"a": 2}


async def test_last_arrival_wins_whatever_its_time() -> None:
    """A historical event from years ago overwrites a property that a live event has set."""
    async with talking() as client:
        await client.post("/batch/", batch(set_event("u", a=1)))
        await client.post(
            "/batch/",
            batch(
                {**set_event("u", a=0), "timestamp": "2020-01-01T00:00:00Z"},
                historical_migration=True,
            ),
        )
        assert [person["properties"] for person in await listed_persons(client)] == [{"a": 0}]


async def test_number_too_large_for_a_double_becomes_null() -> None:
    """A smaller integer stays exact, and an event with an integer of 5,000 digits is accepted."""
    async with talking() as client:
        long_number = f'{{"x":{"1" * 5000},"$set":{{"c":1}}}}'
        for distinct_id, properties in (
            ("a", '{"$set":{"a":1e999,"b":[1e999,12345678901234567890]}}'),
            ("b", long_number),
        ):
            body = (
                f'{{"api_key":"{KEY}","event":"e","distinct_id":"{distinct_id}","properties":'
                f"{properties}}}"
            )
            assert (await client.post("/capture/", body.encode())).status == 200
        assert [person["properties"] for person in await listed_persons(client)] == [
            {"a": None, "b": [None, 12345678901234567890]},
            {"c": 1},
        ]


async def test_deeply_nested_properties_are_shown() -> None:
    """A nesting that is accepted can also be encoded in an answer."""
    async with talking() as client:
        body = (
            f'{{"api_key":"{KEY}","event":"e","distinct_id":"u","properties":{{"$set":{{"a":'
            f"{'[' * 790}{']' * 790}}}}}}}"
        )
        assert (await client.post("/capture/", body.encode())).status == 200
        answer = await client.ask("GET", "/sandbox/persons")
        assert answer.status == 200
        assert "[" * 790 in answer.text


async def test_same_distinct_id_in_two_projects_is_two_persons() -> None:
    """Their ids differ. The listing doesn't show the project key in full."""
    async with talking() as client:
        await client.post("/batch/", batch(set_event("u", a=1)))
        await client.post("/batch/", {**batch(set_event("u", a=2)), "api_key": OTHER_KEY})
        one, other = await listed_persons(client)
        assert one["id"] != other["id"]
        assert [
            person["properties"] for person in await listed_persons(client, f"api_key={OTHER_KEY}")
        ] == [{"a": 2}]
        assert KEY not in str(one)


async def test_persons_are_filtered_and_paged() -> None:
    """The filters are the id and any of the distinct ids. Pages can start with the newest."""
    async with talking() as client:
        await client.post(
            "/batch/", batch(*[event(distinct_id=f"u{n}") for n in range(5)], alias("u0", "u1"))
        )
        ids = [person["id"] for person in await listed_persons(client)]
        for name in ("u0", "u1"):
            assert [
                person["id"] for person in await listed_persons(client, f"distinct_id={name}")
            ] == ids[:1]
        assert [person["id"] for person in await listed_persons(client, f"person={ids[2]}")] == [
            ids[2]
        ]
        page = await client.get("/sandbox/persons?limit=2&offset=1&order=newest")
        assert (page["count"], [person["id"] for person in page["results"]]) == (
            4,
            [ids[2], ids[1]],
        )
        assert [person.id for person in await client.sandbox.persons()] == ids
