"""`make pictures`: the README's pictures of both pages, of real traffic through a real forwarder
into a real sandbox; of what the sandbox manages, with the two organizations of a seed; of a person;
of a flag and of a batch export, by the example of a seed; those of an import
(`import_pictures`), of a terminal that watches a daemon (`watch_pictures`), and the README's own,
a moving one and bars.

Five minutes of a small shop: three apps, one of which changes an order and sends it again under
its old uuid (a conflict), one whose project key no one knows (a halted lane), and someone who
sends rubbish. The sandbox's clock is turned so that it takes seconds.
"""

from __future__ import annotations

import asyncio
import math
import random
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from uuid import UUID

import aiohttp
import yaml
from playwright.async_api import Browser, expect

from forwarder.admin.server import AdminServer
from forwarder.core.clock import SystemClock
from forwarder.sandbox import Sandbox, SandboxOptions
from tests.browser.bars import bars
from tests.browser.chromium import chromium, visit
from tests.browser.gallery import VIEWS, opened, showing
from tests.browser.import_pictures import shoot_import
from tests.browser.moving_picture import moving_picture, recorded_demo
from tests.browser.watch_pictures import shoot_watching
from tests.support.repository import ROOT
from tests.support.waiting import in_thread
from tests.support.whole import Whole

MINUTES: Final = 5
PICTURES: Final = (
    "*-page*.png",
    "*-management*.png",
    "*-person*.png",
    "*-flags*.png",
    "*-exports*.png",
    "*.svg",
    "import-report*.png",
)
WIDTH = 1280
HEIGHT = 800
APPS: Final = {
    "web": "phc_shopweb_project_key_Qm4T",
    "ios": "phc_shopios_project_key_9xKe",
    "android": "phc_shopdroid_project_key_7Rza",
}
UNKNOWN: Final = "phc_a_key_that_nobody_knows_Zz81"
PAGES: Final = ("/", "/shoes", "/shoes/trail-runner", "/bags/weekender", "/cart", "/checkout")
KINDS: Final = (
    "$pageview",
    "$pageview",
    "$pageview",
    "$autocapture",
    "product viewed",
    "product viewed",
    "product added",
    "order placed",
)


EXAMPLE: Final = ROOT / "config" / "sandbox-seed.yaml"
SHOP: Final = "phc_sandbox_shop_000000001"
MORNING: Final = datetime(2026, 5, 4, 8, 20, tzinfo=UTC).timestamp()
COMPANY: Final = "01900000-0000-7000-8000-000000000001"


class Shop:
    """Makes the traffic, the same each time."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._random = random.Random(20)
        self._now = now

    def events(self, second: int) -> Iterator[dict[str, Any]]:
        """What a second's visitors do: there are more of them at some times than at others."""
        for _ in range(round(5 + 4 * math.sin(second / 19) + self._random.random() * 4)):
            yield self.event(self._random.choice(KINDS))

    def event(self, name: str, **more: Any) -> dict[str, Any]:
        """One event of someone."""
        pick = self._random.choice
        properties: dict[str, Any] = {
            "$current_url": f"https://shop.example.com{pick(PAGES)}",
            "$lib": "web",
        }
        if name in ("product viewed", "product added"):
            properties = {
                "sku": f"TR-{self._random.randrange(100, 140)}",
                "price": self._random.randrange(9, 190) + 0.95,
                **properties,
            }
        if name == "order placed":
            total = self._random.randrange(20, 400) + 0.5
            items = self._random.randrange(1, 6)
            properties = {"total": total, "currency": "EUR", "items": items, **properties}
        person = pick(("anna", "ben", "chloe", "daniel", "eve", "farid", "grace")) + "@example.com"
        uuid = str(UUID(int=self._random.getrandbits(128), version=4))
        at = datetime.fromtimestamp(self._now(), UTC).isoformat(timespec="milliseconds")
        return {
            "event": name,
            "distinct_id": person,
            "uuid": uuid,
            "timestamp": at,
            "properties": {**properties, **more},
        }


class Scene:
    """Sandbox, forwarder and admin server with the traffic in them."""

    def __init__(
        self,
        sandbox: Sandbox,
        forwarder: Whole,
        admin: AdminServer,
        session: aiohttp.ClientSession,
        shop: Shop,
    ) -> None:
        self.sandbox = sandbox
        self.admin = admin
        self._forwarder = forwarder
        self._session = session
        self._shop = shop

    async def send(self, key: str, events: list[dict[str, Any]]) -> None:
        """Send a batch to the forwarder."""
        async with self._session.post(
            f"http://{self._forwarder.address}/batch/", json={"api_key": key, "batch": events}
        ) as response:
            assert response.status == 200, await response.text()

    async def second(self, number: int) -> None:
        """What happens in one second."""
        for number_of_app, (event, key) in enumerate(
            zip(self._shop.events(number), [*APPS.values()] * 9, strict=False)
        ):
            await self.send(
                key, [event] if number_of_app else [event, self._shop.event("$pageview")]
            )
        if number % 60 == 20:
            asked = {"api_key": APPS["web"], "distinct_id": "anna@example.com"}
            async with self._session.post(
                f"http://{self._forwarder.address}/flags/?v=2", json=asked
            ) as response:
                await response.read()
        await self.settled()

    async def settled(self) -> None:
        """Wait until all is delivered that can be: what the halted lane holds can't."""
        await self._forwarder.until(
            lambda: self._forwarder.total(lambda lane: 0 if lane.halted else lane.buffered) == 0
        )

    async def incidents(self) -> None:
        """A lane that halts, an event without a name, and people with properties."""
        for who in ("anna", "ben", "chloe"):
            properties = {
                "$set": {"name": who.title(), "plan": "pro"},
                "$anon_distinct_id": f"device-{who}",
            }
            await self.send(
                APPS["web"],
                [
                    {
                        "event": "$identify",
                        "distinct_id": f"{who}@example.com",
                        "properties": properties,
                    }
                ],
            )
        for key, name in (("north", "Shop North"), ("south", "Shop South")):
            group = {"$group_type": "branch", "$group_key": key, "$group_set": {"name": name}}
            await self.send(
                APPS["ios"],
                [
                    {
                        "event": "$groupidentify",
                        "distinct_id": "anna@example.com",
                        "properties": group,
                    }
                ],
            )
        await self.send(APPS["ios"], [{"distinct_id": "nobody", "properties": {}}])
        for _ in range(12):
            await self.send(UNKNOWN, [self._shop.event("$pageview")])

    async def quarrel(self) -> None:
        """An order that is sent again, changed, under its old uuid; and rubbish."""
        order = self._shop.event("order placed", coupon=None)
        await self.send(APPS["web"], [order])
        await self.settled()
        await self.send(
            APPS["web"],
            [{**order, "properties": {**order["properties"], "total": 249.0, "coupon": "SUMMER"}}],
        )
        async with self._session.post(f"{self.sandbox.url}/batch/", data=b"{not json") as response:
            assert response.status == 400


@asynccontextmanager
async def scene(now: Callable[[], float]) -> AsyncIterator[Scene]:
    """Everything started, and stopped at the end."""
    options = SandboxOptions(api_keys=frozenset(APPS.values()), now=now)
    with TemporaryDirectory(prefix="pictures-") as directory:
        async with Sandbox(options) as sandbox, aiohttp.ClientSession() as session:
            sections: dict[str, Any] = {
                "upstream": {"url": sandbox.url, "verify_keys": True},
                "dead_letters": {"path": directory},
                "http": {"api_keys": {**APPS, "old-app": UNKNOWN}},
            }
            whole = Whole(sandbox.url, SystemClock(), batch={"max_age": "10ms"}, **sections)
            async with whole as forwarder, _served(forwarder) as admin:
                yield Scene(sandbox, forwarder, admin, session, Shop(now))


@asynccontextmanager
async def _served(forwarder: Whole) -> AsyncIterator[AdminServer]:
    admin = AdminServer(forwarder.pipeline.snapshot)
    await admin.start("127.0.0.1:0")
    try:
        yield admin
    finally:
        await admin.close()


async def play(scene: Scene, turn: Callable[[], None]) -> None:
    """The five minutes."""
    for second in range(MINUTES * 60 - 3):
        turn()
        if second == 30:
            await scene.incidents()
        if second in (97, 204, 261):
            await scene.quarrel()
        await scene.second(second)


async def shoot(browser: Browser, scene: Scene, folder: Path, *, dark: bool = False) -> None:
    """Take both pictures, while traffic continues."""
    suffix = "-dark" if dark else ""
    window: dict[str, Any] = {"dark": dark, "width": WIDTH, "height": HEIGHT}
    async with visit(browser, **window) as visitor, visit(browser, **window) as other:
        await other.page.goto(f"http://{scene.admin.address}/status")
        await visitor.page.goto(scene.sandbox.url)
        for number in range(6):
            async with other.page.expect_response("**/status"):
                await scene.second(number)
        await scene.quarrel()
        await visitor.page.locator("tr.row.bad").first.click()
        await expect(visitor.page.locator("#detail mark").first).to_be_visible()
        await visitor.page.evaluate("document.activeElement.blur()")
        await expect(other.page.locator(".senders .rate")).to_be_visible()
        await visitor.page.screenshot(path=folder / f"sandbox-page{suffix}.png")
        await other.page.screenshot(path=folder / f"status-page{suffix}.png")


def seed() -> dict[str, Any]:
    """The company of the small shop, and another one."""
    levels = {"olga": "owner", "adam": "admin", "mia": "member", "noah": "member"}
    members = [
        {"email": f"{name}@shop.example.com", "first_name": name.title(), "level": level}
        for name, level in levels.items()
    ]
    export = {
        "destination": {
            "type": "S3",
            "config": {"bucket_name": "shop-events", "region": "eu-central-1"},
        },
        "runs": [{"status": "Completed"}],
    }
    projects: list[dict[str, Any]] = [
        {"api_key": key, "name": f"Shop {name}"} for name, key in APPS.items()
    ]
    projects[0] |= {
        "batch_exports": [{"name": "All events", **export}],
        "dashboards": [{"name": "Orders", "pinned": True}, {"name": "Visits"}],
    }
    domains = [
        {"domain": "shop.example.com", "verified_at": "2026-01-02T03:04:05Z"},
        {"domain": "shop.example.org"},
    ]
    invites = [
        {"target_email": "nina@shop.example.com", "level": "admin"},
        {"target_email": "leo@shop.example.com", "created_at": "2026-01-02T00:00:00Z"},
    ]
    company = {
        "id": COMPANY,
        "name": "Small Shop Ltd.",
        "members": members,
        "domains": domains,
        "invites": invites,
        "projects": projects,
    }
    agency = {
        "name": "Agency",
        "members": [{"email": "eve@agency.example", "level": "owner"}],
        "projects": [{"api_key": UNKNOWN, "name": "Blog"}],
    }
    return {"organizations": [company, agency]}


async def shoot_management(browser: Browser, folder: Path, *, dark: bool = False) -> None:
    """Take the picture of what is managed."""
    with TemporaryDirectory(prefix="pictures-") as directory:
        path = Path(directory) / "seed.yaml"
        path.write_text(yaml.safe_dump(seed()))
        window: dict[str, Any] = {"dark": dark, "width": WIDTH, "height": HEIGHT}
        async with (
            Sandbox(SandboxOptions(seed=path)) as sandbox,
            aiohttp.ClientSession() as session,
            visit(browser, **window) as visitor,
        ):
            event = {
                "api_key": APPS["web"],
                "event": "$pageview",
                "distinct_id": "anna@example.com",
            }
            async with session.post(f"{sandbox.url}/capture/", json=event) as response:
                assert response.status == 200, await response.text()
            await visitor.page.goto(f"{sandbox.url}/#tab=projects&open=organization:{COMPANY}")
            await expect(visitor.page.locator("#detail")).to_contain_text("nina@shop.example.com")
            await expect(visitor.page.locator("tr.row")).to_have_count(4)
            await visitor.page.evaluate("document.activeElement.blur()")
            await visitor.page.screenshot(
                path=folder / f"sandbox-management{'-dark' if dark else ''}.png"
            )


async def shoot_person(browser: Browser, folder: Path, *, dark: bool = False) -> None:
    """Take the picture of a person with its merges, as the gallery has it."""
    view = next(view for view in VIEWS if view.name == "sandbox-person")
    with TemporaryDirectory(prefix="pictures-") as directory:
        async with (
            opened(view, Path(directory)) as url,
            showing(browser, view, url, WIDTH, dark=dark) as visitor,
        ):
            await visitor.page.set_viewport_size({"width": WIDTH, "height": 1170})
            await visitor.page.screenshot(
                path=folder / f"sandbox-person{'-dark' if dark else ''}.png"
            )


async def shoot_decisions(browser: Browser, folder: Path, *, dark: bool = False) -> None:
    """Take the pictures of a flag with who gets what of it, and of a batch export with its runs."""
    suffix = "-dark" if dark else ""
    window: dict[str, Any] = {"dark": dark, "width": WIDTH, "height": HEIGHT}
    with TemporaryDirectory(prefix="pictures-") as directory:
        options = SandboxOptions(seed=EXAMPLE, export_root=Path(directory), now=lambda: MORNING)
        async with (
            Sandbox(options) as sandbox,
            aiohttp.ClientSession() as session,
            visit(browser, **window) as visitor,
        ):
            for number in range(3):
                batch = [
                    {"event": "order placed", "distinct_id": f"{name}@example.com"}
                    for name in ("ann", "bob")[: number + 1]
                ]
                await _posted(session, f"{sandbox.url}/batch/", {"api_key": SHOP, "batch": batch})
                await _posted(
                    session, f"{sandbox.url}/sandbox/clock?settle=true", {"advance": "1h"}
                )
            await visitor.page.goto(f"{sandbox.url}/#tab=flags")
            await visitor.page.locator("tr.row", has_text="new-checkout").click()
            await visitor.page.fill('#detail [name="distinct_id"]', "bob@example.com")
            await visitor.page.get_by_role("button", name="Show", exact=True).click()
            await expect(visitor.page.locator("#detail .result")).to_contain_text("gets")
            await visitor.page.evaluate("document.activeElement.blur()")
            await visitor.page.screenshot(path=folder / f"sandbox-flags{suffix}.png")
            await visitor.page.goto(f"{sandbox.url}/#tab=batch-exports")
            await visitor.page.locator("tr.row", has_text="Events to a folder").click()
            await visitor.page.get_by_role("button", name="Log", exact=True).first.click()
            await expect(visitor.page.get_by_role("log").first).to_contain_text("Completed")
            await visitor.page.evaluate("document.activeElement.blur()")
            await visitor.page.screenshot(path=folder / f"sandbox-exports{suffix}.png")


async def _posted(session: aiohttp.ClientSession, url: str, content: Any) -> None:
    async with session.post(url, json=content) as response:
        assert response.status == 200, await response.text()


def draw_readme(folder: Path) -> None:
    """The README's own: the demo as it moves, and the bars."""
    (folder / "demo.svg").write_text(moving_picture(recorded_demo()), "utf-8")
    (folder / "throughput.svg").write_text(bars(), "utf-8")


async def main(folder: Path, *, dark: bool) -> None:
    """Make the pictures."""
    stands = [time.time() - MINUTES * 60]
    behind = [0.0]

    def now() -> float:
        return time.time() - behind[0] if behind[0] else stands[0]

    def turn() -> None:
        stands[0] += 1

    async with scene(now) as made, chromium() as browser:
        await play(made, turn)
        behind[0] = time.time() - stands[0]  # from here on it goes by itself
        await shoot(browser, made, folder, dark=dark)
        await shoot_management(browser, folder, dark=dark)
        await shoot_person(browser, folder, dark=dark)
        await shoot_decisions(browser, folder, dark=dark)
        await shoot_import(browser, folder, dark=dark)
    await shoot_watching(folder)
    await in_thread(lambda: draw_readme(folder))
    for path in await in_thread(
        lambda: sorted(path for name in PICTURES for path in folder.glob(name))
    ):
        sys.stdout.write(f"{path} {path.stat().st_size:,} bytes\n")


if __name__ == "__main__":
    arguments = sys.argv[1:]
    wanted = [Path(argument) for argument in arguments if argument != "--dark"]
    asyncio.run(
        main(wanted[0] if wanted else ROOT / "docs" / "pictures", dark="--dark" in arguments)
    )
