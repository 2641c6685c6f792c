"""The host names that a server without a password answers to.

A page of any site can send a visitor's browser to this server under the site's own name, once that
name resolves to this machine's address (DNS rebinding): for the browser, the answer is then the
site's own. Such a request has the site's name as its host. An address can't be made to lead
elsewhere, so every address is known; a name is known if it is a loopback name, this machine's or a
configured one.

Under this server's own name, a page of another site can send requests whose answers it can't read.
Where even that matters, `reject_other_sites` recognizes them. A browser says where a request comes
from: by `Sec-Fetch-Site` (Fetch Metadata Request Headers, section 2), and by `Origin` with every
method but GET and HEAD (Fetch standard, "append a request `Origin` header"). A request without
either is not a browser's.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterable
from ipaddress import IPv4Address, IPv6Address
from typing import Final, TypeAlias
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

_HOST: Final = re.compile(r"(?:\[(?P<v6>[^\[\]]*)\]|(?P<name>[^:\[\]]*))(?::\d*)?", re.ASCII)
_SHOWN: Final = 100
_OWN: Final = frozenset({"same-origin", "none"})

Exempt: TypeAlias = Callable[[web.Request], bool]


class KnownHosts:
    """The names that are known, beside those of the loopback, and all addresses."""

    def __init__(self, configured: Iterable[str], setting: str) -> None:
        """`setting` is the key or option that names further hosts, for the
        answer to requests for others.
        """
        self._names = {_plain(name) for name in (socket.gethostname(), *configured)} - {""}
        self._setting = setting

    def knows(self, host: str) -> bool:
        """Whether a `Host` header names this server."""
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        if match["v6"] is not None:
            return _is_address(IPv6Address, match["v6"])
        name = _plain(match["name"])
        return (
            name in self._names
            or name == "localhost"
            or name.endswith(".localhost")
            or _is_address(IPv4Address, name)
        )

    def middleware(self, exempt: Exempt) -> Middleware:
        """What answers 421 to requests for unknown hosts, except those that are `exempt`."""

        @web.middleware
        async def check_host(request: web.Request, handler: Handler) -> web.StreamResponse:
            # HTTP/1.0 has no host; every browser sends one
            for host in request.headers.getall("Host", ()):
                if not self.knows(host) and not exempt(request):
                    return self._misdirected(host)
            return await handler(request)

        return check_host

    def _misdirected(self, host: str) -> web.Response:
        shown = host.encode("ascii", "backslashreplace").decode()
        text = (
            f"{shown[:_SHOWN]!r} is not a known name of this server. If it is one, add it to "
            f"{self._setting}; an address always works.\n"
        )
        return web.Response(
            status=421,
            text=text,
            headers={"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"},
        )


def _plain(name: str) -> str:
    return name.lower().removesuffix(".")


def _is_address(kind: type[IPv4Address | IPv6Address], text: str) -> bool:
    try:
        kind(text)
    except ValueError:
        return False
    return True


def reject_other_sites(request: web.Request) -> None:
    """Raise 403 if a page of another or an unknown site sent the request."""
    site = request.headers.get("Sec-Fetch-Site")
    origin = request.headers.get("Origin")
    if (site is not None and site not in _OWN) or (
        origin is not None and not _is_of(origin, request.host)
    ):
        raise web.HTTPForbidden(text="a page of another site may not do this\n")


def _is_of(origin: str, host: str) -> bool:
    try:
        return urlsplit(origin).netloc.lower() == host.lower()
    except ValueError:
        return False
