"""Cross-origin requests: what a browser has to be told so that a page's SDK may send, and may see the answer.

Every answer to a request with `Origin` carries these headers, errors too: a browser hides the status of an answer without them, and
the SDK takes a 503 that it could retry for a dead network. Credentials are allowed because `sendBeacon` always sends with them;
nothing here is decided by a cookie.
"""

from __future__ import annotations

import re
from typing import Final

MAX_AGE: Final = 86400
"""Seconds for which a browser may remember a preflight's answer (browsers cap it themselves)."""

EXPOSED: Final = b"Retry-After"

_ORIGIN: Final = re.compile(rb"[!-~]{1,512}")
_HEADER_NAMES: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z, \t-]{1,4096}")
_VARY: Final = b"Vary: Origin\r\n"
_VARY_PREFLIGHT: Final = b"Vary: Origin, Access-Control-Request-Method, Access-Control-Request-Headers\r\n"


class Cors:
    """The rule of one listener. `origins` are exact origins (`https://app.example.com`), or `*` for all."""

    def __init__(self, origins: tuple[str, ...]) -> None:
        self._all = "*" in origins
        self._origins = frozenset([origin.rstrip("/").lower().encode() for origin in origins])

    def allows(self, origin: bytes) -> bool:
        """Whether pages of `origin` may send here. An origin that can't be echoed safely may not."""
        return (self._all or origin.lower() in self._origins) and _ORIGIN.fullmatch(origin) is not None

    def headers(self, origin: bytes, exposed: bytes = EXPOSED) -> bytes:
        """Header lines for an ordinary answer; `exposed`: which of its headers a page may read."""
        if not self.allows(origin):
            return _VARY
        return self._allow(origin) + b"Access-Control-Expose-Headers: %b\r\n" % exposed + _VARY

    def preflight(self, origin: bytes, requested_headers: bytes, methods: bytes = b"POST, OPTIONS") -> bytes:
        """Header lines for the answer to a preflight: the headers that were asked for are allowed."""
        if not self.allows(origin):
            return _VARY_PREFLIGHT
        lines = [self._allow(origin), b"Access-Control-Allow-Methods: %b\r\n" % methods]
        if _HEADER_NAMES.fullmatch(requested_headers):
            lines.append(b"Access-Control-Allow-Headers: %b\r\n" % requested_headers)
        lines += [b"Access-Control-Max-Age: %d\r\n" % MAX_AGE, _VARY_PREFLIGHT]
        return b"".join(lines)

    @staticmethod
    def _allow(origin: bytes) -> bytes:
        return b"Access-Control-Allow-Origin: %b\r\nAccess-Control-Allow-Credentials: true\r\n" % origin
