"""Which forwarders a request has passed: the header `Forwarder-Path`, by which a loop is
recognized.

Its value is `HOPS; ID, ID, …`: how many forwarders the request has passed, and the ids of those,
the nearest first. Every running daemon has a random id, which its workers share. A request that is
passed through carries exactly the path that it came by. A batch is made of events of many
requests, so it carries the ids seen lately in its lane, and the least number of hops: a sender
that makes up a path can't halt a lane of others.

Invariants: what is remembered is bounded in number and time; the value stays the same as long as
nothing new is seen, so that the next forwarder knows the head of the request again.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from forwarder.core.clock import Clock
from forwarder.core.event import Lane

HEADER: Final = "Forwarder-Path"
ERROR_HEADER: Final = "Forwarder-Error"
LOOP: Final = "loop"
"""`Forwarder-Error: loop` tells a forwarder's 508 from one of anything else on the way."""

MAX_HOPS: Final = 10
"""Forwarders that a request may pass. One that has passed so many is rejected by the next."""

REMEMBERED_SECONDS: Final = 3600.0
"""How long a path that a lane's events came by stays in the header of its batches."""

MAX_IDS: Final = 32
"""Ids in a header."""

MAX_PATHS: Final = 16
"""Paths that are remembered for a lane."""

MAX_LANES: Final = 256
"""Lanes whose paths are remembered."""

_ID_BYTES: Final = 6
_VALUE: Final = re.compile(rb"\s*([0-9]{1,4})\s*;\s*([0-9a-f]{12}(?:\s*,\s*[0-9a-f]{12})*)\s*")


@dataclass(frozen=True, slots=True)
class RequestPath:
    """The path of one request, as its header says; `value` identifies it."""

    value: bytes
    hops: int
    ids: tuple[str, ...]


_DIRECT: Final = RequestPath(b"", 0, ())
"""The path of a request that has passed no forwarder."""


@lru_cache(maxsize=1024)
def parse_path(value: bytes) -> RequestPath | None:
    """The path that a header states; None for a value that no forwarder writes."""
    found = _VALUE.fullmatch(value)
    if found is None:
        return None
    ids = tuple(part.strip().decode() for part in found[2].split(b",")[:MAX_IDS])
    return RequestPath(value, int(found[1]), ids)


def new_instance() -> str:
    """The id of a daemon that starts."""
    return secrets.token_hex(_ID_BYTES)


class ForwarderPath:
    """This daemon's id, and the paths that the events of each lane came by."""

    def __init__(
        self,
        clock: Clock,
        instance: str = "",
        other_keys: Mapping[str, Collection[str]] = MappingProxyType({}),
    ) -> None:
        """`instance`: the daemon's id; empty: a new one. `other_keys`: the keys that a sender's
        key has at destinations.
        """
        self._other_keys = other_keys
        self.instance = instance or new_instance()
        self._clock = clock
        self._lanes: dict[Lane, dict[bytes, tuple[RequestPath, float]]] = {}
        self.active = False
        """Whether paths are remembered, so that requests without one count too; every request asks.
        """

    def is_loop(self, path: RequestPath) -> bool:
        """Whether the request has been here before, or has passed too many forwarders."""
        return path.hops >= MAX_HOPS or self.instance in path.ids

    def note(self, lane: Lane, path: RequestPath | None) -> None:
        """A request of this lane came by `path`; None: from its sender."""
        for api_key in self._other_keys.get(lane.api_key, ()):
            self._note(Lane(api_key, lane.historical), path)
        self._note(lane, path)

    def _note(self, lane: Lane, path: RequestPath | None) -> None:
        seen = self._lanes.get(lane)
        if seen is None:
            if path is None or len(self._lanes) >= MAX_LANES:
                return
            seen = self._lanes[lane] = {}
            self.active = True
        path = path or _DIRECT
        if path.value in seen or len(seen) < MAX_PATHS or path is _DIRECT:
            seen[path.value] = path, self._clock.monotonic()
        elif self._forget(lane):
            self._note(lane, path)

    def header(self, lane: Lane | None = None) -> str:
        """The header's value for a batch of this lane; None: for a request of the daemon's own."""
        if lane is None or lane not in self._lanes:
            return _written(1, [self.instance])
        self._forget(lane)
        paths = [path for path, _ in self._lanes.get(lane, {}).values()]
        ids = dict.fromkeys([self.instance, *(hop for path in paths for hop in path.ids)])
        return _written(1 + min([path.hops for path in paths], default=0), list(ids)[:MAX_IDS])

    def after(self, path: RequestPath | None) -> str:
        """The header's value for a request that is passed on and came by `path`."""
        known = path or _DIRECT
        return _written(known.hops + 1, [self.instance, *known.ids][:MAX_IDS])

    def _forget(self, lane: Lane) -> bool:
        """Forget the paths of a lane that were not seen lately; whether there were any."""
        seen = self._lanes[lane]
        horizon = self._clock.monotonic() - REMEMBERED_SECONDS
        old = [value for value, (_, at) in seen.items() if at < horizon]
        for value in old:
            del seen[value]
        if not any(seen):  # nothing, or direct requests alone
            del self._lanes[lane]
            self.active = bool(self._lanes)
        return bool(old)


def _written(hops: int, ids: list[str]) -> str:
    return f"{hops}; {', '.join(ids)}"
