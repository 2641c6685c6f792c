"""The client of the management API, for programs that use asyncio."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NoReturn, TypeVar

from forwarder.contract.endpoints import Endpoint
from forwarder.core.clock import Clock, SystemClock
from forwarder.core.errors import ConfigurationError
from forwarder.management import groups
from forwarder.management.addresses import base_address, checked_key, checked_proxy, trusted
from forwarder.management.calling import Caller
from forwarder.management.groups import listing
from forwarder.management.pages import Pages
from forwarder.management.transport import Access

R = TypeVar("R")

TIMEOUT: Final = 30.0
CLOCK: Final = SystemClock()


class Client:
    """The management API of one service, with one key. It belongs to the event loop that first uses it, and ends with `close`.

    Its groups have a method for each operation; `call` and `pages` take a row of `forwarder.contract.endpoints` instead.
    """

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
        """`timeout`: seconds for one call with all its attempts, or for one page of a list. `ca_file`: the authorities to trust, in place
        of the system's. Raises `ConfigurationError`."""
        if not (math.isfinite(timeout) and timeout > 0):
            raise ConfigurationError(f"timeout: it must be more than 0 seconds, not {timeout!r}")
        base = base_address(url)
        access = Access(base, checked_key(api_key), trusted(base, ca_file), checked_proxy(proxy))
        self._caller = Caller(access, timeout, clock)
        self.organization_batch_exports = groups.OrganizationBatchExports(self._caller)
        self.domains = groups.Domains(self._caller)
        self.invites = groups.Invites(self._caller)
        self.members = groups.Members(self._caller)
        self.projects = groups.Projects(self._caller)
        self.batch_exports = groups.BatchExports(self._caller)
        self.batch_export_runs = groups.BatchExportRuns(self._caller)
        self.dashboards = groups.Dashboards(self._caller)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._caller.base}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a client holds a key and connections: it can't be copied or pickled")

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections; calls are refused from then on. Cancellation leaves the closing to the garbage collector."""
        await self._caller.close()

    async def call(self, endpoint: Endpoint[Any, Any], ids: Mapping[str, object], body: Any = None) -> Any:
        """What an endpoint answers (of a list: its first page); None if nothing. Raises `ApiError`.

        Cancellation drops the connection: what was sent may have been done.
        """
        return await self._caller.call(endpoint, ids, body)

    def pages(self, endpoint: Endpoint[Any, R], ids: Mapping[str, object], page_size: int | None = None) -> Pages[R]:
        """The list that an endpoint gives."""
        return listing(self._caller, endpoint, ids, page_size)
