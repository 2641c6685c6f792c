"""Forwarder is full, and says so by 503 with `Retry-After`: each SDK comes back with its events
when there is room again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import aiohttp

from tests.sdks.outcomes import AI_LANE, held_as, identity
from tests.sdks.rig import KEY, Chain, SdkSandbox, chain, program
from tests.sdks.variants import FIRST, Variant, for_each

COUNT = 200
SMALL = {
    "FORWARDER_BUFFER__MAX_BYTES": "1MiB",
    "FORWARDER_BATCH__MAX_BYTES": "200kB",
    "FORWARDER_UPSTREAM__MAX_EVENT": "100kB",
}
FILLER = "filler"


@for_each([variant for variant in FIRST if variant.sdk != "js"])
def test_an_sdk_that_is_refused_comes_back(variant: Variant, tmp_path: Path) -> None:
    """Events that were answered 503 are sent again by the SDK itself, and all
    arrive once there is room.
    """
    asyncio.run(_refused(variant, tmp_path))


async def _refused(variant: Variant, place: Path) -> None:
    service = SdkSandbox(place / "sandbox.sqlite")
    async with chain(place, service, **SMALL) as tried:
        await service.stop()
        fillers = await fill(tried)
        before = await _refusals(tried)
        async with program(
            variant.sdk, tried.host, place / "journal", *variant.options, count=COUNT
        ) as sender:
            while await _refusals(tried) == before:
                pass
            await service.start()
            journal = [
                line
                for line in await tried.finish(sender, COUNT + fillers)
                if line["event"] != AI_LANE
            ]
        await tried.emptied()
        events = [
            event
            for event in await service.sandbox.events()
            if event.event not in (FILLER, AI_LANE)
        ]
    assert held_as(journal, events) == Counter(map(identity, journal))


async def fill(tried: Chain) -> int:
    """Send until not even a small request is taken: first large events, then small ones. How many
    were taken.
    """
    accepted = 0
    async with aiohttp.ClientSession() as client:
        for size in (50_000, 1_000):
            status = 200
            while status == 200:
                body = {
                    "api_key": KEY,
                    "event": FILLER,
                    "distinct_id": "filler",
                    "properties": {"p": "x" * size},
                }
                async with client.post(f"{tried.host}/capture/", json=body) as response:
                    status = response.status
                    accepted += status == 200
            assert status == 503
            assert int(response.headers["Retry-After"]) > 0
    return accepted


async def _refusals(tried: Chain) -> int:
    return (await tried.snapshot()).http_requests.get(("/batch", 503), 0)
