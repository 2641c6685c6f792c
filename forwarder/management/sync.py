"""The client of the management API for programs without asyncio: the same operations, which block."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, TypeVar

from forwarder.contract.endpoints import Endpoint
from forwarder.core.clock import Clock
from forwarder.management import blocking
from forwarder.management.blocking import SyncPages
from forwarder.management.client import CLOCK, TIMEOUT, Client
from forwarder.management.loop_thread import LoopThread

R = TypeVar("R")


class SyncClient:
    """See `Client`. Calls are made in a thread, which starts with the first; any thread may call, and one with a running loop, too."""

    def __init__(
        self,
        url: str,
        api_key: str,
        *,
        timeout: float = TIMEOUT,
        ca_file: str | Path | None = None,
        proxy: str | None = None,
        clock: Clock = CLOCK,
    ) -> None:
        """See `Client`."""
        client = self._client = Client(url, api_key, timeout=timeout, ca_file=ca_file, proxy=proxy, clock=clock)
        thread = self._thread = LoopThread(client.close)
        self.organization_batch_exports = blocking.SyncOrganizationBatchExports(client.organization_batch_exports, thread)
        self.domains = blocking.SyncDomains(client.domains, thread)
        self.invites = blocking.SyncInvites(client.invites, thread)
        self.members = blocking.SyncMembers(client.members, thread)
        self.projects = blocking.SyncProjects(client.projects, thread)
        self.batch_exports = blocking.SyncBatchExports(client.batch_exports, thread)
        self.batch_export_runs = blocking.SyncBatchExportRuns(client.batch_export_runs, thread)
        self.dashboards = blocking.SyncDashboards(client.dashboards, thread)

    def __repr__(self) -> str:
        return repr(self._client).replace("<", "<Sync", 1)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a client holds a key and connections: it can't be copied or pickled")

    def __enter__(self) -> SyncClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections and end the thread; calls are refused from then on."""
        self._thread.end()

    def call(self, endpoint: Endpoint[Any, Any], ids: Mapping[str, object], body: Any = None) -> Any:
        """What an endpoint answers (of a list: its first page); None if nothing. Raises `ApiError`."""
        return self._thread.run(self._client.call(endpoint, ids, body))

    def pages(self, endpoint: Endpoint[Any, R], ids: Mapping[str, object], page_size: int | None = None) -> SyncPages[R]:
        """The list that an endpoint gives."""
        return SyncPages(self._client.pages(endpoint, ids, page_size), self._thread)
