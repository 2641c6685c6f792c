"""The concurrency limit: grows when used and taken, gives way to overload and slowness, never
leaves its bounds.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forwarder.core.outcome import Bisect, Delivered, Halt, HaltReason, Retry, Scope, Split
from forwarder.delivery.limiter import INITIAL, MAXIMUM, Limiter, LoadSignal, load_signal
from tests.support.cases import cases


class Feed:
    """Feeds a limiter with answers, numbering the attempts."""

    def __init__(self, fixed: int | None = None) -> None:
        self.limiter = Limiter(fixed)
        self.number = 0

    def __call__(
        self,
        signal: LoadSignal = LoadSignal.ACCEPTED,
        *,
        count: int = 1,
        used: bool = True,
        size: int = 5_000_000,
        seconds: float = 0.1,
    ) -> int:
        """So many answers, each to an attempt that began after the answer
        before; the limit after them.
        """
        for _ in range(count):
            self.number += 1
            in_flight = self.limiter.limit if used else 1
            self.limiter.observe(
                signal,
                number=self.number,
                latest=self.number,
                in_flight=in_flight,
                size=size,
                seconds=seconds,
            )
        return self.limiter.limit


@cases(
    ("outcome", "signal"),
    [
        (Delivered(), LoadSignal.ACCEPTED),
        (Delivered("other_2xx"), LoadSignal.ACCEPTED),
        (Retry("503", Scope.UPSTREAM), LoadSignal.OVERLOAD),
        (Retry("429", Scope.LANE), LoadSignal.OVERLOAD),
        (Retry("a web page", Scope.LANE, overload=False), LoadSignal.NEUTRAL),
        (Split(""), LoadSignal.NEUTRAL),
        (Bisect(""), LoadSignal.NEUTRAL),
        (Halt(HaltReason.FORBIDDEN, ""), LoadSignal.NEUTRAL),
    ],
)
def test_only_load_changes_the_concurrency_limit(
    outcome: Delivered | Retry | Split | Bisect | Halt, signal: LoadSignal
) -> None:
    """400, 401, 403 and 413 tell of the request, not of the load."""
    assert load_signal(outcome) is signal


def test_it_grows_by_one_a_round_to_its_maximum() -> None:
    """Additive increase: as many taken requests as the limit has make it one more."""
    feed = Feed()
    assert feed(count=INITIAL + 1) == INITIAL + 1
    assert feed(count=5000) == MAXIMUM


def test_it_grows_only_when_it_was_used() -> None:
    """With few requests there is nothing to learn about more."""
    assert Feed()(count=500, used=False) == INITIAL


def test_overload_halves_it_once_a_round() -> None:
    """All requests of a round fail together: that is one failure; the next round's is another."""
    feed = Feed()
    feed(count=5000)
    for number in range(10):
        feed.limiter.observe(
            LoadSignal.OVERLOAD,
            number=feed.number - number,
            latest=feed.number,
            in_flight=32,
            size=100,
            seconds=1.0,
        )
    assert feed.limiter.limit == MAXIMUM // 2
    assert feed(LoadSignal.OVERLOAD) == MAXIMUM // 4
    assert feed(LoadSignal.OVERLOAD, count=20) == 1


def test_slow_answers_cut_it_and_a_new_normal_is_learned() -> None:
    """An answer far slower than usual for its size cuts the limit; if that is how it is from now
    on, the limit grows again.
    """
    feed = Feed()
    before = feed(count=5000)
    assert feed(seconds=2.0) < before
    low = feed(seconds=2.0, count=3)
    assert feed(seconds=2.0, count=2000) > low


def test_sizes_are_compared_with_their_like() -> None:
    """A large body that takes long says nothing, if large bodies always do."""
    feed = Feed()
    for _ in range(400):
        feed(size=2_000, seconds=0.01)
        feed(size=10_000_000, seconds=3.0)
    assert feed.limiter.limit == MAXIMUM


@given(
    st.lists(
        st.tuples(
            st.sampled_from(list(LoadSignal)),
            st.booleans(),
            st.integers(1, 20_000_000),
            st.floats(0, 100),
        ),
        max_size=200,
    )
)
def test_the_concurrency_limit_stays_in_bounds(
    answers: list[tuple[LoadSignal, bool, int, float]],
) -> None:
    """Whatever is answered, at least one request may be made, and never more than the maximum; a
    fixed limit never moves.
    """
    feed = Feed()
    fixed = Feed(7)
    for signal, used, size, seconds in answers:
        assert 1 <= feed(signal, used=used, size=size, seconds=seconds) <= MAXIMUM
        assert fixed(signal, used=used, size=size, seconds=seconds) == 7
