"""Logs that grow while nothing can be delivered or stored: positions stay, little is held, and all
arrives later, each line once.
"""

from __future__ import annotations

import json
import resource
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from forwarder.sources.logs.positions import read_positions
from forwarder.telemetry.snapshot import LogSourceState, balanced
from tests.support.clock import FakeClock
from tests.support.filesystems import Mounted, mounted
from tests.support.upstream import Upstream
from tests.support.waiting import eventually, tick
from tests.support.whole import KEY, Whole, split

SIZE: Final = 8 << 20
AT: Final = 1_767_225_600
PADDING: Final = "x" * 400
MAX_IN_FLIGHT: Final = 1 << 20
GROWTH: Final = 16 << 20
"""By which this process may grow in an outage: the buffer and what is in flight, several times;
less than what is written.
"""
HOUR: Final = 3600.0
STEP: Final = 10.0
EACH: Final = 150
"""Lines that are written in a step: about 26 MB in the hour."""


class Log:
    """A log that grows."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "app.log"
        self.count = 0
        self.cri = False
        """Whether it is one of Kubernetes: each line has a time of its own."""

    def write(self, count: int) -> None:
        """Append so many lines."""
        numbers = range(self.count, self.count + count)
        records = [
            {"n": number, "who": f"p{number % 50}", "at": AT + number, "text": PADDING}
            for number in numbers
        ]
        begin = "2026-01-01T00:00:00.5Z stdout F " if self.cri else ""
        with self.path.open("a") as file:
            file.writelines(f"{begin}{json.dumps(record)}\n" for record in records)
        self.count += count

    def source(self, *, timed: bool = True, **more: Any) -> dict[str, Any]:
        """What follows it. `timed`: events have the times of their lines, else those at which the
        lines were read first.
        """
        record = ".message" if self.cri else ""
        rules: dict[str, Any] = {
            "event": '"line"',
            "distinct_id": f"{record}.who",
            "properties": {"n": f"{record}.n", "text": f"{record}.text"},
        }
        if self.cri:
            more = {"format": "cri", "message_format": "json", **more}
        elif timed:
            rules["timestamp"] = {"from": ".at", "format": "unix"}
        changed = {
            "poll_interval": "100ms",
            "commit_interval": "100ms",
            "max_in_flight": MAX_IN_FLIGHT,
            **more,
        }
        return {
            "path": (str(self.path),),
            "api_key": KEY,
            "host": "web-1",
            "mapping": rules,
            **changed,
        }

    def sources(self, **more: Any) -> dict[str, Any]:
        """The section."""
        return {"http": {"listen": "127.0.0.1:0"}, "logs": (self.source(**more),)}


def state(whole: Whole) -> LogSourceState:
    """Of the source."""
    (source,) = whole.snapshot.logs
    return source


def position(whole: Whole) -> int:
    """Of the file; all before it is settled."""
    (file,) = state(whole).files
    return file.position


def stored(disk: Mounted) -> int:
    """The position that a restart would begin at."""
    ((file,),) = read_positions(disk.path / "logs" / "logs.db").values()
    return file.position


def arrived(upstream: Upstream) -> Counter[int]:
    """How often each line was in a request that was accepted."""
    return Counter(
        event["properties"]["n"] for request in upstream._answered for event in request.events
    )


def different(upstream: Upstream) -> int:
    """How many different events were accepted: a repeat has the same bytes."""
    return len({raw for request in upstream._answered for raw in split(request)})


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Mounted]:
    """A small file system of this test's own."""
    try:
        mounting = mounted(tmp_path / "disk", SIZE)
        place = mounting.__enter__()
    except OSError as error:
        pytest.skip(f"a file system can't be mounted here: {error.strerror}")
    yield place
    mounting.__exit__(None, None, None)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """A log on another disk."""
    return Log(tmp_path)


async def test_the_disk_of_buffer_and_positions_fills(disk: Mounted, log: Log) -> None:
    """Nothing is taken and no position moves while nothing can be written; then all arrives, once,
    over a kill as well.
    """
    buffer = {"kind": "disk", "path": disk.path, "max_bytes": 4 << 20}
    batch = {"max_bytes": "200kB", "max_age": "100ms"}
    async with (
        Upstream() as upstream,
        Whole(
            upstream.url, buffer=buffer, batch=batch, sources=log.sources(commit="disk")
        ) as whole,
    ):
        log.write(500)
        await eventually(
            lambda: len(arrived(upstream)) == 500 and position(whole) == log.path.stat().st_size
        )
        before = position(whole)
        ballast = disk.fill()
        log.write(10_000)
        await eventually(
            lambda: state(whole).why and len(arrived(upstream)) < log.count,
            explain=lambda: state(whole),
        )
        await whole.restart(crash=True)
        await eventually(
            lambda: state(whole).files and state(whole).why, explain=lambda: state(whole)
        )
        assert before <= position(whole) < log.path.stat().st_size
        assert state(whole).in_flight_bytes <= MAX_IN_FLIGHT * 3
        ballast.unlink()
        await eventually(lambda: len(arrived(upstream)) == log.count, explain=lambda: state(whole))
        await eventually(
            lambda: position(whole) == log.path.stat().st_size and not state(whole).why,
            explain=lambda: state(whole),
        )
        assert balanced(whole.snapshot)
    assert different(upstream) == log.count


async def test_the_disk_of_the_positions_fills(disk: Mounted, log: Log) -> None:
    """Lines that have their own times are delivered all the same, and it is said that a restart
    would bring them again; it does, with the same bytes.
    """
    letters = {"path": disk.path}
    log.cri = True
    async with (
        Upstream() as upstream,
        Whole(upstream.url, dead_letters=letters, sources=log.sources()) as whole,
    ):
        log.write(500)
        await eventually(lambda: len(arrived(upstream)) == 500 and state(whole).commits.get("ok"))
        await eventually(lambda: stored(disk) == log.path.stat().st_size)
        ballast = disk.fill()
        log.write(5000)
        await eventually(lambda: len(arrived(upstream)) == log.count)
        await eventually(lambda: state(whole).state == "down", explain=lambda: state(whole))
        assert "positions can't be stored" in state(whole).why
        await whole.restart(crash=True)
        await eventually(
            lambda: sum(arrived(upstream).values()) == log.count + 5000,
            explain=lambda: state(whole),
        )
        ballast.unlink()
        await eventually(lambda: state(whole).state == "reading", explain=lambda: state(whole))
        await eventually(lambda: stored(disk) == log.path.stat().st_size)
        await whole.restart(crash=True)
        log.write(10)
        await eventually(lambda: len(arrived(upstream)) == log.count)
    assert sum(arrived(upstream).values()) == log.count + 5000
    assert different(upstream) == log.count


async def test_lines_without_a_time_wait_for_the_disk_of_the_positions(
    disk: Mounted, log: Log
) -> None:
    """The time at which a line is read is the event's: while it can't be stored nothing is taken,
    so that a kill doesn't change it.
    """
    letters = {"path": disk.path}
    async with (
        Upstream() as upstream,
        Whole(upstream.url, dead_letters=letters, sources=log.sources(timed=False)) as whole,
    ):
        log.write(500)
        await eventually(
            lambda: len(arrived(upstream)) == 500 and position(whole) == log.path.stat().st_size
        )
        ballast = disk.fill()
        log.write(5000)
        await eventually(lambda: state(whole).state == "down", explain=lambda: state(whole))
        await whole.restart(crash=True)
        await eventually(lambda: state(whole).state == "down", explain=lambda: state(whole))
        assert len(arrived(upstream)) < log.count
        ballast.unlink()
        await eventually(lambda: len(arrived(upstream)) == log.count, explain=lambda: state(whole))
        await eventually(
            lambda: state(whole).state == "reading" and position(whole) == log.path.stat().st_size
        )
    assert different(upstream) == log.count


async def test_the_upstream_is_away_for_an_hour(log: Log, tmp_path: Path) -> None:
    """Positions don't move, no more is read than may be held, and what is written in the meantime
    arrives afterwards, each line once.
    """
    clock = FakeClock(turns=4)
    sources = log.sources(poll_interval="1s", commit_interval="1s")
    async with Upstream(keeps=True) as upstream:
        await upstream.stop()
        letters = {"path": tmp_path / "state"}
        async with Whole(
            upstream.url,
            clock,
            dead_letters=letters,
            buffer={"max_bytes": 4 << 20},
            sources=sources,
        ) as whole:
            log.write(EACH)
            await whole.until(lambda: state(whole).lines.get("taken"))
            memory = 0
            held = list[int]()
            for step in range(int(HOUR / STEP)):
                log.write(EACH)
                await clock.advance(STEP)
                for _ in range(3):
                    await tick()  # for the thread that reads
                held.append(state(whole).in_flight_bytes)
                if step == 60:
                    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            assert position(whole) == 0
            assert state(whole).why
            assert state(whole).lag == pytest.approx(log.path.stat().st_size, rel=0.01)
            assert max(held) <= MAX_IN_FLIGHT * 3
            assert whole.snapshot.buffer_bytes <= 4 << 20
            assert (
                resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
                < memory + GROWTH
                < memory + log.path.stat().st_size
            )
            assert whole.snapshot.ready
            async with upstream:
                await whole.until(
                    lambda: sum(lane.delivered for lane in whole.snapshot.lanes) == log.count
                )
                await whole.until(lambda: position(whole) == log.path.stat().st_size)
                assert arrived(upstream) == Counter(range(log.count))
            assert balanced(whole.snapshot)
