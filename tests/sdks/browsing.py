"""A shop's page with posthog-js in a browser, served from an address of its own: so forwarder is
another origin to it, as in real life.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from aiohttp import web

from tests.sdks.installing import folder
from tests.sdks.rig import Chain
from tests.support.waiting import tick

if TYPE_CHECKING:
    from playwright.async_api import Page

_SDK: Final = Path("node_modules/posthog-js/dist/array.js")
_NAMES: Final = "Object.keys(localStorage).filter((name) => name.startsWith('journal '))"
_NOTED: Final = f"{_NAMES}.length"
_JOURNAL: Final = f"{_NAMES}.map((name) => localStorage.getItem(name))"
_PATIENCE: Final = 25.0
"""Seconds in which a page's events have arrived: several times what it takes."""


async def _sdk(_request: web.Request) -> web.FileResponse:
    return web.FileResponse(folder("js") / _SDK)


@asynccontextmanager
async def shop(
    pages: str = "js",
    script: str = "/array.js",
    sdk: Callable[[web.Request], Awaitable[web.FileResponse]] = _sdk,
) -> AsyncIterator[str]:
    """Serve the pages of a folder of programs, and SDKs at the path `script`; the address."""
    application = web.Application()
    application.router.add_get(script, sdk)
    application.router.add_static("/", folder(pages))
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def visit_shop(
    tried: Chain, key: str, count: int, mode: str
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Open the page, click, wait until everything arrived, leave, and wait for the rest; its
    journal, and what the browser noted.

    In the modes of beacons the page is left at once, with everything still in the SDK's queue.
    """
    # The other SDKs need no browser.
    from tests.browser.chromium import chromium, visit  # noqa: PLC0415

    async with shop() as address, chromium() as browser, visit(browser) as visitor:
        page = visitor.page
        query = urlencode({"host": tried.host, "key": key, "count": count, "mode": mode})
        await page.goto(f"{address}/page.html?{query}")
        await page.wait_for_function("window.done")
        await page.click("#buy")
        if not mode.startswith("beacon"):
            await _arrived(page, tried)
        await page.click("#leave")
        await page.wait_for_url("**/left.html")
        journal = await _arrived(page, tried)
        notes = {
            "complaints": visitor.complaints,
            "hosts": visitor.hosts,
            "urls": visitor.urls,
            "own": address.removeprefix("http://"),
        }
    return journal, notes


async def _arrived(page: Page, tried: Chain) -> list[dict[str, Any]]:
    """The journal, once the sandbox holds as many events, or after a while: then what is missing
    will be seen.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_PATIENCE):
            while (await tried.service.sandbox.summary()).events < await page.evaluate(_NOTED):
                await tick()
    return [json.loads(line) for line in await page.evaluate(_JOURNAL)]
