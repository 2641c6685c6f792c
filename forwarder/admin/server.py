"""The admin server: `/metrics`, `/livez`, `/readyz`, `/status`, `/explain`, `/tap`. It only reads:
snapshots, where an event is, and events as they pass (`tapping`).

Invariants: `/livez` answers as long as the loop runs, whatever else is broken; `/readyz`
fails only when nothing can be accepted (a failing upstream must not make an orchestrator
remove the buffers); no answer contains a secret; all but `/livez` answers known host
names only (`forwarder.pages.hosts`).
"""

from __future__ import annotations

import inspect
import socket
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
from aiohttp import web

from forwarder.admin.event_lookup import NotAUuid, Sighting, WantedUuid
from forwarder.admin.page import page
from forwarder.admin.page import routes as page_routes
from forwarder.admin.status import encode
from forwarder.admin.tapping import PollTap, TapEndpoint, TapPermission
from forwarder.core.error_text import cannot_listen
from forwarder.core.host_port import split_host_port
from forwarder.pages.files import HEADERS
from forwarder.pages.hosts import KnownHosts
from forwarder.sources.http.listener import BACKLOG
from forwarder.sources.http.sockets import (
    UNIX_PREFIX,
    TcpAddress,
    adopt,
    bind_tcp,
    bind_unix,
    describe,
    duplicates,
    remove_unix,
)
from forwarder.telemetry.snapshot import Snapshot

KEY: Final = "admin.listen"
"""The setting that holds its address."""

HOSTS_KEY: Final = "admin.hosts"
"""The setting that holds further names of it."""


_PAGE_HEADERS = {**HEADERS, "Cache-Control": "no-store"}

Explain: TypeAlias = Callable[[WantedUuid], Sequence[Sighting] | Awaitable[Sequence[Sighting]]]


class AdminServer:
    """Serves the snapshots of `take_snapshot`, which may be awaitable. An exception in it makes
    the answer 500.
    """

    def __init__(
        self,
        take_snapshot: Callable[[], Snapshot | Awaitable[Snapshot]],
        explain: Explain | None = None,
        tap: PollTap | None = None,
    ) -> None:
        """`explain`: where an event is, as far as the daemon has it in memory; without it
        `/explain` doesn't exist. `tap`: what a tap has collected; without it `/tap` doesn't exist.
        """
        self._take_snapshot = take_snapshot
        self._explain = explain
        self._poll_tap = tap
        self._runner: web.AppRunner | None = None
        self._listening: list[socket.socket] = []
        self._socket: tuple[Path, int] | None = None
        """The socket file and its inode: another process may have replaced it by its own."""
        self.address = ""
        """Where it listens, once it does: `host:port` or `unix:/path`."""

    async def start(
        self,
        listen: str,
        hosts: Sequence[str] = (),
        inherited: Sequence[int] = (),
        *,
        removes_file: bool = False,
        tap: TapPermission = "local",
    ) -> None:
        """Listen on `host:port` or `unix:/path`; `hosts` are further names that it answers to,
        `tap` says who may use `/tap`.

        With `inherited` descriptors it listens on those instead of the address; `removes_file`: it
        removes their socket file at its end. Raises `ConfigurationError` when it can't listen.
        Cancelled, it listens nowhere.
        """
        sockets = self._sockets(listen, inherited, removes_file=removes_file)
        known = _known(describe(sockets[0]) if inherited else listen, hosts)
        runner = web.AppRunner(
            self._application(known, tap),
            access_log=None,
            handle_signals=False,
            shutdown_timeout=1.0,
        )
        await runner.setup()
        try:
            self.address = await self._listen(runner, sockets)
        except OSError as error:
            await runner.cleanup()
            raise cannot_listen(KEY, listen, error) from error
        except BaseException:
            await runner.cleanup()
            raise
        self._runner = runner

    def keep(self) -> tuple[int, ...]:
        """Have its listening sockets outlive it, for the next program of this process: further
        descriptors of them.
        """
        self._socket = None
        return duplicates(self._listening)

    async def close(self) -> None:
        """Stop listening and close every connection. Cancellation leaves connections to the end of
        the loop.
        """
        if self._runner is not None:
            await self._runner.cleanup()
        if self._socket is not None:
            remove_unix(*self._socket)

    async def _listen(self, runner: web.AppRunner, sockets: list[socket.socket]) -> str:
        self._listening = sockets
        try:
            for listening in sockets:
                await web.SockSite(runner, listening, backlog=BACKLOG).start()
        except BaseException:
            for listening in sockets:
                listening.close()
            raise
        return describe(sockets[0])

    def _sockets(
        self, listen: str, inherited: Sequence[int], *, removes_file: bool
    ) -> list[socket.socket]:
        path = Path(listen.removeprefix(UNIX_PREFIX)) if listen.startswith(UNIX_PREFIX) else None
        if inherited:
            sockets = [adopt(descriptor, KEY) for descriptor in inherited]
        elif path is not None:
            sockets = [bind_unix(path, KEY)]
        else:
            host, port = split_host_port(listen)
            try:
                sockets = bind_tcp(TcpAddress(host or None, port))
            except OSError as error:
                raise cannot_listen(KEY, listen, error) from error
        if path is not None and (removes_file or not inherited):
            self._socket = path, path.lstat().st_ino
        return sockets

    async def _now(self) -> Snapshot:
        snapshot = self._take_snapshot()
        return await snapshot if inspect.isawaitable(snapshot) else snapshot

    def _application(
        self, known: KnownHosts | None = None, tap: TapPermission = "local"
    ) -> web.Application:
        application = web.Application(
            middlewares=() if known is None else [known.middleware(_is_livez)]
        )
        application.add_routes(
            [
                web.get("/metrics", self._metrics),
                web.get("/livez", self._livez),
                web.get("/readyz", self._readyz),
                web.get("/status", self._status),
                web.get("/explain", self._explain_event),
                web.get("/", self._root),
                *page_routes(),
            ]
        )
        if self._poll_tap is not None:
            TapEndpoint(self._poll_tap, tap).add_to(application)
        return application

    async def _metrics(self, request: web.Request) -> web.Response:
        # The first scrape loads the library.
        from forwarder.telemetry.exposition import expose  # noqa: PLC0415
        from forwarder.telemetry.metrics import metrics  # noqa: PLC0415

        body, content_type = expose(metrics(await self._now()), request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def _livez(self, _: web.Request) -> web.Response:
        return web.Response(text="live\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        snapshot = await self._now()
        if snapshot.ready:
            return web.Response(text="ready\n")
        return web.Response(
            status=503,
            text="not ready: " + ("; ".join(snapshot.not_ready) or snapshot.state) + "\n",
        )

    async def _status(self, request: web.Request) -> web.Response:
        snapshot = await self._now()
        headers = {**_PAGE_HEADERS, "Vary": "Accept"}
        if "text/html" in request.headers.get("Accept", ""):
            return web.Response(text=page(snapshot), content_type="text/html", headers=headers)
        return web.Response(body=encode(snapshot), content_type="application/json", headers=headers)

    async def _explain_event(self, request: web.Request) -> web.Response:
        """Where the event with the query's `uuid` is; `[]` if it isn't in memory."""
        if self._explain is None:
            raise web.HTTPNotFound
        try:
            wanted = WantedUuid.parse(request.query.get("uuid", ""))
        except NotAUuid as error:
            return web.Response(status=400, text=f"{error.message}\n")
        sightings = self._explain(wanted)
        found = await sightings if inspect.isawaitable(sightings) else sightings
        return web.Response(body=msgspec.json.encode(list(found)), content_type="application/json")

    async def _root(self, _: web.Request) -> web.Response:
        raise web.HTTPFound("/status")


def _known(listen: str, hosts: Sequence[str]) -> KnownHosts | None:
    """The hosts that it answers to; None: to any, for no browser reaches a Unix socket."""
    return (
        None
        if listen.startswith(UNIX_PREFIX)
        else KnownHosts([split_host_port(listen)[0], *hosts], f"`{HOSTS_KEY}`")
    )


def _is_livez(request: web.Request) -> bool:
    """Whether any host name is accepted: an orchestrator that uses an unknown name must not end
    the daemon for that.
    """
    return request.path == "/livez"
