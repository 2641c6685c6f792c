"""The present, as the pure parts are told it."""

from __future__ import annotations

from typing import NamedTuple


class Moment(NamedTuple):
    """One instant of delivery."""

    now: float
    """Monotonic seconds: pauses and probes."""
    wall: float
    """Wall-clock seconds: ages, and what people read."""
    latest: int = 0
    """The highest attempt number given out so far: tells whether an attempt began before or after something."""
