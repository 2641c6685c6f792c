"""The index of persons against a model of the service that remembers every event, and where its
properties go.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import Raw

from forwarder.core.errors import ConfigurationError
from forwarder.sources.imports import persons
from forwarder.sources.imports.checkpoint import ImportJob, SourceContent
from forwarder.sources.imports.columns import EventColumns, FinishedEvent
from forwarder.sources.imports.conversion import ConvertedRecords, FinishPolicy
from forwarder.sources.imports.persons import (
    HEAD,
    INDEX,
    PersonHistory,
    PersonIndex,
    PersonIndexBuilder,
    PersonPlacement,
    PersonSamples,
    find_index,
)

JOB: Final = ImportJob("0190a0a0-1111-5222-8333-444455556666", "native", "a.jsonl")
CONTENTS: Final = [SourceContent("a.jsonl", 7, "abc")]
FINISH: Final = FinishPolicy("newest", geoip=False, job_id=JOB.id)
MAX_EVENT: Final = 10_000
Event = dict[str, Any]


def finished(events: Sequence[Event]) -> EventColumns:
    """Events of one file, one a record."""
    return EventColumns.of(
        [
            FinishedEvent(
                event["time"],
                event["distinct_id"],
                event["event"],
                f"uuid-{number}",
                json.dumps(
                    {
                        "event": event["event"],
                        "distinct_id": event["distinct_id"],
                        "properties": event["properties"],
                    },
                    separators=(",", ":"),
                ).encode(),
                0,
                number + 1,
                number,
            )
            for number, event in enumerate(events)
        ]
    )


def event(time: int, who: str, properties: Event | None = None, name: str = "seen") -> Event:
    """An event."""
    return {"time": time, "distinct_id": who, "event": name, "properties": properties or {}}


def build(
    folder: Path, events: Sequence[Event], *, is_sorted: bool = False, cached: int = 3
) -> PersonIndex:
    """An index, made in parts, with so many ids in memory."""
    columns = finished(events)
    with (
        patch.object(persons, "CACHED", cached),
        PersonIndexBuilder(folder, is_sorted=is_sorted, max_event=MAX_EVENT) as builder,
    ):
        for first in range(0, len(events), 4):
            builder.add(columns[first : first + 4])
        return builder.finish(JOB, CONTENTS)


def placed(folder: Path, events: Sequence[Event], index: PersonIndex) -> list[list[Event]]:
    """The events of each record as they are sent, in parts of five."""
    columns = finished(events)
    placement = PersonPlacement(folder, index, FINISH, MAX_EVENT, strip=True)
    sent: list[list[Event]] = [[] for _ in events]
    for first in range(0, len(events), 5):
        part = columns[first : first + 5]
        made = ConvertedRecords([1] * len(part), events=part, first=first)
        placement.place(made)
        for finished_event in made.events:
            sent[finished_event.number].append(json.loads(finished_event.data))
        assert [len(sent[first + at]) for at in range(len(part))] == made.counts
    placement.close()
    return sent


class ImportedPersons:
    """The service: persons with all events that were ingested for them."""

    def __init__(self) -> None:
        self.owners: dict[str, int] = {}
        self.events: dict[int, list[tuple[int, int, Event]]] = {}
        self.identified: set[int] = set()

    def ingest(self, turn: int, one: Event) -> None:
        """Merge, and then remember what it says."""
        who = one["distinct_id"]
        other = {
            "$identify": one["properties"].get("$anon_distinct_id"),
            "$merge_dangerously": one["properties"].get("alias"),
        }.get(one["event"])
        if other is not None and other != who:
            self.merge(other, who, always=one["event"] == "$merge_dangerously")
        person = self.owners.setdefault(who, turn)
        self.events.setdefault(person, []).append((one["time"], turn, one))

    def merge(self, source: str, target: str, *, always: bool) -> None:
        """Into the person of `target`."""
        old, new = self.owners.get(source), self.owners.get(target)
        if old is None or new is None:
            person = old if old is not None else new
            if person is None:
                person = -1 - len(self.owners)
            self.owners[source] = self.owners[target] = person
        elif old != new and (always or old not in self.identified):
            for who, person in self.owners.items():
                if person == old:
                    self.owners[who] = new
            self.events.setdefault(new, []).extend(self.events.pop(old, []))
        self.identified.add(self.owners[target])

    def ends(self) -> dict[str, Event]:
        """By distinct id, what its person ends with if all that it was given came in order."""
        by_id = {}
        for who, person in self.owners.items():
            properties: Event = {}
            for _, _, one in sorted(self.events.get(person, []), key=lambda entry: entry[:2]):
                said = one["properties"]
                for name in said.get("$unset", []):
                    properties.pop(name, None)
                for name, value in said.get("$set_once", {}).items():
                    properties.setdefault(name, value)
                for name, value in said.get("$set", {}).items():
                    if name.startswith("$initial_"):
                        properties.setdefault(name, value)
                    else:
                        properties[name] = value
            by_id[who] = properties
        return by_id


IDS: Final = ("a", "b", "c", "d")
VALUES: Final = st.integers(0, 3)


@st.composite
def histories(draw: st.DrawFn) -> list[Event]:
    """Events that set, unset and merge, in the order of time."""
    events: list[Event] = []
    for time in range(draw(st.integers(1, 14))):
        who, other = draw(st.sampled_from(IDS)), draw(st.sampled_from(IDS))
        properties: Event = {}
        name = draw(st.sampled_from(["seen", "seen", "$identify", "$merge_dangerously"]))
        if name == "$identify":
            properties["$anon_distinct_id"] = other
        elif name != "seen":
            properties["alias"] = other
        if draw(st.booleans()):
            names = st.sampled_from(["x", "y", "$initial_z"])
            properties["$set"] = draw(st.dictionaries(names, VALUES, max_size=2))
        # a name is set in one way: `$set` and `$set_once` of one are tested by themselves
        once = draw(st.dictionaries(st.sampled_from(["u", "v"]), VALUES, max_size=1))
        if once:
            properties["$set_once"] = once
        if not properties.get("$set") and not once and draw(st.booleans()):
            properties["$unset"] = [draw(st.sampled_from(["x", "y"]))]
        events.append(event(time * 10, who, properties, name))
    return events


def check(events: Sequence[Event], *, is_sorted: bool) -> None:
    """Each id's first event, in the order of sending, has what its person ends with; no other has
    anything.
    """
    model = ImportedPersons()
    order = sorted(range(len(events)), key=lambda at: (events[at]["time"], at))
    sending = order if is_sorted else range(len(events))
    for turn in sending:
        model.ingest(turn, events[turn])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        index = build(folder, events, is_sorted=is_sorted)
        again = build(folder, events, is_sorted=is_sorted, cached=1000)
        assert again.digest == index.digest
        sent = placed(folder, events, index)
    seen = set()
    for turn in sending:
        (made,) = sent[turn]
        who = made["distinct_id"]
        expected = {} if who in seen else model.ends()[who]
        seen.add(who)
        assert made["properties"].get("$set_once", {}) == expected
        assert not {"$set", "$unset"} & made["properties"].keys()


@settings(max_examples=50)
@given(histories())
def test_persons_end_as_the_service_would_join_them(events: list[Event]) -> None:
    """In the order of time, whatever merges and however little memory there is."""
    check(events, is_sorted=False)


@pytest.mark.slow
@settings(max_examples=50)
@given(histories(), st.randoms(use_true_random=False))
def test_sorted_sources_give_the_same_as_those_in_order(events: list[Event], random: Any) -> None:
    """With `--sort` persons are joined and values placed in the order of time. (An `$unset` that
    comes late counts only for what came before it.)
    """
    for person_event in events:
        person_event["properties"].pop("$unset", None)
    random.shuffle(events)
    check(events, is_sorted=True)


def test_a_set_wins_over_a_set_once() -> None:
    """As at the service: the oldest `$set_once` counts where nothing else was set."""
    said: list[Event] = [
        {"$set_once": {"plan": "first", "other": 1}},
        {"$set": {"plan": "newest"}},
        {"$set_once": {"plan": "last", "other": 2}},
    ]
    check([event(at, "a", properties) for at, properties in enumerate(said)], is_sorted=False)


def test_what_changes_no_person_says_and_carries_nothing(tmp_path: Path) -> None:
    """Errors, heatmaps, groups, language models and anonymous events; the first other one does."""
    said = {"$set": {"plan": "wrong"}}
    names = ("$exception", "$$heatmap", "$groupidentify", "$ai_generation")
    events = [event(at, "a", said, name) for at, name in enumerate(names)]
    events.append(event(8, "a", {**said, "$process_person_profile": False}))
    events += [event(9, "a"), event(10, "a", {"$set": {"plan": "pro"}})]
    sent = placed(tmp_path, events, build(tmp_path, events))
    once = [sent_event["properties"].get("$set_once") for (sent_event,) in sent]
    assert once == [None] * 5 + [{"plan": "pro"}, None]


def test_an_id_that_the_service_never_merges_joins_no_persons(tmp_path: Path) -> None:
    """It has more than 400 characters."""
    long = "x" * 401
    events = [
        event(1, long, {"$set": {"email": "x@example.com"}}),
        event(2, "a", {"$anon_distinct_id": long}, "$identify"),
        event(3, "a", {"$set": {"plan": "pro"}}),
    ]
    sent = placed(tmp_path, events, build(tmp_path, events))
    set_once = [
        sent_event["properties"].get("$set_once", {}) for parts in sent for sent_event in parts
    ]
    assert {"plan": "pro"} in set_once
    assert not any({"plan", "email"} <= said.keys() for said in set_once)


def test_what_a_too_large_event_takes_along_carries_nothing(tmp_path: Path) -> None:
    """A record of most formats is refused whole: what it brings isn't there to carry properties."""
    brought = event(1, "a", {"$anon_distinct_id": "d"}, "$identify")
    large = event(1, "a", {"text": "x" * MAX_EVENT})
    later = event(2, "a", {"$set": {"plan": "pro"}})
    columns = finished([brought, large, later])
    columns = EventColumns.of(
        [
            row._replace(number=max(0, row.number - 1), part=int(at == 1))
            for at, row in enumerate(columns)
        ]
    )
    with PersonIndexBuilder(
        tmp_path, is_sorted=False, max_event=MAX_EVENT, refused_alone=False
    ) as builder:
        builder.add(columns)
        index = builder.finish(JOB, CONTENTS)
    placement = PersonPlacement(tmp_path, index, FINISH, MAX_EVENT, strip=True)
    made = ConvertedRecords([0, 1], events=columns.only([2]), first=0)
    placement.place(made)
    placement.close()
    assert [
        json.loads(finished_event.data)["properties"]["$set_once"] for finished_event in made.events
    ] == [{"plan": "pro"}]


@pytest.mark.parametrize("unset", [None, 5, True, "plan", {"plan": 1}, ["plan", 5]])
def test_any_unset_can_be_shown(unset: object) -> None:
    """What isn't a list or an object of names removes nothing."""
    samples = PersonSamples(is_sorted=False)
    samples.add("a", 1, {"$set": {"plan": "pro"}, "$unset": unset})


def test_what_fits_in_no_event_has_events_of_its_own(tmp_path: Path) -> None:
    """Beside the first, of its record; more than one event can hold is divided."""
    events = [event(1, "a", {"wide": "x" * 9_000})]
    events += [event(2 + at, "a", {"$set": {f"p{at}": "y" * 4_000}}) for at in range(4)]
    sent = placed(tmp_path, events, build(tmp_path, events))
    first, *own = sent[0]
    assert "$set_once" not in first["properties"]
    assert {sent_event["event"] for sent_event in own} == {"$set"}
    assert len({sent_event["uuid"] for sent_event in own}) == len(own) > 1
    values: Event = {}
    for sent_event in own:
        values |= sent_event["properties"]["$set_once"]
        assert sent_event["properties"]["$import_job_id"] == JOB.id
    assert values == {f"p{at}": "y" * 4_000 for at in range(4)}


def test_what_stands_beside_the_properties_counts_too() -> None:
    """The event's top level wins over its properties; escaped names are read."""
    data = b'{"event":"e","$set":{"a":2},"properties":{"\\u0024set":{"a":1,"b":1}}}'
    change = persons.change_of(data)
    assert change is not None
    assert json.loads(change.set) == {"a": 2, "b": 1}
    assert persons.change_of(b'{"event":"e","properties":{"$set":"no"}}') is None


def test_an_index_is_of_one_job_and_source(tmp_path: Path) -> None:
    """Of another, or damaged, it isn't used; nothing of its making is left."""
    index = build(tmp_path, [event(1, "a", {"$set": {"x": 1}})])
    assert find_index(tmp_path, JOB, CONTENTS) == index
    assert find_index(tmp_path, JOB, CONTENTS, index.digest) == index
    assert find_index(tmp_path, JOB, CONTENTS, "another") is None
    assert find_index(tmp_path, JOB, []) is None
    assert (index.persons, index.size) == (1, (tmp_path / INDEX).stat().st_size)
    assert {path.name for path in tmp_path.iterdir()} == {INDEX, HEAD}
    (tmp_path / INDEX).write_bytes(b"")
    assert find_index(tmp_path, JOB, CONTENTS) is None


def test_a_damaged_index_is_made_again_by_the_next_run(tmp_path: Path) -> None:
    """It is said, and not found any more."""
    events = [event(at, f"p{at}", {"$set": {"x": at}}) for at in range(50)]
    index = build(tmp_path, events)
    data = bytearray((tmp_path / INDEX).read_bytes())
    data[len(data) // 2] ^= 255
    (tmp_path / INDEX).write_bytes(data)
    with pytest.raises(ConfigurationError, match="aren't those that were written") as error:
        placed(tmp_path, events, index)
    assert "Run the same command again" in error.value.hint
    assert find_index(tmp_path, JOB, CONTENTS) is None


def test_samples_are_those_in_which_the_choices_differ_most() -> None:
    """Three of them, each value by choice."""
    samples = PersonSamples(is_sorted=False)
    samples.add("same", 1, {"$set": {"x": 1}})
    for number in range(4):
        who = f"p{number}"
        samples.add(who, 1, {"$set": Raw(b'{"plan":"free"}'), "$set_once": {"$initial_a": 1}})
        samples.add(who, 2, {"$set": {"plan": "pro", "gone": 1}, "$unset": []})
        samples.add(who, 3, {"$unset": ["gone"]})
    chosen = samples.chosen()
    assert [sample.distinct_id for sample in chosen] == ["p0", "p1", "p2"]
    values = {
        person_property.name: [None if part is None else json.loads(bytes(part)) for part in parts]
        for person_property in chosen[0].properties
        for parts in [(person_property.history, person_property.newest, person_property.oldest)]
    }
    assert values == {
        "plan": ["pro", "pro", "free"],
        "gone": [None, None, 1],
        "$initial_a": [1, 1, 1],
    }


class PersonService:
    """Persons with their properties, as events arrive."""

    def __init__(self) -> None:
        self.owners: dict[str, int] = {}
        self.properties: dict[int, Event] = {}
        self.identified: set[int] = set()

    def ingest(self, one: Event) -> Event:
        """The person's properties afterwards."""
        who = one["distinct_id"]
        said = one["properties"]
        other = said.get("$anon_distinct_id") if one["event"] == "$identify" else said.get("alias")
        if other not in (None, who):
            self._merge(other, who, always=one["event"] == "$merge_dangerously")
        person = self.owners.setdefault(who, len(self.properties))
        properties = self.properties.setdefault(person, {})
        for name, value in said.get("$set_once", {}).items():
            properties.setdefault(name, value)
        for name in said.get("$unset", []):
            properties.pop(name, None)
        properties |= said.get("$set", {})
        return dict(properties)

    def _merge(self, source: str, target: str, *, always: bool) -> None:
        old, new = self.owners.get(source), self.owners.get(target)
        if old is None or new is None:
            person = old if old is not None else new
            person = len(self.properties) if person is None else person
            self.properties.setdefault(person, {})
            self.owners |= {source: person, target: person}
        elif old != new and (always or old not in self.identified):
            self.properties[new] = {**self.properties[old], **self.properties[new]}
            for who, person in self.owners.items():
                self.owners[who] = new if person == old else person
        self.identified.add(self.owners[target])


@pytest.mark.slow
@pytest.mark.parametrize("remembered", [1 << 20, 700, 0])
@settings(max_examples=50)
@example(
    [  # an id that is forgotten while it merges
        event(0, "a", {"$anon_distinct_id": "b", "$set": {"x": 0}}, "$identify"),
        event(10, "b", {"$set": {"x": 1}}, "seen"),
        event(20, "a", {"$set": {"x": 0}}, "seen"),
    ]
)
@given(histories())
def test_what_is_left_out_of_histories_changes_no_person(
    remembered: int, events: list[Event]
) -> None:
    """At each event its person has the same as if all had been sent, however little is
    remembered.
    """
    history = PersonHistory(remembered)
    sent, whole = PersonService(), PersonService()
    for one, finished_event in zip(events, finished(events), strict=True):
        data = history.changed(one["distinct_id"], one["event"], finished_event.data)
        assert sent.ingest(json.loads(data)) == whole.ingest(one)


def test_only_what_changed_is_sent() -> None:
    """Unchanged snapshots are left out; a returning value is sent; names that the service may set
    by itself always are.
    """
    history = PersonHistory()

    def change(said: Event, who: str = "a", /, **more: Any) -> Event:
        (one,) = finished([event(1, who, {"first": 1, "$set": said, **more})])
        properties: Event = json.loads(history.changed(who, "seen", one.data))["properties"]
        return properties

    free, pro = {"plan": "free", "city": "x"}, {"plan": "pro", "city": "x"}
    assert change(free) == {"first": 1, "$set": free}
    assert change(free, last=2) == {"first": 1, "last": 2}
    assert change(pro) == {"first": 1, "$set": {"plan": "pro"}}
    assert change(free) == {"first": 1, "$set": {"plan": "free"}}
    assert change({"utm_term": "t", **free})["$set"] == {"utm_term": "t"}
    assert change({"utm_term": "t", **free})["$set"] == {"utm_term": "t"}
    assert change(free, "b")["$set"] == free
    unset: Event = {"$unset": ["city"]}
    assert change(free, **unset)["$set"] == free
    assert change(free)["$set"] == free
    spaced = b'{"event":"e","properties":{"$set": {"plan":"free","city":"x"}}}'
    assert json.loads(history.changed("c", "e", spaced)) == json.loads(spaced)
    assert json.loads(history.changed("c", "e", spaced))["properties"] == {"$set": {}}
