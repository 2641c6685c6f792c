"""The batcher with `by_day`: every batch has events of one UTC day. When a batch is due, which
chunks it skips, how large it is, and how a sending pace delays it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Sequence
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
BUFFER_BYTES = 26 << 20
USUAL_BATCHES = BatchPolicy(5_000_000, 5000, 1.0, by_day=True, gather_bytes=16 << 20)
SMALL_BATCHES = BatchPolicy(700, 6, 1.0, by_day=True, gather_bytes=1 << 30)
"""Batches of less than 700 bytes and at most six events; no backlog of all days is ever enough."""


class OneDayChunk(Chunk):
    """A chunk whose events are of one day, and so are its parts."""

    __slots__ = ("day",)
    day: int

    def part(self, data: bytes, count: int, ids: frozenset[str], at: int) -> Chunk:
        part = OneDayChunk(self.lane, data, count, ids, self.received_at, self.source, self.ack)
        part.day = self.day
        return part


def chunk(day: int, *events: bytes, at: float = NOW) -> OneDayChunk:
    """A chunk of these events, all of day number `day`, received at `at`."""
    return _chunk_with_ids(day, events, frozenset().union(*map(ids_of, events)), at)


def _chunk_with_ids(
    day: int, events: Sequence[bytes], ids: frozenset[str], at: float
) -> OneDayChunk:
    day_chunk = OneDayChunk(LANE, b",".join(events), len(events), ids, at)
    day_chunk.day = day
    return day_chunk


def event(name: str, person: str = "", size: int = 0) -> bytes:
    """An event of at least `size` bytes. Without `person` it shares its distinct_id with no other
    event.
    """
    text = b'{"event":"%b","distinct_id":"%b","p":""}' % (name.encode(), (person or name).encode())
    return text[:-2] + b"x" * (size - len(text)) + text[-2:]


def batcher_of(*chunks: Chunk, policy: BatchPolicy = SMALL_BATCHES) -> tuple[Batcher, MemoryBuffer]:
    """A batcher of a memory buffer that has these chunks."""
    buffer = MemoryBuffer(100_000_000, by_day=True)
    buffer.offer(chunks)
    return Batcher(buffer, policy), buffer


def names(batch: Batch | None) -> list[str]:
    """The names of a batch's events."""
    return [] if batch is None else _event_names(batch.chunks)


def _event_names(chunks: Iterable[Chunk]) -> list[str]:
    event_names: list[str] = []
    for batch_chunk in chunks:
        event_names += [raw.split(b'"')[3].decode() for raw in batch_chunk.events()]
    return event_names


def drain(batcher: Batcher) -> list[list[str]]:
    """Take all batches that are left; the names of the events of each."""
    batches = []
    while batch := batcher.next(LANE, NOW, flush=True):
        assert len({day_chunk.day for day_chunk in batch.chunks}) == 1
        batches.append(names(batch))
    return batches


def test_a_batch_has_events_of_one_day() -> None:
    """The first chunk decides the day. Chunks of other days are skipped, and stay in the queue."""
    batcher, buffer = batcher_of(
        chunk(1, event("a1")),
        chunk(2, event("b1")),
        chunk(1, event("a2")),
        chunk(2, event("b2")),
        chunk(1, event("a3")),
    )
    assert drain(batcher) == [["a1", "a2", "a3"], ["b1", "b2"]]
    assert len(buffer.queue(LANE)) == 0


def test_events_of_an_id_keep_their_order_across_days() -> None:
    """A chunk that is skipped for its day holds back later chunks that share an id with it, and
    those hold back others.
    """
    batcher, _ = batcher_of(
        chunk(1, event("a1")),
        chunk(2, event("b1", "ann")),
        chunk(1, event("a2", "ann"), event("a3", "bob")),
        chunk(1, event("a4", "bob")),
        chunk(1, event("a5")),
    )
    assert drain(batcher) == [["a1", "a5"], ["b1"], ["a2", "a3", "a4"]]


def test_a_batch_skips_blocked_chunks_and_takes_the_day_of_the_next() -> None:
    """It is due when the first chunk that is not blocked is."""
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
    assert drain(batcher) == [["a1"], ["b2"]]


def test_a_batch_is_due_by_age_count_bytes_or_the_backlog_of_all_days() -> None:
    """In this order below: `max_age`, `max_events`, `max_bytes`, `gather_bytes`."""
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


def test_a_day_that_seems_complete_is_sent_before_a_later_full_day() -> None:
    """A day seems complete once a full batch of later days has come: so the events of a source
    that is ordered by time are settled in that order.
    """
    batcher, buffer = batcher_of(
        chunk(1, event("a1")), *[chunk(2, event(f"b{number}")) for number in range(5)]
    )
    assert batcher.next(LANE, NOW) is None
    buffer.offer([chunk(2, event("b5"))])
    assert names(batcher.next(LANE, NOW)) == ["a1"]
    assert len(names(batcher.next(LANE, NOW))) == 6


@pytest.mark.parametrize(
    "earlier",
    [[chunk(1, event("a", "ann"))], [chunk(day, event(f"a{day}")) for day in range(2, 302)]],
    ids=["one person", "many days"],
)
def test_chunks_that_block_a_full_day_are_sent_before_it(earlier: list[Chunk]) -> None:
    """A full day can be blocked by an id that it shares with earlier chunks, or by too many earlier
    chunks. These are due then, or nothing would ever be sent.
    """
    batcher, _ = batcher_of(
        *earlier, *[chunk(1000, event(f"b{number}", "ann", 200)) for number in range(4)]
    )
    assert batcher.due_at(LANE, NOW) == NOW
    assert names(batcher.next(LANE, NOW)) == names(Batch(LANE, (earlier[0],), 0))


def test_a_chunk_too_large_for_a_batch_is_cut_into_parts_of_its_day() -> None:
    """The parts keep its position in the queue, and the buffer counts no event twice."""
    batcher, buffer = batcher_of(
        chunk(1, event("a1", "ann")),
        chunk(2, *[event(f"b{at}", size=300) for at in range(5)]),
        chunk(1, event("a2")),
    )
    assert names(batcher.next(LANE, NOW, blocked={"ann"}, flush=True)) == ["b0", "b1"]
    assert drain(batcher) == [["a1", "a2"], ["b2", "b3"], ["b4"]]
    assert len(buffer.queue(LANE)) == 0


def test_withdrawn_and_dropped_events_dont_fill_a_batch() -> None:
    """A day that had a full batch isn't due without them."""
    chunks = [chunk(1, event("a1")), *[chunk(2, event(f"b{at}")) for at in range(6)]]
    ack = chunks[2].ack = Ack(1, lambda _error: None)
    batcher, buffer = batcher_of(*chunks)
    assert batcher.due_at(LANE, NOW) == NOW
    assert buffer.withdraw([ack]) == [chunks[2]]
    assert batcher.due_at(LANE, NOW) == NOW + 1.0
    assert buffer.drop_oldest(LANE) == [chunks[0]]
    assert drain(batcher) == [["b0", "b2", "b3", "b4", "b5"]]


def test_with_one_day_all_batches_in_flight_are_of_one_day() -> None:
    """With `one_day`, more batches of the day may follow while ids are in flight, but none of
    another day.
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
    assert drain(batcher) == [["d1-3"]]


class OneASecond:
    """A sending pace: the first batch at `start`, each further one a second later for each event of
    the one before.
    """

    def __init__(self, start: float) -> None:
        self.next_at = start
        self.asked_for: list[int] = []
        self.sent: list[int] = []

    def due_at(self, events: int, wall: float) -> float:
        self.asked_for.append(events)
        return self.next_at

    def went(self, events: int) -> None:
        self.sent.append(events)
        self.next_at += events


@pytest.mark.parametrize("by_day", [True, False])
def test_a_batch_is_not_due_before_its_pace_says_so(by_day: bool) -> None:
    """Even if it is full, old enough, or flushed. The pace is asked for the number of events that
    the batch will have, and gets the number that it had.
    """
    pace = OneASecond(NOW + 5.0)
    buffer = MemoryBuffer(1_000_000, by_day=by_day)
    batcher = Batcher(buffer, BatchPolicy(10_000, 4, 1.0, by_day=by_day), pace)
    assert batcher.due_at(LANE, NOW) is None
    buffer.offer([chunk(1, event(f"a{at}")) for at in range(6)])
    assert batcher.due_at(LANE, NOW) == NOW + 5.0
    assert batcher.next(LANE, NOW + 4.9, flush=True) is None
    assert names(batcher.next(LANE, NOW + 5.0)) == ["a0", "a1", "a2", "a3"]
    assert (set(pace.asked_for), pace.sent) == ({4}, [4])
    assert batcher.due_at(LANE, NOW + 6.0) == NOW + 9.0
    assert names(batcher.next(LANE, NOW + 9.0)) == ["a4", "a5"]
    assert pace.sent == [4, 2]


async def test_a_halted_lane_is_not_probed_before_its_pace_says_so() -> None:
    """A probe that was due earlier is sent as soon as the pace allows, with no other event to
    trigger it.
    """
    clock = FakeClock()
    buffer = MemoryBuffer(1_000_000, by_day=True)
    sent: list[float] = []

    class TimedSink:
        async def send(self, _batch: Batch) -> Reply:
            sent.append(clock.now() - NOW)
            return Reply(200, "application/json", body=b'{"status":1}')

    delivery = Delivery(
        batcher=Batcher(buffer, SMALL_BATCHES, OneASecond(NOW + 100.0)),
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


def test_batching_by_day_raises_with_a_buffer_that_does_not_count_by_day() -> None:
    """It raises at the first event."""
    buffer = MemoryBuffer(1_000_000)
    buffer.offer([chunk(1, event("a"))])
    with pytest.raises(TypeError, match="count by day"):
        Batcher(buffer, USUAL_BATCHES).next(LANE, NOW)


people = st.sampled_from(["ann", "bob", "cid", "dee", "eve"])
offers = st.tuples(
    st.integers(1, 4), st.lists(st.tuples(people, st.integers(0, 250)), min_size=1, max_size=8)
)
steps = st.one_of(offers, st.just("send"), st.just("settle"), st.just("put back"))


@settings(max_examples=300, deadline=None)
@given(st.lists(steps, max_size=40), st.booleans(), st.sampled_from([0, 4000, 1 << 30]))
def test_batches_never_mix_days_and_keep_order(
    plan: list[object], one_day: bool, gather: int
) -> None:
    """Up to three batches are in flight and share no id. No event is lost or sent twice, every
    batch is within its limits, and the events of an id are settled in order. With `one_day`, all
    batches in flight are of the same day.
    """
    policy = BatchPolicy(700, 6, 1.0, by_day=True, one_day=one_day, gather_bytes=gather)
    batcher, buffer = batcher_of(policy=policy)
    numbers = count()
    day_of: dict[str, int] = {}
    person_of: dict[str, str] = {}
    in_flight: list[Batch] = []
    settled: list[str] = []

    def send(*, flush: bool) -> Batch | None:
        blocked = NO_IDS.union(*[batch.ids() for batch in in_flight])
        batch = batcher.next(LANE, NOW, blocked=blocked, flush=flush)
        if batch is not None:
            assert len({day_of[name] for name in names(batch)}) == 1
            assert blocked.isdisjoint(batch.ids())
            assert batch.count <= 6
            assert batch.size < 700 or batch.count == 1
            in_flight.append(batch)
            assert not one_day or len({day_of[names(sent)[0]] for sent in in_flight}) == 1
        return batch

    def settle(batch: Batch) -> None:
        in_flight.remove(batch)
        settled.extend(names(batch))
        buffer.settle(batch.chunks, Fate.DELIVERED)

    for step in plan:
        if isinstance(step, tuple):
            day, specified = step
            events = []
            for person, size in specified:
                name = f"e{next(numbers)}"
                day_of[name] = day
                person_of[name] = person
                events.append(event(name, person, size))
            buffer.offer([chunk(day, *events)])
        elif step == "settle" and in_flight:
            settle(in_flight[0])
        elif step == "put back" and in_flight:
            # the last one was not sent: none that came after it can be in flight
            buffer.queue(LANE).put_back(in_flight.pop().chunks)
        elif step == "send" and len(in_flight) < 3:
            send(flush=len(in_flight) == 0)
    while in_flight:
        settle(in_flight[0])
    while buffer.used:
        batch = send(flush=True)
        assert batch is not None
        settle(batch)
    assert sorted(settled) == sorted(person_of)
    for person in set(person_of.values()):
        its_numbers = [int(name[1:]) for name in settled if person_of[name] == person]
        assert its_numbers == sorted(its_numbers)


def batches_of(
    blocks: Iterable[Sequence[Chunk]], max_in_flight: int = 3
) -> tuple[list[list[Chunk]], float]:
    """Offer blocks of chunks to a buffer as fast as it has room, and batch them. Return the batches
    that were made while there were more blocks, and the seconds that the batcher needed for all.
    """
    buffer = MemoryBuffer(BUFFER_BYTES, any_if_empty=True, by_day=True)
    batcher = Batcher(buffer, USUAL_BATCHES)
    in_flight: list[Batch] = []
    batches: list[list[Chunk]] = []
    seconds = 0.0

    def send(*, flush: bool = False) -> bool:
        nonlocal seconds
        began = time.perf_counter()
        blocked = NO_IDS.union(*[sent.ids() for sent in in_flight])
        batch = batcher.next(LANE, NOW, blocked=blocked, flush=flush)
        seconds += time.perf_counter() - began
        if batch is not None:
            assert len({day_chunk.day for day_chunk in batch.chunks}) == 1
            in_flight.append(batch)
            batches.append(list(batch.chunks))
        return batch is not None

    def settle_oldest() -> None:
        buffer.settle(in_flight.pop(0).chunks, Fate.DELIVERED)

    for block in blocks:
        while True:
            try:
                buffer.offer(block)
                break
            except BufferFull:
                if len(in_flight) == max_in_flight or not send():
                    settle_oldest()
    steady = len(batches)
    while buffer.used:
        if len(in_flight) == max_in_flight or not send(flush=True):
            settle_oldest()
    return batches[:steady], seconds


BLOCK_EVENTS_OF_A_DAY = 20


def alternating_days(
    days: int, records: int, persons: Sequence[str] | None = None, *, seed: int = 1
) -> Iterable[list[Chunk]]:
    """Blocks of neighbouring records. Record number n is of day n modulo `days`, so each block has
    a chunk for every day. Each event is by one of `persons`; by default most persons occur once,
    and one event in a thousand is by one of 1,000 regulars.
    """
    chance = random.Random(seed)
    block_size = BLOCK_EVENTS_OF_A_DAY * days
    for first in range(0, records, block_size):
        events: dict[int, list[bytes]] = {}
        ids: dict[int, set[str]] = {}
        for number in range(first, first + block_size):
            if persons is not None:
                person = chance.choice(persons)
            elif chance.random() < 0.001:
                person = f"regular-{chance.randrange(1000)}"
            else:
                person = f"person-{number}"
            day = number % days
            events.setdefault(day, []).append(event(f"e{number}", person, 600))
            ids.setdefault(day, set()).add(person)
        yield [_chunk_with_ids(day, events[day], frozenset(ids[day]), NOW) for day in events]


def test_batches_are_large_if_days_alternate_from_record_to_record() -> None:
    """With 30 days and 150,000 records, every batch has at least 500 events while there are more
    records to read, and batching takes little time.
    """
    batches, seconds = batches_of(alternating_days(30, 150_000))
    sizes = [sum(day_chunk.count for day_chunk in batch) for batch in batches]
    assert sum(sizes) > 100_000
    assert min(sizes) >= 500
    assert seconds < 10.0  # measured: 0.5


@pytest.mark.parametrize("persons", [["one"], ["one", "two", "three"]])
def test_events_of_few_persons_on_alternating_days_are_sent_in_order(persons: list[str]) -> None:
    """Nearly all chunks share an id, so every batch has the events of one day of one block. The
    time for them is in proportion to their number.
    """
    batches, seconds = batches_of(alternating_days(30, 60_000, persons), max_in_flight=1)
    days = [batch[0].day for batch in batches]
    assert days[:60] == [*range(30), *range(30)]
    assert sum(len(_event_names(batch)) for batch in batches) > 20_000
    block_size = BLOCK_EVENTS_OF_A_DAY * 30
    blocks = [int(_event_names(batch)[0][1:]) // block_size for batch in batches]
    assert blocks == sorted(blocks)
    assert seconds < 10.0  # measured: 0.4
