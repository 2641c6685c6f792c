"""Looks at `/status` every ten milliseconds, through all lives of the daemon, and keeps what was
wrong with the books.

It does the sums itself: what the daemon says of its own balance is compared, not believed.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

import msgspec

from forwarder.core.event import Lane
from forwarder.telemetry.labels import lane_label
from tests.crash.load_plan import LANES
from tests.crash.oracle import REASONS, Account
from tests.support.waiting import pause

EVERY: Final = 0.01
"""Seconds between two looks."""
ANSWER_LIMIT: Final = 5.0
"""Seconds after which a look has failed."""

_LABELS: Final = {lane_label(lane): lane for lane in LANES}
_REQUEST: Final = b"GET /status HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: application/json\r\n\r\n"


class LaneStatus(msgspec.Struct):
    """A lane, as `/status` has it."""

    label: str
    received: dict[str, int] = msgspec.field(default_factory=dict)
    delivered: int = 0
    buffered: int = 0
    dead_lettered: dict[str, int] = msgspec.field(default_factory=dict)
    dropped: dict[str, int] = msgspec.field(default_factory=dict)
    difference: int = 0
    halted: str | None = None

    def account(self) -> Account:
        """Its books."""
        dead = sum(self.dead_lettered.values())
        return Account(
            sum(self.received.values()), self.delivered, self.buffered, dead, dict(self.dropped)
        )


class Status(msgspec.Struct):
    """What the test reads of `/status`."""

    state: str
    balanced: bool
    lanes: list[LaneStatus]
    warnings: list[str] = msgspec.field(default_factory=list)


_statuses: Final = msgspec.json.Decoder(Status)


def wrong_with(status: Status) -> list[str]:
    """What is wrong with the books of a status."""
    accounts = {lane.label: lane.account() for lane in status.lanes}
    problems = [
        f"the books of {label} are off by {account.difference}: {account}"
        for label, account in accounts.items()
        if account.difference
    ]
    problems += [
        f"{label} has a figure below zero: {account}"
        for label, account in accounts.items()
        if _least(account) < 0
    ]
    problems += [
        f"{label} lost events: {account}"
        for label, account in accounts.items()
        if set(account.dropped) - REASONS
    ]
    if status.balanced == bool(problems) or any(
        lane.difference != accounts[lane.label].difference for lane in status.lanes
    ):
        problems.append(f"what it says of its balance is not so: {status}")
    return problems


def _least(account: Account) -> int:
    return min(
        account.received,
        account.delivered,
        account.buffered,
        account.dead,
        *account.dropped.values(),
    )


class Scraper:
    """Looks until it is cancelled."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._running = asyncio.Event()
        self.looks = 0
        self.problems: list[str] = []
        self.last: Status | None = None
        """What was seen last in this life of the daemon, once it runs."""

    def expect(self) -> None:
        """The daemon is about to be started anew: forget what the last one said."""
        self.last = None
        self._running.clear()

    async def running(self) -> Status:
        """The last status, as soon as there is one of a daemon that runs."""
        await self._running.wait()
        assert self.last is not None
        return self.last

    async def next(self) -> Status:
        """A status that was taken after now."""
        self._running.clear()
        return await self.running()

    async def run(self) -> None:
        """Look, indefinitely."""
        while True:
            with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                await self._look_on()
            await pause(EVERY)

    async def _look_on(self) -> None:
        """Look until the connection ends."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            while True:
                writer.write(_REQUEST)
                async with asyncio.timeout(ANSWER_LIMIT):
                    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
                    body = await reader.readexactly(
                        int(head.partition("content-length:")[2].partition("\r\n")[0])
                    )
                self._see(_statuses.decode(body))
                await pause(EVERY)
        finally:
            writer.transport.abort()

    def _see(self, status: Status) -> None:
        self.looks += 1
        self.problems += wrong_with(status)
        if status.state != "starting":
            self.last = status
            self._running.set()


def books_of(status: Status) -> dict[Lane, Account]:
    """The books of the lanes that were sent to."""
    return {_LABELS[lane.label]: lane.account() for lane in status.lanes if lane.label in _LABELS}
