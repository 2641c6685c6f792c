"""Routes: which destinations events go to. `route` is the one place, for every source, on the loop
and in the decoder process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from forwarder.core.event import Chunk, Lane
from forwarder.core.ports import DeadLetter
from forwarder.intake.content import Content
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


def route(routes: RouteTable | None, content: Content, allowance: Allowance | None = None) -> None:
    """Note where events go whose lane and source don't decide it: chunks are cut into those of one
    destination each, and letters know theirs. None: there is one destination.

    Raises `TooMuchWork` as `RouteTable.of_events` does.
    """
    if routes is None:
        return
    chunks: list[Chunk] = []
    for chunk in content.chunks:
        if chunk.to is None and routes.whole(chunk.lane, chunk.source) is None:
            routed = routes.of_events(
                chunk.lane, chunk.source, chunk.data, chunk.count, allowance=allowance
            )
            chunks += _parts(chunk, routed)
        else:
            chunks.append(chunk)
    content.chunks = chunks
    content.letters = [_addressed(routes, letter, allowance) for letter in content.letters]


def _addressed(routes: RouteTable, letter: DeadLetter, allowance: Allowance | None) -> DeadLetter:
    lane = letter.lane
    if letter.to is not None or lane is None or routes.whole(lane, letter.source) is not None:
        return letter
    (to,) = routes.of_events(lane, letter.source, letter.data, 1, allowance=allowance)
    return replace(letter, to=tuple(to))


def _parts(chunk: Chunk, routed: Sequence[Sequence[int]]) -> Iterator[Chunk]:
    """A chunk whose events go different ways, as chunks for one destination each; neighbours that
    go the same way stay together, in their order.
    """
    events = chunk.events()
    for number in sorted({number for numbers in routed for number in numbers}):
        here = [at for at, numbers in enumerate(routed) if number in numbers]
        # others know where their events were, by their first
        runs = [here] if type(chunk) is Chunk else _neighbours(here)
        for run in runs:
            part = chunk.part(b",".join([events[at] for at in run]), len(run), chunk.ids, run[0])
            part.to = number
            part.origin = chunk.origin
            yield part


def _neighbours(numbers: Sequence[int]) -> list[list[int]]:
    """The numbers, which rise, in runs without a gap."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return runs
