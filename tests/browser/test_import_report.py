"""The report of an import in a browser: one file that shows all it has to, at any width, light and
dark, and asks for nothing else.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from forwarder.sources.imports.report import html_page
from tests.browser.chromium import visit
from tests.browser.looking import flaws
from tests.sources.imports.samples.manifests import manifest

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.parametrize("width", [375, 1280])
async def test_the_report_can_be_read(browser: Browser, tmp_path: Path, width: int) -> None:
    """Figures, a bar a day, reasons with places; the table behind the chart opens. Nothing sticks
    out, and nothing is hard to read.
    """
    path = tmp_path / "report.html"
    path.write_bytes(html_page(manifest(40)))
    async with visit(browser, width=width) as visitor:
        shown = visitor.page
        await shown.goto(path.as_uri())
        await expect(shown.locator("h1")).to_contain_text("events delivered")
        await expect(shown.locator("svg g")).to_have_count(40)
        await expect(shown.get_by_text("export/0.json.gz:17")).to_be_visible()
        await expect(shown.get_by_text("<script>alert(1)</script>")).to_be_visible()
        await shown.get_by_text("As a table").click()
        await expect(shown.locator("details tbody tr")).to_have_count(40)
        assert await flaws(shown) == []
        assert visitor.complaints == []
        assert visitor.urls == [path.as_uri()]
