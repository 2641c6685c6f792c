"""The typed client of the management API: `Client` for asyncio, `SyncClient` for programs that
block, `ApiError` for both.
"""

from forwarder.management.client import Client
from forwarder.management.errors import ApiError, InvalidCall
from forwarder.management.pages import Pages
from forwarder.management.sync import SyncClient, SyncPages

__all__ = ["ApiError", "Client", "InvalidCall", "Pages", "SyncClient", "SyncPages"]
