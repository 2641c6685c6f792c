"""Scheduler and limiter against a model, under random outcomes: whatever the upstream does, every
event settles once, in order.
"""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from forwarder.buffer.memory import MemoryBuffer
from forwarder.core.clock import Backoff
from forwarder.core.event import Ack, Lane
from forwarder.core.outcome import Delivered, Reply
from forwarder.core.ports import DropReason, Ordering, Reason
from forwarder.deadletter.memory import MemoryDeadLetters
from forwarder.delivery.batching import Batcher, BatchPolicy
from forwarder.delivery.delivery import TICK_SECONDS
from forwarder.delivery.halting import Halts
from forwarder.delivery.lane_state import PARALLEL_AFTER, RetryPolicy
from forwarder.delivery.limiter import MAXIMUM, Limiter, load_signal
from forwarder.delivery.outcomes import Settler
from forwarder.delivery.scheduler import Scheduler
from forwarder.delivery.splitting import Attempt
from forwarder.telemetry.books import Books
from forwarder.wire.envelope import envelope_size
from forwarder.wire.identity import ids_of
from forwarder.wire.strict import Oddity, Suspicion
from tests.delivery.rig import chunk_of, event
from tests.support.clock import MIDNIGHT
from tests.support.waiters import IntakeCallback

pytestmark = pytest.mark.slow

LANES = [
    Lane("phc_aaaaaaaaaaaa"),
    Lane("phc_aaaaaaaaaaaa", historical=True),
    Lane("phc_bbbbbbbbbbbb"),
]
PEOPLE = st.sampled_from(["ann", "bob", "cat", "dan", "eve", "fay", "guy", "hal"])
OK = Reply(200)
BAD_REQUEST = Reply(400)
REPLIES = st.one_of(
    st.just(OK),
    st.sampled_from([OK, Reply(413), Reply(400)]),
    st.sampled_from([400, 413, 429, 500, 503, 401, 403, 404, 204, 302, 418]).map(Reply),
    st.sampled_from([Reply(None, error="reset"), Reply(503, retry_after=20.0)]),
    st.sampled_from([Reply(200, "text/html", body=b"<html>"), Reply(200, body=b"?")]),
)


def suspicion_of(raw: bytes) -> Suspicion | None:
    """What is suspected of an event: half of them are of three kinds, more or less so."""
    number = int(msgspec.json.decode(raw)["event"])
    oddities = {1: (Oddity.NUL,), 3: (Oddity.LONG_INTEGER,), 5: (Oddity.NUL, Oddity.NESTED_60)}.get(
        number % 6
    )
    return None if oddities is None else Suspicion(oddities, tuple(number % 4 for _ in oddities))


class DeliveryMachine(RuleBasedStateMachine):
    """Offers events, lets time pass, and answers requests in any order with anything."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.buffer = MemoryBuffer(10_000_000)
        self.books = Books()
        self.letters = MemoryDeadLetters(5_000)
        self.flying: list[Attempt] = []
        self.offered: Counter[str] = Counter()
        self.accepted: dict[Lane, list[bytes]] = {lane: [] for lane in LANES}
        self.units: list[tuple[Ack, IntakeCallback]] = []
        self.withdrawn: list[str] = []

    @property
    def wall(self) -> float:
        """The wall clock, which is coarser than the monotonic one."""
        return MIDNIGHT + self.now

    @initialize(
        ordering=st.sampled_from(list(Ordering)),
        chance=st.randoms(use_true_random=False),
        give_up_after=st.sampled_from([None, 1.0]),
    )
    def begin(self, ordering: Ordering, chance: object, give_up_after: float | None) -> None:
        """Wire everything for one ordering."""
        self.ordering = ordering
        backoff = Backoff(0.5, 30.0, chance.uniform)  # type: ignore[attr-defined]
        self.halts = Halts(Backoff(1.0, 60.0, chance.uniform))  # type: ignore[attr-defined]
        self.limiter = Limiter()
        self.scheduler = Scheduler(
            batcher=Batcher(self.buffer, BatchPolicy(4_000, 7, 1.0)),
            buffer=self.buffer,
            settler=Settler(self.buffer, self.letters, self.books),
            halts=self.halts,
            policy=RetryPolicy(give_up_after=give_up_after),
            ordering_of=lambda _: ordering,
            backoff=backoff,
        )

    @rule(
        lane=st.sampled_from(LANES),
        people=st.lists(st.tuples(PEOPLE, st.none() | PEOPLE), min_size=1, max_size=4),
        seconds=st.sampled_from([0.0, 1.1, 1.1]),
    )
    def offer(self, lane: Lane, people: list[tuple[str, str | None]], seconds: float) -> None:
        """A sender's request comes in."""
        raw = []
        for person, other in people:
            name = str(self.offered.total())
            self.offered[name] += 1
            raw.append(event(name, person, **({"$anon_distinct_id": other} if other else {})))
        self.books.receive(lane, "http", len(raw))
        chunk = chunk_of(raw, self.wall, lane, self.ordering)
        callback = IntakeCallback()
        chunk.ack = Ack(len(raw), callback)
        self.units.append((chunk.ack, callback))
        self.buffer.offer([chunk])
        self.send(seconds)

    @precondition(lambda self: self.units)
    @rule(data=st.data(), lane=st.none() | st.sampled_from(LANES))
    def withdraw(self, data: st.DataObject, lane: Lane | None) -> None:
        """Some of those who wait released their events: what isn't in flight is taken back, and
        settled by them.
        """
        acks = {ack for ack, _ in data.draw(st.lists(st.sampled_from(self.units[-8:]), max_size=6))}
        flying = {id(chunk) for attempt in self.flying for chunk in attempt.batch.chunks}
        older = self.scheduler.withdraw(acks, lane, self.now)
        withdrawn = older + self.buffer.withdraw(acks, lane)
        assert not [
            chunk
            for chunk in withdrawn
            if id(chunk) in flying or chunk.ack not in acks or lane not in (None, chunk.lane)
        ]
        for chunk in withdrawn:
            self.withdrawn += [str(msgspec.json.decode(one)["event"]) for one in chunk.events()]
            self.books.drop(chunk.lane, DropReason.RETURNED_TO_BROKER, chunk.count)
            self.buffer.settle([chunk], DropReason.RETURNED_TO_BROKER)
        left = [
            chunk
            for chunk in self.scheduler.unsettled_chunks()
            if chunk.ack in acks and lane in (None, chunk.lane)
        ]
        assert {id(chunk) for chunk in left} <= flying
        self.send()

    @invariant()
    def parts_are_what_they_say(self) -> None:
        """A batch that lost chunks has the exact size of what is left; ordering keys are blocked
        for what is unsettled, and for no more.
        """
        if not hasattr(self, "scheduler"):
            return
        for state in self.scheduler._lanes.values():
            assert all(group.parts for group in state.groups)
            assert state.blocked == set().union(*[group.ids for group in state.groups])
            for part in [part for group in state.groups for part in group.parts]:
                assert part.batch.size == envelope_size(state.lane, part.batch.chunks)

    @invariant()
    def callbacks_are_called_once_all_is_settled(self) -> None:
        """And not before."""
        unsettled = (
            Counter(chunk.ack for chunk in self.scheduler.unsettled_chunks())
            if hasattr(self, "scheduler")
            else Counter()
        )
        waiting = Counter(chunk.ack for lane in LANES for chunk in self.buffer.queue(lane))
        for ack, callback in self.units:
            assert bool(callback.answers) != bool(unsettled[ack] or waiting[ack])

    @rule(seconds=st.sampled_from([PARALLEL_AFTER, 1.1, 1.1, 5.0, 61.0]))
    def send(self, seconds: float = PARALLEL_AFTER) -> None:
        """Time passes, and all requests begin that may be made."""
        self.now += seconds
        while self.scheduler.in_flight < self.limiter.limit:
            attempt = self.scheduler.next_attempt(self.now, self.wall, flush=False)
            if attempt is None:
                break
            self.flying.append(attempt)

    @precondition(lambda self: self.flying)
    @rule(data=st.data(), reply=REPLIES)
    def answer(self, data: st.DataObject, reply: Reply) -> None:
        """One of the requests in flight is answered, and others are begun in its place."""
        self.land(data.draw(st.integers(0, len(self.flying) - 1)), reply)
        self.send()

    def land(self, index: int, reply: Reply) -> None:
        """The request with this index in flight gets `reply`."""
        attempt = self.flying.pop(index)
        in_flight = self.scheduler.in_flight
        raw = [one for chunk in attempt.batch.chunks for one in chunk.events()]
        assert not attempt.part.suspected_kinds or all(suspicion_of(one) is not None for one in raw)
        inspects = reply.status == BAD_REQUEST.status and not attempt.part.inspected
        suspects = {
            index: suspicion
            for index, one in enumerate(raw)
            if inspects and (suspicion := suspicion_of(one)) is not None
        }
        outcome = self.scheduler.apply_reply(attempt, reply, self.now, self.wall, suspects)
        if isinstance(outcome, Delivered):
            self.accepted[attempt.lane] += raw
        self.limiter.observe(
            load_signal(outcome),
            number=attempt.number,
            latest=self.scheduler.latest_attempt,
            in_flight=in_flight,
            size=attempt.batch.size,
            seconds=0.01,
        )

    @precondition(lambda self: self.flying)
    @rule(rounds=st.integers(1, 12))
    def answer_strictly(self, rounds: int) -> None:
        """For a while the upstream refuses what has one kind of suspects in
        it, and accepts all else.
        """
        for _ in range(rounds):
            if not self.flying:
                break
            raw = [one for chunk in self.flying[0].batch.chunks for one in chunk.events()]
            self.land(
                0,
                BAD_REQUEST
                if any(int(msgspec.json.decode(one)["event"]) % 6 == 1 for one in raw)
                else OK,
            )
            self.send()

    @invariant()
    def what_waits_has_a_next_moment(self) -> None:
        """Where no request is in flight, whose answer would wake it, delivery names a moment."""
        if hasattr(self, "scheduler") and self.buffer.used and not self.flying:
            assert self.scheduler.next_time(self.now, self.wall) is not None

    @invariant()
    def in_flight_is_bounded(self) -> None:
        """What is in flight is counted, and the limit keeps to its bounds."""
        if hasattr(self, "scheduler"):
            assert self.scheduler.in_flight == len(self.flying)
            assert 1 <= self.limiter.limit <= MAXIMUM

    @invariant()
    def nothing_is_in_two_requests(self) -> None:
        """No event is in two requests; under `per_distinct_id` no id is; under `strict` a lane has
        one request.
        """
        for lane in LANES:
            mine = [attempt for attempt in self.flying if attempt.lane == lane]
            if mine and self.ordering is Ordering.STRICT:
                assert len(mine) == 1
            if mine and self.ordering is Ordering.PER_DISTINCT_ID:
                keys = Counter(key for attempt in mine for key in attempt.batch.ids())
                assert not keys or max(keys.values()) == 1

    @invariant()
    def the_books_balance(self) -> None:
        """Received = delivered + buffered + dead-lettered, per lane, at any instant."""
        for lane in LANES:
            account = self.books.accounts[lane]
            assert account.buffered == self.buffer.count(lane)
            assert account.delivered == len(self.accepted[lane])
        assert sum(
            account.dropped[DropReason.RETURNED_TO_BROKER]
            for account in self.books.accounts.values()
        ) == len(self.withdrawn)

    @invariant()
    def the_order_is_kept(self) -> None:
        """Per lane, events that share a key were delivered in order of receipt."""
        if getattr(self, "ordering", Ordering.NONE) is Ordering.NONE:
            return
        for lane in LANES:
            last: dict[str, int] = {}
            for raw in self.accepted[lane]:
                number = int(msgspec.json.decode(raw)["event"])
                for key in ids_of(raw):
                    assert last.get(key, -1) < number
                    last[key] = number

    @invariant()
    def nothing_is_refused_without_proof(self) -> None:
        """An event is a dead letter as refused or too large only in a lane of which
        something was delivered.
        """
        for letter in self.letters.dead_letters:
            if letter.reason in {Reason.REFUSED, Reason.TOO_LARGE}:
                assert letter.lane is not None
                assert self.accepted[letter.lane]

    def teardown(self) -> None:
        """In the end the upstream takes all: everything settles, each event once, though time
        passes to the next moment that the scheduler names and no further.
        """
        if not hasattr(self, "scheduler"):
            return
        self.letters.max_bytes = 10_000_000
        for _ in range(2000):
            if not self.buffer.used:
                break
            self.send(0.0)
            while self.flying:
                self.land(0, OK)
                self.send(0.0)
            if self.buffer.used:
                when = self.scheduler.next_time(self.now, self.wall)
                assert when is not None
                self.now = max(when, self.now + TICK_SECONDS)
        assert not self.buffer.used
        assert self.scheduler.lanes_with_batches() == []
        names = [msgspec.json.decode(raw)["event"] for lane in LANES for raw in self.accepted[lane]]
        names += [msgspec.json.decode(letter.data)["event"] for letter in self.letters.dead_letters]
        names += self.withdrawn
        assert Counter(names) == self.offered


DeliveryMachine.TestCase.settings = settings(
    max_examples=100, stateful_step_count=80, deadline=None
)
TestDelivery = DeliveryMachine.TestCase
"""Hypothesis runs the machine as this test case: every event settles exactly once, in order,
whatever is answered.
"""
