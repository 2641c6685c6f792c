"""The drill over real processes, with faults that it must notice; its traffic with an SDK that
only records.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forwarder.demo.demo import choose_ports
from forwarder.demo.drill.checks import DrillVerdict, Step
from forwarder.demo.drill.drill import PORTION, Traffic, run_drill
from tests.support.sdk import PostingSdk, RecordingSdk
from tests.support.waiting import eventually

Spoil = Callable[[list[dict[str, Any]]], object]


async def held(
    directory: Path, tell: Callable[[Step], object], spoil: Spoil = lambda _: None
) -> DrillVerdict:
    """A drill with an SDK that posts, after `spoil`."""
    return await run_drill(
        choose_ports(0), tell, lambda host, key: PostingSdk(host, key, spoil), directory=directory
    )


@pytest.mark.slow
async def test_an_event_that_the_upstream_lost_is_missed(tmp_path: Path) -> None:
    """An event that was delivered, and then vanishes from the upstream during the outage, is
    named, and the drill isn't good.
    """
    lost: list[str] = []
    steps: list[Step] = []

    def plant(step: Step) -> None:
        steps.append(step)
        if step.title == "The upstream is down":
            [database] = tmp_path.glob("forwarder-drill-*/sandbox.db")
            lost.append(lose_one(database))

    verdict = await held(tmp_path, plant)
    assert verdict.missing == lost
    assert not verdict.good
    assert [step.title for step in steps if not step.good] == ["The upstream is back", "The end"]
    assert f"1 of {len(verdict.sent)} events are missing: {lost[0]}" in verdict.problems()
    assert os.listdir(tmp_path) == []  # noqa: PTH208 - pathlib's way is flagged in coroutines


@pytest.mark.slow
async def test_an_event_that_was_lost_on_the_way_in_is_missed(tmp_path: Path) -> None:
    """One that the SDK dropped ends the drill at its first step."""
    steps: list[Step] = []
    verdict = await held(tmp_path, steps.append, lambda events: events.pop())
    assert (len(verdict.sent), len(verdict.missing)) == (PORTION, 1)
    assert [step.title for step in steps] == ["All is well", "The end"]
    assert not verdict.good


def lose_one(database: Path) -> str:
    """Take an event out of the sandbox's database, which no one has open; its uuid."""
    connection = sqlite3.connect(database)
    try:
        [uuid] = connection.execute("SELECT uuid FROM events ORDER BY id LIMIT 1").fetchone()
        connection.execute("DELETE FROM events WHERE uuid = ?", [uuid])
        connection.commit()
    finally:
        connection.close()
    return str(uuid)


LIMIT = 60.0
MANY = 10_000_000


class Sdks:
    """Makes SDKs, and remembers them with what they were made of."""

    def __init__(self, after: Callable[[int], object] = lambda _: None) -> None:
        self.made: list[tuple[str, str, RecordingSdk]] = []
        self._after = after

    def connect(self, host: str, api_key: str) -> RecordingSdk:
        """A new one."""
        self.made.append((host, api_key, RecordingSdk(self._after)))
        return self.made[-1][2]


async def test_a_portion_has_so_many_events_and_the_next_continues() -> None:
    """Each portion is sent by an SDK of its own under its key; every event is remembered by its
    uuid, and none comes twice.
    """
    sdks = Sdks()
    traffic = Traffic("http://h", sdks.connect)
    await traffic.send("phc_one", 30)
    await traffic.send("phc_two", 20)
    await traffic.send("phc_one", 10)
    assert [(host, key, len(sdk.events)) for host, key, sdk in sdks.made] == [
        ("http://h", "phc_one", 30),
        ("http://h", "phc_two", 20),
        ("http://h", "phc_one", 10),
    ]
    assert {key: len(uuids) for key, uuids in traffic.sent.items()} == {
        "phc_one": 40,
        "phc_two": 20,
    }
    assert traffic.everything == {event["uuid"] for _, _, sdk in sdks.made for event in sdk.events}


async def test_before_anything_is_sent_there_is_nothing() -> None:
    """No portion, no events."""
    assert Traffic("http://h", Sdks().connect).everything == frozenset()


async def test_cancelled_it_ends_at_the_next_event() -> None:
    """What was sent by then is remembered; the rest of the portion isn't
    sent, and no thread is left.
    """
    begun = threading.Event()
    go_on = threading.Event()

    def hold(_: int) -> None:
        begun.set()
        assert go_on.wait(LIMIT)

    sdks = Sdks(hold)
    traffic = Traffic("http://h", sdks.connect)
    task = asyncio.create_task(traffic.send("phc_one", MANY))
    await eventually(begun.is_set)
    task.cancel()
    asyncio.get_running_loop().call_soon(go_on.set)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(traffic.everything) == len(sdks.made[0][2].events) < MANY
