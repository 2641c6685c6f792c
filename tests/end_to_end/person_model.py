"""What persons end with, by the rules that the documents state and without the code that is
tested: `docs/how-to/import-persons.md` for the choices, and `docs/reference/sandbox.md` ("Merges",
"Properties of persons") for the service.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

Values = dict[str, Any]
INITIAL: Final = "$initial_"


@dataclass(frozen=True, slots=True)
class PersonUpdate:
    """What an event means for its person."""

    distinct_id: str
    time: datetime
    set: Values = field(default_factory=dict)
    once: Values = field(default_factory=dict)
    unset: tuple[str, ...] = ()
    joins: tuple[str, ...] = ()
    """Ids whose persons become this one, before the event says anything."""
    always: bool = False
    """Whether they do so even if they are identified."""
    carries: bool = True
    """Whether the service lets it change its person."""


@dataclass(slots=True)
class ModelledPerson:
    """A person of the service."""

    ids: set[str]
    properties: Values = field(default_factory=dict)
    is_identified: bool = False

    def change(self, said: PersonUpdate) -> None:
        """Apply what an event sets and removes."""
        before = set(self.properties)
        for name, value in said.once.items():
            is_missing = self.properties.get(name) is None
            if is_missing and name not in said.set and (value is not None or name not in before):
                self.properties[name] = value
        self.properties.update(said.set)
        for name in said.unset:
            if name in before:
                del self.properties[name]


class ModelledPersons:
    """The persons of a project, to which events come one after the other."""

    def __init__(self) -> None:
        self.owners: dict[str, ModelledPerson] = {}

    def apply(self, said: PersonUpdate) -> Values:
        """Apply an event; the properties that its person has then."""
        for other in said.joins:
            self._merge(said.distinct_id, other, always=said.always)
        person = self.owners.get(said.distinct_id)
        if person is None:
            person = self.owners[said.distinct_id] = ModelledPerson({said.distinct_id})
        person.change(said)
        return dict(person.properties)

    def everyone(self) -> list[ModelledPerson]:
        """Each person once."""
        return [*{id(person): person for person in self.owners.values()}.values()]

    def _merge(self, target: str, source: str, *, always: bool) -> None:
        survivor, other = self.owners.get(target), self.owners.get(source)
        person = survivor or other or ModelledPerson(set())
        if survivor is None or other is None:
            person.ids |= {target, source}
        elif survivor is not other and (always or not other.is_identified):
            person.properties = {**other.properties, **survivor.properties}
            person.ids |= other.ids
        person.is_identified = True
        self.owners.update(dict.fromkeys(person.ids, person))


@dataclass(frozen=True, slots=True)
class PersonOutcome:
    """What a choice makes of a source."""

    ends: Mapping[str, Values]
    """By distinct id."""
    persons: frozenset[frozenset[str]]
    """The ids of each."""
    at_events: Mapping[str, Values]
    """By uuid: what the event's person has when it is ingested."""


def persons_after(
    choice: str, events: Mapping[str, PersonUpdate], live: Iterable[PersonUpdate] = ()
) -> PersonOutcome:
    """What becomes of persons if these events are sent in this order, after those of `live`."""
    project = ModelledPersons()
    for said in live:
        project.apply(said)
    newest = _newest_values(events.values()) if choice == "newest" else {}
    at_events = {}
    for uuid, said in events.items():
        match choice:
            case "oldest":
                once = {**said.set, **said.once}
                sent = replace(said, set={}, once=once, unset=())
            case "newest":
                once = newest.pop(said.distinct_id, {}) if said.carries else {}
                sent = replace(said, set={}, once=once, unset=())
            case "none":
                sent = replace(said, set={}, once={}, unset=())
            case _:
                sent = said
        at_events[uuid] = project.apply(sent)
    return PersonOutcome(
        {who: person.properties for who, person in project.owners.items()},
        frozenset(frozenset(person.ids) for person in project.everyone()),
        at_events,
    )


def _newest_values(events: Iterable[PersonUpdate]) -> dict[str, Values]:
    """By distinct id: what its person would have if it had been one from the start, and its events
    had come in the order of time.
    """
    sent = [*events]
    project = ModelledPersons()
    for said in sent:
        project.apply(said)
    whole = {id(person): ModelledPerson(person.ids) for person in project.everyone()}
    for said in sorted(sent, key=lambda event: event.time):
        person = whole[id(project.owners[said.distinct_id])]
        initial = {name: said.set[name] for name in said.set if name.startswith(INITIAL)}
        person.change(
            replace(
                said,
                set={name: value for name, value in said.set.items() if name not in initial},
                once={**initial, **said.once},
            )
        )
    return {who: whole[id(person)].properties for who, person in project.owners.items()}
