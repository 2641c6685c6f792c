"""Rules, on stamped events, before they are admitted: `apply_rules` is the one place, for every
source, on the loop and in the decoder process.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from forwarder.core.errors import InvalidRequest, RequestTooLarge
from forwarder.core.event import Chunk
from forwarder.core.ports import DeadLetter, Fate, Reason
from forwarder.intake.content import Content
from forwarder.wire.effort import Allowance
from forwarder.wire.identity import ids_of

if TYPE_CHECKING:
    from forwarder.rules.rules import EventRules, RuledEvents


class RuleBounds(NamedTuple):
    """What rules may make of a content."""

    cost: float = math.inf
    """What the chunks that they leave may count for, in bytes."""
    failures: float = math.inf
    """Events on which they may fail."""


def apply_rules(
    rules: EventRules | None,
    content: Content,
    microseconds: float = math.inf,
    bounds: RuleBounds = RuleBounds(),  # noqa: B008 - it never changes
) -> None:
    """Apply the rules to the content, unless they were applied to it before; `microseconds`: what
    they may take, by their own estimate (`Effort.ruled`).

    Raises `TooMuchWork` and `RequestTooLarge` beyond the bounds, and `InvalidRequest` for a dead
    letter that would be one again, or that they drop: it stays what it is.
    """
    if content.ruled:
        return
    if rules is not None and not (content.revived is not None and content.revived.ruled):
        allowance = None if math.isinf(microseconds) else Allowance(microseconds)
        _apply(rules, content, allowance, bounds)
    content.ruled = True
    content.names = []
    content.letter = None


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
