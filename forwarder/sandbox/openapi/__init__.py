"""`GET /openapi.json`: the sandbox's endpoints for programs (OpenAPI 3.1), generated: the
service's own, and those that show what it holds.

Everything in it is read from what serves it: the contract's tables and types, the tables of paths,
the records of listings. It describes the mode that the sandbox runs in, and every answer that an
operation can give. Two things hold it to that: a test fits the document to the routes, and
schemathesis the answers to the document.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from aiohttp import web

from forwarder.sandbox.openapi import management, service
from forwarder.sandbox.openapi.exports import export_paths
from forwarder.sandbox.openapi.sandbox import LISTINGS, OVERRIDES, sandbox_paths
from forwarder.sandbox.openapi.schemas import Schemas

__all__ = ["LISTINGS", "document", "routes"]


def document(*, strict: bool = False) -> dict[str, Any]:
    """The whole description, of a sandbox that answers by the contract, or (`strict`) as the real
    service does: the caller's own.
    """
    described: dict[str, Any] = json.loads(_text(strict=strict))
    return described


def _generated(*, strict: bool) -> dict[str, Any]:
    schemas = Schemas(OVERRIDES)
    paths = {
        **management.management_paths(schemas, strict=strict),
        **service.service_paths(schemas, strict=strict),
        **sandbox_paths(schemas),
        **export_paths(schemas),
    }
    info = {
        "title": "forwarder sandbox",
        "version": "1",
        "description": "An analytics service in small (`forwarder help sandbox`).",
    }
    components = {
        "securitySchemes": {**management.SECURITY, **service.SECURITY},
        "schemas": schemas.used(paths),
    }
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": components}


def routes(*, strict: bool = False) -> list[web.AbstractRouteDef]:
    """The endpoint that shows it."""

    async def show(_request: web.Request) -> web.Response:
        return web.Response(text=_text(strict=strict), content_type="application/json")

    return [web.get("/openapi.json", show)]


@cache
def _text(*, strict: bool) -> str:
    """The same in every sandbox of a process; generated when it is asked for, since
    that is slow.
    """
    return json.dumps(_generated(strict=strict))
