"""Rules on stamped chunks, before they are admitted: what is left of the chunks, what was dropped,
and what becomes dead letters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from forwarder.core.event import Chunk
from forwarder.core.ports import DeadLetter, Fate, Reason, Revived, RuleDrop
from forwarder.wire.effort import Allowance
from forwarder.wire.identity import ids_of
from forwarder.wire.v1_results import Results

if TYPE_CHECKING:
    from forwarder.rules.rules import EventRules, FailedEvent, RuleTally


@dataclass(slots=True)
class Ruling:
    """What the rules made of a request, or of a batch of records."""

    chunks: list[Chunk] = field(default_factory=list)
    """Those that are left; one that no rule touches is the same object."""
    dropped: list[tuple[RuleDrop, Chunk]] = field(default_factory=list)
    failed: list[DeadLetter] = field(default_factory=list)
    ruled: list[RuleTally] = field(default_factory=list)

    def add(
        self,
        rules: EventRules,
        chunk: Chunk,
        names: Sequence[str] | None = None,
        *,
        allowance: Allowance | None = None,
        letter: Callable[[FailedEvent], DeadLetter] | None = None,
    ) -> None:
        """Apply the rules to a chunk; `names`: those of its events, if they are known. Raises
        `TooMuchWork` if that takes more than `allowance`; None: it may take long. `letter`: what
        makes the dead letter of an event on which they fail, where more is known of its origin.
        """
        api_key = chunk.lane.api_key
        ruled = rules.apply(
            chunk.data, chunk.count, api_key, chunk.source, names, allowance=allowance
        )
        if ruled is None:
            self.chunks.append(chunk)
            return
        self.ruled.append(ruled)
        lane = chunk.lane
        source = chunk.source
        at = chunk.received_at
        for dropped in ruled.dropped:
            self.dropped.append(
                (
                    dropped.rule.drop_reason,
                    Chunk(lane, dropped.data, dropped.count, chunk.ids, at, source),
                )
            )
        self.failed += [
            DeadLetter(Reason.RULE_FAILED, lane, each.data, at, each.why, source)
            if letter is None
            else letter(each)
            for each in ruled.failed
        ]
        if ruled.kept:
            left = Chunk(lane, ruled.data, ruled.kept, chunk.ids, at, source)
            if ruled.new_ids and chunk.ids:
                left.ids = frozenset().union(*map(ids_of, left.events()))
            self.chunks.append(left)

    def note(self, results: Results | None) -> None:
        """Tell the results of a request which events are settled already: the dropped ones as
        accepted.
        """
        if results is None:
            return
        for _, chunk in self.dropped:
            results.settled(chunk.data, Fate.DELIVERED)
        for letter in self.failed:
            results.settled(letter.data, Fate.BURIED)

    @property
    def refusal(self) -> str:
        """Why a single event isn't left; empty if it is."""
        if self.failed:
            return self.failed[0].why
        return f"{self.dropped[0][0].replace(':', ' ')} drops it" if self.dropped else ""


def ruling_of(
    rules: EventRules,
    chunks: Sequence[Chunk],
    names: Iterable[Sequence[str] | None],
    allowed: float,
    letter: Callable[[int, FailedEvent], DeadLetter] | None = None,
) -> Ruling:
    """What the rules make of chunks; `names`: those of the events of each, as far as they are
    known. Raises `TooMuchWork` if that takes more than `allowed` (`Effort.ruled`).

    `letter`: as in `Ruling.add`, called with the chunk's index, too.
    """
    ruling = Ruling()
    allowance = None if math.isinf(allowed) else Allowance(allowed)
    for index, (chunk, known) in enumerate(zip(chunks, names, strict=True)):
        of_chunk = None if letter is None else partial(letter, index)
        ruling.add(rules, chunk, known, allowance=allowance, letter=of_chunk)
    return ruling


def ruling_of_revived(rules: EventRules, chunks: Sequence[Chunk], revived: Revived) -> Ruling:
    """What the rules make of a replayed dead letter: as of the event when it was received, with
    the project key and the source that it had then.
    """
    ruling = Ruling()
    for chunk in chunks:
        key = chunk.lane.api_key if revived.sender_key is None else revived.sender_key
        received = Chunk(
            chunk.lane._replace(api_key=key),
            chunk.data,
            chunk.count,
            chunk.ids,
            chunk.received_at,
            revived.source,
        )
        left = len(ruling.chunks)
        ruling.add(rules, received)
        for each in ruling.chunks[left:]:
            each.lane = chunk.lane
            each.source = chunk.source
    return ruling


def ruling_of_one(rules: EventRules, chunk: Chunk, allowed: float) -> Ruling | None:
    """`ruling_of` for one event; None if it stays as it is."""
    ruling = ruling_of(rules, [chunk], [None], allowed)
    return ruling if ruling.ruled else None
