"""A batch that isn't settled, and the parts that it is split into.

Invariants: a group's parts hold every unsettled event of its batch, left before right, in order of
receipt; at most one part is in flight; a part is sent only when all parts left of it are settled
(except probes of a halted lane, see halting.py). So a chain of splits keeps order by itself, under
every ordering. The group's ordering keys stay blocked until its last part is settled.

Cutting keeps the same events, byte for byte, in the same order; a cut chunk is reported
to the buffer before a piece of it can be settled. Only the ordering keys of a cut
chunk's events are read again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from forwarder.core.event import Batch, Chunk, Lane
from forwarder.core.ports import Reason
from forwarder.delivery.batching import batch_of
from forwarder.wire.envelope import cut_at
from forwarder.wire.strict import Kind, Suspicion

ReplaceChunk: TypeAlias = Callable[[Chunk, Sequence[Chunk]], None]
"""`Buffer.replace`."""


@dataclass(slots=True, eq=False)
class BatchPart:
    """A piece of a batch that is sent in one request, the same bytes each time."""

    batch: Batch
    refused_without_proof: bool = False
    """Whether it was refused alone while nothing proved that the upstream accepts other events."""
    deferred_dead_letter: tuple[Reason, str] | None = None
    """The reason and text of its dead letters, if there was no room for them yet."""
    probed: int = 0
    """The number of the last attempt that probed a halted lane with it, or
    with what it was cut from.
    """
    inspected: bool = False
    """Whether its events were checked by the local strict parser."""
    suspected_kinds: frozenset[Kind] = frozenset()
    """The kinds of its events, if all are suspects; each event is then a chunk of its own. Empty:
    they are not suspected.
    """
    joinable: bool = False
    """Whether it was cut off to isolate suspects and not sent since: it can be joined with the
    next such part.
    """


@dataclass(slots=True, eq=False)
class PartGroup:
    """The unsettled parts of one batch that came from the batcher."""

    parts: list[BatchPart]
    ids: frozenset[str]
    in_flight: BatchPart | None = None
    refusing: bool = field(default=False)
    """Whether something of it was answered 400 or 413."""
    suspicions: dict[Chunk, Suspicion] = field(default_factory=dict)
    """Each suspect in the parts with `suspected_kinds`, and why it is one."""
    refused_kinds: set[Kind] = field(default_factory=set)
    """Kinds of suspects that were refused in a request of their own."""

    @classmethod
    def of(cls, batch: Batch) -> PartGroup:
        """The group of a fresh batch, in one part."""
        return cls([BatchPart(batch)], batch.ids())

    def divide(self, part: BatchPart, left: Batch, right: Batch) -> tuple[BatchPart, BatchPart]:
        """Replace a part by two."""
        halves = _piece(part, left), _piece(part, right)
        self.replace(part, halves)
        return halves

    def replace(self, part: BatchPart, parts: Sequence[BatchPart]) -> None:
        """Replace a part by `parts`, which hold the same events."""
        at = self.parts.index(part)
        self.parts[at : at + 1] = parts

    def suspected_parts(self, kind: Kind) -> list[BatchPart]:
        """The parts with suspects of this kind that are neither in flight nor waiting for room
        among the dead letters.
        """
        return [
            part
            for part in self.parts
            if kind in part.suspected_kinds
            and part is not self.in_flight
            and part.deferred_dead_letter is None
        ]

    def join_neighbours(self) -> None:
        """Join neighbouring parts that were only separated by suspects."""
        joined: list[BatchPart] = []
        for part in self.parts:
            if joined and joined[-1].joinable and part.joinable:
                joined[-1].batch = batch_of(
                    part.batch.lane, (*joined[-1].batch.chunks, *part.batch.chunks)
                )
            else:
                joined.append(part)
        self.parts = joined


def _piece(part: BatchPart, batch: Batch) -> BatchPart:
    return BatchPart(
        batch,
        probed=part.probed,
        inspected=part.inspected,
        suspected_kinds=part.suspected_kinds,
    )


@dataclass(frozen=True, slots=True, eq=False)
class Attempt:
    """One request that is being made. Numbers rise with each attempt of the whole delivery."""

    number: int
    lane: Lane
    group: PartGroup
    part: BatchPart
    probe: bool
    """Whether it probes a halted lane."""

    @property
    def batch(self) -> Batch:
        """What is sent."""
        return self.part.batch


def halves(batch: Batch, replace: ReplaceChunk) -> tuple[Batch, Batch]:
    """The batch in two, the left one with half of the events, rounded down. It must have two
    events or more.
    """
    return cut(batch, batch.count // 2, replace)


def cut(batch: Batch, at: int, replace: ReplaceChunk) -> tuple[Batch, Batch]:
    """The batch's first `at` events, and the others. Raises `ValueError` if one side were empty."""
    if not 0 < at < batch.count:
        raise ValueError("a batch can only be cut inside")
    left: list[Chunk] = []
    right = deque(batch.chunks)
    while at and right[0].count <= at:
        at -= right[0].count
        left.append(right.popleft())
    if at:
        begin, rest = cut_at(right[0], at)
        replace(right[0], (begin, rest))
        left.append(begin)
        right[0] = rest
    return batch_of(batch.lane, left), batch_of(batch.lane, right)
