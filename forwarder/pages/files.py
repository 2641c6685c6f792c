"""The files of a page, out of the package, over HTTP.

Invariants: only files that were named are served, each with its own content type; a file is read
once; what is served carries a policy by which a browser loads, runs and sends nothing that isn't
of this server, so text from outside stays text even where it looks like code.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from aiohttp import web

TYPES: Final = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for "
    "'script'"
)
"""Content-Security-Policy of every page: nothing inline, nothing from another host, and no text
that becomes markup.
"""
HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Headers of everything that a page consists of."""

_SHARED: Final = ("base.css", "icon.svg", "ago.js")


@dataclass(frozen=True, slots=True)
class File:
    """One file of a page."""

    body: bytes
    content_type: str
    tag: str
    """Changes with the body: a browser that has this one needn't be sent it again."""

    def response(self, request: web.Request) -> web.Response:
        """The file; 304 without it if the asker has it already."""
        headers = {**HEADERS, "Cache-Control": "no-cache", "ETag": f'"{self.tag}"'}
        if any(known.value == self.tag for known in request.if_none_match or ()):
            return web.Response(status=304, headers=headers)
        return web.Response(
            body=self.body, content_type=self.content_type, charset="utf-8", headers=headers
        )


@cache
def load(package: str, name: str) -> File:
    """A file that lies in a package beside its modules."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(package)
    file = Path(spec.origin).with_name(name)
    body = file.read_bytes()
    return File(body, TYPES[file.suffix], hashlib.sha256(body).hexdigest()[:16])


def routes(prefix: str, package: str, names: Iterable[str]) -> list[web.AbstractRouteDef]:
    """The files of a package, and those that every page has (its style, its icon, and how it says
    times), under `prefix`, which ends with a slash.
    """
    files = {name: load(package, name) for name in names} | {
        name: load("forwarder.pages", name) for name in _SHARED
    }

    async def serve(request: web.Request) -> web.Response:
        file = files.get(request.match_info["name"])
        if file is None:
            raise web.HTTPNotFound
        return file.response(request)

    return [web.get(prefix + "{name}", serve)]
