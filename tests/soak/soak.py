"""The soak itself: for a long time the daemon gets a mixed load while the upstream fails now and
then; then all is drained and checked.

The load: bodies of the official SDK and calls for flags over HTTP, a Kafka topic, and an import
beside the daemon. The upstream is a sandbox that keeps everything; its faults come by a plan.
Nothing is killed: that is what the crash tests are for.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import aiohttp

from benchmarks.bodies import API_KEY
from benchmarks.report import percentile
from forwarder.core.errors import ForwarderError
from forwarder.core.event import Lane
from forwarder.telemetry.labels import lane_label
from forwarder.telemetry.snapshot import LaneSnapshot, Snapshot
from tests.crash.children import Child
from tests.crash.files import read_letters
from tests.crash.frame import CampaignFolder, Say, silent
from tests.crash.imports import judge as import_judge
from tests.crash.imports.plan import EventPlan
from tests.crash.imports.plan import write as write_import
from tests.crash.journal import PROMISED, JournalReader
from tests.crash.kafka import judge as kafka_judge
from tests.crash.kafka.plan import CONFIGURED, HEADER, LANES, RecordPlan
from tests.crash.process import Killable
from tests.soak.judge import (
    DESCRIPTORS,
    KEPT,
    MEMORY,
    Growth,
    SoakVerdict,
    growth,
    judge_http,
    soak_arrivals,
)
from tests.soak.plan import PlannedFault, SdkPlan, planned_faults
from tests.soak.sender import ANSWERS, AnswerEntry
from tests.support.admin import resident, total
from tests.support.commands import forwarder, running
from tests.support.kafka import Record, create_topic, unique
from tests.support.members import Members, RunningMember
from tests.support.streams import GroupTopic
from tests.support.waiting import in_thread, pause

SHARES: Final = {"http": 0.6, "kafka": 0.3, "import": 0.1}
"""Of the events a second."""
FLAG_CALLS: Final = 0.02
"""Calls for flags, for each event."""
IMPORT_UNTIL: Final = 0.8
"""The share of the time in which an import of all its events ends."""
IMPORT_KEY: Final = "phc_soak_of_imports_0000001"
PARTITIONS: Final = 4
WRITE_EVERY: Final = 0.5
"""Seconds between two writes to the topic."""
LOOKS: Final = 600
"""How often the daemon is looked at, but not more than once a second."""
DRAIN_LIMIT: Final = 240.0
"""Seconds in which everything has to arrive once the faults are over."""
INTERRUPTED: Final = 130
"""Exit code of an import that was interrupted."""
SLACK: Final = 10.0
"""Seconds after a fault in which calls may still fail: a circuit that has
opened closes again by then.
"""
AT_REST: Final = 2.0
"""Seconds from the last answer until idle connections are counted."""


@dataclass(frozen=True, slots=True)
class SoakOptions:
    """What to do. `rate` is in events a second, of all sources together."""

    seed: int
    seconds: float
    rate: float


TELLING: Final = 20.0
"""Seconds of load from which on quarters are compared: one of a shorter load is a look or two."""


@dataclass(frozen=True, slots=True)
class Look:
    """The daemon at a time, in seconds from the beginning."""

    at: float
    received: int
    delivered: int
    dead: int
    buffered: int
    memory: int
    descriptors: int
    import_memory: int


@dataclass
class SoakReport:
    """What was done and found."""

    options: SoakOptions
    began: float = 0.0
    """By the system's clock."""
    seconds: float = 0.0
    """Of load."""
    interrupted: bool = False
    faults: list[PlannedFault] = field(default_factory=list)
    """Those that happened, with their times as they were."""
    looks: list[Look] = field(default_factory=list)
    before: int = 0
    """Descriptors before the load."""
    after: int = 0
    """Descriptors once all has been drained, and connections have ended."""
    answers: list[AnswerEntry] = field(default_factory=list)
    flags: list[AnswerEntry] = field(default_factory=list)
    http: SoakVerdict = field(default_factory=SoakVerdict)
    records: int = 0
    """Written to the topic."""
    kafka_events: int = 0
    kafka: kafka_judge.KafkaVerdict = field(default_factory=kafka_judge.KafkaVerdict)
    import_events: int = 0
    imported: import_judge.ImportVerdict = field(default_factory=import_judge.ImportVerdict)
    books: list[str] = field(default_factory=list)
    """What the daemon's books say of each lane, at the end."""
    problems: list[str] = field(default_factory=list)

    @property
    def memory(self) -> Growth:
        """Of the daemon, in bytes."""
        return growth([look.memory for look in self.looks] or [0], MEMORY)

    @property
    def descriptors(self) -> Growth:
        """Of the daemon."""
        return growth([look.descriptors for look in self.looks] or [0], DESCRIPTORS)

    def failed(self) -> list[str]:
        """Everything that makes the soak fail."""
        problems = [
            *self.problems,
            *self.http.problems,
            *self.kafka.problems,
            *self.imported.problems,
        ]
        memory = self.memory
        descriptors = self.descriptors
        is_telling = self.seconds >= TELLING
        if is_telling and memory.has_grown:
            problems.append(
                f"memory has grown from {memory.early / 1e6:.0f} MB to {memory.late / 1e6:.0f} MB"
            )
        if is_telling and descriptors.has_grown:
            problems.append(
                f"open descriptors have grown from {descriptors.early:.0f} to "
                f"{descriptors.late:.0f}"
            )
        if self.after > self.before + KEPT:
            problems.append(
                f"{self.after} descriptors were open at rest after the load, {self.before} before "
                "it"
            )
        return problems


class Soak:
    """One run in a directory of its own, on a broker that is there."""

    def __init__(self, options: SoakOptions, root: Path, bootstrap: str, say: Say = silent) -> None:
        self.report = SoakReport(options)
        self._options = options
        self._root = root
        self._say = say
        self._evidence = CampaignFolder(root, lambda: f"seed {options.seed}")
        self._began = time.time()
        self._sdk = SdkPlan(options.seed, self._began)
        self._stream = GroupTopic(bootstrap, unique("soak"))
        self._records = RecordPlan(
            options.seed, math.ceil(self._rate("kafka") * options.seconds) + PARTITIONS
        )
        self._imported = EventPlan(
            options.seed, max(100, round(self._rate("import") * options.seconds * IMPORT_UNTIL))
        )
        self._source = root / "events.jsonl.gz"
        self._state = root / "import"
        self._stopping = asyncio.Event()
        self._importing: Killable | None = None
        self._clock = 0.0
        """The loop's time when the load began."""

    def stop(self) -> bool:
        """End the load now; what was accepted is still drained and checked. Whether there was a
        load to end.
        """
        if self._stopping.is_set():
            return False
        self.report.interrupted = True
        self._stopping.set()
        return True

    async def run(self) -> SoakReport:
        """Do it all. What is wrong is in the report. Cancellation ends all
        processes but the broker.
        """
        database = self._root / "sandbox.db"
        async with contextlib.AsyncExitStack() as stack:
            arguments = ("--listen", "127.0.0.1:0", "--database", str(database), "--strict")
            sandbox = await stack.enter_async_context(running("sandbox", *arguments))
            self._url = (await sandbox.line("listening on")).split()[-1]
            self._client = await stack.enter_async_context(aiohttp.ClientSession())
            await create_topic(self._stream.bootstrap, self._stream.topic, PARTITIONS)
            members = await stack.enter_async_context(self._members())
            # the SDK's bodies come through one, which names the sender
            http = {"trusted_proxies": ["127.0.0.1"]}
            daemon = await members.spawn(
                "daemon", upstream={"url": self._url}, sources={"http": http}
            )
            listening = await daemon.logged("listening")
            daemon.admin = listening["admin"]
            port = int(listening["ingestion"][0].rpartition(":")[2])
            await self._stream.joined(1)
            self.report.before = _descriptors(daemon)
            async with self._load(daemon, port):
                await self._continues(self._options.seconds)
            final = await self._drained(daemon)
            await self._end(daemon)
            await in_thread(lambda: self._judge(database, daemon.home, final))
        return self.report

    def _members(self) -> Members:
        cluster = {
            "bootstrap_servers": self._stream.bootstrap,
            "topics": [self._stream.topic],
            "group_id": self._stream.topic,
        }
        read = {
            "api_key": CONFIGURED,
            "api_key_header": HEADER,
            "key_is_distinct_id": True,
            "commit": "disk",
        }
        return Members(
            self._root,
            {**cluster, **read},
            upstream={"verify_keys": True},
            buffer={"kind": "disk"},
            batch={"max_age": "1s"},
            delivery={"retry": {"initial": "500ms", "max": "5s"}},
        )

    def _rate(self, source: str) -> float:
        return self._options.rate * SHARES[source]

    async def _continues(self, seconds: float) -> bool:
        """Let so much time pass; whether the load continues then. Its end ends the wait."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, seconds)):
                await self._stopping.wait()
        return not self._stopping.is_set()

    @contextlib.asynccontextmanager
    async def _load(self, daemon: RunningMember, port: int) -> AsyncIterator[None]:
        """All of the load, until the block ends; then faults are over, and
        what was sent is answered.
        """
        await in_thread(lambda: write_import(self._imported, self._source))
        self.report.import_events = self._imported.count
        calls = self._options.rate * FLAG_CALLS
        requests = self._rate("http") / self._sdk.request_events
        async with (
            self._child("events", port, requests) as events,
            self._child("flags", port, calls) as flags,
        ):
            self._clock = asyncio.get_running_loop().time()
            self.report.began = time.time()
            async with asyncio.TaskGroup() as group:
                importing = group.create_task(self._import())
                beside = [
                    group.create_task(coroutine)
                    for coroutine in (self._fail(), self._watch(daemon), self._write())
                ]
                try:
                    yield
                finally:
                    self._stopping.set()
                    self.report.seconds = self._now()
                await asyncio.wait(beside)
                async with self._client.delete(f"{self._url}/sandbox/faults"):
                    pass
                for child in (events, flags):
                    await child.ask("stop")
                await importing

    @contextlib.asynccontextmanager
    async def _child(self, what: str, port: int, rate: float) -> AsyncIterator[Child]:
        arguments = (what, self._options.seed, self._began, self._root / what, port, rate)
        child = await Child.start("tests.soak.sender", self._evidence.log, *map(str, arguments))
        try:
            yield child
        finally:
            await child.end()

    def _now(self) -> float:
        return asyncio.get_running_loop().time() - self._clock

    async def _fail(self) -> None:
        """Let the upstream fail, by the plan."""
        for fault in planned_faults(self._options.seed, self._options.seconds):
            if not await self._continues(fault.begins - self._now()):
                return
            begins = self._now()
            async with self._client.post(
                f"{self._url}/sandbox/faults", json=fault.request
            ) as response:
                assert response.status == 201, await response.text()
            self.report.faults.append(
                PlannedFault(fault.name, begins, begins + fault.ends - fault.begins, fault.request)
            )

    async def _write(self) -> None:
        """Write the topic, at its rate."""
        while await self._continues(WRITE_EVERY):
            due = min(self._records.count, int(self._now() * self._rate("kafka")))
            made = map(self._records.record, range(self.report.records, due))
            await self._stream.write(
                Record(record.value, record.key, record.headers) for record in made
            )
            self.report.records = due

    async def _import(self) -> None:
        """Import beside the daemon; when the load ends early it is interrupted, and resumed as
        fast as it can.
        """
        rate = f"{max(1, round(self._rate('import')))}"
        async with self._importer(rate) as self._importing:
            while not self._importing.ended and await self._continues(1.0):
                pass
            if not self._importing.ended:
                os.kill(self._importing.pid, signal.SIGINT)
            code = await self._importing.code()
        if code == INTERRUPTED:
            async with self._importer("unlimited") as again:
                code = await again.code()
        if code:
            self.report.problems.append(f"the import ended with {code}")

    def _importer(self, rate: str) -> contextlib.AbstractAsyncContextManager[Killable]:
        upstream = (
            "--upstream",
            self._url,
            "--api-key",
            IMPORT_KEY,
            "--state",
            str(self._state),
            "--rate",
            rate,
            "--yes",
        )
        return Killable.living(
            ("import", "native", str(self._source), *upstream), self._evidence.log
        )

    async def _watch(self, daemon: RunningMember) -> None:
        """Look at the daemon; report progress now and then. Its end, or books that don't balance,
        end the load.
        """
        every = max(1.0, self._options.seconds / LOOKS)
        reader = JournalReader(self._root / "events", ANSWERS)
        said = 0.0
        while await self._continues(every):
            try:
                self.report.looks.append(self._look(await daemon.status(), daemon))
            except (
                AssertionError,
                aiohttp.ClientError,
                ForwarderError,
                OSError,
                TimeoutError,
            ) as error:
                self.report.problems.append(
                    f"after {self._now():.0f} s the daemon can't be looked at: {error!r}"
                )
                self._stopping.set()
                return
            if self._now() - said >= max(10.0, self._options.seconds / 120):
                said = self._now()
                self._say(self._progress(reader.more()))

    def _look(self, status: Snapshot, daemon: RunningMember) -> Look:
        if self._importing is not None:
            self._importing.look()
        return Look(
            at=self._now(),
            received=total(status, "total_received"),
            delivered=total(status, "delivered"),
            dead=total(status, "total_dead"),
            buffered=total(status, "buffered"),
            memory=resident(daemon.process.pid),
            descriptors=_descriptors(daemon),
            import_memory=self._importing.memory if self._importing is not None else 0,
        )

    def _progress(self, new: list[AnswerEntry]) -> str:
        look = self.report.looks[-1]
        now = self._now()
        fault = next(
            (fault.name for fault in self.report.faults if fault.begins <= now < fault.ends),
            "no fault",
        )
        answered = [entry.seconds for entry in new if entry.status]
        late = (
            f"answers p99 {1000 * percentile(answered, 0.99):.1f} ms" if answered else "no answers"
        )
        return (
            f"{int(now) // 60:3}:{int(now) % 60:02}  {look.received:,} received, "
            f"{look.delivered:,} delivered, {look.buffered:,} buffered; "
            f"{late}; {look.memory / 1e6:.0f} MB, {look.descriptors} descriptors; {fault}"
        )

    async def _drained(self, daemon: RunningMember) -> Snapshot | None:
        """The status once all has arrived; None, with a problem, if it doesn't."""
        try:
            await self._stream.settled(DRAIN_LIMIT)
            await daemon.until(lambda status: total(status, "buffered") == 0, DRAIN_LIMIT)
            await pause(AT_REST)
            self.report.after = _descriptors(daemon)
            return await daemon.status()
        except (
            AssertionError,
            aiohttp.ClientError,
            ForwarderError,
            OSError,
            TimeoutError,
        ) as error:
            self.report.problems.append(f"not everything was delivered: {error!r}")
            return None

    async def _end(self, daemon: RunningMember) -> None:
        if daemon.process.returncode is not None or await daemon.stop():
            self.report.problems.append(f"the daemon ended with {daemon.process.returncode}")
        audit = await forwarder("audit", "--config", str(daemon.home / "forwarder.yaml"))
        if audit.code:
            self.report.problems.append(
                f"`forwarder audit` ended with {audit.code}: {audit.out}{audit.err}"
            )

    def _judge(self, database: Path, home: Path, final: Snapshot | None) -> None:
        report = self.report
        report.answers = JournalReader(self._root / "events", ANSWERS).more()
        report.flags = JournalReader(self._root / "flags", ANSWERS).more()
        letters = [
            letter
            for path in home.glob("state/worker-*/dead-letters.db")
            for letter in read_letters(path)
        ]
        report.http = judge_http(
            self._sdk, report.answers, soak_arrivals(database, API_KEY), letters
        )
        self._records.end_at(report.records)
        report.kafka_events = len(self._records.events())
        report.kafka = kafka_judge.judge(
            self._records, kafka_judge.arrivals(database), ordered=False
        )
        report.imported = import_judge.judge(
            self._imported, import_judge.arrivals(database, IMPORT_KEY)
        )
        report.problems += self._wrong_flags()
        if final is not None:
            report.books = [_books(lane) for lane in final.lanes]
            report.problems += self._wrong_books({lane.label: lane for lane in final.lanes})

    def _wrong_books(self, lanes: dict[str, LaneSnapshot]) -> list[str]:
        """What doesn't fit between the daemon's books and what the sandbox holds."""
        http = self.report.http
        own = lanes.get(lane_label(Lane(API_KEY)))
        topic = [lanes[label] for key in LANES if (label := lane_label(Lane(key))) in lanes]
        problems = [
            f"events are left or were dropped: {_books(lane)}"
            for lane in lanes.values()
            if lane.buffered or lane.dropped
        ]
        if own is None or not http.accepted <= own.total_received <= http.accepted + http.uncertain:
            problems.append(
                f"{http.accepted} events were accepted over HTTP, {http.uncertain} perhaps; the "
                f"books say {own and _books(own)}"
            )
        if own is not None and (own.delivered, own.total_dead) != (http.distinct, http.dead):
            problems.append(
                f"{http.distinct} events of HTTP are at the sandbox, {http.dead} dead letters; "
                f"the books say {_books(own)}"
            )
        delivered = sum(lane.delivered for lane in topic)
        if delivered != self.report.kafka_events:
            problems.append(
                f"the topic has {self.report.kafka_events} events; the books say "
                f"{[_books(lane) for lane in topic]}"
            )
        return problems

    def _wrong_flags(self) -> list[str]:
        """Calls for flags that failed while nothing was wrong upstream."""
        spans = [
            (self.report.began + fault.begins, self.report.began + fault.ends + SLACK)
            for fault in self.report.faults
        ]
        failed = [
            entry
            for entry in self.report.flags
            if entry.status != PROMISED
            and not any(
                begins <= entry.due + entry.seconds and entry.due <= ends for begins, ends in spans
            )
        ]
        return (
            [f"{len(failed)} calls for flags failed outside of faults: {failed[:3]}"]
            if failed
            else []
        )


def _descriptors(daemon: RunningMember) -> int:
    return sum(1 for _ in Path(f"/proc/{daemon.process.pid}/fd").iterdir())


def _books(lane: LaneSnapshot) -> str:
    dropped = (
        f", {sum(lane.dropped.values()):,} dropped {dict(lane.dropped)}" if lane.dropped else ""
    )
    return (
        f"{lane.label}: {lane.total_received:,} received = {lane.delivered:,} delivered + "
        f"{lane.buffered:,} buffered "
        f"+ {lane.total_dead:,} dead-lettered{dropped}"
    )
