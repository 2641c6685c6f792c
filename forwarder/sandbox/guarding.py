"""Keeps other sites' pages from changing what the sandbox holds, by way of a browser in which somebody has them open.

A browser says where a request comes from: by `Sec-Fetch-Site` (Fetch Metadata Request Headers, section 2), and by `Origin` with every
method but GET and HEAD (Fetch standard, "append a request `Origin` header"). What says neither is no browser. A site that gives itself this
server's address is of the same origin to a browser: `forwarder.pages.hosts` rejects its requests before.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from aiohttp import web

_OWN: Final = frozenset({"same-origin", "none"})


def refuse_other_sites(request: web.Request) -> None:
    """Raise 403 if a page of another site, or nobody knows whose, is behind the request."""
    site, origin = request.headers.get("Sec-Fetch-Site"), request.headers.get("Origin")
    if (site is not None and site not in _OWN) or (origin is not None and not _is_of(origin, request.host)):
        raise web.HTTPForbidden(text="a page of another site may not do this\n")


def _is_of(origin: str, host: str) -> bool:
    try:
        return urlsplit(origin).netloc.lower() == host.lower()
    except ValueError:
        return False
