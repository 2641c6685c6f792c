"""Order: which keys an event is ordered by, and which event may be probed out of its turn.

`none` forbids nothing; `per_distinct_id` forbids a key while an earlier event with it is
unsettled; `strict` allows one request at a time in the lane. An event that names two ids (`alias`,
`$anon_distinct_id`) has both as keys, so it waits for both and holds both back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from forwarder.core.ports import Ordering
from forwarder.delivery.splitting import BatchPart, PartGroup
from forwarder.wire.identity import ids_of

_ONE_KEY: Final = ("",)
"""Under `strict` all events of a lane share a key."""


def ordering_keys(ordering: Ordering, event: bytes) -> Iterable[str]:
    """The keys of an event: it may not overtake an earlier event that has one of them."""
    if ordering is Ordering.NONE:
        return ()
    return _ONE_KEY if ordering is Ordering.STRICT else ids_of(event)


def may_overtake(
    ordering: Ordering, groups: Iterable[PartGroup]
) -> Iterator[tuple[PartGroup, BatchPart, int]]:
    """For each part the index of its first event that may be sent before all that is older: they
    have no ordering key in common.

    By ids under `strict` too: only another event's 200 distinguishes a refused event
    from an upstream that refuses everything. `groups` are the lane's, oldest first
    wherever they may share keys.
    """
    held: set[str] = set()
    for group, part in [(one, part) for one in groups for part in one.parts]:
        if ordering is Ordering.NONE:
            yield group, part, 0
            continue
        index: int | None = None
        for number, event in enumerate(
            [event for chunk in part.batch.chunks for event in chunk.events()]
        ):
            keys = ids_of(event)
            if index is None and held.isdisjoint(keys):
                index = number
            held |= keys
        if index is not None:
            yield group, part, index
