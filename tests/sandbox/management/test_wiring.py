"""Which module answers which endpoint."""

from __future__ import annotations

from forwarder.contract.endpoints import ENDPOINTS
from forwarder.sandbox.management import batch_exports, dashboards, domains, invites, members, projects, runs
from forwarder.sandbox.management.resolving import StaticResolver
from forwarder.sandbox.management.wiring import HANDLERS, waiting_handlers


def test_every_endpoint_has_exactly_one_handler() -> None:
    """What the table has is answered, by one module, and nothing else is."""
    modules = (batch_exports, dashboards, domains, invites, members, projects, runs)
    wired = [endpoint.name for module in modules for endpoint in module.HANDLERS]
    waiting = [endpoint.name for endpoint in waiting_handlers(StaticResolver({}))]
    assert sorted(wired + waiting) == sorted(endpoint.name for endpoint in ENDPOINTS)
    assert sorted(endpoint.name for endpoint in HANDLERS) == sorted(wired)
