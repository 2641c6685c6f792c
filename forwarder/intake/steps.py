"""What is done to a content between reading and admission: rules, then routes. `take_steps` is the
one place, for every source, on the loop and in the decoder process.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from forwarder.core.errors import InvalidRequest, RequestTooLarge
from forwarder.core.event import Chunk, Lane
from forwarder.core.ports import DeadLetter, Fate, Reason
from forwarder.intake.content import Content
from forwarder.wire.effort import Allowance
from forwarder.wire.identity import ids_of

if TYPE_CHECKING:
    from forwarder.rules.rules import EventRules, RuledEvents


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


class RuleBounds(NamedTuple):
    """What rules may make of a content."""

    cost: float = math.inf
    """What the chunks that they leave may count for, in bytes."""
    failures: float = math.inf
    """Events on which they may fail."""


NO_BOUNDS: Final = RuleBounds()


def take_steps(
    content: Content,
    rules: EventRules | None,
    routes: RouteTable | None,
    *,
    microseconds: float = math.inf,
    bounds: RuleBounds = NO_BOUNDS,
) -> None:
    """Apply the rules to the content, unless they were applied to it before, and note where events
    go whose lane and source don't decide it; `routes`: None if there is one destination.

    `microseconds`: what rules may take, and again routes, by their own estimate (`Effort.ruled`).
    Raises `TooMuchWork` beyond it, `RequestTooLarge` beyond the bounds, and `InvalidRequest` for a
    dead letter that would be one again, or that rules drop: it stays what it is.
    """
    if not content.ruled:
        if rules is not None and not (content.revived is not None and content.revived.ruled):
            allowance = None if math.isinf(microseconds) else Allowance(microseconds)
            _apply(rules, content, allowance, bounds)
        content.ruled = True
        content.names = []
        content.letter = None
    if routes is not None:
        _route(routes, content, Allowance(microseconds))


# Rules


def _apply(
    rules: EventRules, content: Content, allowance: Allowance | None, bounds: RuleBounds
) -> None:
    revived = content.revived
    left: list[Chunk] = []
    failed: list[DeadLetter] = []
    cost = 0
    for index, chunk in enumerate(content.chunks):
        api_key = chunk.lane.api_key
        source = chunk.source
        if revived is not None:  # as when it was received
            api_key = api_key if revived.sender_key is None else revived.sender_key
            source = revived.source
        names = content.names[index] if content.names else None
        ruled = rules.apply(chunk.data, chunk.count, api_key, source, names, allowance=allowance)
        if ruled is None:
            left.append(chunk)
            cost += chunk.cost
        else:
            content.tallies.append(ruled)
            failed += _note(content, index, ruled)
            if ruled.kept:
                left.append(_left(chunk, ruled))
                cost += left[-1].cost
        if cost > bounds.cost:
            raise RequestTooLarge(
                "the rules make more of the request than an empty lane could hold"
            )
        if len(failed) > bounds.failures:
            raise RequestTooLarge(
                f"rules fail on over {bounds.failures} events of the request, and would make "
                f"dead letters of them ({failed[0].why})"
            )
    if revived is not None and not left:
        raise InvalidRequest(_why_gone(content, failed))
    content.chunks = left
    content.letters += failed
    if content.results is not None:
        _tell(content, failed)


def _note(content: Content, index: int, ruled: RuledEvents) -> list[DeadLetter]:
    """Note what rules dropped of a chunk; the dead letters of what they failed on."""
    chunk = content.chunks[index]
    lane = chunk.lane
    at = chunk.received_at
    source = chunk.source
    for dropped in ruled.dropped:
        content.dropped.append(
            (
                dropped.rule.drop_reason,
                Chunk(lane, dropped.data, dropped.count, chunk.ids, at, source),
            )
        )
    letter = content.letter
    if letter is not None:
        return list(map(partial(letter, index), ruled.failed))
    return [
        DeadLetter(Reason.RULE_FAILED, lane, each.data, at, each.why, source)
        for each in ruled.failed
    ]


def _left(chunk: Chunk, ruled: RuledEvents) -> Chunk:
    """What rules left of a chunk."""
    left = Chunk(chunk.lane, ruled.data, ruled.kept, chunk.ids, chunk.received_at, chunk.source)
    left.origin = chunk.origin
    if ruled.new_ids and chunk.ids:
        left.ids = frozenset().union(*map(ids_of, left.events()))
    return left


def _why_gone(content: Content, failed: Sequence[DeadLetter]) -> str:
    """Why a single event isn't left."""
    if failed:
        return failed[0].why
    return f"{content.dropped[0][0].replace(':', ' ')} drops it"


def _tell(content: Content, failed: Sequence[DeadLetter]) -> None:
    """Tell the results which events are settled already: the dropped ones as accepted."""
    results = content.results
    if results is None:
        return
    for _, chunk in content.dropped:
        results.settled(chunk.data, Fate.DELIVERED)
    for letter in failed:
        results.settled(letter.data, Fate.BURIED)


# Routes


def _route(routes: RouteTable, content: Content, allowance: Allowance) -> None:
    """Cut chunks into those of one destination each; letters know theirs."""
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


def _addressed(routes: RouteTable, letter: DeadLetter, allowance: Allowance) -> DeadLetter:
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
