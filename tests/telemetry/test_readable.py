"""Figures for a person."""

from __future__ import annotations

import pytest

from forwarder.telemetry.readable import duration, size


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (64 * 2**20, "64.0 MiB"), (3 * 2**30, "3.0 GiB")]
)
def test_sizes(count: int, text: str) -> None:
    """Sizes are told in the largest unit that they fill."""
    assert size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (-5, "0s"), (59.6, "1m"), (61, "1m 1s"), (3600, "1h"), (93_784, "1d 2h"), (86_405, "1d 5s")]
)
def test_durations(seconds: float, text: str) -> None:
    """Durations are told in their two largest parts, never negative (a clock may be set back)."""
    assert duration(seconds) == text
