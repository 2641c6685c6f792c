"""Which requests go through: an allow-list of paths, read without any decoding.

Invariant: what is passed on has no `.` or `..` segment, no empty segment, no percent sign, backslash or fragment in its path, so that no
reading of it leads out of the list: not `/static/../api/x`, not `/i/%2e%2e/api`, not `/static//api`. Slashes at its beginning count as one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from forwarder.sources.http.routes import Route, origin_form

_SEGMENTS: Final = re.compile(rb"(?:/(?!\.+(?:/|\Z))[A-Za-z0-9._~@+=,:$!-]+)+/?")

_LISTED: Final = b"/api/feature_flag"
"""Where SDKs of 2021 and 2022 ask for definitions (posthog 1.x, posthog-node 1.x). A POST there would create a flag."""
_DEFINITIONS: Final = (b"/flags/definitions", b"/api/feature_flag/local_evaluation", _LISTED)
_SWIFT: Final = (b"/decide", b"/flags", *_DEFINITIONS)
_EXACT: Final = (*_SWIFT, b"/s")
_BELOW: Final = (b"/array", b"/static", b"/i")
_ASSETS: Final = (b"/array", b"/static")


@dataclass(frozen=True, slots=True, eq=False)
class PassedRoute:
    """A route that goes through. `below`: all paths under it, not the path itself."""

    route: Route
    assets: bool = False
    """Whether it goes to the address for assets."""
    swift: bool = False
    """Whether an app waits for it: its time is short."""
    definitions: bool = False
    """Whether a GET of it is answered from the cache."""
    reads: bool = False
    """Whether only GET and HEAD go through."""


def _passed(path: bytes) -> PassedRoute:
    return PassedRoute(Route(path.decode()), path in _ASSETS, path in _SWIFT, path in _DEFINITIONS, path == _LISTED)


class Allowed:
    """One listener's list, with the counts of its routes."""

    def __init__(self) -> None:
        self._exact = {path: _passed(path) for path in _EXACT}
        self._below = {path: _passed(path) for path in _BELOW}

    def find(self, url: bytes) -> PassedRoute | None:
        """The route of a request target; None if it doesn't go through."""
        target = origin_form(url)
        path = target.partition(b"?")[0]
        if b"#" in target or _SEGMENTS.fullmatch(path) is None:
            return None
        exact = self._exact.get(path.rstrip(b"/"))
        if exact is not None:
            return exact
        first, _, rest = path[1:].partition(b"/")
        return self._below.get(b"/" + first) if rest else None

    def all(self) -> list[Route]:
        """Each route once."""
        return [passed.route for passed in (*self._exact.values(), *self._below.values())]

    def requests(self) -> dict[tuple[str, int], int]:
        """How many requests were answered, by route and status."""
        return {(route.name, code): count for route in self.all() for code, count in sorted(route.codes.items())}
