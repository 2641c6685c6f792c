"""The whole pipeline in this process: the real listener on a free port, everything behind it, and
a sender beside it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any, Final
from unittest.mock import patch
from uuid import NAMESPACE_OID, uuid5

import msgspec

from forwarder.buffer.disk.backlog import WINDOW
from forwarder.buffer.disk.buffer import DiskBuffer
from forwarder.config.settings import Settings
from forwarder.core.clock import Clock
from forwarder.core.ports import DeadLetter
from forwarder.daemon.destinations import EventDestination
from forwarder.daemon.memory import MemorySource
from forwarder.daemon.pipeline import Pipeline, build
from forwarder.daemon.policies import http_policy
from forwarder.daemon.roles import Role
from forwarder.deadletter.memory import MemoryDeadLetters
from forwarder.deadletter.schema import open_readable
from forwarder.intake.large import DECODE_SECONDS
from forwarder.sources.http import HttpPolicy
from forwarder.sources.logs.positions import PositionStore
from forwarder.telemetry.snapshot import Snapshot, balanced
from tests.support.clock import FakeClock
from tests.support.listening import RawConnection, RawReply, post
from tests.support.upstream import Request, Upstream
from tests.support.waiting import LIMIT, FastClock, eventually, tick

KEY: Final = "phc_wholewholewhole12345"
STEP: Final = 0.25
"""Seconds by which a clock that stands still is turned while everything waits for it."""


def settings(url: str, **sections: Any) -> Settings:
    """Settings for tests: free ports, no key checks unless asked for; a section's keys are added
    to those. Lists stay as they are.
    """
    base: dict[str, Any] = {
        "upstream": {"url": url, "verify_keys": False},
        "sources": {"http": {"listen": "127.0.0.1:0"}},
        "admin": {"listen": "127.0.0.1:0"},
        "batch": {"max_age": "100ms"},
    }
    for name, section in sections.items():
        if name == "http":
            base["sources"]["http"].update(section)
        elif isinstance(section, list):
            base[name] = section
        else:
            base[name] = {**base.get(name, {}), **section}
    return Settings.parse(base)


class Whole:
    """A pipeline from start to close, as an asynchronous context manager. `left` is what was
    undelivered at its end.

    A disk buffer without a `path` gets a directory of its own, which is gone at the end. `window`:
    bytes of its memory for events available. `memory`: what its memory is measured by.
    """

    def __init__(
        self,
        url: str,
        clock: Clock | None = None,
        *,
        window: int = WINDOW,
        memory: MemorySource | None = None,
        **sections: Any,
    ) -> None:
        self.clock = clock or FastClock()
        self.left: list[DeadLetter] = []
        self._client: RawConnection | None = None
        self._window = window
        self._memory = memory
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        buffer = sections.get("buffer", {})
        if isinstance(self.clock, FastClock):
            # by a clock that hurries a busy machine looks like a disk that doesn't answer
            buffer = sections["buffer"] = {"ack_timeout": "1m", **buffer}
        if buffer.get("kind") == "disk" and "path" not in buffer:
            self._directory = tempfile.TemporaryDirectory(prefix="forwarder-")
            sections["buffer"] = {**buffer, "path": self._directory.name}
        self.settings = settings(url, **sections)
        self.pipeline = self._build()

    def _build(self) -> Pipeline:
        try:
            # decoder process and senders work in real time, however fast the pipeline's clock runs
            speed = self.clock.speed if isinstance(self.clock, FastClock) else 1.0

            def patient(settings: Settings, role: Role) -> HttpPolicy:
                policy = http_policy(settings, role)
                return replace(policy, idle_timeout=policy.idle_timeout * speed)

            with (
                patch("forwarder.daemon.pipeline.DECODE_SECONDS", DECODE_SECONDS * speed),
                patch("forwarder.daemon.pipeline.http_policy", patient),
            ):
                return build(self.settings, self.clock, window=self._window, memory=self._memory)
        except BaseException:
            self._clean_up()
            raise

    def _clean_up(self) -> None:
        if self._directory is not None:
            self._directory.cleanup()

    async def __aenter__(self) -> Whole:
        try:
            await self.pipeline.start()
        except BaseException:
            await self.pipeline.close()
            self._clean_up()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._hang_up()
        self.left = await self.pipeline.close()
        self._clean_up()

    async def _hang_up(self) -> None:
        client = self._client
        self._client = None
        if client is not None:
            await client.close()

    async def restart(self, *, crash: bool = False) -> None:
        """End the pipeline and start another one on the same files. With `crash` the end is one
        without a word to anybody: what no group commit has written by now, or is writing, is lost.
        """
        await self._hang_up()
        await (self._abandon() if crash else self._close())
        self.pipeline = self._build()
        await self.pipeline.start()

    async def _close(self) -> None:
        self.left = await self.pipeline.close()

    async def _abandon(self) -> None:
        """Released everything, and write nothing: a process that is killed does no more."""
        pipeline = self.pipeline
        parts = pipeline._parts
        for destination in parts.destinations:
            destination.stores.committer._participants.clear()
        for replayer in parts.replayers:
            replayer.stop()
        for destination in parts.destinations:
            await destination.delivery.close()
        await parts.listener.close(0)
        await parts.decoder.close()  # it ends with its parent
        if parts.passthrough is not None:
            await parts.passthrough.close()
        await self._abandon_logs()
        for destination in parts.destinations:
            await self._abandon_destination(destination)

    async def _abandon_destination(self, destination: EventDestination) -> None:
        stores = destination.stores
        if destination.sink is not None:
            await destination.sink.close()
        await stores.committer.close()
        if (memory := destination.key_memory) is not None:
            memory._dirty = False
            await memory.close()
        if stores.disk_buffer is not None:
            stores.disk_buffer.commits.closing = True  # nothing more is read, moved or deleted
            await stores.disk_buffer.loader.close()
            stores.disk_buffer.log.close()
        if stores.dead_letter_file is not None:
            stores.dead_letter_file.close()
        for lock in stores.locks:
            lock.release()
        for submission in list(destination.admission._awaiting_delivery):
            submission.answer(None)

    async def _abandon_logs(self) -> None:
        """Close the sources of logs; no position is stored any more."""
        logs = self.pipeline._parts.logs
        if logs is not None:
            with patch.object(PositionStore, "save", lambda *_: None):
                await logs.close()

    @property
    def disk(self) -> DiskBuffer:
        """The buffer, which is on disk."""
        buffer = self.pipeline._parts.destinations[0].stores.disk_buffer
        assert buffer is not None
        return buffer

    @property
    def at_work(self) -> bool:
        """Whether something is in progress that takes real time: a request to the upstream, a
        commit, a read from the disk.
        """
        stores = self.pipeline._parts.destinations[0].stores
        reading = stores.disk_buffer is not None and bool(stores.disk_buffer.loader._tasks)
        return bool(self.snapshot.in_flight) or stores.committer._busy or reading

    @property
    def address(self) -> str:
        """Where it listens, as in the configuration."""
        return self.pipeline.addresses[0]

    @property
    def snapshot(self) -> Snapshot:
        """The state now."""
        return self.pipeline.snapshot()

    async def connect(self, **options: Any) -> RawConnection:
        """A connection of its own; the caller closes it."""
        if self.address.startswith("unix:"):
            return RawConnection(
                *await asyncio.open_unix_connection(self.address.removeprefix("unix:"), **options)
            )
        host, _, port = self.address.rpartition(":")
        return RawConnection(*await asyncio.open_connection(host, int(port), **options))

    async def send(self, request: bytes) -> RawReply:
        """Send a request on the sender's connection, which stays open."""
        if self._client is None:
            self._client = await self.connect()
        reply = await self._client.ask(request)
        if reply.headers.get("connection") == "close":
            await self._client.close()
            self._client = None
        return reply

    async def take(self, events: Iterable[bytes], key: str = KEY) -> None:
        """Send events in one request, and see it taken."""
        reply = await self.send(post("/batch/", batch(events, key)))
        assert (reply.status, reply.body) == (200, b'{"status":"Ok"}')

    async def until(self, condition: Callable[[], object], limit: float = LIMIT) -> None:
        """Wait for `condition`. A clock that stands still is turned whenever nothing is in progress
        that takes real time.
        """
        deadline = asyncio.get_running_loop().time() + limit
        if not isinstance(self.clock, FakeClock):
            await eventually(condition, limit, explain=lambda: self.snapshot)
            return
        while not condition():
            assert asyncio.get_running_loop().time() < deadline, (
                f"not so after {limit:g} s: {self.snapshot}"
            )
            await (tick() if self.at_work else self.clock.advance(STEP))

    async def emptied(self, limit: float = LIMIT) -> None:
        """Wait until nothing is buffered any more."""
        await self.until(lambda: not any(lane.buffered for lane in self.snapshot.lanes), limit)

    async def written(self) -> None:
        """Wait until the disk buffer's log says everything that was settled."""
        commits = self.disk.commits
        committer = self.pipeline._parts.destinations[0].stores.committer
        await self.until(lambda: not (commits.marks or commits._tally.lanes or committer._busy))

    async def letters(self) -> list[tuple[bytes, str]]:
        """The events among the dead letters and why each is one, once all are written."""
        letters = self.pipeline._parts.destinations[0].stores.dead_letters
        if isinstance(letters, MemoryDeadLetters):
            return [(letter.data, letter.why) for letter in letters.dead_letters]
        await self.pipeline._parts.destinations[0].stores.committer.settle()
        path = letters.statistics().path
        assert path is not None
        with contextlib.closing(open_readable(path)) as connection:
            return connection.execute("SELECT data, why FROM letters ORDER BY number").fetchall()

    def total(self, figure: Callable[[Any], int]) -> int:
        """A figure of all lanes together."""
        return sum(figure(lane) for lane in self.snapshot.lanes)


def event(name: str, person: str | None = None, *, properties: bytes = b"{}") -> bytes:
    """A complete event: whatever stamps it changes nothing."""
    uuid = str(uuid5(NAMESPACE_OID, name))
    return (
        b'{"event":%b,"distinct_id":%b,"uuid":"%b","timestamp":"2025-12-31T23:00:00Z","propert'
        b'ies":%b}'
    ) % (
        json.dumps(name).encode(),
        json.dumps(person or f"id-of-{name}").encode(),
        uuid.encode(),
        properties,
    )


def events(count: int, prefix: str = "e", *, padding: int = 0) -> list[bytes]:
    """So many events, of as many persons."""
    return [
        event(f"{prefix}{number}", properties=b'{"p":"%b"}' % (b"x" * padding))
        for number in range(count)
    ]


def batch(raw: Iterable[bytes], key: str = KEY, more: bytes = b"") -> bytes:
    """A request's body."""
    return b'{"api_key":"%b",%b"batch":[%b]}' % (key.encode(), more, b",".join(raw))


def split(request: Request) -> list[bytes]:
    """The events of an upstream request, byte for byte."""
    return [bytes(raw) for raw in msgspec.json.decode(request.body, type=_Batch).batch]


def accepted(upstream: Upstream) -> Counter[bytes]:
    """How often each event, byte for byte, was in a request that was answered 200."""
    return Counter(raw for request in upstream._answered for raw in split(request))


class _Batch(msgspec.Struct):
    batch: list[msgspec.Raw]


@contextmanager
def always_balanced(watched: Pipeline | Whole) -> Iterator[list[Snapshot]]:
    """Take a snapshot after every single callback of the loop, and fail at the end if the books of
    one didn't balance.

    What it yields gets every snapshot that didn't. Of a `Whole` it is the pipeline that runs.
    """
    run = asyncio.Handle._run
    wrong: list[Snapshot] = []
    looked = 0

    def run_and_look(handle: asyncio.Handle) -> None:
        nonlocal looked
        run(handle)
        looked += 1
        pipeline = watched if isinstance(watched, Pipeline) else watched.pipeline
        if not balanced(snapshot := pipeline.snapshot()):
            wrong.append(snapshot)

    with patch.object(asyncio.Handle, "_run", run_and_look):
        yield wrong
    assert wrong == []
    assert looked > 0


def gzipped(data: bytes) -> bytes:
    """The data, compressed, the same bytes each time."""
    return zlib.compress(data, 1, wbits=31)
