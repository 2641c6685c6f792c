"""Acknowledgement: what an answer of 200 promises, and the callback that confirms it.

The levels rise: `memory` (the events are in the buffer), `disk` (an fdatasync that covers them has
returned), `delivered` (the upstream answered 200 to each event, or refused it for good and it is a
durable dead letter). 200 never means more than the requested level. What counts events down to
`delivered` travels with them (`event.Ack`).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TypeAlias

from forwarder.core.errors import Backpressure


class AckLevel(StrEnum):
    """What an answer of 200 promises."""

    MEMORY = "memory"
    DISK = "disk"
    DELIVERED = "delivered"

    @property
    def rank(self) -> int:
        """The higher, the more is promised."""
        return _RANKS[self]


_RANKS = {AckLevel.MEMORY: 0, AckLevel.DISK: 1, AckLevel.DELIVERED: 2}


AckCallback: TypeAlias = Callable[[Backpressure | None], None]
"""Called once, on the loop, never from within the call that it was handed to: with None when the
level is reached, else with the reason why it will not be reached. Of what failed nothing was kept.
"""
