"""The state of one lane while something of it is unsettled, and how it pauses after failures. Pure.

Invariants: every event that was taken from the batcher and isn't settled is in exactly one part of
one group; pending work goes before fresh batches, and a failing lane makes one attempt at a time,
so an upstream in trouble gets no additional load.

Pauses grow, and count once a round however many requests of it fail: `streak` is 0 exactly while
nothing is wrong; an attempt that began before the last failure neither raises the streak (its
failure is the same event) nor ends it (its success is older); `until` never moves back while the
streak lasts, so that no Retry-After is cut short. Attempts are ordered by number, not by time: a
clock can stand still.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from forwarder.core.clock import Backoff
from forwarder.core.event import Ack, Batch, Chunk, Lane
from forwarder.core.ports import Ordering
from forwarder.delivery.batching import batch_of
from forwarder.delivery.splitting import BatchPart, PartGroup
from forwarder.delivery.suspects import Precedents

MAX_BODY_SECONDS: Final = 300.0
"""How long a lane keeps the smaller `max_body` that it got from a 413."""

PARALLEL_AFTER: Final = 0.05
"""Seconds for which a lane that orders by id waits for its last request before it sends another
beside it.

Most waiting events share an id with those in flight: a batch made beside them is a fragment, found
by a search through the queue. With an upstream that answers faster than this it is never needed;
with a slower one there are still twenty requests a second.
"""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How retries wait, in seconds. `give_up_after`: the age of a batch's oldest event past which
    a failed batch becomes dead letters; None: never.
    """

    initial: float = 0.5
    maximum: float = 30.0
    give_up_after: float | None = None


class Moment(NamedTuple):
    """The present, as the pure modules receive it."""

    now: float
    """Monotonic seconds: pauses and probes."""
    wall: float
    """Wall-clock seconds: ages, and what people read."""
    latest_attempt: int = 0
    """The highest attempt number so far: orders attempts and replies."""


class LaneState:
    """Groups, pause, body limit and precedents of one lane. Times are monotonic seconds."""

    __slots__ = (
        "_max_body",
        "_max_body_since",
        "_max_body_until",
        "accepts_others",
        "began",
        "blocked",
        "fresh_probed",
        "groups",
        "html",
        "in_flight",
        "lane",
        "ordering",
        "pause",
        "precedents",
        "refused_at",
    )

    def __init__(self, lane: Lane, ordering: Ordering, backoff: Backoff) -> None:
        self.lane = lane
        self.ordering = ordering
        self.groups: list[PartGroup] = []
        self.blocked: set[str] = set()
        """The ordering keys of its groups. Where the lane keeps order, its
        groups have none in common.
        """
        self.pause = Pause(backoff)
        self.in_flight = 0
        self.began = 0.0
        """When its last attempt began."""
        self.html = False
        """Whether the last answer was a web page."""
        self.refused_at: int | None = None
        """The highest attempt number when the first of the unresolved refusals (400, 413) came."""
        self.accepts_others = False
        """Whether an attempt that began after that refusal got 200: the upstream accepts other
        events, so what is refused alone is at fault itself.
        """
        self.fresh_probed = 0
        """The number of the last attempt that probed with a fresh event."""
        self.precedents = Precedents()
        self._max_body = 0
        self._max_body_until = 0.0
        self._max_body_since = 0

    def open(self, batch: Batch) -> PartGroup:
        """Add the group of a fresh batch."""
        group = PartGroup.of(batch)
        self.groups.append(group)
        self.blocked |= group.ids
        return group

    def parallel_from(self) -> float:
        """When the lane may send a fresh batch beside what is in flight."""
        return (
            self.began + PARALLEL_AFTER
            if self.in_flight and self.ordering is Ordering.PER_DISTINCT_ID
            else 0.0
        )

    def ready(self) -> PartGroup | None:
        """The first group with a part to send."""
        for group in self.groups:
            if group.in_flight is None:
                return group
        return None

    def move_to_end(self, group: PartGroup) -> None:
        """Put the group behind the others, so that a batch that always fails doesn't hold them up.
        Groups share no ordering keys.
        """
        self.groups.remove(group)
        self.groups.append(group)

    def remove_part(self, group: PartGroup, part: BatchPart) -> None:
        """Remove a settled part, and the group with its last one."""
        group.parts.remove(part)
        if group.parts:
            return
        self.groups.remove(group)
        self.blocked -= group.ids
        if group.refusing and not any(other.refusing for other in self.groups):
            self.refused_at = None
            self.accepts_others = False

    def note_refusal(self, group: PartGroup, latest_attempt: int) -> None:
        """An attempt of the group was answered 400 or 413."""
        group.refusing = True
        if self.refused_at is None:
            self.refused_at = latest_attempt

    def note_acceptance(self, attempt: int, size: int) -> None:
        """Attempt number `attempt`, with a body of `size` bytes, got 200."""
        if self.refused_at is not None and attempt > self.refused_at:
            self.accepts_others = True
        if attempt > self._max_body_since:
            self._max_body = max(self._max_body, size)

    def shrink_max_body(self, refused_size: int, moment: Moment) -> None:
        """A body of `refused_size` bytes was too large: keep to half of it for a while, or to
        larger ones accepted after that.
        """
        half = refused_size // 2
        known = self.max_body(moment.now)
        self._max_body = half if known is None else min(half, known)
        self._max_body_until = moment.now + MAX_BODY_SECONDS
        self._max_body_since = moment.latest_attempt

    def forget_max_body(self) -> None:
        """Bodies of any size are refused: drop the limit."""
        self._max_body_until = 0.0

    def max_body(self, now: float) -> int | None:
        """The largest body that the lane should send; None: no limit of its own."""
        return self._max_body if now < self._max_body_until else None

    def idle(self, now: float) -> bool:
        """Whether nothing of this state is needed any more (so nothing is in flight)."""
        return not (
            self.groups
            or self.pause.failing
            or self.html
            or self.max_body(now) is not None
            or self.precedents.valid(now)
        )

    def unsettled(self) -> int:
        """Events taken from the batcher and not yet settled."""
        return sum([part.batch.count for group in self.groups for part in group.parts])

    def withdraw(self, acks: AbstractSet[Ack]) -> list[Chunk]:
        """Take the chunks with these acks out of the parts that aren't in flight; the caller
        settles them.

        What is left keeps its order. A group's ordering keys stay blocked until its last part is
        settled or withdrawn.
        """
        return [
            chunk
            for group in list(self.groups)
            for part in list(group.parts)
            if part is not group.in_flight
            for chunk in self._withdraw_from(group, part, acks)
        ]

    def _withdraw_from(
        self, group: PartGroup, part: BatchPart, acks: AbstractSet[Ack]
    ) -> list[Chunk]:
        withdrawn = [chunk for chunk in part.batch.chunks if chunk.ack in acks]
        if len(withdrawn) == len(part.batch.chunks):
            self.remove_part(group, part)
        elif withdrawn:
            part.batch = batch_of(
                self.lane, [chunk for chunk in part.batch.chunks if chunk.ack not in acks]
            )
        return withdrawn


@dataclass(slots=True)
class Pause:
    """The pause of a lane, or of the whole upstream, after failures. Times are
    monotonic seconds.
    """

    backoff: Backoff
    streak: int = 0
    until: float = 0.0
    why: str = ""
    _failed: int = field(default=-1)
    """The number up to which attempts had begun when the last failure came."""

    @property
    def failing(self) -> bool:
        """Whether the last attempts failed. Then only one attempt at a time is made."""
        return self.streak > 0

    def failed(self, attempt: int, latest: int, now: float, not_before: float, why: str) -> None:
        """Attempt number `attempt` failed, when `latest` was the highest number. Pause for at
        least `not_before` seconds.
        """
        if attempt > self._failed:
            self.streak += 1
            self.until = max(self.until, now + self.backoff.full_jitter(self.streak))
        self.until = max(self.until, now + not_before)
        self._failed = latest
        self.why = why

    def succeeded(self, attempt: int) -> None:
        """Attempt number `attempt` succeeded: end the pause, if it began after the last failure."""
        if attempt > self._failed:
            self.streak = 0
            self.until = 0.0
            self.why = ""
