"""The commands for a disk buffer, on the files of a real daemon: beside it, and when it is gone."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from forwarder.core.clock import SystemClock
from forwarder.core.event import Lane
from forwarder.inspect.buffer_contents import read_contents, read_log, unsettled
from forwarder.telemetry.labels import lane_label
from tests.support.commands import forwarder, invoked
from tests.support.disk_logs import in_use
from tests.support.upstream import Upstream
from tests.support.whole import KEY, Whole, accepted, events

NOWHERE = "http://127.0.0.1:9"
LABEL = lane_label(Lane(KEY))


def disk(path: Path) -> dict[str, object]:
    """The section of a disk buffer."""
    return {"kind": "disk", "path": str(path)}


async def leave(path: Path, count: int) -> list[bytes]:
    """A daemon takes events that it can't deliver, and ends."""
    raw = events(count)
    async with Whole(NOWHERE, SystemClock(), buffer=disk(path)) as whole:
        await whole.take(raw)
    return raw


async def test_the_commands_beside_a_running_daemon(tmp_path: Path) -> None:
    """`ls`, `verify`, `export` and `explain` read what it holds; `drain` is
    refused, naming the process.
    """
    raw = events(20)
    async with Whole(NOWHERE, SystemClock(), buffer=disk(tmp_path)) as whole:
        await whole.take(raw)
        # `ls` and `export` are processes of their own, as this one logs what the daemon does
        listed = json.loads(
            (await forwarder("buffer", "ls", str(tmp_path), "--output", "json")).out
        )
        assert (listed["events"], listed["directories"][0]["in_use"]) == (20, True)
        assert (await invoked("buffer", "verify", str(tmp_path))).code == 0
        exported = await forwarder("buffer", "export", str(tmp_path))
        assert len(exported.out.splitlines()) == 20
        uuid = json.loads(raw[7])["uuid"]
        assert LABEL in (await invoked("explain", uuid, "--path", str(tmp_path))).out
        refused = await invoked("buffer", "drain", str(tmp_path), "--upstream", NOWHERE)
        assert refused.code == 2
        assert f"in use by another forwarder (process {os.getpid()})" in refused.err


async def test_export_returns_the_accepted_bytes(tmp_path: Path) -> None:
    """In the order of receipt, after the daemon has ended."""
    raw = await leave(tmp_path, 30)
    lines = (await invoked("buffer", "export", str(tmp_path))).out.splitlines()
    assert [line.partition('"batch":[')[2].removesuffix("]}").encode() for line in lines] == raw


async def test_drain_delivers_what_a_daemon_left(tmp_path: Path) -> None:
    """Every event, byte for byte, once; then the buffer is empty, and the books
    balance without a daemon.
    """
    raw = await leave(tmp_path, 40)
    assert "40 events in total" in (await invoked("buffer", "ls", str(tmp_path))).out
    async with Upstream() as upstream:
        done = await invoked("buffer", "drain", str(tmp_path), "--upstream", upstream.url)
        assert (done.code, done.out) == (
            0,
            f"{tmp_path}/worker-0: 40 events delivered, 0 left\n",
        ), done.err
        assert dict(accepted(upstream)) == dict.fromkeys(raw, 1)
    assert "0 events in total" in (await invoked("buffer", "ls", str(tmp_path))).out
    audited = await invoked("audit", "--path", str(tmp_path))
    assert audited.code == 0, audited.out


async def test_drain_refuses_a_directory_that_is_in_use(tmp_path: Path) -> None:
    """Exit code 2, naming the process; nothing is sent."""
    await leave(tmp_path, 3)
    async with Upstream() as upstream:
        with in_use(tmp_path / "worker-0"):
            done = await invoked("buffer", "drain", str(tmp_path), "--upstream", upstream.url)
        assert done.code == 2
        assert "in use by another forwarder (process " in done.err
        assert upstream.delivered == []


async def test_drain_without_an_upstream_that_answers(tmp_path: Path) -> None:
    """Exit code 3, and everything stays."""
    await leave(tmp_path, 3)
    done = await invoked("buffer", "drain", str(tmp_path), "--upstream", NOWHERE)
    assert done.code == 3
    assert "can't be reached" in done.err
    assert "3 events in total" in (await invoked("buffer", "ls", str(tmp_path))).out


async def test_a_flipped_bit_is_found_reported_and_counted(tmp_path: Path) -> None:
    """`verify` names it; after the next start it is known: copied aside, dropped in the books, and
    no alarm any more.
    """
    await leave(tmp_path, 5)
    async with Whole(NOWHERE, SystemClock(), buffer=disk(tmp_path)):
        pass  # the books have them in a checkpoint now
    (segment,) = [
        file for file in (tmp_path / "worker-0" / "log").iterdir() if b'"e3"' in file.read_bytes()
    ]
    segment.write_bytes(segment.read_bytes().replace(b'"e3"', b'"e4"'))
    result = await invoked("buffer", "verify", str(tmp_path))
    assert result.code == 1
    assert "(5 events)" in result.out
    async with Whole(NOWHERE, SystemClock(), buffer=disk(tmp_path)):
        pass
    known = await invoked("buffer", "verify", str(tmp_path))
    assert known.code == 0, known.out
    audited = await invoked("audit", "--path", str(tmp_path))
    assert audited.code == 0
    assert "5 damaged" in audited.out


async def test_drain_with_a_lower_limit_than_the_buffer_was_filled_with(tmp_path: Path) -> None:
    """What is delivered is written down although there are more files than the limit allows:
    nothing would be delivered again.
    """
    async with Whole(
        NOWHERE, SystemClock(), buffer={**disk(tmp_path), "max_bytes": "64MiB"}
    ) as whole:
        for key in (KEY, f"{KEY}other"):
            for number in range(30):
                await whole.take(events(100, f"r{number}-", padding=4000), key)
    async with Upstream() as upstream:
        limit = {"FORWARDER_BUFFER__MAX_BYTES": "10MB"}
        done = await invoked(
            "buffer", "drain", str(tmp_path), "--upstream", upstream.url, env=limit
        )
        assert (done.code, done.out, done.err) == (
            0,
            f"{tmp_path}/worker-0: 6,000 events delivered, 0 left\n",
            "",
        )
    assert "0 events in total" in (await invoked("buffer", "ls", str(tmp_path))).out


async def test_readers_beside_a_busy_daemon_see_no_damage(tmp_path: Path) -> None:
    """While segments are written and used again, every look is whole, and no event is reported
    twice.
    """
    stop = threading.Event()

    def read() -> int:
        looks = 0
        while not stop.is_set():
            assert read_contents(tmp_path / "worker-0").flaws == ()
            stored_events = [
                event for record in unsettled(tmp_path / "worker-0") for event in record.events
            ]
            assert len(set(stored_events)) == len(stored_events)
            looks += 1
        return looks

    with ThreadPoolExecutor(1) as pool:
        looks, generations = await _read_beside(tmp_path, pool, read, stop)
    assert looks > 3
    assert generations > 10


async def _read_beside(
    path: Path, pool: ThreadPoolExecutor, read: Callable[[], int], stop: threading.Event
) -> tuple[int, int]:
    """Run `read` while a daemon takes and delivers; how often it looked, and how often a segment
    was begun.
    """
    async with (
        Upstream() as upstream,
        Whole(
            upstream.url,
            SystemClock(),
            buffer={**disk(path), "max_bytes": "10MB"},
            batch={"max_age": "20ms"},
        ) as whole,
    ):
        reader = asyncio.get_running_loop().run_in_executor(pool, read)
        try:
            for number in range(60):
                await whole.take(events(100, f"r{number}-", padding=4000))
                await whole.until(lambda: whole.total(lambda lane: lane.buffered) < 500)
        finally:
            stop.set()
            looks = await reader
        return looks, max(scan.header.generation for scan in read_log(path / "worker-0").segments)
