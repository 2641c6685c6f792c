"""Hours without the upstream, and then all of it: on disk, with little memory, in order, and
behind what comes fresh.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from random import Random
from typing import Any, Final

import msgspec
import pytest

from forwarder.telemetry.snapshot import balanced
from tests.support.clock import FakeClock
from tests.support.listening import post
from tests.support.upstream import OK, Answer, Request, Upstream
from tests.support.whole import Whole, accepted, batch, event, split

HOURS: Final = 2
"""Many times the longest pause between two attempts."""
STEP: Final = 30.0
"""Seconds between two requests of a lane."""

PER_REQUEST: Final = 25
PERSONS: Final = 40
WINDOW: Final = 2 << 20
ANSWERED_FIRST: Final = 5
"""Requests that the upstream gets before the fresh events come."""

SETTINGS: Final[dict[str, Any]] = {
    "buffer": {"kind": "disk", "max_bytes": "64MiB"},
    "batch": {"max_bytes": "128kB", "max_age": "1s"},
}


UNSTAMPED: Final = b'{"event":"unstamped","distinct_id":"x"}'
"""An event whose time is that of its receipt."""


class DiskOutage:
    """Traffic of a live and a historical lane, and a look at everything after each step."""

    def __init__(self, whole: Whole) -> None:
        self.whole = whole
        self.live: list[bytes] = []
        self.historical: list[bytes] = []
        self.in_memory: list[int] = []
        self._random = Random(3)

    def make(self, name: str) -> list[bytes]:
        """Events of a few persons at this instant, with a timestamp as their sender wrote it."""
        at = (
            datetime.fromtimestamp(self.whole.clock.now(), UTC)
            .isoformat(timespec="milliseconds")
            .encode()
        )
        number = len(self.live) + len(self.historical)
        return [
            event(
                f"{name}{number + more}",
                f"person-{self._random.randrange(PERSONS)}",
                properties=b'{"p":"%b"}' % (b"x" * 1000),
            ).replace(b"2025-12-31T23:00:00Z", at)
            for more in range(PER_REQUEST)
        ]

    async def send(self, name: str) -> list[bytes]:
        """Send events of the live lane."""
        made = self.make(name)
        await self.whole.take(made)
        self.live += made
        return made

    async def send_historical(self) -> None:
        """Send events of the historical lane."""
        made = self.make("old")
        reply = await self.whole.send(
            post("/batch/", batch(made, more=b'"historical_migration":true,'))
        )
        assert reply.status == 200
        self.historical += made

    async def pass_by(self) -> None:
        """Hours in which both lanes continue."""
        assert isinstance(self.whole.clock, FakeClock)
        for _ in range(int(HOURS * 3600 / STEP)):
            await self.send("live")
            await self.send_historical()
            await self.whole._hang_up()
            await self.whole.clock.advance(STEP)
            self.looked()

    def looked(self, *, and_so: bool = True) -> bool:
        """`and_so`, with a look: the books balance, senders are welcome, and
        memory is within its window.
        """
        snapshot = self.whole.snapshot
        statistics = self.whole.disk.statistics()
        assert balanced(snapshot)
        assert snapshot.ready
        assert statistics.memory_bytes <= WINDOW
        self.in_memory.append(statistics.memory_bytes)
        return and_so


def in_order(seen: list[tuple[bool, list[bytes]]], sent: list[bytes]) -> None:
    """Each person's events came in the order in which they were sent."""
    numbers = {raw: number for number, raw in enumerate(sent)}
    last: dict[str, int] = {}
    for raw in (raw for _, request in seen for raw in request if raw in numbers):
        person = msgspec.json.decode(raw)["distinct_id"]
        assert last.get(person, -1) < numbers[raw]
        last[person] = numbers[raw]


@pytest.mark.parametrize("ordering", ["none", "per_distinct_id"])
async def test_hours_without_the_upstream(ordering: str) -> None:
    """Nothing is lost, doubled or changed, nor gets another time; memory stays flat; the drain
    keeps to the limit, and fresh events don't wait for all of it.
    """
    delivery: dict[str, Any] = {
        "retry": {"max": "5m"},
        **({} if ordering == "none" else {"ordering": ordering}),
    }
    seen: list[tuple[bool, list[bytes]]] = []
    above: list[int] = []
    go_on = asyncio.Event()
    clock = FakeClock(turns=4)  # the listener and the dead letters have something to do each second

    def answer(request: Request) -> Answer:
        if upstream.in_flight > whole.snapshot.concurrency_limit:
            above.append(upstream.in_flight)
        seen.append((b'"historical_migration":true' in request.body, split(request)))
        return Answer(when=go_on) if len(seen) >= ANSWERED_FIRST else OK

    async with Upstream(answer) as upstream:
        await upstream.stop()
        async with Whole(
            upstream.url, clock, window=WINDOW, delivery=delivery, **SETTINGS
        ) as whole:
            outage = DiskOutage(whole)
            await whole.take([UNSTAMPED], "phc_withouttimestamp1")
            await outage.pass_by()
            assert (
                whole.total(lambda lane: lane.buffered)
                == len(outage.live) + len(outage.historical) + 1
            )
            assert whole.snapshot.buffer_bytes > 5 * WINDOW
            half = outage.in_memory[len(outage.in_memory) // 2 :]
            assert max(half) <= 1.1 * min(half)
            assert max(lane.oldest_age or 0.0 for lane in whole.snapshot.lanes) >= HOURS * 3600
            async with upstream:
                await whole.until(lambda: outage.looked(and_so=len(seen) >= ANSWERED_FIRST))
                fresh = await outage.send("fresh")
                go_on.set()
                await whole.until(
                    lambda: outage.looked(and_so=not whole.total(lambda lane: lane.buffered))
                )
                arrived = accepted(upstream)
                (stamped,) = arrived.keys() - {*outage.live, *outage.historical}
                assert arrived == dict.fromkeys([*outage.live, *outage.historical, stamped], 1)
                assert msgspec.json.decode(stamped)["timestamp"].startswith("2026-01-01T00:00:00")
        assert above == []
        in_order(seen, outage.historical)
        if ordering == "none":
            place = next(at for at, (_, raw) in enumerate(seen) if fresh[-1] in raw)
            assert place < len(seen) // 2
            historical = [is_historical for is_historical, _ in seen]
            first = historical[: len(seen) // 3]
            # so many there would be among the first ones if live events didn't go first
            assert sum(historical) > 0.44 * len(seen)
            # usually a quarter: live events are read from the disk, and now and then none is at
            # hand
            assert sum(first) < 0.4 * len(first)
        else:
            in_order(seen, outage.live)
