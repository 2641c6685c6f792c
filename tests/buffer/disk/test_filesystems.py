"""The whole pipeline on disks that are full, or that nothing can be written to: real ones, where
this process may mount them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import structlog
from structlog.testing import capture_logs
from structlog.typing import EventDict

from tests.support.filesystems import Mounted, mounted
from tests.support.listening import post
from tests.support.upstream import OK, Upstream, plain
from tests.support.waiting import eventually
from tests.support.whole import Whole, accepted, always_balanced, batch, events

SIZE: Final = 8 << 20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Mounted]:
    """A small file system of this test's own."""
    try:
        mounting = mounted(tmp_path / "disk", SIZE)
        place = mounting.__enter__()
    except OSError as error:
        pytest.skip(
            f"a file system can't be mounted here: {error.strerror}; the same with injected "
            "errors is in tests/end_to_end"
        )
    yield place
    mounting.__exit__(None, None, None)


def on(disk: Mounted, max_bytes: int = 4 << 20) -> dict[str, Any]:
    """Settings for a buffer there."""
    return {
        "buffer": {"kind": "disk", "path": disk.path, "max_bytes": max_bytes},
        "batch": {"max_bytes": "200kB", "max_age": "100ms"},
    }


async def fill(whole: Whole) -> list[bytes]:
    """Send until it is refused; what was taken."""
    sent: list[bytes] = []
    for number in range(1000):
        raw = events(50, f"f{number}-", padding=1000)
        reply = await whole.send(post("/batch/", batch(raw, f"phc_oneofthreelanes{number % 3}")))
        if reply.status == 503:
            assert int(reply.headers["retry-after"]) > 0
            return sent
        sent += raw
    raise AssertionError("never full")


@contextmanager
def refused(whole: Whole) -> Iterator[None]:
    """The disk refuses to write within this, and the log and `/readyz` say so: for a second at
    least, for what is tried then is small and may find room where a request didn't.
    """
    said: list[tuple[tuple[str, ...], bool]] = []

    def note(_: object, __: str, line: EventDict) -> EventDict:
        if line["event"].startswith("the disk refuses to write"):
            asyncio.get_running_loop().call_soon(
                lambda: said.append((whole.snapshot.not_ready, whole.snapshot.buffer_refusing))
            )
        return line

    processors = structlog.get_config()["processors"]
    processors.insert(0, note)
    try:
        yield
    finally:
        processors.remove(note)
    assert (("the disk refuses to write: No space left on device; senders get 503",), True) in said


async def test_a_disk_that_fills_up_while_it_runs(disk: Mounted) -> None:
    """Senders get 503 and `/readyz` says why; what waits is delivered; once someone makes room it
    takes events again by itself.
    """
    taking = False
    async with (
        Upstream(lambda _: OK if taking else plain(500)) as upstream,
        Whole(upstream.url, **on(disk)) as whole,
    ):
        with always_balanced(whole):
            before = events(50, "before")
            await whole.take(before)
            ballast = disk.fill()
            with refused(whole):
                sent = await fill(whole)
            taking = True
            await whole.emptied()
            taking = False
            sent += await fill(whole)
            ballast.unlink()
            await eventually(lambda: whole.snapshot.ready)
            after = events(50, "after")
            await whole.take(after)
            await whole.restart(crash=True)
            taking = True
            await whole.emptied()
        arrived = accepted(upstream)
        assert set(arrived) == {*before, *sent, *after}


async def test_a_buffer_that_is_larger_than_its_disk(disk: Mounted) -> None:
    """It is full when the disk is; when the upstream is back everything is delivered, and events
    are taken without anybody's help.
    """
    taking = False
    async with (
        Upstream(lambda _: OK if taking else plain(500)) as upstream,
        Whole(upstream.url, **on(disk, 256 << 20)) as whole,
    ):
        with always_balanced(whole):
            with refused(whole):
                sent = await fill(whole)
            taking = True
            await whole.emptied()
            await eventually(lambda: whole.snapshot.ready)
            more = events(50, "more")
            await whole.take(more)
            await whole.emptied()
            await whole.written()
            await whole.restart(crash=True)
            assert not any(lane.buffered or lane.total_dropped for lane in whole.snapshot.lanes)
        assert set(accepted(upstream)) == {*sent, *more}


async def test_a_disk_that_is_full_at_the_start(disk: Mounted) -> None:
    """What is there is delivered; the daemon runs, refuses events, says why, and takes them when
    there is room.
    """
    ballast = disk.fill()
    for path in [file for file in (ballast,) if file.stat().st_size > SIZE // 2]:
        os.truncate(path, path.stat().st_size - 300_000)  # for the dead letters' file
    async with Upstream() as upstream:
        with capture_logs() as logs:
            async with Whole(upstream.url, **on(disk)) as whole:
                await eventually(lambda: whole.snapshot.not_ready)
                assert (await whole.send(post("/batch/", batch(events(1))))).status == 503
                ballast.unlink()
                await eventually(lambda: whole.snapshot.ready)
                await whole.take(events(5))
                await whole.emptied()
        refusals = [line for line in logs if line["event"].startswith("the disk refuses to write")]
        assert refusals[0]["why"] == "No space left on device"
        assert refusals[0]["hint"].startswith("free space at buffer.path")
        assert any(line["event"] == "the disk can be written again" for line in logs)


async def test_a_disk_that_cannot_be_written(disk: Mounted) -> None:
    """What is on it is delivered; new events get 503, and `/readyz` says why; once it can be
    written again they are taken.
    """
    taking = False
    async with Upstream(lambda _: OK if taking else plain(500)) as upstream:
        async with Whole(upstream.url, **on(disk)) as whole:
            before = events(50, "before")
            await whole.take(before)
        disk.read_only(so=True)
        async with Whole(upstream.url, **on(disk)) as whole:
            await eventually(lambda: whole.snapshot.not_ready)
            assert whole.snapshot.not_ready == (
                "the disk refuses to write: Read-only file system; senders get 503",
            )
            assert (await whole.send(post("/batch/", batch(events(1))))).status == 503
            taking = True
            await whole.emptied()
            assert accepted(upstream) == dict.fromkeys(before, 1)
            disk.read_only(so=False)
            await eventually(lambda: whole.snapshot.ready)
            after = events(5, "after")
            await whole.take(after)
            await whole.emptied()
            await whole.written()
            await whole.restart(crash=True)
            assert whole.total(lambda lane: lane.buffered) == 0
    assert accepted(upstream) == dict.fromkeys([*before, *after], 1)
