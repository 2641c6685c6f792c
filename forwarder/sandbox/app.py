"""The sandbox as a whole: one application on one database, started and stopped together.

Start order: database, seed, batch exports, application, socket. Stop order: the socket
accepts no more connections, runs of batch exports stop, requests in progress are
answered, the database closes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from forwarder.contract.endpoints import ENDPOINTS, Endpoint
from forwarder.core.error_text import cannot_listen
from forwarder.core.errors import ConfigurationError
from forwarder.core.host_port import join_host_port, split_host_port
from forwarder.core.proposals import proposed
from forwarder.pages.hosts import KnownHosts
from forwarder.sandbox.exports import batch_exports
from forwarder.sandbox.exports.jobs import DestinationPolicy, ExportJob, Progress
from forwarder.sandbox.exports.scheduler import ExportScheduler
from forwarder.sandbox.exports.shipping import export_records
from forwarder.sandbox.flags.places import Locate, Places
from forwarder.sandbox.ingest.recording import IngestPolicy
from forwarder.sandbox.ingest.validation import ProjectKeys
from forwarder.sandbox.manage import domains, members, projects
from forwarder.sandbox.manage.call import Handler
from forwarder.sandbox.manage.dns import DnsResolver, Resolver
from forwarder.sandbox.manage.endpoints import ManagementEndpoints
from forwarder.sandbox.manage.projects import count_organizations, project_exists
from forwarder.sandbox.openapi import routes as openapi_routes
from forwarder.sandbox.protocol.clock import SandboxClock
from forwarder.sandbox.seed_entries import Seed
from forwarder.sandbox.seed_file import read_seed
from forwarder.sandbox.seeding import apply_seed
from forwarder.sandbox.store.aggregates import (
    FlagUse,
    StoredImport,
    SurveyUse,
    flag_calls,
    imports,
    surveys,
)
from forwarder.sandbox.store.effects import StoredGroup
from forwarder.sandbox.store.persons import StoredPerson
from forwarder.sandbox.store.stored_records import (
    EventFilter,
    GroupFilter,
    ImportFilter,
    ListingPage,
    PersonFilter,
    RequestFilter,
    SandboxSummary,
    StoredConflict,
    StoredEvent,
    StoredRequest,
)
from forwarder.sandbox.store.thread import StoreThread
from forwarder.sandbox.web.clock import ClockEndpoints, stored_offset
from forwarder.sandbox.web.export_endpoints import ExportEndpoints
from forwarder.sandbox.web.faults import FaultEndpoints, Faults
from forwarder.sandbox.web.flag_endpoints import FlagEndpoints
from forwarder.sandbox.web.live import LiveEndpoints
from forwarder.sandbox.web.management_view import MANAGEMENT_LISTINGS
from forwarder.sandbox.web.page import routes as page_routes
from forwarder.sandbox.web.queries import QueryEndpoints
from forwarder.sandbox.web.service import (
    POST_HANDLERS,
    SCRIPT_HANDLERS,
    ServiceEndpoints,
    get_handlers,
    served_methods,
)
from forwarder.sandbox.web.waiting import WaitingEndpoint

MAX_BODY: Final = 20_000_000
"""Bytes; "the whole request body must be smaller than 20 MB" (interface document, Limits 1)."""
GRACE: Final = 5.0
"""Seconds that requests in progress have at the end."""
EVERYTHING: Final = ListingPage(limit=None)
HANDLERS: Final[Mapping[Endpoint[Any, Any], Handler]] = {
    **domains.HANDLERS,
    **members.HANDLERS,
    **projects.HANDLERS,
    **batch_exports.HANDLERS,
}
"""The handler of each management endpoint; `domains.async_handlers` has the others."""


@dataclass(frozen=True, slots=True)
class SandboxOptions:
    """Options of a sandbox."""

    listen: str = "127.0.0.1:0"
    """`host:port`; port 0 is any free one."""
    hosts: frozenset[str] = frozenset()
    """Further host names for all endpoints; the service's own endpoints accept
    any name (`forwarder.pages.hosts`).
    """
    database: Path | None = None
    """A file that keeps everything; None: in memory."""
    api_keys: frozenset[str] = frozenset()
    """The project keys that exist; empty: every well-formed key."""
    seed: Path | None = None
    """A seed file (`seed_file`); it changes nothing that exists already."""
    strict: bool = False
    """Answer as the real service does, instead of by the contract."""
    max_body: int = MAX_BODY
    """A body stays below this many bytes, on the wire and decompressed."""
    now: Callable[[], float] = time.time
    """Wall-clock time in seconds; what `/sandbox/clock` moves is added to it."""
    export_root: Path | None = None
    """The folder that batch exports to folders write below; None: they can't."""
    allow_private_destinations: bool = False
    """Let batch exports write to private, loopback and link-local addresses."""
    geoip: Path | None = None
    """A database in MaxMind's format, for the places of clients; None: flags know no places."""
    resolver: Resolver | None = None
    """Looks up the challenges of domains; None: the DNS."""


class Sandbox:
    """A running sandbox: `async with Sandbox(SandboxOptions()) as sandbox: sandbox.url`.

    Entering raises `ConfigurationError` if the address, the database or the seed can't be
    used. Leaving answers requests in progress (up to 5 seconds) and closes everything,
    also if it is cancelled.
    """

    def __init__(self, options: SandboxOptions | None = None) -> None:
        self.options = options or SandboxOptions()
        self.clock = SandboxClock(self.options.now)
        self.url = ""
        """Where it listens, once entered: `http://host:port`, without a slash at the end."""
        self._locate: Locate = lambda _address: {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Sandbox:
        async with AsyncExitStack() as stack:
            if self.options.geoip is not None:
                places = Places(self.options.geoip)
                stack.callback(places.close)
                self._locate = places.properties
            self._thread = StoreThread(self.options.database)
            stack.push_async_callback(self._thread.close)
            self.clock.restore(await self._thread.run(stored_offset))
            self._scheduler = ExportScheduler(self._thread, self.clock, self._export)
            seed = await self._seeded()
            of_a_project = await self._thread.run(
                lambda store: partial(project_exists, store.connection)
            )
            await self._scheduler.start()
            stack.push_async_callback(self._scheduler.close)
            runner = web.AppRunner(
                self._application(self.options.api_keys | seed.api_keys, of_a_project),
                access_log=None,
                logger=_LOG,
                auto_decompress=False,
                max_line_size=65536,
                max_field_size=32768,
                shutdown_timeout=GRACE,
                # `http.answer_early` lingers, and stops when the connection ends.
                lingering_time=0,
            )
            stack.push_async_callback(runner.cleanup)
            await runner.setup()
            self.url = await _listen(runner, self.options.listen)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    async def summary(self) -> SandboxSummary:
        """Counts of everything that is stored. Cancellation ends the wait."""
        return await self._thread.ask(lambda store: store.summary())

    async def events(
        self, wanted: EventFilter | None = None, page: ListingPage = EVERYTHING
    ) -> list[StoredEvent]:
        """The events that match `wanted`, in the order of arrival. Cancellation ends the wait."""
        _, events = await self._thread.ask(
            lambda store: store.events(wanted or EventFilter(), page)
        )
        return events

    async def persons(
        self, wanted: PersonFilter | None = None, page: ListingPage = EVERYTHING
    ) -> list[StoredPerson]:
        """The persons that match `wanted`, in the order of creation. Cancellation ends the wait."""
        _, persons = await self._thread.ask(
            lambda store: store.persons(wanted or PersonFilter(), page)
        )
        return persons

    async def groups(
        self, wanted: GroupFilter | None = None, page: ListingPage = EVERYTHING
    ) -> list[StoredGroup]:
        """The groups that match `wanted`, in the order of creation. Cancellation ends the wait."""
        _, groups = await self._thread.ask(
            lambda store: store.groups(wanted or GroupFilter(), page)
        )
        return groups

    async def requests(
        self, wanted: RequestFilter | None = None, page: ListingPage = EVERYTHING
    ) -> list[StoredRequest]:
        """The requests that match `wanted`, in the order of arrival. Cancellation ends the wait."""
        return (
            await self._thread.run(lambda store: store.requests(wanted or RequestFilter(), page))
        )[1]

    async def conflicts(self, page: ListingPage = EVERYTHING) -> list[StoredConflict]:
        """The uuids that arrived again with other bytes, in the order of arrival. Cancellation
        ends the wait.
        """
        return (await self._thread.ask(lambda store: store.conflicts(page)))[1]

    async def imports(self) -> list[StoredImport]:
        """The result of each import, by name. Cancellation ends the wait."""
        return (await self._thread.run(lambda store: imports(store, ImportFilter(), EVERYTHING)))[1]

    async def surveys(self) -> list[SurveyUse]:
        """Use of the surveys. Cancellation ends the wait."""
        return await self._thread.ask(surveys)

    async def flag_calls(self) -> list[FlagUse]:
        """Use of the flags. Cancellation ends the wait."""
        return await self._thread.ask(flag_calls)

    async def organizations(self) -> int:
        """How many organizations there are. Cancellation ends the wait."""
        return await self._thread.run(lambda store: count_organizations(store.connection))

    async def clear(self) -> None:
        """Delete everything that arrived; organizations and their resources stay.

        Cancellation ends the wait, not the deletion.
        """
        await self._thread.run(lambda store: store.clear())

    async def _export(self, job: ExportJob, progress: Progress) -> None:
        places = DestinationPolicy(
            self.options.export_root, self.options.allow_private_destinations
        )
        await export_records(job, self._thread, places, progress)

    async def _seeded(self) -> Seed:
        """The seed, once it is applied; an empty one without `options.seed`."""
        if (path := self.options.seed) is None:
            return Seed()
        return await self._thread.run(
            lambda store: apply_seed(read_seed(path), store, self.clock.now())
        )

    def _application(
        self, api_keys: frozenset[str], of_a_project: Callable[[str], bool | None]
    ) -> web.Application:
        """Every endpoint: the service's, the management API's, then those that show what the
        sandbox holds.
        """
        thread = self._thread
        now = self.clock
        strict = self.options.strict
        policy = IngestPolicy(
            ProjectKeys(api_keys, of_a_project), strict, self.options.max_body, locate=self._locate
        )
        resolver = self.options.resolver or DnsResolver()
        asynchronous = {
            **domains.async_handlers(resolver),
            **batch_exports.async_handlers(self._scheduler),
        }
        live = LiveEndpoints(thread, now)
        waiting = WaitingEndpoint(thread)
        known = KnownHosts(
            [split_address(self.options.listen)[0], *self.options.hosts],
            f"`{proposed('sandbox --host')}`",
        )
        service = ServiceEndpoints(thread, policy, now)
        faults = FaultEndpoints(Faults(), service)
        check_host = known.middleware(
            lambda request: request.match_info.route.resource in open_to_all
        )
        application = web.Application(middlewares=[check_host, faults.middleware()])
        open_to_all = {
            route.resource
            for route in application.add_routes([*service.routes(), web.get("/livez", _alive)])
        }
        management = ManagementEndpoints(thread, HANDLERS, asynchronous, now, strict=strict)
        application.add_routes(management.routes(served_methods(strict=strict)))
        application.add_routes(QueryEndpoints(thread, now).routes())
        application.add_routes(FlagEndpoints(thread, policy, now).routes())
        application.add_routes(ClockEndpoints(thread, self.clock, self._scheduler.settle).routes())
        application.add_routes(ExportEndpoints(thread, self.clock, self._scheduler).routes())
        application.on_shutdown.append(lambda _application: self._scheduler.close())
        for part in (live, waiting, faults):
            application.add_routes(part.routes())
            application.on_shutdown.append(part.close)
        application.add_routes(page_routes(_INDEX))
        application.add_routes(openapi_routes(strict=strict))
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
    """Host and port of `host:port` or `[host]:port`. Raises `ConfigurationError` if it
    is neither.
    """
    with suppress(ValueError):
        host, port = split_host_port(listen)
        if host:
            return host, port
    raise ConfigurationError(f"{listen!r} is not an address", hint="Write it as 127.0.0.1:8322.")


class _WithoutQuotes(logging.Filter):
    """Removes the exception of a request that can't be parsed: aiohttp quotes the line, which can
    be an Authorization header with a key.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Keep every record."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError):
            record.msg = "a request could not be read as HTTP"
            record.args = ()
            record.exc_info = None
        return True


_LOG: Final = logging.getLogger(__name__)
"""The logger of aiohttp."""
_LOG.addFilter(_WithoutQuotes())

_INDEX: Final = "\n".join(
    [
        "This is forwarder's sandbox: an analytics service in small.",
        "",
        *(f"POST   {path}/" for path in POST_HANDLERS),
        *(f"GET    {path}" for path in (*get_handlers(strict=False), *SCRIPT_HANDLERS)),
        *(f"{endpoint.method:<6} {endpoint.path}" for endpoint in ENDPOINTS),
        (
            "GET    /sandbox/events     event distinct_id uuid api_key since until historical "
            "request import arrivals person"
        ),
        "                           group_type group_key feature survey_id q order limit offset",
        "GET    /sandbox/requests   path status api_key order limit offset",
        "GET    /sandbox/conflicts  order limit offset",
        "GET    /sandbox/persons    api_key distinct_id person order limit offset",
        "GET    /sandbox/persons/{id}  where each property comes from, merges, groups, warnings",
        "GET    /sandbox/groups     api_key group_type group_key order limit offset",
        "GET    /sandbox/warnings   type person distinct_id uuid api_key order limit offset",
        "GET    /sandbox/surveys    api_key limit offset",
        "GET    /sandbox/flag-calls api_key limit offset",
        "GET    /sandbox/flags      id api_key project organization text limit offset",
        "PATCH  /sandbox/flags      id: active, rollout_percentage of a flag",
        (
            "*      /sandbox/flags/{key}  api_key: GET, PUT and DELETE a flag, in the service's "
            "form; /sandbox/cohorts/{id} a cohort"
        ),
        "GET    /sandbox/cohorts    api_key limit offset",
        "PUT    /sandbox/group-types  api_key: the names of the types of groups, from index 0 on",
        (
            "GET    /sandbox/evaluations  api_key, flag or person, distinct_id groups "
            "person_properties group_properties: who gets what"
        ),
        "GET    /sandbox/imports    import api_key order limit offset",
        "GET    /sandbox/import-events  import api_key after limit: times and uuids, page by page",
        *(
            f"GET    /sandbox/{name:<14} {' '.join(listed.parameters)} order limit offset"
            for name, listed in MANAGEMENT_LISTINGS.items()
        ),
        "GET    /sandbox/summary",
        (
            "GET    /sandbox/live       event distinct_id api_key text problems: what arrives, as "
            "server-sent events"
        ),
        "GET    /sandbox/rates      seconds: events, conflicts and refusals by second",
        (
            "GET    /sandbox/wait       count timeout, and the filters of events: answers once "
            "they are there"
        ),
        (
            "POST   /sandbox/faults     status reset delay, times seconds, path when retry_after "
            "body: makes requests fail"
        ),
        "GET    /sandbox/faults     what is left of them",
        "DELETE /sandbox/faults     removes them",
        "DELETE /sandbox/events     forgets everything that arrived",
        "GET    /sandbox/clock      the sandbox's time",
        "POST   /sandbox/clock      advance (1h, or seconds) or now, settle: moves it forward",
        "GET    /sandbox/batch-export-runs  batch_export status trigger order limit offset",
        "GET    /sandbox/batch-export-runs/{id}/logs",
        "POST   /sandbox/batch-export-runs/{id}/retry, terminate",
        "POST   /sandbox/batch-exports/{id}/pause, unpause, backfill: without a personal key",
        "*      /api/organizations, /api/environments: the management API, with a personal key",
        "GET    /openapi.json",
        "GET    /livez",
        "",
    ]
)
