"""What calls cost that are passed through: how figures are compared with
nginx's, and the call itself.
"""

from __future__ import annotations

import asyncio

from benchmarks.passing import (
    NAME,
    SHARE,
    SLOWER,
    PassingFigures,
    PassingResult,
    flag_call,
    one_call,
    passing_line,
)
from tests.support.cases import cases
from tests.support.listening import listening
from tests.support.origin import origin, through


@cases(
    ("calls", "seconds", "good"),
    [
        (SHARE * 1000, 0.001 + SLOWER, True),
        (SHARE * 1000 - 1, 0.001, False),
        (1000.0, 0.0011 + SLOWER, False),
    ],
)
def test_both_figures_count(calls: float, seconds: float, *, good: bool) -> None:
    """The middle of the rounds is compared with the middle of nginx's."""
    result = PassingResult(
        NAME,
        PassingFigures([1.0, calls, 5000.0], [0.1, seconds, 0.0]),
        PassingFigures([1000.0], [0.001]),
    )
    assert result.good == good
    assert passing_line(result).endswith(": good" if good else "NOT GOOD")


def test_without_nginx_there_is_no_verdict() -> None:
    """The daemon's own figures are said."""
    result = PassingResult(NAME, PassingFigures([1234.0], [0.00025]))
    assert result.good
    assert passing_line(result) == (
        "passthrough: 1,234 calls/CPU-s, one takes 0.25 ms; nginx isn't installed, so "
        "there is nothing to compare with"
    )


async def test_the_call_is_one_that_is_passed_through() -> None:
    """It reaches the upstream as it is, each time."""
    async with origin() as upstream, listening(passthrough=through(upstream)) as to:
        port = int(to.listener.addresses[0].rpartition(":")[2])
        assert await asyncio.to_thread(one_call, port, 5) > 0
        assert upstream.targets == ["/flags/?v=2"] * 5
        assert bytes(flag_call().data).endswith(upstream.asked[0].body)
