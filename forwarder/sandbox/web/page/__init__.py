"""The sandbox's page: static files for browsers, and the text for other clients at the same path.

Invariants: what was sent is shown as text and never as markup (`text.js`; the policy of
`forwarder.pages.files` holds the browser to it); rows, texts and comparisons are bounded, whatever
comes in and however fast.
"""

from __future__ import annotations

from typing import Final

from aiohttp import web

from forwarder.pages import files

NAMES: Final = (
    "style.css",
    "main.js",
    "acting.js",
    "address.js",
    "asking.js",
    "chart.js",
    "compare.js",
    "conditions.js",
    "details.js",
    "flags.js",
    "json.js",
    "lists.js",
    "live.js",
    "managed.js",
    "parts.js",
    "patch.js",
    "persons.js",
    "resources.js",
    "rows.js",
    "runs.js",
    "switching.js",
    "text.js",
    "tiles.js",
    "warnings.js",
)
_PACKAGE: Final = "forwarder.sandbox.web.page"


def routes(index: str) -> list[web.AbstractRouteDef]:
    """The page at `/` for clients that accept HTML; the text `index` for others."""
    page = files.load(_PACKAGE, "index.html")

    async def root(request: web.Request) -> web.Response:
        wants_page = "text/html" in request.headers.get("Accept", "")
        response = page.response(request) if wants_page else web.Response(text=index)
        response.headers["Vary"] = "Accept"
        return response

    return [web.get("/", root), *files.routes("/page/", _PACKAGE, NAMES)]
