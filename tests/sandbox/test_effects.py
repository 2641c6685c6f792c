"""The fold over the arrivals: when it is done, what it keeps over a restart, and that it is the same however it is done."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from forwarder.sandbox import SandboxOptions
from forwarder.sandbox.arrivals import Arrivals
from forwarder.sandbox.effects import STEP, STEP_BYTES
from forwarder.sandbox.reading import Event
from forwarder.sandbox.records import Arrival
from forwarder.sandbox.selection import Page, PersonFilter
from forwarder.sandbox.store import Store
from tests.sandbox.client import KEY, batch, event, talking

ALL = Page(limit=None)
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
        Step, st.sampled_from(["seen", "anonymous", "$identify", "$create_alias", "$merge_dangerously"]), IDS, IDS, st.integers(0, 2)
    ),
    max_size=12,
)


class Model:
    """Persons as the documents describe them, without a database: each a dictionary, named by their distinct ids."""

    def __init__(self) -> None:
        self.owners: dict[str, dict[str, Any]] = {}

    def person(self, distinct_id: str) -> dict[str, Any]:
        """The owner of an id; made if there is none."""
        if distinct_id not in self.owners:
            self.owners[distinct_id] = {"main": distinct_id, "ids": {distinct_id}, "properties": {}, "identified": False}
        return self.owners[distinct_id]

    def merge(self, merged: str, surviving: str, *, becomes_main: bool, even_identified: bool) -> None:
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

    def apply(self, step: Step) -> None:
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

    def shown(self) -> list[tuple[Any, ...]]:
        """The persons, so that they can be compared."""
        persons = {id(person): person for person in self.owners.values()}.values()
        return sorted((one["main"], sorted(one["ids"]), one["properties"], one["identified"]) for one in persons)


def event_of(step: Step, position: int) -> Event:
    """The event as the store takes it."""
    properties: dict[str, Any] = {"$set": {step.distinct_id: step.value}}
    if step.kind == "anonymous":
        properties["$process_person_profile"] = False
    else:
        properties["$anon_distinct_id" if step.kind == "$identify" else "alias"] = step.other
    raw = json.dumps({"event": step.kind, "distinct_id": step.distinct_id, "properties": properties})
    return Event(position, None, step.kind, step.distinct_id, None, TIME, json.dumps(properties), raw.encode())


def arrival(*events: Event) -> Arrival:
    """A request of these events."""
    return Arrival(TIME, "/batch/", "", {}, 200, "", api_key=KEY, events=events)


def shown(store: Store) -> list[tuple[Any, ...]]:
    """The persons of a store, so that they can be compared."""
    found = store.persons(PersonFilter(), ALL)[1]
    return sorted((one.distinct_id, sorted(one.distinct_ids), one.properties, one.is_identified) for one in found)


@given(STEPS)
def test_persons_follow_the_model(steps: Sequence[Step]) -> None:
    """Whatever comes in whatever order: each distinct id has one owner, and the persons are those of a few dictionaries."""
    model, at_once, one_by_one = Model(), Store(None), Store(None)
    for position, step in enumerate(steps):
        model.apply(step)
        one_by_one.add(arrival(event_of(step, position)))
        one_by_one.effects.finish()
    at_once.add(arrival(*[event_of(step, position) for position, step in enumerate(steps)]))
    assert shown(at_once) == shown(one_by_one) == model.shown()
    assert at_once.persons(PersonFilter(), ALL) == one_by_one.persons(PersonFilter(), ALL)
    owned = [distinct_id for _, ids, _, _ in shown(at_once) for distinct_id in ids]
    assert len(owned) == len(set(owned))
    at_once.close()
    one_by_one.close()


async def test_a_long_backlog_lets_others_pass() -> None:
    """What waits is folded in step by step, and other work gets its turn after each."""
    arrivals = Arrivals(None)
    many = [event_of(Step("seen", f"u{n}", "", 0), n) for n in range(STEP * 3)]
    await arrivals.run(lambda store: store.add(arrival(*many)))
    asking = asyncio.ensure_future(arrivals.ask(lambda store: store.summary()))
    seen = set[int]()
    while not asking.done():
        seen.add(await arrivals.run(lambda store: int(store.select("SELECT arrival FROM progress", [])[0][0])))
    assert seen >= {STEP, STEP * 2}
    assert (await asking).persons == STEP * 3
    await arrivals.close()


def test_a_step_of_large_events_is_short() -> None:
    """A step ends at so many bytes, too, so that large events neither fill the memory nor hold others up; the next goes on after it."""
    store, text = Store(None), "x" * (STEP_BYTES // 2)
    large = [event_of(Step("seen", f"u{n}", text, n), n) for n in range(5)]
    store.add(arrival(*large))
    persons = []
    while store.effects.advance():
        persons.append(store.effects.persons.count())
    assert persons == [2, 4]
    assert store.effects.persons.count() == 5
    store.close()


async def test_a_file_goes_on_where_it_was(tmp_path: Path) -> None:
    """After a restart nothing is folded in twice, and what nobody had asked for yet is folded in then."""
    options = SandboxOptions(database=tmp_path / "x.db")
    async with talking(options) as client:
        await client.post("/batch/", batch(event(properties={"$set": {"a": 1}})))
        before = await client.sandbox.persons()
        await client.post("/batch/", batch(event(properties={"$set": {"b": 2}})))
    async with talking(options) as client:
        [person] = await client.sandbox.persons()
        assert (person.id, person.properties) == (before[0].id, {"a": 1, "b": 2})
        await client.sandbox.clear()
        assert (await client.sandbox.persons(), await client.sandbox.groups(), await client.sandbox.events()) == ([], [], [])
        await client.post("/batch/", batch(event(properties={"$set": {"c": 3}})))
        assert [one.properties for one in await client.sandbox.persons()] == [{"c": 3}]
