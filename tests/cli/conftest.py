"""An admin server for commands to ask, without a pipeline behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from forwarder.admin.event_lookup import Sighting
from forwarder.admin.server import AdminServer
from forwarder.telemetry.snapshot import Snapshot
from tests.support.snapshots import FULL


@dataclass
class Answering:
    """The server's address, and what it shows and says."""

    snapshot: Snapshot = FULL
    sightings: list[Sighting] = field(default_factory=list)
    address: str = field(default="")


@pytest.fixture
async def daemon() -> AsyncIterator[Answering]:
    """A daemon as commands see it."""
    answering = Answering()
    server = AdminServer(lambda: answering.snapshot, lambda _: answering.sightings)
    await server.start("127.0.0.1:0")
    answering.address = server.address
    yield answering
    await server.close()
