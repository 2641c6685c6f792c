"""Where events pass that a client may watch (`forwarder tap`): the point that a destination's
admission and delivery and the pipeline's end share.

Invariant: without a tap, `TapPoint.tap` is None, and nothing is done but to look at that, once for
each request or batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

from forwarder.core.event import Chunk
from forwarder.core.ports import DeadLetter


class TapOutcome(StrEnum):
    """What became of an event, as a tap shows it."""

    RECEIVED = "received"
    """Accepted into the buffer."""
    REPLAYED = "replayed"
    """A dead letter that is in the buffer again."""
    DELIVERED = "delivered"
    DEAD_LETTERED = "dead-lettered"
    """At receipt, or later."""
    DROPPED = "dropped"

    __hash__ = str.__hash__
    """The enumeration's own is slow, and one is looked up for each request while there is a tap."""


class Tap(Protocol):
    """Sees events pass. Nothing of them may be changed, and nothing may be raised."""

    def chunks(self, outcome: TapOutcome, chunks: Sequence[Chunk], reason: str = "") -> None:
        """Chunks had this outcome."""

    def dead_letters(
        self, outcome: TapOutcome, dead_letters: Sequence[DeadLetter], reason: str = ""
    ) -> None:
        """Events that are, or would have become, dead letters had this outcome. `reason`: instead
        of their own.
        """


class TapPoint:
    """Holds what watches, if anything does."""

    __slots__ = ("tap",)

    def __init__(self) -> None:
        self.tap: Tap | None = None
