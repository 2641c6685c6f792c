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

from tests.simulation.log_acts import LOGS, LogAct, LogDrawing, LogPlan

KEYS: Final = ("phc_simulated_first_key", "phc_simulated_other_key")
NAMES: Final = ("pageview", "purchase", "noise", "old name", "signup")
PEOPLE: Final = ("ann", "bob", "zoë", "dave")
FIRST, SECOND = "a", "b"

RULES: Final[Mapping[str, Mapping[str, Any]]] = {
    "drops": {"name": "drops", "match": {"event": "noise"}, "drop": True},
    "renames": {"name": "renames", "rename_event": {"old name": "new name"}},
    "removes": {"name": "removes", "match": {"event": "signup"}, "remove": [".properties.secret"]},
}

PARTITIONS: Final = 3
"""Of the topic that is read, if there is one."""
KAFKA: Final = "kafka"
KAFKA_FAULTS: Final = ("away", "silent")
"""What brokers do for a while: refuse connections, or commit and answer nothing."""
DISK: Final = "disk"
DISK_FAULTS: Final = ("full", "broken")
"""What a disk does for a while: no room, or nothing becomes durable."""
ARCHIVE_FAULTS: Final = ("forbidden", "broken")
"""What an archive's folder does for a while: nothing can be created, or what is written isn't kept.
"""

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


@dataclass(frozen=True, slots=True)
class Restart:
    """The daemon ends, and is started again. Only with a disk buffer."""

    at: float
    how: str
    """`stop`: in good order; `kill`; `power`: killed, and what wasn't synced may be lost."""
    after: int
    """So many operations on files later, if it is killed; 0: at once."""
    away: float
    """Seconds until it is started again."""
    again: int
    """Of the next start it is killed after so many operations, too; 0: it isn't."""


@dataclass(frozen=True, slots=True)
class Marks:
    """The operator marks all dead letters of a destination. Only where they are in a file."""

    at: float
    where: str
    what: str
    """`replay` or `drop`."""


@dataclass(frozen=True, slots=True)
class Produce:
    """Events are sent to a partition of a topic that the daemon reads, a record each."""

    at: float
    partition: int
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class Rebalance:
    """The consumer group divides its partitions anew: another member has these, if any."""

    at: float
    elsewhere: tuple[int, ...]


Act = (
    Send | Trouble | Reload | Weathered | ClockJump | Restart | Marks | Produce | Rebalance | LogAct
)


@dataclass(frozen=True, slots=True)
class ArchivePlan:
    """How files of an archive are made."""

    partition: str
    max_age: str


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
    replays: bool
    """Whether all dead letters are sent again at the end."""
    kafka: str
    """When offsets are committed, if a topic is read; else nothing."""
    logs: LogPlan | None = None
    """The logs that are read, if any are."""
    archive: ArchivePlan | None = None
    """The second destination, if that is an archive."""

    @property
    def durable(self) -> bool:
        """Whether the buffer is on disk."""
        return bool(self.settings["buffer"]["kind"] == "disk")

    @property
    def restarts(self) -> list[Restart]:
        """The daemon's ends before its last one."""
        return [act for act in self.acts if isinstance(act, Restart)]

    @property
    def marked(self) -> bool:
        """Whether dead letters are marked meanwhile."""
        return any(isinstance(act, Marks) for act in self.acts)

    def without(self, acts: Sequence[Act]) -> Plan:
        """The same with fewer acts."""
        return replace(self, acts=tuple(acts))


@dataclass
class _Drawing:
    chance: Random
    number: int = 0
    ends: float = 0.0
    durable: bool = False
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
            chance.choice(
                ("", "", "", "memory", "delivered", *(("disk",) if self.durable else ()))
            ),
            chance.choice((1, 3, 6)),
            chance.random() < 0.05,
        )

    def trouble(self, places: Sequence[str]) -> Trouble:
        at = self.moment()
        last = self.chance.choice((0.5, 5.0, 60.0, 600.0))
        where = self.chance.choice(places)
        return Trouble(
            at,
            min(at + self.chance.uniform(0.0, last), self.ends),
            where,
            self.chance.choice({DISK: DISK_FAULTS, KAFKA: KAFKA_FAULTS}.get(where, FAULTS)),
        )

    def produce(self) -> Produce:
        chance = self.chance
        count = chance.choice((1, 2, 5, 30))
        return Produce(
            self.moment(),
            chance.randrange(PARTITIONS),
            tuple(self.event(chance.choice(KEYS), keyed=True) for _ in range(count)),
        )

    def restart(self) -> Restart:
        chance = self.chance
        return Restart(
            self.moment(),
            chance.choice(("stop", "kill", "kill", "power", "power")),
            chance.choice((0, 1, 2, 3, 5, 8, 13)),
            chance.choice((0.1, 2.0, 30.0)),
            chance.choice((0, 0, 0, chance.randint(1, 12))),
        )


def drawn(seed: int) -> Plan:
    """The plan of a seed."""
    chance = Random(seed)
    ends = chance.choice((5.0, 60.0, 600.0, 7200.0))
    drawing = _Drawing(chance, ends=ends, durable=chance.random() < 0.5)
    two = chance.random() < 0.6
    destinations = (FIRST, SECOND) if two else (FIRST,)
    settings = _settings(chance, durable=drawing.durable)
    kafka = chance.choice(("", "", "delivered"))
    if kafka and drawing.durable and settings["delivery"]["ordering"] == "none":
        kafka = chance.choice(("delivered", "disk"))
    places = (
        *destinations,
        *((DISK,) if drawing.durable else ()),
        *((KAFKA,) if kafka else ()),
    )
    acts: list[Act] = [drawing.send() for _ in range(chance.choice((2, 8, 20, 40)))]
    acts += [drawing.trouble(places) for _ in range(chance.choice((0, 1, 3, 6)))]
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
    if kafka:
        acts += [drawing.produce() for _ in range(chance.choice((2, 8, 20)))]
        acts += [
            Rebalance(drawing.moment(), chance.choice(((), (0,), (1, 2), (0, 1, 2))))
            for _ in range(chance.choice((0, 1, 4)))
        ]
    if drawing.durable:
        acts += [drawing.restart() for _ in range(chance.choice((0, 1, 1, 2, 5)))]
        acts += [
            Marks(
                drawing.moment(),
                chance.choice(destinations),
                chance.choice(("replay", "replay", "drop")),
            )
            for _ in range(chance.choice((0, 0, 1, 3)))
        ]
    logs = None
    if drawing.durable and (own := Random(f"logs {seed}")).random() < 0.4:
        drawing.chance = own
        key = own.choice(KEYS)
        of_logs = LogDrawing(own, ends, lambda: drawing.event(key, keyed=False))
        logs = of_logs.plan(key)
        acts += of_logs.acts()
        for _ in range(own.choice((0, 0, 1, 2))):
            at, until, what = of_logs.trouble()
            acts.append(Trouble(at, until, LOGS, what))
        drawing.chance = chance
    archive = None
    if drawing.durable and two and (own := Random(f"archive {seed}")).random() < 0.4:
        archive = ArchivePlan(
            own.choice(("day", "hour", "hour")), own.choice(("1s", "1s", "30s", "300s"))
        )
        acts = [
            replace(act, what=own.choice(ARCHIVE_FAULTS))
            if isinstance(act, Trouble) and act.where == SECOND
            else act
            for act in acts
        ]
    return Plan(
        seed,
        destinations,
        two and chance.random() < 0.3,
        _routes(chance) if two else (),
        _rules(chance),
        settings,
        tuple(sorted(acts, key=lambda act: act.at)),
        drawing.ends,
        chance.choice((5.0, 60.0)),
        chance.random() < 0.3,
        drawing.durable and chance.random() < 0.5,
        kafka,
        logs,
        archive,
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


def _settings(chance: Random, *, durable: bool) -> Mapping[str, Any]:
    return {
        "buffer": {
            "kind": "disk" if durable else "memory",
            "max_bytes": chance.choice(
                (262_144, 262_144, 524_288) if durable else (12_000, 40_000, 40_000, 1_000_000)
            ),
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
        where = {DISK: "the disk", KAFKA: "the brokers", LOGS: "the logs"}.get(
            act.where, f"service {act.where}"
        )
        yield f"{where}: {act.what} until {act.until:.3f}"
    elif isinstance(act, Reload):
        yield f"the operator reloads with rules {', '.join(act.rules) or 'none'}"
    elif isinstance(act, ClockJump):
        yield f"the wall clock is {act.offset} s off"
    elif isinstance(act, Produce):
        numbers = ", ".join(str(event.number) for event in act.events[:6])
        more = "…" if len(act.events) > 6 else ""
        yield f"records of events {numbers}{more} are in partition {act.partition}"
    elif isinstance(act, Rebalance):
        yield f"the group divides its partitions anew; another member has {list(act.elsewhere)}"
    elif isinstance(act, LogAct):
        yield act.told()
    elif isinstance(act, Marks):
        yield f"the operator marks the dead letters of {act.where}: {act.what}"
    elif isinstance(act, Restart):
        when = f" after {act.after} operations on files" if act.how != "stop" else ""
        yield f"the daemon ends ({act.how}){when}, and is started {act.away} s later" + (
            f", where it is killed after {act.again} operations" if act.again else ""
        )
    else:
        yield f"new connections have segments of {act.segment} bytes and {act.latency} s"
