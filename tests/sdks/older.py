"""Client versions that are still in use, all at once through one forwarder: what became of each
one's events.

A run has three parts. In the first everything works. In the second nothing listens upstream for 20
s, and pages are loaded meanwhile, so that no flags and no remote configuration answer. In the
third forwarder seems full to each client, 503 with Retry-After, for some seconds from its first
request on (whenever that comes: on a busy machine some begin late), so that the SDKs repeat what
they have. Between SDKs and forwarder stands an `AnswerRecorder`, which knows what was answered 200:
only that has to arrive.

Clocks of clients that say what time they think it is are an hour ahead.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlencode

import aiohttp
from aiohttp import web

from forwarder.sandbox.ingest.decoding import ReceivedRequest, decode
from forwarder.sandbox.protocol.http import RequestRejected
from forwarder.sandbox.store.stored_records import SandboxSummary, StoredEvent
from forwarder.telemetry.snapshot import Snapshot
from tests.sdks.browsing import shop
from tests.sdks.installing import folder
from tests.sdks.rig import KEY, LIMIT, Chain, SdkSandbox, asked, chain
from tests.support.waiting import pause, tick

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

PARTS: Final = 3
OUTAGE: Final = 20.0
"""Seconds in which nothing listens upstream."""
FULL: Final = 4.0
"""Seconds in which forwarder seems full to a client: few enough for SDKs that give up soon."""
AHEAD: Final = 3600
_PATIENCE: Final = 60.0
"""Seconds after which what an SDK still has not sent is not waited for."""
_GIVE_UP: Final = frozenset(
    {"rs-0.3", "java-1.2", "node-3.6", "python-3.7", "python-6.9", "android-3.23"}
)
_EVENT_PATHS: Final = re.compile(r"/+(batch|capture|e|engage|track|i/v0/e|i/v1/analytics/events)/?")
_HOP_BY_HOP: Final = frozenset(
    {"host", "connection", "transfer-encoding", "content-length", "keep-alive"}
)


@dataclass(frozen=True, slots=True)
class OlderSdk:
    """A version of an SDK."""

    name: str
    sdk: str
    """The folder in which it is installed."""
    command: tuple[str, ...] = ()
    """How its program is started from there; a page in a browser if empty."""
    package: str = ""
    ahead: int = 0
    """Seconds by which its clock is wrong."""
    count: int = 60
    """Events in each part."""

    @property
    def gives_up(self) -> bool:
        """Whether it doesn't repeat what was refused (Android's deletes it at the first 503), or
        not for as long as it is here.
        """
        return self.name in _GIVE_UP

    @property
    def in_browser(self) -> bool:
        """Whether it runs in a page."""
        return not self.command

    @property
    def marks(self) -> set[str]:
        """What marks its events, one each."""
        return self.marks_until(PARTS)

    def marks_until(self, last: int) -> set[str]:
        """The same of its parts up to this one."""
        return {
            f"{self.name}:{part}:{n}:" for part in range(1, last + 1) for n in range(self.count)
        }


def _page(
    version: str, package: str = "posthog-js", sdk: str = "older-js", ahead: int = AHEAD
) -> OlderSdk:
    name = f"{package.removeprefix('posthog-')}-{version}"
    return OlderSdk(name, sdk, package=f"{package}-{version}", ahead=ahead, count=20)


def _node(version: str) -> OlderSdk:
    package = f"posthog-node-{version}"
    return OlderSdk(
        f"node-{version}",
        "older-js",
        ("node", "node.cjs", "--sdk", package, "--ahead", str(AHEAD)),
        ahead=AHEAD,
    )


def _python(version: str) -> OlderSdk:
    return OlderSdk(
        f"python-{version}", "older-python", (f"venv-{version}/bin/python", "program.py")
    )


_JAVA: Final = ("java", "-XX:TieredStopAtLevel=1", "-cp", "classes:lib/*", "Program", "--sdk")
CLIENTS: Final = [
    *map(_page, ("1.20", "1.57", "1.100", "1.200")),
    _page("newest", sdk="js"),
    _page("2.5", "posthog-js-lite"),
    _node("3.6"),
    _node("4.18"),
    _python("3.7"),
    _python("6.9"),
    OlderSdk("go-1.2", "older-go", ("./program",)),
    OlderSdk("rs-0.3", "rust", ("bin/older",)),
    OlderSdk("rs-0.30", "rust", ("bin/newest",)),
    OlderSdk("rs-0.30-v1", "rust", ("bin/newest-v1",)),
    OlderSdk("java-1.2", "older-java", (*_JAVA, "java")),
    OlderSdk("android-3.23", "older-java", (*_JAVA, "android")),
]


@dataclass(frozen=True, slots=True)
class OlderSdksRun:
    """What came of all clients."""

    answered: frozenset[str]
    """Marks of the events in requests that were answered 200."""
    delays: Mapping[str, float]
    """Seconds from the 503 that an event was answered first to its 200, by mark."""
    rejected: list[str]
    """Requests with events that got neither 200 nor the 503 of the third part."""
    events: dict[str, list[StoredEvent]]
    """What the sandbox holds, by mark."""
    persons: dict[str, dict[str, Any]]
    """Properties of each client's person, by its distinct_id."""
    summary: SandboxSummary
    snapshot: Snapshot


@dataclass(slots=True)
class AnswerRecorder:
    """Stands before forwarder, passes everything on, and keeps what was answered
    to requests with events.
    """

    upstream: str
    client: aiohttp.ClientSession
    filling: bool = False
    """Whether requests with events get 503, of each client for `FULL` seconds."""
    answered: set[str] = field(default_factory=set)
    refused: dict[str, float] = field(default_factory=dict)
    """When an event was answered 503 first, by mark."""
    delays: dict[str, float] = field(default_factory=dict)
    rejected: list[str] = field(default_factory=list)
    _full_since: dict[str, float] = field(default_factory=dict)
    """When forwarder began to seem full, by client."""

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """Listen; the address."""
        application = web.Application(client_max_size=64_000_000)
        application.router.add_route("*", "/{rest:.*}", self._pass)
        runner = web.AppRunner(
            application, access_log=None, auto_decompress=False, shutdown_timeout=0.1
        )
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()

    async def _pass(self, request: web.Request) -> web.Response:
        body = await request.read()
        has_events = request.method == "POST" and _EVENT_PATHS.fullmatch(request.path) is not None
        if has_events and self.filling and self._is_full(marks := marks_in(request, body)):
            now = asyncio.get_running_loop().time()
            self.refused = dict.fromkeys(marks, now) | self.refused
            cors = {
                "Access-Control-Allow-Origin": request.headers.get("Origin", "*"),
                "Access-Control-Allow-Credentials": "true",
            }
            return web.Response(status=503, text="full", headers={"Retry-After": "1", **cors})
        headers = {
            name: value
            for name, value in request.headers.items()
            if name.lower() not in _HOP_BY_HOP
        }
        async with self.client.request(
            request.method, self.upstream + request.raw_path, data=body, headers=headers
        ) as answer:
            text = await answer.read()
            answer_headers = {
                name: value
                for name, value in answer.headers.items()
                if name.lower() not in _HOP_BY_HOP
            }
            if has_events and answer.status in (200, 204):
                self._accepted(marks_in(request, body))
            elif has_events:
                self.rejected.append(
                    f"{request.method} {request.raw_path[:200]} {answer.status} {text[:200]!r}"
                )
            return web.Response(status=answer.status, body=text, headers=answer_headers)

    def _is_full(self, marks: set[str]) -> bool:
        """Whether forwarder seems full to the client of these marks; requests without any are of
        one client.
        """
        client = min(marks, default="").partition(":")[0]
        now = asyncio.get_running_loop().time()
        return now - self._full_since.setdefault(client, now) < FULL

    def _accepted(self, marks: set[str]) -> None:
        now = asyncio.get_running_loop().time()
        self.delays |= {
            mark: now - self.refused[mark] for mark in marks - self.answered if mark in self.refused
        }
        self.answered |= marks


def marks_in(request: web.Request, body: bytes) -> set[str]:
    """The marks of the events in a request, read by the sandbox's decoder, which shares nothing
    with forwarder's.
    """
    headers = {name.lower(): value for name, value in request.headers.items()}
    try:
        text = decode(
            ReceivedRequest(re.sub("^/+", "/", request.path), request.query_string, headers, body),
            64_000_000,
        ).text
    except RequestRejected:
        # not UTF-8: what older SDKs make of characters beyond the basic plane, in base64
        text = base64.b64decode(
            unquote(body.decode()).removeprefix("data=").partition("&")[0]
        ).decode(errors="replace")
    return set(re.findall(r'"mark": ?"([^"]+)"', text))


async def run(clients: list[OlderSdk], database: Path) -> OlderSdksRun:
    """Run all clients through the three parts."""
    service = SdkSandbox(database)
    async with AsyncExitStack() as stack:
        tried = await stack.enter_async_context(chain(database, service))
        session = await stack.enter_async_context(aiohttp.ClientSession(auto_decompress=False))
        recorder = AnswerRecorder(tried.host, session)
        address = await stack.enter_async_context(recorder.listening())
        players = await _players(stack, clients, address)
        await _part(players, 1)
        await service.stop()
        await asyncio.gather(_part(players, 2), pause(OUTAGE))
        await service.start()
        await _all_sent(recorder, *(client.marks_until(PARTS - 1) for client in clients))
        recorder.filling = True
        await _part(players, PARTS)
        await _all_sent(recorder, *(client.marks for client in clients if not client.gives_up))
        await asyncio.gather(*(player.end() for player in players))
        snapshot = await tried.emptied()
        events, persons = await _held(tried, clients)
        summary = await service.sandbox.summary()
    return OlderSdksRun(
        frozenset(recorder.answered),
        recorder.delays,
        recorder.rejected,
        events,
        persons,
        summary,
        snapshot,
    )


async def _all_sent(recorder: AnswerRecorder, *marks: set[str]) -> None:
    """Wait until the events with these marks were answered 200, or for a while: what is missing
    then will be seen.
    """
    wanted = set().union(*marks)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_PATIENCE):
            while not wanted <= recorder.answered:
                await tick()


async def _held(
    tried: Chain, clients: list[OlderSdk]
) -> tuple[dict[str, list[StoredEvent]], dict[str, dict[str, Any]]]:
    events: dict[str, list[StoredEvent]] = {}
    for event in await tried.service.sandbox.events():
        mark = json.loads(event.properties).get("mark")
        if mark is not None:
            events.setdefault(mark, []).append(event)
    persons = {}
    async with aiohttp.ClientSession() as session:
        for name in (f"user-{client.name}" for client in clients):
            reply = await asked(
                session,
                tried.service.url,
                f"persons?{urlencode({'api_key': KEY, 'distinct_id': name})}",
            )
            people = reply["results"]
            persons[name] = people[0]["properties"] if people else {}
    return events, persons


async def _part(players: list[_Program | _Pages], part: int) -> None:
    await asyncio.gather(*(player.play(part) for player in players))


async def _players(
    stack: AsyncExitStack, clients: list[OlderSdk], host: str
) -> list[_Program | _Pages]:
    players: list[_Program | _Pages] = []
    pages = [client for client in clients if client.in_browser]
    if pages:
        # The other SDKs need no browser.
        from tests.browser.chromium import chromium  # noqa: PLC0415

        browser = await stack.enter_async_context(chromium())
        address = await stack.enter_async_context(shop("older-js", "/sdk/{name}.js", _script))
        players += [_Pages(client, host, browser, address) for client in pages]
    for client in clients:
        if not client.in_browser:
            players.append(await stack.enter_async_context(_program(client, host)))
    return players


class _Program:
    """A client that is a process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def play(self, part: int) -> None:
        """Send a part's events."""
        assert self._process.stdout is not None
        if part > 1:
            self._go_on()
        async with asyncio.timeout(LIMIT):
            line = await self._process.stdout.readline()
        assert line, f"it ended: {await self._errors()}"
        assert json.loads(line) == {"part": part}

    async def end(self) -> None:
        """Let it end."""
        self._go_on()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LIMIT):
                await self._process.wait()

    def _go_on(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")

    async def _errors(self) -> str:
        assert self._process.stderr is not None
        return (await self._process.stderr.read()).decode(errors="replace")


@asynccontextmanager
async def _program(client: OlderSdk, host: str) -> AsyncIterator[_Program]:
    options = {
        "host": host,
        "key": KEY,
        "name": client.name,
        "count": str(client.count),
        "parts": str(PARTS),
    }
    arguments = [text for name, value in options.items() for text in (f"--{name}", value)]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *client.command, *arguments, cwd=folder(client.sdk), stdin=pipe, stdout=pipe, stderr=pipe
    )
    try:
        yield _Program(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


class _Pages:
    """A client in a browser: each part is a page load, and pages stay open, so that what waits in
    their queues is sent.
    """

    def __init__(self, client: OlderSdk, host: str, browser: Browser, shop: str) -> None:
        self._client = client
        self._host = host
        self._browser = browser
        self._shop = shop
        self._pages: list[Page] = []

    async def play(self, part: int) -> None:
        """Send a part's events from a page of its own."""
        page = await self._browser.new_page()
        self._pages.append(page)
        client = self._client
        query = {
            "sdk": client.package,
            "host": self._host,
            "key": KEY,
            "name": client.name,
            "part": part,
        }
        await page.goto(
            f"{self._shop}/page.html?"
            f"{urlencode({**query, 'count': client.count, 'ahead': client.ahead * 1000})}"
        )
        await page.wait_for_function("window.done")

    async def end(self) -> None:
        """Leave."""
        for page in self._pages:
            await page.close()


async def _script(request: web.Request) -> web.FileResponse:
    name = request.match_info["name"]
    if name == "posthog-js-newest":
        return web.FileResponse(folder("js") / "node_modules/posthog-js/dist/array.js")
    place = folder("older-js") / "node_modules" / name
    return web.FileResponse(place / ("lib/index.esm.js" if "lite" in name else "dist/array.js"))
