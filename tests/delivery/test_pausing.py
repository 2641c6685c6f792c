"""Pauses after failures: once a round, growing, never shorter than the upstream asked for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forwarder.core.clock import Backoff
from forwarder.delivery.pausing import Pause
from tests.delivery.rig import upper


def pause() -> Pause:
    """A pause that always takes the longest wait."""
    return Pause(Backoff(0.5, 30.0, upper))


def test_a_round_counts_once() -> None:
    """Ten requests of one round fail: the streak rises by one. A request of the next round raises it again."""
    one = pause()
    for number in range(1, 11):
        one.failed(number, 10, 100.0, 0.0, "HTTP 503")
    assert (one.streak, one.until) == (1, 100.5)
    one.failed(11, 11, 101.0, 0.0, "HTTP 503")
    assert (one.streak, one.until) == (2, 102.0)


def test_an_old_success_ends_nothing() -> None:
    """A request that began before the failure and succeeds after it tells of an earlier time."""
    one = pause()
    one.failed(5, 6, 100.0, 0.0, "HTTP 503")
    one.succeeded(6)
    assert one.failing
    one.succeeded(7)
    assert (one.failing, one.until) == (False, 0.0)


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 1000)), min_size=1))
def test_retry_after_holds_through_a_streak(failures: list[tuple[float, float]]) -> None:
    """`until` is never earlier than any Retry-After that was given in the streak."""
    one, now, floor = pause(), 0.0, 0.0
    for number, (step, retry_after) in enumerate(failures):
        now += step
        floor = max(floor, now + retry_after)
        one.failed(number, number, now, retry_after, "")
        assert one.until >= floor
