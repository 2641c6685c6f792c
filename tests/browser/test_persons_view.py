"""Persons on the sandbox's page in a browser, on a real sandbox: where everything of a person comes
from, its merges, and what the service warns about.
"""

from __future__ import annotations

from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from tests.browser.looking import flaws, running_over
from tests.browser.test_sandbox_page import SandboxInBrowser, showing
from tests.sandbox.client import batch, event

pytestmark = pytest.mark.asyncio(loop_scope="session")


def merging(distinct_id: str, other: str) -> dict[str, Any]:
    """An event that asks for a merge."""
    properties = {"$anon_distinct_id": other}
    return event(event="$identify", distinct_id=distinct_id, properties=properties)


LANDED = event(
    event="$pageview",
    distinct_id="anon-1",
    properties={"$browser": "Firefox", "utm_source": "newsletter", "$set": {"plan": "trial"}},
)
SIGNED_UP = event(
    event="signed up",
    properties={"$set": {"plan": "free"}, "$set_once": {"first": "2025", "seats": {"max": 3}}},
)
UPGRADED = event(
    event="upgraded", properties={"$set": {"plan": "pro"}, "$groups": {"company": "acme"}}
)
STORY = (
    *(LANDED, SIGNED_UP, merging("ann", "anon-1"), UPGRADED),
    *(merging("ann", "ann-tablet"), merging("bob", "anon-2")),
    *(merging("ann", "bob"), merging("ann", "guest")),
)
"""Ann was anonymous first. She and Bob are identified, so they can't be merged by `$identify`; and
nobody is merged with `guest`.
"""


async def send(shown: SandboxInBrowser, *events: dict[str, Any]) -> None:
    """Let these events arrive, one request each."""
    for one in events:
        assert (await shown.client.post("/batch/", batch(one))).status == 200


async def opened(shown: SandboxInBrowser, name: str = "ann") -> Page:
    """The page with a person open, as someone opens it."""
    await shown.open("#tab=persons")
    page = shown.visit.page
    await page.locator("tr.row", has_text=name).first.click()
    await expect(page.locator("#detail h2")).to_have_text(name)
    return page


@pytest.mark.parametrize(
    ("name", "value", "how", "source"),
    [
        ("plan", "pro", "$set by upgraded, ", "upgraded"),
        ("first", "2025", "$set_once by signed up, ", "signed up"),
        ("seats", '{"max":3}', "$set_once by signed up, ", "signed up"),
        ("$browser", "Firefox", "$set lifted from $pageview of anon-1, ", "$pageview"),
        ("$initial_browser", "Firefox", "$set_once lifted from $pageview of anon-1, ", "$pageview"),
    ],
)
async def test_each_property_says_where_it_comes_from(
    browser: Browser, name: str, value: str, how: str, source: str
) -> None:
    """Which event gave it its value, how, under which distinct id if that isn't the main one; one
    click leads to that event.
    """
    async with showing(browser) as shown:
        await send(shown, *STORY)
        page = await opened(shown)
        shown_value = page.locator(f'#detail [data-key="value:{name}"]')
        await expect(shown_value.locator("bdi").first).to_have_text(value)
        await expect(shown_value.locator(".source")).to_contain_text(how)
        await shown_value.get_by_role("button").click()
        await expect(page.locator("#detail h2")).to_have_text(source)
        await page.go_back()
        await expect(page.locator("#detail h2")).to_have_text("ann")


async def test_a_person_opens_with_ids_merges_and_groups(browser: Browser) -> None:
    """All distinct ids, the main one marked; merges in their order with what became of each, those
    that were refused among them; groups, which open.
    """
    async with showing(browser) as shown:
        group = {"$group_type": "company", "$group_key": "acme", "$group_set": {"seats": 12}}
        await send(shown, *STORY, event(event="$groupidentify", properties=group))
        page = await opened(shown)
        detail = page.locator("#detail")
        await expect(detail.locator('[data-key="ids"] li')).to_have_text(
            ["anon-1", "annmain", "ann-tablet"]
        )
        await expect(detail.get_by_role("heading", name="4 merges")).to_be_visible()
        merges = detail.locator('[data-key="merges"] li')
        for number, words in enumerate(
            (
                ("merged", "anon-1 into ann", "is no more. By $identify, "),
                ("attached", "ann-tablet into ann", "At most one of these ids had a person"),
                ("refused", "bob was not merged into ann"),
                ("refused", "guest is an id that is never merged"),
            )
        ):
            for text in words:
                await expect(merges.nth(number)).to_contain_text(text)
        groups = detail.locator('[data-key="groups"] li')
        await expect(groups).to_contain_text("last named by upgraded, ")
        await groups.get_by_role("button", name="acme").click()
        await expect(detail).to_contain_text("seats")


async def test_a_refused_merge_has_a_warning(browser: Browser) -> None:
    """The event's person shows it first, in words and with the service's name for it; the other
    person is one click away; the event has it, too.
    """
    async with showing(browser) as shown:
        await send(shown, *STORY)
        page = await opened(shown)
        warnings = page.locator("#detail .note.warn")
        await expect(warnings.get_by_role("heading")).to_have_text("2 warnings")
        refused = warnings.locator("li", has_text="cannot_merge_already_identified")
        await expect(refused).to_contain_text(
            "bob was not merged into ann: its person is identified already. Both persons stay."
        )
        await refused.get_by_role("button", name="bob").click()
        await expect(page.locator("#detail h2")).to_have_text("bob")
        await expect(page.locator("#detail .note.warn")).to_have_count(0)
        await page.go_back()
        await refused.get_by_role("button", name="$identify").click()
        await expect(page.locator("#detail h2")).to_have_text("$identify")
        await expect(page.locator("#detail .note.warn")).to_contain_text("Both persons stay.")


async def test_warnings_have_a_list(browser: Browser) -> None:
    """Every warning of the service, the newest on top, with what happened; a row opens its event;
    a distinct id filters.
    """
    async with showing(browser) as shown:
        await send(
            shown,
            *STORY,
            event(
                event="$identify", distinct_id="eve", properties={"$process_person_profile": False}
            ),
            event(distinct_id="eve", properties={"$process_person_profile": "no"}),
            event(
                event="$groupidentify",
                distinct_id="eve",
                properties={"$group_type": "club", "$group_key": "chess", "$group_set": 7},
            ),
        )
        await shown.open("#tab=warnings")
        page = shown.visit.page
        rows = page.locator("tr.row")
        await expect(rows).to_have_count(5)
        for number, words in enumerate(
            (
                "$group_set is not an object. The group club: chess stays as it was.",
                "$process_person_profile is no, neither true nor false. It counts as true.",
                "$identify with $process_person_profile false: the service drops it.",
                "guest and ann were not merged",
                "bob was not merged into ann",
            )
        ):
            await expect(rows.nth(number)).to_contain_text(words)
        await page.fill('[name="distinct_id"]', "ann")
        await expect(rows).to_have_count(2)
        await rows.nth(1).click()
        await expect(page.locator("#detail h2")).to_have_text("$identify")
        await page.locator("#detail .note.warn").get_by_role("button", name="ann").click()
        await expect(page.locator("#detail h2")).to_have_text("ann")
        await page.fill('[name="distinct_id"]', "nobody")
        await expect(page.locator(".empty")).to_have_text(
            "Nothing that is here matches the filter."
        )


async def test_an_open_person_follows_what_arrives(browser: Browser) -> None:
    """Properties, sources and merges change where they stand, and the focus stays; a person that
    is merged away is no longer there, and that is said.
    """
    async with showing(browser) as shown:
        await send(shown, SIGNED_UP)
        page = await opened(shown)
        plan = page.locator('#detail [data-key="value:plan"]')
        await expect(plan).to_contain_text("free$set by signed up")
        await expect(page.locator("#detail")).to_contain_text("1 distinct id")
        focused = page.locator('#detail [data-key="value:first"]').get_by_role("button")
        await focused.focus()
        await send(shown, UPGRADED, merging("ann", "ann-tablet"))
        await expect(plan).to_contain_text("pro$set by upgraded")
        await expect(page.locator('#detail [data-key="merges"] li')).to_have_count(1)
        await expect(page.locator("tr.row")).to_contain_text("2 ids")
        await expect(focused).to_be_focused()
        await send(shown, event(distinct_id="carl"))
        await page.locator("tr.row", has_text="carl").click()
        await expect(page.locator("#detail h2")).to_have_text("carl")
        await send(shown, merging("ann", "carl"))
        await expect(page.locator("#detail")).to_contain_text("it was merged into another one")
        await expect(page.locator("tr.row")).to_have_count(1)
        await expect(page.locator("tr.row")).to_contain_text("3 ids")
        # the person may go between two questions of the page: the second is answered 404 then
        complaints = shown.visit.complaints
        complaints[:] = [line for line in complaints if "404 (Not Found)" not in line]


async def test_persons_by_keyboard(browser: Browser) -> None:
    """`/` leads to the filter, arrows through the lists of persons, j and Enter open one; Tab
    leads through it, Enter on a source opens the event, Esc closes and leads back.
    """
    async with showing(browser) as shown:
        await send(shown, SIGNED_UP)
        await shown.open("#tab=persons")
        page = shown.visit.page
        await expect(page.locator("tr.row")).to_have_count(1)
        await page.keyboard.press("/")
        assert await page.evaluate("document.activeElement.name") == "distinct_id"
        await page.keyboard.press("Escape")
        await page.locator("#tab-persons").focus()
        for tab in ("groups", "warnings", "persons"):
            await page.keyboard.press("ArrowRight")
            await expect(page.locator(f"#tab-{tab}")).to_be_focused()
            await expect(page.locator(f"#tab-{tab}")).to_have_attribute("aria-selected", "true")
        await expect(page.locator("tr.row")).to_have_count(1)
        await page.evaluate("document.activeElement.blur()")
        await page.keyboard.press("j")
        await page.keyboard.press("Enter")
        await expect(page.locator("#detail h2")).to_have_text("ann")
        source = page.locator('#detail [data-key="value:plan"]').get_by_role("button")
        for _ in range(20):
            await page.keyboard.press("Tab")
            if await source.evaluate("(element) => element === document.activeElement"):
                break
        await expect(source).to_be_focused()
        await page.keyboard.press("Enter")
        await expect(page.locator("#detail h2")).to_have_text("signed up")
        await page.go_back()
        await expect(page.locator("#detail h2")).to_have_text("ann")
        await page.keyboard.press("Escape")
        await expect(page.locator("#detail")).to_be_hidden()
        await expect(page.locator("tr.row")).to_be_focused()


@pytest.mark.parametrize("width", [375, 1600])
async def test_persons_at_every_width(browser: Browser, width: int) -> None:
    """In light and dark, on a phone and on a large screen, nothing is cut, and every text can be
    read, with long names and values, too.
    """
    async with showing(browser, width=width, height=844) as shown:
        long = "w" * 180
        merges = [merging("ann", f"{number}{long}") for number in range(3)]
        long_one = event(event=long, properties={"$set": {long: long}, "$groups": {long: long}})
        await send(shown, *STORY, long_one, *merges)
        page = await opened(shown)
        await expect(page.locator("#detail")).to_contain_text("7 merges")
        assert await flaws(page) == []
        assert await running_over(page, "#detail") == 0
        for tab in ("groups", "warnings", "persons"):
            await shown.open(f"#tab={tab}")
            assert await flaws(page) == []
