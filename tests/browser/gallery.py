"""Every page and main view, opened with the content of `stages`, at the widths and in the colours
in which it is looked at.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from playwright.async_api import Browser, Page, expect

from forwarder.admin.server import AdminServer
from forwarder.sources.imports.report import html_page
from tests.browser import stages
from tests.browser.chromium import Visit, visit
from tests.browser.looking import wait_for_list

WIDTHS: Final = (390, 768, 1280)
HEIGHT: Final = 800
_UUID: Final = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_STEADY: Final = """
(uuid) => {
  const made = new RegExp(uuid, "g");
  const steady = () => {
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      const text = node.data.replace(made, \
"01900000-0000-7000-8000-000000000000").replace(/127\\.0\\.0\\.1:\\d+/g, "127.0.0.1:8322");
      if (text !== node.data) node.data = text;
    }
  };
  new MutationObserver(steady).observe(document.body, \
{ subtree: true, childList: true, characterData: true });
  steady();
  document.activeElement?.blur();
}
"""
"""What is another each time, ids that the sandbox makes up and its port, is
shown as one and the same, also after the page has looked again whether
something changed.
"""


@dataclass(frozen=True)
class View:
    """A page with something open in it."""

    name: str
    address: str = ""
    """Of a sandbox's view, what follows the `#`."""
    act: Callable[[Page], Awaitable[None]] | None = None
    """What a person does there, until it shows what it is to show."""

    @property
    def of_sandbox(self) -> bool:
        """Whether it is the sandbox's page."""
        return self.name.startswith("sandbox-")


async def _conflict(page: Page) -> None:
    await page.locator("tr.row.bad").first.click()
    await expect(page.locator("#detail mark").first).to_be_visible()


async def _problem(page: Page) -> None:
    await page.locator("tr.row.bad").first.click()
    await expect(page.locator("#detail")).to_contain_text("Headers")


async def _first(page: Page) -> None:
    await page.locator("tr.row").first.click()
    await expect(page.locator("#detail h2")).to_be_visible()
    await expect(page.locator("#detail dl").first).to_be_visible()


async def _person(page: Page) -> None:
    await page.locator("tr.row", has_text="chloe").click()
    await expect(page.locator("#detail .merges")).to_contain_text("refused")


async def _merges(page: Page) -> None:
    await _person(page)
    await page.mouse.move(0, 0)
    await page.locator("#detail .merges").evaluate(
        "(merges) => merges.scrollIntoView({ block: 'center' })"
    )


async def _flag(page: Page) -> None:
    await page.locator("tr.row", has_text="new-checkout").click()
    await page.fill('#detail [name="distinct_id"]', "bob@example.com")
    await page.get_by_role("button", name="Show", exact=True).click()
    await expect(page.locator("#detail .result")).to_contain_text("gets")


async def _runs(page: Page) -> None:
    await page.locator("tr.row", has_text="Events to a folder").click()
    await page.get_by_role("button", name="Log", exact=True).first.click()
    await expect(page.get_by_role("log").first).to_contain_text("Completed")


async def _clear(page: Page) -> None:
    await page.click("#clear")
    await expect(page.locator("#sure")).to_be_visible()


async def _table(page: Page) -> None:
    await page.get_by_text("As a table").click()


SNAPSHOTS: Final = {
    "status-busy": stages.BUSY,
    "status-troubled": stages.TROUBLED,
    "status-full": stages.FULL,
    "status-fresh": stages.FRESH,
}
REPORTS: Final = {f"report-{name}": manifest for name, manifest in stages.manifests()}
VIEWS: Final = (
    *(View(name) for name in SNAPSHOTS),
    View("sandbox-events"),
    View("sandbox-event", "", _first),
    View("sandbox-conflict", "problems=1", _conflict),
    View("sandbox-empty", "event=none"),
    View("sandbox-clear", "", _clear),
    View("sandbox-requests", "tab=requests"),
    View("sandbox-request", "tab=requests&problems=1", _problem),
    View("sandbox-person", "tab=persons", _person),
    View("sandbox-merges", "tab=persons", _merges),
    View("sandbox-warnings", "tab=warnings"),
    View("sandbox-group", "tab=groups", _first),
    View("sandbox-organization", "tab=organizations", _first),
    View("sandbox-projects", "tab=projects"),
    View("sandbox-domain", "tab=domains", _first),
    View("sandbox-flag", "tab=flags", _flag),
    View("sandbox-runs", "tab=batch-exports", _runs),
    *(View(name, "", _table if name == "report-partial" else None) for name in REPORTS),
)


@asynccontextmanager
async def opened(view: View, folder: Path) -> AsyncIterator[str]:
    """What a view is a view of, running: where it is. `folder` is for what lies on disk."""
    if view.of_sandbox:
        async with stages.shop(folder) as client:
            yield f"{client.sandbox.url}/#{view.address}"
    elif view.name in SNAPSHOTS:
        server = AdminServer(lambda: SNAPSHOTS[view.name])
        await server.start("127.0.0.1:0")
        try:
            yield f"http://{server.address}/status"
        finally:
            await server.close()
    else:
        path = folder / "report.html"
        path.write_bytes(html_page(REPORTS[view.name]))
        yield path.as_uri()


@asynccontextmanager
async def showing(
    browser: Browser, view: View, url: str, width: int, *, dark: bool = False
) -> AsyncIterator[Visit]:
    """The view in a window of that width, with nothing in it that moves or
    is another the next time.
    """
    async with visit(browser, dark=dark, width=width, height=HEIGHT) as visitor:
        page = visitor.page
        await page.clock.install(time=stages.NOW)
        await page.clock.set_fixed_time(stages.NOW)
        await page.goto(url)
        if view.of_sandbox:
            await wait_for_list(page)
        if view.act is not None:
            await view.act(page)
        await page.evaluate(_STEADY, _UUID)
        yield visitor
