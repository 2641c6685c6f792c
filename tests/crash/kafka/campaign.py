"""The Kafka crash test itself: two forwarders share a topic while they, the broker and the
upstream fail in turn; then all is checked.

The upstream is a sandbox with a relay before it for each forwarder. What goes wrong goes wrong in
mid-stream: at set shares of the events the relays hold the stream until it has happened. Before a
forwarder is killed the sandbox has taken events of it whose answers it hasn't heard, so that it is
certain that some come again.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

import aiohttp

from forwarder.demo.broker import Broker
from forwarder.telemetry.snapshot import UpstreamState
from tests.crash.frame import CampaignFolder, Say, silent
from tests.crash.kafka.judge import KafkaVerdict, arrivals, judge
from tests.crash.kafka.plan import CONFIGURED, HEADER, RecordPlan
from tests.support.admin import dropped, total
from tests.support.commands import running
from tests.support.kafka import Record, create_topic, unique
from tests.support.members import Members, RunningMember
from tests.support.relay import Relay
from tests.support.streams import GroupTopic
from tests.support.upstream import OK, Answer, Fault, Request, failing, plain
from tests.support.waiting import eventually, in_thread, tick

SLICE: Final = 0.02
AHEAD: Final = 0.2
"""The records are written in parts of so large a share, and so far ahead of what has arrived."""
MEANWHILE: Final = 0.06
"""The share of the events that may arrive while something goes wrong."""
LOST_ANSWERS: Final = 0.01
"""Share of the requests that are taken, and whose answer doesn't come back."""
REFUSALS: Final = 3
"""Requests of each forwarder that fail before the upstream is well again."""
RETURNED: Final = "returned_to_broker"

Disaster: TypeAlias = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class KafkaOptions:
    """What to do. `patience`: seconds in which whatever is waited for has to come true."""

    seed: int
    records: int
    partitions: int = 8
    persons: int = 400
    patience: float = 30.0
    short: bool = False
    """Whether the last disasters are left out."""
    disk: bool = False
    """Whether offsets are committed when events are on disk, without order; else when they are
    delivered, in order for each id.
    """


@dataclass
class KafkaReport:
    """What was done."""

    events: int = 0
    distinct: int = 0
    repeats: int = 0
    repeated_bare: int = 0
    returned: int = 0
    """Events that were given back to the broker, of the forwarders that said so before they ended.
    """
    looks: int = 0
    """Looks at the books of a forwarder."""
    done: list[str] = field(default_factory=list)


class KafkaCampaign:
    """One run in a directory of its own, on a broker that may be restarted."""

    names: tuple[str, ...] = ("one", "two")
    """Of the forwarders."""

    def __init__(
        self, options: KafkaOptions, root: Path, broker: Broker, say: Say = silent
    ) -> None:
        self.report = KafkaReport()
        self._options = options
        self._root = root
        self._broker = broker
        self._stream = GroupTopic(broker.bootstrap, unique("crash"))
        self._say = say
        self._evidence = CampaignFolder(
            root, lambda: f"seed {options.seed}, after {self.report.done}"
        )
        self._plan = RecordPlan(options.seed, options.records, options.persons)
        self._expected = len(self._plan.events())
        self._chance = random.Random(~options.seed)
        self._relays: dict[str, Relay] = {}
        self._members: dict[str, RunningMember] = {}
        self._arrived: set[str] = set()
        """The uuids of the events that the sandbox has taken."""
        self._flows = asyncio.Event()
        self._hold_at = 0.0
        """The share of the events after which nothing flows."""
        self._weather: Answer | None = None
        """What the upstream says to everything; None: it is well."""
        self._failed: dict[str, int] = {}
        self._enough = max if options.disk else min
        self._broker_is_there = asyncio.Lock()
        self._began = time.monotonic()

    async def run(self) -> KafkaReport:
        """Do it all. Raises `CrashFailure`. Cancellation ends all processes but the broker."""
        database = self._root / "sandbox.db"
        async with contextlib.AsyncExitStack() as stack:
            arguments = ("--listen", "127.0.0.1:0", "--database", str(database), "--strict")
            sandbox = await stack.enter_async_context(running("sandbox", *arguments))
            url = (await sandbox.line("listening on")).split()[-1]
            for name in self.names:
                self._relays[name] = await stack.enter_async_context(
                    Relay(self._answerer(name), url, self._arrived)
                )
            await create_topic(self._stream.bootstrap, self._stream.topic, self._options.partitions)
            self._group = await stack.enter_async_context(self._make_group())
            await self._with_load()
            self.report.looks = self._group.looks
            self._evidence.check(self._group.problems)
            await self._judge(url, database)
        return self.report

    def _make_group(self) -> Members:
        read = {"api_key": CONFIGURED, "api_key_header": HEADER, "key_is_distinct_id": True}
        pace = {"commit_interval": "300ms", "max_in_flight": "500kB"}
        on_disk = self._options.disk
        return Members(
            self._root,
            {**self._stream.settings, **read, **pace, "commit": "disk" if on_disk else "delivered"},
            buffer={"kind": "disk" if on_disk else "memory"},
            upstream={"timeout": "1s", "max_event": "100kB"},
            batch={"max_events": 300},
            delivery={"ordering": "none" if on_disk else "per_distinct_id", "concurrency": 4},
            shutdown={"drain_timeout": "20s"},
        )

    def _answerer(self, name: str) -> Callable[[Request], Answer]:
        def answer(_: Request) -> Answer:
            if self._weather is not None:
                self._failed[name] += 1
                return self._weather
            if self._chance.random() < LOST_ANSWERS:
                return failing(Fault.RESET)
            if self._taken >= self._hold_at and self._relays[name].goes_back.is_set():
                self._flows.clear()
                return Answer(when=self._flows)
            return OK

        return answer

    async def _with_load(self) -> None:
        """Live while the topic is written and the books are watched."""
        try:
            async with asyncio.TaskGroup() as group:
                beside = [group.create_task(self._write()), group.create_task(self._group.watch())]
                await self._live()
                for task in beside:
                    task.cancel()
        except ExceptionGroup as several:
            raised = [f"{type(error).__name__}: {error}" for error in several.exceptions]
            raise self._evidence.failure([*self._group.problems, *raised]) from several

    async def _write(self) -> None:
        """Write the topic, some way ahead of what arrives."""
        step = max(1, round(self._plan.count * SLICE))
        for start in range(0, self._plan.count, step):
            while self._taken < start / self._plan.count - AHEAD:
                await tick()
            async with self._broker_is_there:
                await self._stream.write(
                    map(self._as_written, range(start, min(start + step, self._plan.count)))
                )

    def _as_written(self, number: int) -> Record:
        record = self._plan.record(number)
        return Record(record.value, record.key, record.headers)

    @property
    def _taken(self) -> float:
        """The share of the events that have arrived."""
        return len(self._arrived) / self._expected

    async def _live(self) -> None:
        await asyncio.gather(*(self._start(name) for name in self._relays))
        await self._stream.joined(2, self._options.patience)
        disasters = self._disasters()
        for number, (what, disaster) in enumerate(disasters):
            await self._at(0.1 + 0.8 * number / len(disasters), what, disaster)
        await self._finish()

    def _disasters(self) -> list[tuple[str, Disaster]]:
        """All that goes wrong, in order."""
        most: list[tuple[str, Disaster]] = [
            ("kill -9 of one forwarder, which is replaced", lambda: self._kill("one")),
            ("the upstream answers 503", lambda: self._storm(plain(503, "not now"))),
            ("the upstream refuses connections", self._refuse),
            ("the broker is killed and started again", self._restart_broker),
            (
                "the upstream takes events and resets the connection",
                lambda: self._storm(failing(Fault.RESET)),
            ),
        ]
        rest: list[tuple[str, Disaster]] = [
            ("the upstream hangs", lambda: self._storm(failing(Fault.HANG))),
            ("kill -9 of the other forwarder, which is replaced", lambda: self._kill("two")),
            (
                "one forwarder ends in good order, and another takes its place",
                lambda: self._replace("one"),
            ),
        ]
        return most if self._options.short else most + rest

    async def _at(self, share: float, what: str, disaster: Disaster) -> None:
        """Once so much has arrived let something go wrong, and let little more arrive meanwhile."""
        self._flow_until(share)
        await eventually(
            lambda: self._taken >= share,
            4 * self._options.patience,
            explain=lambda: f"{what}: {self._taken:.0%} arrived",
        )
        self._say(f"{time.monotonic() - self._began:5.1f} s, {self._taken:4.0%} arrived: {what}")
        self._flow_until(share + MEANWHILE)
        await disaster()
        self.report.done.append(what)

    def _flow_until(self, share: float) -> None:
        self._hold_at = share
        self._flows.set()

    async def _start(self, name: str) -> None:
        self._failed[name] = 0
        self._members[name] = await self._group.start(
            name, kafka={"client_id": name}, upstream={"url": self._relays[name].url}
        )

    async def _kill(self, name: str) -> None:
        """Kill one when the sandbox has taken events of it that it doesn't know of, or at any time
        where it has its own memory.
        """
        relay = self._relays[name]
        relay.goes_back.clear()
        await eventually(lambda: relay.kept_back or self._options.disk, self._options.patience)
        await self._members[name].kill()
        relay.goes_back.set()
        await self._start(name)

    async def _storm(self, answer: Answer) -> None:
        """The upstream does nothing but fail, until each forwarder has seen it do so a few times;
        or one has, where another may be through with what it had.
        """
        self._failed = dict.fromkeys(self._failed, 0)
        self._weather = answer
        await eventually(
            lambda: self._enough(self._failed.values()) >= REFUSALS,
            self._options.patience,
            explain=lambda: self._failed,
        )
        self._weather = None

    async def _refuse(self) -> None:
        for relay in self._relays.values():
            await relay.stop()
        for member in self._members.values():
            await member.until(
                lambda shown: shown.upstream.state is UpstreamState.DOWN, self._options.patience
            )
        for relay in self._relays.values():
            await relay.__aenter__()

    async def _restart_broker(self) -> None:
        async with self._broker_is_there:
            await in_thread(lambda: self._broker.restart(kill=True))

    async def _replace(self, name: str) -> None:
        await self._end(name)
        await self._start(name)

    async def _end(self, name: str) -> None:
        """End one in good order; it has to deliver what it holds."""
        self._flow_until(math.inf)
        member = self._members.pop(name)
        shown = await member.status()
        self.report.returned += dropped(shown, RETURNED)
        unexpected = [
            lane for lane in shown.lanes if lane.total_dead or set(lane.dropped) - {RETURNED}
        ]
        self._evidence.check(
            [f"{name} kept or dropped what was good: {lane}" for lane in unexpected]
        )
        if code := await member.stop():
            self._evidence.check([f"{name} ended with {code} when it was asked to"])

    async def _finish(self) -> None:
        """Let everything arrive, and end both."""
        self._flow_until(math.inf)
        await eventually(
            lambda: self._taken >= 1,
            4 * self._options.patience,
            explain=lambda: f"{self._taken:.1%} arrived",
        )
        await self._stream.settled(self._options.patience)
        for name, member in list(self._members.items()):
            await member.until(lambda shown: not total(shown, "buffered"), self._options.patience)
            await self._end(name)

    async def _judge(self, url: str, database: Path) -> None:
        async with (
            aiohttp.ClientSession() as client,
            client.get(f"{url}/sandbox/summary") as response,
        ):
            summary = await response.json()
        verdict: KafkaVerdict = await in_thread(
            lambda: judge(self._plan, arrivals(database), ordered=not self._options.disk)
        )
        self._evidence.check(verdict.problems)
        counts = (
            summary["events"],
            summary["duplicates"],
            summary["conflicts"],
            summary["not_ingested"],
        )
        if counts != (self._expected, verdict.repeats, 0, 0) or verdict.distinct != self._expected:
            self._evidence.check(
                [f"the sandbox has {summary}, where {self._expected} distinct events were expected"]
            )
        self.report.events = self._expected
        self.report.distinct = verdict.distinct
        self.report.repeats = verdict.repeats
        self.report.repeated_bare = verdict.repeated_bare
