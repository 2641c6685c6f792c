"""Suspects among the events of a refused batch: sent apart from the others, as many together as the lane's order allows.

The batch falls into parts: what isn't suspected first, then the suspects for which there are precedents, then the suspects of each other
kind, then what had to stay behind a suspect, and so on.
Invariants: no event overtakes an earlier one with which it shares an ordering key (under `strict` it overtakes none at all); the parts hold
the same events, byte for byte; each suspect is a chunk of its own, so that it can be told from its neighbours wherever it is moved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from types import MappingProxyType
from typing import Final, TypeAlias

from forwarder.core.event import Batch, Chunk, Lane
from forwarder.core.ports import Ordering
from forwarder.delivery.groups import Group, Part
from forwarder.delivery.splitting import Replaces
from forwarder.wire.chunks import cut_into
from forwarder.wire.envelope import envelope_size
from forwarder.wire.identity import ids_of
from forwarder.wire.strict import Kind, Suspicion

Suspects: TypeAlias = Mapping[int, Suspicion]
"""The suspects of a batch by the index of the event."""

NO_SUSPECTS: Final[Suspects] = MappingProxyType({})

_Rank: TypeAlias = tuple[int, int]
"""Where an event goes: layers one after the other, in each first what isn't suspected, then each kind of suspects."""

_FIRST: Final[_Rank] = (0, 0)
_EVERYTHING: Final = ("",)
"""The one key of all events under `strict`."""


def isolate(
    ordering: Ordering, group: Group, part: Part, suspects: Suspects, buffer: Replaces, *, covered: Callable[[Suspicion], bool]
) -> list[Part]:
    """Put the parts that its suspects and its other events make in the place of a part; they are returned.

    `covered`: whether there are precedents for a suspect.
    """
    known = frozenset(one.oddities for one in suspects.values() if covered(one))
    kinds = [known, *dict.fromkeys([frozenset([one.oddities]) for one in suspects.values() if not covered(one)])]
    place = {index: kinds.index(known if covered(one) else frozenset([one.oddities])) for index, one in suspects.items()}
    ranks = _ranks(ordering, part.batch, {index: kind + 1 for index, kind in place.items()})
    layers: dict[_Rank, list[Chunk]] = {rank: [] for rank in sorted(set(ranks))}
    at = 0
    for chunk in part.batch.chunks:
        index = at
        for piece, rank in _pieces(chunk, ranks[at : at + chunk.count], buffer):
            layers[rank].append(piece)
            if rank[1]:
                group.suspicions[piece] = suspects[index]
            index += piece.count
        at += chunk.count
    parts = [_part(part, chunks, kinds[rank[1] - 1] if rank[1] else frozenset()) for rank, chunks in layers.items()]
    group.replace(part, parts)
    return parts


def take_out(group: Group, part: Part, wanted: Callable[[Suspicion], bool]) -> Part | None:
    """Cut those off a part of suspects that are `wanted`; they come before the others. None if there are none."""
    found = [chunk for chunk in part.batch.chunks if wanted(group.suspicions[chunk])]
    if not found:
        return None
    if len(found) == len(part.batch.chunks):
        return part
    chosen = set(found)
    others = [chunk for chunk in part.batch.chunks if chunk not in chosen]
    return group.divide(part, _batch(part.batch.lane, found), _batch(part.batch.lane, others))[0]


def representative(ordering: Ordering, group: Group, part: Part) -> Part:
    """The least odd of several suspects that may go before the others, as a part of its own before theirs."""
    held: set[str] = set()
    free: list[Chunk] = []
    for chunk in part.batch.chunks:
        keys = _keys(ordering, chunk.data)
        if held.isdisjoint(keys):
            free.append(chunk)
        held.update(keys)
    first = min(free, key=lambda chunk: group.suspicions[chunk])
    others = [chunk for chunk in part.batch.chunks if chunk is not first]
    return group.divide(part, _batch(part.batch.lane, [first]), _batch(part.batch.lane, others))[0]


def exonerate(group: Group, kinds: frozenset[Kind]) -> None:
    """The upstream accepts events of these kinds: those that are left go with the others again."""
    for part in group.parts:
        if not part.suspects.isdisjoint(kinds):
            part.suspects = frozenset()
            part.joinable = part is not group.in_flight and not part.refused and not part.probed and part.sentence is None
    group.join()


def _ranks(ordering: Ordering, batch: Batch, kinds: Mapping[int, int]) -> list[_Rank]:
    """Where each event goes. `kinds` has the kinds of suspects, numbered from 1."""
    last: dict[str, _Rank] = {}
    """Of each key that an event held which didn't go first of all, where the last of those goes."""
    ranks: list[_Rank] = []
    for chunk in batch.chunks:
        its_kinds = [kinds.get(index, 0) for index in range(len(ranks), len(ranks) + chunk.count)]
        if not any(its_kinds) and (ordering is not Ordering.STRICT or not last) and last.keys().isdisjoint(chunk.ids):
            ranks += [_FIRST] * chunk.count
            continue
        events = chunk.events() if ordering is Ordering.PER_DISTINCT_ID else [b""] * chunk.count
        for kind, event in zip(its_kinds, events, strict=True):
            keys = _keys(ordering, event)
            rank = max([seen[0] + (kind < seen[1]) for key in keys if (seen := last.get(key)) is not None], default=0), kind
            if rank > _FIRST:
                last.update(dict.fromkeys(keys, rank))
            ranks.append(rank)
    return ranks


def _keys(ordering: Ordering, event: bytes) -> Iterable[str]:
    if ordering is Ordering.NONE:
        return ()
    return _EVERYTHING if ordering is Ordering.STRICT else ids_of(event)


def _pieces(chunk: Chunk, ranks: list[_Rank], buffer: Replaces) -> list[tuple[Chunk, _Rank]]:
    """The chunk cut where the ranks of its events change; suspects are cut off one by one."""
    runs = [(rank, len(list(run))) for rank, run in groupby(ranks)]
    cuts = [cut for rank, count in runs for cut in ([(rank, 1)] * count if rank[1] else [(rank, count)])]
    if len(cuts) == 1:
        return [(chunk, cuts[0][0])]
    pieces = cut_into(chunk, [count for _, count in cuts])
    buffer.replace(chunk, pieces)
    return [(piece, rank) for piece, (rank, _) in zip(pieces, cuts, strict=True)]


def _part(whole: Part, chunks: list[Chunk], suspects: frozenset[Kind]) -> Part:
    batch = _batch(whole.batch.lane, chunks)
    return Part(batch, probed=whole.probed, inspected=True, suspects=suspects, joinable=not suspects)


def _batch(lane: Lane, chunks: Iterable[Chunk]) -> Batch:
    held = tuple(chunks)
    return Batch(lane, held, envelope_size(lane, held))
