"""What was read of a request, of a batch of records, or by the decoder process: one type for all,
which rules and routes work on and the admission accepts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from forwarder.core.event import Chunk, Lane
from forwarder.core.ports import DeadLetter, Revived, RuleDrop
from forwarder.intake.stamping import RejectedEvent, StampedEvents
from forwarder.wire.v1_results import Results

if TYPE_CHECKING:
    from forwarder.rules.rules import FailedEvent, RuleTally


@dataclass(slots=True)
class Content:
    """The events by lane, and what else became of them.

    It is admitted whole, or nothing of it; its chunks are the admission's from then on, and what
    doesn't fit now is offered again as a copy.
    """

    chunks: list[Chunk] = field(default_factory=list)
    """By lane, in the order of their first events; none is empty. Those of a large body are
    several of one lane.
    """
    letters: list[DeadLetter] = field(default_factory=list)
    """Of the events that were rejected."""
    rejected: list[tuple[Lane, RejectedEvent]] = field(default_factory=list)
    """Those of a request, until letters are made of them: they may be very many."""
    overflow: Sequence[tuple[Lane, str, int]] = ()
    """Further rejected events, by lane and source, which are dropped: no request may bring so many
    dead letters.
    """
    nulled: int = 0
    """NaN and Infinity that became null."""
    filtered: int = 0
    """Foreign records that their mapping leaves out."""
    results: Results | None = None
    """For a sender that gets a result for each event."""
    names: list[Sequence[str] | None] = field(default_factory=list)
    """Of each chunk, until rules are applied: the names of its events, where they are known; empty:
    of none.
    """
    letter: Callable[[int, FailedEvent], DeadLetter] | None = None
    """What makes the dead letter of an event of that chunk on which rules fail, where more is known
    of its origin.
    """
    ruled: bool = False
    """Whether rules were applied: nothing is admitted before."""
    dropped: list[tuple[RuleDrop, Chunk]] = field(default_factory=list)
    """What rules dropped."""
    tallies: list[RuleTally] = field(default_factory=list)
    """What rules did; counted with the events."""
    revived: Revived | None = None
    """The dead letter that it is, if it is one that is replayed."""

    @property
    def is_one_chunk(self) -> bool:
        """Whether rules have left one chunk, and nothing beside it: the most frequent content."""
        return (
            self.ruled
            and len(self.chunks) == 1
            and not self.letters
            and not self.overflow
            and not self.nulled
            and not self.filtered
            and self.results is None
            and self.revived is None
            and not self.tallies
        )

    def add(self, lane: Lane, stamped: StampedEvents, at: float, source: str) -> None:
        """Add events that were received at `at`."""
        self.chunks.append(Chunk(lane, stamped.data, stamped.count, stamped.ids, at, source))
        self.names.append(stamped.names)

    def copy(self, at: float) -> Content:
        """The same, received at `at`, for one more offer."""
        chunks = []
        for chunk in self.chunks:
            copy = chunk.part(chunk.data, chunk.count, chunk.ids, 0)
            copy.received_at = at
            copy.to = chunk.to
            chunks.append(copy)
        return Content(
            chunks,
            list(self.letters),
            overflow=self.overflow,
            nulled=self.nulled,
            filtered=self.filtered,
            ruled=self.ruled,
            dropped=self.dropped,
            tallies=self.tallies,
        )
