"""Whose turn it is."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from forwarder.core.event import Lane
from forwarder.delivery.turns import HISTORICAL_EVERY, Turns

A = Lane("phc_a")
B = Lane("phc_b")
C = Lane("phc_c")
OLD = Lane("phc_a", historical=True)
OLDER = Lane("phc_b", historical=True)


def serve(turns: Turns, waiting: list[Lane], size: int = 100, times: int = 1) -> list[Lane]:
    """Give the first in turn a request, so many times; whose turns they were."""
    served = []
    for _ in range(times):
        served.append(next(turns.order([], waiting)))
        turns.count_batch(served[-1], size)
        turns.count_request(served[-1])
    return served


def test_no_lane_is_pending() -> None:
    """Then it is no one's turn."""
    assert list(Turns().order([], [])) == []


def test_lanes_take_turns() -> None:
    """With requests of one size it is each lane's turn once a round."""
    assert serve(Turns(), [A, B, C], times=6) == [A, B, C, A, B, C]


def test_turns_are_shared_by_bytes() -> None:
    """A lane of large requests has fewer of them."""
    turns = Turns()
    bytes_of: Counter[Lane] = Counter()
    for _ in range(300):
        lane = next(turns.order([], [A, B]))
        size = 1000 if lane == A else 10
        turns.count_batch(lane, size)
        bytes_of[lane] += size
    assert abs(bytes_of[A] - bytes_of[B]) <= 1000


def test_a_new_lane_starts_level() -> None:
    """It is not given all that the others had before it came."""
    turns = Turns()
    serve(turns, [A, B], times=1000)
    assert Counter(serve(turns, [A, B, C], times=30)) == {A: 10, B: 10, C: 10}


def test_an_idle_lane_gains_nothing() -> None:
    """One that had nothing for a while is level when it comes back, with several others waiting or
    with one alone.
    """
    for others in ([B], [B, C]):
        turns = Turns()
        serve(turns, [A, *others], times=6)
        serve(turns, others, times=1000)
        assert serve(turns, [A, *others], times=12).count(A) <= 12 // (len(others) + 1) + 1


def test_live_lanes_come_first() -> None:
    """Historical ones take their turn when no live one waits, or in one request of twenty."""
    served = serve(Turns(), [OLD, A], times=2 * HISTORICAL_EVERY)
    assert Counter(served) == {A: 2 * (HISTORICAL_EVERY - 1), OLD: 2}
    assert set(serve(Turns(), [OLD, OLDER], times=10)) == {OLD, OLDER}


def test_every_lane_is_in_the_order() -> None:
    """So that the next one can be asked when the first has nothing that may go."""
    turns = Turns()
    serve(turns, [A, B], times=3)
    assert set(turns.order([], [A, B, OLD])) == {A, B, OLD}


def test_a_backlog_of_history_gives_no_live_lane_precedence() -> None:
    """A live lane that comes new is level with the live ones, not with a historical one, which was
    served little.
    """
    turns = Turns()
    serve(turns, [A, OLD], times=400)
    assert Counter(serve(turns, [A, B, OLD], times=2 * HISTORICAL_EVERY))[B] <= HISTORICAL_EVERY


def test_the_lane_that_was_served_least_comes_first() -> None:
    """A live lane before a historical one, and of live ones the one with fewer bytes."""
    turns = Turns()
    assert list(turns.order([], [OLD, A, B])) == [A, B, OLD]
    turns.count_batch(A, 100)
    assert list(turns.order([], [OLD, A, B])) == [B, A, OLD]


def test_pending_work_comes_before_fresh_batches() -> None:
    """Of its kind; while the upstream fails, before those of the other kind too."""
    turns = Turns()
    assert list(turns.order([OLD, B], [OLDER, A])) == [B, A, OLD, OLDER]
    assert list(turns.order([OLD, B], [OLDER, A], pending_first=True)) == [B, OLD, A, OLDER]


def test_one_request_in_twenty_begins_with_history() -> None:
    """Be the requests of pending work or of fresh batches; its turn is kept until a historical
    lane was given a request.
    """
    turns = Turns()
    for _ in range(HISTORICAL_EVERY - 1):
        assert next(turns.order([A], [OLD, B])) == A
        turns.count_request(A)
    for _ in range(2):
        assert list(turns.order([A, OLDER], [OLD, B])) == [OLDER, OLD, A, B]
        assert list(turns.order([A, OLDER], [OLD, B], pending_first=True)) == [OLDER, A, OLD, B]
        turns.count_request(A)
    turns.count_request(OLD)
    assert next(turns.order([A], [OLD, B])) == A


@given(
    st.lists(
        st.lists(st.sampled_from([A, B, C, OLD, OLDER]), min_size=1, unique=True), max_size=60
    ),
    st.integers(1, 10_000),
)
def test_lanes_of_a_kind_take_turns(rounds: list[list[Lane]], size: int) -> None:
    """However lanes come and go: of two lanes of a kind that both wait for a while, none gets over
    two requests more than the other.
    """
    turns = Turns()
    ahead: dict[tuple[Lane, Lane], int] = {}
    for waiting in rounds:
        pairs = [
            (one, two)
            for one in waiting
            for two in waiting
            if one < two and one.historical == two.historical
        ]
        ahead = {pair: ahead.get(pair, 0) for pair in pairs}
        order = list(turns.order([], waiting))
        assert sorted(order) == sorted(waiting)
        turns.count_batch(order[0], size)
        turns.count_request(order[0])
        ahead = {
            (one, two): lead + (one == order[0]) - (two == order[0])
            for (one, two), lead in ahead.items()
        }
        assert all(abs(lead) <= 2 for lead in ahead.values())
