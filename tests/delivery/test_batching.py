"""Batches: when they are due, how large they are, and what may not go into them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from forwarder.buffer.memory import MemoryBuffer
from forwarder.core.event import Batch, Chunk, Lane
from forwarder.core.ports import Fate
from forwarder.delivery.batching import READ_AHEAD_CHUNKS, READ_AHEAD_IDS, Batcher, BatchPolicy
from forwarder.wire.envelope import body_pieces, envelope_size
from forwarder.wire.identity import ids_of
from tests.support.cases import cases

LANE = Lane("phc_batchbatch123456")
HISTORICAL = LANE._replace(historical=True)
NOW = 1_767_225_600.0
WIDE = BatchPolicy(5_000_000, 5000, 1.0)


def event(name: str, person: str = "ann", padding: int = 0, **properties: str) -> bytes:
    """An event of `person`."""
    return msgspec.json.encode(
        {"event": name, "distinct_id": person, "properties": {**properties, "p": "x" * padding}}
    )


def chunk(*events: bytes, lane: Lane = LANE, at: float = NOW, ordered: bool = True) -> Chunk:
    """One request's events."""
    ids = frozenset().union(*map(ids_of, events)) if ordered else frozenset[str]()
    return Chunk(lane, b",".join(events), len(events), ids, at)


def batcher_of(*chunks: Chunk, policy: BatchPolicy = WIDE) -> tuple[Batcher, MemoryBuffer]:
    """A batcher on a memory buffer that holds the chunks."""
    buffer = MemoryBuffer(100_000_000)
    for piece in chunks:
        buffer.offer([piece])
    return Batcher(buffer, policy), buffer


def names(batch: Batch | None) -> list[str]:
    """The events of a batch, by name."""
    assert batch is not None
    return [
        str(msgspec.json.decode(raw)["event"]) for piece in batch.chunks for raw in piece.events()
    ]


def drained(batcher: Batcher, lane: Lane = LANE, **limits: Any) -> list[Batch]:
    """All batches of the lane, one after the other."""
    batches: list[Batch] = []
    while batch := batcher.next(lane, NOW, flush=True, **limits):
        batches.append(batch)
    return batches


def assert_exact(batch: Batch, limit: int) -> None:
    """The batch's size is that of its body, and below the limit, unless it is one event alone."""
    body = b"".join(body_pieces(batch))
    assert batch.size == len(body)
    assert batch.size < limit or batch.count == 1
    assert len(msgspec.json.decode(body)["batch"]) == batch.count


def test_nothing_waits() -> None:
    """Then nothing is due, and there is no batch."""
    batcher, _ = batcher_of()
    assert (
        batcher.due_at(LANE, NOW),
        batcher.next(LANE, NOW, flush=True),
        list(batcher.lanes()),
    ) == (None, None, [])


def test_a_batch_is_due_by_age() -> None:
    """Its oldest event waits for `max_age` at most, and until then nothing is taken."""
    batcher, _ = batcher_of(chunk(event("a"), at=NOW - 0.25), chunk(event("b")))
    assert batcher.due_at(LANE, NOW) == NOW + 0.75
    assert batcher.next(LANE, NOW + 0.74) is None
    assert names(batcher.next(LANE, NOW + 0.75)) == ["a", "b"]


def test_a_batch_is_due_by_count() -> None:
    """As soon as `max_events` wait; what is over goes next."""
    batcher, _ = batcher_of(
        *[chunk(event(f"e{number}")) for number in range(4)], policy=BatchPolicy(5_000_000, 3, 60.0)
    )
    assert batcher.due_at(LANE, NOW) == NOW
    assert names(batcher.next(LANE, NOW)) == ["e0", "e1", "e2"]
    assert batcher.next(LANE, NOW) is None
    assert batcher.due_at(LANE, NOW) == NOW + 60.0


def test_a_batch_is_due_by_bytes() -> None:
    """As soon as `max_bytes` wait, whatever their age."""
    batcher, _ = batcher_of(
        chunk(event("a", padding=600)),
        chunk(event("b", padding=600)),
        policy=BatchPolicy(1000, 5000, 60.0),
    )
    assert batcher.due_at(LANE, NOW) == NOW
    assert names(batcher.next(LANE, NOW)) == ["a"]


def test_a_clock_that_is_set_back_delays_nothing() -> None:
    """Events that seem to come from the future are due: they would wait for as long as the clock
    was wrong otherwise.
    """
    batcher, _ = batcher_of(chunk(event("a"), at=NOW + 3600))
    assert batcher.due_at(LANE, NOW) == NOW
    assert names(batcher.next(LANE, NOW)) == ["a"]


def test_flush_takes_what_there_is() -> None:
    """For draining: neither full nor old, it goes."""
    batcher, _ = batcher_of(chunk(event("a")))
    assert batcher.next(LANE, NOW) is None
    assert names(batcher.next(LANE, NOW, flush=True)) == ["a"]


def test_other_limits_apply_from_the_next_batch_on() -> None:
    """A reload changes the policy, not what waits."""
    batcher, _ = batcher_of(*[chunk(event(f"e{number}")) for number in range(4)])
    batcher.policy = BatchPolicy(5_000_000, 2, 60.0)
    assert [names(batch) for batch in drained(batcher)] == [["e0", "e1"], ["e2", "e3"]]


@cases("lane", [LANE, HISTORICAL], ids=["live", "historical"])
@cases(
    "blocked", [frozenset(), frozenset({"nobody"})], ids=["nothing blocked", "something blocked"]
)
@cases("spare", [-1, 0, 1])
def test_the_body_stays_strictly_below_the_limit(
    lane: Lane, blocked: frozenset[str], spare: int
) -> None:
    """Two events go together if their body is smaller than the limit, not if it is as large; the
    envelope counts.
    """
    pair = chunk(event("a"), lane=lane), chunk(event("b"), lane=lane)
    together = envelope_size(lane, pair)
    batcher, _ = batcher_of(*pair, policy=BatchPolicy(together + spare, 5000, 1.0))
    batches = drained(batcher, lane, blocked=blocked)
    assert [batch.count for batch in batches] == ([2] if spare == 1 else [1, 1])
    for batch in batches:
        assert_exact(batch, together + spare)


def test_a_request_larger_than_a_batch_is_cut() -> None:
    """Between its events, in order, each piece as full as it can be; the buffer holds the pieces
    in its place.
    """
    whole = chunk(*[event(f"e{number}", padding=100) for number in range(10)])
    batcher, buffer = batcher_of(whole, policy=BatchPolicy(700, 5000, 1.0))
    batches = drained(batcher)
    assert [name for batch in batches for name in names(batch)] == [
        f"e{number}" for number in range(10)
    ]
    assert len(batches) < 10
    for batch in batches:
        assert_exact(batch, 700)
        for piece in batch.chunks:
            buffer.settle([piece], Fate.DELIVERED)
    assert buffer.statistics().bytes == 0


def test_a_request_is_not_cut_to_fill_a_batch() -> None:
    """What doesn't fit behind others begins the next batch whole: a cut costs a parse."""
    small = chunk(event("small"))
    large = chunk(event("l1", padding=300), event("l2", padding=300))
    batcher, _ = batcher_of(
        small, large, policy=BatchPolicy(envelope_size(LANE, [large]) + 10, 5000, 1.0)
    )
    assert [batch.chunks for batch in drained(batcher)] == [(small,), (large,)]


def test_one_event_over_the_limit_goes_alone() -> None:
    """The upstream is asked, not the event dropped; its neighbours don't share its fate."""
    raw = [event("a"), event("huge", padding=5000), event("b")]
    batcher, _ = batcher_of(chunk(*raw), policy=BatchPolicy(1000, 5000, 1.0))
    assert [names(batch) for batch in drained(batcher)] == [["a"], ["huge"], ["b"]]


def test_a_learned_limit_makes_smaller_batches() -> None:
    """`max_body` and `max_events` bound one batch below the policy; above it they
    change nothing.
    """
    raw = [chunk(event(f"e{number}", padding=100)) for number in range(6)]
    batcher, _ = batcher_of(*raw)
    taught = batcher.next(LANE, NOW, flush=True, max_body=500)
    assert taught is not None
    assert_exact(taught, 500)
    assert names(batcher.next(LANE, NOW, flush=True, max_events=1)) == [f"e{taught.count}"]
    assert_exact(drained(batcher, max_body=10**9, max_events=10**9)[0], WIDE.max_bytes)


def test_blocked_chunks_stay_and_others_pass() -> None:
    """A request with an event of a blocked person stays whole at its place; requests of others,
    behind it, go.
    """
    batcher, buffer = batcher_of(
        chunk(event("a1", "ann"), event("b1", "bob")),
        chunk(event("a2", "ann")),
        chunk(event("c1", "cid")),
    )
    assert names(batcher.next(LANE, NOW, flush=True, blocked={"ann"})) == ["c1"]
    assert buffer.count(LANE) == 4
    assert names(batcher.next(LANE, NOW, flush=True)) == ["a1", "b1", "a2"]


def test_a_blocked_lane_has_no_batch() -> None:
    """There is no batch, and everything is where it was."""
    batcher, _ = batcher_of(chunk(event("a1", "ann")), chunk(event("a2", "ann")))
    assert batcher.next(LANE, NOW, flush=True, blocked={"ann"}) is None
    assert names(batcher.next(LANE, NOW, flush=True)) == ["a1", "a2"]


def test_identify_holds_back_both_of_its_ids() -> None:
    """An event that names a second id and may not go holds back later events of either; nothing
    passes it by the back door.
    """
    second: dict[str, Any] = {"$anon_distinct_id": "anon"}
    identify = event("$identify", "ann", **second)
    chunks = (
        chunk(identify),
        chunk(event("after", "ann")),
        chunk(event("late", "anon")),
        chunk(event("bob", "bob")),
    )
    batcher, _ = batcher_of(*chunks)
    assert names(batcher.next(LANE, NOW, flush=True, blocked={"anon"})) == ["bob"]
    assert names(batcher.next(LANE, NOW, flush=True)) == ["$identify", "after", "late"]


def test_what_is_held_back_in_one_request_is_held_back_in_the_next() -> None:
    """The ids that a stuck event drags along, and those beside it in its request, hold in later
    requests too.
    """
    alias = event("$create_alias", "ann", alias="bob")
    batcher, _ = batcher_of(
        chunk(alias, event("x", "xia")),
        chunk(event("b", "bob")),
        chunk(event("x2", "xia")),
        chunk(event("y", "yan")),
    )
    assert names(batcher.next(LANE, NOW, flush=True, blocked={"ann"})) == ["y"]
    assert names(batcher.next(LANE, NOW, flush=True)) == ["$create_alias", "x", "b", "x2"]


def test_an_event_that_did_not_fit_is_not_overtaken() -> None:
    """Once an event finds no room, the batch is closed: a later event of the same person can't
    take its place.
    """
    chunks = (
        chunk(event("b", "bob")),
        chunk(event("a-large", "ann", padding=600)),
        chunk(event("a-small", "ann")),
    )
    batcher, _ = batcher_of(
        *chunks, policy=BatchPolicy(envelope_size(LANE, chunks[1:2]) + 10, 5000, 1.0)
    )
    assert [names(batch) for batch in drained(batcher, blocked={"nobody"})] == [
        ["b"],
        ["a-large"],
        ["a-small"],
    ]


def test_reading_ahead_is_bounded() -> None:
    """Past so many chunks that may not go, no one looks for others: a pass stays short however
    much waits.
    """
    stuck = [chunk(event(f"a{number}", "ann")) for number in range(READ_AHEAD_CHUNKS)]
    batcher, _ = batcher_of(*stuck, chunk(event("b", "bob")))
    assert batcher.next(LANE, NOW, flush=True, blocked={"ann"}) is None
    batcher, _ = batcher_of(*stuck[1:], chunk(event("b", "bob")))
    assert names(batcher.next(LANE, NOW, flush=True, blocked={"ann"})) == ["b"]


def test_reading_ahead_is_bounded_in_ids() -> None:
    """Nor past chunks that hold back so many ids, however few the chunks are."""
    ids = [event(f"a{number}", f"person-{number}") for number in range(READ_AHEAD_IDS - 1)]
    batcher, _ = batcher_of(chunk(event("a", "ann"), *ids), chunk(event("b", "bob")))
    assert batcher.next(LANE, NOW, flush=True, blocked={"ann"}) is None
    batcher, _ = batcher_of(chunk(event("a", "ann"), *ids[1:]), chunk(event("b", "bob")))
    assert names(batcher.next(LANE, NOW, flush=True, blocked={"ann"})) == ["b"]


@given(
    st.lists(st.lists(st.integers(0, 400), min_size=1, max_size=8), min_size=1, max_size=12),
    st.integers(150, 2000),
    st.integers(1, 10),
)
def test_batch_sizes_are_exact(
    requests: Sequence[Sequence[int]], limit: int, max_events: int
) -> None:
    """All events come out once, in order, in bodies of exactly the stated size, below
    both limits.
    """
    numbered = iter(range(1000))
    chunks = [
        chunk(
            *[event(f"e{next(numbered)}", padding=padding) for padding in paddings], ordered=False
        )
        for paddings in requests
    ]
    batcher, buffer = batcher_of(*chunks, policy=BatchPolicy(limit, max_events, 1.0))
    batches = drained(batcher)
    for batch in batches:
        assert_exact(batch, limit)
        assert batch.count <= max_events
    total = sum(len(paddings) for paddings in requests)
    assert [name for batch in batches for name in names(batch)] == [
        f"e{number}" for number in range(total)
    ]
    assert buffer.count(LANE) == total
