"""What happens in a life: its configuration, what senders send, what goes wrong and what an
operator does, all drawn from a seed before it begins. A story is a plan of which most is left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final
from uuid import UUID

from tests.simulation.log_acts import LOG_FAULTS, LOGS, LogAct, LogDrawing, LogPlan

KEYS: Final = ("phc_simulated_first_key", "phc_simulated_other_key")
NAMES: Final = ("pageview", "purchase", "noise", "old name", "signup")
PEOPLE: Final = ("ann", "bob", "zoë", "dave")
FIRST, SECOND = "a", "b"

RULES: Final[Mapping[str, Mapping[str, Any]]] = {
    "drops": {"name": "drops", "match": {"event": "noise"}, "drop": True},
    "renames": {"name": "renames", "rename_event": {"old name": "new name"}},
    "removes": {"name": "removes", "match": {"event": "signup"}, "remove": [".properties.secret"]},
    "sets": {
        "name": "sets",
        "match": {"event": "purchase"},
        "set": {".properties.cart.total": 1},
        "on_error": "dead_letter",
    },
}
OFTEN: Final = ("drops", "renames", "removes")
"""Rules that are drawn with the rest of a plan; `sets` comes with `_with_more`."""

PARTITIONS: Final = 3
"""Of the topic that is read, if there is one."""
KAFKA: Final = "kafka"
KAFKA_FAULTS: Final = ("away", "silent")
"""What brokers do for a while: refuse connections, or commit and answer nothing."""
DISK: Final = "disk"
DISK_FAULTS: Final = ("full", "broken")
"""What a disk does for a while: no room, or nothing becomes durable."""
MEMORY: Final = "memory"
SHORT: Final = "short"
"""What memory is for a while."""
ARCHIVE_FAULTS: Final = ("forbidden", "broken")
"""What an archive's folder does for a while: nothing can be created, or what is written isn't kept.
"""

V1: Final = "v1"
OTLP: Final = ("logs in JSON", "logs in protobuf")
"""Shapes of requests that have an entrance of their own."""
SHAPES: Final = ("single", "batch", "batch", "array", V1, V1, *OTLP)
CLASSIC_PATHS: Final = ("/batch/", "/batch/", "/e/", "/e/?beacon=1", "/i/v0/e", "//track/")
CLASSIC_ENCODINGS: Final = (
    "gzip",
    "gzip, unsaid",
    "deflate",
    "br",
    "zstd",
    "base64",
    "gzip in base64",
    "form",
    "base64 in a form",
)
LZ64: Final = "lz64"
"""An encoding that some bodies in base64 have in its place (`_with_more`)."""
OWN_ENCODINGS: Final = ("gzip", "deflate", "br", "zstd")
"""Those of v1 and OpenTelemetry."""
LINE: Final = "line"
"""The shape of an event that is a line of a log."""
TOO_LARGE: Final = "too large"
LEFT_OUT: Final = "left out"
OPTIONS: Final = "other options"
UNTIMED: Final = "no time"
"""Neither the event has a time, nor its record."""
FLAWS: Final[Mapping[str, Sequence[str]]] = {
    "single": ("no name", "no id", "a number for a name", "half a character"),
    "array": ("no name", "no id", "a number for a name", "half a character"),
    "batch": ("no name", "no id", "a number for a name", "half a character", "no object"),
    V1: ("no name", "no id", "a number for a name", "half a character", OPTIONS),
    **dict.fromkeys(OTLP, ("no name", "no id", LEFT_OUT)),
    "record": ("no JSON", "no key", "no name", "no id", "half a character", UNTIMED),
}
"""What may be wrong with one event of each shape, while the others of its request are accepted."""
SMALL_EVENT: Final = 2500
"""`upstream.max_event` in some lives."""
LARGE_PADDING: Final = 3000

FLAGS: Final = "flags"
DEFINITIONS: Final = "definitions"
ASSET: Final = "an asset"
RECORDING: Final = "a recording"
CALLS: Final = (FLAGS, FLAGS, DEFINITIONS, DEFINITIONS, ASSET, RECORDING)
"""What SDKs ask for that bring no events (`calls.py`)."""

ODDITIES: Final = (
    "no JSON",
    "empty",
    "no events",
    "a scalar",
    "a batch that is no list",
    "nested too deep",
    "broken gzip",
    "no key",
    "a personal key",
    "another acknowledgement",
    "too long",
    "too long, in chunks",
    "too long once unpacked",
    "another path",
    "another method",
    "v1 of another type",
    "v1 without a key",
    "logs with another key",
    "logs that are none",
    "two lengths",
    "no host",
    "another version",
    "a long target",
    "many headers",
    "another expectation",
    "garbage",
    "a head that never ends",
    "a body that never ends",
)
"""Requests that are rejected whole (`entrances.py`)."""

FOR_EVER: Final = math.inf
"""When a trouble ends that the daemon doesn't outlive."""
ORDERLY: Final = ("stop", "drain", "replace")
"""Ways in which a daemon ends in good order."""
SMALL_BODIES: Final = (30_000, 100_000)
"""`sources.http.max_body` where little may be received at a time."""
FEW_CONNECTIONS: Final = 64
TAPPED: Final = ("delivered", "delivered", "received", "dead-lettered", "dropped")

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
    "403",
    "404",
    "415",
    "a web page",
    "a loop",
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
    shape: str = "record"
    """Of its request."""
    flaw: str = ""
    """Why it is rejected at receipt, if it is (`FLAWS`)."""

    @property
    def spoiled(self) -> bool:
        """Whether the rule `sets` fails on it."""
        return self.name == "purchase" and not self.flaw and self.number % 7 == 0

    @property
    def data(self) -> dict[str, Any]:
        """As it is delivered, but for its flaw."""
        properties: dict[str, Any] = {"n": self.number, "p": "x" * self.padding}
        if self.shape == V1:
            properties |= {"$lib": "simulated", "$lib_version": "1.0"}
            properties["$session_id"] = f"session of {self.person}"
            if self.number % 3 == 0:
                properties["$process_person_profile"] = self.number % 2 == 1
        if self.name == "signup":
            properties["secret"] = "s"
        if self.spoiled:
            properties["cart"] = "full"
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
            # a log record's time is nanoseconds
            made["timestamp"] = self.time.replace("Z", ".000Z" if self.shape in OTLP else "Z")
        return made


@dataclass(frozen=True, slots=True)
class Send:
    """A request."""

    at: float
    sender: int
    events: tuple[Event, ...]
    shape: str
    """One of `SHAPES`."""
    encoding: str
    """Of its body, or nothing."""
    ack: str
    """A level, or nothing."""
    tries: int
    breaks_off: bool
    """Whether its first try ends within the body."""
    path: str = "/batch/"
    """Of the shapes that have no entrance of their own."""
    chunked: bool = False


@dataclass(frozen=True, slots=True)
class OddAct:
    """A request that is rejected, on a connection of its own."""

    at: float
    sender: int
    what: str


@dataclass(frozen=True, slots=True)
class Call:
    """Calls that bring no events, one after the other on a connection of their own."""

    at: float
    sender: int
    what: str
    """One of `CALLS`."""
    number: int
    """Of the first one."""
    count: int
    key: str
    size: int
    """Bytes of a recording."""
    chunked: bool
    conditional: bool
    """Whether definitions are asked for unless they are those that came before."""
    breaks_off: bool
    """Whether the last one ends within itself."""


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
    """The daemon ends, and is started again. Only where it has files."""

    at: float
    how: str
    """`stop`: in good order; `drain`: in good order, and what is buffered is delivered while it is
    away; `replace`: by a new program in its place; `kill`; `power`: killed, and what wasn't synced
    may be lost.
    """
    after: int
    """So many operations on files later, if it is killed, or a drain is; 0: at once, or never."""
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


@dataclass(frozen=True, slots=True)
class Explain:
    """The operator asks where some events are."""

    at: float


@dataclass(frozen=True, slots=True)
class Tap:
    """The operator watches the events with an outcome for a while."""

    at: float
    seconds: float
    outcome: str


@dataclass(frozen=True, slots=True)
class Hold:
    """A crowd behind one address sends this many bodies of this size at once, slowly."""

    at: float
    connections: int
    size: int


Act = (
    Explain
    | Tap
    | Send
    | OddAct
    | Call
    | Hold
    | Trouble
    | Reload
    | Weathered
    | ClockJump
    | Restart
    | Marks
    | Produce
    | Rebalance
    | LogAct
)


@dataclass(frozen=True, slots=True)
class ArchiveOfLife:
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
    archive: ArchiveOfLife | None = None
    """The second destination, if that is an archive."""

    @property
    def durable(self) -> bool:
        """Whether the buffer is on disk."""
        return bool(self.settings["buffer"]["kind"] == "disk")

    @property
    def has_files(self) -> bool:
        """Whether dead letters are in a file: beside a buffer on disk, or the positions in logs."""
        return self.durable or self.logs is not None

    @property
    def reads_again(self) -> bool:
        """Whether what isn't delivered at the end of a process is there for the next one."""
        return self.has_files or bool(self.kafka)

    @property
    def small_events(self) -> bool:
        """Whether `SMALL_EVENT` holds."""
        return "max_event" in self.settings["upstream"]

    @property
    def calls_to(self) -> str:
        """The destination that calls without events are passed through to."""
        passed = self.settings.get("passthrough", {})
        return str(passed.get("destination", self.destinations[0]))

    @property
    def few_letters(self) -> bool:
        """Whether there is room for a few dead letters alone."""
        return "dead_letters" in self.settings

    @property
    def calm(self) -> bool:
        """Whether nothing goes wrong but events that services refuse."""
        return not any(map(_is_trouble, self.acts))

    @property
    def poisoned(self) -> bool:
        """Whether a service refuses an event."""
        return any(event.poisoned for act in self.acts for event in getattr(act, "events", ()))

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
    small_events: bool = False
    """Whether `SMALL_EVENT` holds."""

    def moment(self) -> float:
        return round(self.chance.uniform(0.0, self.ends), 3)

    def event(self, key: str, shape: str) -> Event:
        chance = self.chance
        self.number += 1
        flaws = FLAWS.get(shape)
        flaw = chance.choice(flaws) if flaws and chance.random() < 0.03 else ""
        padding = 0 if flaw else chance.choice((0, 0, 50, 400, LARGE_PADDING))
        if shape == LINE and self.small_events:
            padding = min(padding, 400)
        return Event(
            self.number,
            chance.choice(NAMES),
            chance.choice(PEOPLE),
            key,
            str(UUID(int=chance.getrandbits(128), version=4)) if chance.random() < 0.7 else None,
            "2025-12-31T12:00:00Z" if chance.random() < 0.6 and flaw != UNTIMED else None,
            padding,
            not flaw and chance.random() < 0.02,
            shape in ("single", "array", "record"),
            shape,
            TOO_LARGE if self.small_events and padding == LARGE_PADDING else flaw,
        )

    def send(self) -> Send:
        chance = self.chance
        shape = chance.choice(SHAPES)
        own = shape == V1 or shape in OTLP
        key = KEYS[0] if shape in OTLP else chance.choice(KEYS)
        # log records are longer than events: more of them might not fit the smallest `max_body`
        most = 20 if shape in OTLP else 40
        count = 1 if shape == "single" else chance.choice((1, 2, 3, 10, most))
        return Send(
            self.moment(),
            chance.randrange(4),
            tuple(self.event(key, shape) for _ in range(count)),
            shape,
            chance.choice(OWN_ENCODINGS if own else CLASSIC_ENCODINGS)
            if chance.random() < 0.4
            else "",
            chance.choice(
                ("", "", "", "memory", "delivered", *(("disk",) if self.durable else ()))
            ),
            chance.choice((1, 3, 6)),
            chance.random() < 0.05,
            chance.choice(CLASSIC_PATHS),
            chance.random() < 0.1,
        )

    def odd(self) -> OddAct:
        return OddAct(self.moment(), self.chance.randrange(4), self.chance.choice(ODDITIES))

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
            tuple(self.event(chance.choice(KEYS), "record") for _ in range(count)),
        )

    def restart(self) -> Restart:
        chance = self.chance
        return Restart(
            self.moment(),
            chance.choice(("stop", "drain", "replace", "kill", "kill", "power", "power")),
            chance.choice((0, 1, 2, 3, 5, 8, 13)),
            chance.choice((0.1, 2.0, 30.0)),
            chance.choice((0, 0, 0, chance.randint(1, 12))),
        )


def drawn(seed: int, *, calls: bool = True) -> Plan:
    """The plan of a seed. Without `calls` it is as it was before those were drawn: seeds that had
    found something by then find it in that life.
    """
    chance = Random(seed)
    ends = chance.choice((5.0, 5.0, 60.0, 60.0, 60.0, 600.0, 600.0, 7200.0))
    drawing = _Drawing(chance, ends=ends, durable=chance.random() < 0.5)
    drawing.small_events = chance.random() < 0.3
    two = chance.random() < 0.6
    destinations = (FIRST, SECOND) if two else (FIRST,)
    settings = _settings(chance, durable=drawing.durable)
    if drawing.small_events:
        settings["upstream"]["max_event"] = SMALL_EVENT
    if chance.random() < 0.15:
        settings["delivery"]["retry"] = {"give_up_after": "60s"}
    kafka = chance.choice(("", "", "delivered"))
    if kafka and drawing.durable and settings["delivery"]["ordering"] == "none":
        kafka = chance.choice(("delivered", "disk"))
    places = (
        *destinations,
        *((DISK,) if drawing.durable else ()),
        *((KAFKA,) if kafka else ()),
    )
    acts: list[Act] = [drawing.send() for _ in range(chance.choice((2, 8, 20, 40)))]
    acts += [drawing.odd() for _ in range(chance.choice((0, 0, 1, 5)))]
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
    acts += _holds(drawing, settings["http"])
    acts += [Explain(drawing.moment()) for _ in range(chance.choice((0, 1, 3)))]
    acts += [
        Tap(drawing.moment(), chance.choice((1.0, 30.0)), chance.choice(TAPPED))
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
    if (own := Random(f"logs {seed}")).random() < (0.4 if drawing.durable else 0.2):
        drawing.chance = own
        key = own.choice(KEYS)
        of_logs = LogDrawing(own, ends, lambda: drawing.event(key, LINE))
        logs = of_logs.plan(key, durable=drawing.durable)
        acts += of_logs.acts()
        for _ in range(own.choice((0, 0, 1, 2))):
            at, until, what = of_logs.trouble()
            acts.append(Trouble(at, until, LOGS, what))
        if not drawing.durable:
            acts += [
                replace(restart, how="stop") if restart.how == "drain" else restart
                for restart in (drawing.restart() for _ in range(own.choice((0, 1, 3))))
            ]
            acts += [drawing.trouble((DISK,)) for _ in range(own.choice((0, 0, 1)))]
        drawing.chance = chance
    archive = None
    if drawing.durable and two and (own := Random(f"archive {seed}")).random() < 0.4:
        archive = ArchiveOfLife(
            own.choice(("day", "hour", "hour")), own.choice(("1s", "1s", "30s", "300s"))
        )
        acts = [
            replace(act, what=own.choice(ARCHIVE_FAULTS))
            if isinstance(act, Trouble) and act.where == SECOND
            else act
            for act in acts
        ]
    plan = Plan(
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
    plan = _with_more(plan, Random(f"more {seed}"))
    return _with_calls(plan, Random(f"calls {seed}")) if calls else plan


def _with_more(plan: Plan, chance: Random) -> Plan:
    """With what some lives have besides. It is drawn by itself: so the rest of a seed's plan is as
    it was when it found something.
    """
    settings = dict(plan.settings)
    rules, acts = plan.rules, list(plan.acts)
    if chance.random() < 0.3:
        rules = (*rules, "sets")
        acts = [
            replace(act, rules=(*act.rules, "sets"))
            if isinstance(act, Reload) and chance.random() < 0.5
            else act
            for act in acts
        ]
    acts = [
        replace(act, encoding=LZ64)
        if isinstance(act, Send) and act.encoding == "base64" and chance.random() < 0.5
        else act
        for act in acts
    ]
    if plan.kafka and chance.random() < 0.3:
        settings["kafka"] = {"halt_after": "5s"}
    if plan.durable and plan.small_events and chance.random() < 0.4:
        settings["dead_letters"] = {"max_bytes": chance.choice((12_000, 40_000))}
    acts += [
        Explain(round(chance.uniform(act.at, act.until), 3))
        for act in acts
        if isinstance(act, Trouble) and act.where in plan.destinations and chance.random() < 0.3
    ]
    weather = chance.random()
    if weather < 0.1:
        acts += _storm(plan, chance)
    elif weather < 0.2:
        acts = [act for act in acts if not _is_trouble(act)]
    elif plan.early and not plan.reads_again and chance.random() < 0.5:
        where = chance.choice(plan.destinations)
        at = round(chance.uniform(0.0, plan.ends), 3)
        acts.append(Trouble(at, FOR_EVER, where, chance.choice(("refused", "silent", "503"))))
    for act in [
        restart for restart in acts if isinstance(restart, Restart) and restart.how == "drain"
    ]:
        if chance.random() < 0.5:
            acts.remove(act)
            acts += _drain_in_vain(plan, act, chance)
    acts.sort(key=lambda act: act.at)
    return replace(plan, rules=rules, settings=settings, acts=tuple(acts))


def _with_calls(plan: Plan, chance: Random) -> Plan:
    """With calls that are passed through, or memory that is short for a while, in some lives."""
    acts = list(plan.acts)
    settings = dict(plan.settings)
    if chance.random() < 0.4:
        settings["passthrough"] = {}
        if chance.random() < 0.5:
            settings["passthrough"]["max_body"] = 30_000
        if plan.archive is None and SECOND in plan.destinations and chance.random() < 0.3:
            settings["passthrough"]["destination"] = SECOND
        number = 0
        for _ in range(chance.choice((2, 8, 20))):
            count = chance.choice((1, 1, 2, 5))
            acts.append(
                Call(
                    round(chance.uniform(0.0, plan.ends), 3),
                    chance.randrange(4),
                    chance.choice(CALLS),
                    number,
                    count,
                    chance.choice(KEYS),
                    chance.choice((100, 20_000, 70_000)),
                    chance.random() < 0.3,
                    chance.random() < 0.5,
                    chance.random() < 0.05,
                )
            )
            number += count
        where = replace(plan, settings=settings).calls_to
        if not plan.calm and chance.random() < 0.2:
            acts += _refused_definitions(where, round(chance.uniform(0.0, plan.ends), 3), number)
    if plan.ends <= 600.0 and not plan.calm and chance.random() < 0.1:
        settings["memory"] = True
        for _ in range(chance.choice((1, 3))):
            at = round(chance.uniform(0.0, plan.ends), 3)
            until = min(at + chance.uniform(0.0, chance.choice((0.5, 60.0))), plan.ends)
            acts.append(Trouble(at, until, MEMORY, SHORT))
    acts.sort(key=lambda act: act.at)
    return replace(plan, settings=settings, acts=tuple(acts))


def _refused_definitions(where: str, at: float, number: int) -> Iterator[Act]:
    """A service gives definitions, refuses their key, and answers nothing then."""
    for place, when in enumerate((at, at + 15.0, at + 25.0)):
        yield Call(
            when,
            0,
            DEFINITIONS,
            number + place,
            1,
            KEYS[0],
            0,
            chunked=False,
            conditional=False,
            breaks_off=False,
        )
    yield Trouble(at + 10.0, at + 20.0, where, "401")
    yield Trouble(at + 20.0, at + 30.0, where, "silent")


def _drain_in_vain(plan: Plan, drain: Restart, chance: Random) -> Iterator[Act]:
    """A drain that has all the time for it, while a service fails."""
    yield replace(drain, after=0)
    where = chance.choice(plan.destinations)
    if where == SECOND and plan.archive is not None:
        where = FIRST
    what = chance.choice(("refused", "503", "401", "silent"))
    yield Trouble(max(0.0, drain.at - 2.0), drain.at + drain.away + 300.0, where, what)


def _is_trouble(act: Act) -> bool:
    """Whether an act keeps events from arriving soon, and once."""
    slow = isinstance(act, Weathered) and act.latency > 0.1
    return slow or isinstance(act, Trouble | Restart | Rebalance | Marks | Hold)


def _storm(plan: Plan, chance: Random) -> Iterator[Act]:
    """Much at once, so that things meet."""
    drawing = _Drawing(chance, ends=plan.ends, durable=plan.durable)
    places = [
        *plan.destinations,
        *(DISK for _ in range(plan.durable)),
        *(KAFKA for _ in range(bool(plan.kafka))),
        *(LOGS for _ in range(plan.logs is not None)),
    ]
    for _ in range(8):
        trouble = drawing.trouble(places)
        if trouble.where == LOGS:
            trouble = replace(trouble, what=chance.choice(LOG_FAULTS))
        elif trouble.where == SECOND and plan.archive is not None:
            trouble = replace(trouble, what=chance.choice(ARCHIVE_FAULTS))
        yield trouble
    for _ in range(2):
        yield drawing.odd()
        yield Reload(drawing.moment(), _rules(chance))
        yield ClockJump(drawing.moment(), chance.choice((-7200.0, -1.5, 0.0, 3600.0)))
        if plan.durable:
            yield drawing.restart()
            what = chance.choice(("replay", "drop"))
            yield Marks(drawing.moment(), chance.choice(plan.destinations), what)
        if plan.kafka:
            yield Rebalance(drawing.moment(), chance.choice(((), (0,), (1, 2), (0, 1, 2))))
        yield from _holds(drawing, plan.settings["http"])


def _holds(drawing: _Drawing, http: Mapping[str, int]) -> list[Act]:
    """A crowd, where limits are small enough for it."""
    if http["max_body"] not in SMALL_BODIES and http["max_connections"] != FEW_CONNECTIONS:
        return []
    chance = drawing.chance
    size = min(http["max_body"], 30_000) - 1
    return [
        Hold(drawing.moment(), chance.choice((20, 80)), chance.choice((500, size)))
        for _ in range(chance.choice((0, 1, 2)))
    ]


def _rules(chance: Random) -> tuple[str, ...]:
    return tuple(name for name in OFTEN if chance.random() < 0.4)


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


def _settings(chance: Random, *, durable: bool) -> dict[str, dict[str, Any]]:
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
        "http": {
            "max_body": chance.choice((20_000_000, 20_000_000, *SMALL_BODIES)),
            "max_connections": chance.choice((1024, 1024, FEW_CONNECTIONS)),
        },
    }


_PLACES: Final[Mapping[str, str]] = {
    DISK: "the disk",
    KAFKA: "the brokers",
    LOGS: "the logs",
    MEMORY: "memory",
}
"""Where something goes wrong, besides services."""


def told(act: Act) -> Iterator[str]:
    """An act as a line of a story."""
    if isinstance(act, Send):
        numbers = ", ".join(str(event.number) for event in act.events[:6])
        more = "…" if len(act.events) > 6 else ""
        yield f"sender {act.sender} sends {act.shape} of events {numbers}{more}" + "".join(
            f", {detail}"
            for detail in (act.encoding, act.chunked and "in chunks", act.ack and f"ack {act.ack}")
            if detail
        )
    elif isinstance(act, Trouble):
        where = _PLACES.get(act.where, f"service {act.where}")
        yield f"{where}: {act.what} until {act.until:.3f}"
    elif isinstance(act, Reload):
        yield f"the operator reloads with rules {', '.join(act.rules) or 'none'}"
    elif isinstance(act, OddAct | Call | Hold | Explain | Tap):
        yield _asked(act)
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
        when = f" after {act.after} operations on files" if act.how not in ORDERLY else ""
        yield f"the daemon ends ({act.how}){when}, and is started {act.away} s later" + (
            f", where it is killed after {act.again} operations" if act.again else ""
        )
    else:
        yield f"new connections have segments of {act.segment} bytes and {act.latency} s"


def _asked(act: OddAct | Call | Hold | Explain | Tap) -> str:
    if isinstance(act, OddAct):
        return f"sender {act.sender} sends something odd: {act.what}"
    if isinstance(act, Call):
        return f"a caller asks for {act.what}, {act.count} times from {act.number} on"
    if isinstance(act, Hold):
        return f"a crowd sends {act.connections} bodies of {act.size} bytes at once, slowly"
    if isinstance(act, Explain):
        return "the operator asks where events are"
    return f"the operator watches what is {act.outcome} for {act.seconds} s"
