"""The system's Chromium, driven without a window: where it is, how it is started, and what a page
in it said and asked for.

Nothing is downloaded: the browser is the machine's own. It resolves no name, so a page that asked
another host would get nothing, and would be found out: every request's host is written down, and
so is every warning, error and uncaught exception.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pytest
from playwright.async_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Error,
    Page,
    Request,
    async_playwright,
    expect,
)

NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
"""What the browser may be called, the first one found is taken; `CHROMIUM` in the environment
names another.
"""
LIMIT: Final = 60_000.0
"""Milliseconds that a page may take for anything: far more than it does, on a machine that is busy.
"""
FONTS: Final = Path(__file__).with_name("fonts.conf")
"""Which fonts it has: the same everywhere, whatever else is installed."""
COMPLAINTS: Final = frozenset({"warning", "error", "assert"})


def executable() -> str:
    """Where the browser is. Without one the test is skipped, saying so; on CI, where there must be
    one, it fails.
    """
    path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if path is not None:
        return path
    reason = (
        f"no Chromium on this machine: none of {', '.join(NAMES)} is on the path, and "
        "CHROMIUM names none"
    )
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """The browser, started; every process of it is gone at the end, also when cancelled. Skips or
    fails where there is none.
    """
    path = executable()
    arguments = [
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
        "--disable-component-update",
    ]
    if os.geteuid() == 0:
        # it refuses to run as root with its sandbox; the pages are our own
        arguments.append("--no-sandbox")
    expect.set_options(timeout=LIMIT)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=path, args=arguments, env={**os.environ, "FONTCONFIG_FILE": str(FONTS)}
        )
        try:
            yield browser
        finally:
            await browser.close()


@dataclass
class Visit:
    """One visitor: a page with a profile of its own, and what it said and asked
    for since it was opened.
    """

    context: BrowserContext
    page: Page
    said: list[str] = field(default_factory=list)
    """Every line of the console, and every exception that nothing caught."""
    complaints: list[str] = field(default_factory=list)
    """Those of them that are warnings, errors or exceptions."""
    hosts: set[str] = field(default_factory=set)
    """`host:port` of everything that was asked for over the network."""
    urls: list[str] = field(default_factory=list)
    """What was asked for, in order."""

    def listen(self) -> None:
        """Write down from now on."""
        self.page.set_default_timeout(LIMIT)
        self.page.on("console", self._console)
        self.page.on("pageerror", self._uncaught)
        self.context.on("request", self._request)

    def _console(self, message: ConsoleMessage) -> None:
        line = f"{message.type}: {message.text} ({message.location.get('url', '')})"
        self.said.append(line)
        if message.type in COMPLAINTS:
            self.complaints.append(line)

    def _uncaught(self, error: Error) -> None:
        self.said.append(f"uncaught: {error}")
        self.complaints.append(f"uncaught: {error}")

    def _request(self, request: Request) -> None:
        parts = urlsplit(request.url)
        self.urls.append(request.url)
        if parts.scheme not in ("data", "blob", "about"):
            self.hosts.add(parts.netloc)


@asynccontextmanager
async def visit(
    browser: Browser,
    *,
    dark: bool = False,
    width: int = 1280,
    height: int = 800,
    still: bool = True,
    scale: float = 1.0,
) -> AsyncIterator[Visit]:
    """A visitor with a window of that size who prefers dark or light, and no motion unless `still`
    is false. Closed at the end.
    """
    context = await browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if dark else "light",
        reduced_motion="reduce" if still else "no-preference",
        device_scale_factor=scale,
        locale="en-GB",
        timezone_id="UTC",
    )
    try:
        visitor = Visit(context, await context.new_page())
        visitor.listen()
        yield visitor
    finally:
        await context.close()
