"""Batches of one day each: when they are due, what they pass over, how large they are, and at
which pace they go.
"""

from __future__ import annotations

import random
import time
from collections.abc import Collection, Iterable, Sequence
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forwarder.buffer.memory import MemoryBuffer
from forwarder.core.errors import BufferFull
from forwarder.core.event import NO_IDS, Ack, Batch, Chunk, Lane
from forwarder.core.outcome import HaltReason, Reply
from forwarder.core.ports import Fate, Ordering
from forwarder.deadletter.memory import MemoryDeadLetters
from forwarder.delivery.batching import Batcher, BatchPolicy
from forwarder.delivery.delivery import Delivery
from forwarder.delivery.lane_state import RetryPolicy
from forwarder.telemetry.books import Books
from forwarder.wire.identity import ids_of
from tests.support.clock import FakeClock

LANE = Lane("phc_daysdaysdays1234", historical=True)
NOW = 1_767_225_600.0
GATHER = 16 << 20
WINDOW = 26 << 20
USUAL = BatchPolicy(5_000_000, 5000, 1.0, by_day=True, gather_bytes=GATHER)
SMALL = BatchPolicy(700, 6, 1.0, by_day=True, gather_bytes=1 << 30)


class PartedDayChunk(Chunk):
    """A chunk with a day."""

    __slots__ = ("day",)
    day: int

    def part(self, data: bytes, count: int, ids: frozenset[str], at: int) -> Chunk:
        """See `Chunk.part`."""
        part = PartedDayChunk(self.lane, data, count, ids, self.received_at, self.source, self.ack)
        part.day = self.day
        return part


def chunk(day: int, *events: bytes, at: float = NOW) -> PartedDayChunk:
    """Events of a day."""
    made = PartedDayChunk(
        LANE, b",".join(events), len(events), frozenset().union(*map(ids_of, events)), at
    )
    made.day = day
    return made


def event(name: str, person: str = "", size: int = 0) -> bytes:
    """An event of `person`, or of someone of its own, of at least `size` bytes."""
    text = b'{"event":"%b","distinct_id":"%b","p":""}' % (name.encode(), (person or name).encode())
    return text[:-2] + b"x" * (size - len(text)) + text[-2:]


def batcher_of(*chunks: Chunk, policy: BatchPolicy = SMALL) -> tuple[Batcher, MemoryBuffer]:
    """A batcher on a memory buffer that holds the chunks."""
    buffer = MemoryBuffer(100_000_000, by_day=True)
    buffer.offer(chunks)
    return Batcher(buffer, policy), buffer


def names(batch: Batch | None) -> list[str]:
    """The events of a batch, by name."""
    return (
        []
        if batch is None
        else [each.split(b'"')[3].decode() for part in batch.chunks for each in part.events()]
    )


def drained(batcher: Batcher) -> list[list[str]]:
    """All batches, by the names of their events."""
    found = []
    while batch := batcher.next(LANE, NOW, flush=True):
        assert len({each.day for each in batch.chunks}) == 1
        found.append(names(batch))
    return found


def test_days_are_not_mixed() -> None:
    """The first chunk says the day; chunks of others are passed over and keep their places."""
    batcher, buffer = batcher_of(
        chunk(1, event("a1")),
        chunk(2, event("b1")),
        chunk(1, event("a2")),
        chunk(2, event("b2")),
        chunk(1, event("a3")),
    )
    assert drained(batcher) == [["a1", "a2", "a3"], ["b1", "b2"]]
    assert len(buffer.queue(LANE)) == 0


def test_an_id_keeps_its_order_across_days() -> None:
    """What is passed over for its day holds back what shares an id with it, and that the next in
    its turn.
    """
    batcher, _ = batcher_of(
        chunk(1, event("a1")),
        chunk(2, event("b1", "ann")),
        chunk(1, event("a2", "ann"), event("a3", "bob")),
        chunk(1, event("a4", "bob")),
        chunk(1, event("a5")),
    )
    assert drained(batcher) == [["a1", "a5"], ["b1"], ["a2", "a3", "a4"]]


def test_a_blocked_day_lets_others_pass() -> None:
    """Where the first chunk may not go, the day is that of the first one that may, and due."""
    chunks = [
        chunk(1, event("a1", "ann")),
        chunk(2, event("b1")),
        chunk(1, event("a2")),
        chunk(2, event("b2", "ann")),
    ]
    batcher, _ = batcher_of(*chunks)
    assert batcher.next(LANE, NOW, blocked={"ann"}) is None
    assert names(batcher.next(LANE, NOW, blocked={"ann"}, flush=True)) == ["b1"]
    assert names(batcher.next(LANE, NOW + 1.0, blocked={"ann"})) == ["a2"]
    assert drained(batcher) == [["a1"], ["b2"]]


def test_when_a_batch_is_due() -> None:
    """When a day has a full one, by count or bytes; when enough of all days is gathered; when the
    oldest has waited; and when flushed.
    """
    old = chunk(1, event("a1"), at=NOW - 0.4)
    batcher, buffer = batcher_of(old, chunk(2, *[event(f"b{at}") for at in range(5)]))
    assert batcher.due_at(LANE, NOW) == pytest.approx(NOW + 0.6)
    assert batcher.next(LANE, NOW) is None
    assert names(batcher.next(LANE, NOW + 0.6)) == ["a1"]
    buffer.offer([chunk(1, event("a2")), chunk(2, event("b5"))])
    assert batcher.due_at(LANE, NOW) == NOW
    assert names(batcher.next(LANE, NOW)) == ["b0", "b1", "b2", "b3", "b4", "b5"]
    assert (batcher.due_at(LANE, NOW), batcher.next(LANE, NOW)) == (NOW + 1.0, None)
    buffer.offer([chunk(3, event("c1", size=699))])
    assert names(batcher.next(LANE, NOW)) == ["c1"]
    batcher.policy = BatchPolicy(700, 6, 1.0, by_day=True, gather_bytes=2000)
    assert batcher.due_at(LANE, NOW) == NOW + 1.0
    buffer.offer([chunk(4, event("d1", size=600)), chunk(5, event("e1", size=600))])
    assert batcher.due_at(LANE, NOW) == NOW
    assert names(batcher.next(LANE, NOW)) == ["a2"]
    assert batcher.due_at(LANE, NOW - 1.0) == NOW - 1.0  # the clock was set back


def test_a_day_that_seems_over_goes_before_a_later_full_one() -> None:
    """Once as many events of other days came as a batch has: a source in the order of time is
    settled in that order.
    """
    batcher, buffer = batcher_of(
        chunk(1, event("a1")), *[chunk(2, event(f"b{number}")) for number in range(5)]
    )
    assert batcher.next(LANE, NOW) is None
    buffer.offer([chunk(2, event("b5"))])
    assert names(batcher.next(LANE, NOW)) == ["a1"]
    assert len(names(batcher.next(LANE, NOW))) == 6


@pytest.mark.parametrize(
    "before",
    [[chunk(1, event("a", "ann"))], [chunk(day, event(f"a{day}")) for day in range(2, 302)]],
    ids=["one person", "many days"],
)
def test_a_due_day_goes_before_a_blocked_full_day(before: list[Chunk]) -> None:
    """A full day that shares an id with what came before, or stands too far behind, lets that go
    first: else nothing ever would.
    """
    batcher, _ = batcher_of(
        *before, *[chunk(1000, event(f"b{number}", "ann", 200)) for number in range(4)]
    )
    assert batcher.due_at(LANE, NOW) == NOW
    assert names(batcher.next(LANE, NOW)) == names(Batch(LANE, (before[0],), 0))


def test_a_chunk_too_large_for_a_batch_is_cut() -> None:
    """Its parts keep its day and its place, and the counts stay right."""
    batcher, buffer = batcher_of(
        chunk(1, event("a1", "ann")),
        chunk(2, *[event(f"b{at}", size=300) for at in range(5)]),
        chunk(1, event("a2")),
    )
    assert names(batcher.next(LANE, NOW, blocked={"ann"}, flush=True)) == ["b0", "b1"]
    assert drained(batcher) == [["a1", "a2"], ["b2", "b3"], ["b4"]]
    assert len(buffer.queue(LANE)) == 0


def test_what_is_withdrawn_or_dropped_is_not_counted() -> None:
    """A day that was full is not full without it."""
    chunks = [chunk(1, event("a1")), *[chunk(2, event(f"b{at}")) for at in range(6)]]
    ack = chunks[2].ack = Ack(1, lambda _error: None)
    batcher, buffer = batcher_of(*chunks)
    assert batcher.due_at(LANE, NOW) == NOW
    assert buffer.withdraw([ack]) == [chunks[2]]
    assert batcher.due_at(LANE, NOW) == NOW + 1.0
    assert buffer.drop_oldest(LANE) == [chunks[0]]
    assert drained(batcher) == [["b0", "b2", "b3", "b4", "b5"]]


def test_with_one_day_only_one_day_is_in_flight() -> None:
    """With `one_day` nothing of another day goes while any ids are in flight;
    more of the same day does.
    """
    policy = BatchPolicy(700, 2, 1.0, by_day=True, one_day=True, gather_bytes=0)
    batcher, buffer = batcher_of(
        *[chunk(day, event(f"d{day}-{at}")) for at in range(3) for day in (1, 2)], policy=policy
    )
    assert names(batcher.next(LANE, NOW)) == ["d1-0", "d1-1"]
    assert names(batcher.next(LANE, NOW, blocked={"d1-0", "d1-1"})) == ["d1-2"]
    assert batcher.next(LANE, NOW, blocked={"d1-0"}, flush=True) is None
    buffer.offer([chunk(1, event("d1-3", "d1-0")), chunk(1, event("d1-4"))])
    assert names(batcher.next(LANE, NOW, blocked={"d1-0"})) == ["d1-4"]
    assert names(batcher.next(LANE, NOW)) == ["d2-0", "d2-1"]
    assert batcher.next(LANE, NOW, blocked={"d2-0"}, flush=True) is not None
    assert batcher.next(LANE, NOW, blocked={"d2-0"}, flush=True) is None
    assert drained(batcher) == [["d1-3"]]


class Pace:
    """So many events may go from `start` on, one a second after that."""

    def __init__(self, start: float) -> None:
        self.free = start
        self.asked: list[int] = []
        self.gone: list[int] = []

    def due_at(self, events: int, wall: float) -> float:
        """See `SendingPace.due_at`."""
        self.asked.append(events)
        return self.free

    def went(self, events: int) -> None:
        """See `SendingPace.went`."""
        self.gone.append(events)
        self.free += events


@pytest.mark.parametrize("by_day", [True, False])
def test_a_batch_is_not_due_before_its_pace_says_so(by_day: bool) -> None:
    """Also where it is full, old, or flushed; the pace is asked for what the batch will have, and
    learns what it had.
    """
    pace = Pace(NOW + 5.0)
    buffer = MemoryBuffer(1_000_000, by_day=by_day)
    batcher = Batcher(buffer, BatchPolicy(10_000, 4, 1.0, by_day=by_day), pace)
    assert batcher.due_at(LANE, NOW) is None
    buffer.offer([chunk(1, event(f"a{at}")) for at in range(6)])
    assert batcher.due_at(LANE, NOW) == NOW + 5.0
    assert batcher.next(LANE, NOW + 4.9, flush=True) is None
    assert names(batcher.next(LANE, NOW + 5.0)) == ["a0", "a1", "a2", "a3"]
    assert (set(pace.asked), pace.gone) == ({4}, [4])
    assert batcher.due_at(LANE, NOW + 6.0) == NOW + 9.0
    assert names(batcher.next(LANE, NOW + 9.0)) == ["a4", "a5"]
    assert pace.gone == [4, 2]


async def test_a_probe_waits_for_the_pace_too() -> None:
    """A halted lane whose probe is due before it may go is probed once it may, though nothing else
    happens meanwhile.
    """
    clock = FakeClock()
    buffer = MemoryBuffer(1_000_000, by_day=True)
    sent: list[float] = []

    class TimedSink:
        async def send(self, _batch: Batch) -> Reply:
            """See `Sink.send`."""
            sent.append(clock.now() - NOW)
            return Reply(200, "application/json", body=b'{"status":1}')

    delivery = Delivery(
        batcher=Batcher(buffer, SMALL, Pace(NOW + 100.0)),
        buffer=buffer,
        sink=TimedSink(),
        dead_letters=MemoryDeadLetters(1000),
        books=Books(),
        clock=clock,
        retry=RetryPolicy(),
        concurrency=1,
        ordering_of=lambda _lane: Ordering.PER_DISTINCT_ID,
    )
    buffer.offer([chunk(1, event("a"))])
    delivery.halts.halt(
        LANE, HaltReason.REFUSES_ALL, "400", now=clock.monotonic(), wall=clock.now()
    )
    delivery.start()
    for _ in range(110):
        await clock.advance(1.0)
    await delivery.close()
    assert sent == [100.0]
    assert buffer.used == 0


def test_a_buffer_that_does_not_count_days_is_a_mistake() -> None:
    """It is found with the first event."""
    buffer = MemoryBuffer(1_000_000)
    buffer.offer([chunk(1, event("a"))])
    with pytest.raises(TypeError, match="count by day"):
        Batcher(buffer, USUAL).next(LANE, NOW)


people = st.sampled_from(["ann", "bob", "cid", "dee", "eve"])
offers = st.tuples(
    st.integers(1, 4), st.lists(st.tuples(people, st.integers(0, 250)), min_size=1, max_size=8)
)
steps = st.one_of(offers, st.just("take"), st.just("settle"), st.just("again"))


@settings(max_examples=300, deadline=None)
@given(st.lists(steps, max_size=40), st.booleans(), st.sampled_from([0, 4000, 1 << 30]))
def test_batches_never_mix_days_and_keep_order(
    plan: list[object], one_day: bool, gather: int
) -> None:
    """Nothing is lost or doubled, no batch mixes days, each is below its limits, and the events of
    an id are settled in their order, with up to three batches in flight that share no id; with
    `one_day` they share the day.
    """
    policy = BatchPolicy(700, 6, 1.0, by_day=True, one_day=one_day, gather_bytes=gather)
    batcher, buffer = batcher_of(policy=policy)
    numbers = count()
    days = dict[str, int]()
    owners = dict[str, str]()
    flying: list[Batch] = []
    settled: list[str] = []

    def take(*, flush: bool) -> Batch | None:
        blocked = NO_IDS.union(*[batch.ids() for batch in flying])
        batch = batcher.next(LANE, NOW, blocked=blocked, flush=flush)
        if batch is not None:
            assert len({days[name] for name in names(batch)}) == 1
            assert blocked.isdisjoint(batch.ids())
            assert batch.count <= 6
            assert batch.size < 700 or batch.count == 1
            flying.append(batch)
            assert not one_day or len({days[name] for each in flying for name in names(each)}) == 1
        return batch

    def settle(batch: Batch) -> None:
        flying.remove(batch)
        settled.extend(names(batch))
        buffer.settle(batch.chunks, Fate.DELIVERED)

    for step in plan:
        if isinstance(step, tuple):
            day, wanted = step
            made = []
            for person, size in wanted:
                name = f"e{next(numbers)}"
                days[name] = day
                owners[name] = person
                made.append(event(name, person, size))
            buffer.offer([chunk(day, *made)])
        elif step == "settle" and flying:
            settle(flying[0])
        elif step == "again" and flying:
            # the last one was not sent: none that came after it can be in flight
            buffer.queue(LANE).put_back(flying.pop().chunks)
        elif step == "take" and len(flying) < 3:
            take(flush=len(flying) == 0)
    while flying:
        settle(flying[0])
    while buffer.used:
        batch = take(flush=True)
        assert batch is not None
        settle(batch)
    assert sorted(settled) == sorted(owners)
    for person in set(owners.values()):
        theirs = [int(name[1:]) for name in settled if owners[name] == person]
        assert theirs == sorted(theirs)


def run(units: Iterable[Sequence[Chunk]], in_flight: int = 3) -> tuple[list[list[Chunk]], float]:
    """Let a source bring its units as fast as there is room, with some batches in flight; all
    batches but those of the end, and the seconds that making them took.
    """
    buffer = MemoryBuffer(WINDOW, any_if_empty=True, by_day=True)
    batcher = Batcher(buffer, USUAL)
    flying: list[Batch] = []
    batches: list[list[Chunk]] = []
    seconds = 0.0
    now = NOW

    def go(*, flush: bool = False) -> bool:
        nonlocal seconds
        began = time.perf_counter()
        batch = batcher.next(
            LANE, now, blocked=NO_IDS.union(*[each.ids() for each in flying]), flush=flush
        )
        seconds += time.perf_counter() - began
        if batch is not None:
            assert len({each.day for each in batch.chunks}) == 1
            flying.append(batch)
            batches.append(list(batch.chunks))
        return batch is not None

    def land() -> None:
        buffer.settle(flying.pop(0).chunks, Fate.DELIVERED)

    for unit in units:
        while True:
            try:
                buffer.offer(unit)
                break
            except BufferFull:
                if len(flying) == in_flight or not go():
                    land()
    steady = len(batches)
    while buffer.used:
        if len(flying) == in_flight or not go(flush=True):
            land()
    return batches[:steady], seconds


def alternating(
    days: int, records: int, persons: Sequence[str] | None = None, *, seed: int = 1
) -> Iterable[list[Chunk]]:
    """Units of neighbouring records whose days alternate, one after the other: a chunk a day. Most
    persons occur once, one event in a thousand is by a regular. `persons`: all of them instead.
    """
    chance = random.Random(seed)
    per_unit = 20 * days
    for first in range(0, records, per_unit):
        made: dict[int, list[bytes]] = {}
        for number in range(first, first + per_unit):
            person = (
                f"regular-{chance.randrange(1000)}"
                if chance.random() < 0.001
                else f"person-{number}"
            )
            if persons is not None:
                person = chance.choice(persons)
            made.setdefault(number % days, []).append(event(f"e{number}", person, 600))
        yield [_of_ids(day, events) for day, events in made.items()]


def _of_ids(day: int, events: Sequence[bytes]) -> Chunk:
    """Faster than `chunk`: an event's id is what stands there."""
    made = PartedDayChunk(
        LANE,
        b",".join(events),
        len(events),
        frozenset([each.split(b'"')[7].decode() for each in events]),
        NOW,
    )
    made.day = day
    return made


def test_days_that_alternate_record_by_record_fill_batches() -> None:
    """30 days, 150,000 records: while the source brings more, every batch has at least 500 events,
    and making them takes little time.
    """
    batches, seconds = run(alternating(30, 150_000))
    sizes = [sum(each.count for each in batch) for batch in batches]
    assert sum(sizes) > 100_000
    assert min(sizes) >= 500
    assert seconds < 10.0  # measured: 0.5


def _order(batches: Iterable[Sequence[Chunk]]) -> list[int]:
    return [
        int(each.split(b'"')[3][1:])
        for batch in batches
        for part in batch
        for each in part.events()
    ]


@pytest.mark.parametrize("persons", [["one"], ["one", "two", "three"]])
def test_one_person_on_alternating_days_goes_in_order(persons: Collection[str]) -> None:
    """Everything shares its ids: small batches, in order, and the time to make them is in
    proportion to their number.
    """
    batches, seconds = run(alternating(30, 60_000, list(persons)), in_flight=1)
    days = [batch[0].day for batch in batches]
    assert days[:60] == [*range(30), *range(30)]
    order = _order(batches)
    assert len(order) > 20_000
    firsts = [int(batch[0].events()[0].split(b'"')[3][1:]) for batch in batches]
    assert [first // 600 for first in firsts] == sorted(first // 600 for first in firsts)
    assert seconds < 10.0  # measured: 0.4
