"""What the pages are looked at with: daemons, a sandbox and imports whose content is the same each
time, whatever machine they are on.

Times stand still: the sandbox's clock is turned by hand, a browser's is set, and a snapshot has
its own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from forwarder.sandbox import SandboxOptions
from forwarder.sources.imports.checkpoint import ImportJob, SourceContent
from forwarder.sources.imports.import_books import DayTally, RecordBooks, RefusalExample
from forwarder.sources.imports.report import FileManifest, ImportManifest
from forwarder.telemetry.snapshot import (
    KafkaCluster,
    KafkaPartition,
    LaneSnapshot,
    LogFile,
    LogSourceState,
    Snapshot,
    State,
    Upstream,
    UpstreamState,
    Worker,
)
from tests.sandbox.client import SandboxClient, talking
from tests.support.repository import ROOT

NOW: Final = datetime(2026, 5, 4, 8, 20, 30, tzinfo=UTC).timestamp()
"""What every clock says once everything is there."""
MORNING: Final = NOW - 4 * 3600
SEED: Final = ROOT / "config" / "sandbox-seed.yaml"
SHOP: Final = "phc_sandbox_shop_000000001"
COMPANY: Final = "01900000-0000-7000-8000-000000000001"
CONFLICT: Final = "0190a0a0-1111-7222-8333-444455556600"
"""The uuid of the order that was sent twice, changed."""


def _lane(label: str, received: int, **more: Any) -> LaneSnapshot:
    buffered = more.get("buffered", 0)
    lost = sum(more.get("dead_lettered", {}).values()) + sum(more.get("dropped", {}).values())
    return LaneSnapshot(
        label=label, received={"http": received}, delivered=received - buffered - lost, **more
    )


_KAFKA: Final = KafkaCluster(
    name="orders",
    group="forwarder",
    state="reading",
    partitions=tuple(
        KafkaPartition("shop.orders", number, position=40_000 + number, lag=12 * number)
        for number in range(6)
    ),
    in_flight_bytes=180_000,
    records={"taken": 240_015, "tombstone": 3, "filtered": 1_204},
    commits={"ok": 3_600},
    rebalances=1,
    last_commit=NOW - 2,
)
_LOGS: Final = LogSourceState(
    name="nginx",
    state="reading",
    files=(
        LogFile(
            "/var/log/nginx/access.log",
            "ab12",
            8_812_004,
            8_812_310,
            306,
            "203.0.113.9 GET /shoes/trail-runner 200",
            NOW - 1,
            open=True,
        ),
        LogFile(
            "/var/log/nginx/access.log.1",
            "cd34",
            31_200_118,
            31_200_118,
            0,
            "203.0.113.4 GET /cart 200",
            NOW - 8_000,
        ),
    ),
    followed=2,
    open=1,
    lag=306,
    lines={"taken": 182_440, "filtered": 70},
    bytes=40_012_122,
    rotations={"rename": 1},
    commits={"ok": 3_590},
    last_commit=NOW - 2,
)
BUSY: Final = Snapshot(
    version="1.4.0",
    state=State.RUNNING,
    started_at=NOW - 93_600,
    now=NOW,
    lanes=(
        _lane("phc_…Qm4T#5f10c2", 1_204_331, buffered=612, oldest_age=0.8),
        _lane("phc_…9xKe#c0a1b9", 402_118, buffered=210, oldest_age=0.6),
        _lane("phc_…7Rza#11e8d4", 88_020),
        _lane("phc_…Qm4T#5f10c2/historical", 240_015, buffered=5_000, oldest_age=42.0),
    ),
    buffer_kind="disk",
    buffer_bytes=31_400_000,
    buffer_limit_bytes=1 << 30,
    upstream=Upstream("https://analytics.example.com", UpstreamState.UP),
    upstream_requests={"200": 18_410, "503": 2},
    concurrency_limit=12.0,
    in_flight=3,
    http_requests={("/batch", 200): 61_204, ("/e", 200): 402_118, ("/i/v0/e", 200): 88_020},
    passthrough_requests={("/flags", 200): 20_118, ("/static", 200): 1_202},
    addresses=("127.0.0.1:8320",),
    connections=61,
    ready=True,
    kafka=(_KAFKA,),
    logs=(_LOGS,),
)
"""A day of much traffic, and nothing that a person must do."""
TROUBLED: Final = replace(
    BUSY,
    lanes=(
        _lane(
            "phc_…Qm4T#5f10c2",
            1_204_331,
            buffered=311_204,
            oldest_age=2_520.0,
            dead_lettered={"too_large": 1, "refused": 12},
        ),
        _lane("phc_…9xKe#c0a1b9", 402_118, dropped={"operator": 3}),
        _lane(
            "phc_…Zz81#9b20aa",
            1,
            buffered=1,
            oldest_age=4_020.0,
            halted="unknown_key",
            halted_since=NOW - 4_020,
            next_probe=NOW + 48,
            why="401: API key invalid or expired",
            hint=(
                "check the project key, and that its project is in the region of "
                "upstream.url; delivery resumes by itself."
            ),
        ),
    ),
    buffer_bytes=(1 << 30) * 86 // 100,
    upstream=Upstream(
        "https://analytics.example.com",
        UpstreamState.DOWN,
        "connection refused: nothing listens on analytics.example.com:443",
    ),
    upstream_requests={"200": 18_410, "401": 80, "connection_refused": 121},
    in_flight=1,
    http_requests={("/batch", 200): 61_204, ("/e", 200): 402_118, ("/e", 400): 3, ("/e", 503): 12},
    rejected_requests={("/e", "undecodable"): 3, ("/e", "buffer_full"): 12},
    passthrough_requests={("/flags", 200): 20_118, ("/flags", 503): 40},
    connections=1,
    warnings=("the upstream fails: connection refused; events stay in the buffer",),
    kafka=(
        replace(
            _KAFKA,
            partitions=tuple(
                replace(
                    partition,
                    lag=8_000,
                    paused="31.0 MiB of records aren't settled (max_in_flight)",
                )
                for partition in _KAFKA.partitions
            ),
        ),
        KafkaCluster(
            "clicks",
            "forwarder",
            "down",
            "bootstrap_servers: nothing listens on kafka-2:9092",
            "check the address",
            next_try=NOW + 5,
        ),
    ),
    logs=(
        replace(
            _LOGS,
            why="1 file can't be opened: permission denied: /var/log/nginx/error.log",
            hint="Let forwarder's user read it.",
            unreadable=1,
        ),
    ),
    workers=(
        Worker("worker-0", "running", 4711, received=803_221),
        Worker("worker-1", "away", restarts=1, why="it was ended by SIGKILL", received=803_229),
    ),
)
"""An upstream that is down, a wrong key, a dead worker: all that a person may have to look at."""
FULL: Final = replace(
    TROUBLED,
    ready=False,
    not_ready=("the buffer is full: senders get 503",),
    buffer_bytes=1 << 30,
    kafka=(),
    logs=(),
    workers=(),
)
FRESH: Final = Snapshot(
    "1.4.0",
    State.RUNNING,
    NOW - 1,
    NOW,
    ready=True,
    addresses=("127.0.0.1:8320",),
    buffer_limit_bytes=64 << 20,
)


class _Clock:
    def __init__(self) -> None:
        self.time = MORNING

    def __call__(self) -> float:
        return self.time


@asynccontextmanager
async def shop(folder: Path) -> AsyncIterator[SandboxClient]:
    """A sandbox with four hours of a small shop in it: orders, one of them a conflict, a request
    that was rejected, exports with runs; and a person with merges, one of them refused.
    """
    clock = _Clock()
    async with talking(SandboxOptions(seed=SEED, export_root=folder, now=clock)) as client:
        for hour in range(4):
            clock.time = MORNING + hour * 3600 + 1
            await _batch(client, [_order(number, hour) for number in range(3)])
            await _batch(client, _merges(hour))
            await client.post("/sandbox/clock?settle=true", {"advance": "0s"})
        for second in range(200):
            clock.time = NOW - 225 + second
            if second % 3 == 0:
                await _batch(client, [_view(second, number) for number in range(1 + second % 7)])
        clock.time = NOW - 20
        order = _order(1, 9) | {"uuid": CONFLICT}
        await _batch(client, [order])
        await _batch(
            client,
            [order | {"properties": order["properties"] | {"total": 249.0, "coupon": "SUMMER"}}],
        )
        clock.time = NOW - 12
        await client.post("/batch/", b"{not json")
        await _batch(client, [{"distinct_id": "nameless", "properties": {}}, _view(7, 1)])
        clock.time = NOW
        await client.post("/sandbox/clock?settle=true", {"advance": "0s"})
        yield client


async def _batch(client: SandboxClient, events: list[dict[str, Any]]) -> None:
    reply = await client.post("/batch/", {"api_key": SHOP, "batch": events})
    assert reply.status == 200, reply.text


PEOPLE: Final = ("ann", "bob", "chloe", "daniel", "eve", "farid")


def _order(number: int, hour: int) -> dict[str, Any]:
    items = [
        {
            "sku": f"TR-{100 + place}",
            "name": "Trail runner",
            "price": 89.95,
            "quantity": 1 + place % 2,
        }
        for place in range(14)
    ]
    properties = {
        "currency": "EUR",
        "items": items,
        "total": 49.5 + number,
        "$set": {"plan": "pro" if number else "free", "email": f"{PEOPLE[number]}@example.com"},
        "$groups": {"company": "example-inc"},
    }
    return {
        "event": "order placed",
        "distinct_id": f"{PEOPLE[number]}@example.com",
        "uuid": f"0190a0a0-2222-7222-8333-4444{hour:04}{number:04}",
        "properties": properties,
    }


def _merges(hour: int) -> list[dict[str, Any]]:
    """What makes Chloe known: a visit without a name, then `$identify`, which can't join her to
    Bob, who is known by then.
    """
    visit = {
        "$browser": "Firefox",
        "$os": "Linux",
        "$current_url": "https://shop.example.com/shoes?utm_source=newsletter",
        "utm_source": "newsletter",
    }
    bob, chloe = (f"{PEOPLE[number]}@example.com" for number in (1, 2))
    named = {"$anon_distinct_id": "visitor-7", "$set": {"name": "Chloe"}}
    steps = (
        ("$pageview", "visitor-7", visit),
        ("$identify", bob, {"$anon_distinct_id": "visitor-3"}),
        ("$identify", chloe, named),
        ("$identify", chloe, {"$anon_distinct_id": bob}),
    )
    event, distinct_id, properties = steps[hour]
    uuid = f"0190a0a0-4444-7222-8333-4444{hour:08}"
    return [{"event": event, "distinct_id": distinct_id, "uuid": uuid, "properties": properties}]


def _view(second: int, number: int) -> dict[str, Any]:
    name = ("$pageview", "product viewed", "product added")[(second + number) % 3]
    return {
        "event": name,
        "distinct_id": f"{PEOPLE[(second + number) % 6]}@example.com",
        "uuid": f"0190a0a0-3333-7222-8333-4444{second:04}{number:04}",
        "properties": {
            "$current_url": f"https://shop.example.com/shoes/{second}",
            "$lib": "web",
            "price": 9.95 + number,
        },
    }


def _manifest(
    days: dict[str, tuple[int, int]],
    names: dict[str, int],
    refused: dict[str, int],
    files: int,
    *,
    complete: bool,
) -> ImportManifest:
    delivered = sum(day_count for _, day_count in days.values())
    share = [delivered // files + (place < delivered % files) for place in range(files)]
    books = [
        RecordBooks(read=count + 7, delivered=count, left_out={"--exclude-event": 5}, repeats=2)
        for count in share
    ]
    books[0].refused = dict(refused)
    books[0].read += sum(refused.values())
    total = RecordBooks()
    for file_books in books:
        total.add(file_books)
    detail = {
        "missing_timestamp": "there is no `time`",
        "illegal_distinct_id": "the id 'nil' is one that many share",
        "rejected_400": "400: event is too large",
    }
    return ImportManifest(
        version=1,
        forwarder="1.4.0",
        job=ImportJob(
            "11111111-2222-5333-8444-555555555555",
            "mixpanel",
            "export/*.json.gz",
            {"until": "2026-04-30"},
        ),
        complete=complete,
        started="2026-05-04T06:00:00Z",
        ended="2026-05-04T08:20:30Z",
        books=total,
        events=delivered,
        first=f"{min(days)}T00:00:04Z" if delivered else None,
        last=f"{max(days)}T23:59:51Z" if delivered else None,
        sources=[
            SourceContent(f"export/{place}.json.gz", 123456, "5eed") for place in range(files)
        ],
        files=[
            FileManifest(
                f"export/2026-{place:03}.json.gz",
                "ab" * 16,
                file_books,
                "00" * 32,
                complete or place < files - 1,
            )
            for place, file_books in enumerate(books)
        ],
        days={day: DayTally(source, count, "0" * 32) for day, (source, count) in days.items()},
        names=names,
        examples={
            reason: [
                RefusalExample(f"export/2026-00{place}.json.gz", 17 + place, detail[reason])
                for place in range(3)
            ]
            for reason in refused
        },
    )


def manifests() -> Iterator[tuple[str, ImportManifest]]:
    """A small import, one of years, one that isn't complete, and one of
    which nothing was delivered.
    """
    names = {"$pageview": 60, "sign up": 28, "order placed": 12, "$identify": 1}
    yield (
        "small",
        _manifest(
            {f"2026-04-0{day}": (20 + day * day % 9, 20 + day * day % 9) for day in range(1, 6)},
            names,
            {},
            1,
            complete=True,
        ),
    )
    days = {
        f"{2023 + month // 12}-{month % 12 + 1:02}-{day:02}": (
            1000 + (month * 7919 + day * 31) % 997 * 9,
            1000 + (month * 7919 + day * 31) % 997 * 9,
        )
        for month in range(36)
        for day in range(1, 29)
    }
    kinds = (
        "$pageview",
        "product viewed",
        "order placed",
        "a name that is rather long for an event",
    )
    many = {f"{kinds[place % 4]} {place}": 900_000 // (place + 1) for place in range(80)}
    yield (
        "large",
        _manifest(
            days, many, {"missing_timestamp": 1_204, "illegal_distinct_id": 1}, 240, complete=True
        ),
    )
    part = {
        f"2026-04-{day:02}": (2000 + day * 37, 2000 + day * 37 if day < 18 else 400 * (day == 18))
        for day in range(1, 31)
    }
    yield (
        "partial",
        _manifest(
            part,
            {"$pageview": 30_000, "order placed": 12},
            {"rejected_400": 410},
            6,
            complete=False,
        ),
    )
    yield (
        "failed",
        _manifest({"2026-04-01": (412, 0)}, {}, {"missing_timestamp": 412}, 1, complete=True),
    )
