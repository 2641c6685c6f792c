"""`Content`: what was read of a request, of a batch of records, or by the decoder process.

Before it is admitted, rules and then routes are applied to it: by `apply_rules` and `apply_routes`,
for every source, on the loop (`Gate.enter`) or in the decoder process.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from forwarder.core.errors import InvalidRequest, RequestTooLarge
from forwarder.core.event import Chunk, Lane
from forwarder.core.ports import DeadLetter, Fate, Reason, ReplayedDeadLetter, RuleDrop
from forwarder.stamping.stamp import RejectedEvent
from forwarder.wire.effort import Allowance
from forwarder.wire.identity import ids_of
from forwarder.wire.v1_results import Results

if TYPE_CHECKING:
    from forwarder.rules.event_rules import EventRules, FailedEvent, RuledEvents, RuleTally


@dataclass(slots=True)
class Content:
    """The events by lane, and what else became of them.

    It is admitted whole, or nothing of it; its chunks are the admission's from then on, and what
    doesn't fit now is offered again as a copy.
    """

    chunks: list[Chunk] = field(default_factory=list)
    """By lane, in the order of their first events; none is empty. Those of a large body are
    several of one lane.
    """
    dead_letters: list[DeadLetter] = field(default_factory=list)
    """Of the events that were rejected."""
    rejected: Sequence[tuple[Lane, RejectedEvent]] = ()
    """The rejected events of a request, until dead letters are made of them; there may be many."""
    overflow: Sequence[tuple[Lane, str, int]] = ()
    """Further rejected events, by lane and source, which are dropped: no request may bring so many
    dead letters.
    """
    nulled: int = 0
    """NaN and Infinity that became null."""
    filtered: int = 0
    """Foreign records that their mapping leaves out."""
    results: Results | None = None
    """For a sender that gets a result for each event."""
    names: Sequence[Sequence[str] | None] = ()
    """Of each chunk as it was read, for rules: the names of its events, where they are known;
    empty: of none. It means nothing once rules are applied, and a `Submission` clears it.
    """
    dead_letter: Callable[[int, FailedEvent], DeadLetter] | None = None
    """What makes the dead letter of an event of that chunk on which rules fail, where more is known
    of its origin.
    """
    ruled: bool = False
    """Whether rules were applied, or there are none: nothing is admitted before."""
    dropped: Sequence[tuple[RuleDrop, Chunk]] = ()
    """What rules dropped."""
    tallies: Sequence[RuleTally] = ()
    """What rules did; counted with the events."""
    replayed: ReplayedDeadLetter | None = None
    """The dead letter that it is, if it is one that is replayed."""

    @property
    def is_one_chunk(self) -> bool:
        """Whether rules have left one chunk, and nothing beside it: the most frequent content."""
        return (
            self.ruled
            and len(self.chunks) == 1
            and not self.dead_letters
            and not self.overflow
            and not self.nulled
            and not self.filtered
            and self.results is None
            and self.replayed is None
            and not self.tallies
        )

    def copy(self, at: float) -> Content:
        """The same, received at `at`, for one more offer."""
        chunks = []
        for chunk in self.chunks:
            copy = chunk.part(chunk.data, chunk.count, chunk.ids, 0)
            copy.received_at = at
            copy.to = chunk.to
            chunks.append(copy)
        return Content(
            chunks,
            list(self.dead_letters),
            overflow=self.overflow,
            nulled=self.nulled,
            filtered=self.filtered,
            ruled=self.ruled,
            dropped=self.dropped,
            tallies=self.tallies,
        )


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


_NO_BOUNDS: Final = RuleBounds()


# Rules


def apply_rules(
    content: Content,
    rules: EventRules,
    *,
    microseconds: float = math.inf,
    bounds: RuleBounds = _NO_BOUNDS,
) -> None:
    """Apply the rules to the content, unless that was done before.

    `microseconds`: what they may take, by their own estimate (`Effort.ruled`). Raises `TooMuchWork`
    beyond it, `RequestTooLarge` beyond the bounds, and `InvalidRequest` for a dead letter that
    would be one again, or that rules drop: it stays what it is.
    """
    if content.ruled:
        return
    if content.replayed is None or not content.replayed.ruled:
        allowance = None if math.isinf(microseconds) else Allowance(microseconds)
        _apply(rules, content, allowance, bounds)
    content.ruled = True


def _apply(
    rules: EventRules, content: Content, allowance: Allowance | None, bounds: RuleBounds
) -> None:
    replayed = content.replayed
    left: list[Chunk] = []
    failed: list[DeadLetter] = []
    dropped: list[tuple[RuleDrop, Chunk]] = []
    tallies: list[RuledEvents] = []
    cost = 0
    for index, chunk in enumerate(content.chunks):
        api_key = chunk.lane.api_key
        source = chunk.source
        if replayed is not None:  # as when it was received
            api_key = api_key if replayed.sender_key is None else replayed.sender_key
            source = replayed.source
        names = content.names[index] if content.names else None
        ruled = rules.apply(chunk.data, chunk.count, api_key, source, names, allowance=allowance)
        if ruled is None:
            left.append(chunk)
            cost += chunk.cost
        else:
            tallies.append(ruled)
            dropped += [
                (drop.rule.drop_reason, _rest(chunk, drop.data, drop.count))
                for drop in ruled.dropped
            ]
            failed += _dead_letters(content, index, ruled.failed)
            if ruled.remaining_events:
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
    if replayed is not None and not left:  # it was one event
        raise InvalidRequest(
            failed[0].why if failed else f"{dropped[0][0].replace(':', ' ')} drops it"
        )
    content.chunks = left
    content.dead_letters += failed
    content.dropped = dropped
    content.tallies = tallies
    results = content.results
    if results is not None:  # these are settled already, the dropped ones as accepted
        for _, chunk in dropped:
            results.settled(chunk.data, Fate.DELIVERED)
        for dead_letter in failed:
            results.settled(dead_letter.data, Fate.DEAD_LETTERED)


def _dead_letters(content: Content, index: int, failed: Sequence[FailedEvent]) -> list[DeadLetter]:
    """The dead letters of a chunk's events on which rules failed."""
    if content.dead_letter is not None:
        return list(map(partial(content.dead_letter, index), failed))
    chunk = content.chunks[index]
    at = chunk.received_at
    return [
        DeadLetter(Reason.RULE_FAILED, chunk.lane, failure.data, at, failure.why, chunk.source)
        for failure in failed
    ]


def _rest(chunk: Chunk, data: bytes, count: int) -> Chunk:
    """A chunk with the same origin."""
    rest = Chunk(chunk.lane, data, count, chunk.ids, chunk.received_at, chunk.source)
    rest.origin = chunk.origin
    return rest


def _left(chunk: Chunk, ruled: RuledEvents) -> Chunk:
    """What rules left of a chunk."""
    left = _rest(chunk, ruled.data, ruled.remaining_events)
    if ruled.new_ids and chunk.ids:
        left.ids = frozenset().union(*map(ids_of, left.events()))
    return left


# Routes


def apply_routes(content: Content, routes: RouteTable, *, microseconds: float = math.inf) -> None:
    """Note where chunks go, and dead letters for which lane and source don't decide that; cut
    chunks whose events go different ways.

    Raises `TooMuchWork` if that takes more than `microseconds`, by its own estimate.
    """
    allowance = Allowance(microseconds)
    chunks: list[Chunk] = []
    for chunk in content.chunks:
        apart = note_route(routes, chunk, allowance)
        if apart:
            chunks += _parts(chunk, apart)
        else:
            chunks.append(chunk)
    content.chunks = chunks
    content.dead_letters = [
        _addressed(routes, dead_letter, allowance) for dead_letter in content.dead_letters
    ]


def note_route(
    routes: RouteTable, chunk: Chunk, allowance: Allowance
) -> Sequence[Sequence[int]] | None:
    """Note where a chunk goes; if its events go different ways, where each does. Raises
    `TooMuchWork` if that takes more than `allowance`.
    """
    if chunk.to is None:
        chunk.to = routes.whole(chunk.lane, chunk.source)
    if chunk.to is None:
        routed = routes.of_events(
            chunk.lane, chunk.source, chunk.data, chunk.count, allowance=allowance
        )
        if routed.count(routed[0]) < len(routed):
            return routed
        chunk.to = routed[0]
    return None


def _addressed(routes: RouteTable, dead_letter: DeadLetter, allowance: Allowance) -> DeadLetter:
    lane = dead_letter.lane
    if (
        dead_letter.to is not None
        or lane is None
        or routes.whole(lane, dead_letter.source) is not None
    ):
        return dead_letter
    (to,) = routes.of_events(lane, dead_letter.source, dead_letter.data, 1, allowance=allowance)
    return replace(dead_letter, to=tuple(to))


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
            part.to = (number,)
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
