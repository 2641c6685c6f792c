"""The documents' site, as `make docs` has built it: it asks no one else for anything, its search
finds, and nothing is cut on a phone.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Browser, Locator, expect
from playwright.async_api import TimeoutError as PlaywrightTimeout

from tests.browser.chromium import Visit, visit
from tests.guides.test_search import FIRST, QUESTIONS
from tests.support.repository import ROOT

SITE = ROOT / "build" / "site"
PAGES = sorted(path.relative_to(SITE).as_posix() for path in SITE.rglob("*.html"))
ASKED = (
    "stop autocapture",
    "disk full",
    "move from US to EU",
    "did my event arrive?",
    "rotate project key",
    "two replicas kubernetes",
    "expose to internet",
    "upgrade without losing events",
    "sampling",
    "delete a person",
    "corporate proxy",
    "Windows",
    "hot reload",
    "GDPR erasure request",
    "ad blocker",
    "copy of all events to S3",
    "port already in use",
    "zero downtime restart",
    "OOM killed",
    "throttling",
    "save money",
)
"""Questions that the site's search answers, too: it needs all of the words in one section."""


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    """The address of a server of the built files."""
    assert PAGES, "make docs builds the site"
    command = [
        sys.executable,
        "-u",
        "-m",
        "http.server",
        "--bind",
        "127.0.0.1",
        "--directory",
        str(SITE),
        "0",
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        assert server.stdout is not None
        yield "http://127.0.0.1:" + server.stdout.readline().split(" port ")[1].split()[0]
        server.terminate()


@pytest.mark.asyncio(loop_scope="session")
async def test_pages_are_whole_on_a_phone(browser: Browser, site: str) -> None:
    """No page is wider than a window of 390 pixels, writes an error to the console, or asks
    another host for anything.
    """
    async with visit(browser, width=390) as visitor:
        for page in PAGES:
            await visitor.page.goto(f"{site}/{page}")
            assert await visitor.page.evaluate("document.documentElement.scrollWidth") <= 390, page
        assert visitor.complaints == []
        assert visitor.hosts == {site.removeprefix("http://")}


@pytest.mark.asyncio(loop_scope="session")
async def test_the_search_finds_a_setting(browser: Browser, site: str) -> None:
    """A word of a page leads to that page, without a server that searches."""
    async with visit(browser) as visitor:
        field = await _search(visitor, site)
        await field.press_sequentially("halted lanes")
        await expect(visitor.page.get_by_role("option", name="Halted lanes").first).to_be_visible()


@pytest.mark.asyncio(loop_scope="session")
async def test_the_search_finds_the_page_of_a_question(browser: Browser, site: str) -> None:
    """In its first three results, in the words of those who ask."""
    results = {}
    async with visit(browser) as visitor:
        field = await _search(visitor, site)
        options = visitor.page.get_by_role("option")
        for words in ASKED:
            await field.fill("")
            await expect(options).to_have_count(0)
            await field.fill(words)
            await expect(options.first).to_be_visible()
            links = await options.evaluate_all("all => all.map(each => each.closest('a').href)")
            results[words] = {Path(urlsplit(link).path).stem for link in links[:FIRST]}
    assert {words: pages for words, pages in results.items() if not pages & QUESTIONS[words]} == {}


async def _search(visitor: Visit, site: str) -> Locator:
    """The open search of the first page."""
    await visitor.page.goto(f"{site}/index.html")
    field = visitor.page.get_by_role("combobox", name="Search")
    async with asyncio.timeout(60):
        # the page's script may not listen to the key yet, and would follow other letters
        while not await field.is_visible():
            await visitor.page.keyboard.press("Control+k")
            with contextlib.suppress(PlaywrightTimeout):
                await field.wait_for(timeout=1000)
    return field


def test_no_page_refers_to_another_host() -> None:
    """No file of the site loads a script, style, font or picture from elsewhere, whatever the
    reader does.
    """
    for page in PAGES:
        text = Path(SITE, page).read_text("utf-8")
        assert 'src="http' not in text, page
        assert '<link rel="stylesheet" href="http' not in text, page
        assert "fonts.g" not in text, page
