"""What a tap costs: how turns are judged, and the load that they have."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.bodies import Shape, Variant, ring
from benchmarks.taps import ALLOWED, NAME, TAPS, TapResult, send_at_rate, tap_line
from tests.support.upstream import Upstream


@pytest.mark.parametrize(("last", "good"), [(ALLOWED - 0.01, True), (ALLOWED + 0.01, False)])
def test_the_middle_of_the_turns_counts(last: float, *, good: bool) -> None:
    """One turn in which the machine did something else doesn't decide; a tap that usually costs more is not good."""
    result = TapResult(NAME, [3e-6], {name: [0.8, last, 2.0] for name in TAPS}, [50_000.0])
    assert result.good == good
    assert tap_line(result).endswith(": good" if good else "NOT GOOD")


async def test_the_load_has_its_rate() -> None:
    """What is sent in a time is what the rate says, not what the daemon could take."""
    requests = ring(Variant.TINY, 50, Shape.ENVELOPE, "")
    async with Upstream() as upstream:
        port = int(upstream.url.rpartition(":")[2])
        sent, _ = await asyncio.to_thread(send_at_rate, requests, port, 0.2, 5000)
    assert sent <= 0.2 * 5000 + 50
    assert len(upstream.requests) * 50 == sent
