"""Lets pages of any origin talk to the service's endpoints, as they may to the real service (Fetch standard: "HTTP CORS protocol").

It is for the service's own endpoints alone: what the sandbox shows is not for other sites' pages (`guarding.py`).
"""

from __future__ import annotations

from typing import Final

from aiohttp import web

METHODS: Final = "GET, POST, OPTIONS"
HEADERS: Final = "Authorization, Content-Encoding, Content-Type, X-Requested-With"
"""What a page may send if its preflight names nothing."""
EXPOSED: Final = "ETag, Retry-After"
MAX_AGE: Final = "86400"
"""Seconds for which a browser need not ask again."""


def headers_for(request: web.Request) -> dict[str, str]:
    """The headers by which a browser lets the page see an answer; none for what is no browser."""
    origin = request.headers.get("Origin")
    if origin is None:
        return {}
    return {
        "Access-Control-Allow-Origin": origin,
        "Access-Control-Allow-Credentials": "true",
        "Access-Control-Expose-Headers": EXPOSED,
        "Vary": "Origin",
    }


async def preflight(request: web.Request) -> web.Response:
    """Answer a browser that asks whether it may send a request."""
    wanted = request.headers.get("Access-Control-Request-Headers", HEADERS)
    allowed = {"Access-Control-Allow-Methods": METHODS, "Access-Control-Allow-Headers": wanted, "Access-Control-Max-Age": MAX_AGE}
    return web.Response(headers={**headers_for(request), **allowed})
