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
from typing import Annotated, Any, Final
from uuid import UUID, uuid5

import yaml
from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from forwarder.core.errors import ConfigurationError
from forwarder.sandbox.answers import Refusal
from forwarder.sandbox.judging import checked_token
from forwarder.sandbox.reading import Event, storable
from forwarder.sandbox.records import Arrival
from forwarder.sandbox.store import Store
from forwarder.sandbox.timing import format_time

PATH: Final = "/sandbox/seed"
"""What stands in the place of a path in the record of what a seed brought."""
NAMESPACE: Final = UUID("0d6a2ff4-6d1c-5a52-9a43-5b0c3f7d7f70")
LARGEST: Final = 10_000_000
"""Bytes of a seed file."""
_OUR_NAME: Final = re.compile(r" or instance of \w+")
"""What pydantic adds to the name of a shape: the name of a class, which says nothing to who writes a seed."""


def _check_key(api_key: str) -> str:
    try:
        return checked_token(api_key)
    except Refusal as refusal:
        raise ValueError(f"this is {refusal.message}") from None


Key = Annotated[str, AfterValidator(_check_key)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"\S")]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Project(_Section):
    """A project that exists."""

    api_key: Key
    name: str = ""


class SeedPerson(_Section):
    """A person with its main distinct id, its further ones, and its properties."""

    distinct_id: Name
    distinct_ids: list[Name] = []
    properties: dict[str, Any] = {}
    created_at: Annotated[AwareDatetime, Field(strict=False)] | None = None
    api_key: Key | None = None


class SeedGroup(_Section):
    """A group."""

    group_type: Name
    group_key: Name
    properties: dict[str, Any] = {}
    created_at: Annotated[AwareDatetime, Field(strict=False)] | None = None
    api_key: Key | None = None


class SeedEvent(_Section):
    """An event; without a timestamp it happens when the seed is planted first."""

    event: Name
    distinct_id: Name
    properties: dict[str, Any] = {}
    timestamp: Annotated[AwareDatetime, Field(strict=False)] | None = None
    uuid: Annotated[UUID, Field(strict=False)] | None = None
    api_key: Key | None = None


class Seed(_Section):
    """A whole file."""

    projects: list[Project] = []
    persons: list[SeedPerson] = []
    groups: list[SeedGroup] = []
    events: list[SeedEvent] = []

    @property
    def api_keys(self) -> frozenset[str]:
        """The projects that the seed names."""
        return frozenset(project.api_key for project in self.projects)


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
    for section in ("persons", "groups", "events"):
        for index, entry in enumerate(getattr(seed, section)):
            _check_entry(path, f"{section}[{index}]", entry, seed)
    return seed


def plant(seed: Seed, store: Store, now: datetime) -> Seed:
    """Keep what of a seed is not there yet, everything of one project as one request; returns the seed."""
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
    for person in seed.persons:
        api_key = person.api_key or _only(seed)
        yield _Sown(api_key, "$identify", person.distinct_id, {"$set": person.properties}, person.created_at)
        for other in person.distinct_ids:
            if other != person.distinct_id:
                yield _Sown(api_key, "$merge_dangerously", person.distinct_id, {"alias": other}, person.created_at)
    for group in seed.groups:
        said = {"$group_type": group.group_type, "$group_key": group.group_key, "$group_set": group.properties}
        named = f"{group.group_type}_{group.group_key}"[:200]
        yield _Sown(group.api_key or _only(seed), "$groupidentify", named, {**said, "$process_person_profile": False}, group.created_at)
    for one in seed.events:
        yield _Sown(one.api_key or _only(seed), one.event, one.distinct_id, one.properties, one.timestamp, one.uuid)


def _only(seed: Seed) -> str:
    return seed.projects[0].api_key


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


def _check_entry(path: Path, where: str, entry: SeedPerson | SeedGroup | SeedEvent, seed: Seed) -> None:
    if entry.api_key is None and len(seed.projects) != 1:
        raise ConfigurationError(f"{path}: {where} doesn't say whose it is", hint="Give it an api_key, or the file exactly one project.")
    if entry.api_key is not None and seed.projects and entry.api_key not in seed.api_keys:
        raise ConfigurationError(f"{path}: {where}.api_key is none of the projects", hint="Add it under projects.")
    try:
        _json(entry.properties)
    except (TypeError, ValueError):
        hint = "Use text, numbers, true, false, null, lists and mappings of text to these."
        raise ConfigurationError(f"{path}: {where}.properties can't be written as JSON", hint=hint) from None


def _place(location: Sequence[int | str]) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return text.removeprefix(".")


def _json(value: Any) -> str:
    return json.dumps(value, allow_nan=False, default=_time)


def _time(value: object) -> str:
    if isinstance(value, date):
        return value.isoformat()
    raise TypeError
