"""posthog-js in a browser by a path of the site itself, through nginx and Caddy as
docs/how-to/first-party.md configures them.
"""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from forwarder.sandbox.flags.remote_config import common_settings
from tests.sdks import conftest
from tests.sdks.flagged import FLAG, Flagged
from tests.sdks.installing import folder
from tests.sdks.proxies import PREFIX, PROXIES, proxy, require
from tests.sdks.rig import KEY, Chain, chain
from tests.support.waiting import eventually, tick

RECORDING = 64_000_000
"""Bytes of the largest one."""
HELD = 24_000_000
"""Bytes by which forwarder may grow while it passes one on: far less than the recording."""
UI = "https://us.example.com"
PAGE = f"""<!doctype html>
<title>Tea shop</title>
<link rel="icon" href="data:,">
<script src="{PREFIX}/static/array.js"></script>
<script>
  window.sent = []
  posthog.init('{KEY}', {{
    api_host: '{PREFIX}',
    ui_host: '{UI}',
    opt_out_useragent_filter: true, // a browser without a window counts as a robot otherwise
    request_queue_config: {{ flush_interval_ms: 250 }},
    before_send: (event) => {{
      if (event.event !== '$snapshot') window.sent.push(event.uuid)
      return event
    }},
    loaded: () => {{
      for (let n = 0; n < 20; n += 1) posthog.capture('tea looked at', {{ n, text: 'Zoë 茶碗 😀' }})
    }},
  }})
</script>
<h1>Tea</h1>
<button id="buy" onclick="this.textContent = 'Bought'">Buy</button>
"""

pytestmark = pytest.mark.timeout(300)
every_proxy = pytest.mark.parametrize("name", PROXIES)


class FirstPartyService(Flagged):
    """A service with a flag, the SDK's scripts, and recording switched on."""

    max_body = RECORDING + 1

    def __init__(self, database: Path) -> None:
        super().__init__(database)
        self.asked: list[tuple[str, str, str]] = []
        """Method, path and `X-Forwarded-For` of each request."""
        self.recorded: list[bytes] = []

    def _application(self) -> web.Application:
        application = super()._application()
        application.middlewares.append(self._note)
        return application

    @web.middleware
    async def _note(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.asked.append(
            (request.method, request.path, request.headers.get("X-Forwarded-For", ""))
        )
        if request.path.startswith("/static/"):
            script = folder("js") / "node_modules/posthog-js/dist" / Path(request.path).name
            return web.Response(body=script.read_bytes(), content_type="text/javascript")
        if request.path == f"/array/{KEY}/config.js":
            settings = {
                **common_settings(KEY),
                "hasFeatureFlags": True,
                "sessionRecording": {"endpoint": "/s/", "recorderVersion": "v2"},
            }
            config = json.dumps({KEY: {"config": settings, "siteApps": []}})
            return web.Response(
                text=f"window._POSTHOG_REMOTE_CONFIG = {config}",
                content_type="application/javascript",
            )
        answer: web.StreamResponse = await handler(request)
        if request.path.startswith("/s") and answer.status == 200:
            self.recorded.append(await request.read())
        return answer


@dataclass
class Site:
    """A shop whose path leads to forwarder."""

    url: str
    tried: Chain
    upstream: FirstPartyService


@asynccontextmanager
async def shop(name: str, place: Path) -> AsyncIterator[Site]:
    """The shop behind a proxy, with all that is behind that. Skips where the
    proxy isn't on this machine.
    """
    require(name)
    root = place / "site"
    root.mkdir()
    (root / "page.html").write_text(PAGE, "utf-8")
    upstream = FirstPartyService(place / "sandbox.sqlite")
    settings = {
        "FORWARDER_SOURCES__HTTP__PATH_PREFIX": PREFIX,
        "FORWARDER_SOURCES__HTTP__TRUSTED_PROXIES": "127.0.0.1",
    }
    # a machine that is busy
    slow = {
        "FORWARDER_PASSTHROUGH__CONNECT_TIMEOUT": "10s",
        "FORWARDER_PASSTHROUGH__FLAGS_TIMEOUT": "20s",
    }
    async with (
        chain(place / "sandbox.sqlite", upstream, **settings, **slow) as tried,
        proxy(name, place / name, root, tried.host.removeprefix("http://")) as url,
    ):
        yield Site(url, tried, upstream)


@every_proxy
async def test_a_page(name: str, tmp_path: Path) -> None:
    """Scripts, configuration, flags, events and a recording come by the site's own address,
    without a preflight or a complaint.
    """
    conftest.ready("js")
    # The other SDKs need no browser.
    from tests.browser.chromium import chromium, visit  # noqa: PLC0415

    async with shop(name, tmp_path) as site, chromium() as browser, visit(browser) as visitor:
        page = visitor.page
        methods: set[str] = set()
        visitor.context.on("request", lambda request: methods.add(request.method))
        await page.goto(f"{site.url}/page.html")
        await page.wait_for_function("window.posthog?.isFeatureEnabled?.(" + json.dumps(FLAG) + ")")
        await page.wait_for_function("window.posthog.sessionRecordingStarted()")
        await page.click("#buy")
        await eventually(
            lambda: site.upstream.recorded, explain=lambda: (visitor.urls, visitor.said)
        )
        sent: list[str] = await page.evaluate("window.sent")
        assert len(sent) >= 20
        async with asyncio.timeout(60):
            while not set(sent) <= {event.uuid for event in await site.upstream.sandbox.events()}:
                await tick()
        assert await page.evaluate("posthog.requestRouter.uiHost") == UI
        assert (visitor.hosts, visitor.complaints) == ({site.url.removeprefix("http://")}, [])
        assert methods == {"GET", "POST"}
        asked = {path for _, path, _ in site.upstream.asked}
        assert {"/static/array.js", f"/array/{KEY}/config.js", "/flags/", "/s/"} <= asked
        assert not any(PREFIX in path for path in asked)
        snapshot = await site.tried.emptied()
        assert {path for path, code in snapshot.http_requests if code == 200} <= {"/e", "/i/v0/e"}
        assert all(
            code == 200 for _, code in (*snapshot.http_requests, *snapshot.passthrough_requests)
        )


@every_proxy
async def test_the_largest_recording(name: str, tmp_path: Path) -> None:
    """64 MB go through to the sandbox, and forwarder doesn't hold them; a body with events is 413
    past 20 MB as without a proxy.
    """
    async with shop(name, tmp_path) as site, aiohttp.ClientSession() as client:
        head = b'{"api_key":"%b","data":"' % KEY.encode()
        end = b'"}'
        body = head + b"x" * (RECORDING - len(head) - len(end)) + end
        before = peak(site)
        async with client.post(f"{site.url}{PREFIX}/s/", data=io.BytesIO(body)) as answer:
            assert answer.status == 200, await answer.text()
        assert peak(site) - before < HELD
        assert [len(recorded) for recorded in site.upstream.recorded] == [RECORDING]
        async with client.post(
            f"{site.url}{PREFIX}/e/", data=io.BytesIO(b"x" * 20_000_001)
        ) as answer:
            assert answer.status == 413


@every_proxy
async def test_the_visitors_address(name: str, tmp_path: Path) -> None:
    """The proxy says who the visitor is, and the service gets it; a path that only begins like
    the prefix is the site's own.
    """
    visitor = aiohttp.TCPConnector(local_addr=("127.0.0.5", 0))
    async with shop(name, tmp_path) as site, aiohttp.ClientSession(connector=visitor) as client:
        async with client.post(
            f"{site.url}{PREFIX}/flags/?v=2", json={"api_key": KEY, "distinct_id": "ann"}
        ) as answer:
            assert answer.status == 200
        assert site.upstream.asked[-1] == ("POST", "/flags/", "127.0.0.5, 127.0.0.1")
        async with client.get(f"{site.url}{PREFIX}X/e/") as answer:
            assert (answer.status, "Via" in answer.headers) == (404, False)
        assert (await site.tried.snapshot()).http_requests == {}


def peak(site: Site) -> int:
    """The most memory that forwarder has had, in bytes."""
    status = Path(f"/proc/{site.tried.command.process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024
