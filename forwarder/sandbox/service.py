"""The sandbox as a whole: one application on one database, started and stopped together.

Order of starting: database, application, socket. Order of stopping: the socket takes no more, requests under way are answered, the
database closes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final

from aiohttp import web

from forwarder.contract.endpoints import ENDPOINTS
from forwarder.core.errors import ConfigurationError, cannot_listen
from forwarder.core.host_port import join_host_port, split_host_port
from forwarder.pages.hosts import KnownHosts
from forwarder.sandbox.arrivals import Arrivals
from forwarder.sandbox.groups import StoredGroup
from forwarder.sandbox.imports import StoredImport, imports
from forwarder.sandbox.ingestion import POSTED, SCRIPTS, Ingestion, asked, served_methods
from forwarder.sandbox.judging import Keys
from forwarder.sandbox.live import Live
from forwarder.sandbox.management.call import Resolver
from forwarder.sandbox.management.dispatch import Management, Terms
from forwarder.sandbox.management.organizations import count_organizations, project_exists
from forwarder.sandbox.management.resolving import DnsResolver
from forwarder.sandbox.management.showing import LISTED
from forwarder.sandbox.management.wiring import waiting_handlers
from forwarder.sandbox.openapi import routes as openapi_routes
from forwarder.sandbox.page import routes as page_routes
from forwarder.sandbox.persons import StoredPerson
from forwarder.sandbox.queries import Queries
from forwarder.sandbox.recording import Rules
from forwarder.sandbox.records import Conflict, StoredEvent, StoredRequest, Summary
from forwarder.sandbox.seeding import Seed, plant, read_seed
from forwarder.sandbox.selection import EventFilter, GroupFilter, ImportFilter, Page, PersonFilter, RequestFilter
from forwarder.sandbox.unreadable import LOG
from forwarder.sandbox.usage import FlagUse, SurveyUse

MAX_BODY: Final = 20_000_000
"""Bytes; "the whole request body must be smaller than 20 MB" (interface document, Limits 1)."""
GRACE: Final = 5.0
"""Seconds that requests under way have at the end."""
EVERYTHING: Final = Page(limit=None)
_INDEX: Final = "\n".join(
    [
        "This is forwarder's sandbox: an analytics service in small.",
        "",
        *(f"POST   {path}/" for path in POSTED),
        *(f"GET    {path}" for path in (*asked(strict=False), *SCRIPTS)),
        *(f"{endpoint.method:<6} {endpoint.path}" for endpoint in ENDPOINTS),
        "GET    /sandbox/events     event distinct_id uuid api_key since until historical request import arrivals person",
        "                           group_type group_key feature survey_id q order limit offset",
        "GET    /sandbox/requests   path status api_key order limit offset",
        "GET    /sandbox/conflicts  order limit offset",
        "GET    /sandbox/persons    api_key distinct_id person order limit offset",
        "GET    /sandbox/groups     api_key group_type group_key order limit offset",
        "GET    /sandbox/surveys    api_key limit offset",
        "GET    /sandbox/flag-calls api_key limit offset",
        "GET    /sandbox/imports    import api_key order limit offset",
        "GET    /sandbox/import-events  import api_key after limit: times and uuids, page by page",
        *(f"GET    /sandbox/{name:<14} {' '.join((*listed.parameters, 'order', 'limit', 'offset'))}" for name, listed in LISTED.items()),
        "GET    /sandbox/summary",
        "GET    /sandbox/live       event distinct_id api_key text problems: what arrives, as server-sent events",
        "GET    /sandbox/rates      seconds: events, conflicts and refusals by second",
        "DELETE /sandbox/events     forgets everything that arrived",
        "*      /api/organizations, /api/environments: the management API, with a personal key",
        "GET    /openapi.json",
        "GET    /livez",
        "",
    ]
)


@dataclass(frozen=True, slots=True)
class SandboxOptions:
    """What a sandbox is like."""

    listen: str = "127.0.0.1:0"
    """`host:port`; port 0 is any free one."""
    hosts: frozenset[str] = frozenset()
    """Further host names by which all of it is reached; the service's own endpoints are reached by any name (`forwarder.pages.hosts`)."""
    database: Path | None = None
    """A file that keeps everything; None: in memory."""
    api_keys: frozenset[str] = frozenset()
    """The project keys that exist; none: every well-formed one."""
    seed: Path | None = None
    """A file of what there is from the start (`seeding.py`); what is there already is left as it is."""
    strict: bool = False
    """Answer as the real service does, not by the contract."""
    max_body: int = MAX_BODY
    """A body stays below this many bytes, on the wire and decompressed."""
    now: Callable[[], float] = time.time
    """Wall-clock time in seconds."""
    resolver: Resolver | None = None
    """What looks up the challenges of domains; None: the DNS."""


class Sandbox:
    """A running sandbox: `async with Sandbox(SandboxOptions()) as sandbox: sandbox.url`.

    Entering raises `ConfigurationError` if the address, the database or the seed can't be used. Leaving answers what is under way (up to 5
    seconds) and closes everything; the same if it is cancelled.
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
            seed = await self._planted()
            of_a_project = await self._arrivals.run(lambda store: partial(project_exists, store.connection))
            runner = web.AppRunner(
                self._application(self.options.api_keys | seed.api_keys, of_a_project),
                access_log=None,
                logger=LOG,
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
        return await self._arrivals.ask(lambda store: store.summary())

    async def events(self, wanted: EventFilter | None = None, page: Page = EVERYTHING) -> list[StoredEvent]:
        """The events that `wanted` lets through, in the order of arrival. Cancellation ends the wait."""
        return (await self._arrivals.ask(lambda store: store.events(wanted or EventFilter(), page)))[1]

    async def persons(self, wanted: PersonFilter | None = None, page: Page = EVERYTHING) -> list[StoredPerson]:
        """The persons that `wanted` lets through, in the order in which they were made. Cancellation ends the wait."""
        return (await self._arrivals.ask(lambda store: store.persons(wanted or PersonFilter(), page)))[1]

    async def groups(self, wanted: GroupFilter | None = None, page: Page = EVERYTHING) -> list[StoredGroup]:
        """The groups that `wanted` lets through, in the order in which they were made. Cancellation ends the wait."""
        return (await self._arrivals.ask(lambda store: store.groups(wanted or GroupFilter(), page)))[1]

    async def requests(self, wanted: RequestFilter | None = None, page: Page = EVERYTHING) -> list[StoredRequest]:
        """The requests that `wanted` lets through, in the order of arrival. Cancellation ends the wait."""
        return (await self._arrivals.run(lambda store: store.requests(wanted or RequestFilter(), page)))[1]

    async def conflicts(self, page: Page = EVERYTHING) -> list[Conflict]:
        """The uuids that came again with other bytes, in the order of arrival. Cancellation ends the wait."""
        return (await self._arrivals.ask(lambda store: store.conflicts(page)))[1]

    async def imports(self) -> list[StoredImport]:
        """What came of each import, by name. Cancellation ends the wait."""
        return (await self._arrivals.run(lambda store: imports(store, ImportFilter(), EVERYTHING)))[1]

    async def surveys(self) -> list[SurveyUse]:
        """How the surveys were taken. Cancellation ends the wait."""
        return await self._arrivals.ask(lambda store: store.surveys())

    async def flag_calls(self) -> list[FlagUse]:
        """How often the flags were checked. Cancellation ends the wait."""
        return await self._arrivals.ask(lambda store: store.flag_calls())

    async def organizations(self) -> int:
        """How many organizations there are. Cancellation ends the wait."""
        return await self._arrivals.run(lambda store: count_organizations(store.connection))

    async def clear(self) -> None:
        """Forget everything that arrived; organizations and all that is theirs stay.

        Cancellation ends the wait; it is forgotten all the same.
        """
        await self._arrivals.run(lambda store: store.clear())

    async def _planted(self) -> Seed:
        """The seed, once what it holds is kept; an empty one if there is none."""
        if (path := self.options.seed) is None:
            return Seed()
        now = datetime.fromtimestamp(self.options.now(), UTC)
        return await self._arrivals.run(lambda store: plant(read_seed(path), store, now))

    def _management(self) -> Management:
        waiting = waiting_handlers(self.options.resolver or DnsResolver())
        return Management(self._arrivals, waiting, Terms(self.options.now, self.options.strict))

    def _application(self, api_keys: frozenset[str], of_a_project: Callable[[str], bool | None]) -> web.Application:
        rules = Rules(Keys(api_keys, of_a_project), self.options.strict, self.options.max_body)
        known = KnownHosts([split_address(self.options.listen)[0], *self.options.hosts], "`forwarder sandbox --host`")
        application = web.Application(middlewares=[known.middleware(lambda request: request.match_info.route.resource in open_to_all)])
        service = application.add_routes(Ingestion(self._arrivals, rules, self.options.now).routes())
        alive = application.add_routes([web.get("/livez", _alive)])
        open_to_all = {route.resource for route in (*service, *alive)}
        application.add_routes(self._management().routes(served_methods(strict=self.options.strict)))
        application.add_routes(Queries(self._arrivals, self.options.now).routes())
        live = Live(self._arrivals, self.options.now)
        application.on_shutdown.append(live.close)
        application.add_routes(live.routes())
        application.add_routes(page_routes(_INDEX))
        application.add_routes(openapi_routes(strict=self.options.strict))
        return application


async def _alive(_request: web.Request) -> web.Response:
    return web.Response(text="ok\n")


async def _listen(runner: web.AppRunner, listen: str) -> str:
    host, port = split_address(listen)
    site = web.TCPSite(runner, host, port)
    try:
        await site.start()
    except OSError as error:
        raise cannot_listen("sandbox --listen", listen, error) from None
    return f"http://{join_host_port(host, runner.addresses[0][1])}"


def split_address(listen: str) -> tuple[str, int]:
    """Host and port of `host:port` or `[host]:port`. Raises `ConfigurationError` if it is neither."""
    with suppress(ValueError):
        host, port = split_host_port(listen)
        if host:
            return host, port
    raise ConfigurationError(f"{listen!r} is not an address", hint="Write it as 127.0.0.1:8322.")
