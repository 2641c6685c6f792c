"""Which headers go through, in both directions.

Hop-by-hop headers end here, those that `Connection` names too (RFC 9110, 7.6.1). Everything else goes on as it came, credentials and
cookies as well, which are nobody's business here: nothing of them is logged. docs/passthrough.md has the list.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from multidict import CIMultiDict

from forwarder.core.path import HEADER

Line: TypeAlias = tuple[bytes, bytes]
"""A header's name and value, as on the wire."""

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
_OURS: Final = _HOP_BY_HOP | {b"host", b"content-length", b"forwarder-ack", HEADER.lower().encode(), b"x-forwarded-for", b"via"}
"""Of a request: ended here, or written anew."""

_THEIRS: Final = _HOP_BY_HOP | {b"content-length", b"alt-svc", b"strict-transport-security"}
"""Of an answer: ended here, written anew, or said of the upstream's address, which isn't the one that the sender talks to."""

_CORS: Final = b"access-control-"

VIA: Final = "1.1 forwarder"


def for_upstream(lines: Sequence[Line], peer: str | None, path: str = "") -> CIMultiDict[str]:
    """The headers to send on. `peer`: the sender's address, to be added to those that it says it speaks for; None for none.

    `path`: the forwarders that the request has passed; empty for no header. Raises `UnicodeDecodeError` for a value that isn't UTF-8.
    """
    dropped = _OURS | named(lines)
    headers = CIMultiDict([(name.decode(), value.decode()) for name, value in lines if name.lower() not in dropped])
    if hops := [*_values(lines, b"x-forwarded-for"), *([peer] if peer else [])]:
        headers.add("X-Forwarded-For", ", ".join(hops))
    headers.add("Via", ", ".join([*_values(lines, b"via"), VIA]))
    if path:
        headers.add(HEADER, path)
    return headers


def for_sender(lines: Iterable[Line], *, cross_origin: bool) -> list[Line]:
    """The header lines to answer with. `cross_origin`: the request has `Origin`, and it is ours to say who may read the answer."""
    kept = list(lines)
    dropped = _THEIRS | named(kept)
    return [line for line in kept if not ((name := line[0].lower()) in dropped or (cross_origin and name.startswith(_CORS)))]


def value_of(lines: Iterable[Line], name: bytes) -> bytes:
    """The value of a header, several lines joined by commas; empty if there is none."""
    return b", ".join([value for key, value in lines if key.lower() == name])


def _values(lines: Iterable[Line], name: bytes) -> list[str]:
    return [value.decode() for key, value in lines if key.lower() == name and value.strip()]


def named(lines: Iterable[Line]) -> set[bytes]:
    """What `Connection` names: headers that were meant for this hop alone."""
    return {token.strip().lower() for token in value_of(lines, b"connection").split(b",")}
