"""What is managed, on the sandbox's page in a browser, on a real sandbox; and the navigation."""

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

import pytest
import yaml
from playwright.async_api import Browser, Page, Route, expect

from forwarder.sandbox import SandboxOptions
from tests.browser.chromium import LIMIT, Visit, visit
from tests.browser.looking import box, flaws, overflowing, wait_for_list
from tests.sandbox.client import SandboxClient, SandboxReply, batch, event, talking
from tests.support import management as seed
from tests.support.management import seeded

pytestmark = pytest.mark.asyncio(loop_scope="session")

TABS = {
    "organizations": ["Example Inc.", "Other Ltd."],
    "projects": ["Shop", "App", "Theirs", "no events yet", "phc_…0001"],
    "members": ["olga@example.com", "owner", "admin", "member"],
    "invites": ["nina@example.com", "pending", "admin"],
    "domains": ["example.com", "not verified", "verified.example.com"],
    "dashboards": ["Dashboard 3", "pinned", "primary"],
}
"""What each list below Management says."""
LISTS = {
    **TABS,
    "flags": ["beta", "on", "100% of all persons", "Shop"],
    "batch-exports": ["All events", "paused", "Failed", "events to S3"],
}
"""What each list of resources says."""
AREAS = {
    "Events": ("", "events"),
    "Persons": ("#tab=persons", "persons"),
    "Flags": ("#tab=flags", "flags"),
    "Exports": ("#tab=batch-exports", "batch-exports"),
    "Management": ("#tab=organizations", "organizations"),
}
"""The navigation: where each of its entries leads, and the list that is there."""
EVIL = [
    "<img src=x onerror='window.hacked = 1'>",
    "</td></tr></table><script>window.hacked = 1</script>",
    "\u202egnp.exe",
    "nul\u0007",
    "x" * 190,
]


@dataclass(frozen=True, slots=True)
class ManagementInBrowser:
    """A sandbox with two organizations, and its page in a browser."""

    client: SandboxClient
    visit: Visit

    async def open(self, hash_: str) -> Page:
        """Go to the page, and wait until it is connected and shows what there is."""
        await self.visit.page.goto(f"{self.client.sandbox.url}/{hash_}")
        await wait_for_list(self.visit.page)
        return self.visit.page

    async def call(self, method: str, path: str, **body: Any) -> SandboxReply:
        """Call the management API as the owner."""
        headers = {"Authorization": f"Bearer {seed.OWNER_KEY}", "Content-Type": "application/json"}
        return await self.client.ask(
            method, path, json.dumps(body).encode() if body else None, headers
        )


@asynccontextmanager
async def showing(
    browser: Browser, options: SandboxOptions, **window: Any
) -> AsyncIterator[ManagementInBrowser]:
    """A sandbox and its page, not opened yet. At the end it must have complained of nothing, and
    asked no one but the sandbox.
    """
    async with talking(options) as client, visit(browser, **window) as visitor:
        yield ManagementInBrowser(client, visitor)
        assert visitor.complaints == []
        assert visitor.hosts <= {urlsplit(client.sandbox.url).netloc}


@pytest.mark.parametrize("tab", TABS)
async def test_each_tab_lists_what_there_is(browser: Browser, tmp_path: Path, tab: str) -> None:
    """A tab that the address names lists its resources with their states, and is the one that is
    chosen; figures of events aren't there.
    """
    async with showing(browser, seeded(tmp_path)) as shown:
        page = await shown.open(f"#tab={tab}")
        for words in TABS[tab]:
            await expect(page.locator("tr.row", has_text=words).first).to_be_visible()
        await expect(page.locator(f"#tab-{tab}")).to_have_attribute("aria-selected", "true")
        await expect(page.locator("#to-management")).to_have_attribute("aria-current", "page")
        for other in (".overview", "#tab-events", "#clear", '[name="distinct_id"]'):
            await expect(page.locator(other)).to_be_hidden()


@pytest.mark.parametrize("width", [390, 1280])
async def test_the_navigation(browser: Browser, tmp_path: Path, width: int) -> None:
    """Its entries stand side by side and lead to their lists by keyboard, at the addresses where
    these always were, and say which one is current.
    """
    async with showing(browser, seeded(tmp_path), width=width) as shown:
        await shown.client.post("/batch/", {**batch(event()), "api_key": seed.TOKEN})
        page = await shown.open("")
        entries = page.get_by_role("navigation").get_by_role("link")
        await expect(entries).to_have_text(list(AREAS))
        for number, (name, (address, listed)) in enumerate(AREAS.items()):
            await entries.nth(number).focus()
            await page.keyboard.press("Enter")
            await expect(page.locator(f"table.rows.{listed} tr.row").first).to_be_visible()
            await expect(page.locator('nav [aria-current="page"]')).to_have_text([name])
            assert urlsplit(page.url).fragment == address.removeprefix("#")
            await expect(page.locator(f"#tab-{listed}")).to_be_visible()
            place = await box(page, f".views a >> nth={number}")
            assert 0 <= place["x"] <= place["x"] + place["width"] <= width


@pytest.mark.parametrize("tab", ["flags", "batch-exports"])
async def test_flags_and_exports_stand_beside_events(
    browser: Browser, tmp_path: Path, tab: str
) -> None:
    """Each is an area of one list under its name, with the filters of resources, and not among
    what is managed.
    """
    async with showing(browser, seeded(tmp_path)) as shown:
        page = await shown.open(f"#tab={tab}")
        for words in LISTS[tab]:
            await expect(page.locator("tr.row", has_text=words).first).to_be_visible()
        name = tab.capitalize().replace("-", " ")
        await expect(page.get_by_role("heading", name=name, exact=True)).to_be_visible()
        await expect(page.get_by_role("region", name=name, exact=True)).to_be_visible()
        await expect(page.get_by_role("tab")).to_have_count(0)
        for field in ("text", "organization", "project"):
            await expect(page.locator(f'[name="{field}"]')).to_be_visible()
        await expect(page.locator(".overview")).to_be_hidden()
        await page.get_by_role("link", name="Management").click()
        await expect(page.get_by_role("tab")).to_have_count(len(TABS))


async def test_all_areas_are_one_page(browser: Browser, tmp_path: Path) -> None:
    """The head leads from events to what is managed and back, without loading the page anew;
    going back does too.
    """
    async with showing(browser, seeded(tmp_path)) as shown:
        page = await shown.open("")
        await expect(page.locator("#tab-organizations")).to_be_hidden()
        await page.get_by_role("link", name="Management").click()
        await expect(page.locator("tr.row")).to_have_count(2)
        await page.get_by_role("tab", name="Domains").click()
        await expect(page.locator("tr.row")).to_have_count(3)
        await page.get_by_role("link", name="Events").click()
        await expect(page.locator("#tile-events")).to_be_visible()
        await page.go_back()
        await expect(page.locator("#tab-domains")).to_have_attribute("aria-selected", "true")
        assert [urlsplit(url).path for url in shown.visit.urls].count("/") == 1


async def test_a_call_shows_at_once(browser: Browser, tmp_path: Path) -> None:
    """What a call makes, changes or removes is there by itself, marked for a moment; also in what
    is open.
    """
    async with showing(browser, seeded(tmp_path)) as shown:
        page = await shown.open("#tab=domains")
        await expect(page.locator("tr.row")).to_have_count(3)
        path = f"/api/organizations/{seed.ORGANIZATION}/domains/"
        made = await shown.call("POST", path, domain="new.example.com")
        await expect(page.locator("tr.row").first).to_contain_text("new.example.com")
        await expect(page.locator("tr.row.fresh")).to_have_count(1)
        await page.locator("tr.row").first.click()
        await expect(page.locator("#detail h2")).to_have_text("new.example.com")
        await shown.call(
            "PATCH", f"{path}{made.json['id']}/", saml_entity_id="https://saml.example.com/entity"
        )
        await expect(page.locator("#detail")).to_contain_text("https://saml.example.com/entity")
        await shown.call("DELETE", f"{path}{made.json['id']}/")
        await expect(page.locator("#detail h2")).to_have_text("Not here")
        await expect(page.locator("tr.row")).to_have_count(3)


async def test_a_look_that_finds_the_same_changes_nothing(browser: Browser, tmp_path: Path) -> None:
    """While events arrive, neither rows nor what is open are made anew, so nothing flashes, moves
    or loses the focus.
    """
    async with showing(browser, seeded(tmp_path)) as shown:
        page = await shown.open(f"#tab=members&open=organization:{seed.ORGANIZATION}")
        # the first look is over
        await expect(page.locator("#detail")).to_contain_text("Domains (2)")
        await expect(page.locator("tr.row")).to_have_count(4)
        await page.evaluate(
            "window.made = [];"
            "const watch = new MutationObserver((found) => window.made.push(...found.map(({ "
            "target }) => target.id || target.tagName)));"
            "for (const id of ['panel', 'detail']) watch.observe(document.getElementById(id), { "
            "childList: true, subtree: true })"
        )
        # the last of what is asked for
        async with page.expect_request(re.compile("/sandbox/domains")) as asked:
            await shown.client.post("/batch/", {**batch(event()), "api_key": seed.UNKNOWN})
        assert await (await asked.value).response()
        await shown.call("DELETE", f"/api/organizations/{seed.ORGANIZATION}/domains/{seed.DOMAIN}/")
        await expect(page.locator("#detail")).to_contain_text("Domains (1)")
        # the one change: a figure, and a line
        assert set(await page.evaluate("window.made")) == {"detail"}


async def test_pausing_holds_lists(browser: Browser, tmp_path: Path) -> None:
    """While paused a list stays as it is; continuing shows what has happened meanwhile."""
    async with showing(browser, seeded(tmp_path)) as shown:
        page = await shown.open("#tab=domains")
        await expect(page.locator("tr.row")).to_have_count(3)
        await page.click("#pause")
        await shown.call(
            "POST", f"/api/organizations/{seed.ORGANIZATION}/domains/", domain="new.example.com"
        )
        await shown.client.post("/batch/", {**batch(event()), "api_key": seed.TOKEN})
        await expect(page.locator("#held")).to_have_text("1 new")  # the page has been told
        await expect(page.locator("tr.row")).to_have_count(3)
        await page.click("#pause")
        await expect(page.locator("tr.row")).to_have_count(4)


async def test_an_organization_opens_with_what_it_has(browser: Browser, tmp_path: Path) -> None:
    """Its members, projects, invites and domains, each with its state and to be opened, from there
    on to the next.
    """
    async with showing(browser, seeded(tmp_path)) as shown:
        page = await shown.open("#tab=organizations")
        await page.locator("tr.row", has_text="Example").click()
        detail = page.locator("#detail")
        for words in (
            "Members (3)",
            "Projects (2)",
            "Invites (1)",
            "Domains (2)",
            "mia@example.com",
            "pending",
            "not verified",
            "admin",
        ):
            await expect(detail).to_contain_text(words)
        await expect(detail).not_to_contain_text("Theirs")
        await detail.get_by_role("button", name="Shop").click()
        await expect(detail).to_contain_text("Dashboards (5)")
        await detail.get_by_role("button", name="All events").click()
        await expect(detail).to_contain_text("no such bucket")
        await expect(detail).to_contain_text("eu-central-1")
        await expect(detail).not_to_contain_text("hidden-secret")
        await detail.get_by_role("button", name="Example Inc.").click()
        await detail.get_by_role("button", name="Members (3)").click()
        await expect(page.locator("tr.row")).to_have_count(3)
        await expect(page.locator('[name="organization"]')).to_have_value(seed.ORGANIZATION)
        assert f"organization={seed.ORGANIZATION}" in page.url


@pytest.mark.parametrize(
    ("opened", "words"),
    [
        (f"project:{seed.PROJECT}", ["Settings", "timezone", "UTC", "phc_…0001", "none yet"]),
        (
            f"invite:{seed.INVITE}",
            ["nina@example.com", "pending", "olga@example.com", "the sandbox sends none"],
        ),
        (
            f"domain:{seed.DOMAIN}",
            [
                "_posthog-challenge.example.com",
                "TXT",
                f"forwarder manage domains verify {seed.DOMAIN}",
            ],
        ),
        (f"domain:{seed.VERIFIED_DOMAIN}", ["verified", " ago"]),
        ("dashboard:1", ["Dashboard 1", "primary", "olga@example.com"]),
        (f"batch-export:{seed.EXPORT}", ["1 run", "Failed", "0 of 7", seed.RUN]),
        (f"batch-export:{seed.PAUSED_EXPORT}", ["paused", "Unpause", "None: the export is paused"]),
        (f"organization:{seed.UNKNOWN}", ["Not here"]),
        ("constructor:1", ["Not here"]),
    ],
)
async def test_a_resource_opens_by_address(
    browser: Browser, tmp_path: Path, opened: str, words: list[str]
) -> None:
    """Whatever is open stands in the address, so a link shows someone else the same."""
    async with showing(browser, seeded(tmp_path)) as shown:
        page = await shown.open(f"#tab=organizations&open={opened}")
        for text in words:
            await expect(page.locator("#detail")).to_contain_text(text)


async def test_what_is_open_is_marked_in_its_list(browser: Browser, tmp_path: Path) -> None:
    """The row of what the address opens is the selected one, and Esc leads to it."""
    async with showing(browser, seeded(tmp_path)) as shown:
        page = await shown.open(f"#tab=domains&open=domain:{seed.VERIFIED_DOMAIN}")
        await expect(page.locator('tr[aria-selected="true"]')).to_contain_text(
            "verified.example.com"
        )
        await page.keyboard.press("Escape")
        await expect(page.locator("tr.row", has_text="verified.example.com")).to_be_focused()
        await expect(page.locator('tr[aria-selected="true"]')).to_have_count(0)


async def test_a_member_with_keys(browser: Browser, tmp_path: Path) -> None:
    """A member opens with what their personal keys are good for, and never with a key."""
    async with showing(browser, seeded(tmp_path)) as shown:
        page = await shown.open("#tab=members&text=olga")
        await expect(page.locator("tr.row")).to_have_count(1)
        await page.click("tr.row")
        await expect(page.locator("#detail")).to_contain_text("organization_member:write")
        await expect(page.locator("#detail")).to_contain_text("15 (owner)")
        await page.get_by_role("button", name="Copy user uuid").wait_for()
        assert "phx_" not in await page.content()


async def test_filters_of_resources(browser: Browser, tmp_path: Path) -> None:
    """An organization, a project and a text choose what is listed; Reset takes all of it away."""
    async with showing(browser, seeded(tmp_path)) as shown:
        page = await shown.open("#tab=dashboards")
        await expect(page.locator("tr.row")).to_have_count(7)
        await page.select_option('[name="organization"]', label="Example Inc.")
        await expect(page.locator("tr.row")).to_have_count(6)
        await page.select_option('[name="project"]', label="Shop")
        await expect(page.locator("tr.row")).to_have_count(5)
        await page.fill('[name="text"]', "board 4")
        await expect(page.locator("tr.row")).to_have_count(1)
        assert {"project=1", "text=board+4"} <= set(page.url.partition("#")[2].split("&"))
        await page.fill('[name="text"]', "nothing like it")
        await expect(page.locator(".empty")).to_have_text(
            "Nothing that is here matches the filter."
        )
        await page.click('button[type="reset"]')
        await expect(page.locator("tr.row")).to_have_count(7)


async def test_a_choice_counts_at_once(browser: Browser, tmp_path: Path) -> None:
    """An answer that was in progress when someone chose doesn't put the old choice back."""
    async with showing(browser, seeded(tmp_path)) as shown:
        page = await shown.open("#tab=dashboards")
        await expect(page.locator('[name="organization"] option')).to_have_count(3)
        asked = asyncio.Event()
        chosen = asyncio.Event()

        async def hold(route: Route) -> None:
            asked.set()
            await chosen.wait()
            await route.continue_()

        await page.route(re.compile("/sandbox/organizations"), hold, times=1)
        await page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        await asyncio.wait_for(asked.wait(), LIMIT / 1000)
        await page.select_option('[name="organization"]', label="Example Inc.")
        chosen.set()
        await expect(page.locator("tr.row")).to_have_count(6)
        await expect(page.locator('[name="organization"] option:checked')).to_have_text(
            "Example Inc."
        )


async def test_a_project_leads_to_its_events(browser: Browser, tmp_path: Path) -> None:
    """From a project that has events one click leads to them, and to no other project's."""
    async with showing(browser, seeded(tmp_path)) as shown:
        for token in (seed.TOKEN, seed.SECOND_TOKEN):
            await shown.client.post("/batch/", {**batch(event(event=token[-4:])), "api_key": token})
        page = await shown.open("#tab=projects&open=project:1")
        await page.get_by_role("button", name="Show its events").click()
        await expect(page.locator("tr.row")).to_have_count(1)
        await expect(page.locator("tr.row")).to_contain_text("0001")


async def test_an_empty_sandbox_says_what_to_do(browser: Browser) -> None:
    """Where there is nothing, the list says how to come by something: by a seed, or by
    a command.
    """
    async with showing(browser, SandboxOptions()) as shown:
        for tab in LISTS:
            page = await shown.open(f"#tab={tab}")
            advice = re.compile(r"^(--seed example|forwarder manage \w+ create |curl -X PUT )")
            await expect(page.locator(".empty code")).to_have_text(advice)


async def test_what_is_managed_by_keyboard(browser: Browser, tmp_path: Path) -> None:
    """Tab reaches the links and filters, arrows go through the tabs, j and Enter open, Esc closes
    and leads back.
    """
    async with showing(browser, seeded(tmp_path)) as shown:
        page = await shown.open("#tab=organizations")
        await expect(page.locator("tr.row")).to_have_count(2)
        reached = set()
        for _ in range(14):
            await page.keyboard.press("Tab")
            reached.add(
                await page.evaluate(
                    "document.activeElement.id || document.activeElement.name || "
                    "document.activeElement.tagName"
                )
            )
        assert {
            "to-events",
            "to-management",
            "text",
            "organization",
            "tab-organizations",
            "TR",
        } <= reached
        await page.locator("#tab-organizations").focus()
        for tab in (*list(TABS)[1:], "organizations"):
            await page.keyboard.press("ArrowRight")
            await expect(page.locator(f"#tab-{tab}")).to_be_focused()
            await expect(page.locator(f"#tab-{tab}")).to_have_attribute("aria-selected", "true")
        await expect(page.locator("tr.row")).to_have_count(2)
        await page.evaluate("document.activeElement.blur()")
        await page.keyboard.press("j")
        await page.keyboard.press("Enter")
        await expect(page.locator("#detail h2")).to_have_text("Other Ltd.")
        await page.keyboard.press("Escape")
        await expect(page.locator("#detail")).to_be_hidden()
        assert "Other Ltd." in await page.evaluate("document.activeElement.textContent")


def evil_seed(folder: Path) -> SandboxOptions:
    """Options of a sandbox in which every text that someone can choose is a hostile one."""
    organizations = []
    for number, text in enumerate(EVIL):
        run = {"status": "Failed", "latest_error": text}
        export = {
            "name": text,
            "destination": {"type": text[:60], "config": {text[:60]: text}},
            "runs": [run],
        }
        project = {
            "api_key": f"phc_evil_project_000000{number}",
            "name": text,
            "product_description": text,
            "dashboards": [{"name": text, "description": text, "tags": [text]}],
            "batch_exports": [export],
            "flags": [{"key": text, "name": text}],
        }
        keys = [{"key": f"phx_evil_personal_000{number}", "label": text, "scopes": ["*"]}]
        member = {
            "email": f"evil{number}@example.com",
            "first_name": text[:30],
            "last_name": text[:30],
            "level": "owner",
            "personal_api_keys": keys,
        }
        invite = {
            "target_email": f"'\"&amp;b{number}@example.com",
            "first_name": text[:30],
            "message": text,
        }
        made = {"name": text, "members": [member], "invites": [invite], "projects": [project]}
        organizations.append(
            {**made, "domains": [{"domain": f"evil{number}.example.com", "saml_entity_id": text}]}
        )
    path = folder / "evil.yaml"
    path.write_text(yaml.safe_dump({"organizations": organizations}))
    return SandboxOptions(seed=path)


async def test_names_stay_text(browser: Browser, tmp_path: Path) -> None:
    """Whatever someone calls a thing is shown as text, in lists, choices and details; nothing of
    it runs or breaks the layout.
    """
    async with showing(browser, evil_seed(tmp_path)) as shown:
        for tab in LISTS:
            page = await shown.open(f"#tab={tab}")
            await expect(page.locator("tr.row")).to_have_count(len(EVIL))
            for number in range(len(EVIL)):
                await page.locator("tr.row").nth(number).click()
                await expect(page.locator("#detail h2")).to_be_visible()
                assert await overflowing(page) == 0
                await page.keyboard.press("Escape")
            assert await page.evaluate("typeof window.hacked") == "undefined"
            assert (
                await page.evaluate(
                    "document.querySelectorAll('iframe, main img, main script, main b').length"
                )
                == 0
            )
            assert not re.search("[\u0007\u202e]", await page.locator("body").inner_text())


@pytest.mark.parametrize("width", [375, 1600])
async def test_resources_at_every_width(browser: Browser, tmp_path: Path, width: int) -> None:
    """In light and dark, on a phone and on a large screen, all tabs are in sight, nothing runs
    over the edge, every text can be read.
    """
    async with showing(browser, seeded(tmp_path), width=width, height=800) as shown:
        for tab in LISTS:
            page = await shown.open(f"#tab={tab}")
            await expect(page.locator("tr.row").first).to_be_visible()
            assert await flaws(page) == []
            for name in TABS if tab in TABS else ():
                place = await box(page, f"#tab-{name}")
                assert 0 <= place["x"] <= place["x"] + place["width"] <= width
            await page.locator("tr.row").first.click()
            await expect(page.locator("#detail h2")).to_be_visible()
            assert await flaws(page) == []


async def test_clearing_leaves_organizations(browser: Browser, tmp_path: Path) -> None:
    """To clear everything that arrived says that organizations stay, and they do."""
    async with showing(browser, seeded(tmp_path)) as shown:
        page = await shown.open("")
        await page.click("#clear")
        await expect(page.locator("#sure")).to_contain_text(
            "Organizations and what they have stay."
        )
        await page.click("#delete")
        await page.get_by_role("link", name="Management").click()
        await expect(page.locator("tr.row")).to_have_count(2)
