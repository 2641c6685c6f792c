"""How fast a body has to be, and how often connections are looked at."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forwarder.sources.http.protocol.limits import (
    BODY_GRACE,
    BODY_RATE,
    BODY_WINDOW,
    LEAST_BODY_RATE,
    BodyPace,
    HttpPolicy,
)
from tests.support.cases import cases


def _cut_at(rates: list[int], timeout: float) -> int | None:
    pace = BodyPace(0.0, timeout, 0)
    received = 0
    for second, rate in enumerate(rates, start=1):
        received += rate
        if pace.late(float(second), received):
            return second
    return None


@cases(
    ("rate", "cut"),
    [
        (0, 20),
        (LEAST_BODY_RATE - 1, 20),
        (LEAST_BODY_RATE, 60),
        (BODY_RATE - 1, 60),
        (BODY_RATE, None),
        (BODY_RATE * 10, None),
    ],
)
def test_steady(rate: int, cut: int | None) -> None:
    """Below the least rate a body is given up after the grace, below the rate at the time-out; at
    the rate it may take long.
    """
    assert _cut_at([rate] * 300, 60.0) == cut


def test_a_burst_buys_no_time() -> None:
    """A body that came quickly and stalls is given up soon, however much came before."""
    assert _cut_at([10_000_000] + [0] * 300, 60.0) == BODY_GRACE + BODY_WINDOW
    assert 70 <= (_cut_at([BODY_RATE] * 70 + [0] * 300, 60.0) or 0) <= 91


@given(st.lists(st.integers(0, BODY_RATE - 1), min_size=100, max_size=100), st.integers(1, 60))
def test_slow_is_always_cut(rates: list[int], timeout: int) -> None:
    """Never reaching the rate means ending at the time-out, or before."""
    assert (_cut_at(rates, timeout) or 101) <= timeout


@given(st.lists(st.integers(0, LEAST_BODY_RATE - 1), min_size=40, max_size=40))
def test_a_trickle_is_cut_after_the_grace(rates: list[int]) -> None:
    """Whatever comes in drops ends when the grace is over."""
    assert _cut_at(rates, 60.0) == BODY_GRACE


def test_a_pause_is_forgiven() -> None:
    """The rate is an average over each window: a sender that pauses for a few seconds continues."""
    assert _cut_at(([LEAST_BODY_RATE * 8] + [0] * 3) * 14, 60.0) is None


def test_sweep_interval() -> None:
    """Time limits hold to within a second, or a quarter of the shortest."""
    assert HttpPolicy().sweep_interval == 1.0
    assert HttpPolicy(header_timeout=0.4).sweep_interval == 0.1
