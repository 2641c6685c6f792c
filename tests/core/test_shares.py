"""Shares of senders, and the headroom beside the buffer."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forwarder.core.errors import BufferFull
from forwarder.core.shares import LEAST, WATCHED, Headroom, Pool, Shares, size_for
from tests.support.cases import cases


def fill(pool: Pool, sender: str) -> int:
    """Acquire until there is no more; how many those were."""
    count = 0
    while pool.acquire(sender):
        count += 1
    return count


@cases(("size", "alone"), [(1, 1), (2, 2), (8, 7), (128, 112), (1024, 896)])
def test_alone_it_has_nearly_all(size: int, alone: int) -> None:
    """Seven eighths, and of a tiny pool all."""
    pool = Pool(size)
    assert fill(pool, "proxy") == alone
    assert pool.held == alone


def test_a_newcomer_finds_room_beside_a_greedy_one() -> None:
    """What one sender leaves is seven eighths the next one's."""
    pool = Pool(128)
    fill(pool, "greedy")
    assert fill(pool, "honest") == 14
    assert not pool.acquire("greedy")


def test_two_greedy_ones_come_to_hold_the_same() -> None:
    """What the one that holds more releases, the other gets, until they are even; an eighth of a
    share stays free.
    """
    pool = Pool(800)
    held = {"first": fill(pool, "first"), "second": fill(pool, "second")}
    assert held == {"first": 700, "second": 88}
    for _ in range(1000):
        pool.release("first")
        held["first"] -= 1
        for sender in ("first", "second"):
            held[sender] += fill(pool, sender)
    assert abs(held["first"] - held["second"]) <= 7
    assert pool.held >= 800 * 14 // 15


@given(
    st.integers(1, 300), st.lists(st.tuples(st.sampled_from("abcd"), st.booleans()), max_size=400)
)
def test_never_more_than_there_is(size: int, steps: list[tuple[str, bool]]) -> None:
    """The pool is never overdrawn, and a sender that holds nothing gets a
    permit while there is one.
    """
    pool = Pool(size)
    held = dict.fromkeys("abcd", 0)
    for sender, acquires in steps:
        if acquires:
            got = pool.acquire(sender)
            assert got or held[sender] or pool.held == size
            held[sender] += got
        elif held[sender]:
            pool.release(sender)
            held[sender] -= 1
        assert pool.held == sum(held.values()) <= size


@given(st.integers(1, 1 << 40))
def test_the_size_for_a_lone_sender(most: int) -> None:
    """So large that one sender may hold `most`."""
    shares = Shares()
    shares.add("alone", most)
    assert not shares.exceeded("alone", size_for(most))


def test_bytes() -> None:
    """Past its share a sender is over it, and others are not; past the whole all are."""
    shares = Shares()
    shares.add("greedy", 881)
    shares.add("honest", 10)
    assert shares.exceeded("greedy", 1000)
    assert not shares.exceeded("honest", 1000)
    assert shares.exceeded("honest", 890)
    shares.add("greedy", -881)
    assert (shares.held, shares.of("greedy")) == (10, 0)


MOST = 24_000_000


@dataclass
class SharingBuffer:
    """A buffer, as far as it matters here."""

    max_bytes: int
    used: int = 0


@given(st.integers(2 * MOST, 1 << 40), st.floats(0, 1))
def test_buffered_and_in_hand_stay_within_the_buffer_and_a_little(
    max_bytes: int, share: float
) -> None:
    """However full the buffer is, it and what is in hand are over its limit by the least that is
    always allowed, at most.
    """
    buffer = SharingBuffer(max_bytes, int(max_bytes * share))
    bound = Headroom(MOST, buffer).bound()
    assert LEAST <= bound <= MOST
    assert buffer.used + bound <= max_bytes + LEAST


@given(st.integers(0, MOST), st.floats(0, 1))
def test_a_small_buffer_takes_nothing_away(max_bytes: int, share: float) -> None:
    """A request that could never fit gets its 413 also while the buffer isn't empty."""
    assert Headroom(MOST, SharingBuffer(max_bytes, int(max_bytes * share))).bound() == MOST


def test_without_a_buffer() -> None:
    """Then only the bound on what is being received holds."""
    assert Headroom(1000).bound() == 1000


def test_bodies_being_received_count() -> None:
    """A request is worked on if there is room for it twice beside the bodies that come in; it may
    be sent again otherwise.
    """
    headroom = Headroom(MOST, SharingBuffer(64_000_000, 20_000_000))
    headroom.check(MOST)
    headroom.add("sender", 4_000_000)
    headroom.check(22_000_000)
    with pytest.raises(BufferFull):
        headroom.check(22_000_001)


def test_beside_a_full_buffer() -> None:
    """Usual requests are worked on, and get the buffer's own answer."""
    Headroom(MOST, SharingBuffer(64_000_000, 64_000_000)).check(LEAST // 2)


def test_one_sender_leaves_room_for_others() -> None:
    """It may hold seven eighths of the bound, and less when the bound shrinks; a newcomer brings
    its bytes beside it.
    """
    buffer = SharingBuffer(64_000_000)
    headroom = Headroom(MOST, buffer)
    headroom.add("greedy", 21_000_000)
    assert not headroom.exceeded("greedy")
    headroom.add("greedy", 1)
    headroom.add("honest", 1_000_000)
    assert headroom.exceeded("greedy")
    assert not headroom.exceeded("honest")
    headroom.add("greedy", -17_500_001)
    buffer.used = 64_000_000
    assert headroom.exceeded("honest")
    headroom.add("greedy", -1_000_000)
    assert not headroom.exceeded("honest")
    assert headroom.receiving == 3_500_000


def test_received_bytes_are_reported_in_steps() -> None:
    """Once for each so many bytes, no matter who sends them; what goes away again doesn't count."""
    headroom = Headroom(10 * WATCHED)
    calls: list[int] = []
    headroom.on_received = lambda: calls.append(headroom.receiving)
    for _ in range(3):
        headroom.add("one", WATCHED // 2)
        headroom.add("one", -WATCHED // 2)
        headroom.add("other", WATCHED // 4)
    assert len(calls) == 2
