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


def test_jitter() -> None:
    """A wait is drawn between zero (or half the bound, for equal jitter) and the bound, so that not all come back together."""
    asked: list[tuple[float, float]] = []

    def uniform(low: float, high: float) -> float:
        asked.append((low, high))
        return low

    backoff = Backoff(1.0, 60.0, uniform)
    assert (backoff.full_jitter(3), backoff.equal_jitter(3)) == (0.0, 2.0)
    assert asked == [(0.0, 4.0), (2.0, 4.0)]
    assert Backoff(1.0, 60.0, upper).full_jitter(3) == 4.0


@given(st.integers(min_value=1, max_value=10**9), st.floats(0.001, 10), st.floats(10, 3600))
def test_a_wait_is_never_over_the_maximum(attempt: int, initial: float, maximum: float) -> None:
    """However many attempts failed: no overflow, no wait without end."""
    backoff = Backoff(initial, maximum)
    assert 0.0 <= backoff.full_jitter(attempt) <= maximum
    assert 0.0 < backoff.equal_jitter(attempt) <= maximum
