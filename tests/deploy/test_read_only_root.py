"""A container's root file system can be read-only: the daemon writes to /var/lib/forwarder, and
nowhere else.

The image's environment, with a directory of the test instead of the volume, on a root that
can't be written to.
"""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from tests.support.commands import Running
from tests.support.deployment import STATE
from tests.support.dockerfile import FORWARDER
from tests.support.read_only_root import confined, needs_read_only_root
from tests.support.upstream import OK, Upstream, plain
from tests.support.waiting import eventually

KEY = "phc_readOnlyRootProjectKey01"
GOOD = {"event": "seen", "distinct_id": "ann"}
NAMELESS = {"event": "", "distinct_id": "ann"}


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """The one directory that can be written to."""
    place = tmp_path / "state"
    place.mkdir()
    needs_read_only_root(place)
    return place


def environment(state: Path, **more: str) -> dict[str, str]:
    """What the image sets, on any free ports and with `state` as its volume, and what a user adds.

    Without XDG_STATE_HOME a test that runs as root would find this machine's own
    /var/lib/forwarder, as the image's user would not.
    """
    image = {
        name: value.replace(STATE, str(state))
        for name, value in FORWARDER.environment.items()
        if name != "PATH"
    }
    image |= dict.fromkeys((name for name in image if name.endswith("__LISTEN")), "127.0.0.1:0")
    quick = {
        "FORWARDER_SHUTDOWN__DRAIN_TIMEOUT": "200ms",
        "FORWARDER_UPSTREAM__VERIFY_KEYS": "false",
    }
    return {**image, "XDG_STATE_HOME": str(state), **quick, **more}


class ReadOnlyDaemon:
    """A daemon that listens."""

    def __init__(self, command: Running, listening: str) -> None:
        self.command = command
        self._addresses = json.loads(listening)

    async def send(self, *events: dict[str, str]) -> int:
        """Send events in one request; the status of the answer."""
        url = f"http://{self._addresses['ingestion'][0]}/batch/"
        async with (
            aiohttp.ClientSession() as client,
            client.post(url, json={"api_key": KEY, "batch": list(events)}) as response,
        ):
            return response.status

    async def stop(self) -> int:
        """SIGTERM; the exit code."""
        self.command.send(signal.SIGTERM)
        return await self.command.ended()

    @property
    def admin(self) -> str:
        """The admin address."""
        return str(self._addresses["admin"])


@asynccontextmanager
async def daemon(state: Path, upstream: str, **more: str) -> AsyncIterator[ReadOnlyDaemon]:
    """`forwarder run`, until it is stopped."""
    async with confined(
        state, "run", env=environment(state, FORWARDER_UPSTREAM__URL=upstream, **more)
    ) as command:
        yield ReadOnlyDaemon(command, await command.line('"event": "listening"'))


def held(state: Path) -> list[str]:
    """What is in the directory."""
    return sorted(path.name for path in state.iterdir())


async def said(state: Path, *args: str) -> tuple[int, str]:
    """Exit code and output of another command there."""
    async with confined(state, *args, env=environment(state)) as command:
        code = await command.ended()
        return code, "\n".join(command.lines)


@pytest.mark.slow
async def test_a_disk_buffer_and_its_dead_letters(state: Path) -> None:
    """Events of an outage wait for the next start there, a refused one is a dead letter, and the
    health check finds the daemon.
    """
    async with Upstream(lambda _: plain(503)) as upstream:
        async with daemon(
            state, upstream.url, FORWARDER_BUFFER__KIND="disk", FORWARDER_BUFFER__PATH=str(state)
        ) as first:
            assert await first.send(GOOD, NAMELESS) == 200
            assert (await said(state, "health", "--admin", first.admin))[0] == 0
            assert (await said(state, "status", "--admin", first.admin))[0] == 0
            assert await first.stop() == 0
        upstream.answer = lambda _: OK
        async with daemon(
            state, upstream.url, FORWARDER_BUFFER__KIND="disk", FORWARDER_BUFFER__PATH=str(state)
        ) as second:
            await eventually(lambda: upstream.delivered == ["seen"])
            assert await second.stop() == 0
    code, letters = await said(state, "dead-letters", "ls")
    assert code == 0, letters
    assert "missing_event" in letters


@pytest.mark.slow
async def test_what_a_memory_buffer_leaves_behind(state: Path) -> None:
    """The image says where dead letters go without a disk buffer: what memory still held at the
    end is there, with exit code 1.
    """
    async with Upstream(lambda _: plain(503)) as upstream, daemon(state, upstream.url) as running:
        assert await running.send(GOOD) == 200
        await upstream.until(lambda: len(upstream.requests) >= 1)
        assert await running.stop() == 1
        assert not [line for line in running.command.lines if "kept in memory" in line]
    code, letters = await said(state, "dead-letters", "ls")
    assert code == 0, letters
    assert "undelivered_at_exit" in letters


@pytest.mark.slow
async def test_several_workers(state: Path) -> None:
    """A supervisor and its workers write nowhere else either."""
    async with Upstream() as upstream:
        more = {
            "FORWARDER_WORKERS": "2",
            "FORWARDER_BUFFER__KIND": "disk",
            "FORWARDER_BUFFER__PATH": str(state),
        }
        async with daemon(state, upstream.url, **more) as running:
            assert await running.send(GOOD) == 200
            await eventually(lambda: upstream.delivered == ["seen"])
            assert await running.stop() == 0
    assert held(state) == ["worker-0", "worker-1"]


@pytest.mark.slow
async def test_the_sandbox(state: Path) -> None:
    """The sandbox, of the same image, keeps its database on the volume."""
    database = state / "sandbox.db"
    args = ("sandbox", "--listen", "127.0.0.1:0", "--database", str(database))
    async with confined(state, *args, env=environment(state)) as sandbox:
        url = (await sandbox.line("listening on")).rpartition(" ")[2].strip()
        async with aiohttp.ClientSession() as client:
            async with client.post(
                f"{url}/batch/", json={"api_key": KEY, "batch": [GOOD]}
            ) as response:
                assert response.status == 200
            async with client.get(f"{url}/sandbox/summary") as response:
                assert (await response.json())["events"] == 1
        sandbox.send(signal.SIGTERM)
        assert await sandbox.ended() == 0
    assert database.exists()
