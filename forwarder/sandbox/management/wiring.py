"""Which module answers which endpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from forwarder.contract.endpoints import Endpoint
from forwarder.sandbox.management import batch_exports, dashboards, domains, invites, members, projects, runs
from forwarder.sandbox.management.call import AsyncHandler, Handler, Resolver
from forwarder.sandbox.management.verification import async_handlers

HANDLERS: Final[Mapping[Endpoint[Any, Any], Handler]] = {
    **domains.HANDLERS,
    **invites.HANDLERS,
    **members.HANDLERS,
    **projects.HANDLERS,
    **batch_exports.HANDLERS,
    **runs.HANDLERS,
    **dashboards.HANDLERS,
}


def waiting_handlers(resolver: Resolver) -> Mapping[Endpoint[Any, Any], AsyncHandler]:
    """What answers the endpoints that wait for somebody else, between pieces of work on the store's thread."""
    return async_handlers(resolver)
