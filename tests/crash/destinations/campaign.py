"""Moving regions under load: one daemon with disk buffers and two destinations, each of which ends
in turn, in good order and killed, and then the daemon is killed again and again.

Senders repeat a request until it is answered 200, with the same bytes. In the end each destination
holds exactly what was acknowledged, byte for byte, without a conflict. While one destination is
away, the other's latency (from sending an event to its arrival) is compared with that of a time in
which it is the only one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from benchmarks.processes import free_ports
from tests.crash.destinations.service import DestinationService, listens
from tests.crash.frame import CampaignFolder, Say, silent
from tests.crash.process import Killable
from tests.support.listening import RawConnection, post
from tests.support.waiting import eventually, in_thread, pause
from tests.support.whole import batch

KEY: Final = "phc_crash_of_destinations_1"
OTHER_KEY: Final = "phc_crash_of_destinations_2"
"""What `KEY` is called at the second destination."""
SENDERS: Final = 2
EVENTS: Final = 10
"""In a request."""
PACE: Final = 0.02
"""Seconds between two requests of a sender."""
ROUNDS: Final = (("eu", False), ("eu", True), ("us", False), ("us", True))
"""Which destination ends, and whether it is killed."""
DELIVERED_WITHIN: Final = 120.0
"""Seconds that a backlog may take to be delivered."""


@dataclass(frozen=True, slots=True)
class DestinationsOptions:
    """What to do: `seconds` with one destination away, or with one alone; so
    many `kills` of the daemon.
    """

    seed: int
    seconds: float
    kills: int


@dataclass(slots=True)
class DestinationsReport:
    """What was done. Latencies are the 99th percentiles, in seconds, from sending
    an event to its arrival.
    """

    sent: int = 0
    kills: int = 0
    repeated: int = 0
    """Requests that senders had to repeat."""
    alone: float = 0.0
    """Of the first destination as the only one."""
    live: list[tuple[str, float]] = field(default_factory=list)
    """Of the one that was there, by what happened to the other."""


class DestinationsCampaign:
    """One run in a directory of its own."""

    def __init__(self, options: DestinationsOptions, root: Path, say: Say = silent) -> None:
        self.report = DestinationsReport()
        self._options = options
        self._root = root
        self._say = say
        self._random = random.Random(options.seed)
        self._evidence = CampaignFolder(
            root, lambda: f"seed {options.seed}, after {self.report.kills} kills"
        )
        self._services = {
            name: DestinationService(name, port, root)
            for name, port in zip(("us", "eu"), free_ports(2), strict=True)
        }
        self._port, self._admin = free_ports(2)
        self._sent: dict[str, tuple[bytes, float]] = {}
        """Events that were acknowledged, and when each was sent first."""
        self._before: frozenset[str] = frozenset()
        """Those that were sent when there was one destination."""
        self._daemon: Killable | None = None
        self._life = contextlib.AsyncExitStack()

    async def run(self) -> DestinationsReport:
        """Do it all. Raises `CrashFailure`. Cancellation ends all processes."""
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(self._life.aclose)
            for service in self._services.values():
                stack.push_async_callback(service.close)
                await service.start()
            await self._measure_alone()
            await self._start(["us", "eu"])
            for name, kill in ROUNDS:
                await self._without(name, kill=kill)
            await self._kill_the_daemon()
            await self._judge()
        return self.report

    async def _measure_alone(self) -> None:
        await self._start(["us"])
        since = time.time()
        async with self._load():
            await pause(self._options.seconds)
        self._before = frozenset(self._sent)
        await self._caught_up()
        self.report.alone = await self._latency("us", since)
        self._say(f"us alone: {len(self._sent):,} events, p99 {self.report.alone * 1000:.0f} ms")
        assert self._daemon is not None
        await self._daemon.stopped()
        await self._life.aclose()

    async def _without(self, name: str, *, kill: bool) -> None:
        """Send while one destination is away, and see it catch up."""
        (live,) = set(self._services) - {name}
        what = f"{name} {'killed' if kill else 'stopped'}"
        async with self._load():
            await pause(self._options.seconds / 4)
            await self._services[name].end(kill=kill)
            since = time.time()
            await pause(self._options.seconds)
            until = time.time()
            await self._services[name].start()
            await pause(self._options.seconds / 4)
        await self._caught_up()
        latency = await self._latency(live, since, until)
        self.report.live.append((what, latency))
        self._say(
            f"{what}: {len(self._sent):,} events so far, p99 of {live} {latency * 1000:.0f} ms"
        )

    async def _kill_the_daemon(self) -> None:
        """Under load, now and then with a destination away."""
        for number in range(self._options.kills):
            away = (None, "us", "eu")[number % 3]
            async with self._load():
                if away is not None:
                    await self._services[away].end(kill=True)
                await pause(self._random.uniform(0.2, 1.5))
                assert self._daemon is not None
                code = await self._daemon.killed()
                self._evidence.check([f"the daemon had ended with {code}"] if code != -9 else ())
                await self._life.aclose()
                self.report.kills += 1
                await self._start(["us", "eu"])
                if away is not None:
                    await self._services[away].start()
            self._say(f"killed {self.report.kills} times: {len(self._sent):,} events so far")
            self._evidence.check(self._evidence.complaints())
        await self._caught_up()

    async def _judge(self) -> None:
        self.report.sent = len(self._sent)
        for name, service in self._services.items():
            arrived = await in_thread(service.arrivals)
            expected = set(self._sent) if name == "us" else set(self._sent) - self._before
            problems = [f"{name} lacks {uuid}" for uuid in expected - arrived.keys()]
            problems += [
                f"{name} has {uuid}, which was never acknowledged to be for it"
                for uuid in arrived.keys() - expected
            ]
            problems += [
                f"{name} has other bytes of {uuid}"
                for uuid in expected & arrived.keys()
                if arrived[uuid][0] != self._sent[uuid][0]
            ]
            if conflicts := service.conflicts():
                problems.append(f"{name} has {conflicts} conflicts")
            self._evidence.check(problems)
        self._evidence.check(self._evidence.complaints())

    # Processes

    async def _start(self, names: list[str]) -> None:
        """Start the daemon with these destinations."""
        upstreams: dict[str, dict[str, Any]] = {
            name: {"url": self._services[name].url} for name in names
        }
        if "eu" in upstreams:
            upstreams["eu"]["api_keys"] = {KEY: OTHER_KEY}
        configuration = {
            "upstreams": upstreams,
            "routes": [{"match": {"api_key": KEY}, "to": names}],
            "sources": {"http": {"listen": f"127.0.0.1:{self._port}"}},
            "admin": {"listen": f"127.0.0.1:{self._admin}"},
            "buffer": {"kind": "disk", "path": str(self._root / "state"), "max_bytes": "256MiB"},
            "batch": {"max_age": "100ms"},
            "delivery": {"retry": {"max": "500ms"}},
        }
        file = self._root / "forwarder.yaml"
        file.write_text(json.dumps(configuration), "utf-8")
        self._daemon = await self._life.enter_async_context(
            Killable.living(("run", "--config", str(file)), self._evidence.log)
        )
        daemon = self._daemon
        await eventually(lambda: daemon.ended or listens(self._port))
        self._evidence.check(["the daemon doesn't start"] if daemon.ended else ())

    # Load

    @contextlib.asynccontextmanager
    async def _load(self) -> AsyncIterator[None]:
        """Send until the block ends; what was begun is acknowledged then."""
        ending = asyncio.Event()
        senders = [asyncio.create_task(self._send(ending)) for _ in range(SENDERS)]
        try:
            yield
            ending.set()
            await asyncio.gather(*senders)
        finally:
            ending.set()
            for sender in senders:
                sender.cancel()
            await asyncio.gather(*senders, return_exceptions=True)

    async def _send(self, ending: asyncio.Event) -> None:
        client: RawConnection | None = None
        while not ending.is_set():
            began = time.monotonic()
            now = time.time()
            events = dict(self._event() for _ in range(EVENTS))
            request = post("/batch/", batch(events.values(), KEY))
            while True:
                try:
                    client = client or RawConnection(
                        *await asyncio.open_connection("127.0.0.1", self._port)
                    )
                    reply = await client.ask(request)
                except (OSError, asyncio.IncompleteReadError, TimeoutError):
                    reply = None
                if reply is not None and reply.status == 200:
                    break
                self.report.repeated += 1
                if reply is None or reply.headers.get("connection") == "close":
                    await _close(client)
                    client = None
                await pause(0.05)
            if reply.headers.get("connection") == "close":
                await _close(client)
                client = None
            self._sent.update({uuid: (raw, now) for uuid, raw in events.items()})
            await pause(max(0.0, began + PACE - time.monotonic()))
        await _close(client)

    def _event(self) -> tuple[str, bytes]:
        uuid = str(UUID(int=self._random.getrandbits(128), version=4))
        person = self._random.randrange(500)
        value = self._random.random()
        return uuid, (
            (
                b'{"event":"move","distinct_id":"person-%d","uuid":"%b","timestamp":"2026-01-31T12'
                b':00:00.000Z","properties":{"value":%b}}'
            )
            % (person, uuid.encode(), repr(value).encode())
        )

    # Arrivals

    async def _caught_up(self) -> None:
        """Wait until both destinations have all that was acknowledged for them. Raises
        `CrashFailure` if that takes too long.
        """
        expected = {"us": len(self._sent), "eu": len(self._sent) - len(self._before)}
        deadline = time.monotonic() + DELIVERED_WITHIN
        for name, count in expected.items():
            while (has := await in_thread(self._services[name].count)) < count:
                if time.monotonic() > deadline:
                    raise self._evidence.failure(
                        [f"{name} has {has} of {count} events after {DELIVERED_WITHIN:g} s"],
                        log_lines=10,
                    )
                await pause(0.1)

    async def _latency(self, name: str, since: float, until: float = float("inf")) -> float:
        """The 99th percentile of the seconds from sending to arrival, of events that were sent in
        this time.
        """
        arrived = await in_thread(self._services[name].arrivals)
        sent = {uuid: at for uuid, (_, at) in self._sent.items() if since <= at <= until}
        return quantile(
            (arrived[uuid][1] - at for uuid, at in sent.items() if uuid in arrived), 0.99
        )


async def _close(client: RawConnection | None) -> None:
    if client is not None:
        with contextlib.suppress(OSError):
            await client.close()


def quantile(values: Iterable[float], share: float) -> float:
    """The value below which this share of the values lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
