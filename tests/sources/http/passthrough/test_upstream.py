"""The circuit breaker, and the time limit that can be paused."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forwarder.core.clock import Backoff
from forwarder.sources.http.passthrough.upstream import (
    FAILURES,
    PROBE_SECONDS,
    BreakerPermit,
    CircuitBreaker,
    PausableTimeout,
)
from tests.support.clock import FakeClock

SURE = Backoff(1.0, 30.0, lambda _, high: high)
"""Without jitter: 1, 2, 4, 8, 16, 30, 30 seconds."""


def leave(circuit: CircuitBreaker, now: float) -> BreakerPermit:
    """The leave to ask, which there has to be."""
    attempt = circuit.begin(now)
    assert attempt is not None
    return attempt


def opened(now: float = 100.0) -> CircuitBreaker:
    """A circuit that has just opened."""
    circuit = CircuitBreaker(probes=SURE)
    for _ in range(FAILURES):
        circuit.failed(leave(circuit, now), now, "down")
    assert circuit.open is not None
    return circuit


def test_failures_in_a_row() -> None:
    """Five failures open it, but not with a success among them."""
    circuit = CircuitBreaker()
    for _ in range(3):
        for _ in range(FAILURES - 1):
            circuit.failed(leave(circuit, 0.0), 0.0, "down")
        circuit.succeeded()
    assert circuit.open is None


def test_an_answer_that_begins_is_not_enough_for_a_closed_one() -> None:
    """Answers that begin and break off each time are failures in a row; an open one is closed by
    the beginning of one.
    """
    circuit = CircuitBreaker()
    for _ in range(FAILURES):
        attempt = leave(circuit, 0.0)
        circuit.answered()
        circuit.failed(attempt, 0.0, "cut")
    assert circuit.open is not None
    circuit.answered()
    assert circuit.open is None


def test_probes_come_at_growing_intervals() -> None:
    """One each time, after 1, 2, 4, … up to 30 seconds from the last one's
    failure, until one succeeds.
    """
    now = 100.0
    circuit = opened(now)
    for wait in (1, 2, 4, 8, 16, 30, 30):
        assert circuit.begin(now + wait - 0.001) is None
        assert circuit.retry_after(now) == wait
        probe = leave(circuit, now + wait)
        assert circuit.begin(now + wait + PROBE_SECONDS - 0.001) is None
        now += wait + 2
        circuit.failed(probe, now, "still down")
    assert circuit.open is not None
    assert (circuit.open.since, circuit.open.why) == (100.0, "still down")
    leave(circuit, now + 30)
    circuit.succeeded()
    assert circuit.begin(now) is not None
    assert circuit.open is None


def test_a_probe_that_is_given_up_makes_room_for_another() -> None:
    """Nothing is known then, and no one has to wait longer for it."""
    circuit = opened(100.0)
    circuit.abandoned(leave(circuit, 101.0))
    leave(circuit, 101.0)


def test_a_slow_probe_is_overtaken() -> None:
    """Its sender may take its time: after a while another may probe, and the failure of the slow
    one no longer counts.
    """
    circuit = opened(100.0)
    slow = leave(circuit, 101.0)
    assert circuit.retry_after(102.0) == PROBE_SECONDS - 1.0
    leave(circuit, 101.0 + PROBE_SECONDS)
    circuit.failed(slow, 107.0, "slow")
    circuit.abandoned(slow)
    assert circuit.open is not None
    assert circuit.open.why == "down"
    assert circuit.begin(107.0) is None


def test_stragglers() -> None:
    """Failures of requests that began before it opened don't put off the probe; a success of one
    closes it.
    """
    circuit = CircuitBreaker(probes=SURE)
    early = [leave(circuit, 0.0) for _ in range(FAILURES + 3)]
    for attempt in early[:FAILURES]:
        circuit.failed(attempt, 1.0, "down")
    for attempt in early[FAILURES:-1]:
        circuit.failed(attempt, 5.0, "down")
    assert circuit.retry_after(1.0) == 1.0
    circuit.succeeded()
    assert circuit.open is None


def test_one_failure_reported_twice_counts_once() -> None:
    """A gateway's complaint that breaks off too is one failure."""
    circuit = CircuitBreaker()
    for _ in range(FAILURES - 1):
        attempt = leave(circuit, 0.0)
        circuit.failed(attempt, 0.0, "HTTP 503")
        circuit.failed(attempt, 0.0, "cut")
    assert circuit.open is None


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["begin", "answered", "succeeded", "failed", "abandoned"]),
            st.floats(0, 60),
        ),
        max_size=80,
    )
)
def test_at_most_one_probe_which_expires(steps: list[tuple[str, float]]) -> None:
    """Whatever comes in whichever order: one probe goes each `PROBE_SECONDS` at most while it is
    open, and the next one may go soon.
    """
    circuit = CircuitBreaker()
    now = 0.0
    out = list[tuple[BreakerPermit, bool]]()
    last = -PROBE_SECONDS
    probe: BreakerPermit | None = None
    for step, seconds in steps:
        now += seconds
        if step == "begin":
            was_open = circuit.open is not None
            attempt = circuit.begin(now)
            if attempt is not None:
                if was_open and any(probe is before for before, _ in out):
                    assert now >= last + PROBE_SECONDS
                probe, last = (attempt, now) if was_open else (probe, last)
                out.append((attempt, was_open))
            else:
                assert was_open
        elif step in ("answered", "succeeded"):
            getattr(circuit, step)()
            assert circuit.open is None
        elif out:
            attempt, _ = out.pop(0)
            circuit.failed(attempt, now, "x") if step == "failed" else circuit.abandoned(attempt)
        assert 0 <= circuit.retry_after(now) <= 30
    assert circuit.begin(now + 30) is not None


async def waiting(patience: PausableTimeout) -> None:
    """Wait for an upstream that never comes."""
    async with patience:
        await asyncio.Event().wait()


async def runs_out(clock: FakeClock, task: asyncio.Task[None], seconds: float) -> None:
    """It ends by `TimeoutError` after just so many seconds."""
    await clock.advance(seconds - 0.01)
    assert not task.done()
    await clock.advance(0.01)
    with pytest.raises(TimeoutError):
        await task
    assert clock.pending == 0


@pytest.mark.parametrize("whole", [False, True])
async def test_progress(clock: FakeClock, whole: bool) -> None:
    """It starts anew with progress, unless it is for the whole."""
    patience = PausableTimeout(clock, 10, total=whole)
    task = asyncio.create_task(waiting(patience))
    for _ in range(3):
        await clock.advance(3)
        patience.progressed()
    await runs_out(clock, task, 1 if whole else 10)


async def test_the_timeout_pauses_while_the_sender_is_slow(clock: FakeClock) -> None:
    """Neither its bringing the request nor its reading the answer counts, and
    both together don't either.
    """
    patience = PausableTimeout(clock, 10, total=True)
    task = asyncio.create_task(waiting(patience))
    await clock.advance(4)
    patience.sending(expected=False)
    await clock.advance(100)
    patience.reading(expected=False)
    patience.sending(expected=True)
    await clock.advance(100)
    patience.reading(expected=True)
    await clock.advance(1)
    await runs_out(clock, task, 5)


async def test_nothing_runs_before_and_after(clock: FakeClock) -> None:
    """What is reported before it is entered, after it was left, or after it ran out
    sets no timer.
    """
    patience = PausableTimeout(clock, 10, total=False)
    patience.sending(expected=True)
    assert clock.pending == 0
    async with patience:
        assert clock.pending == 1
    for tell in (patience.reading, patience.sending):
        tell(expected=False)
        tell(expected=True)
    patience.progressed()
    assert clock.pending == 0
    late = PausableTimeout(clock, 1, total=False)
    task = asyncio.create_task(waiting(late))
    await clock.advance(1)
    late.progressed()
    assert clock.pending == 0
    with pytest.raises(TimeoutError):
        await task
