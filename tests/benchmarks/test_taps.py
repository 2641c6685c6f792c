"""What a tap costs: how turns are checked, and the load that they have."""

from __future__ import annotations

import pytest

from benchmarks.taps import ALLOWED, NAME, TAPS, TapResult, tap_line


@pytest.mark.parametrize(("last", "good"), [(ALLOWED - 0.01, True), (ALLOWED + 0.01, False)])
def test_the_middle_of_the_turns_counts(last: float, *, good: bool) -> None:
    """One turn in which the machine did something else doesn't decide; a tap that usually costs
    more is not good.
    """
    result = TapResult(NAME, [3e-6], {name: [0.8, last, 2.0] for name in TAPS}, [50_000.0])
    assert result.good == good
    assert tap_line(result).endswith(": good" if good else "NOT GOOD")
