"""Batch exports on the sandbox's page in a browser, on a real sandbox: runs and their logs;
paused, backfilled, retried, terminated.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from playwright.async_api import Browser, Locator, Page, expect

from forwarder.sandbox import SandboxOptions
from tests.browser.looking import flaws, overflowing, running_over
from tests.browser.test_management_view import EVIL, ManagementInBrowser, showing
from tests.sandbox.client import batch, event
from tests.support import management as seed

pytestmark = pytest.mark.asyncio(loop_scope="session")

NOW = datetime(2026, 5, 4, 10, 20, tzinfo=UTC)
EXPORT = seed.EXPORT
OPENED = f"#tab=batch-exports&open=batch-export:{EXPORT}"
FOLDER = {"type": "Folder", "config": {"path": "shop"}}
NOWHERE = {"type": "HTTP", "config": {"url": "http://127.0.0.1:9/batch/"}}
"""Nothing listens there."""


def exporting(
    folder: Path, name: str = "Hourly", destination: Any = None, **export: Any
) -> SandboxOptions:
    """Options of a sandbox at 10:20 with one project, and one export of it, to a folder."""
    made = {
        "id": EXPORT,
        "name": name,
        "interval": "hour",
        "destination": destination or FOLDER,
        "created_at": NOW.isoformat(),
        **export,
    }
    project = {"api_key": seed.TOKEN, "name": "Shop", "batch_exports": [made]}
    path = folder / "seed.yaml"
    owner = {"email": "olga@example.com", "level": "owner"}
    path.write_text(
        yaml.safe_dump(
            {"organizations": [{"name": "Example Inc.", "members": [owner], "projects": [project]}]}
        )
    )
    root = folder / "exported"
    root.mkdir()
    return SandboxOptions(
        seed=path, export_root=root, allow_private_destinations=True, now=NOW.timestamp
    )


async def send(shown: ManagementInBrowser, *names: str) -> None:
    """Let events arrive now."""
    events = [event(event=name, timestamp=NOW.isoformat()) for name in names]
    answer = await shown.client.post("/batch/", {**batch(*events), "api_key": seed.TOKEN})
    assert answer.status == 200


async def advance(shown: ManagementInBrowser, time: str) -> None:
    """Move the sandbox's clock, and wait until everything that is due has run."""
    reply = await shown.client.post("/sandbox/clock?settle=true", {"advance": time})
    assert reply.status == 200, reply.text


def span(first: str, last: str) -> str:
    """An interval as the page writes it."""
    return f"{first}\u2013{last}"


def run(page: Page, number: int = 0) -> Locator:
    """One of the runs, the newest first."""
    return page.locator("#detail li.run").nth(number)


def state(page: Page, number: int = 0) -> Locator:
    """The state of a run."""
    return run(page, number).locator(".name > .pill")


async def test_a_run_appears_with_its_log(browser: Browser, tmp_path: Path) -> None:
    """Once the hour is over, its run appears by itself in what is open and in the list, with its
    records; its log opens and closes.
    """
    async with showing(browser, exporting(tmp_path)) as shown:
        page = await shown.open("#tab=batch-exports")
        await page.locator("tr.row", has_text="Hourly").click()
        detail = page.locator("#detail")
        await expect(detail).to_contain_text("Next run: in ")
        await expect(detail.locator("time").first).to_have_attribute(
            "title", re.compile(r"^4 May 2026.* 11:00:00")
        )
        await expect(detail).to_contain_text("None yet")
        await send(shown, "first", "second", "third")
        await advance(shown, "1h")
        await expect(state(page)).to_have_text("Completed")
        for words in (f"4 May 2026, {span('10:00', '11:00')}", "by schedule", "3 of 3"):
            await expect(run(page)).to_contain_text(words)
        await expect(detail).to_contain_text("The sandbox's clock is 1 hour ahead.")
        await expect(page.locator("tr.row", has_text="Hourly")).to_contain_text("Completed")
        log = page.get_by_role("log", name="Log of the run")
        await page.get_by_role("button", name="Log", exact=True).click()
        await expect(log.locator("li").first).to_be_visible()
        await expect(log).to_contain_text("3")
        await expect(page.get_by_role("button", name="Log", exact=True)).to_have_attribute(
            "aria-expanded", "true"
        )
        await expect(page.get_by_role("button", name="Log", exact=True)).to_be_focused()
        await page.keyboard.press("Enter")
        await expect(log).to_have_count(0)


async def test_pausing_and_unpausing(browser: Browser, tmp_path: Path) -> None:
    """One click pauses, without a question; nothing runs then; the next click lets it run, and
    what became due is made up for.
    """
    async with showing(browser, exporting(tmp_path)) as shown:
        page = await shown.open(OPENED)
        await page.locator("#detail").get_by_role("button", name="Pause").click()
        await expect(page.locator("#detail .detail-head .pill")).to_have_text("paused")
        await expect(page.locator("tr.row", has_text="Hourly")).to_contain_text("paused")
        await expect(page.locator("#said")).to_have_text("Hourly is paused.")
        await advance(shown, "1h")
        await expect(page.locator("#detail")).to_contain_text("None: the export is paused.")
        await expect(page.get_by_role("button", name="Unpause")).to_be_focused()
        await page.keyboard.press("Enter")
        await expect(state(page)).to_have_text("Completed")
        await expect(run(page)).to_contain_text(span("10:00", "11:00"))


async def test_a_backfill(browser: Browser, tmp_path: Path) -> None:
    """A small form with two times says how many runs it makes, and makes them; what is wrong is
    said there, and nothing typed is lost.
    """
    async with showing(browser, exporting(tmp_path)) as shown:
        page = await shown.open(OPENED)
        await page.get_by_role("button", name="Backfill…").click()
        first = page.get_by_label("From", exact=True)
        last = page.get_by_label("Until", exact=True)
        await expect(first).to_be_focused()
        await expect(first).to_have_value("2026-05-04T09:00")
        await expect(last).to_have_value("2026-05-04T10:00")
        await first.fill("2026-05-04T07:00")
        await expect(page.locator("#detail form")).to_contain_text(
            "3 runs, the oldest interval first."
        )
        await send(shown, "seen")  # something arrives meanwhile
        await last.fill("2026-05-06T07:00")
        await page.get_by_role("button", name="Start backfill").click()
        await expect(page.locator("#detail form .outcome")).to_contain_text("future")
        shown.visit.complaints.clear()  # the browser's own line for an answer of 400
        await expect(first).to_have_value("2026-05-04T07:00")
        await last.fill("2026-05-04T10:00")
        await page.keyboard.press("Enter")
        await expect(page.locator("#detail li.run")).to_have_count(3)
        for number, interval in enumerate(
            (span("09:00", "10:00"), span("08:00", "09:00"), span("07:00", "08:00"))
        ):
            await expect(run(page, number)).to_contain_text(interval)
            await expect(run(page, number)).to_contain_text("backfill")
            await expect(state(page, number)).to_have_text("Completed")
        await expect(page.locator("#detail form")).to_have_count(0)
        await expect(page.get_by_role("button", name="Backfill…")).to_be_focused()


async def test_a_failed_run_is_retried(browser: Browser, tmp_path: Path) -> None:
    """A run that failed says why, in what is open and in its log; Retry makes a new one of the
    same interval.
    """
    async with showing(
        browser, exporting(tmp_path, destination={"type": "Pigeon", "config": {}})
    ) as shown:
        page = await shown.open(OPENED)
        await send(shown, "seen")
        await advance(shown, "1h")
        await expect(state(page)).to_have_text("Failed")
        await expect(run(page).locator("dd.bad-text, dd .bad-text")).to_contain_text("Pigeon")
        await run(page).get_by_role("button", name="Retry").click()
        await expect(page.locator("#detail li.run")).to_have_count(2)
        await expect(run(page)).to_contain_text("retry")
        await expect(run(page)).to_contain_text(span("10:00", "11:00"))
        await expect(state(page)).to_have_text("Failed")
        await expect(page.locator("#said")).to_have_text(
            "A new run of the same interval has started."
        )


async def test_terminating_asks_first(browser: Browser, tmp_path: Path) -> None:
    """A run that waits for its next attempt says which it is, and when; it is terminated only
    after a second word.
    """
    async with showing(browser, exporting(tmp_path, destination=NOWHERE)) as shown:
        page = await shown.open(OPENED)
        await send(shown, "seen")
        await advance(shown, "40m")
        await expect(state(page)).to_have_text("FailedRetryable")
        await page.get_by_role("button", name="Terminate…").click()
        dialog = page.get_by_role("dialog", name="Terminate this run?")
        await page.keyboard.press("Escape")
        await expect(dialog).to_be_hidden()
        await expect(state(page)).to_have_text("FailedRetryable")
        await page.get_by_role("button", name="Terminate…").click()
        await dialog.get_by_role("button", name="Terminate").click()
        await expect(state(page)).to_have_text("Terminated")
        await expect(page.get_by_role("button", name="Retry")).to_be_visible()


async def test_many_runs_are_listed_bit_by_bit(browser: Browser, tmp_path: Path) -> None:
    """The newest runs are shown, older ones on request."""
    runs = [
        {
            "status": "Completed",
            "data_interval_start": f"2026-05-0{1 + hour // 24}T{hour % 24:02}:00:00Z",
        }
        for hour in range(45)
    ]
    async with showing(browser, exporting(tmp_path, paused=True, runs=runs)) as shown:
        page = await shown.open(OPENED)
        await expect(page.locator("#detail")).to_contain_text("45 runs")
        for number in (20, 40, 45):
            await expect(page.locator("#detail li.run")).to_have_count(number)
            if number < 45:
                await page.get_by_role("button", name="older").click()
        await expect(page.get_by_role("button", name="older")).to_have_count(0)


async def test_texts_of_runs_stay_text(browser: Browser, tmp_path: Path) -> None:
    """Whatever an export, a destination or an error is called is shown as text, in logs too;
    nothing of it runs or breaks the layout.
    """
    for number, text in enumerate(EVIL):
        folder = tmp_path / str(number)
        folder.mkdir()
        run_of_seed = {"status": "Failed", "latest_error": text}
        options = exporting(
            folder, text, {"type": text[:60], "config": {text[:60]: text}}, runs=[run_of_seed]
        )
        async with showing(browser, options, width=390, height=844) as shown:
            page = await shown.open(OPENED)
            await advance(shown, "1h")
            await expect(page.locator("#detail li.run")).to_have_count(2)
            await expect(state(page)).to_have_text("Failed")
            await run(page).get_by_role("button", name="Log").click()
            await expect(page.get_by_role("log").locator("li").first).to_be_visible()
            assert await overflowing(page) == 0
            assert await page.evaluate("typeof window.hacked") == "undefined"
            assert (
                await page.evaluate(
                    "document.querySelectorAll('iframe, main img, main script, main b').length"
                )
                == 0
            )


@asynccontextmanager
async def busy(browser: Browser, folder: Path, **window: Any) -> AsyncIterator[Page]:
    """An open export with a run of each kind of outcome, its form and a log."""
    statuses = ("Completed", "Failed", "TimedOut", "Cancelled", "Terminated", "ContinuedAsNew")
    runs = [
        {"status": status, "latest_error": "The bucket can't be reached.", "records_total_count": 7}
        for status in statuses
    ]
    async with showing(
        browser, exporting(folder, destination=NOWHERE, runs=runs), **window
    ) as shown:
        page = await shown.open(OPENED)
        await send(shown, "seen")
        await advance(shown, "40m")
        await expect(state(page)).to_have_text("FailedRetryable")
        await page.get_by_role("button", name="Backfill…").click()
        await run(page).get_by_role("button", name="Log").click()
        await expect(page.get_by_role("log").locator("li").first).to_be_visible()
        yield page


@pytest.mark.parametrize("width", [390, 1280])
async def test_runs_at_every_width(browser: Browser, tmp_path: Path, width: int) -> None:
    """In light and dark, on a phone and on a large screen, nothing is cut,
    and every text can be read.
    """
    async with busy(browser, tmp_path, width=width, height=844) as page:
        assert await flaws(page) == []
        assert await running_over(page, "#detail") == 0


async def test_what_runs_is_looked_at_again(browser: Browser, tmp_path: Path) -> None:
    """While a run continues, the page asks for it again and again; what is typed meanwhile stays,
    and so do focus and log.
    """
    async with busy(browser, tmp_path) as page:
        until = page.get_by_label("Until", exact=True)
        await until.fill("2026-05-04T09:30")
        for _ in range(2):
            async with page.expect_response("**/sandbox/batch-export-runs?**"):
                pass
        await expect(until).to_have_value("2026-05-04T09:30")
        await expect(until).to_be_focused()
        await expect(page.get_by_role("log").locator("li").first).to_be_visible()
