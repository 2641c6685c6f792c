"""A batch on its way, and the parts it falls into when it is split.

Invariants: a group's parts hold every unsettled event of its batch, left before right, in order of receipt; at most one part is in flight;
a part goes only when all parts left of it are settled (probes of a halted lane excepted, see probing.py). So a chain of splits keeps
order by itself, under every ordering. The group's ordering keys stay blocked until its last part is settled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from forwarder.core.event import Batch, Chunk, Lane
from forwarder.core.ports import Reason
from forwarder.wire.envelope import envelope_size
from forwarder.wire.strict import Kind, Suspicion


@dataclass(slots=True, eq=False)
class Part:
    """A piece of a batch that goes in one request, the same bytes each time."""

    batch: Batch
    refused: bool = False
    """Refused alone, while nothing proved that the upstream takes anything at all."""
    sentence: tuple[Reason, str] | None = None
    """Why it is to become dead letters, where there was no room for them yet."""
    probed: int = 0
    """The number of the last attempt that probed a halted lane with it, or with what it was cut from."""
    inspected: bool = False
    """Whether its events were checked by the local strict parser."""
    suspects: frozenset[Kind] = frozenset()
    """The kinds that all its events are of; each event is then a chunk of its own. Empty: they are not suspected."""
    joinable: bool = False
    """Whether it was cut off to isolate suspects and was not sent since: it can be joined with the next such part."""


@dataclass(slots=True, eq=False)
class Group:
    """The unsettled parts of one batch that came from the batcher."""

    parts: list[Part]
    ids: frozenset[str]
    in_flight: Part | None = None
    refusing: bool = field(default=False)
    """Whether something of it was answered 400 or 413."""
    suspicions: dict[Chunk, Suspicion] = field(default_factory=dict)
    """What is known of each event in the parts that are `suspects`."""
    refused_kinds: set[Kind] = field(default_factory=set)
    """Kinds of suspects that were refused when nothing else was with them."""

    @classmethod
    def of(cls, batch: Batch) -> Group:
        """The group of a fresh batch: one part."""
        return cls([Part(batch)], batch.ids())

    def divide(self, part: Part, left: Batch, right: Batch) -> tuple[Part, Part]:
        """Put two parts in the place of one."""
        halves = _piece(part, left), _piece(part, right)
        self.replace(part, halves)
        return halves

    def replace(self, part: Part, parts: Sequence[Part]) -> None:
        """Put `parts`, which hold the same events, in the place of one."""
        at = self.parts.index(part)
        self.parts[at : at + 1] = parts

    def suspects(self, kind: Kind) -> list[Part]:
        """The parts with suspects of this kind that are neither in flight nor waiting for room among the dead letters."""
        return [part for part in self.parts if kind in part.suspects and part is not self.in_flight and part.sentence is None]

    def join(self) -> None:
        """Join neighbouring parts that were only separated by suspects."""
        joined: list[Part] = []
        for part in self.parts:
            if joined and joined[-1].joinable and part.joinable:
                chunks = (*joined[-1].batch.chunks, *part.batch.chunks)
                joined[-1].batch = Batch(part.batch.lane, chunks, envelope_size(part.batch.lane, chunks))
            else:
                joined.append(part)
        self.parts = joined


def _piece(part: Part, batch: Batch) -> Part:
    return Part(batch, probed=part.probed, inspected=part.inspected, suspects=part.suspects)


@dataclass(frozen=True, slots=True, eq=False)
class Attempt:
    """One request that is being made. Numbers rise with each attempt of the whole delivery."""

    number: int
    lane: Lane
    group: Group
    part: Part
    probe: bool
    """Whether it probes a halted lane."""

    @property
    def batch(self) -> Batch:
        """What is sent."""
        return self.part.batch
