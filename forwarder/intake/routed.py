"""Chunks by the destinations that their events go to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from forwarder.core.event import Chunk, Lane
from forwarder.wire.effort import Allowance


class RouteTable(Protocol):
    """Which destinations events go to, by their numbers in the order in which they are
    configured.
    """

    def whole(self, lane: Lane, source: str) -> Sequence[int] | None:
        """Where all events of this lane and source go; None if that depends on the event."""

    @property
    def encoded(self) -> bytes | None:
        """The routes for another process, the same bytes as long as they are the same; None if
        lane and source always decide.
        """

    def of_events(
        self,
        lane: Lane,
        source: str,
        data: bytes,
        count: int,
        *,
        allowance: Allowance | None = None,
    ) -> Sequence[Sequence[int]]:
        """Where each of the events goes that are joined in `data`. Of one that can't be read only
        lane and source count. Raises `TooMuchWork` if that takes more than `allowance`; None: it
        may take long.
        """


def routed_parts(
    routes: RouteTable, chunk: Chunk, allowance: Allowance | None = None
) -> Iterator[tuple[int, Chunk]]:
    """A chunk whose events go different ways, as chunks for one destination each, with its
    number; neighbours that go the same way stay together, in their order. Raises `TooMuchWork` as
    `RouteTable.of_events` does.
    """
    routed = routes.of_events(
        chunk.lane, chunk.source, chunk.data, chunk.count, allowance=allowance
    )
    events = chunk.events()
    for number in sorted({number for numbers in routed for number in numbers}):
        here = [at for at, numbers in enumerate(routed) if number in numbers]
        # others know where their events were, by their first
        runs = [here] if type(chunk) is Chunk else _neighbours(here)
        for run in runs:
            data = b",".join([events[at] for at in run])
            part = chunk.part(data, len(run), chunk.ids, run[0])
            yield number, part


def _neighbours(numbers: Sequence[int]) -> list[list[int]]:
    """The numbers, which rise, in runs without a gap."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return runs
