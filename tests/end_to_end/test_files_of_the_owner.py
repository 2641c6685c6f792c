"""What waits on disk holds project keys and people's events: it is no one else's to read."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from forwarder.core.errors import ConfigurationError
from forwarder.sandbox import Sandbox, SandboxOptions
from tests.support.upstream import Upstream, plain
from tests.support.waiting import eventually
from tests.support.whole import Whole


@pytest.fixture
def a_generous_umask() -> Iterator[None]:
    """A umask that would let everyone read, until the test is over."""
    before = os.umask(0)
    yield
    os.umask(before)


async def test_pending_events_are_readable_by_their_owner_only(
    tmp_path: Path, a_generous_umask: None
) -> None:
    """Whatever the umask: each file of buffer and dead letters, and each directory that is made
    for them, is its owner's alone.
    """
    path = tmp_path / "state"
    async with (
        Upstream(lambda _: plain(503)) as upstream,
        Whole(upstream.url, buffer={"kind": "disk", "path": path}) as whole,
    ):
        await whole.take([b'{"event":"seen","distinct_id":"ann"}', b'{"distinct_id":"nameless"}'])
        await eventually(lambda: whole.snapshot.lanes and whole.snapshot.lanes[0].total_dead == 1)
        permissions = modes(path)
    assert set(permissions) >= {"state", "worker-0", "log", "lock", "dead-letters.db"}
    assert {name: oct(mode) for name, mode in permissions.items() if mode & 0o077} == {}


async def test_a_prepared_link_stops_the_start(tmp_path: Path) -> None:
    """A `worker-0` that leads elsewhere is rejected before anything is written there."""
    path = tmp_path / "state"
    elsewhere = tmp_path / "elsewhere"
    path.mkdir()
    elsewhere.mkdir()
    (path / "worker-0").symlink_to(elsewhere)
    with pytest.raises(ConfigurationError, match="worker-0 can't be used: it is a symbolic link"):
        Whole("http://127.0.0.1:9", buffer={"kind": "disk", "path": path})
    assert list(elsewhere.iterdir()) == []


async def test_the_sandboxes_database_is_its_owners(tmp_path: Path, a_generous_umask: None) -> None:
    """The file of `sandbox --database`, and what SQLite keeps beside it, are readable by their
    owner alone.
    """
    async with (
        Sandbox(SandboxOptions(database=tmp_path / "sandbox.db")) as sandbox,
        aiohttp.ClientSession() as session,
    ):
        event = {"api_key": "phc_key", "event": "seen", "distinct_id": "ann"}
        async with session.post(f"{sandbox.url}/capture/", json=event) as answer:
            assert answer.status == 200
        permissions = modes(tmp_path)
    del permissions[tmp_path.name]
    assert "sandbox.db" in permissions
    assert {name: oct(mode) for name, mode in permissions.items() if mode != 0o600} == {}


def modes(directory: Path) -> dict[str, int]:
    """The permissions of a directory and all that is in it, by name."""
    return {
        entry.name: stat.S_IMODE(entry.stat().st_mode)
        for entry in (directory, *directory.rglob("*"))
    }
