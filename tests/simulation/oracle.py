"""What was promised, and whether it was kept. It shares no code with the product: what becomes of
an event is worked out here once more, from the plan.
"""

from __future__ import annotations

import json
import math
import re
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from forwarder.core.ports import DeadLetter
from forwarder.deadletter.memory import MemoryDeadLetters
from forwarder.telemetry.snapshot import DestinationFigures, DestinationSnapshot
from tests.simulation.crowd import PIECE, Crowd
from tests.simulation.log_acts import CUT_LINE, READ, REFUSED, Line, LogWrite
from tests.simulation.plan import (
    DISK,
    LEFT_OUT,
    MEMORY,
    OPTIONS,
    ORDERLY,
    OTLP,
    SMALL_BODIES,
    TOO_LARGE,
    UNTIMED,
    Event,
    Plan,
    Produce,
    Rebalance,
    Send,
    Trouble,
)
from tests.simulation.senders import Answered, Rejection, Sender
from tests.simulation.services import LIMIT, Service

if TYPE_CHECKING:
    from forwarder.daemon.pipeline import Pipeline
    from tests.simulation.archive import SimulatedArchive
    from tests.simulation.kafka import SimulatedBrokers
    from tests.simulation.logs import LogFolder

BEGIN: Final = 1_767_225_600.0
CUT: Final = 640
"""Bytes that an event may take in memory beyond its own, once it is a chunk by itself."""
UNREADABLE: Final = ("unmappable", "missing_distinct_id")
"""Why lines become dead letters that no rule and no service has seen."""
FOR_ROOM: Final = ("drop_newest", "drop_oldest")
OVERFLOWED: Final = ("invalid_overflow",)
"""Why events are dropped because a buffer, or the share of dead letters, was full."""
LEAVING: Final = 10.0
"""Seconds that giving a partition back takes at most."""
SOON: Final = 20.0
"""Seconds within which an event is delivered where nothing goes wrong."""
MISSING: Final = "accepted, dropped for want of room"


REASONS: Final[Mapping[str, str]] = {
    "no name": "missing_event",
    "no id": "missing_distinct_id",
    "a number for a name": "invalid_event",
    "no object": "invalid_event",
    OPTIONS: "invalid_event",
    "half a character": "lone_surrogate",
    "no JSON": "undecodable",
    "no key": "invalid_token",
    TOO_LARGE: "too_large",
    UNTIMED: "missing_timestamp",
}
"""Of the dead letters of events with flaws."""
READABLE: Final = ("no id", OPTIONS, TOO_LARGE, UNTIMED)
"""Flaws of events whose names routes can read."""
LASTING: Final = (TOO_LARGE, "half a character")
"""Flaws of events that are never dropped: without room for them their request is rejected."""
_NUMBER: Final = re.compile(rb'"n": ?([0-9]+)')


LEAST: Final = 40_000
"""Bytes that may always be received, in the lives where little may be (`shares.LEAST`)."""
SMALL: Final = 2000
"""Bytes up to which a body is never too much, in those lives (`limits.SMALL_BODY`)."""


class Promise(Exception):
    """A promise that was broken."""


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter."""

    reason: str
    data: bytes

    @property
    def known(self) -> tuple[str, bytes | int | None]:
        """What it is known by, as a line is (`Line.letter`)."""
        mapped = self.reason == "missing_distinct_id"
        return self.reason, _number_inside(self.data) if mapped else self.data


@dataclass
class Evidence:
    """What was seen during a life."""

    plan: Plan
    services: Mapping[str, Service | SimulatedArchive]
    senders: Sequence[Sender]
    disk: Path
    """Where the daemon keeps its files."""
    brokers: SimulatedBrokers
    crowd: Crowd
    rules: list[tuple[float, tuple[str, ...]]] = field(default_factory=list)
    """From when on which rules held."""
    offsets: list[tuple[float, float]] = field(default_factory=lambda: [(0.0, 0.0)])
    """From when on the wall clock was so many seconds off."""
    began: dict[int, float] = field(default_factory=dict)
    """When each event was handed to its sender."""
    ends: list[tuple[float, str]] = field(default_factory=list)
    """When the daemon has ended before its last end, and how."""
    stops: list[float] = field(default_factory=list)
    """When it was told to end."""
    marked: defaultdict[tuple[str, str], set[int | None]] = field(
        default_factory=lambda: defaultdict(set)
    )
    """The events of dead letters of a destination that were marked, for replay or to be dropped."""
    replaced: list[tuple[float, float]] = field(default_factory=list)
    """From when till when a new program took its place."""
    starts: list[float] = field(default_factory=list)
    """When it has started."""
    pipeline: Pipeline | None = None
    """While it runs."""
    logs: LogFolder | None = None
    broken: list[Promise] = field(default_factory=list)
    """What was noticed within a step of the daemon, which would take it for an error."""
    marked_letters: set[tuple[str, bytes | int | None]] = field(default_factory=set)
    """Dead letters that were marked, by what they are known by."""

    @property
    def events(self) -> Iterator[Event]:
        """All that are sent."""
        for act in self.plan.acts:
            if isinstance(act, Send | Produce | LogWrite):
                yield from act.events

    def runs(self, begin: float, end: float) -> bool:
        """Whether the daemon ran all the time between, and wasn't about to end."""
        before = [at for at in self.starts if at <= begin]
        return bool(before) and not any(
            before[-1] < at <= end + 1.0 for at in (*self.stops, *(at for at, _ in self.ends))
        )

    def sent(self, events: Sequence[Event]) -> None:
        """A request is handed to its sender, or records to the brokers."""
        for event in events:
            self.began[event.number] = self.brokers.loop.time()

    def accepted(self, send: Send) -> None:
        """A request was answered 200 just now. Raises `Promise` if its level isn't reached."""
        if send.ack == "delivered" and self.pipeline is not None:
            self._delivered(send.events, "was answered 200 at the level delivered")

    def committed(self, key: tuple[str, int], offset: int) -> None:
        """An offset is committed just now. Raises `Promise` if what is before it isn't settled."""
        before = self.brokers.committed.get(key, 0)
        # what a full buffer drops is settled, and counted
        drops = self.plan.settings["buffer"]["when_full"] != "reject"
        if self.plan.kafka == "delivered" and not drops:
            events = [
                record.event
                for record in self.brokers.records[key]
                if before <= record.offset < offset and record.event is not None
            ]
            self._delivered(events, f"is before the committed offset {offset}")

    def passed(self, lines: Sequence[Line]) -> None:
        """A position behind these lines is stored just now: they have to be settled."""
        assert self.logs is not None
        drops = self.plan.settings["buffer"]["when_full"] != "reject"
        if self.logs.plan.settings["commit"] == "delivered" and not drops:
            why = "is before a stored position"
            try:
                self._delivered([line.event for line in lines if line.kind in READ], why)
                self.refused([line for line in lines if line.kind in REFUSED], why)
            except Promise as broken:
                self.broken.append(broken)

    def refused(self, lines: Sequence[Line], why: str) -> None:
        """Raises `Promise` if lines that are no events aren't dead letters for the right reason."""
        if not lines:
            return
        known = set(self.marked_letters)
        for name in self.services:
            known |= {letter.known for letter in self.letters(name)}
        for line in lines:
            optional = line.kind == "nobody's" and not self.required(line.event)
            if line.letter not in known and not optional:
                raise Promise(
                    f"line {line.event.number} ({line.kind}) {why}, and is no dead letter"
                )

    def _delivered(self, events: Sequence[Event], why: str) -> None:
        letters = {
            name: {
                *(number_of(letter.data) for letter in self.letters(name)),
                *self.marked[name, "drop"],
                *self.marked[name, "replay"],
            }
            for name in self.services
        }
        there = {
            name: {stored.event["properties"].get("n") for stored in service.stored}
            for name, service in self.services.items()
        }
        for event in events:
            for name in self.required(event):
                if (
                    event.number not in there[name]
                    and event.number not in letters[name]
                    and not self.may_drop(event)
                    and not (event.flaw and self.plan.few_letters)
                    and self.plan.settings["buffer"]["when_full"] != "drop_newest"
                ):
                    raise Promise(f"event {event.number} {why}, and isn't at {name}")

    def is_all_read(self) -> bool:
        """Whether all records of the topic are committed."""
        return all(
            self.brokers.committed.get(key, 0) == self.brokers.end(key)
            for key in self.brokers.records
            if self.brokers.end(key)
        )

    def answers(self) -> Iterator[Answered]:
        """What was asked, and how it was answered: requests, and records as if each were one."""
        for sender in self.senders:
            yield from sender.answers
        end = self.brokers.loop.time()
        for part, line in self.logs.due() if self.logs is not None else ():
            began = self.began[line.event.number]
            send = Send(began, 0, (line.event,), "record", "", "delivered", 1, False)
            read = line.kind in READ
            yield Answered(
                send,
                began,
                [200] if read else [],
                end,
                part=part,
                events=[line.event] if read else [],
            )
        for (_, partition), log in self.brokers.records.items():
            for record in log:
                if record.event is not None:
                    began = self.began[record.event.number]
                    send = Send(began, 0, (record.event,), "record", "", "delivered", 1, False)
                    yield Answered(
                        send,
                        began,
                        [200],
                        end,
                        part=f"partition {partition}",
                        events=[record.event],
                    )

    def letters(self, name: str) -> list[Letter]:
        """The dead letters of a destination."""
        if self.plan.has_files:
            return [
                Letter(reason, data) for reason, data in self._query(name, "SELECT reason, data")
            ]
        assert self.pipeline is not None
        letters: list[Letter] = []
        for destination in self.pipeline._parts.destinations:
            store = destination.stores.dead_letters
            if destination.name in (name, "") and isinstance(store, MemoryDeadLetters):
                letters = [
                    Letter(letter.reason.value, letter.data) for letter in store.dead_letters
                ]
        return letters

    def has_marks(self, name: str) -> bool:
        """Whether dead letters of a destination are marked."""
        return any(mark for (mark,) in self._query(name, "SELECT mark"))

    def letter_file(self, name: str) -> Path | None:
        """The file with the dead letters of a destination, if there is one."""
        files = [
            self.disk / folder / "dead-letters.db" for folder in (f"worker-0-{name}", "worker-0")
        ]
        return next((file for file in files if file.exists()), None)

    def _query(self, name: str, what: str) -> list[Any]:
        file = self.letter_file(name)
        if file is None:
            return []
        with closing(sqlite3.connect(file)) as database:
            return database.execute(f"{what} FROM letters").fetchall()

    def is_sure(self, answered: Answered, *, count_alone: bool = False) -> bool:
        """Whether what was answered 200 is durable: at its level, or because the daemon ended in
        good order ever since. `count_alone`: no sender waits until it is, and it ends with the
        process where the buffer does.
        """
        durable = answered.send.ack in ("", "disk", "delivered") and self.plan.durable
        lasts = ORDERLY if self.plan.durable or not count_alone else ()
        return (durable and not count_alone) or not any(
            how not in lasts and at >= answered.began for at, how in self.ends
        )

    def rules_between(self, begin: float, end: float) -> list[tuple[str, ...]]:
        """The rules that held then."""
        return _between(self.rules, begin, end)

    def offset(self, begin: float) -> float:
        """By how much the wall clock was behind at most from then on."""
        # acts that came due together happen at one instant: the clock may have been set after it
        return min(_between(self.offsets, math.nextafter(begin, 0.0), math.inf))

    def dropped(self, *reasons: str) -> Counter[str]:
        """How many events each destination has dropped for these reasons."""
        assert self.pipeline is not None
        return Counter(
            {
                _name(figures) or self.plan.destinations[0]: sum(
                    lane.dropped.get(reason, 0) for lane in figures.lanes for reason in reasons
                )
                for figures in books_of(self.pipeline)
            }
        )

    def is_sent_again(self, event: Event) -> bool:
        """Whether a dead letter of the event was marked for replay."""
        return any(event.number in self.marked[name, "replay"] for name in self.services)

    def may_drop(self, event: Event) -> bool:
        """Whether rules may have dropped the event."""
        now = next(iter(self.services.values())).loop.time()
        held = self.rules_between(self.began[event.number], now)
        dropped = event.name == "noise" and any("drops" in rules for rules in held)
        return event.flaw == LEFT_OUT or (dropped and not event.flaw)

    def required(self, event: Event) -> list[str]:
        """The destinations that have to get the event."""
        wanted = destinations_of(self.plan, event)
        first = self.plan.destinations[0]
        return [name for name in wanted if name == first or not self.plan.optional]

    def check_crowd(self) -> None:
        """The crowd has no more than its share. Raises `Promise`. What comes while memory is short
        is read, and not kept.
        """
        http = self.plan.settings["http"]
        most = self.crowd.connections
        if most > http["max_connections"] * 7 // 8:
            raise Promise(f"one address has {most} connections")
        now = self.brokers.loop.time()
        if any(
            isinstance(act, Trouble) and act.where == MEMORY and act.at <= now <= act.until + 60.0
            for act in self.plan.acts
        ):
            return
        small = http["max_body"] in SMALL_BODIES
        whole = -(-http["max_body"] * 8 // 7) + (LEAST if small else 4_000_000)
        beyond = most * ((SMALL if small else 16_384) + PIECE)
        if self.crowd.received > whole * 7 // 8 + beyond:
            raise Promise(f"{self.crowd.received} bytes are being received from one address")

    def check(self, *, closed: bool = False) -> None:
        """The books balance, and nothing is fuller than it may be. Raises `Promise`."""
        self.check_crowd()
        if self.broken:
            raise self.broken[0]
        if self.pipeline is None:
            return
        for figures in books_of(self.pipeline):
            # chunks that were cut afterwards take more (`buffer.memory`)
            cut = CUT * sum(lane.buffered for lane in figures.lanes)
            if figures.buffer_bytes > figures.buffer_limit_bytes + (
                0 if self.plan.durable else cut
            ):
                raise Promise(f"the buffer holds {figures.buffer_bytes} bytes")
            if closed and figures.buffer_bytes:
                raise Promise(f"{figures.buffer_bytes} bytes are buffered after the end")
            for lane in figures.lanes:
                left = (
                    sum(lane.received.values())
                    - lane.delivered
                    - lane.buffered
                    - sum(lane.dead_lettered.values())
                    - sum(lane.dropped.values())
                )
                if left:
                    raise Promise(f"the books of {_name(figures) or 'a'} don't balance: {lane}")


_T = TypeVar("_T")


def _between(held: Sequence[tuple[float, _T]], begin: float, end: float) -> list[_T]:
    """What held at some time between two."""
    before = [what for at, what in held if at <= begin]
    return [*before[-1:], *[what for at, what in held if begin <= at <= end]]


def _name(figures: DestinationFigures) -> str:
    return figures.name if isinstance(figures, DestinationSnapshot) else ""


def books_of(pipeline: Pipeline) -> Sequence[DestinationFigures]:
    """The figures of each destination; one that is alone has those of the whole."""
    snapshot = pipeline.snapshot()
    return snapshot.destinations or [snapshot]


def destinations_of(plan: Plan, event: Event) -> Sequence[str]:
    """Where the first route that matches leads. Of an event that can't be read only the key is
    known, of a record without a key nothing.
    """
    if event.flaw in ("no JSON", "no key"):
        return plan.destinations[:1]
    name = "" if event.flaw and event.flaw not in READABLE else event.name
    for route in plan.routes:
        match = route.get("match", {})
        if match.get("event", name) == name and (match.get("api_key", event.key) == event.key):
            return list(route["to"])
    return plan.destinations[:1]


def expected(event: Event, rules: Sequence[str]) -> dict[str, Any] | None:
    """The event as these rules leave it: None if they drop it, empty if one fails on it."""
    if event.flaw == LEFT_OUT or ("drops" in rules and event.name == "noise" and not event.flaw):
        return None
    data = event.data
    if "renames" in rules and event.name == "old name":
        data["event"] = "new name"
    if "removes" in rules and event.name == "signup":
        del data["properties"]["secret"]
    if "sets" in rules and event.name == "purchase" and not event.flaw:
        if event.spoiled:
            return {}
        data["properties"]["cart"] = {"total": 1}
    return data


def _number_inside(data: bytes) -> int | None:
    """The number of an event that can be read as one."""
    try:
        number = json.loads(data)["properties"]["n"]
    except (ValueError, KeyError, TypeError):
        return None
    return number if isinstance(number, int) else None


def number_of(data: bytes) -> int | None:
    """The number of an event by its bytes."""
    match = _NUMBER.search(data)
    return int(match[1]) if match else None


Letters = Mapping[str, Sequence[Letter]]
"""The dead letters of each destination."""


def judge(
    evidence: Evidence, pipeline: Pipeline, left: Sequence[DeadLetter], met: Counter[str]
) -> None:
    """Raises the first `Promise` that was broken in a life that is over; `left`: the dead letters
    that its end has made. `met`: what was reached is added there.
    """
    evidence.pipeline = pipeline
    letters = {name: evidence.letters(name) for name in evidence.services}
    first = next(iter(letters))
    letters[first] += [Letter(letter.reason.value, letter.data) for letter in left]
    if evidence.logs is not None:
        for dead_letters in letters.values():
            _judge_lines(evidence, evidence.logs, dead_letters)
    unsent = {event.number for event in evidence.events if event.flaw or event.spoiled}
    if evidence.plan.replays and (
        left_over := [
            letter
            for dead_letters in letters.values()
            for letter in dead_letters
            if number_of(letter.data) not in unsent and not _is_of_line(evidence, letter)
        ]
    ):
        raise Promise(f"dead letters are left that were to be sent again: {left_over}")
    there = {name: _arrived(evidence, name, met) for name in evidence.services}
    met.update(
        f"dead letter: {letter.reason}"
        for dead_letters in letters.values()
        for letter in dead_letters
    )
    for books in books_of(pipeline):
        for lane in books.lanes:
            met.update({f"dropped: {reason}": count for reason, count in lane.dropped.items()})
    _judge_counts(evidence)
    _judge_senders(evidence, met)
    _judge_times(evidence, met)
    if evidence.plan.settings["delivery"]["ordering"] == "per_distinct_id":
        for name in evidence.services:
            _judge_order(evidence, name, met)
    _judge_fates(evidence, there, letters, met)


def _judge_times(evidence: Evidence, met: Counter[str]) -> None:
    """A service that asks for time gets it; where nothing goes wrong, an event comes soon and once.
    Raises `Promise`.
    """
    for name, service in evidence.services.items():
        for said, at in service.hasty if isinstance(service, Service) else ():
            if evidence.runs(said, at):
                raise Promise(
                    f"a request came to {name} at {at:.3f} s, after a 429 at {said:.3f} s"
                )
    if not evidence.plan.calm or evidence.ends:
        return
    met["a calm life"] += 1
    for name, service in evidence.services.items():
        if not isinstance(service, Service):
            continue  # an archive's files come when they are full, or old enough
        times: dict[int, list[float]] = defaultdict(list)
        for stored in service.stored:
            times[stored.event["properties"]["n"]].append(stored.at)
        for answered in evidence.answers():
            for event in answered.events if answered.statuses == [200] else ():
                came = times[event.number]
                twice = evidence.logs is not None and event.number in evidence.logs.twins
                if len(came) > 1 and not twice:
                    raise Promise(f"event {event.number} came to {name} {len(came)} times")
                again = bool(event.flaw) or event.spoiled  # they come if they are sent again
                late = came and not again and came[0] > answered.at + SOON
                if late and not answered.part and not evidence.plan.poisoned:
                    raise Promise(
                        f"event {event.number} was accepted at {answered.at:.3f} s, and came to "
                        f"{name} at {came[0]:.3f} s"
                    )


def _judge_fates(
    evidence: Evidence,
    there: Mapping[str, Mapping[int, Sequence[dict[str, Any]]]],
    letters: Letters,
    met: Counter[str],
) -> None:
    """Each accepted event is where it has to be, or it is known why not. Raises `Promise`."""
    drops = evidence.plan.settings["buffer"]["when_full"] != "reject"
    room = evidence.dropped(*FOR_ROOM)
    overflowed = evidence.dropped(*OVERFLOWED)
    for answered in evidence.answers():
        met.update(f"answer {status}" for status in answered.statuses)
        for event in answered.events:
            again = event.spoiled and evidence.is_sent_again(event)
            until = math.inf if again else answered.at
            held = evidence.rules_between(evidence.began[event.number], until)
            wanted = [expected(event, rules) for rules in held]
            for name in evidence.required(event):
                fate = _fate(event, name, wanted, there[name], letters, evidence)
                met[fate] += 1
                if fate != MISSING:
                    continue
                if not evidence.is_sure(answered, count_alone=drops or bool(event.flaw)):
                    met["accepted, lost with the memory that it, or its count, was in"] += 1
                    continue
                counts = overflowed if event.flaw and overflowed[name] else room
                counts[name] -= 1
                if counts[name] < 0:
                    raise Promise(f"event {event.number} was accepted, and isn't at {name}")


def _is_of_line(evidence: Evidence, letter: Letter) -> bool:
    """Whether a dead letter is a line that is no event."""
    return evidence.logs is not None and letter.reason in REFUSED.values()


def _judge_lines(evidence: Evidence, logs: LogFolder, letters: Sequence[Letter]) -> None:
    """Lines that are no events are dead letters, and nothing else of a log is one. Raises
    `Promise`.
    """
    due = [line for _, line in logs.due()]
    evidence.refused([line for line in due if line.kind in REFUSED], "was written")
    known = {line.letter for line in logs.lines() if line.kind in REFUSED}
    flawed = {event.number for event in evidence.events if event.flaw}
    for letter in letters:
        # what can't be read was a line that was cut by a truncation, or by a loss of power
        readable = _number_inside(letter.data) is not None
        of_line = number_of(letter.data) not in flawed
        if of_line and readable and letter.reason in UNREADABLE and letter.known not in known:
            raise Promise(f"{letter.data[:100]!r} is a dead letter ({letter.reason})")


def _arrived(
    evidence: Evidence, name: str, met: Counter[str]
) -> Mapping[int, Sequence[dict[str, Any]]]:
    """The events that a service has stored, by their numbers. Raises `Promise` for one that should
    not have come, or not like that.
    """
    plan = evidence.plan
    events = {event.number: event for event in evidence.events}
    of_logs = {
        event.number for act in plan.acts if isinstance(act, LogWrite) for event in act.events
    }
    texts: dict[str, str] = {}
    derived: dict[int, str] = {}
    arrivals: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for stored in evidence.services[name].stored:
        number = stored.event["properties"].get("n")
        event = events.get(number)
        if event is None:
            raise Promise(f"nobody has sent what came to {name}: {stored.text[:200]}")
        if event.flaw and not _may_come_with_flaw(event, name, evidence):
            raise Promise(f"event {number} came to {name}: {event.flaw}")
        if event.shape in OTLP and event.time:
            uuid = stored.event["uuid"]
            if derived.setdefault(event.number, uuid) != uuid:
                raise Promise(f"event {number} came to {name} as two events")
        if stored.key != event.key:
            raise Promise(f"event {number} came to {name} with the key {stored.key}")
        if name not in destinations_of(plan, event):
            raise Promise(f"event {number} came to {name}, where no route leads")
        of_log = number in of_logs
        before = texts.setdefault(str(number) if of_log else stored.event["uuid"], stored.text)
        if before != stored.text and not _is_received_anew(event, evidence, of_log=of_log):
            raise Promise(f"event {number} came to {name} with other bytes than before")
        arrivals[number].append(stored.event)
        met["delivered"] += 1
    return arrivals


def _may_come_with_flaw(event: Event, name: str, evidence: Evidence) -> bool:
    """Whether the operator has sent its dead letter again as it is, and a service might store it
    like that (docs/reference/v1.md); or with the time at which it was read
    (docs/reference/reasons.md).
    """
    return event.flaw in (OPTIONS, UNTIMED) and event.number in evidence.marked[name, "replay"]


def _is_received_anew(event: Event, evidence: Evidence, *, of_log: bool) -> bool:
    """Whether the event is another one when its sender repeats it: without a time, or because other
    rules hold by then; or when its line is read again, because a part of its log was lost.
    """
    held = evidence.rules_between(evidence.began[event.number], math.inf)
    if len(set(held)) > 1:
        return True
    if of_log:
        logs = evidence.logs
        return logs is not None and (logs.shrunk or event.number in logs.twins)
    return event.flaw == UNTIMED or (bool(event.uuid) and not event.time)


def _judge_order(evidence: Evidence, name: str, met: Counter[str]) -> None:
    """Events of one person come in the order in which they were accepted. Raises `Promise`."""
    first: dict[int, tuple[float, int]] = {}
    for place, stored in enumerate(evidence.services[name].stored):
        first.setdefault(stored.event["properties"]["n"], (stored.at, place))
    of_person: dict[tuple[str, str], list[tuple[Answered, Event]]] = defaultdict(list)
    for answered in evidence.answers():
        for event in answered.events:
            # what may become a dead letter is out of its turn afterwards, as is what a rule or a
            # full buffer drops at first, when its partition is read again, and what was in flight
            # at a kill
            late = (
                event.poisoned
                or not (evidence.plan.durable or evidence.is_sure(answered))
                or _may_stay_behind(event, evidence)
                or event.spoiled
                or evidence.may_drop(event)
                or _may_be_dropped_at_first(event, evidence)
                or _may_be_too_large(event, name, evidence)
            )
            if (
                event.number in first
                and not late
                and event.number not in evidence.marked[name, "replay"]
            ):
                of_person[event.key, event.person].append((answered, event))
    for events in of_person.values():
        in_one_request = [
            (before, event)
            for (one, before), (other, event) in pairwise(events)
            if one.whole == other.whole
            and one.is_in_one
            # a loss of power may have left the second half of a try that wasn't answered
            and not any(one.began <= end <= other.at for end, _ in evidence.ends)
        ]
        one_after_the_other = [
            (before, event)
            for other, event in events
            for one, before in events
            if one.at <= other.began
        ]
        for before, event in in_one_request + one_after_the_other:
            met["two events of a person in order"] += 1
            if first[before.number] > first[event.number]:
                raise Promise(
                    f"event {event.number} came to {name} before event {before.number}, which was "
                    "accepted before it"
                )


def _may_stay_behind(event: Event, evidence: Evidence) -> bool:
    """Whether the event may be delivered although its partition was given back: what couldn't be
    written yet is not taken back, and what was before it is read again.
    """
    acts = evidence.plan.acts
    return event.shape == "record" and any(
        rebalance.at >= evidence.began[event.number]
        and broken.at - LEAVING <= rebalance.at <= broken.until
        for rebalance in acts
        if isinstance(rebalance, Rebalance)
        for broken in acts
        if isinstance(broken, Trouble) and broken.where == DISK
    )


def _may_be_dropped_at_first(event: Event, evidence: Evidence) -> bool:
    """Whether a full buffer may have dropped the event before its partition or log was read again:
    a destination that dropped it gets it then.
    """
    began = evidence.began[event.number]
    again = [act.at for act in evidence.plan.acts if isinstance(act, Rebalance)]
    again += [end for end, _ in evidence.ends]
    return (
        evidence.plan.settings["buffer"]["when_full"] != "reject"
        and event.shape in ("record", "line")
        and any(at >= began for at in again)
    )


def _judge_senders(evidence: Evidence, met: Counter[str]) -> None:
    """Each sender gets an answer in time, and what is odd the answer that it deserves, unless the
    daemon ends, or is busy. Raises `Promise`.
    """
    for sender in evidence.senders:
        for answered in sender.answers:
            for rejection in answered.rejections:
                _judge_rejection(evidence, answered, rejection, met)
        for began, at in sender.starved:
            if evidence.runs(began, at):
                raise Promise(
                    f"a request that began at {began:.3f} s got no answer in all the time"
                )
        for at in sender.refused:
            if any(begin <= at <= end for begin, end in evidence.replaced):
                raise Promise(f"a connection was refused at {at:.3f} s, during a restart in place")
        for answer in sender.odd:
            met[f"odd: {answer.odd.what}: {answer.status}"] += 1
            if answer.status not in (*answer.wanted, 503) and (
                answer.status or evidence.runs(answer.began, answer.at)
            ):
                raise Promise(
                    f"{answer.odd.what} was answered {answer.status}, not {answer.wanted[0]}"
                )


def _judge_rejection(
    evidence: Evidence, answered: Answered, rejection: Rejection, met: Counter[str]
) -> None:
    """A request is only rejected for what is so. Raises `Promise`."""
    plan = evidence.plan
    http = plan.settings["http"]
    first = answered.send.events[0].number
    said = f"event {first} and what is with it were answered {rejection.status}: {rejection.why}"
    met[f"answer {rejection.status}: {rejection.why[:40]}"] += 1
    large = max(rejection.size, rejection.unpacked) > min(
        http["max_body"] - 100, plan.settings["buffer"]["max_bytes"] // 8
    )
    # of an array with more commas than an empty buffer could hold events not all is looked at
    array = large and any(event.flaw == "no object" for event in answered.send.events)
    lasting = plan.few_letters and any(event.flaw in LASTING for event in answered.send.events)
    too_much = rejection.status == 413 and (large or lasting)
    if rejection.status != 503 and not (too_much or array):
        raise Promise(said)
    if "Too much is being received" in rejection.why and rejection.size <= SMALL:
        raise Promise(f"{said}, with {rejection.size} bytes")
    if (
        "too many connections" in rejection.why
        and rejection.connections <= http["max_connections"] // 8
    ):
        raise Promise(f"{said}, with {rejection.connections} connections of senders")


def _judge_counts(evidence: Evidence) -> None:
    """The books have received each event that was accepted, and none that nobody has sent."""
    assert evidence.pipeline is not None
    plan = evidence.plan
    first = plan.destinations[0]
    least = Counter[str]()
    most = Counter[str]()
    for answered in evidence.answers():
        accepted = {event.number for event in answered.events}
        for event in answered.send.events:
            if event.flaw == LEFT_OUT:
                continue
            held = evidence.rules_between(evidence.began[event.number], answered.at)
            dropped = {expected(event, rules) is None for rules in held}
            for name in {*destinations_of(plan, event), first}:
                # a record may be read any number of times
                most[name] += 1000 if answered.send.shape == "record" else answered.maybe
            if event.number not in accepted or len(dropped) > 1:
                continue
            for name in [first] if dropped == {True} else destinations_of(plan, event):
                # an optional destination is not waited for
                by_chance = dropped == {True} or (plan.optional and name != first)
                by_chance = by_chance or not plan.durable
                if plan.optional and name != first and evidence.ends:
                    continue  # what it drops while its files are full is counted in memory alone
                least[name] += evidence.is_sure(answered, count_alone=by_chance)
    for line in evidence.logs.lines() if evidence.logs is not None else ():
        # it may have been read before its file was truncated
        for name in {*destinations_of(plan, line.event), first}:
            most[name] += 1000
    for figures in books_of(evidence.pipeline):
        name = _name(figures) or first
        received = sum(sum(lane.received.values()) for lane in figures.lanes)
        if evidence.logs is not None and (evidence.logs.shrunk or evidence.logs.met[CUT_LINE]):
            # lines that were read are gone, or were read in pieces
            most[name] = max(most[name], received)
        if not least[name] <= received <= most[name]:
            raise Promise(
                f"the books of {name} have received {received} events, wanted are {least[name]} to "
                f"{most[name]}"
            )


def _fate(  # noqa: PLR0917 - all of it says what became of one event
    event: Event,
    name: str,
    wanted: Sequence[dict[str, Any] | None],
    there: Mapping[int, Sequence[dict[str, Any]]],
    letters: Letters,
    evidence: Evidence,
) -> str:
    """What became of an accepted event at a destination; `MISSING` if nothing is known of it.
    Raises `Promise` if that isn't so as promised.
    """
    stored_events = there.get(event.number, ())
    began = evidence.began[event.number]
    earliest = BEGIN + began + evidence.offset(began) - 0.001
    if event.flaw == LEFT_OUT:
        return "accepted, left out"
    if evidence.logs is not None and evidence.logs.shrunk:
        earliest = 0.0  # other lines were read before at the same place
    for copy in () if event.flaw else stored_events:
        if not any(_is(copy, want, earliest) for want in wanted if want):
            raise Promise(f"event {event.number} came to {name} as {copy}, wanted {wanted}")
    if stored_events:
        return "accepted, delivered"
    of_name = letters.get(name) or next(iter(letters.values()))
    for letter in of_name:
        if number_of(letter.data) == event.number:
            if not _is_explained(event, name, letter.reason, evidence):
                raise Promise(
                    f"event {event.number} is a dead letter ({letter.reason}), without a cause"
                )
            before = [event.data] if letter.reason == "rule_failed" else wanted
            if not event.flaw and not any(
                _is(json.loads(letter.data), want, earliest) for want in before if want
            ):
                raise Promise(f"event {event.number} is a dead letter with other data: {letter}")
            return "accepted, dead letter"
    if None in wanted:
        return "accepted, dropped by a rule"
    if event.number in evidence.marked[name, "drop"]:
        return "accepted, dropped by the operator"
    return MISSING


def _is_explained(event: Event, name: str, reason: str, evidence: Evidence) -> bool:
    """Whether the plan has a cause for a dead letter with this reason."""
    plan = evidence.plan
    began = evidence.began[event.number]
    if event.flaw:
        mapped = event.shape in OTLP and event.flaw == "no name"
        if reason == ("unmappable" if mapped else REASONS[event.flaw]):
            return True
        if not _may_come_with_flaw(event, name, evidence):
            return False
    return {
        "refused": event.poisoned,
        "rule_failed": event.spoiled
        and any("sets" in rules for rules in evidence.rules_between(began, math.inf)),
        "too_large": _may_be_too_large(event, name, evidence),
        "lane_halted": bool(plan.kafka or plan.logs),
        "undelivered_at_exit": not plan.durable and (plan.early or bool(plan.restarts)),
        "gave_up": "retry" in plan.settings["delivery"],
    }.get(reason, False)


def _may_be_too_large(event: Event, name: str, evidence: Evidence) -> bool:
    """Whether its service may have answered 413 to the event alone."""
    return len(json.dumps(event.data)) + 200 > LIMIT and any(
        getattr(act, "what", "") == "413" and getattr(act, "where", "") == name
        for act in evidence.plan.acts
    )


def _is(found: Mapping[str, Any], want: Mapping[str, Any], earliest: float) -> bool:
    """Whether an event that was delivered is the one that was wanted."""
    rest = dict(found)
    uuid = rest.pop("uuid", None)
    time = rest.pop("timestamp", None)
    left = {key: value for key, value in want.items() if key not in ("uuid", "timestamp")}
    if not uuid or not time or rest != left:
        return False
    if "uuid" in want and uuid != want["uuid"]:
        return False
    if "timestamp" in want:
        return bool(time == want["timestamp"])
    return datetime.fromisoformat(time).timestamp() >= earliest
