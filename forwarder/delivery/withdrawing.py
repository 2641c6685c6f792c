"""Taking back what waits to be sent again, because its source lets go of it. Pure.

Invariants: what is in flight stays, and goes its way; a part keeps its place among its group's, and what is left of it keeps its order; a
group's ordering keys stay blocked until its last part is gone, those of events that were taken back included.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from forwarder.core.ack import Ack
from forwarder.core.event import Batch, Chunk
from forwarder.delivery.groups import Group, Part
from forwarder.delivery.lanes import LaneState
from forwarder.wire.envelope import envelope_size


def withdraw(state: LaneState, acks: AbstractSet[Ack]) -> list[Chunk]:
    """Take the chunks that have one of these acks out of the lane's parts that aren't in flight; they are the caller's to settle."""
    return [
        chunk
        for group in list(state.groups)
        for part in list(group.parts)
        if part is not group.in_flight
        for chunk in _take_out(state, group, part, acks)
    ]


def _take_out(state: LaneState, group: Group, part: Part, acks: AbstractSet[Ack]) -> list[Chunk]:
    found = [chunk for chunk in part.batch.chunks if chunk.ack in acks]
    if len(found) == len(part.batch.chunks):
        state.settled(group, part)
    elif found:
        left = tuple(chunk for chunk in part.batch.chunks if chunk.ack not in acks)
        part.batch = Batch(state.lane, left, envelope_size(state.lane, left))
    return found
