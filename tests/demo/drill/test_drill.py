"""The drill over real processes, with faults that it must notice."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forwarder.demo.demo import choose_ports
from forwarder.demo.drill.drill import PORTION, run_drill
from forwarder.demo.drill.findings import Step, Verdict
from tests.support.sdk import PostingSdk

Spoil = Callable[[list[dict[str, Any]]], object]


async def held(directory: Path, tell: Callable[[Step], object], spoil: Spoil = lambda _: None) -> Verdict:
    """A drill with an SDK that posts, after `spoil`."""
    return await run_drill(choose_ports(0), tell, lambda host, key: PostingSdk(host, key, spoil), directory=directory)


@pytest.mark.slow
async def test_an_event_that_the_upstream_lost_is_missed(tmp_path: Path) -> None:
    """An event that was delivered, and then vanishes from the upstream during the outage, is named, and the drill isn't good."""
    lost: list[str] = []
    steps: list[Step] = []

    def plant(step: Step) -> None:
        steps.append(step)
        if step.title == "The upstream is down":
            [database] = tmp_path.glob("forwarder-drill-*/sandbox.db")
            lost.append(lose_one(database))

    found = await held(tmp_path, plant)
    assert found.missing == lost
    assert not found.good
    assert [step.title for step in steps if not step.good] == ["The upstream is back", "The end"]
    assert f"1 of {len(found.sent)} events are missing: {lost[0]}" in found.wrong()
    assert os.listdir(tmp_path) == []  # noqa: PTH208 - pathlib's way is flagged in coroutines


@pytest.mark.slow
async def test_an_event_that_was_lost_on_the_way_in_is_missed(tmp_path: Path) -> None:
    """One that the SDK dropped ends the drill at its first step."""
    steps: list[Step] = []
    found = await held(tmp_path, steps.append, lambda events: events.pop())
    assert (len(found.sent), len(found.missing)) == (PORTION, 1)
    assert [step.title for step in steps] == ["All is well", "The end"]
    assert not found.good


def lose_one(database: Path) -> str:
    """Take an event out of the sandbox's database, which nobody has open; its uuid."""
    connection = sqlite3.connect(database)
    try:
        [uuid] = connection.execute("SELECT uuid FROM events ORDER BY id LIMIT 1").fetchone()
        connection.execute("DELETE FROM events WHERE uuid = ?", [uuid])
        connection.commit()
    finally:
        connection.close()
    return str(uuid)
