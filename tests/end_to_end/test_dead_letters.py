"""Dead letters through real processes: refused, looked at, edited, replayed and dropped, with a
crash at each of the worst instants.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.deadletter.rig import query
from tests.end_to_end.test_process import KEY, DaemonProcess, daemon
from tests.support.commands import Finished, invoked
from tests.support.listening import post as raw_post
from tests.support.upstream import OK, Answer, Upstream, plain
from tests.support.waiting import FastClock, eventually
from tests.support.whole import Whole, batch, event

BAD = "bad0"
ONE_AT_A_TIME = {"FORWARDER_DELIVERY__CONCURRENCY": "1"}
"""An event that is in flight beside the refused one proves nothing about it: with more requests at
a time, and none later, the lane would wait for another.
"""
HALTED = 150.0
"""Seconds in which a letter is written though its event was alone in its batch, as on a slow
machine: that halts its lane first, for a minute.
"""


def on_disk(path: Path) -> dict[str, str]:
    """Settings of a disk buffer."""
    return {"FORWARDER_BUFFER__KIND": "disk", "FORWARDER_BUFFER__PATH": str(path)}


def refusing(request: Any) -> Answer:
    """An upstream that refuses each request with the bad event in it."""
    return Answer(400, b"the bad one") if BAD in request.names else Answer()


async def letters(state: Path, *args: str) -> Finished:
    """The command, on the daemon's files."""
    return await invoked("dead-letters", *args, "--path", str(state))


async def test_a_refused_event_is_repaired_and_sent_again(tmp_path: Path) -> None:
    """The upstream refuses an event; it outlives the daemon and its memory buffer as a letter;
    edited and replayed it arrives, once, and the books balance.
    """
    env = {"FORWARDER_DEAD_LETTERS__PATH": str(tmp_path), **ONE_AT_A_TIME}
    async with Upstream(refusing) as upstream:
        async with daemon(upstream.url, **env) as first:
            await first.send(3, "good")
            await first.send(1, "bad")
            await first.send(3, "more")
            await eventually(lambda: _count(tmp_path) == 1, HALTED)
            first.command.send(signal.SIGTERM)
            assert await first.command.ended() == 0
        listed = json.loads((await letters(tmp_path, "ls", "--output", "json")).out)
        assert [(letter["reason"], letter["event"]) for letter in listed["results"]] == [
            ("refused", BAD)
        ]
        async with daemon(upstream.url, **env) as second:
            replayed = await letters(
                tmp_path, "replay", "--all", "--edit", '.event = "mended"', "--yes"
            )
            assert (replayed.code, replayed.out) == (0, "1 dead letter sent again\n")
            await upstream.until(lambda: "mended" in upstream.delivered)
            second.command.send(signal.SIGTERM)
            assert await second.command.ended() == 0
    assert sorted(upstream.delivered) == [
        "good0",
        "good1",
        "good2",
        "mended",
        "more0",
        "more1",
        "more2",
    ]
    assert KEY not in listed
    assert _count(tmp_path) == 0


def _count(state: Path) -> int:
    """Letters in the file."""
    count: int = query(state / "worker-0", "SELECT count(*) FROM letters")[0][0]
    return count


async def test_letters_go_with_a_drain(tmp_path: Path) -> None:
    """Marked while no daemon runs, letters are sent again by `forwarder buffer drain`."""
    env = on_disk(tmp_path)
    async with Upstream(lambda _: Answer()) as upstream:
        async with daemon(upstream.url, **env) as first:
            body = {"api_key": KEY, "batch": [{"event": f"nobody{number}"} for number in range(40)]}
            assert await post(first, body) == 200
            await eventually(lambda: _count(tmp_path) == 40)
            first.command.send(signal.SIGTERM)
            assert await first.command.ended() == 0
        edit = ("--edit", '.distinct_id = "somebody"')
        marked = await letters(tmp_path, "replay", "--all", *edit, "--yes")
        assert (marked.code, "no daemon runs" in marked.out) == (0, True)
        drained = await invoked("buffer", "drain", str(tmp_path), "--upstream", upstream.url)
        assert (drained.code, "40 events delivered" in drained.out) == (0, True)
    assert sorted(upstream.delivered) == sorted(f"nobody{number}" for number in range(40))
    assert _count(tmp_path) == 0


async def post(to: DaemonProcess, body: dict[str, Any]) -> int:
    """Send a body; the answer's status."""
    async with (
        aiohttp.ClientSession() as client,
        client.post(f"{to.ingestion}/batch/", json=body) as response,
    ):
        return response.status


@pytest.mark.parametrize("instant", ["dead_letters.begin", "dead_letters.committed"])
async def test_a_kill_while_a_letter_is_written(tmp_path: Path, instant: str) -> None:
    """Killed before or after the commit of a refused event's letter, the next start has it once,
    and its books balance.
    """
    env = on_disk(tmp_path) | ONE_AT_A_TIME
    async with Upstream(refusing) as upstream:
        async with daemon(upstream.url, FORWARDER_FAILPOINTS=f"{instant}=kill", **env) as first:
            assert (await first.send(1, "good"))[0] == 200
            await upstream.until(lambda: "good0" in upstream.delivered)
            assert (await first.send(1, "bad"))[0] == 200
            assert (await first.send(1, "more"))[0] == 200
            assert await first.command.ended() == -signal.SIGKILL
        async with daemon(upstream.url, **env) as second:
            await second.send(1, "last")
            await eventually(lambda: _count(tmp_path) == 1, HALTED)
            await upstream.until(lambda: {"more0", "last0"} <= set(upstream.delivered))
            assert (await invoked("audit", "--admin", second.admin)).code == 0
            second.command.send(signal.SIGTERM)
            assert await second.command.ended() == 0
    assert _count(tmp_path) == 1


async def test_a_kill_between_replay_and_removal(tmp_path: Path) -> None:
    """Killed when the event is in the buffer again and its letter not yet removed, the next start
    delivers it once and has no letter.
    """
    env = on_disk(tmp_path) | ONE_AT_A_TIME
    async with Upstream(refusing) as upstream:
        async with daemon(upstream.url, FORWARDER_FAILPOINTS="replay.held=kill", **env) as first:
            await first.send(1, "good")
            await first.send(1, "bad")
            await first.send(1, "more")
            await eventually(lambda: _count(tmp_path) == 1, HALTED)
            replayed = await letters(
                tmp_path, "replay", "--all", "--edit", '.event = "mended"', "--yes"
            )
            assert (replayed.code, "The daemon stopped" in replayed.err) == (1, True)
            assert await first.command.ended() == -signal.SIGKILL
        assert _count(tmp_path) == 1
        async with daemon(upstream.url, **env) as second:
            await upstream.until(lambda: "mended" in upstream.delivered)
            await second.send(1, "last")
            await upstream.until(lambda: "last0" in upstream.delivered)
            assert (await invoked("audit", "--admin", second.admin)).code == 0
            second.command.send(signal.SIGTERM)
            assert await second.command.ended() == 0
    assert _count(tmp_path) == 0
    assert upstream.delivered.count("mended") == 1


@pytest.mark.parametrize("names", [["a"], ["a", "b"]])
async def test_a_replayed_event_has_passed_no_other_forwarder(
    names: list[str], tmp_path: Path
) -> None:
    """However many it had passed when it came: it starts anew from here, at one destination and at
    several.
    """
    refuses = True
    async with Upstream(
        lambda asked: plain(400) if refuses and b"bad" in asked.body else OK
    ) as upstream:
        sections: dict[str, Any] = {"dead_letters": {"path": str(tmp_path)}}
        if names[1:]:
            sections["upstreams"] = [{"name": name, "url": upstream.url} for name in names]
            sections["routes"] = [{"to": names}]
        alone = upstream.url if not names[1:] else ""
        async with Whole(alone, FastClock(100), **sections) as whole:
            before = f"Forwarder-Path: 3; {'b' * 12}"
            await whole.send(raw_post("/batch/", batch([event("bad"), event("good")]), before))
            stores = [destination.stores for destination in whole.pipeline._parts.destinations]
            await whole.emptied()
            for store in stores:
                await store.committer.settle()
            assert hops(upstream) == {"4"}
            refuses = False
            upstream.requests.clear()
            for store in stores:
                path = store.dead_letters.statistics().path
                assert path is not None
                query(path.parent, "UPDATE letters SET mark = 'replay'")
            await eventually(lambda: len(upstream.requests) == len(names))
            assert hops(upstream) == {"1"}


def hops(upstream: Upstream) -> set[str]:
    """How many forwarders the requests say that they have passed."""
    return {request.headers["forwarder-path"].partition(";")[0] for request in upstream.requests}
