"""`forwarder run` as a process of its own: real signals, real exit codes, a scripted upstream at
the other end.
"""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.commands import Running, forwarder, invoked, running
from tests.support.upstream import UNAUTHORIZED, Answer, Upstream, plain

pytestmark = pytest.mark.slow

KEY = "phc_abcdefghijklmnop"
ANY_PORT = {
    "FORWARDER_SOURCES__HTTP__LISTEN": "127.0.0.1:0",
    "FORWARDER_ADMIN__LISTEN": "127.0.0.1:0",
    "FORWARDER_LOG__FORMAT": "json",
}
AT_ONCE = {"FORWARDER_BATCH__MAX_AGE": "0s", "FORWARDER_UPSTREAM__VERIFY_KEYS": "false"}


class Process:
    """A daemon that runs, and its addresses."""

    def __init__(
        self, command: Running, listening: Mapping[str, Any], client: aiohttp.ClientSession
    ) -> None:
        self.command = command
        self.ingestion = f"http://{listening['ingestion'][0]}"
        self.admin: str = listening["admin"]
        self._client = client

    async def send(self, *names: str) -> int:
        """Send events of those names; the status code."""
        body = {
            "api_key": KEY,
            "batch": [{"event": name, "distinct_id": "someone"} for name in names],
        }
        async with self._client.post(f"{self.ingestion}/batch/", json=body) as response:
            return response.status

    async def ask(self, path: str) -> int:
        """The admin server's status code for `path`."""
        async with self._client.get(f"http://{self.admin}{path}") as response:
            return response.status

    async def logged(self, event: str) -> dict[str, Any]:
        """The next log line of that name."""
        return dict(json.loads(await self.command.line(f'"event": "{event}"')))


@asynccontextmanager
async def daemon(upstream: str, *args: str, **env: str) -> AsyncIterator[Process]:
    """`forwarder run`, once it listens."""
    environment = {**ANY_PORT, **AT_ONCE, "FORWARDER_UPSTREAM__URL": upstream, **env}
    async with running("run", *args, env=environment) as command, aiohttp.ClientSession() as client:
        listening = json.loads(await command.line('"event": "listening"'))
        yield Process(command, listening, client)


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    """A service that takes everything."""
    async with Upstream() as server:
        yield server


async def test_an_interrupt_drains_accepted_events() -> None:
    """Events that wait for the upstream when SIGINT comes are delivered before the process ends
    with 0, as after SIGTERM.
    """
    open_now = asyncio.Event()
    async with (
        Upstream(lambda _: Answer(when=open_now)) as upstream,
        daemon(upstream.url) as process,
    ):
        assert await process.send("first", "second") == 200
        await upstream.until(lambda: upstream.in_flight == 1)
        process.command.send(signal.SIGINT)
        await process.logged("draining")
        open_now.set()
        assert await process.command.ended() == 0
        assert sorted(upstream.delivered) == ["first", "second"]


async def test_undelivered_events_are_logged_and_exit_code_1() -> None:
    """When the drain's time is over, what memory still holds is named per lane, without the key,
    and the exit code is 1.
    """
    async with (
        Upstream(lambda _: plain(503)) as upstream,
        daemon(upstream.url, FORWARDER_SHUTDOWN__DRAIN_TIMEOUT="100ms") as process,
    ):
        assert await process.send("one", "two", "three") == 200
        await upstream.until(lambda: bool(upstream.requests))
        process.command.send(signal.SIGTERM)
        line = await process.logged("events were left behind")
        assert await process.command.ended() == 1
    assert line["undelivered"] == 3
    assert list(line["lanes"].values()) == [3]
    assert KEY not in "\n".join(process.command.lines)


async def test_a_second_signal_ends_the_drain(tmp_path: Path) -> None:
    """A drain that would take an hour is cut short by a second signal: exit code 130. What memory
    holds is a dead letter then.
    """
    lettered = {"FORWARDER_DEAD_LETTERS__PATH": str(tmp_path)}
    async with (
        Upstream(lambda _: plain(503)) as upstream,
        daemon(upstream.url, FORWARDER_SHUTDOWN__DRAIN_TIMEOUT="1h", **lettered) as process,
    ):
        assert await process.send("one") == 200
        process.command.send(signal.SIGTERM)
        await process.logged("draining")
        await process.command.send_until(signal.SIGTERM, '"event": "interrupted"')
        assert (await process.logged("events were left behind"))["undelivered"] == 1
        assert await process.command.ended() == 130
    assert (
        "undelivered_at_exit" in (await invoked("dead-letters", "ls", "--path", str(tmp_path))).out
    )


async def test_signals_that_come_together_are_one(tmp_path: Path) -> None:
    """A supervisor and a process group pass on the same stop: nothing is cut short, and what has
    been answered 200 is delivered.
    """
    open_now = asyncio.Event()
    async with (
        Upstream(lambda _: Answer(when=open_now)) as upstream,
        daemon(upstream.url, FORWARDER_DEAD_LETTERS__PATH=str(tmp_path)) as process,
    ):
        assert await process.send("first", "second") == 200
        await upstream.until(lambda: upstream.in_flight == 1)
        # both are there before it can drain
        for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGCONT):
            process.command.send(number)
        await process.logged("draining")
        open_now.set()
        assert await process.command.ended() == 0
        assert sorted(upstream.delivered) == ["first", "second"]


async def test_events_are_accepted_during_the_delay(upstream: Upstream) -> None:
    """After the signal and for `shutdown.delay`, `/readyz` fails, and what is still sent is taken
    and delivered.
    """
    async with daemon(upstream.url, FORWARDER_SHUTDOWN__DELAY="1h") as process:
        assert await process.ask("/readyz") == 200
        process.command.send(signal.SIGTERM)
        await process.logged("stopping")
        assert (await process.ask("/readyz"), await process.ask("/livez")) == (503, 200)
        assert await process.send("late") == 200
        await upstream.until(lambda: upstream.delivered == ["late"])


async def test_hangup_reads_the_file_again(upstream: Upstream, tmp_path: Path) -> None:
    """After SIGHUP a project key that was added to the file is taken; what
    needs a restart is named.
    """
    file = tmp_path / "forwarder.yaml"
    file.write_text("sources: {http: {api_keys: [phc_another_key_of_ours]}}\n")
    async with daemon(upstream.url, "--config", str(file)) as process:
        assert await process.send("refused") == 401
        file.write_text(
            f"sources: {{http: {{api_keys: [{KEY}]}}}}\nbuffer: {{max_bytes: 32MiB}}\nlog: "
            f"{{level: debug}}\n"
        )
        process.command.send(signal.SIGHUP)
        assert (await process.logged("configuration read again"))["needs_restart"] == [
            "buffer.max_bytes"
        ]
        assert await process.send("taken") == 200
        await upstream.until(lambda: upstream.delivered == ["taken"])


async def test_hangup_with_a_broken_file_changes_nothing(
    upstream: Upstream, tmp_path: Path
) -> None:
    """A file that can't be used is reported with its line, and the daemon continues with what it
    has.
    """
    file = tmp_path / "forwarder.yaml"
    file.write_text("batch: {max_events: 10}\n")
    async with daemon(upstream.url, "--config", str(file)) as process:
        file.write_text("batch: {max_evnts: 10}\n")
        process.command.send(signal.SIGHUP)
        line = await process.logged("the configuration can't be read again; the one in use stays")
        assert f"{file}:1" in line["why"]
        assert await process.send("taken") == 200


async def test_books_can_be_audited_from_outside(upstream: Upstream) -> None:
    """`audit`, `status` and `health` of a live daemon: delivered and dead-lettered
    events balance.
    """
    async with daemon(upstream.url) as process:
        assert await process.send("good", "") == 200
        await upstream.until(lambda: upstream.delivered == ["good"])
        audit = await invoked("audit", "--admin", process.admin)
        assert (audit.code, audit.err) == (0, "")
        assert "1 missing_event" in audit.out
        assert (await invoked("health", "--ready", "--admin", process.admin)).code == 0
        assert (
            KEY not in (await invoked("status", "--admin", process.admin, "--output", "json")).out
        )


async def test_a_halted_lane_is_seen_and_is_no_reason_to_stop() -> None:
    """A key that the upstream doesn't know halts its lane: `status` says why and what to do, while
    the daemon stays ready.
    """
    async with (
        Upstream(decide=lambda _: UNAUTHORIZED) as upstream,
        daemon(upstream.url, FORWARDER_UPSTREAM__VERIFY_KEYS="true") as process,
    ):
        assert await process.send("kept") == 200
        await process.logged("lane halted")
        status = await invoked("status", "--admin", process.admin)
        assert "is halted: unknown_key" in status.out
        assert "what to do: " in status.out
        assert await process.ask("/readyz") == 200
        assert (await invoked("audit", "--admin", process.admin)).code == 0
        assert upstream.delivered == []


@pytest.mark.parametrize("key", ["SOURCES__HTTP__LISTEN", "ADMIN__LISTEN"])
async def test_a_port_in_use_is_one_clear_error(key: str) -> None:
    """A port that someone else has: exit code 2, one error that names it, no traceback."""
    with socket.socket() as busy_socket:
        busy_socket.bind(("127.0.0.1", 0))
        busy_socket.listen()
        address = f"127.0.0.1:{busy_socket.getsockname()[1]}"
        env = {
            **ANY_PORT,
            "FORWARDER_UPSTREAM__URL": "http://127.0.0.1:9",
            f"FORWARDER_{key}": address,
        }
        done = await forwarder("run", env=env)
    assert done.code == 2
    assert address in done.err
    assert "Traceback" not in done.err
    assert done.err.count("Error: ") == 1


async def test_an_unusable_certificate_is_one_clear_error(tmp_path: Path) -> None:
    """A certificate that is none: exit code 2, naming the setting, no traceback."""
    file = tmp_path / "cert.pem"
    file.write_text("no certificate")
    tls = {
        "FORWARDER_SOURCES__HTTP__TLS__CERT_FILE": str(file),
        "FORWARDER_SOURCES__HTTP__TLS__KEY_FILE": str(file),
    }
    done = await forwarder(
        "run", env={**ANY_PORT, "FORWARDER_UPSTREAM__URL": "http://127.0.0.1:9", **tls}
    )
    assert done.code == 2
    assert "sources.http.tls.cert_file" in done.err
    assert "Traceback" not in done.err
