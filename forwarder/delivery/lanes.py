"""What delivery knows of one lane while something of it is unsettled. Pure.

Invariants: every event that was taken from the batcher and isn't settled is in exactly one part of one group; work that is pending goes
before fresh batches, and a lane that is failing makes one attempt at a time, so an upstream in trouble isn't met with more.
"""

from __future__ import annotations

from typing import Final

from forwarder.core.clock import Backoff
from forwarder.core.event import Batch, Lane
from forwarder.core.ports import Ordering
from forwarder.delivery.groups import Group, Part
from forwarder.delivery.moment import Moment
from forwarder.delivery.ordering import Blocked
from forwarder.delivery.pausing import Pause
from forwarder.delivery.precedents import Precedents

LESSON_SECONDS: Final = 300.0
"""How long a lane keeps to the smaller body that a 413 taught it."""

PARALLEL_AFTER: Final = 0.05
"""Seconds for which a lane that orders by id waits for its last request alone, before it makes a further one beside it.

Of what waits, most shares an id with what is in flight: a batch made beside it is a fragment, found by a search through the queue. With an
upstream that answers faster than this it is never needed; with a slower one there are still twenty requests a second.
"""


class LaneState:
    """Groups, pauses and lessons of one lane. Times are monotonic seconds."""

    __slots__ = (
        "_lesson",
        "_lesson_ends",
        "_lesson_of",
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
        "proven",
        "refused_at",
    )

    def __init__(self, lane: Lane, ordering: Ordering, backoff: Backoff) -> None:
        self.lane = lane
        self.ordering = ordering
        self.groups: list[Group] = []
        self.blocked = Blocked()
        self.pause = Pause(backoff)
        self.in_flight = 0
        self.began = 0.0
        """When its last attempt began."""
        self.html = False
        """Whether the last answer was a web page."""
        self.refused_at: int | None = None
        """The highest attempt number when the first of the unresolved refusals (400, 413) came."""
        self.proven = False
        """Whether an attempt that began after that refusal got 200, so that what is refused alone is at fault itself."""
        self.fresh_probed = 0
        """The number of the last attempt that probed with a fresh event."""
        self.precedents = Precedents()
        self._lesson = 0
        self._lesson_ends = 0.0
        self._lesson_of = 0

    def open(self, batch: Batch) -> Group:
        """Begin a fresh batch."""
        group = Group.of(batch)
        self.groups.append(group)
        self.blocked.block(group)
        return group

    def parallel_from(self) -> float:
        """When the lane may begin a fresh batch beside what is in flight."""
        return self.began + PARALLEL_AFTER if self.in_flight and self.ordering is Ordering.PER_DISTINCT_ID else 0.0

    def ready(self) -> Group | None:
        """The next group that has work pending."""
        for group in self.groups:
            if group.in_flight is None:
                return group
        return None

    def retreat(self, group: Group) -> None:
        """Let the other groups go before this one: what always fails doesn't hold up the rest (groups share no ordering keys)."""
        self.groups.remove(group)
        self.groups.append(group)

    def settled(self, group: Group, part: Part) -> None:
        """Forget a part whose events are settled, and the group with its last one."""
        group.parts.remove(part)
        if group.parts:
            return
        self.groups.remove(group)
        self.blocked.free(group)
        if group.refusing and not any(other.refusing for other in self.groups):
            self.refused_at, self.proven = None, False

    def refused(self, group: Group, latest: int) -> None:
        """Something of the group was answered 400 or 413, when `latest` was the highest attempt number."""
        group.refusing = True
        if self.refused_at is None:
            self.refused_at = latest

    def accepted(self, attempt: int, size: int) -> None:
        """Attempt number `attempt`, with a body of `size` bytes, got 200."""
        if self.refused_at is not None and attempt > self.refused_at:
            self.proven = True
        if attempt > self._lesson_of:
            self._lesson = max(self._lesson, size)

    def shrink_max_body(self, refused_size: int, at: Moment) -> None:
        """A body of `refused_size` bytes was too large: keep to half of it for a while, or to what is accepted after that."""
        half = refused_size // 2
        known = self.max_body(at.now)
        self._lesson = half if known is None else min(half, known)
        self._lesson_ends = at.now + LESSON_SECONDS
        self._lesson_of = at.latest

    def forget_max_body(self) -> None:
        """Something refuses bodies of any size: that teaches nothing."""
        self._lesson_ends = 0.0

    def max_body(self, now: float) -> int | None:
        """The largest body the lane should send, if it was taught one lately."""
        return self._lesson if now < self._lesson_ends else None

    def idle(self, now: float) -> bool:
        """Whether there is nothing to remember of this lane."""
        return not (self.groups or self.pause.failing or self.html or self.max_body(now) is not None or self.precedents.valid(now))

    def unsettled(self) -> int:
        """Events taken from the batcher and not yet settled."""
        return sum([part.batch.count for group in self.groups for part in group.parts])
