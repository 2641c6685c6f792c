"""An intake over a real buffer, real dead letters and real books, and the events that it
accepted.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from forwarder.buffer.memory import MemoryBuffer
from forwarder.config.rule_settings import RuleSettings
from forwarder.core.ack import AckLevel
from forwarder.core.event import Chunk, Lane
from forwarder.core.ports import DropCause, Incoming, Ordering, Reason, WhenFull
from forwarder.core.shares import LEAST, Headroom
from forwarder.intake.admission import Admission, Gate
from forwarder.intake.conditions import Conditions
from forwarder.intake.intake import Intake, IntakePolicy
from forwarder.intake.lane_registry import KnownKeys, LaneRegistry, Quotas
from forwarder.intake.large import Decoder
from forwarder.intake.otlp import OtlpMapping
from forwarder.rules.event_rules import EventRules, compile_rules
from forwarder.rules.id_files import IdFiles
from forwarder.stamping.stamp_event import ReadingRules
from forwarder.telemetry.books import Books
from forwarder.wire.effort import INLINE, Effort
from tests.support.clock import FakeClock
from tests.support.waiters import IntakeCallback, SlowBuffer, SlowDeadLetters

KEY = "phc_good"
UUID = "0190a0a0-1111-7222-8333-444455556666"
NOW = "2026-01-01T00:00:00.000Z"
"""What a fake clock that was not turned says, as a stamp."""


def compiled_rules(*rules: Mapping[str, Any], max_event: int = 1_000_000) -> EventRules | None:
    """Rules as they are configured; None if there are none."""
    return compile_rules(
        [RuleSettings.parse(rule) for rule in rules], IdFiles(FakeClock()), max_event
    )


class AllKnown(KnownKeys):
    """A key check that has verified every key there can be."""

    def __contains__(self, api_key: str) -> bool:
        return True


class LaneFigures(NamedTuple):
    """What the books say of one lane."""

    received: int
    buffered: int
    dead_lettered: Mapping[Reason, int] = MappingProxyType({})
    dropped: Mapping[DropCause, int] = MappingProxyType({})


@dataclass
class IntakeRig:
    """An intake and all that it writes to."""

    max_bytes: int = 64 * 1024 * 1024
    max_lanes: int = 100
    max_body: int = 20_000_000
    max_event: int = 1_000_000
    dead_letter_bytes: int = 16 * 1024 * 1024
    ordering: Ordering = Ordering.NONE
    api_keys: Collection[str] = ()
    halted: set[Lane] = field(default_factory=set)
    clock: FakeClock = field(default_factory=FakeClock)
    ack: AckLevel = AckLevel.MEMORY
    when_full: WhenFull = WhenFull.REJECT
    durable: bool = False
    """Whether the buffer is like one on disk: `slow` says when its writes are finished."""
    known: KnownKeys = field(default_factory=AllKnown)
    decoder: Decoder | None = None
    effort: Effort = INLINE
    otlp: OtlpMapping | None = None
    rules: Sequence[Mapping[str, Any]] = ()
    """As they are configured."""

    def __post_init__(self) -> None:
        self.slow = SlowBuffer(self.max_bytes)
        self.buffer: MemoryBuffer = self.slow if self.durable else MemoryBuffer(self.max_bytes)
        self.buffer.pool_of = self.known.pool_of
        self.dead_letters = SlowDeadLetters(self.dead_letter_bytes, self.max_body)
        self.books = Books()
        self.headroom = Headroom(self.max_body + LEAST, self.buffer)
        self.woken = 0
        """How often the admission reported new events in the buffer."""
        self.admission = Admission(
            self.buffer,
            self.dead_letters,
            self.books,
            LaneRegistry(self.max_lanes, self.buffer.holdings, self.known, api_keys=self.api_keys),
            Quotas(self.buffer, self.halted, self.known),
            clock=self.clock,
            on_accepted=self._wake,
            when_full=self.when_full,
        )
        ordered = self.ordering is Ordering.PER_DISTINCT_ID
        self.conditions = Conditions(
            self.clock,
            ReadingRules(
                self.max_body,
                self.max_event,
                self.admission.quotas.max_events,
                1.0,
                (ordered, ordered),
            ),
            rules=compiled_rules(*self.rules, max_event=self.max_event),
            decoder=self.decoder,
            headroom=self.headroom,
            effort=self.effort,
        )
        self.gate = Gate(self.admission, self.conditions)
        self.intake = Intake(
            self.gate,
            IntakePolicy(ack=self.ack, durable=self.durable),
            headroom=self.headroom,
            otlp=self.otlp,
        )

    def _wake(self) -> None:
        self.woken += 1

    def take(self, body: Any, *, client: str | None = None, **hints: Any) -> None:
        """Have a body accepted: bytes as they are, anything else as JSON."""
        self.offer(body, IntakeCallback(), client=client, **hints)

    def offer(self, body: Any, callback: IntakeCallback, **hints: Any) -> bool:
        """Have a body accepted, as `take` does; return whether the level is reached."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.intake.accept(Incoming(data, **hints), callback)

    def ask(self, *events: Any, **hints: Any) -> IntakeCallback:
        """Have events of the good key accepted; return the callback, which has the answer."""
        callback = IntakeCallback()
        callback.reached = self.offer(batch(*events), callback, **hints)
        assert self.balanced()
        return callback

    def chunks(self) -> list[Chunk]:
        """The pending chunks, by lane. They stay in the buffer."""
        chunks: list[Chunk] = []
        for lane in self.buffer.waiting_lanes():
            queue = self.buffer.queue(lane)
            lane_chunks = [queue.popleft() for _ in range(len(queue))]
            queue.put_back(lane_chunks)
            chunks += lane_chunks
        return chunks

    def events(self) -> list[bytes]:
        """The pending events as they will be sent, without white space around them."""
        return [event.strip() for chunk in self.chunks() for event in chunk.events()]

    def one(self) -> dict[str, Any]:
        """The only pending event."""
        (event,) = self.events()
        return unique(event)

    def figures(self, lane: Lane | None) -> LaneFigures:
        """The account of a lane."""
        account = self.books.accounts[lane]
        return LaneFigures(
            sum(account.received.values()),
            account.buffered,
            dict(account.dead_lettered),
            dict(account.dropped),
        )

    def balanced(self) -> bool:
        """Whether the books count as buffered what the buffer has, for every lane."""
        lanes = [lane for lane in {*self.books.accounts, *self.buffer.holdings} if lane is not None]
        return all(self.books.accounts[lane].buffered == self.buffer.count(lane) for lane in lanes)

    def untouched(self) -> bool:
        """Whether nothing was accepted and nothing counted."""
        counted = any(account.received for account in self.books.accounts.values())
        return not (
            counted
            or self.buffer.used
            or self.buffer.holdings
            or self.dead_letters.dead_letters
            or self.woken
        )


def unique(event: bytes) -> dict[str, Any]:
    """An event, decoded by another decoder. Fails if a key of the event itself occurs twice."""

    def pairs(members: list[tuple[str, Any]]) -> dict[str, Any]:
        return {"\0pairs": members}

    members = json.loads(event, object_pairs_hook=pairs)["\0pairs"]
    keys = [key for key, _ in members]
    assert len(keys) == len(set(keys)), f"twice: {keys}"
    decoded: dict[str, Any] = json.loads(event)
    return decoded


def stamped_event(**changes: Any) -> dict[str, Any]:
    """An event that is complete, with these changes; None removes a member."""
    event = {
        "event": "click",
        "distinct_id": "ann",
        "uuid": UUID,
        "timestamp": "2025-12-31T12:00:00Z",
        "properties": {"a": 1},
        **changes,
    }
    return {key: value for key, value in event.items() if value is not None}


def batch(*events: Any, **envelope: Any) -> dict[str, Any]:
    """A batch body of the good key."""
    return {"api_key": KEY, **envelope, "batch": list(events)}
