"""The paths on which events are accepted, and the counts of each.

Invariant: names of routes are a closed set, whatever paths are asked for and whatever prefixes are
configured, so that metrics stay bounded. A prefixed path is an entry of its own in the same
dictionary, so that prefixes cost a request nothing.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from forwarder.core.headers import HeaderLine
from forwarder.core.ports import EventResults, OtlpHead, V1Head
from forwarder.sources.http.protocol.answers import HttpAnswer, Rejection, of_results
from forwarder.sources.http.protocol.route_protocols import (
    OTLP_JSON,
    OTLP_PROTOBUF,
    V1,
    RouteProtocol,
)
from forwarder.wire.otlp import JSON_TYPE, PROTOBUF_TYPE

_PATHS: Final = (b"/batch", b"/capture", b"/e", b"/i/v0/e", b"/track", b"/engage")
"""All mean the same: each accepts any shape and encoding, a second wrapping in base64 too (the
service undoes that on some only).
"""

_NAMES: Final = {b"/engage": b'"$identify"'}
"""The name of an event without one on a path, as JSON text (wire facts: older versions of the
browser SDK rely on it).
"""

_V1: Final = b"/i/v1/analytics/events"
"""It has a protocol of its own (docs/reference/v1.md)."""

_OTLP_LOGS: Final = b"/v1/logs"
"""It has a protocol of its own, and exists where that is configured (docs/reference/otlp.md)."""

_ORIGIN: Final = re.compile(rb"\Ahttps?://[^/?#]*", re.IGNORECASE)


class Route:
    """A path, with and without its slash. `accepted` counts the usual answer, 200; `codes` all
    others.

    `protocol`: one of its own, with its own form of answers. `variants`: the same path by content
    type, where the form depends on that. `event`: the name of events that have none, as JSON text;
    empty if they are invalid.
    """

    __slots__ = ("accepted", "codes", "event", "name", "protocol", "rejected", "variants")

    def __init__(
        self, name: str, *, protocol: RouteProtocol | None = None, event: bytes = b""
    ) -> None:
        self.name = name
        self.protocol = protocol
        self.event = event
        self.accepted = 0
        self.codes: defaultdict[int, int] = defaultdict(int)
        self.rejected: dict[Rejection, RejectionCount] = {}
        self.variants: dict[bytes, Route] = {}

    def add_variant(self, content_type: bytes, protocol: RouteProtocol) -> None:
        """Requests of this type have another protocol. They count with the others."""
        variant = self.variants[content_type] = Route(
            self.name, protocol=protocol, event=self.event
        )
        variant.codes = self.codes
        variant.rejected = self.rejected

    def begin(
        self, content_type: bytes, lines: Sequence[HeaderLine]
    ) -> tuple[Route, V1Head | OtlpHead | None, bytes]:
        """A request of its protocol: the route for its type, what the intake needs of the head,
        and what every answer repeats of it.
        """
        route = self.variants.get(content_type.partition(b";")[0].strip().lower(), self)
        head, repeated = (None, b"") if route.protocol is None else route.protocol.read(lines)
        return route, head, repeated

    def answer_with(self, results: EventResults) -> HttpAnswer:
        """200 with the results of a request's events."""
        return of_results(
            results, JSON_TYPE if self.protocol is None else self.protocol.content_type
        )

    def count(self, status: int) -> None:
        """One request was answered with `status`."""
        self.codes[status] += 1

    def record(self, answer: HttpAnswer) -> None:
        """One request was answered by the listener itself."""
        self.codes[answer.status] += 1
        if answer.reason is not None:
            rejected = self.rejected.get(answer.reason)
            if rejected is None:
                rejected = self.rejected[answer.reason] = RejectionCount()
            rejected.count += 1
            rejected.last = answer


def count_requests(routes: Collection[Route]) -> dict[tuple[str, int], int]:
    """How many requests were answered, by route and status."""
    counts = {
        (route.name, code): count for route in routes for code, count in sorted(route.codes.items())
    }
    for route in routes:
        if route.accepted:
            counts[route.name, 200] = counts.get((route.name, 200), 0) + route.accepted
    return counts


class RejectionCount:
    """The requests of a route that were rejected for one reason."""

    __slots__ = ("count", "last", "report_after", "reported")

    def __init__(self) -> None:
        self.count = 0
        self.last: HttpAnswer | None = None
        self.reported = 0
        """How many of them are logged."""
        self.report_after = 0.0
        """When more may be logged, in monotonic seconds."""


class Routes:
    """One listener's routes and their counts.

    `prefixes`: paths below which every route exists a second time. `otlp`: whether log records of
    OpenTelemetry are accepted.
    """

    def __init__(self, prefixes: Sequence[str] = (), *, otlp: bool = False) -> None:
        self.other = Route("other")
        self.by_path: dict[bytes, Route] = {}
        """With prefixes and without."""
        self._plain: dict[bytes, Route] = {}
        self._prefixes = tuple([prefix.encode() for prefix in prefixes])
        for path in _PATHS:
            self._add(path, Route(path.decode(), event=_NAMES.get(path, b"")))
        self._add(_V1, Route(_V1.decode(), protocol=V1))
        if otlp:
            logs = Route(_OTLP_LOGS.decode(), protocol=OTLP_JSON)
            logs.add_variant(PROTOBUF_TYPE, OTLP_PROTOBUF)
            self._add(_OTLP_LOGS, logs)

    def _add(self, path: bytes, route: Route) -> None:
        self._plain[path] = self._plain[path + b"/"] = route
        for prefix in (b"", *self._prefixes):
            self.by_path[prefix + path] = self.by_path[prefix + path + b"/"] = route

    def find(self, url: bytes) -> tuple[Route, bytes]:
        """The route of a request target in origin or absolute form, `other` if
        it is none, and the query.
        """
        path, _, query = url.partition(b"?")
        route = self.by_path.get(path)
        if route is None:
            path, _, query = self.target(url).partition(b"?")
            route = self._plain.get(path, self.other)
        return route, query

    def target(self, url: bytes) -> bytes:
        """A request target in origin form, without a prefix: what an upstream is asked for."""
        target = origin_form(url)
        for prefix in self._prefixes:
            if target.startswith(prefix + b"/"):
                return origin_form(target[len(prefix) :])
        return target

    def all(self) -> set[Route]:
        """Each route once."""
        return {*self._plain.values(), self.other}

    def requests(self) -> Mapping[tuple[str, int], int]:
        """How many requests were answered, by route and status."""
        return count_requests(self.all())


def origin_form(url: bytes) -> bytes:
    """A request target without scheme and host, and with one slash at its beginning.

    SDKs append their path to the host that they are given: one that ends with a
    slash makes it `//batch/`.
    """
    if not url.startswith(b"/"):
        url = _ORIGIN.sub(b"", url, count=1) or b"/"
    return b"/" + url.lstrip(b"/") if url.startswith(b"//") else url


def is_beacon(query: bytes) -> bool:
    """Whether the sender doesn't read the answer (`beacon=1`): it gets 204."""
    return b"beacon=1" in query and b"beacon=1" in query.split(b"&")
