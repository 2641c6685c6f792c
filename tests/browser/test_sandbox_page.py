"""The sandbox's page in a browser, on a real sandbox."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from playwright.async_api import Browser, Route, expect

from forwarder.sandbox import Sandbox, SandboxOptions
from tests.browser.chromium import Visit, visit
from tests.browser.looking import box, colours, flaws, overflowing, wait_for_list
from tests.sandbox.client import KEY, UUID, SandboxClient, batch, event, talking
from tests.support import whole

pytestmark = pytest.mark.asyncio(loop_scope="session")

EVIL = [
    "<script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 1'>",
    "</td></tr></table><iframe src='javascript:window.hacked=1'></iframe>",
    "\u202egnp.exe",
    "nul\u0000bell\u0007",
    "x" * 200_000,
    "\ud83d",
    "javascript:window.hacked=1",
]


@dataclass(frozen=True, slots=True)
class SandboxInBrowser:
    """A sandbox, a sender to it, and its page in a browser."""

    client: SandboxClient
    visit: Visit

    async def open(self, hash_: str = "") -> None:
        """Go to the page, and wait until it is connected and shows what there is."""
        await self.visit.page.goto(f"{self.client.sandbox.url}/{hash_}")
        await wait_for_list(self.visit.page)

    async def focused(self) -> str:
        """What has the focus: its id, or else its text."""
        focus: str = await self.visit.page.evaluate(
            "document.activeElement.id || document.activeElement.textContent.trim().slice(0, 80)"
        )
        return focus


@asynccontextmanager
async def showing(
    browser: Browser, options: SandboxOptions | None = None, **window: Any
) -> AsyncIterator[SandboxInBrowser]:
    """A sandbox and its page, not opened yet. At the end it must have complained of nothing, and
    asked no one but the sandbox.
    """
    async with talking(options) as client, visit(browser, **window) as visitor:
        yield SandboxInBrowser(client, visitor)
        assert visitor.complaints == []
        assert visitor.hosts <= {urlsplit(client.sandbox.url).netloc}


async def figure(page: Any, name: str, value: str) -> None:
    """Wait until a tile shows a figure."""
    await expect(page.locator(f"#tile-{name} .figure")).to_have_text(value)


async def test_events_appear_as_they_arrive(browser: Browser) -> None:
    """What a forwarder delivers appears by itself: a row on top, the
    figures, and a bar in the chart.
    """
    async with showing(browser) as shown, whole.Whole(shown.client.sandbox.url) as forwarder:
        page = shown.visit.page
        await shown.open()
        await expect(page.locator(".empty")).to_contain_text("Nothing yet")
        await forwarder.take([whole.event("signed up", "anna"), whole.event("invited", "anna")])
        await expect(page.locator("tr.row")).to_have_count(2)
        await expect(page.locator("tr.row").first).to_contain_text("invited")
        await expect(page.locator("tr.row").first).to_contain_text("anna")
        await figure(page, "events", "2")
        await expect(page.locator("#chart")).to_have_attribute(
            "aria-label", re.compile("at most 2; 0 conflicts, 0 refusals")
        )
        await expect(page.locator("#chart .bars")).to_have_attribute("d", re.compile("^M"))
        assert [urlsplit(url).path for url in shown.visit.urls].count("/") == 1


async def test_it_says_that_there_is_nothing_only_once_it_knows(browser: Browser) -> None:
    """While the sandbox has not answered, the page says neither that there is nothing nor that
    nothing matches, but that it waits.
    """
    async with showing(browser) as shown:
        page = shown.visit.page
        asked = asyncio.Event()
        answer = asyncio.Event()

        async def held(route: Route) -> None:
            asked.set()
            await answer.wait()
            await route.continue_()

        await page.route("**/sandbox/live?*", held)
        await page.goto(shown.client.sandbox.url)
        for words in ("Nothing yet", "Nothing that is here matches"):
            await asyncio.wait_for(asked.wait(), 10)
            await expect(page.locator("#panel")).to_have_attribute("aria-busy", "true")
            await expect(page.locator(".empty")).to_have_text("")
            answer.set()
            await expect(page.locator(".empty")).to_contain_text(words)
            await expect(page.locator("#panel")).to_have_attribute("aria-busy", "false")
            asked.clear()
            answer.clear()
            await page.fill('[name="event"]', "none")
        answer.set()


async def test_a_view_is_in_the_address(browser: Browser) -> None:
    """What is filtered stands in the address, so someone who is sent it sees the same; going back
    takes it away.
    """
    async with showing(browser) as shown, visit(browser) as other:
        await shown.client.post(
            "/batch/",
            batch(event(event="seen"), event(event="bought", properties={"sku": "SKU-42"})),
        )
        page = shown.visit.page
        await shown.open()
        await expect(page.locator("tr.row")).to_have_count(2)
        await page.fill('[name="text"]', "sku-42")
        await expect(page.locator("tr.row")).to_have_count(1)
        assert "text=sku-42" in page.url
        await other.page.goto(page.url)
        await expect(other.page.locator("tr.row")).to_have_count(1)
        await expect(other.page.locator('[name="text"]')).to_have_value("sku-42")
        await page.click("#tab-requests")
        await expect(page.locator("tr.row")).to_have_count(0)
        await page.go_back()
        await expect(page.locator("#tab-events")).to_have_attribute("aria-selected", "true")
        await page.click('button[type="reset"]')
        await expect(page.locator("tr.row")).to_have_count(2)
        assert other.complaints == []


async def test_times_are_seen_from_now(browser: Browser) -> None:
    """A row says how long ago it came, by the sandbox's clock, and keeps saying so; the exact
    time is the element's value and title.
    """
    clock = [1_777_882_830.0]
    async with showing(browser, SandboxOptions(now=lambda: clock[0])) as shown:
        await shown.client.post("/batch/", batch(event()))
        clock[0] += 90
        await shown.open()
        time = shown.visit.page.locator("tr.row time")
        await expect(time).to_have_text("1m ago")
        await expect(time).to_have_attribute(
            "title", re.compile(r"^4 May 2026.* 08:20:30\.000 UTC$")
        )
        assert (await time.get_attribute("datetime") or "").startswith("2026-05-04T08:20:30")


async def test_live_events_are_filtered_too(browser: Browser) -> None:
    """What arrives later is listed only if the filter lets it through."""
    async with showing(browser) as shown:
        await shown.open("#distinct_id=ann")
        for name in ("bob", "ann", "carl"):
            await shown.client.post("/batch/", batch(event(distinct_id=name)))
        await figure(shown.visit.page, "events", "3")
        await expect(shown.visit.page.locator("tr.row")).to_have_count(1)


async def test_an_event_is_shown_whole(browser: Browser) -> None:
    """Its JSON as it was sent, number by number, to be copied; its person
    with properties; its groups.
    """
    raw = (
        '{"event":"bought","distinct_id":"ann","uuid":"'
        + UUID
        + '","properties":{"price":12345678901234567890.10,"price":1e2,'
        '"$set":{"email":"ann@example.com"},"$groups":{"company":"acme","club":"none"}}}'
    )
    group = event(
        event="$groupidentify",
        properties={"$group_type": "company", "$group_key": "acme", "$group_set": {"seats": 12}},
    )
    async with showing(browser) as shown:
        await shown.client.post("/batch/", batch(group))
        await shown.client.post(
            "/batch/", b'{"api_key":"%b","batch":[%b]}' % (KEY.encode(), raw.encode())
        )
        page = shown.visit.page
        await shown.visit.context.grant_permissions(["clipboard-read", "clipboard-write"])
        await shown.open()
        await page.click("tr.row >> nth=0")
        detail = page.locator("#detail")
        await expect(detail.locator("h2")).to_have_text("bought")
        await expect(detail.locator("pre.json")).to_contain_text(
            '"price": 12345678901234567890.10,\n    "price": 1e2'
        )
        await expect(detail).to_contain_text("ann@example.com")
        await expect(detail).to_contain_text("company: acme")
        await expect(detail).to_contain_text("seats")
        await expect(detail).to_contain_text("Named by the event only")
        await page.click("text=As sent")
        assert await detail.locator("pre.json").inner_text() == raw
        await page.click("text=Copy")
        await expect(detail).to_contain_text("Copied")
        assert await page.evaluate("navigator.clipboard.readText()") == raw
        assert f"open=event%3A{UUID}%3A2" in page.url
        await page.reload()
        await expect(detail.locator("h2")).to_have_text("bought")


@pytest.mark.parametrize(
    ("timestamp", "why"),
    [
        ("the day before", "the service can't read it as a time, and takes its own now instead"),
        ("2999-01-01T00:00:00Z", "it is more than 23 hours ahead of the service"),
    ],
)
async def test_it_says_why_a_time_became_now(browser: Browser, timestamp: str, why: str) -> None:
    """Beside the timestamp that was sent stands why the service took its own; not beside one that
    counts.
    """
    async with showing(browser) as shown:
        for sent in ("2025-03-01T12:00:00Z", timestamp):
            await shown.client.post("/batch/", batch(event(timestamp=sent)))
        await shown.open()
        detail = shown.visit.page.locator("#detail")
        await shown.visit.page.locator("tr.row").first.click()
        await expect(detail).to_contain_text(f'"{timestamp}": {why}')
        await shown.visit.page.keyboard.press("Escape")
        await shown.visit.page.locator("tr.row").nth(1).click()
        await expect(detail).to_contain_text("2025-03-01T12:00:00Z")
        await expect(detail).not_to_contain_text("takes its own now")


async def test_a_conflict_is_shown_byte_by_byte(browser: Browser) -> None:
    """Two events of one uuid are red in the list, and beside each other with what differs marked;
    a duplicate is no conflict.
    """
    async with showing(browser) as shown:
        page = shown.visit.page
        await shown.open()
        for total in (25, 25, 26):
            await shown.client.post(
                "/batch/", batch(event(uuid=UUID, properties={"total": total, "currency": "EUR"}))
            )
        await figure(page, "conflicts", "1")
        await expect(page.locator("tr.row.bad")).to_have_count(1)
        await expect(page.locator("tr.row", has_text="duplicate")).to_have_count(1)
        red, plain = [
            await _ground(page, selector) for selector in ("tr.row.bad td", "tr.row:not(.bad) td")
        ]
        assert red != plain
        await page.click("#tile-conflicts")
        await expect(page.locator("tr.row")).to_have_count(1)
        await page.click("tr.row")
        versions = page.locator("#detail .versions > div")
        await expect(versions).to_have_count(2)
        await expect(versions.locator("mark")).to_have_text(["25", "26"])
        assert [
            json.loads(text)["properties"]["total"]
            for text in await versions.locator("pre").all_inner_texts()
        ] == [25, 26]
        sent = json.dumps(event(uuid=UUID, properties={"total": 25, "currency": "EUR"}))
        place = sent.index("25,") + 1
        await expect(page.locator("#detail")).to_contain_text(
            f"differ from byte {place} on ({len(sent)} and {len(sent)} bytes)"
        )
        await expect(page.locator("#chart")).to_have_attribute(
            "aria-label", re.compile("1 conflict, 0 refusals")
        )
        await expect(page.locator("#chart .marks")).to_have_attribute("d", re.compile("^M"))


@pytest.mark.parametrize("width", [390, 768, 1280])
@pytest.mark.parametrize(
    "last",
    [{"total": 26}, {}, {"total": 25, "coupon": "SUMMER"}],
    ids=["changed", "removed", "added"],
)
async def test_a_conflict_shows_where_it_is(
    browser: Browser, width: int, last: dict[str, Any]
) -> None:
    """Far into a large event, what differs is in sight in both versions, also where one of them
    has nothing there.
    """
    async with showing(browser, width=width) as shown:
        page = shown.visit.page
        items = {f"item {number}": "Trail runner" for number in range(200)}
        for properties in ({**items, "total": 25}, {**items, **last}):
            await shown.client.post("/batch/", batch(event(uuid=UUID, properties=properties)))
        await shown.open("#problems=1")
        await page.click("tr.row.bad")
        places = page.locator("#detail [data-difference]")
        await expect(places).to_have_count(2)
        for place in await places.all():
            seen = """(place) => {
              const { top, bottom } = place.getBoundingClientRect();
              return [place.closest("pre"), document.querySelector("#detail")].every((part) => {
                const box = part.getBoundingClientRect();
                return top >= box.top && bottom <= box.bottom;
              });
            }"""
            assert await place.evaluate(seen)


async def _ground(page: Any, selector: str) -> str:
    colour: str = await page.locator(selector).first.evaluate(
        "(element) => getComputedStyle(element).backgroundColor"
    )
    return colour


async def test_requests_one_by_one(browser: Browser) -> None:
    """Each request with its answer, size and encoding; a refusal in red with its reason; what of a
    request was not ingested, and why.
    """
    async with showing(browser) as shown:
        page = shown.visit.page
        await shown.client.post(
            "/batch/", batch(event(), event(event="", properties={"lost": True}))
        )
        await shown.client.post("/batch/", b"{not json")
        await shown.open("#tab=requests")
        rows = page.locator("tr.row")
        await expect(rows).to_have_count(2)
        for words in ("/batch/", "400", "plain", "9 B", "not JSON"):
            await expect(rows.first).to_contain_text(words)
        await expect(page.locator("tr.row.bad")).to_have_count(2)
        await figure(page, "refused", "1")
        await figure(page, "not_ingested", "1")
        await rows.nth(1).click()
        detail = page.locator("#detail")
        await expect(detail).to_contain_text("1 event not ingested")
        await expect(detail).to_contain_text("Event 2: no_name")
        await expect(detail).to_contain_text('"lost": true')
        await detail.get_by_role("button", name="seen").click()
        await expect(detail.locator("h2")).to_have_text("seen")


async def test_persons_and_groups(browser: Browser) -> None:
    """Both have lists of their own, and each opens with what is known of it; new
    ones come by themselves.
    """
    async with showing(browser) as shown:
        page = shown.visit.page
        await shown.open("#tab=persons")
        await shown.client.post("/batch/", batch(event(properties={"$set": {"plan": "pro"}})))
        await expect(page.locator("tr.row")).to_contain_text("plan: pro")
        await page.click("tr.row")
        await expect(page.locator("#detail")).to_contain_text("1 distinct id")
        await expect(page.locator("#detail")).to_contain_text("1 event")
        await page.keyboard.press("Escape")
        group = {"$group_type": "company", "$group_key": "acme", "$group_set": {"seats": 12}}
        await shown.client.post("/batch/", batch(event(event="$groupidentify", properties=group)))
        await shown.client.post(
            "/batch/", batch(*[event(properties={"$groups": {"company": "acme"}})] * 60)
        )
        await page.click("#tab-groups")
        await page.click("tr.row")
        await expect(page.locator("#detail h2")).to_have_text("acme")
        await expect(page.locator("#detail")).to_contain_text("seats")
        await expect(page.locator("#detail")).to_contain_text("60 events")
        await expect(page.locator("#detail")).to_contain_text("10 more")


async def test_everything_by_keyboard(browser: Browser) -> None:
    """`/` leads to the filter, j and k through rows, Enter opens, Esc closes and leads back; Tab
    reaches every control, visibly.
    """
    async with showing(browser) as shown:
        page = shown.visit.page
        await shown.client.post(
            "/batch/", batch(*[event(event=f"e{number}") for number in range(5)])
        )
        await shown.open()
        await expect(page.locator("tr.row")).to_have_count(5)
        await page.keyboard.press("/")
        assert await page.evaluate("document.activeElement.name") == "text"
        await page.keyboard.press("Escape")
        for key, name in (
            ("j", "e4"),
            ("j", "e3"),
            ("ArrowDown", "e2"),
            ("k", "e3"),
            ("End", "e0"),
            ("Home", "e4"),
        ):
            await page.keyboard.press(key)
            assert name in await shown.focused()
        await page.keyboard.press("Enter")
        await expect(page.locator("#detail h2")).to_have_text("e4")
        assert await shown.focused() == "detail"
        await page.keyboard.press("Escape")
        await expect(page.locator("#detail")).to_be_hidden()
        assert "e4" in await shown.focused()
        await page.keyboard.press("p")
        await expect(page.locator("#state")).to_have_text("paused")
        await _tab_through(page)


async def _tab_through(page: Any) -> None:
    await page.evaluate("document.activeElement.blur(); getSelection().removeAllRanges()")
    reached: set[str] = set()
    for _ in range(40):
        await page.keyboard.press("Tab")
        focus = await page.evaluate(
            "(() => { const it = document.activeElement, seen = getComputedStyle(it).outlineStyle "
            "!== 'none'; "
            "return [it.id || it.name || it.type || it.tagName, seen || it === document.body] })()"
        )
        assert focus[1], f"nobody sees that {focus[0]} has the focus"
        reached.add(focus[0])
    tiles = {
        f"tile-{name}"
        for name in (
            "requests",
            "events",
            "duplicates",
            "conflicts",
            "not_ingested",
            "refused",
            "persons",
            "groups",
        )
    }
    wanted = tiles | {
        "pause",
        "clear",
        "text",
        "event",
        "distinct_id",
        "api_key",
        "problems",
        "reset",
        "tab-events",
        "TR",
    }
    assert wanted - reached == set()


async def test_whatever_is_sent_stays_text(browser: Browser) -> None:
    """Markup, scripts, signs that hide or turn text, huge strings are shown as what they are,
    wherever they come; nothing of it runs.
    """
    async with showing(browser) as shown:
        page = shown.visit.page
        for evil in EVIL:
            short = evil[:90]
            person = event(
                event=evil,
                distinct_id=short,
                properties={short: evil, "$set": {short: evil}, "$groups": {"c": short}},
            )
            group = event(
                event="$groupidentify",
                properties={"$group_type": "c", "$group_key": short, "$group_set": {short: evil}},
            )
            await shown.client.post(
                "/batch/", batch(person, group, event(event="", properties={"why": evil}))
            )
            for other in ("guest", f"other {short}", "ann"):
                merge = {"$anon_distinct_id": other, "$set": {"at": evil}}
                await shown.client.post(
                    "/batch/",
                    batch(event(event="$identify", distinct_id=short, properties=merge)),
                )
        await shown.client.post(
            "/batch/?x=<script>window.hacked=1</script>",
            b"<script>window.hacked=1</script>",
            User_Agent="<b>bold</b>",
        )
        for tab in ("events", "requests", "persons", "groups", "warnings"):
            await shown.open(f"#tab={tab}")
            await expect(page.locator("tr.row").first).to_be_visible()
            for number in range(min(9, await page.locator("tr.row").count())):
                await page.locator("tr.row").nth(number).click()
                await expect(page.locator("#detail h2")).to_be_visible()
                await page.keyboard.press("Escape")
        assert await page.evaluate("typeof window.hacked") == "undefined"
        assert (
            await page.evaluate(
                "document.querySelectorAll('iframe, main img, main script, main b').length"
            )
            == 0
        )
        await shown.open()
        await expect(page.locator("#panel")).to_contain_text(EVIL[0])
        text = await page.locator("#panel").inner_text()
        assert "⟨U+202E⟩gnp.exe" in text
        assert "nul␀bell␇" in text
        assert not re.search("[\u0000\u0007\u202e]", text)
        assert await overflowing(page) == 0


async def test_a_burst_leaves_the_page_responsive(browser: Browser) -> None:
    """While 10,000 events arrive at once the page keeps drawing, keeps a bounded number of rows,
    and says how many it skipped.
    """
    async with showing(browser) as shown:
        page = shown.visit.page
        await shown.open()
        await page.evaluate(
            "window.longest = 0; let last = performance.now();"
            "(function frame(now) { window.longest = Math.max(longest, now - last); last = now; "
            "requestAnimationFrame(frame); })(last)"
        )
        for part in range(20):
            await shown.client.post(
                "/batch/", batch(*[event(event=f"e{part}-{number}") for number in range(500)])
            )
        await figure(page, "events", "10,000")
        await expect(page.locator("tr.row").first).to_contain_text("e19-499")
        assert await page.locator("tr.row").count() <= 500
        await expect(page.locator("#notice")).to_contain_text("skipped")
        assert await page.evaluate("longest") < 2000
        await page.fill('[name="event"]', "e7-123")
        await expect(page.locator("tr.row")).to_have_count(1)


async def test_the_page_comes_back_by_itself(browser: Browser, tmp_path: Path) -> None:
    """Without the sandbox it says that it is disconnected; once the sandbox is there again it
    resumes where it was.
    """
    database = tmp_path / "events.db"
    async with visit(browser) as visitor:
        async with talking(SandboxOptions(database=database)) as client:
            url = client.sandbox.url
            await client.post("/batch/", batch(event(event="before")))
            await visitor.page.goto(url)
            await expect(visitor.page.locator("tr.row")).to_have_count(1)
            assert visitor.complaints == []
        await expect(visitor.page.locator("#state")).to_have_text("disconnected")
        async with talking(
            SandboxOptions(listen=urlsplit(url).netloc, database=database)
        ) as client:
            await client.post("/batch/", batch(event(event="after")))
            await expect(visitor.page.locator("tr.row")).to_have_count(2)
            await expect(visitor.page.locator("#state")).to_have_text("live")
            await expect(visitor.page.locator("tr.row").first).to_contain_text("after")
        assert [line for line in visitor.complaints if "net::ERR_" not in line] == []


async def test_a_sandbox_that_forgot_is_a_new_one(browser: Browser) -> None:
    """A sandbox in memory that was restarted holds nothing, and the page shows nothing of what was
    there before.
    """
    async with visit(browser) as visitor:
        async with Sandbox() as sandbox:
            url = sandbox.url
            await visitor.page.goto(url)
            await _send(url, "before")
            await expect(visitor.page.locator("tr.row")).to_contain_text("before")
        async with Sandbox(SandboxOptions(listen=urlsplit(url).netloc)):
            await _send(url, "after")
            await expect(visitor.page.locator("tr.row")).to_contain_text("after")
            await expect(visitor.page.locator("tr.row")).to_have_count(1)


async def _send(url: str, name: str) -> None:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/batch/", json=batch(event(event=name))) as response,
    ):
        assert response.status == 200


async def test_pausing(browser: Browser) -> None:
    """While paused no row moves, and it is said how many wait; continuing shows them."""
    async with showing(browser) as shown:
        page = shown.visit.page
        await shown.client.post("/batch/", batch(event(event="first")))
        await shown.open()
        await expect(page.locator("tr.row")).to_have_count(1)
        await page.click("#pause")
        await shown.client.post("/batch/", batch(event(event="second"), event(event="third")))
        await expect(page.locator("#held")).to_have_text("2 new")
        await expect(page.locator("tr.row")).to_have_count(1)
        await page.click("#held")
        await expect(page.locator("tr.row")).to_have_count(3)
        await expect(page.locator("#state")).to_have_text("live")


async def test_clearing_asks_first(browser: Browser) -> None:
    """Everything is cleared only after a second word; the page is empty then, as is the sandbox."""
    async with showing(browser) as shown:
        page = shown.visit.page
        await shown.client.post("/batch/", batch(event()))
        await shown.open()
        await page.click("#clear")
        await page.click("#keep")
        assert (await shown.client.sandbox.summary()).events == 1
        await page.click("#clear")
        await page.click("#delete")
        await expect(page.locator("tr.row")).to_have_count(0)
        await figure(page, "events", "0")
        assert (await shown.client.sandbox.summary()).requests == 0


@pytest.mark.parametrize("width", [375, 768, 1600])
async def test_it_is_readable_at_every_width(browser: Browser, width: int) -> None:
    """In light and dark, on a phone and on a large screen, nothing runs over the edge, and every
    text stands out from its ground.
    """
    async with showing(browser, width=width, height=800) as shown:
        page = shown.visit.page
        await shown.client.post(
            "/batch/",
            batch(event(uuid=UUID, properties={"$set": {"plan": "pro"}, "text": "word " * 50})),
        )
        await shown.client.post("/batch/", batch(event(uuid=UUID), event(event="")))
        await shown.client.post("/batch/", b"{not json")
        for view in ("#", "#tab=requests", "#tab=persons", "#problems=1"):
            await shown.open(view)
            await expect(page.locator("tr.row").first).to_be_visible()
            assert await flaws(page) == []
            assert await colours(page) > 100
        await page.click("tr.row")
        await expect(page.locator("#detail mark").first).to_be_visible()
        assert await flaws(page) == []
        panel = await box(page, "#detail")
        listing = await box(page, ".listing")
        assert (
            panel["width"] == width
            if width < 1100
            else panel["x"] >= listing["x"] + listing["width"]
        )


async def test_two_pages_at_once(browser: Browser) -> None:
    """Pages don't know of each other: each has its filter, and both are reported."""
    async with showing(browser) as shown, visit(browser) as other:
        await shown.open("#event=a")
        await other.page.goto(f"{shown.client.sandbox.url}/#event=b")
        await wait_for_list(other.page)
        await asyncio.gather(
            *[shown.client.post("/batch/", batch(event(event=name))) for name in "aabbb"]
        )
        await expect(shown.visit.page.locator("tr.row")).to_have_count(2)
        await expect(other.page.locator("tr.row")).to_have_count(3)
