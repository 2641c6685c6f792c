"""What waits on disk holds project keys and people's events: it is nobody else's to read."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.upstream import Upstream, plain
from tests.support.waiting import eventually
from tests.support.whole import Whole


@pytest.fixture
def a_generous_umask() -> Iterator[None]:
    """A umask that would let everybody read, until the test is over."""
    before = os.umask(0)
    yield
    os.umask(before)


async def test_nobody_else_may_read_what_waits(tmp_path: Path, a_generous_umask: None) -> None:
    """Whatever the umask: each file of buffer and dead letters is readable by its owner alone, and so is each directory of a worker."""
    path = tmp_path / "state"
    async with Upstream(lambda _: plain(503)) as upstream, Whole(upstream.url, buffer={"kind": "disk", "path": path}) as whole:
        await whole.take([b'{"event":"seen","distinct_id":"ann"}', b'{"distinct_id":"nameless"}'])
        await eventually(lambda: whole.snapshot.lanes and whole.snapshot.lanes[0].total_dead == 1)
        found = modes(path / "worker-0")
    assert set(found) >= {"worker-0", "log", "lock", "dead-letters.db"}
    assert {name: oct(mode) for name, mode in found.items() if mode & 0o077} == {}


def modes(directory: Path) -> dict[str, int]:
    """The permissions of a directory and all that is in it, by name."""
    return {entry.name: stat.S_IMODE(entry.stat().st_mode) for entry in (directory, *directory.rglob("*"))}
