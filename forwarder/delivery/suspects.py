"""Suspects: the events of a batch answered 400 that an upstream's parser may reject. They are
found, and sent apart from the others.

`inspect` finds them by a local strict parser; it holds the loop for a few milliseconds at a time,
whatever the events hold. `isolate` splits the batch: what isn't suspected first, then the suspects
for which there are precedents, then the suspects of each other kind, then what must stay behind a
suspect, and so on. As many go together as the lane's order allows.

A suspect is refused *by precedent* if `REFUSALS_FOR_PRECEDENT` events of its kind, none of them
odder than it, were refused alone in the last minutes, and none of its kind was accepted since: so
not each of a hundred poison events must be refused alone. Kinds of which an event was accepted are
not suspected for as long.

Invariants: no event overtakes an earlier one with which it shares an ordering key (under `strict`
it overtakes none at all); the parts hold the same events, byte for byte; each suspect is a chunk
of its own, so that it is separate from its neighbours wherever it is moved.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from itertools import groupby
from types import MappingProxyType
from typing import Final, TypeAlias

from forwarder.core.event import Batch, Chunk
from forwarder.core.ports import Ordering
from forwarder.delivery.batching import batch_of
from forwarder.delivery.ordering import ordering_keys
from forwarder.delivery.splitting import BatchPart, PartGroup, ReplaceChunk
from forwarder.wire.envelope import cut_into
from forwarder.wire.strict import Inspection, Kind, Suspicion

Suspects: TypeAlias = Mapping[int, Suspicion]
"""The suspects of a batch by the index of the event."""

NO_SUSPECTS: Final[Suspects] = MappingProxyType({})

_Rank: TypeAlias = tuple[int, int]
"""Where an event goes: layers one after the other, in each first what isn't suspected, then each
kind of suspects.
"""

_FIRST: Final[_Rank] = (0, 0)

REFUSALS_FOR_PRECEDENT: Final = 3
"""How many events of a kind must have been refused alone before others are refused by precedent."""

VALID_SECONDS: Final = 300.0
"""How long a precedent is valid after the last one of its kind."""

_KEPT: Final = 16
"""Precedents of one kind that are kept: the least odd ones, for they cover most."""

_SLICE_BYTES: Final = 64 * 1024
"""Bytes after which the loop runs other tasks."""


async def inspect(batch: Batch) -> dict[int, Suspicion]:
    """The suspects of a batch by the index of the event. Cancellation ends it."""
    suspicions: dict[int, Suspicion] = {}
    index = -1
    since = 0
    for chunk in batch.chunks:
        for event in chunk.events():
            index += 1
            inspection = Inspection(event)
            while inspection.step():
                since = 0
                await asyncio.sleep(0)
            since += len(event)
            suspicion = inspection.result()
            if suspicion is not None:
                suspicions[index] = suspicion
            if since >= _SLICE_BYTES:
                since = 0
                await asyncio.sleep(0)
    return suspicions


def isolate(
    ordering: Ordering,
    group: PartGroup,
    part: BatchPart,
    suspects: Suspects,
    replace: ReplaceChunk,
    *,
    is_covered: Callable[[Suspicion], bool],
) -> list[BatchPart]:
    """Split a part into its suspects, by kind, and its other events; return the parts.

    `is_covered`: whether there are precedents for a suspect.
    """
    known = frozenset(
        suspicion.oddities for suspicion in suspects.values() if is_covered(suspicion)
    )
    kinds_of = {
        index: known if is_covered(suspicion) else frozenset([suspicion.oddities])
        for index, suspicion in suspects.items()
    }
    kinds = [known, *dict.fromkeys(kinds for kinds in kinds_of.values() if kinds is not known)]
    numbers = {index: kinds.index(its_kinds) + 1 for index, its_kinds in kinds_of.items()}
    ranks = _ranks(ordering, part.batch, numbers)
    layers: dict[_Rank, list[Chunk]] = {rank: [] for rank in sorted(set(ranks))}
    at = 0
    for chunk in part.batch.chunks:
        index = at
        for piece, rank in _pieces(chunk, ranks[at : at + chunk.count], replace):
            layers[rank].append(piece)
            if rank[1]:
                group.suspicions[piece] = suspects[index]
            index += piece.count
        at += chunk.count
    parts = [
        _part(part, chunks, kinds[rank[1] - 1] if rank[1] else frozenset())
        for rank, chunks in layers.items()
    ]
    group.replace(part, parts)
    return parts


def split_off_matching(
    group: PartGroup, part: BatchPart, matches: Callable[[Suspicion], bool]
) -> BatchPart | None:
    """Split the suspects that match off a part of suspects, as a part before the others. None if
    none match.
    """
    matching = [chunk for chunk in part.batch.chunks if matches(group.suspicions[chunk])]
    if not matching:
        return None
    if len(matching) == len(part.batch.chunks):
        return part
    chosen = set(matching)
    others = [chunk for chunk in part.batch.chunks if chunk not in chosen]
    lane = part.batch.lane
    suspect, _ = group.divide(part, batch_of(lane, matching), batch_of(lane, others))
    return suspect


def split_off_least_odd(ordering: Ordering, group: PartGroup, part: BatchPart) -> BatchPart:
    """Split one suspect off a part of several, as a part before the others: the least odd of those
    that order allows to be sent first.
    """
    held: set[str] = set()
    free: list[Chunk] = []
    for chunk in part.batch.chunks:
        keys = ordering_keys(ordering, chunk.data)
        if held.isdisjoint(keys):
            free.append(chunk)
        held.update(keys)
    first = min(free, key=lambda chunk: group.suspicions[chunk])
    others = [chunk for chunk in part.batch.chunks if chunk is not first]
    return group.divide(
        part, batch_of(part.batch.lane, [first]), batch_of(part.batch.lane, others)
    )[0]


def exonerate(group: PartGroup, kinds: frozenset[Kind]) -> None:
    """The upstream accepts events of these kinds: send the remaining ones with the others again."""
    for part in group.parts:
        if not part.suspected_kinds.isdisjoint(kinds):
            part.suspected_kinds = frozenset()
            part.joinable = (
                part is not group.in_flight
                and not part.refused_without_proof
                and not part.probed
                and part.deferred_dead_letter is None
            )
    group.join_neighbours()


class Precedents:
    """The precedents of one lane. Times are monotonic seconds."""

    __slots__ = ("_accepted", "_refused")

    def __init__(self) -> None:
        self._refused: dict[Kind, tuple[float, list[Suspicion]]] = {}
        self._accepted: dict[Kind, float] = {}

    def refuse(self, suspicion: Suspicion, now: float) -> None:
        """The upstream refused an event alone, and accepted others."""
        known = [*self._of(suspicion.oddities, now), suspicion]
        self._refused[suspicion.oddities] = now + VALID_SECONDS, sorted(known)[:_KEPT]

    def accept(self, kind: Kind, now: float) -> None:
        """The upstream accepted an event of this kind."""
        self._refused.pop(kind, None)
        self._accepted[kind] = now + VALID_SECONDS

    def covers(self, suspicion: Suspicion, now: float) -> bool:
        """Whether events like this one were refused alone, often enough."""
        return (
            sum([suspicion.is_as_odd_as(known) for known in self._of(suspicion.oddities, now)])
            >= REFUSALS_FOR_PRECEDENT
        )

    def clears(self, suspicion: Suspicion, now: float) -> bool:
        """Whether the upstream accepted an event of its kind lately."""
        return now < self._accepted.get(suspicion.oddities, 0.0)

    def valid(self, now: float) -> bool:
        """Whether there is anything to remember."""
        ends = [*self._accepted.values(), *[end for end, _ in self._refused.values()]]
        return any(now < end for end in ends)

    def _of(self, kind: Kind, now: float) -> list[Suspicion]:
        end, known = self._refused.get(kind, (0.0, []))
        return known if now < end else []


def _ranks(ordering: Ordering, batch: Batch, kinds: Mapping[int, int]) -> list[_Rank]:
    """Where each event goes. `kinds` has the kinds of suspects, numbered from 1."""
    last: dict[str, _Rank] = {}
    """Of each key that an event held which didn't go first of all, where the last of those goes."""
    ranks: list[_Rank] = []
    for chunk in batch.chunks:
        its_kinds = [kinds.get(index, 0) for index in range(len(ranks), len(ranks) + chunk.count)]
        if (
            not any(its_kinds)
            and (ordering is not Ordering.STRICT or not last)
            and last.keys().isdisjoint(chunk.ids)
        ):
            ranks += [_FIRST] * chunk.count
            continue
        events = chunk.events() if ordering is Ordering.PER_DISTINCT_ID else [b""] * chunk.count
        for kind, event in zip(its_kinds, events, strict=True):
            keys = ordering_keys(ordering, event)
            before = [seen for key in keys if (seen := last.get(key)) is not None]
            rank = (max([turn + (kind < of) for turn, of in before], default=0), kind)
            if rank > _FIRST:
                last.update(dict.fromkeys(keys, rank))
            ranks.append(rank)
    return ranks


def _pieces(chunk: Chunk, ranks: list[_Rank], replace: ReplaceChunk) -> list[tuple[Chunk, _Rank]]:
    """The chunk cut where the ranks of its events change; suspects are cut off one by one."""
    runs = [(rank, len(list(run))) for rank, run in groupby(ranks)]
    cuts: list[tuple[_Rank, int]] = []
    for rank, count in runs:
        cuts += [(rank, 1)] * count if rank[1] else [(rank, count)]
    if len(cuts) == 1:
        return [(chunk, cuts[0][0])]
    pieces = cut_into(chunk, [count for _, count in cuts])
    replace(chunk, pieces)
    return [(piece, rank) for piece, (rank, _) in zip(pieces, cuts, strict=True)]


def _part(whole: BatchPart, chunks: list[Chunk], kinds: frozenset[Kind]) -> BatchPart:
    batch = batch_of(whole.batch.lane, chunks)
    return BatchPart(
        batch, probed=whole.probed, inspected=True, suspected_kinds=kinds, joinable=not kinds
    )
