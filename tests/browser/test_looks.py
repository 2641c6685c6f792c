"""How every page and main view looks, at three widths, in light and dark; and that everyone can
use it.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.async_api import Browser

from tests.browser.comparing import check
from tests.browser.gallery import VIEWS, WIDTHS, View, opened, showing
from tests.browser.looking import overflowing, unreadable
from tests.browser.rules import source, violations

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("view", VIEWS, ids=[view.name for view in VIEWS])
async def test_it_looks_as_accepted(
    browser: Browser, tmp_path: Path, view: View, *, dark: bool
) -> None:
    """At each width the picture is the accepted one, nothing is wider than the window, every text
    can be read, and nothing complains.
    """
    async with opened(view, tmp_path) as url:
        for width in WIDTHS:
            async with showing(browser, view, url, width, dark=dark) as visitor:
                page = visitor.page
                assert await overflowing(page) == 0, width
                assert await unreadable(page) == [], width
                check(
                    f"{view.name}-{width}{'-dark' if dark else ''}",
                    await page.screenshot(full_page=not view.of_sandbox),
                )
                assert visitor.complaints == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("view", VIEWS, ids=[view.name for view in VIEWS])
async def test_pages_satisfy_the_rules_of_axe(
    browser: Browser, tmp_path: Path, view: View, *, dark: bool
) -> None:
    """No rule of axe-core is broken, on a phone and on a large screen."""
    script = source()
    async with opened(view, tmp_path) as url:
        for width in (WIDTHS[0], WIDTHS[-1]):
            async with showing(browser, view, url, width, dark=dark) as visitor:
                assert await violations(visitor.page, script) == [], width
