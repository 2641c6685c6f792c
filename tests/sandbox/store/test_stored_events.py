"""What takes the same effort however many events are stored: the start, and `/decide`."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from queue import SimpleQueue

import pytest

from benchmarks.stored import KEY, fill
from forwarder.sandbox import SandboxOptions
from forwarder.sandbox.store import database, thread
from forwarder.sandbox.store.database import Store
from tests.sandbox.client import batch, event, talking

_GROUPS = [{"properties": [{"key": "plan", "value": "pro"}]}]
FLAGS = {
    "plain": {"filters": {"groups": _GROUPS}},
    "lasting": {"filters": {"groups": _GROUPS}, "ensure_experience_continuity": True},
    "grouped": {"filters": {"groups": [{}], "aggregation_group_type_index": 0}},
}
QUESTION = {
    "api_key": KEY,
    "distinct_id": "visitor-7",
    "$anon_distinct_id": "x",
    "groups": {"company": "1"},
}


async def effort(path: Path, events: int, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """The steps that the database's machine takes to start a sandbox, and to decide flags."""
    fill(path, events, pending=0)
    connect = database._connect
    steps = 0

    def count() -> None:
        nonlocal steps
        steps += 1

    def counted(path: Path | None) -> sqlite3.Connection:
        connection = connect(path)
        connection.set_progress_handler(count, 1)
        return connection

    with monkeypatch.context() as patch:
        patch.setattr(database, "_connect", counted)
        async with talking(SandboxOptions(database=path)) as client:
            started = steps
            for name, content in FLAGS.items():
                body = json.dumps(content).encode()
                await client.ask("PUT", f"/sandbox/flags/{name}?api_key={KEY}", body)
            steps = 0
            answer = (await client.post("/decide/?v=3", QUESTION)).json
            assert answer["featureFlags"] == dict.fromkeys(FLAGS, True)
            return started, steps


async def test_more_events_take_no_more_effort(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor do more persons and groups, whose number grows with them."""
    few = await effort(tmp_path / "few.db", 1_000, monkeypatch)
    many = await effort(tmp_path / "many.db", 10_000, monkeypatch)
    for with_few, with_many in zip(few, many, strict=True):
        # the thread's upkeep may have had its turn meanwhile, or not; ten times the events would
        # take ten times the steps
        assert 0 < with_many <= with_few * 1.5


async def test_arrivals_are_folded_before_anyone_asks() -> None:
    """As soon as nothing else is to be done: `/decide` then has none left to fold."""
    async with talking() as client:
        await client.post("/batch/", batch(*[event(distinct_id=f"u{n}") for n in range(50)]))
        folded = client.sandbox._thread.next_commit
        while await client.sandbox._thread.run(Store.arrivals_left):
            await folded.wait()


async def test_few_arrivals_are_left_while_requests_never_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a free moment as many are folded as came, but for `BEHIND`."""

    class Busy(SimpleQueue[object]):
        def empty(self) -> bool:
            return False

    monkeypatch.setattr(thread, "BEHIND", 10)
    monkeypatch.setattr(thread, "GROUP", 1)
    monkeypatch.setattr(thread, "SimpleQueue", Busy)
    left = list[int]()
    async with talking() as client:
        for number in range(5):
            events = [event(distinct_id=f"u{number}-{n}") for n in range(30)]
            await client.post("/batch/", batch(*events))
            left.append(await client.sandbox._thread.run(Store.arrivals_left))
    assert max(left) <= 10
