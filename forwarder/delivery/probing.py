"""What a halted lane is probed with.

Usually with the work that is pending, as it is. A lane to which everything was answered 400 or 413 (`refuses_all`) is asked about single
events in turn, for the one that is tried may be the bad one: the first events of the parts that remain (halves, quarters, … of a batch, so
bad neighbours are soon left behind), then one of the fresh queue. No probe overtakes an earlier event that shares an ordering key with it.
"""

from __future__ import annotations

from typing import NamedTuple

from forwarder.delivery.groups import Group, Part
from forwarder.delivery.lanes import LaneState
from forwarder.delivery.ordering import may_go_first
from forwarder.delivery.splitting import Replaces, cut


class Candidate(NamedTuple):
    """An event that may be probed with: the one at `place` in its part."""

    group: Group
    part: Part
    place: int

    @property
    def rank(self) -> tuple[bool, int]:
        """The lower, the sooner its turn."""
        return self.part.refused, self.part.probed


def candidate(state: LaneState, *, before_fresh: bool) -> Candidate | None:
    """The event whose turn it is: one that was never refused alone first, then what was probed longest ago.

    `before_fresh`: None if it is the fresh queue's turn; otherwise the fresh queue has nothing to offer.
    """
    pending = [
        Candidate(group, part, place)
        for group, part, place in may_go_first(state.ordering, state.groups)
        if group.in_flight is None and part.sentence is None
    ]
    chosen = min(pending, key=lambda one: one.rank, default=None)
    if before_fresh and chosen is not None and chosen.rank > (False, state.fresh_probed):
        return None
    return chosen


def carve(chosen: Candidate, buffer: Replaces) -> Part:
    """The candidate's event as a part of its own, at its place."""
    group, part, place = chosen
    if place > 0:
        part = group.divide(part, *cut(part.batch, place, buffer))[1]
    if part.batch.count > 1:
        part = group.divide(part, *cut(part.batch, 1, buffer))[0]
    return part
