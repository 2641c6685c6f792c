"""What order forbids: which ordering keys a fresh batch may not hold, and which event may be probed out of its turn.

`none` forbids nothing; `per_distinct_id` forbids a key while an earlier event with it is unsettled; `strict` allows one request at a time
in the lane. An event that names two ids (`alias`, `$anon_distinct_id`) has both as keys, so it waits for both and holds both back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from forwarder.core.ports import Ordering
from forwarder.delivery.groups import Group, Part
from forwarder.wire.identity import ids_of


class Blocked:
    """The ordering keys of a lane's unsettled groups, in flight or waiting to be sent again.

    Groups of a lane that keeps order have no keys in common: a fresh batch never holds a blocked one.
    """

    __slots__ = ("keys",)

    def __init__(self) -> None:
        self.keys: set[str] = set()

    def block(self, group: Group) -> None:
        """The group was begun."""
        self.keys |= group.ids

    def free(self, group: Group) -> None:
        """The group's last part was settled."""
        self.keys -= group.ids


def may_go_first(ordering: Ordering, groups: Iterable[Group]) -> Iterator[tuple[Group, Part, int]]:
    """For each part the place of its first event that may be sent before all that is older: they have no ordering key in common.

    Under `strict` too: only another event's 200 can tell a refused event from an upstream that refuses everything. `groups` are the lane's,
    oldest first wherever they may share keys.
    """
    held: set[str] = set()
    for group, part in [(one, part) for one in groups for part in one.parts]:
        if ordering is Ordering.NONE:
            yield group, part, 0
            continue
        place: int | None = None
        for number, event in enumerate([event for chunk in part.batch.chunks for event in chunk.events()]):
            keys = ids_of(event)
            if place is None and held.isdisjoint(keys):
                place = number
            held |= keys
        if place is not None:
            yield group, part, place
