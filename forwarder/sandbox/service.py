"""The sandbox as a whole: one application on one database, started and stopped together.

Order of starting: database, application, socket. Order of stopping: the socket takes no more, requests under way are answered, the
database closes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final

from aiohttp import web

from forwarder.core.errors import ConfigurationError, cannot_listen
from forwarder.sandbox.arrivals import Arrivals
from forwarder.sandbox.ingestion import EVENT_PATHS, Ingestion
from forwarder.sandbox.judging import Keys
from forwarder.sandbox.queries import Queries
from forwarder.sandbox.records import Conflict, StoredEvent, StoredRequest, Summary
from forwarder.sandbox.selection import EventFilter, Page, RequestFilter
from forwarder.sandbox.taking import Rules

MAX_BODY: Final = 20_000_000
"""Bytes; "the whole request body must be smaller than 20 MB" (interface document, Limits 1)."""
GRACE: Final = 5.0
"""Seconds that requests under way have at the end."""
EVERYTHING: Final = Page(limit=None)
_INDEX: Final = "\n".join(
    [
        "This is forwarder's sandbox: an analytics service in small.",
        "",
        *(f"POST   {path}/" for path in ("/decide", *EVENT_PATHS)),
        "GET    /sandbox/events     event distinct_id uuid api_key since until historical request arrivals limit offset",
        "GET    /sandbox/requests   path status api_key limit offset",
        "GET    /sandbox/conflicts  limit offset",
        "GET    /sandbox/summary",
        "DELETE /sandbox/events     forgets everything",
        "GET    /livez",
        "",
    ]
)


@dataclass(frozen=True, slots=True)
class SandboxOptions:
    """What a sandbox is like."""

    listen: str = "127.0.0.1:0"
    """`host:port`; port 0 is any free one."""
    database: Path | None = None
    """A file that keeps everything; None: in memory."""
    api_keys: frozenset[str] = frozenset()
    """The project keys that exist; none: every well-formed one."""
    strict: bool = False
    """Answer as the real service does, not by the contract."""
    max_body: int = MAX_BODY
    """A body stays below this many bytes, on the wire and decompressed."""
    now: Callable[[], float] = time.time
    """Wall-clock time in seconds."""


class Sandbox:
    """A running sandbox: `async with Sandbox(SandboxOptions()) as sandbox: sandbox.url`.

    Entering raises `ConfigurationError` if the address or the database can't be used. Leaving answers what is under way (up to 5 seconds)
    and closes everything; the same if it is cancelled.
    """

    def __init__(self, options: SandboxOptions | None = None) -> None:
        self.options = options or SandboxOptions()
        self.url = ""
        """Where it listens, once entered: `http://host:port`, without a slash at the end."""
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Sandbox:
        async with AsyncExitStack() as stack:
            self._arrivals = Arrivals(self.options.database)
            stack.push_async_callback(self._arrivals.close)
            runner = web.AppRunner(
                self._application(),
                access_log=None,
                auto_decompress=False,
                max_line_size=65536,
                max_field_size=32768,
                shutdown_timeout=GRACE,
                lingering_time=0,  # `ingestion` does it, where the end of the connection ends it
            )
            stack.push_async_callback(runner.cleanup)
            await runner.setup()
            self.url = await _listen(runner, self.options.listen)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._stack.aclose()

    async def summary(self) -> Summary:
        """Figures of everything that is kept. Cancellation ends the wait."""
        return await self._arrivals.run(lambda store: store.summary())

    async def events(self, wanted: EventFilter | None = None, page: Page = EVERYTHING) -> list[StoredEvent]:
        """The events that `wanted` lets through, in the order of arrival. Cancellation ends the wait."""
        return (await self._arrivals.run(lambda store: store.events(wanted or EventFilter(), page)))[1]

    async def requests(self, wanted: RequestFilter | None = None, page: Page = EVERYTHING) -> list[StoredRequest]:
        """The requests that `wanted` lets through, in the order of arrival. Cancellation ends the wait."""
        return (await self._arrivals.run(lambda store: store.requests(wanted or RequestFilter(), page)))[1]

    async def conflicts(self, page: Page = EVERYTHING) -> list[Conflict]:
        """The uuids that came again with other bytes, in the order of arrival. Cancellation ends the wait."""
        return (await self._arrivals.run(lambda store: store.conflicts(page)))[1]

    async def clear(self) -> None:
        """Forget everything. Cancellation ends the wait; everything is forgotten all the same."""
        await self._arrivals.run(lambda store: store.clear())

    def _application(self) -> web.Application:
        rules = Rules(Keys(self.options.api_keys), self.options.strict, self.options.max_body)
        application = web.Application()
        application.add_routes(Ingestion(self._arrivals, rules, self.options.now).routes())
        application.add_routes(Queries(self._arrivals).routes())
        application.add_routes([web.get("/", _index), web.get("/livez", _alive)])
        return application


async def _index(_request: web.Request) -> web.Response:
    return web.Response(text=_INDEX)


async def _alive(_request: web.Request) -> web.Response:
    return web.Response(text="ok\n")


async def _listen(runner: web.AppRunner, listen: str) -> str:
    host, port = split_address(listen)
    site = web.TCPSite(runner, host, port)
    try:
        await site.start()
    except OSError as error:
        raise cannot_listen("sandbox --listen", listen, error) from None
    bound = runner.addresses[0][1]
    return f"http://{f'[{host}]' if ':' in host else host}:{bound}"


def split_address(listen: str) -> tuple[str, int]:
    """Host and port of `host:port` or `[host]:port`. Raises `ConfigurationError` if it is neither."""
    host, colon, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigurationError(f"{listen!r} is not an address", hint="Write it as 127.0.0.1:8322.")
    return host, int(port)
