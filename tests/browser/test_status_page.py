"""The `/status` page in a browser, of a real pipeline, and of snapshots where a pipeline can't be
brought to show it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from playwright.async_api import Browser, expect

from forwarder.admin.server import AdminServer
from forwarder.core.clock import SystemClock
from forwarder.sandbox import Sandbox, SandboxOptions
from forwarder.telemetry.snapshot import Snapshot
from tests.browser.chromium import Visit, visit
from tests.browser.looking import colours, flaws
from tests.support import whole
from tests.support.snapshots import FULL, GOOD, HALTED
from tests.support.waiting import eventually
from tests.telemetry.test_readable import RELATIVE

pytestmark = pytest.mark.asyncio(loop_scope="session")


@asynccontextmanager
async def showing(
    browser: Browser, take: Callable[[], Snapshot], **window: Any
) -> AsyncIterator[Visit]:
    """The page of what `take` sees. At the end it must have complained of nothing, and asked
    no one but its server.
    """
    server = AdminServer(take)
    await server.start("127.0.0.1:0")
    try:
        async with visit(browser, **window) as visitor:
            await visitor.page.goto(f"http://{server.address}/status")
            yield visitor
            assert visitor.complaints == []
            assert visitor.hosts == {server.address}
    finally:
        await server.close()


async def test_the_flow_of_a_real_pipeline(browser: Browser) -> None:
    """Received, delivered and dead letters are there, and continue by themselves with their rates;
    the page isn't loaded again.
    """
    async with (
        Sandbox() as sandbox,
        whole.Whole(sandbox.url, SystemClock()) as forwarder,
        showing(browser, lambda: forwarder.snapshot) as visitor,
    ):
        page = visitor.page
        await page.evaluate("window.mark = 1")
        await forwarder.take([*whole.events(40), b'{"distinct_id":"nameless"}'])
        await forwarder.emptied()
        await expect(page.locator(".senders .figure")).to_contain_text("41")
        await expect(page.locator(".upstream .figure")).to_contain_text("40")
        await expect(page.locator(".end.dead .figure")).to_have_text("1")
        await expect(page.locator(".end.dead")).to_contain_text("missing_event")
        await expect(page.locator(".senders .rate")).to_have_text(re.compile(r"^[\d.]+/s$"))
        await expect(page.locator('[data-part="lanes"] tbody tr')).to_have_count(1)
        await expect(page.locator('[data-part="lanes"]')).to_contain_text("balanced")
        await expect(page.locator("header")).to_contain_text("upstream up")
        assert await page.evaluate("window.mark") == 1


async def test_a_halted_lane_says_why_and_what_to_do(browser: Browser) -> None:
    """A lane whose key the upstream doesn't know stands on top, in red, with the upstream's words
    and what a person can do.
    """
    options = SandboxOptions(api_keys=frozenset({"phc_the_only_key_there_is"}))
    async with (
        Sandbox(options) as sandbox,
        whole.Whole(
            sandbox.url, SystemClock(), upstream={"url": sandbox.url, "verify_keys": True}
        ) as forwarder,
        showing(browser, lambda: forwarder.snapshot) as visitor,
    ):
        await forwarder.take(whole.events(3))
        note = visitor.page.locator(".note.bad")
        await expect(note).to_contain_text("is halted: unknown_key")
        await expect(note).to_contain_text("What to do: check the project key")
        await expect(note).to_contain_text("3 events of this lane are buffered")
        await expect(visitor.page.locator("tr.bad").first).to_contain_text("halted: unknown_key")
        assert whole.KEY not in await visitor.page.content()


async def test_everything_is_there_without_scripts(browser: Browser) -> None:
    """With scripts off the page says the same; what it would do by script it doesn't pretend to."""
    server = AdminServer(
        lambda: replace(FULL, passthrough_requests={("/flags", 200): 120, ("/flags", 503): 3})
    )
    await server.start("127.0.0.1:0")
    context = await browser.new_context(java_script_enabled=False)
    page = await context.new_page()
    await page.goto(f"http://{server.address}/status")
    text = await page.inner_text("body")
    for words in (
        "running, ready",
        "1,230",
        "2.0 MiB of 64.0 MiB",
        "Check the project key.",
        "connection refused",
        "3 of them failed",
    ):
        assert words in text
    assert await page.locator("input").count() == 0
    await context.close()
    await server.close()


async def test_two_hundred_lanes(browser: Browser) -> None:
    """Many lanes can be searched, by label also where a name is shown; what is typed, the focus
    and the place stay while the figures continue.
    """
    looks = [0]

    def take() -> Snapshot:
        looks[0] += 1
        lanes = [
            replace(
                GOOD,
                label=f"lane-{number}",
                name="shop" if number == 199 else "",
                received={"http": 1200 + looks[0]},
                buffered=40 + looks[0],
            )
            for number in range(200)
        ]
        return replace(FULL, now=FULL.now + looks[0], lanes=(*lanes, HALTED))

    async with showing(browser, take) as visitor:
        page = visitor.page
        rows = page.locator('[data-part="lanes"] tbody tr:visible')
        await expect(rows).to_have_count(201)
        await expect(rows.first).to_contain_text(HALTED.label)
        await page.locator(".find input").press_sequentially("lane-19", delay=20)
        await expect(rows).to_have_count(11)
        shown = await rows.first.inner_text()
        await expect(rows.first).not_to_have_text(shown)
        await expect(rows).to_have_count(11)
        await page.keyboard.type("9")
        await expect(page.locator(".find input")).to_have_value("lane-199")
        await expect(rows).to_have_count(1)
        await expect(rows.first).to_contain_text("/s")


async def test_workers_come_and_go(browser: Browser) -> None:
    """A part that wasn't there before appears by itself, such as the workers'."""
    shown = [replace(FULL, workers=())]
    async with showing(browser, lambda: shown[0]) as visitor:
        await expect(visitor.page.locator('[data-part="lanes"]')).to_be_visible()
        assert await visitor.page.locator('[data-part="workers"]').count() == 0
        shown[0] = FULL
        await expect(visitor.page.locator('[data-part="workers"]')).to_contain_text(
            "it was ended by SIGKILL"
        )


async def test_a_daemon_that_is_gone(browser: Browser) -> None:
    """When no one answers any more the page says so and keeps what it knew; it continues when the
    daemon is back, with rates made anew.
    """
    server = AdminServer(lambda: FULL)
    await server.start("127.0.0.1:0")
    address = server.address
    async with visit(browser) as visitor:
        page = visitor.page
        await page.goto(f"http://{address}/status")
        await server.close()
        await expect(page.locator("#lost")).to_contain_text("Disconnected")
        await expect(page.locator("#lost time")).to_have_attribute(
            "title", "2026-01-01 01:01:05 UTC"
        )
        await expect(page.locator(".senders")).to_contain_text("1,230")
        again = replace(
            FULL,
            started_at=FULL.now + 100,
            now=FULL.now + 101,
            lanes=(replace(GOOD, received={"http": 5}),),
        )
        server = AdminServer(lambda: again)
        await server.start(address)
        await expect(page.locator("#lost")).to_have_count(0)
        await expect(page.locator(".senders .figure")).to_contain_text("5")
        assert [line for line in visitor.complaints if "net::ERR_" not in line] == []
    await server.close()


async def test_times_are_said_alike_by_both(browser: Browser) -> None:
    """A time is said in the same words by the server and by the script that keeps it up to date."""
    async with showing(browser, lambda: FULL) as visitor:
        ask = (
            "async (ages) => { const { ago } = await import('/status/ago.js'); return "
            "ages.map((age) => ago(1e12 - age * 1000, 1e12)); }"
        )
        assert await visitor.page.evaluate(ask, [age for age, _ in RELATIVE]) == [
            words for _, words in RELATIVE
        ]


async def test_words_of_the_upstream_stay_text(browser: Browser) -> None:
    """Markup in what the upstream said, in a route or in a label is shown and not obeyed, also
    when it comes with a refresh.
    """
    evil = "<img src=x onerror='window.hacked = 1'><script>window.hacked = 1</script>"
    lane = replace(HALTED, why=evil, hint=evil, label=evil)
    shown = [
        FULL,
        replace(FULL, lanes=(lane,), warnings=(evil,), http_requests={(evil, 200): 1}, workers=()),
    ]
    async with showing(browser, lambda: shown[0]) as visitor:
        await expect(visitor.page.locator("main")).to_contain_text("Check the project key.")
        shown.pop(0)
        await expect(visitor.page.locator(".note.bad")).to_contain_text(evil)
        assert await visitor.page.evaluate("typeof window.hacked") == "undefined"
        assert await visitor.page.locator("main img, main script").count() == 0


@pytest.mark.parametrize("width", [375, 768, 1600])
async def test_it_is_readable_at_every_width(browser: Browser, width: int) -> None:
    """In light and dark, on a phone and on a large screen, nothing runs over the edge, and every
    text stands out from its ground.
    """
    full = replace(FULL, passthrough_requests={("/flags", 200): 120, ("/flags", 503): 3})
    async with showing(browser, lambda: full, width=width) as visitor:
        page = visitor.page
        assert await flaws(page) == []
        assert await colours(page) > 100
        boxes = [
            await page.locator(f".{name}").bounding_box()
            for name in ("senders", "buffer", "upstream")
        ]
        places = [(box["x"], box["y"]) for box in boxes if box]
        assert places == sorted(places, key=lambda place: place[1] if width < 760 else place[0])
        assert len({place[0] if width < 760 else place[1] for place in places}) == 1


async def test_a_slow_daemon_is_asked_once_at_a_time(browser: Browser) -> None:
    """The page waits for an answer before it asks again."""
    asked = [0]
    answer = asyncio.Event()

    async def take() -> Snapshot:
        asked[0] += 1
        if asked[0] > 1:
            await answer.wait()
        return FULL

    server = AdminServer(take)
    await server.start("127.0.0.1:0")
    async with visit(browser) as visitor:
        clock = visitor.page.clock
        await clock.install()
        await visitor.page.goto(f"http://{server.address}/status")
        await clock.run_for(60_000)
        await eventually(lambda: asked[0] == 2)
        await clock.run_for(60_000)
        async with visitor.page.expect_event("requestfinished"):
            answer.set()
        assert asked[0] == 2
        await clock.run_for(2_000)
        await eventually(lambda: asked[0] == 3)
    await server.close()
