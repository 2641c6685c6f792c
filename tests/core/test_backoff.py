"""Waits between attempts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forwarder.core.backoff import Backoff


def upper(_low: float, high: float) -> float:
    """In place of chance: the longest wait."""
    return high


def test_bounds_double_up_to_the_maximum() -> None:
    """Attempt by attempt, from the initial bound on."""
    backoff = Backoff(0.5, 30.0)
    assert [backoff.bound(attempt) for attempt in range(1, 9)] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


def test_the_jitter_is_full() -> None:
    """A wait is drawn between zero and the bound, so that senders that failed together don't come back together."""
    asked: list[tuple[float, float]] = []

    def uniform(low: float, high: float) -> float:
        asked.append((low, high))
        return low

    Backoff(1.0, 60.0, uniform).delay(3)
    assert asked == [(0.0, 4.0)]
    assert Backoff(1.0, 60.0, upper).delay(3) == 4.0


@given(st.integers(min_value=1, max_value=10**9), st.floats(0.001, 10), st.floats(10, 3600))
def test_a_wait_is_never_over_the_maximum(attempt: int, initial: float, maximum: float) -> None:
    """However many attempts failed: no overflow, no wait without end."""
    assert 0.0 <= Backoff(initial, maximum).delay(attempt) <= maximum
