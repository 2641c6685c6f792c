"""`--seed FILE`: what a sandbox holds from its start: projects, persons, groups and events, written in YAML or JSON.

A seed is planted as events, so that persons and groups come about as they do otherwise: a person is an `$identify`, its further ids are
merged by `$merge_dangerously`, a group is a `$groupidentify`. Their uuids follow from what the seed says, and what is there already is left
out: planting a seed again changes nothing, and an entry that was changed in the file comes in as an event of its own.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from pathlib import Path
from typing import Any, Final
from uuid import UUID, uuid5

import yaml
from pydantic import Field, ValidationError

from forwarder.core.errors import ConfigurationError
from forwarder.sandbox.management.planting import Planter
from forwarder.sandbox.management.seeding import SETTINGS, SeedOrganization, unique_values
from forwarder.sandbox.reading import Event, storable
from forwarder.sandbox.records import Arrival
from forwarder.sandbox.sections import NAMESPACE, Id, Key, Name, Section, Time
from forwarder.sandbox.store import Store
from forwarder.sandbox.timing import format_time

PATH: Final = "/sandbox/seed"
"""What stands in the place of a path in the record of what a seed brought."""
LARGEST: Final = 10_000_000
"""Bytes of a seed file."""
_OUR_NAME: Final = re.compile(r" or instance of \w+")
"""What pydantic adds to the name of a shape: the name of a class, which says nothing to who writes a seed."""


class Project(Section):
    """A project that exists."""

    api_key: Key
    name: str = ""


class SeedPerson(Section):
    """A person with its main distinct id, its further ones, and its properties."""

    distinct_id: Name
    distinct_ids: list[Name] = Field(default_factory=list)
    properties: dict[str, Any] = Field(default_factory=dict)
    created_at: Time | None = None
    api_key: Key | None = None


class SeedGroup(Section):
    """A group."""

    group_type: Name
    group_key: Name
    properties: dict[str, Any] = Field(default_factory=dict)
    created_at: Time | None = None
    api_key: Key | None = None


class SeedEvent(Section):
    """An event; without a timestamp it happens when the seed is planted first."""

    event: Name
    distinct_id: Name
    properties: dict[str, Any] = Field(default_factory=dict)
    timestamp: Time | None = None
    uuid: Id | None = None
    api_key: Key | None = None


class Seed(Section):
    """A whole file."""

    organizations: list[SeedOrganization] = Field(default_factory=list)
    projects: list[Project] = Field(default_factory=list)
    persons: list[SeedPerson] = Field(default_factory=list)
    groups: list[SeedGroup] = Field(default_factory=list)
    events: list[SeedEvent] = Field(default_factory=list)

    @property
    def api_keys(self) -> frozenset[str]:
        """The projects that the seed names."""
        return frozenset(self._api_keys())

    @property
    def only_project(self) -> str | None:
        """The key of the only project that the seed names; None if there are none or several."""
        api_keys = self._api_keys()
        return api_keys[0] if len(api_keys) == 1 else None

    def _api_keys(self) -> list[str]:
        of_organizations = [project.api_key for organization in self.organizations for project in organization.projects]
        return [*(project.api_key for project in self.projects), *of_organizations]


@dataclass(frozen=True, slots=True)
class _Sown:
    """One event of a seed, before it has a uuid."""

    api_key: str
    event: str
    distinct_id: str
    properties: Mapping[str, Any]
    time: datetime | None
    uuid: UUID | None = None


@dataclass(slots=True)
class _Sower:
    """Makes the events of a seed, giving each a uuid that follows from what it says."""

    now: datetime
    _repeats: Counter[str] = field(default_factory=Counter)

    def event(self, sown: _Sown, position: int) -> Event:
        said = {"event": sown.event, "distinct_id": sown.distinct_id, "properties": sown.properties}
        if sown.time is not None:
            said["timestamp"] = format_time(sown.time)
        text = _json({"api_key": sown.api_key, **said})
        uuid = str(sown.uuid or uuid5(NAMESPACE, f"{self._repeats[text]}\0{text}"))
        self._repeats[text] += 1
        return Event(
            position=position,
            uuid=uuid,
            event=storable(sown.event),
            distinct_id=storable(sown.distinct_id),
            timestamp_sent=None if sown.time is None else _json(said["timestamp"]),
            timestamp=format_time(sown.time or self.now),
            properties=_json(sown.properties),
            raw=_json({**said, "uuid": uuid}).encode(),
        )


def read_seed(path: Path) -> Seed:
    """The seed in a file. Raises `ConfigurationError`, which names the file, the entry and what would be right."""
    seed = _validated(path, _loaded(path))
    _check_unique(path, seed)
    for section in ("persons", "groups", "events"):
        for index, entry in enumerate(getattr(seed, section)):
            _check_entry(path, f"{section}[{index}]", entry, seed)
    return seed


def plant(seed: Seed, store: Store, now: datetime) -> Seed:
    """Keep what of a seed is not there yet, all events of one project as one request; returns the seed."""
    Planter(store.connection, now).plant(seed.organizations)
    sower = _Sower(now)
    events: dict[str, list[Event]] = {}
    for sown in _sown(seed):
        event = sower.event(sown, len(events.get(sown.api_key, ())))
        if not store.holds(sown.api_key, event.uuid or ""):
            events.setdefault(sown.api_key, []).append(event)
    for api_key, new in events.items():
        size = sum(len(event.raw) for event in new)
        store.add(Arrival(format_time(now), PATH, "", {}, 200, "", api_key=api_key, size=size, events=new, method="SEED"))
    return seed


def _sown(seed: Seed) -> Iterator[_Sown]:
    otherwise = seed.only_project or ""
    for person in seed.persons:
        api_key = person.api_key or otherwise
        yield _Sown(api_key, "$identify", person.distinct_id, {"$set": person.properties}, person.created_at)
        for other in person.distinct_ids:
            if other != person.distinct_id:
                yield _Sown(api_key, "$merge_dangerously", person.distinct_id, {"alias": other}, person.created_at)
    for group in seed.groups:
        said = {"$group_type": group.group_type, "$group_key": group.group_key, "$group_set": group.properties}
        named = f"{group.group_type}_{group.group_key}"[:200]
        yield _Sown(group.api_key or otherwise, "$groupidentify", named, {**said, "$process_person_profile": False}, group.created_at)
    for one in seed.events:
        yield _Sown(one.api_key or otherwise, one.event, one.distinct_id, one.properties, one.timestamp, one.uuid)


def _loaded(path: Path) -> Any:
    hint = "A seed is a file in YAML or JSON; docs/sandbox.md shows one."
    try:
        if path.stat().st_size > LARGEST:
            raise ConfigurationError(f"{path} is larger than {LARGEST:,} bytes", hint="Send so many events to the sandbox instead.")
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{path} can't be read: {error.strerror}", hint=hint) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark is not None else ""
        raise ConfigurationError(f"{path} is neither YAML nor JSON{where}", hint=hint) from None
    except RecursionError:
        raise ConfigurationError(f"{path} is nested too deep", hint=hint) from None


def _validated(path: Path, content: Any) -> Seed:
    try:
        return Seed.model_validate({} if content is None else content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where, problem = _place(first["loc"]), _OUR_NAME.sub("", first["msg"].removeprefix("Value error, "))
        if first["type"] == "extra_forbidden" and len(first["loc"]) == 1:
            sections = ", ".join(Seed.model_fields)
            raise ConfigurationError(f"{path}: there is no section {where!r}", hint=f"A seed has {sections}.") from None
        raise ConfigurationError(f"{path}: {where or 'the file'}: {problem}", hint="docs/sandbox.md shows a seed.") from None


def _check_unique(path: Path, seed: Seed) -> None:
    """What two entries claim, only one can have; top-level projects may stand there twice, which changes nothing."""
    seen = {("project", project.api_key) for project in seed.projects}
    for where, kind, value in unique_values(seed.organizations):
        if value and (kind, value) in seen:
            raise ConfigurationError(f"{path}: {where} stands there already", hint="Name each thing once.")
        seen.add((kind, value))


def _check_entry(path: Path, where: str, entry: SeedPerson | SeedGroup | SeedEvent, seed: Seed) -> None:
    if entry.api_key is None and seed.only_project is None:
        raise ConfigurationError(f"{path}: {where} doesn't say whose it is", hint="Give it an api_key, or the file exactly one project.")
    if entry.api_key is not None and seed.api_keys and entry.api_key not in seed.api_keys:
        raise ConfigurationError(f"{path}: {where}.api_key is none of the projects", hint="Add it under projects.")
    try:
        _json(entry.properties)
    except (TypeError, ValueError):
        hint = "Use text, numbers, true, false, null, lists and mappings of text to these."
        raise ConfigurationError(f"{path}: {where}.properties can't be written as JSON", hint=hint) from None


def _place(location: Sequence[int | str]) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location if part != SETTINGS)
    return text.removeprefix(".")


def _json(value: Any) -> str:
    return json.dumps(value, allow_nan=False, default=_time)


def _time(value: object) -> str:
    if isinstance(value, date):
        return value.isoformat()
    raise TypeError
