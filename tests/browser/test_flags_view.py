"""Flags on the sandbox's page in a browser, on a real sandbox: who gets what and why, turned on
and off, rolled out to more or fewer.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from playwright.async_api import Browser, Page, expect

from tests.browser.looking import flaws, overflowing, running_over
from tests.browser.test_management_view import EVIL, ManagementInBrowser, showing
from tests.sandbox.client import batch, event
from tests.support import management as seed
from tests.support.management import seeded

pytestmark = pytest.mark.asyncio(loop_scope="session")

PRO = {"key": "plan", "type": "person", "operator": "exact", "value": ["pro", "team"]}
ACME = {"key": "email", "type": "person", "operator": "icontains", "value": "@acme.example"}
BOTH_CONDITIONS = [
    {"properties": [PRO], "rollout_percentage": 100, "variant": "test"},
    {"properties": [ACME], "rollout_percentage": 0},
]
VARIANTS = {
    "variants": [
        {"key": "control", "rollout_percentage": 50, "name": "As before"},
        {"key": "test", "rollout_percentage": 50},
    ]
}


async def put(
    shown: ManagementInBrowser,
    key: str,
    *groups: dict[str, Any],
    active: bool = True,
    **filters: Any,
) -> None:
    """Set a flag of the project."""
    body = json.dumps(
        {"key": key, "active": active, "filters": {"groups": list(groups), **filters}}
    ).encode()
    path = f"/sandbox/flags/{quote(key, safe='')}?api_key={seed.TOKEN}"
    reply = await shown.client.ask("PUT", path, body, {"Content-Type": "application/json"})
    assert reply.status in (200, 201), reply.text


async def decided(shown: ManagementInBrowser, distinct_id: str) -> dict[str, Any]:
    """What the sandbox answers an SDK."""
    reply = await shown.client.post(
        "/decide?v=3", {"api_key": seed.TOKEN, "distinct_id": distinct_id}
    )
    flags: dict[str, Any] = reply.json["featureFlags"]
    return flags


async def identify(shown: ManagementInBrowser, distinct_id: str, **properties: Any) -> None:
    """Let a person have properties."""
    one = event(event="$identify", distinct_id=distinct_id, properties={"$set": properties})
    assert (await shown.client.post("/batch/", {**batch(one), "api_key": seed.TOKEN})).status == 200


async def opened(shown: ManagementInBrowser, key: str) -> Page:
    """The page with a flag open, as someone opens it."""
    page = await shown.open("#tab=flags")
    await page.locator("tr.row", has_text=key).click()
    await expect(page.locator("#detail h2")).to_have_text(key)
    return page


async def ask_for(page: Page, distinct_id: str) -> None:
    """Ask who gets what."""
    await page.fill('#detail [name="distinct_id"]', distinct_id)
    await page.keyboard.press("Enter")
    await expect(page.locator("#detail .result")).to_contain_text(f"{distinct_id} gets")


async def test_a_flag_opens_in_words(browser: Browser, tmp_path: Path) -> None:
    """Its conditions, shares, variants and payloads, whatever operators it has; the whole
    definition below.
    """
    async with showing(browser, seeded(tmp_path)) as shown:
        await put(
            shown,
            "layout",
            *BOTH_CONDITIONS,
            multivariate=VARIANTS,
            payloads={"test": '{"colour": "green"}'},
        )
        page = await opened(shown, "layout")
        row = page.locator("tr.row", has_text="layout")
        for words in ("on", "2 conditions: control 50%, test 50%"):
            await expect(row).to_contain_text(words)
        detail = page.locator("#detail")
        await expect(detail.locator(".conditions > li").first).to_contain_text(
            "plan is pro or team"
        )
        await expect(detail.locator(".conditions > li").nth(1)).to_contain_text(
            "email contains @acme.example"
        )
        for words in (
            "2 conditions, the first that matches decides",
            "variant test",
            "As before",
            '{"colour": "green"}',
            "Shop",
        ):
            await expect(detail).to_contain_text(words)
        await expect(detail.locator("pre.json")).to_contain_text('"rollout_percentage": 100')


async def test_who_gets_what_and_why(browser: Browser, tmp_path: Path) -> None:
    """For a person: the value, the condition that matched, why the others don't, and the project's
    other flags; it is in the address.
    """
    async with showing(browser, seeded(tmp_path)) as shown:
        await put(
            shown,
            "layout",
            *BOTH_CONDITIONS,
            multivariate=VARIANTS,
            payloads={"test": '{"colour": "green"}'},
        )
        await put(shown, "everyone", {"properties": [], "rollout_percentage": 100})
        await identify(shown, "ann", plan="team")
        page = await opened(shown, "layout")
        await ask_for(page, "ann")
        result = page.locator("#detail .result")
        conditions = page.locator("#detail .conditions > li")
        await expect(result.locator(".pill")).to_have_text("test")
        await expect(result).to_contain_text('{"colour": "green"}')
        await expect(conditions.first).to_contain_text("matches")
        await expect(conditions.first).to_have_class("decides")
        await expect(conditions.nth(1)).to_contain_text("doesn't match")
        await expect(conditions.nth(1).locator(".why")).to_contain_text("email")
        await expect(page.locator("#said")).to_contain_text("layout: test")
        await expect(page.locator("#detail .values li", has_text="everyone")).to_contain_text(
            "true"
        )
        assert await page.evaluate("document.activeElement.name") == "distinct_id"
        await ask_for(page, "bob")
        await expect(result.locator(".pill")).to_have_text("false")
        await expect(page.locator(".decides")).to_have_count(0)
        await page.reload()
        await expect(result).to_contain_text("bob gets")
        await expect(page.locator('#detail [name="distinct_id"]')).to_have_value("bob")
        await page.locator("#detail .values button", has_text="everyone").click()
        await expect(page.locator("#detail h2")).to_have_text("everyone")
        await expect(result).to_contain_text("bob gets")
        await page.go_back()
        await expect(page.locator("#detail h2")).to_have_text("layout")
        await page.go_back()
        await expect(result).to_contain_text("ann gets")


async def test_a_person_opens_with_flags(browser: Browser, tmp_path: Path) -> None:
    """What a person gets of each flag of the project stands with the person, and leads to the
    flag, where it says why.
    """
    async with showing(browser, seeded(tmp_path)) as shown:
        await put(shown, "layout", *BOTH_CONDITIONS)
        await put(shown, "nobody", {"properties": [], "rollout_percentage": 0})
        await identify(shown, "ann", plan="team")
        page = await shown.open("#tab=persons")
        await page.locator("tr.row", has_text="ann").click()
        await expect(page.locator("#detail .values li", has_text="nobody")).to_contain_text("false")
        await expect(page.locator("#detail .values li", has_text="layout")).to_contain_text("true")
        await page.locator("#detail .values button", has_text="layout").click()
        await expect(page.locator("#detail .result")).to_contain_text("ann gets")
        await expect(page.locator("#detail .result")).to_contain_text("Condition 1 matches.")


async def test_properties_in_the_question_count(browser: Browser, tmp_path: Path) -> None:
    """Properties and groups of the question count above stored ones; what isn't JSON is refused in
    words, and stays to be corrected.
    """
    async with showing(browser, seeded(tmp_path)) as shown:
        await put(shown, "layout", *BOTH_CONDITIONS)
        page = await opened(shown, "layout")
        await page.get_by_text("With groups or other properties").click()
        await page.fill('#detail [name="person_properties"]', "{plan")
        await page.fill('#detail [name="distinct_id"]', "ann")
        await page.get_by_role("button", name="Show", exact=True).click()
        await expect(page.locator("#detail form .outcome:not(:empty)")).to_contain_text(
            "person_properties"
        )
        await expect(page.locator('#detail [name="person_properties"]')).to_have_value("{plan")
        shown.visit.complaints.clear()  # the browser's own line for an answer of 400
        await page.fill('#detail [name="person_properties"]', '{"plan": "pro"}')
        await page.get_by_role("button", name="Show", exact=True).click()
        await expect(page.locator("#detail .decides")).to_have_count(1)
        await expect(page.locator('#detail [name="person_properties"]')).to_have_value(
            '{"plan": "pro"}'
        )


async def test_a_deleted_flag(browser: Browser, tmp_path: Path) -> None:
    """What was deleted in the service's way is marked, and no one gets it."""
    async with showing(browser, seeded(tmp_path)) as shown:
        body = json.dumps(
            {"active": True, "deleted": True, "filters": {"groups": [{"properties": []}]}}
        ).encode()
        await shown.client.ask("PUT", f"/sandbox/flags/gone?api_key={seed.TOKEN}", body)
        page = await opened(shown, "gone")
        await expect(page.locator("#detail .detail-head .pill")).to_have_text("deleted")
        await page.fill('#detail [name="distinct_id"]', "ann")
        await page.keyboard.press("Enter")
        await expect(page.locator("#detail .result")).to_contain_text("no one gets it")


async def test_turning_off_and_on(browser: Browser, tmp_path: Path) -> None:
    """One click turns a flag off for everyone, without a question; it shows at once, in what a
    person gets too; SDKs get the flag only while it is on.
    """
    async with showing(browser, seeded(tmp_path)) as shown:
        await put(shown, "everyone", {"properties": [], "rollout_percentage": 100})
        page = await opened(shown, "everyone")
        await ask_for(page, "ann")
        await page.get_by_role("button", name="Turn off").click()
        await expect(page.locator("#detail .detail-head .pill").first).to_have_text("off")
        await expect(page.locator("tr.row", has_text="everyone")).to_contain_text("off")
        await expect(page.locator("#detail .result .pill")).to_have_text("false")
        await expect(page.locator("#said")).to_have_text("everyone is off.")
        await expect(page.get_by_role("button", name="Turn on")).to_be_focused()
        assert "everyone" not in await decided(shown, "ann")
        await page.keyboard.press("Enter")
        await expect(page.locator("#detail .result .pill")).to_have_text("true")
        assert (await decided(shown, "ann"))["everyone"] is True


async def test_changing_the_rollout(browser: Browser, tmp_path: Path) -> None:
    """Each condition's share is set by itself; a share that isn't one is not sent; one that is set
    elsewhere shows.
    """
    async with showing(browser, seeded(tmp_path)) as shown:
        await put(shown, "layout", *BOTH_CONDITIONS)
        await identify(shown, "bea", email="bea@acme.example")
        page = await opened(shown, "layout")
        share = page.get_by_label("Rollout of condition 2, percent")
        await share.fill("101")
        await page.keyboard.press("Enter")
        assert not await share.evaluate("(element) => element.validity.valid")
        assert (await decided(shown, "bea"))["layout"] is False
        await share.fill("100")
        await page.keyboard.press("Enter")
        await expect(page.locator("#said")).to_have_text("Condition 2 is rolled out to 100%.")
        await expect(share).to_have_value("100")
        assert (await decided(shown, "bea"))["layout"] is True
        await expect(page.get_by_label("Rollout of condition 1, percent")).to_have_value("100")
        await put(shown, "layout", {"properties": [], "rollout_percentage": 12.5})
        await expect(page.get_by_label("Rollout of condition 1, percent")).to_have_value("12.5")
        await expect(page.locator("tr.row", has_text="layout")).to_contain_text(
            "12.5% of all persons"
        )


async def test_what_is_typed_stays(browser: Browser, tmp_path: Path) -> None:
    """While events arrive and flags are set elsewhere, what someone is typing stays, and so does
    the focus.
    """
    async with showing(browser, seeded(tmp_path)) as shown:
        await put(shown, "layout", *BOTH_CONDITIONS)
        page = await opened(shown, "layout")
        await page.locator('#detail [name="distinct_id"]').focus()
        await page.keyboard.type("an")
        await put(shown, "layout", *BOTH_CONDITIONS, active=False)
        await expect(page.locator("#detail .detail-head .pill").first).to_have_text("off")
        await page.keyboard.type("n")
        await expect(page.locator('#detail [name="distinct_id"]')).to_have_value("ann")


async def test_a_sandbox_that_is_away_is_said(browser: Browser, tmp_path: Path) -> None:
    """A change that can't be sent says so where the button is, with what to do, and nothing shows
    as changed.
    """
    async with showing(browser, seeded(tmp_path)) as shown:
        await put(shown, "everyone", {"properties": [], "rollout_percentage": 100})
        page = await opened(shown, "everyone")
        await page.route(
            "**/sandbox/flags?id=*",
            lambda route: route.abort() if route.request.method == "PATCH" else route.continue_(),
        )
        await page.get_by_role("button", name="Turn off").click()
        await expect(
            page.get_by_role("alert").filter(has_text="Check that it is running")
        ).to_be_visible()
        await expect(page.get_by_role("button", name="Turn off")).to_be_visible()
        shown.visit.complaints.clear()


async def test_keys_of_flags_stay_text(browser: Browser, tmp_path: Path) -> None:
    """Whatever a flag, a variant, a property or a value is called is shown as text; nothing of it
    runs or breaks the layout.
    """
    async with showing(browser, seeded(tmp_path), width=390, height=844) as shown:
        for text in EVIL:
            condition = {
                "properties": [
                    {"key": text, "type": "person", "operator": "exact", "value": [text]}
                ],
                "variant": text,
            }
            variants = {"variants": [{"key": text, "name": text, "rollout_percentage": 100}]}
            await put(
                shown, text, condition, multivariate=variants, payloads={text: json.dumps(text)}
            )
        for number in range(len(EVIL)):
            page = await shown.open("#tab=flags")
            await expect(page.locator("tr.row").nth(len(EVIL) - 1)).to_be_visible()
            await page.locator("tr.row").nth(number).click()
            await ask_for(page, "<b>ann</b>")
            assert await overflowing(page) == 0
        assert await page.evaluate("typeof window.hacked") == "undefined"
        assert (
            await page.evaluate(
                "document.querySelectorAll('iframe, main img, main script, main b').length"
            )
            == 0
        )


@pytest.mark.parametrize("width", [390, 1280])
async def test_flags_at_every_width(browser: Browser, tmp_path: Path, width: int) -> None:
    """In light and dark, on a phone and on a large screen, nothing is cut,
    and every text can be read.
    """
    async with showing(browser, seeded(tmp_path), width=width, height=844) as shown:
        await put(
            shown,
            "layout",
            *BOTH_CONDITIONS,
            multivariate=VARIANTS,
            payloads={"test": '{"colour": "green"}'},
        )
        await put(shown, "everyone", {"properties": [], "rollout_percentage": 100})
        page = await opened(shown, "layout")
        await page.get_by_text("With groups or other properties").click()
        await page.fill('#detail [name="person_properties"]', '{"plan": "pro"}')
        await ask_for(page, "ann")
        assert await flaws(page) == []
        assert await running_over(page, "#detail") == 0
