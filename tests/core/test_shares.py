"""Senders share what is bounded: one that is alone has nearly all, and a newcomer always finds something."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forwarder.core.shares import Pool, Shares, size_for


def fill(pool: Pool, sender: str) -> int:
    """Acquire until there is no more; how many those were."""
    count = 0
    while pool.acquire(sender):
        count += 1
    return count


@pytest.mark.parametrize(("size", "alone"), [(1, 1), (2, 2), (8, 7), (128, 112), (1024, 896)])
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
    """What the one that holds more releases, the other gets, until they are even; an eighth of a share stays free."""
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


@given(st.integers(1, 300), st.lists(st.tuples(st.sampled_from("abcd"), st.booleans()), max_size=400))
def test_never_more_than_there_is(size: int, steps: list[tuple[str, bool]]) -> None:
    """The pool is never overdrawn, and a sender that holds nothing gets a permit while there is one."""
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
