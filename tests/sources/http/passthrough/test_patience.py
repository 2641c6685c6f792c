"""How long an upstream is waited for."""

from __future__ import annotations

import asyncio

import pytest

from forwarder.sources.http.passthrough.upstream import PausableTimeout
from tests.support.clock import FakeClock


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


async def test_it_stands_still_while_the_sender_is_waited_for(clock: FakeClock) -> None:
    """Neither its bringing the request nor its reading the answer counts, and both together don't either."""
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
    """What is told before it is entered, after it was left, or after it ran out sets no timer."""
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
