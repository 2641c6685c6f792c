"""How every page and main view looks, at three widths, in light and dark; and that everyone can
use it.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.async_api import Browser

from tests.browser.comparing import check
from tests.browser.gallery import VIEWS, WIDTHS, View, opened, showing
from tests.browser.looking import SCHEMES, overflowing, unreadable
from tests.browser.rules import source, violations

_WRITE_AN_ID = """
async () => {
  const id = document.createElement("p");
  document.querySelector("#detail").replaceChildren(id);
  id.textContent = "0190a0a0-2222-7222-8333-444400000001";
  await new Promise(requestAnimationFrame);
  return id.textContent;
}
"""

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]


@pytest.mark.parametrize("view", VIEWS, ids=[view.name for view in VIEWS])
async def test_view_looks_as_accepted_and_breaks_no_rule(
    browser: Browser, tmp_path: Path, view: View
) -> None:
    """At each width, in light and in dark, the picture is the accepted one, nothing is wider than
    the window, every text can be read, and nothing complains; on a phone and on a large screen no
    rule of axe-core is broken.
    """
    script = source()
    async with opened(view, tmp_path) as url:
        for width in WIDTHS:
            async with showing(browser, view, url, width) as visitor:
                page = visitor.page
                for scheme in SCHEMES:
                    await page.emulate_media(color_scheme=scheme)
                    assert await overflowing(page) == 0, (width, scheme)
                    assert await unreadable(page) == [], (width, scheme)
                    check(
                        f"{view.name}-{width}{'-dark' if scheme == 'dark' else ''}",
                        await page.screenshot(full_page=not view.of_sandbox),
                    )
                assert visitor.complaints == []
                for scheme in SCHEMES if width in (WIDTHS[0], WIDTHS[-1]) else ():
                    await page.emulate_media(color_scheme=scheme)
                    assert await violations(page, script) == [], (width, scheme)


async def test_ids_stay_steady_when_a_view_is_renewed(browser: Browser, tmp_path: Path) -> None:
    """An id that the page writes again, because it looks from time to time whether what is open has
    changed, is in no picture either.
    """
    view = next(view for view in VIEWS if view.name == "sandbox-person")
    async with (
        opened(view, tmp_path) as url,
        showing(browser, view, url, WIDTHS[0]) as visitor,
    ):
        text = await visitor.page.evaluate(_WRITE_AN_ID)
        assert "0190a0a0" not in text
        assert "01900000-0000-7000-8000-000000000000" in text
