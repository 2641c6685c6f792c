"""How long requests may occupy one turn of the event loop."""

from __future__ import annotations

import asyncio

from forwarder.core.loop_turn import COUNTED_FROM, LIMIT_SECONDS, LoopTurn
from tests.support.listening import turns


async def test_a_turn_is_over_when_its_requests_took_as_long_as_they_may() -> None:
    """The next begins with nothing spent."""
    turn = LoopTurn()
    for _ in range(3):
        turn.spend(LIMIT_SECONDS / 2)
        assert not turn.over
        turn.spend(LIMIT_SECONDS / 2)
        assert turn.over
        await turns(1)
        assert not turn.over


async def test_usual_requests_count_for_nothing() -> None:
    """However many they are: others have their turn between them."""
    turn = LoopTurn()
    for _ in range(1_000):
        turn.spend(COUNTED_FROM * 0.9)
    assert not turn.over
    await asyncio.sleep(0)
