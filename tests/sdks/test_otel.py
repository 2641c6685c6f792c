"""OpenTelemetry's SDKs for Python and Node, unchanged: what they log arrives as events, also if
they are refused for some time.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from forwarder.sandbox.store.stored_records import StoredEvent
from forwarder.telemetry.snapshot import balanced
from tests.sdks.outcomes import held_as, identity
from tests.sdks.rig import KEY, Chain, SdkSandbox, chain, program
from tests.sdks.test_refusal import FILLER, SMALL, fill
from tests.sdks.variants import Variant, for_each

PYTHON = [Variant("otel-python", mode) for mode in ("protobuf", "gzip", "deflate")]
NODE = [Variant("otel-node", mode) for mode in ("json", "json-gzip", "protobuf", "protobuf-gzip")]
FIRST = [PYTHON[0], NODE[0], NODE[3]]
"""Each SDK and each encoding once."""
COUNT = 1000
OTLP = "FORWARDER_SOURCES__HTTP__OTLP__"
MAPPED: dict[str, Any] = {
    f"{OTLP}API_KEY": KEY,
    f"{OTLP}MAPPING__EVENT": ".event_name",
    f"{OTLP}MAPPING__DISTINCT_ID": '.attributes["user.id"]',
    f"{OTLP}MAPPING__PROPERTIES": (
        '.attributes + {body: .body, severity: .severity, service: .resource["service.name"]}'
    ),
}


@for_each([*PYTHON, *NODE])
def test_every_record_arrives_once(variant: Variant, tmp_path: Path) -> None:
    """A thousand log records are a thousand events with what was logged, and the SDK has nothing
    to complain of.
    """
    asyncio.run(_arrive(variant, tmp_path))


async def _arrive(variant: Variant, place: Path) -> None:
    async with chain(place / "sandbox.sqlite", **MAPPED) as tried:
        async with program(
            variant.sdk, tried.host, place / "journal", *variant.options, count=COUNT
        ) as sender:
            journal = await sender.ended()
        snapshot = await tried.emptied()
        events = await tried.service.sandbox.events()
        summary = await tried.service.sandbox.summary()
    assert sender.errors == ""
    assert len(journal) == COUNT
    assert held_as(journal, events) == Counter(map(identity, journal))
    assert (summary.duplicates, summary.conflicts, summary.not_ingested, balanced(snapshot)) == (
        0,
        0,
        0,
        True,
    )
    assert [lane.received for lane in snapshot.lanes] == [{"otlp": COUNT}]
    assert {key for key in snapshot.http_requests if key[1] != 200} == set()
    for event in events:
        _check(event, variant)


def _check(event: StoredEvent, variant: Variant) -> None:
    properties: dict[str, Any] = msgspec.json.decode(event.properties)
    n = properties["n"]
    assert properties["big"] == (2**60 + n if variant.sdk == "otel-python" else 2**53 - 1)
    assert (properties["share"], properties["paid"], properties["tags"]) == (
        0.5,
        n % 2 == 0,
        ["a", "ü"],
    )
    assert properties["body"] == {"text": f"order {n} 茶", "lines": [1, {"sku": "x"}]}
    assert (properties["severity"], properties["service"]) == ("INFO", "shop")
    assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-5[0-9a-f-]{21}", event.uuid)


@for_each(FIRST)
def test_an_sdk_that_is_refused_comes_back(variant: Variant, tmp_path: Path) -> None:
    """Requests that were answered 503 are sent again by the SDK itself; once there is room all
    records arrive, and none twice.
    """
    asyncio.run(_refused(variant, tmp_path))


async def _refused(variant: Variant, place: Path) -> None:
    service = SdkSandbox(place / "sandbox.sqlite")
    async with chain(place, service, **SMALL, **MAPPED) as tried:
        await service.stop()
        await fill(tried)
        async with program(
            variant.sdk, tried.host, place / "journal", *variant.options, count=200
        ) as sender:
            while not await _refusals(tried):
                pass
            await service.start()
            journal = await sender.ended()
        snapshot = await tried.emptied()
        events = [event for event in await service.sandbox.events() if event.event != FILLER]
        summary = await service.sandbox.summary()
    assert held_as(journal, events) == Counter(map(identity, journal))
    assert (len(journal), summary.duplicates, summary.conflicts, balanced(snapshot)) == (
        200,
        0,
        0,
        True,
    )


async def _refusals(tried: Chain) -> int:
    return (await tried.snapshot()).http_requests.get(("/v1/logs", 503), 0)
