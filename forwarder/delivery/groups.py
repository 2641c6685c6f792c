"""A batch on its way, and the parts it falls into when it is split.

Invariants: a group's parts hold every unsettled event of its batch, left before right, in order of receipt; at most one part is in flight;
a part goes only when all parts left of it are settled (probes of a halted lane excepted, see probing.py). So a chain of splits keeps
order by itself, under every ordering. The group's ordering keys stay blocked until its last part is settled.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from forwarder.core.batch import Batch
from forwarder.core.event import Lane
from forwarder.core.ports import Reason


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


@dataclass(slots=True, eq=False)
class Group:
    """The unsettled parts of one batch that came from the batcher."""

    parts: list[Part]
    ids: frozenset[str]
    in_flight: Part | None = None
    refusing: bool = field(default=False)
    """Whether something of it was answered 400."""

    @classmethod
    def of(cls, batch: Batch) -> Group:
        """The group of a fresh batch: one part."""
        return cls([Part(batch)], batch.ids())

    def divide(self, part: Part, left: Batch, right: Batch) -> tuple[Part, Part]:
        """Put two parts in the place of one."""
        halves = Part(left, probed=part.probed), Part(right, probed=part.probed)
        at = self.parts.index(part)
        self.parts[at : at + 1] = halves
        return halves


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
