"""The sandbox's clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from forwarder.sandbox.protocol.clock import LATEST, SandboxClock
from tests.support.clock import MIDNIGHT
from tests.support.waiting import tick

START = datetime(2026, 1, 1, tzinfo=UTC)


def standing() -> SandboxClock:
    """A clock whose base stands still."""
    return SandboxClock(lambda: MIDNIGHT)


def test_it_moves_forward_only() -> None:
    """By a duration or to a time, up to a time to which anything can still be added."""
    clock = standing()
    clock.advance(timedelta(hours=1))
    clock.move_to(START + timedelta(days=1))
    assert (clock.now(), clock.offset, clock()) == (
        START + timedelta(days=1),
        86_400,
        MIDNIGHT + 86_400,
    )
    for wrong in (START, LATEST + timedelta(seconds=1)):
        with pytest.raises(ValueError, match="can't be moved"):
            clock.move_to(wrong)
    assert clock.now() == START + timedelta(days=1)


async def test_a_wait_ends_when_the_clock_is_moved() -> None:
    """Or when it is woken; a time that has come isn't waited for."""
    clock = standing()
    woken = asyncio.Event()
    await clock.wait(START, woken)
    ends: list[Callable[[], None]] = [lambda: clock.advance(timedelta(seconds=1)), woken.set]
    for end in ends:
        woken.clear()
        waiting = asyncio.create_task(clock.wait(None, woken))
        await tick()
        assert not waiting.done()
        end()
        await waiting


async def test_a_wait_ends_when_its_time_has_come() -> None:
    """By the clock's base."""
    clock = SandboxClock()
    until = clock.now() + timedelta(seconds=0.02)
    await clock.wait(until, asyncio.Event())
    assert clock.now() >= until
