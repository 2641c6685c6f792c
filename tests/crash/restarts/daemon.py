"""A daemon that is restarted, in one of three ways: with a socket of systemd's kind, in place, or
with nothing that outlives it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from enum import StrEnum
from typing import Final

import msgspec

from forwarder.core.processes import send_signal
from tests.crash.scraper import Status, books_of, wrong_with
from tests.crash.victim import Places
from tests.support.waiting import pause

STARTS_WITHIN: Final = 60.0
ENDS_WITHIN: Final = 60.0

_PASSING: Final = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1", LISTEN_FDNAMES="forwarder.socket")
os.execv(sys.argv[2], sys.argv[2:])
"""
"""What systemd does: the socket becomes descriptor 3 of the very process that becomes the daemon.
"""


class Way(StrEnum):
    """What outlives the process."""

    SYSTEMD = "LISTEN_FDS"
    """The socket: SIGTERM, then another process that inherits it."""
    IN_PLACE = "SIGUSR2"
    """The process itself, with sockets and locks."""
    PLAIN = "neither"
    """Nothing: SIGTERM, then another process."""


class _Look(msgspec.Struct):
    state: str
    started_at: float | str


class RestartedDaemon:
    """The daemon of a run, through all its restarts."""

    def __init__(self, places: Places, way: Way, workers: int = 1) -> None:
        self._places = places
        self._way = way
        self._workers = workers
        self._process: asyncio.subprocess.Process | None = None
        self._socket: socket.socket | None = None

    async def start(self) -> float:
        """Start it; the seconds until it listens."""
        if self._way is Way.SYSTEMD and self._socket is None:
            self._socket = socket.create_server(("127.0.0.1", self._places.ingestion), backlog=4096)
        began = time.monotonic()
        line = [sys.executable, "-m", "forwarder", "run", "--config", str(self._places.config)]
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("FORWARDER_")
        }
        environment["FORWARDER_WORKERS"] = str(self._workers)
        passed = [] if self._socket is None else [self._socket.fileno()]
        if passed:
            line = [sys.executable, "-S", "-c", _PASSING, str(passed[0]), *line]
        with self._places.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *line, env=environment, stdout=log, stderr=log, pass_fds=passed
            )
        await self._until_it_runs("")
        return time.monotonic() - began

    async def restart(self) -> tuple[float, int]:
        """Restart it: the seconds until its end, or in place until another program runs, and its
        exit code (0 in place).
        """
        assert self._process is not None
        began = time.monotonic()
        if self._way is Way.IN_PLACE:
            before = msgspec.json.decode(await self._answer(), type=_Look)
            send_signal(self._process, signal.SIGUSR2)
            await self._until_it_runs(before.started_at)
            return time.monotonic() - began, 0
        code = await self.stop()
        return time.monotonic() - began, code

    async def stop(self) -> int:
        """End it in good order; its exit code."""
        assert self._process is not None
        send_signal(self._process, signal.SIGTERM)
        async with asyncio.timeout(ENDS_WITHIN):
            return await self._process.wait()

    async def close(self) -> None:
        """Kill what still runs."""
        if self._process is not None and self._process.returncode is None:
            send_signal(self._process, signal.SIGKILL)
            await self._process.wait()
        if self._socket is not None:
            self._socket.close()

    async def status(self) -> Status:
        """What it shows of itself, which must balance."""
        status = msgspec.json.decode(await self._answer(), type=Status)
        assert wrong_with(status) == []
        return status

    async def drained(self, limit: float) -> Status:
        """Its status once nothing is buffered any more."""
        async with asyncio.timeout(limit):
            while True:
                status = await self.status()
                if not any(account.buffered for account in books_of(status).values()):
                    return status
                await pause(0.1)

    async def _until_it_runs(self, started_before: float | str) -> None:
        async with asyncio.timeout(STARTS_WITHIN):
            while True:
                with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                    look = msgspec.json.decode(await self._answer(), type=_Look)
                    if look.state == "running" and look.started_at != started_before:
                        return
                assert self._process is not None
                assert self._process.returncode is None, "the daemon ended by itself"
                await pause(0.02)

    async def _answer(self) -> bytes:
        """The answer of `/status`."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._places.admin)
        try:
            writer.write(
                b"GET /status HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: application/json\r\n\r\n"
            )
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            return await reader.readexactly(
                int(head.partition("content-length:")[2].partition("\r\n")[0])
            )
        finally:
            writer.close()


class ConnectionWatch:
    """Looks whether connections are accepted at an address, and for how long they weren't. Its
    looks would fill a queue that stays.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self.closed: list[float] = []
        """Seconds of each time."""

    async def watch(self) -> None:
        """Look, indefinitely."""
        since = None
        while True:
            now = time.monotonic()
            if await self._is_open():
                if since is not None:
                    self.closed.append(now - since)
                since = None
            else:
                since = now if since is None else since
            await pause(0.005)

    async def _is_open(self) -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            return False
        writer.transport.abort()
        return True
