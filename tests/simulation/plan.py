"""What happens in a life: its configuration, what senders send, what goes wrong and what an
operator does, all drawn from a seed before it begins. A story is a plan of which most is left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final
from uuid import UUID

KEYS: Final = ("phc_simulated_first_key", "phc_simulated_other_key")
NAMES: Final = ("pageview", "purchase", "noise", "old name", "signup")
PEOPLE: Final = ("ann", "bob", "zoë", "dave")
FIRST, SECOND = "a", "b"

RULES: Final[Mapping[str, Mapping[str, Any]]] = {
    "drops": {"name": "drops", "match": {"event": "noise"}, "drop": True},
    "renames": {"name": "renames", "rename_event": {"old name": "new name"}},
    "removes": {"name": "removes", "match": {"event": "signup"}, "remove": [".properties.secret"]},
}

FAULTS: Final = (
    "refused",
    "stored, reset",
    "reset",
    "silent",
    "half",
    "500",
    "503",
    "429",
    "429 with a time",
    "slow",
    "413",
    "401",
)
"""What a service does for a while."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event as its sender makes it; `number` is in its properties."""

    number: int
    name: str
    person: str
    key: str
    uuid: str | None
    time: str | None
    padding: int
    poisoned: bool
    """Whether services refuse each batch that it is in."""
    keyed: bool
    """Whether it has its project key in it, because nothing around it has."""

    @property
    def data(self) -> dict[str, Any]:
        """As an object."""
        properties: dict[str, Any] = {"n": self.number, "p": "x" * self.padding}
        if self.name == "signup":
            properties["secret"] = "s"
        if self.poisoned:
            properties["poison"] = True
        made: dict[str, Any] = {
            "event": self.name,
            "distinct_id": self.person,
            "properties": properties,
        }
        if self.keyed:
            made["api_key"] = self.key
        if self.uuid:
            made["uuid"] = self.uuid
        if self.time:
            made["timestamp"] = self.time
        return made


@dataclass(frozen=True, slots=True)
class Send:
    """A request."""

    at: float
    sender: int
    events: tuple[Event, ...]
    shape: str
    """`single`, `batch` or `array`."""
    gzip: bool
    ack: str
    """A level, or nothing."""
    tries: int
    breaks_off: bool
    """Whether its first try ends within the body."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """A service does something else than it should."""

    at: float
    until: float
    where: str
    what: str


@dataclass(frozen=True, slots=True)
class Reload:
    """Other rules hold."""

    at: float
    rules: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Weathered:
    """New connections are slower, or in smaller pieces."""

    at: float
    latency: float
    segment: int


@dataclass(frozen=True, slots=True)
class ClockJump:
    """The wall clock is set: it is so many seconds off from now on."""

    at: float
    offset: float


Act = Send | Trouble | Reload | Weathered | ClockJump


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole life."""

    seed: int
    destinations: tuple[str, ...]
    optional: bool
    """Whether the second destination is."""
    routes: tuple[Mapping[str, Any], ...]
    rules: tuple[str, ...]
    """Those that hold at the beginning."""
    settings: Mapping[str, Any]
    acts: tuple[Act, ...]
    ends: float
    """When services are well again, and nothing more is sent."""
    shut_down: float
    """Seconds that the daemon has to deliver what is left."""
    early: bool
    """Whether it is told to end at once then, not when all is delivered."""

    def without(self, acts: Sequence[Act]) -> Plan:
        """The same with fewer acts."""
        return replace(self, acts=tuple(acts))


@dataclass
class _Drawing:
    chance: Random
    number: int = 0
    ends: float = 0.0
    made: list[Act] = field(default_factory=list)

    def moment(self) -> float:
        return round(self.chance.uniform(0.0, self.ends), 3)

    def event(self, key: str, *, keyed: bool) -> Event:
        chance = self.chance
        self.number += 1
        return Event(
            self.number,
            chance.choice(NAMES),
            chance.choice(PEOPLE),
            key,
            str(UUID(int=chance.getrandbits(128), version=4)) if chance.random() < 0.7 else None,
            "2025-12-31T12:00:00Z" if chance.random() < 0.6 else None,
            chance.choice((0, 0, 50, 400, 3000)),
            chance.random() < 0.02,
            keyed,
        )

    def send(self) -> Send:
        chance = self.chance
        key = chance.choice(KEYS)
        shape = chance.choice(("single", "batch", "batch", "array"))
        count = 1 if shape == "single" else chance.choice((1, 2, 3, 10, 40))
        return Send(
            self.moment(),
            chance.randrange(4),
            tuple(self.event(key, keyed=shape != "batch") for _ in range(count)),
            shape,
            chance.random() < 0.3,
            chance.choice(("", "", "", "memory", "delivered")),
            chance.choice((1, 3, 6)),
            chance.random() < 0.05,
        )

    def trouble(self, destinations: Sequence[str]) -> Trouble:
        at = self.moment()
        last = self.chance.choice((0.5, 5.0, 60.0, 600.0))
        return Trouble(
            at,
            min(at + self.chance.uniform(0.0, last), self.ends),
            self.chance.choice(destinations),
            self.chance.choice(FAULTS),
        )


def drawn(seed: int) -> Plan:
    """The plan of a seed."""
    chance = Random(seed)
    drawing = _Drawing(chance, ends=chance.choice((5.0, 60.0, 600.0, 7200.0)))
    two = chance.random() < 0.6
    destinations = (FIRST, SECOND) if two else (FIRST,)
    acts: list[Act] = [drawing.send() for _ in range(chance.choice((2, 8, 20, 40)))]
    acts += [drawing.trouble(destinations) for _ in range(chance.choice((0, 1, 3, 6)))]
    acts += [Reload(drawing.moment(), _rules(chance)) for _ in range(chance.choice((0, 0, 1, 2)))]
    acts += [
        Weathered(
            drawing.moment(),
            chance.choice((0.0001, 0.01, 0.5)),
            chance.choice((1, 7, 100, 65536)),
        )
        for _ in range(chance.choice((0, 1, 2)))
    ]
    acts += [
        ClockJump(drawing.moment(), chance.choice((-7200.0, -1.5, 0.0, 3600.0)))
        for _ in range(chance.choice((0, 0, 0, 1, 2)))
    ]
    return Plan(
        seed,
        destinations,
        two and chance.random() < 0.3,
        _routes(chance) if two else (),
        _rules(chance),
        _settings(chance),
        tuple(sorted(acts, key=lambda act: act.at)),
        drawing.ends,
        chance.choice((5.0, 60.0)),
        chance.random() < 0.3,
    )


def _rules(chance: Random) -> tuple[str, ...]:
    return tuple(name for name in RULES if chance.random() < 0.4)


def _routes(chance: Random) -> tuple[Mapping[str, Any], ...]:
    both = {"to": [FIRST, SECOND]}
    return chance.choice(
        (
            (both,),
            ({"match": {"event": "purchase"}, **both},),
            ({"match": {"event": "purchase"}, "to": [SECOND]}, both),
            ({"match": {"api_key": KEYS[1]}, "to": [SECOND]},),
        )
    )


def _settings(chance: Random) -> Mapping[str, Any]:
    return {
        "buffer": {
            "max_bytes": chance.choice((12_000, 40_000, 40_000, 1_000_000)),
            "ack_timeout": chance.choice(("5s", "30s")),
            "when_full": chance.choice(("reject", "reject", "drop_newest", "drop_oldest")),
        },
        "batch": {
            "max_age": chance.choice(("10ms", "1s")),
            "max_events": chance.choice((1, 5, 1000)),
        },
        "delivery": {"ordering": chance.choice(("none", "per_distinct_id"))},
        "upstream": {"compression": chance.choice(("none", "gzip"))},
    }


def body_of(act: Send) -> bytes:
    """The request's text."""
    key = act.events[0].key
    events = [event.data for event in act.events]
    if act.shape == "single":
        return json.dumps(events[0]).encode()
    if act.shape == "array":
        return json.dumps(events).encode()
    return json.dumps({"api_key": key, "batch": events}).encode()


def told(act: Act) -> Iterator[str]:
    """An act as a line of a story."""
    if isinstance(act, Send):
        numbers = ", ".join(str(event.number) for event in act.events[:6])
        more = "…" if len(act.events) > 6 else ""
        yield f"sender {act.sender} sends {act.shape} of events {numbers}{more}" + (
            f", acknowledged {act.ack}" if act.ack else ""
        )
    elif isinstance(act, Trouble):
        yield f"service {act.where}: {act.what} until {act.until:.3f}"
    elif isinstance(act, Reload):
        yield f"the operator reloads with rules {', '.join(act.rules) or 'none'}"
    elif isinstance(act, ClockJump):
        yield f"the wall clock is {act.offset} s off"
    else:
        yield f"new connections have segments of {act.segment} bytes and {act.latency} s"
