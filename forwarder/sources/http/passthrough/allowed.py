"""What goes through: which requests, by an allow-list of paths, and which headers, in both
directions.

Invariants: what is passed on has no `.` or `..` segment, no empty segment, no percent sign,
backslash or fragment in its path, so that no reading of it leads out of the list: not
`/static/../api/x`, not `/i/%2e%2e/api`, not `/static//api`. Slashes at its beginning count as one.
Hop-by-hop headers end here, those that `Connection` names too (RFC 9110, 7.6.1). Every other
header goes on as it came, credentials and cookies too, and none of them is logged.
docs/reference/passthrough.md has the lists.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from forwarder.core.headers import HeaderLine, value_of
from forwarder.core.path import HEADER
from forwarder.sources.http.protocol.routes import Route, count_requests, origin_form

_SEGMENTS: Final = re.compile(rb"(?:/(?!\.+(?:/|\Z))[A-Za-z0-9._~@+=,:$!-]+)+/?")

_LISTED: Final = b"/api/feature_flag"
"""Where SDKs of 2021 and 2022 ask for definitions (posthog 1.x, posthog-node 1.x). A POST there
would create a flag.
"""
_DEFINITIONS: Final = (b"/flags/definitions", b"/api/feature_flag/local_evaluation", _LISTED)
_LATENCY_SENSITIVE: Final = (b"/decide", b"/flags", *_DEFINITIONS)
_EXACT: Final = (*_LATENCY_SENSITIVE, b"/s")
_BELOW: Final = (b"/array", b"/static", b"/i")
_ASSETS: Final = (b"/array", b"/static")


@dataclass(frozen=True, slots=True, eq=False)
class PassedRoute:
    """A route that goes through. `below`: all paths under it, not the path itself."""

    route: Route
    assets: bool = False
    """Whether it goes to the address for assets."""
    latency_sensitive: bool = False
    """Whether an app waits for it: its time is short."""
    definitions: bool = False
    """Whether a GET of it is answered from the cache."""
    reads: bool = False
    """Whether only GET and HEAD go through."""


def _passed(path: bytes) -> PassedRoute:
    return PassedRoute(
        Route(path.decode()),
        path in _ASSETS,
        path in _LATENCY_SENSITIVE,
        path in _DEFINITIONS,
        path == _LISTED,
    )


class PassedRoutes:
    """The allow-list of one listener, with the counts of its routes."""

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
        return count_requests(self.all())


class PassedRequest(NamedTuple):
    """The head of a request that goes through, as it came."""

    route: PassedRoute
    method: bytes
    target: bytes
    lines: Sequence[HeaderLine]
    content_length: int | None
    """None for a body in chunks; 0 for none."""
    chunks_understood: bool = True
    """Whether its sender speaks HTTP/1.1."""
    origin: bytes = b""
    peer: str | None = None
    """The sender's address, if the upstream is to know it."""
    sender: str = ""
    """Who shares the permits and the headroom with others."""
    path: str = ""
    """The forwarders that it has passed, this one too, as the header names
    them; empty for no header.
    """


_HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"expect",
        b"http2-settings",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
_NOT_TO_UPSTREAM: Final = _HOP_BY_HOP | {
    b"host",
    b"content-length",
    b"forwarder-ack",
    HEADER.lower().encode(),
    b"x-forwarded-for",
    b"via",
}
"""Of a request: dropped, or written anew."""

_NOT_TO_SENDER: Final = _HOP_BY_HOP | {b"content-length", b"alt-svc", b"strict-transport-security"}
"""Of an answer: dropped, written anew, or about the upstream's address, which isn't the one that
the sender talks to.
"""

_CORS: Final = b"access-control-"

VIA: Final = b"1.1 forwarder"


def lines_for_upstream(lines: Sequence[HeaderLine], peer: str | None, path: str = "") -> bytes:
    """The header lines to send on, each with its end. `peer`: the sender's address, to be added to
    those that it says it speaks for; None for none. `path`: the forwarders that the request has
    passed; empty for no header. Raises `UnicodeDecodeError` for what isn't UTF-8.
    """
    sent: list[tuple[bytes, bytes]] = []
    hops: list[bytes] = []
    forwarders: list[bytes] = []
    named: set[bytes] = set()
    for name, value in lines:
        key = name.lower()
        if key not in _NOT_TO_UPSTREAM:
            sent.append((name, value))
        elif key == b"connection":
            named |= _tokens(value)
        elif key == b"x-forwarded-for" and value.strip():
            hops.append(value)
        elif key == b"via" and value.strip():
            forwarders.append(value)
    if named:
        sent = [line for line in sent if line[0].lower() not in named]
    if peer:
        hops.append(peer.encode())
    if hops:
        sent.append((b"X-Forwarded-For", b", ".join(hops)))
    sent.append((b"Via", b", ".join([*forwarders, VIA])))
    if path:
        sent.append((HEADER.encode(), path.encode()))
    joined = b"".join([b"%b: %b\r\n" % line for line in sent])
    if not joined.isascii():
        joined.decode()
    return joined


def lines_for_sender(lines: Sequence[HeaderLine], *, cross_origin: bool) -> list[HeaderLine]:
    """The header lines to answer with. `cross_origin`: the request has `Origin`, and it is ours to
    say who may read the answer.
    """
    passed_lines = [
        line
        for line in lines
        if not (
            (name := line[0].lower()) in _NOT_TO_SENDER or (cross_origin and name.startswith(_CORS))
        )
    ]
    named = named_by_connection(lines)
    return (
        [line for line in passed_lines if line[0].lower() not in named] if named else passed_lines
    )


def named_by_connection(lines: Iterable[HeaderLine]) -> set[bytes]:
    """The headers that `Connection` names: they are meant for this hop alone."""
    named = value_of(lines, b"connection")
    return _tokens(named) if named else set()


def _tokens(value: bytes) -> set[bytes]:
    return {token.strip().lower() for token in value.split(b",")}
