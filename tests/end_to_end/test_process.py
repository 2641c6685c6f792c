"""`python -m forwarder run` and `sandbox` as processes: the official SDK through both, a slow
drain, and secrets that stay secret.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import aiohttp
import pytest
from posthog import Posthog
from posthog.request import reset_sessions

from tests.support.admin import resident
from tests.support.commands import COMMAND, Running, running
from tests.support.upstream import Answer, Upstream, plain
from tests.support.waiting import eventually, in_thread

KEY = "phc_aSecretProjectKey4711"
PERSONAL = "phx_aSecretPersonalKey0815"
ENV = {
    "FORWARDER_SOURCES__HTTP__LISTEN": "127.0.0.1:0",
    "FORWARDER_ADMIN__LISTEN": "127.0.0.1:0",
    "FORWARDER_LOG__FORMAT": "json",
    "FORWARDER_LOG__LEVEL": "debug",
    "FORWARDER_BATCH__MAX_AGE": "20ms",
    "FORWARDER_DELIVERY__RETRY__INITIAL": "20ms",
    "FORWARDER_DELIVERY__RETRY__MAX": "50ms",
}


class DaemonProcess:
    """A `forwarder run` that listens, and a client of both its servers."""

    def __init__(self, command: Running, line: str, client: aiohttp.ClientSession) -> None:
        listening = json.loads(line)
        self.command = command
        self.ingestion = f"http://{listening['ingestion'][0]}"
        self.admin = f"http://{listening['admin']}"
        self._client = client

    async def send(
        self, count: int, name: str = "e", key: str = KEY, **headers: str
    ) -> tuple[int, str]:
        """Send so many events in one request; the status, and the body of the answer."""
        body = {
            "api_key": key,
            "batch": [
                {"event": f"{name}{number}", "distinct_id": "ann"} for number in range(count)
            ],
        }
        async with self._client.post(
            f"{self.ingestion}/batch/", json=body, headers=headers
        ) as response:
            return response.status, await response.text()

    async def attempt(self, name: str) -> int | None:
        """Send an event; None if no one listens any more."""
        try:
            return (await self.send(1, name))[0]
        except aiohttp.ClientError:
            return None

    async def read(self, path: str, accept: str = "*/*") -> tuple[int, str]:
        """What the admin server says."""
        async with self._client.get(f"{self.admin}{path}", headers={"Accept": accept}) as response:
            return response.status, await response.text()


@asynccontextmanager
async def daemon(
    upstream: str, command: Sequence[str] = COMMAND, **env: str
) -> AsyncIterator[DaemonProcess]:
    """A daemon that listens; `command`: what stands for `forwarder`."""
    given = {**ENV, "FORWARDER_UPSTREAM__URL": upstream, **env}
    async with (
        running("run", env=given, command=command) as process,
        aiohttp.ClientSession() as client,
    ):
        yield DaemonProcess(process, await process.line('"event": "listening"'), client)


def talk(host: str, count: int) -> None:
    """An application with the SDK."""
    client = Posthog(KEY, host=host, gzip=True, capture_mode="v0")
    for number in range(count):
        client.capture("seen", distinct_id=f"person-{number}", properties={"n": number})
    client.shutdown()
    reset_sessions()


async def test_the_sdk_through_two_processes() -> None:
    """SDK → forwarder → sandbox, each on its own: every event is there once, and the daemon ends
    with 0.
    """
    async with running(
        "sandbox", "--listen", "127.0.0.1:0", "--strict", "--api-key", KEY
    ) as sandbox:
        url = (await sandbox.line("listening on")).rpartition(" ")[2]
        async with daemon(url) as forwarder:
            await in_thread(lambda: talk(forwarder.ingestion, 250))
            forwarder.command.send(signal.SIGTERM)
            assert await forwarder.command.ended() == 0
        async with (
            aiohttp.ClientSession() as client,
            client.get(f"{url}/sandbox/summary") as response,
        ):
            summary = await response.json()
        assert (
            summary["events"],
            summary["duplicates"],
            summary["conflicts"],
            summary["not_ingested"],
        ) == (250, 0, 0, 0)
        sandbox.send(signal.SIGTERM)
        assert await sandbox.ended() == 0


async def test_a_slow_upstream_is_waited_for_while_draining() -> None:
    """After SIGTERM `/readyz` fails, `/livez` continues, and what still comes is accepted until the
    port is closed; with the last event delivered the exit code is 0.
    """
    go_on = asyncio.Event()
    async with (
        Upstream(lambda _: Answer(when=go_on)) as upstream,
        daemon(upstream.url) as forwarder,
    ):
        assert (await forwarder.send(5))[0] == 200
        assert (await forwarder.read("/readyz"))[0] == 200
        await upstream.until(lambda: upstream.in_flight == 1)
        forwarder.command.send(signal.SIGTERM)
        await forwarder.command.line('"event": "draining"')
        assert (await forwarder.read("/readyz"))[0] == 503
        assert (await forwarder.read("/livez"))[0] == 200
        assert json.loads((await forwarder.read("/status"))[1])["state"] == "draining"
        late = await forwarder.attempt("late")
        go_on.set()
        assert await forwarder.command.ended() == 0
        assert sorted(upstream.delivered) == [
            *(f"e{number}" for number in range(5)),
            *(["late0"] if late == 200 else []),
        ]


@pytest.mark.parametrize("verified", ["true", "false"], ids=["keys verified", "keys not verified"])
async def test_no_secret_is_ever_shown(verified: str) -> None:
    """Project keys and personal keys stand in no line of output, no metric and no page, though
    senders and upstream say them.
    """
    refusals = iter(
        [plain(500, f"who is {KEY}?"), plain(400, f"{KEY} is bad"), plain(401, f"no project {KEY}")]
    )
    settings = {
        "FORWARDER_SOURCES__HTTP__API_KEYS": KEY,
        "FORWARDER_UPSTREAM__VERIFY_KEYS": verified,
    }
    upstream = Upstream(
        lambda _: next(refusals, plain(401, KEY)), decide=lambda _: plain(401, f"{KEY}?")
    )
    async with upstream, daemon(upstream.url, **settings) as forwarder:
        said = [await forwarder.send(2), await forwarder.send(1, "")]
        said += [await forwarder.send(1, key=PERSONAL), await forwarder.send(1, key=KEY + "x")]
        said += [await forwarder.send(1, Authorization=f"Bearer {PERSONAL}")]
        assert [status for status, _ in said] == [200, 200, 401, 401, 200]
        await forwarder.command.line("lane halted")
        shown = [text for _, text in said]
        for path, accept in (
            ("/metrics", "*/*"),
            ("/status", "*/*"),
            ("/status", "text/html"),
            ("/readyz", "*/*"),
        ):
            shown.append((await forwarder.read(path, accept))[1])
        forwarder.command.send(signal.SIGHUP)
        await forwarder.command.line("again")
        forwarder.command.send(signal.SIGTERM)
        await forwarder.command.line('"draining"')
        await forwarder.command.ended()
    everything = "\n".join([*shown, *forwarder.command.lines])
    assert "phc_…4711#" in everything
    assert KEY not in everything
    assert PERSONAL not in everything


async def test_a_proxys_password_is_never_shown() -> None:
    """Not at the start, not in the error when the proxy can't be reached, not in `/status`."""
    proxy = {
        "FORWARDER_UPSTREAM__PROXY": "http://user:hunter2@127.0.0.1:9",
        "FORWARDER_UPSTREAM__VERIFY_KEYS": "false",
    }
    async with daemon(
        "https://analytics.example.com", FORWARDER_SHUTDOWN__DRAIN_TIMEOUT="0s", **proxy
    ) as forwarder:
        assert (await forwarder.send(1))[0] == 200
        await forwarder.command.line("proxy")
        shown = [(await forwarder.read(path))[1] for path in ("/status", "/metrics")]
        forwarder.command.send(signal.SIGTERM)
        assert await forwarder.command.ended() == 1
    assert "hunter2" not in "\n".join([*shown, *forwarder.command.lines])


async def test_memory_stays_bounded_while_the_upstream_is_down() -> None:
    """With the upstream down and senders pushing on, the process grows by little more than its
    buffer; what it took arrives later.
    """
    async with Upstream() as upstream:
        await upstream.stop()
        small = {
            "FORWARDER_BUFFER__MAX_BYTES": "8MB",
            "FORWARDER_BATCH__MAX_BYTES": "1MB",
            "FORWARDER_UPSTREAM__VERIFY_KEYS": "false",
        }
        async with daemon(upstream.url, **small) as forwarder:
            before = resident(forwarder.command.process.pid)
            accepted = 0
            refused = 0
            for number in range(400):
                status, _ = await forwarder.send(500, f"r{number}-", key=f"{KEY}{number % 2}")
                accepted += 500 if status == 200 else 0
                refused += status == 503
            assert refused > 0
            assert accepted > 0
            assert resident(forwarder.command.process.pid) - before < 8_000_000 + 60_000_000
            async with upstream:
                await eventually(lambda: len(upstream.delivered) >= accepted)
                forwarder.command.send(signal.SIGTERM)
                assert await forwarder.command.ended() == 0
                assert len(upstream.delivered) == len(set(upstream.delivered)) == accepted
