"""The demo with log files: its lines and its rotation, and the demo with a real
sandbox and a real pipeline.
"""

from __future__ import annotations

import asyncio
import gzip
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from uuid import UUID

import aiohttp
import pytest

from forwarder.demo import logs
from forwarder.demo.demo import choose_ports
from forwarder.demo.logs import LogDemo, RotatingLog, lines, open_log_demo
from forwarder.sources.logs.formats import line_format

MOMENT = datetime(2026, 11, 23, 9, 30, tzinfo=UTC)


@pytest.fixture
async def demo() -> AsyncIterator[LogDemo]:
    """A demo."""
    async with open_log_demo(choose_ports(0)) as opened:
        yield opened


@pytest.mark.slow
async def test_everything_arrives(demo: LogDemo) -> None:
    """The page views are in the sandbox, each of them, over several rotations; other lines are
    counted; the books balance.
    """
    await demo.traffic(60)
    assert await demo.settle()
    verdict = await demo.verdict()
    assert verdict.good
    assert verdict.sent == verdict.stored > 100
    [source] = demo.snapshot().logs
    assert source.lines["taken"] == verdict.sent
    assert source.lines["filtered"] > 100
    assert source.lines["unmatched"] == 1
    assert "rotated 3" in demo.details()


@pytest.mark.slow
async def test_page_views_of_other_visitors_are_counted_separately(demo: LogDemo) -> None:
    """A line that was appended by hand is no failure of the demo, nor are
    two events under one uuid.
    """
    await demo.traffic(1)
    double = [
        {"uuid": str(UUID(int=7)), "event": name, "distinct_id": "y"} for name in ("one", "other")
    ]
    async with aiohttp.ClientSession() as client:
        await client.post(
            f"{demo.sandbox_url}/batch/", json={"api_key": "phc_somebodys", "batch": double}
        )
    demo._log.write(next(line for line in lines(9) if line.page is not None).text(MOMENT))
    assert await demo.settle()
    verdict = await demo.verdict()
    assert (verdict.good, verdict.missing, verdict.stored, verdict.extra) == (
        True,
        0,
        verdict.sent,
        2,
    )


@pytest.mark.slow
async def test_endless_traffic_can_be_stopped(demo: LogDemo) -> None:
    """`stop_traffic` ends the story; what was written by then is delivered."""
    task = asyncio.create_task(demo.traffic(None, pause=0.001))
    async with asyncio.timeout(60):
        while not demo.sent:
            await asyncio.wait({task}, timeout=0.01)
    demo.stop_traffic()
    await task
    assert await demo.settle()
    assert (await demo.verdict()).good


def test_it_holds_what_logs_hold() -> None:
    """Page views of many visitors, files, forms, errors, crawlers, IPv6, tokens in queries; and
    one line of another format.
    """
    parse = line_format("combined", None, None, None, "sources.logs[0]").parse
    story = list(lines(60))
    assert [line for line in story if parse(line.text(MOMENT), 0.0) is None] == [
        line for line in story if line.page is None and "[error]" in line.after
    ]
    text = b"\n".join(line.text(MOMENT) for line in story).decode()
    assert all(
        part in text
        for part in (
            "2001:db8::",
            "Googlebot",
            " 304 ",
            " 404 ",
            "POST ",
            ".css",
            "token=s3cret",
            '"-"',
        )
    )
    assert Counter(line.page is None for line in story)[False] > 100


def test_the_story_is_the_same_for_the_same_seed() -> None:
    """And has no end, if the number of visitors isn't given."""
    assert list(lines(20)) == list(lines(20)) != list(lines(20, seed=1))
    assert len(list(islice(lines(None), 5000))) == 5000


def test_the_log_rotates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Renamed, compressed the next time, and deleted in the end: what is left
    is the newest, in order.
    """
    monkeypatch.setattr(logs, "ROTATE_EVERY", 2)
    monkeypatch.setattr(logs, "KEPT", 3)
    with RotatingLog(tmp_path / "log") as log:
        for number in range(11):
            log.write(b"%d" % number)
    names = sorted(path.name for path in (tmp_path / "log").iterdir())
    assert names == ["access.log", "access.log.1", "access.log.2.gz", "access.log.3.gz"]
    contents = [path.read_bytes() for path in (log.path, log.path.with_name("access.log.1"))]
    packed = [
        gzip.decompress(log.path.with_name(f"access.log.{number}.gz").read_bytes())
        for number in (2, 3)
    ]
    assert [*contents, *packed] == [b"10\n", b"8\n9\n", b"6\n7\n", b"4\n5\n"]
    assert (log.lines, log.rotations) == (11, 5)
