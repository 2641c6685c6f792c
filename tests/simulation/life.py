"""One life of the daemon: the real pipeline, built from real settings, in a world of its own."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, MutableMapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final
from unittest.mock import patch

import structlog

from forwarder.config.settings import Settings
from forwarder.core.errors import ConfigurationError
from forwarder.core.ports import DeadLetter
from forwarder.daemon.pipeline import KeptDescriptors, Pipeline, build
from forwarder.daemon.roles import Role
from forwarder.deadletter.schema import open_writable
from forwarder.deadletter.selection import (
    DeadLetterFilter,
    mark_for_drop,
    mark_for_replay,
    numbers_of,
)
from forwarder.delivery.outcomes import OutcomeHandler
from forwarder.intake.decoder_jobs import LookUp, work
from forwarder.telemetry.taps import Taps
from tests.simulation.archive import SimulatedArchive, judge_archive
from tests.simulation.calls import Caller, judge_calls
from tests.simulation.crowd import Crowd
from tests.simulation.disk import SimulatedDisk
from tests.simulation.entrances import MAPPING
from tests.simulation.kafka import TOPIC, SimulatedBrokers
from tests.simulation.log_acts import LOGS, LogAct, LogWrite
from tests.simulation.logs import LogFolder
from tests.simulation.loop import SimulatedLoop, StandsStill
from tests.simulation.network import Connected, Network, Weather, passing
from tests.simulation.operating import drain, drainable, judge_explanations, watch
from tests.simulation.oracle import LEAST, SMALL, Evidence, Promise, books_of, judge, number_of
from tests.simulation.plan import (
    DISK,
    FOR_EVER,
    KAFKA,
    KEYS,
    MEMORY,
    ORDERLY,
    RULES,
    SECOND,
    SMALL_BODIES,
    Call,
    ClockJump,
    Explain,
    Hold,
    Marks,
    OddAct,
    Plan,
    Produce,
    Rebalance,
    Reload,
    Restart,
    Send,
    Tap,
    Trouble,
    Weathered,
    told,
)
from tests.simulation.process import PROCESS, Killed, SimulatedProcess
from tests.simulation.senders import Sender
from tests.simulation.services import Service
from tests.simulation.threads import CommitThread
from tests.simulation.trace import Trace

PROCESS_NUMBER: Final = 31_000
"""What every process of a life has for its number: a lock file has it in it, and is as long as it
has digits.
"""
BEGIN: Final = 1_767_225_600.0
"""2026-01-01T00:00:00Z: the wall clock when a life begins."""
LONG: Final = 4 * 3600.0
"""Seconds within which everything has to be delivered once all is well."""
FULL: Final = 120.0
"""Seconds after which the operator drops dead letters, where there is room for a few alone."""
OWN: Final = ("127.0.0.1", 8318)
ADDRESSES: Final = {"a": ("10.1.0.1", 80), "b": ("10.1.0.2", 80)}
IN_MEMORY: Final = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Where the files are, if a file system is in memory: losses are simulated, syncing costs time."""
SENDERS: Final = 4
SMALL_BOUNDS: Final = (
    ("forwarder.core.shares.LEAST", LEAST),
    ("forwarder.daemon.policies.LEAST", LEAST),
    ("forwarder.sources.http.connection.SMALL_BODY", SMALL),
)
"""What may be received at a time, small enough that it is reached."""
TORN: Final = (
    "part of the buffer's files is damaged; a copy is quarantined",
    "events of the buffer are missing; they count as dropped",
)
"""What a start says of a record that was being written when the daemon was killed."""


UNREADABLE_LOG: Final = "logs: a file can't be read"


class SimulatedClock:
    """The loop's time, from a fixed date on."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self.offset = 0.0
        """Seconds by which the wall clock is off."""

    def now(self) -> float:
        """To the microsecond, as clocks are."""
        return round(BEGIN + self._loop.time() + self.offset, 6)

    def monotonic(self) -> float:
        return self._loop.time()

    def call_later(self, delay: float, callback: Any) -> asyncio.TimerHandle:
        return self._loop.call_later(delay, callback)

    async def sleep(self, seconds: float) -> None:
        await passing(seconds)


class SimulatedDecoder:
    """In the place of the decoder process: its work is a step at an instant that is drawn."""

    pid = None

    def __init__(self, *_: object) -> None:
        pass

    async def decode(
        self, head: bytes, body: bytes, accept: Any, look_up: LookUp
    ) -> tuple[bytes, list[bytes]]:
        loop = asyncio.get_running_loop()
        outcome, parts = await loop.run_in_executor(None, work, head, body, look_up)
        accept(sum(map(len, parts)))
        return outcome, parts

    async def close(self) -> None:
        """There is no process."""


class SimulatedMemory:
    """In the place of the kernel's figures, for `daemon.memory.MemorySource`."""

    origin = "simulated"

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.short = False

    def used(self) -> int:
        """Nearly all, or half."""
        return self.limit * 95 // 100 if self.short else self.limit // 2


@dataclass
class Life:
    """What is left of a life when it is over."""

    plan: Plan
    trace: Trace
    broken: Promise | None = None
    met: Counter[str] = field(default_factory=Counter)
    """What was reached, and how often."""


def live(plan: Plan) -> Life:
    """Live it, to its end or to the first broken promise."""
    trace = Trace()
    loop = SimulatedLoop(Random(plan.seed + 1), trace)
    trace.time = loop.time
    life = Life(plan, trace)
    asyncio.set_event_loop(loop)
    try:
        with (
            _deterministic(plan.seed),
            TemporaryDirectory(prefix="simulation-", dir=IN_MEMORY) as folder,
            ExitStack() as stack,
        ):
            disk = SimulatedDisk(Path(folder), loop.chance, trace.note)
            stack.enter_context(disk.intercepted())
            world = _World(plan, loop, trace, life.met, disk, stack)
            try:
                loop.run_until_complete(world.run())
            except Promise as broken:
                life.broken = broken
            except StandsStill as error:
                life.broken = Promise(f"time stands still: {error}")
            except Exception as error:
                life.broken = Promise(f"the world ended with {error!r}")
                life.broken.__cause__ = error
            else:
                life.broken = _left(loop, world.processes)
            trace.note("end", str(life.broken or "all is well"))
            _end(loop, world.processes)
    finally:
        loop.close()
        asyncio.set_event_loop(None)
    return life


def _left(loop: SimulatedLoop, processes: Sequence[SimulatedProcess]) -> Promise | None:
    """What a life has left behind."""
    killed = {task for process in processes for task in process.left}
    tasks = [task.get_name() for task in asyncio.all_tasks(loop) if task not in killed]
    if tasks:
        return Promise(f"tasks are left: {', '.join(sorted(tasks))}")
    timers = [
        repr(timer)
        for timer in loop._scheduled  # type: ignore[attr-defined]
        if not timer.cancelled() and "SimulatedTransport._pass_on" not in repr(timer)
    ]
    if timers:
        return Promise(f"timers are left: {timers[0]} and {len(timers) - 1} more")
    if loop.unhandled:
        return Promise(f"unhandled: {loop.unhandled[0]}")
    return None


def _end(loop: SimulatedLoop, processes: Sequence[SimulatedProcess]) -> None:
    for process in processes:
        process.kill()  # one that a broken promise has left alive
        process.bury()
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    try:
        if tasks:
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
    except StandsStill:
        pass  # the life was judged already


@contextmanager
def _deterministic(seed: int) -> Iterator[None]:
    """All randomness is that of the seed, and nothing is known of the real process."""
    chance = Random(seed + 2)
    before = random.getstate()
    random.seed(seed + 3)
    try:
        with (
            patch.object(os, "urandom", chance.randbytes),
            patch.object(os, "getpid", lambda: PROCESS_NUMBER),
            patch.object(random, "_urandom", Random(seed + 4).randbytes),  # what `secrets` asks
            patch("forwarder.storage.directory.state_directories", lambda *_, **__: ()),
            patch("forwarder.daemon.stores.state_directories", lambda *_, **__: ()),
        ):
            yield
    finally:
        random.setstate(before)


class _World:
    def __init__(  # noqa: PLR0917 - one place makes it
        self,
        plan: Plan,
        loop: SimulatedLoop,
        trace: Trace,
        met: Counter[str],
        disk: SimulatedDisk,
        stack: ExitStack,
    ) -> None:
        self._plan = plan
        self._loop = loop
        self._trace = trace
        self._say = trace.note
        self._met = met
        self._disk = disk
        self._network = Network(loop, loop.chance)
        self._logged: list[str] = []
        """What the daemon's log says that nothing in the plan explains."""
        self._archive: SimulatedArchive | None = None
        self._services: dict[str, Service | SimulatedArchive] = {
            name: Service(name, ADDRESSES[name], self._network, loop, self._say)
            for name in plan.destinations
        }
        if plan.archive is not None:
            self._archive = SimulatedArchive(SECOND, disk, loop)
            self._services[SECOND] = self._archive
            stack.enter_context(self._archive.intercepted())
        self._senders = [
            Sender(number, loop, self._network, lambda: OWN, self._say) for number in range(SENDERS)
        ]
        self._rules = plan.rules
        self._clock = SimulatedClock(loop)
        self._brokers = SimulatedBrokers(loop, loop.chance, trace.note)
        self._crowd = Crowd(loop, self._network, OWN, self._say)
        self._caller = Caller(loop, self._network, OWN, self._say)
        self._memory = SimulatedMemory(1000 if "memory" in plan.settings else 0)
        self._evidence = Evidence(
            plan, self._services, self._senders, disk.root, self._brokers, self._crowd
        )
        self._brokers.on_commit = self._evidence.committed
        if self._archive is not None:
            self._archive.broken = self._evidence.broken
        self._logs: LogFolder | None = None
        if plan.logs is not None:
            self._logs = LogFolder(plan.logs, loop, self._clock, trace.note)
            self._logs.on_saved = self._evidence.passed
            self._evidence.logs = self._logs
            stack.enter_context(self._logs.intercepted())
        self._evidence.rules.append((0.0, plan.rules))
        self.processes: list[SimulatedProcess] = []
        """The daemon's, the last one at the end."""
        self._pipeline: Pipeline | None = None
        """While it runs."""
        self._restart = Restart(0.0, "stop", 0, 0.0, 0)
        """How it ends next, if that is not its last end."""
        self._beside: list[asyncio.Task[None]] = []
        self._aside: list[asyncio.Task[None]] = []
        """What senders and the operator do beside the rest: odd requests, watching."""
        self._kept: KeptDescriptors | None = None
        """What the program in its place inherits."""
        self._successor: SimulatedProcess | None = None

        async def start_connection(addresses: Any, **_: object) -> Connected:
            host, port = addresses[0][4][:2]
            return await self._network.connect(host, port)

        for what, replacement in (
            ("forwarder.upstream.connections.start_connection", start_connection),
            ("forwarder.sources.http.listener.bind_tcp", self._bind),
            ("forwarder.sources.http.listener.duplicates", self._network.duplicates),
            ("forwarder.daemon.pipeline.adopt", self._network.adopt),
            ("forwarder.daemon.pipeline.find_memory", lambda *_: self._memory),
            ("forwarder.daemon.pressure.reclaim_memory", lambda: None),
            ("forwarder.daemon.pipeline.Taps", partial(Taps, spent=loop.time)),
            # what it would wait for can't happen meanwhile
            ("forwarder.inspect.buffer_contents.READS", 1),
            *(SMALL_BOUNDS if plan.settings["http"]["max_body"] in SMALL_BODIES else ()),
            ("forwarder.daemon.pipeline.DecoderProcess", SimulatedDecoder),
            ("forwarder.storage.committer.threading.Thread", CommitThread),
            ("forwarder.sources.kafka.source.RealBrokers", lambda: self._brokers),
            (
                "forwarder.delivery.outcomes.OutcomeHandler.apply",
                self._noting(OutcomeHandler.apply),
            ),
        ):
            stack.enter_context(patch(what, replacement))
        structlog.configure(processors=[self._log], cache_logger_on_first_use=False)
        stack.callback(structlog.reset_defaults)

    def _bind(self, address: Any) -> list[Any]:
        return [self._network.listen(address.host, address.port)]

    def _noting(self, apply: Callable[..., None]) -> Callable[..., None]:
        """`apply`, whose outcomes are counted."""

        def counted(
            handler: OutcomeHandler, state: Any, attempt: Any, outcome: Any, *more: Any
        ) -> None:
            self._met[f"outcome: {type(outcome).__name__}"] += 1
            apply(handler, state, attempt, outcome, *more)

        return counted

    def _log(self, _: object, method: str, event: MutableMapping[str, Any]) -> str:
        process = PROCESS.get()
        if process is not None and process.killed:
            raise structlog.DropEvent
        self._say("log", f"{method}: {event.get('event')}")
        self._met[f"log: {event.get('event')}"] += 1
        if event.get("event") == "lane halted":
            self._met[f"halted: {event.get('reason')}"] += 1
        if event.get("event") == "the archive fails; its events stay in the buffer":
            self._met["halted: archive_unwritable"] += bool(event.get("hint"))
        if method in ("error", "exception", "critical") and not self._is_expected(event):
            error = f" {sys.exc_info()[1]!r}" if event.get("exc_info") else ""
            self._logged.append(f"{method}: {event}{error}")
        raise structlog.DropEvent

    def _is_expected(self, event: Mapping[str, Any]) -> bool:
        """Whether the plan explains an error: the disk doesn't work, or the brokers don't, or
        didn't just now; or a record was being written when the daemon was killed.
        """
        if event.get("event") in TORN and any(how not in ORDERLY for _, how in self._evidence.ends):
            self._met["a record was torn"] += 1
            return True
        name = str(event.get("event"))
        where = KAFKA if name.startswith("kafka") else LOGS if name == UNREADABLE_LOG else DISK
        return any(
            isinstance(act, Trouble)
            and act.where == where
            and act.at <= self._loop.time() <= act.until + 60.0
            for act in self._plan.acts
        )

    def _settings(self) -> Settings:
        plan = self._plan
        upstreams = [
            {
                "name": name,
                "url": "http://{}:{}".format(*ADDRESSES[name]),
                **plan.settings["upstream"],
                **({"required": False} if plan.optional and name != plan.destinations[0] else {}),
            }
            for name in plan.destinations
        ]
        several: dict[str, Any] = (
            {"upstreams": upstreams, "routes": [dict(route) for route in plan.routes]}
            if plan.routes
            else {"upstream": {k: v for k, v in upstreams[0].items() if k != "name"}}
        )
        for upstream in several.get("upstreams", [several.get("upstream")]):
            upstream["verify_keys"] = False
        if self._archive is not None and plan.archive is not None:
            own = several["upstreams"][1]
            # the greatest `max_event` of all destinations counts at receipt
            for name in {"url", "verify_keys", *plan.settings["upstream"]} - {"max_event"}:
                del own[name]
            own["archive"] = {
                "url": self._archive.url,
                "partition": plan.archive.partition,
                "max_age": plan.archive.max_age,
            }
        settings = Settings.parse(
            {
                "sources": {
                    "http": {
                        "listen": "{}:{}".format(*OWN),
                        **plan.settings["http"],
                        "otlp": {"api_key": KEYS[0], "mapping": dict(MAPPING)},
                    },
                    "kafka": [
                        {
                            "bootstrap_servers": ["broker:9092"],
                            "topics": [TOPIC],
                            "commit": plan.kafka,
                            **plan.settings.get("kafka", {}),
                        }
                    ]
                    if plan.kafka
                    else [],
                    "logs": [dict(plan.logs.source)] if plan.logs is not None else [],
                },
                "admin": {"listen": "127.0.0.1:0"},
                "buffer": {
                    "path": str(self._disk.root),
                    **{
                        name: value
                        for name, value in plan.settings["buffer"].items()
                        if name != "max_bytes"
                    },
                },
                "passthrough": dict(plan.settings.get("passthrough", {})),
                "batch": dict(plan.settings["batch"]),
                "delivery": dict(plan.settings["delivery"]),
                "rules": [dict(RULES[name]) for name in self._rules],
                **several,
            }
        )
        # smaller than may be configured, so that it is full now and then
        smaller = replace(settings.buffer, max_bytes=plan.settings["buffer"]["max_bytes"])
        few = replace(settings.dead_letters, **plan.settings.get("dead_letters", {}))
        if plan.has_files and not plan.durable:
            few = replace(few, path=self._disk.root)
        return replace(settings, buffer=smaller, dead_letters=few)

    async def run(self) -> None:
        """The whole life. Raises `Promise` for one that is broken."""
        loop = self._loop
        for service in self._services.values():
            service.serve()
        for sender in self._senders:
            sender.on_accepted = self._evidence.accepted
        await self._start(0)
        sending = [
            loop.create_task(sender.run(), name=f"sender {number}")
            for number, sender in enumerate(self._senders)
        ]
        self._beside = [
            loop.create_task(self._watch(), name="watching"),
            loop.create_task(self._keep_alive(), name="keeping it alive"),
        ]
        try:
            await self._act()
            if self._logs is not None:
                self._logs.finish()
            for sender in self._senders:
                sender.send(None)
            await asyncio.gather(*sending, *self._aside)
            delivered = await self._settle()
        finally:
            await _ended([*sending, *self._aside], check=False)
            await _ended(self._beside)
        pipeline = await self._running()
        if delivered:
            await passing(2.0)  # the marks of what is settled are written with the next commit
            self._explain(at_the_end=True)
        left = await self._end(pipeline)
        for service in self._services.values():
            await service.close()
        await passing(3.0)
        self._judge(pipeline, left)

    def _judge(self, pipeline: Pipeline, left: Sequence[DeadLetter]) -> None:
        """Raises the first `Promise` that was broken in a life that is over."""
        if self._logged:
            raise Promise(f"the log has an error: {self._logged[0]}")
        judge(self._evidence, pipeline, left, self._met)
        passed = self._services[self._plan.calls_to]
        if isinstance(passed, Service):
            judge_calls(self._evidence, self._caller, passed, self._met)
        if self._archive is not None:
            judge_archive(self._evidence, self._archive, self._process)
            self._met["files of an archive"] += len(self._archive.files)
        if self._logs is not None:
            self._met.update(self._logs.met)

    async def _settle(self) -> bool:
        """Wait until all is delivered, if it is to be; whether it is."""
        plan = self._plan
        if plan.early and plan.durable:
            # what isn't delivered by then is the next one's
            restart = Restart(self._loop.time(), "stop", 0, 0.1, 0)
            await self._end_by(restart, await self._running())
        delivered = not plan.early or plan.reads_again
        if delivered:
            await self._until_delivered()
        if plan.replays:
            for name in self._services:
                self._mark(name, "replay")
            await self._until_delivered()
        return delivered

    # The daemon's starts and ends

    @property
    def _process(self) -> SimulatedProcess:
        return self.processes[-1]

    async def _start(self, kill_after: int) -> None:
        """Start it, again and again if it is killed meanwhile."""
        while True:
            process = self._successor or self._new_process()
            self._successor = None
            self.processes.append(process)
            self._disk.kill_after = kill_after
            role = Role(instance="0" * 12)
            if self._kept is not None:
                role = replace(role, descriptors=self._kept.sockets, locks=self._kept.locks)
                self._kept = None
            try:
                pipeline = process.call(partial(build, self._settings(), self._clock, role))
                await process.run(pipeline.start())
            except Killed:
                self._met["killed while it started"] += 1
                self._lose_power()
                await passing(0.5)
                kill_after = 0
                continue
            except ConfigurationError:
                if not self._disk.trouble:
                    raise
                # what watches over it tries again
                self._met["couldn't start"] += 1
                process.kill()
                await passing(5.0)
                continue
            if kill_after:
                self._disk.kill_after = 0
            self._pipeline = self._evidence.pipeline = pipeline
            self._evidence.starts.append(self._loop.time())
            self._evidence.check()
            return

    def _new_process(self) -> SimulatedProcess:
        process = SimulatedProcess(self._loop)
        process.on_kill += [partial(self._network.end, process), partial(self._disk.end, process)]
        return process

    async def _keep_alive(self) -> None:
        """Start it again whenever it has ended."""
        while True:
            await self._process.over.wait()
            self._pipeline = self._evidence.pipeline = None
            restart = self._restart
            self._met[f"ended: {restart.how}"] += 1
            # what is in memory alone can't be written then, in whatever order it ends
            how = "the disk refuses" if self._disk.trouble else restart.how
            self._evidence.ends.append((self._loop.time(), how))
            self._say("plan", f"the daemon has ended: {restart.how}")
            self._lose_power()
            began = self._loop.time()
            await passing(restart.away)
            if restart.how == "drain":
                await self._drain(restart.after)
            starts = len(self.processes)
            await self._start(restart.again)
            if restart.how == "replace" and len(self.processes) == starts + 1:
                self._evidence.replaced.append((began, self._loop.time()))
            self._say("plan", "the daemon has started")

    async def _drain(self, kill_after: int) -> None:
        """`forwarder buffer drain`, which may be killed."""
        for directory in drainable(self._disk.root):
            process = self._new_process()
            self.processes.append(process)
            self._disk.kill_after = kill_after
            work = drain(
                self._settings(),
                directory,
                self._clock,
                self._say,
                lambda: bool(self._disk.trouble),
            )
            try:
                await process.run(work)
                self._met["drained"] += 1
                self._check_left(process)
            except Killed:
                self._met["killed while it drained"] += 1
                self._evidence.ends.append((self._loop.time(), "kill"))
                return
            except ConfigurationError:
                if not self._disk.trouble:
                    raise
                self._met["couldn't drain"] += 1
            finally:
                self._disk.kill_after = 0
                process.kill()

    def _lose_power(self) -> None:
        if self._restart.how == "power":
            self._disk.lose_power()
            for storage in (self._logs, self._archive):
                if storage is not None:
                    storage.lose_power()

    async def _running(self) -> Pipeline:
        """It, as soon as it runs."""
        while self._pipeline is None:
            if self._beside[-1].done():
                self._beside[-1].result()
            await passing(0.1)
        return self._pipeline

    async def _end(self, pipeline: Pipeline) -> list[DeadLetter]:
        """End it in good order; the dead letters that are in memory."""
        process = self._process
        self._pipeline = None
        self._evidence.stops.append(self._loop.time())
        self._disk.kill_after = 0
        await process.run(pipeline.shut_down(self._plan.shut_down))
        self._evidence.check()
        left = await process.run(pipeline.close())
        self._evidence.check(closed=not self._plan.durable)
        await passing(1.0)
        if self._kept is not None:
            self._successor = self._new_process()
            self._network.hand_over(self._kept.sockets, self._successor)
            self._disk.hand_over([lock for _, lock in self._kept.locks], self._successor)
        self._check_left(process)
        return left

    def _check_left(self, process: SimulatedProcess) -> None:
        """A process that has ended has left nothing behind. Raises `Promise`."""
        if left_open := self._network.held_by(process) + self._loop.timers_of(process):
            raise Promise(f"it has ended, and this is left: {left_open[0]}")
        if self._logs is not None and self._logs.open_by(process):
            raise Promise("it has ended, and logs are open")
        process.kill()
        if process.left:
            names = ", ".join(sorted(task.get_name() for task in process.left))
            raise Promise(f"tasks are left: {names}")

    async def _end_by(self, restart: Restart, pipeline: Pipeline) -> None:
        self._restart = restart
        if restart.how == "replace":
            self._kept = self._process.call(pipeline.keep_descriptors)
        if restart.how in ORDERLY:
            await self._end(pipeline)
        elif restart.after:
            self._disk.kill_after = restart.after
        else:
            self._process.kill()

    # What happens

    async def _act(self) -> None:
        """What the plan says, at its times."""
        plan = self._plan
        ends: list[tuple[float, Trouble]] = []
        acts = list(plan.acts)
        while acts or ends:
            ends.sort(key=lambda end: end[0])
            at = min([act.at for act in acts[:1]] + [until for until, _ in ends[:1]])
            await passing(max(0.0, at - self._loop.time()))
            if ends and ends[0][0] <= at:
                self._trouble(ends.pop(0)[1], ends=True)
                continue
            act = acts.pop(0)
            for line in told(act):
                self._say("plan", line)
            if isinstance(act, Send | OddAct | Call | Hold | Produce | LogAct):
                self._send(act)
            elif isinstance(act, Trouble):
                self._trouble(act)
                if act.until < FOR_EVER:
                    ends.append((act.until, act))
            elif isinstance(act, Rebalance):
                self._brokers.rebalance(act.elsewhere)
            elif isinstance(act, ClockJump):
                self._clock.offset = act.offset
                self._evidence.offsets.append((self._loop.time(), act.offset))
            elif isinstance(act, Weathered):
                self._network.weather = Weather(act.latency, act.segment)
            else:
                await self._operate(act)
        await passing(max(0.0, plan.ends - self._loop.time()))
        self._disk.kill_after = 0
        for service in self._services.values():
            service.refuses_poison = False
        if self._brokers.elsewhere:
            self._brokers.rebalance(())

    def _send(self, act: Send | OddAct | Call | Hold | Produce | LogAct) -> None:
        if isinstance(act, Hold):
            self._begin(self._crowd.hold(act), "the crowd")
            return
        if isinstance(act, Call):
            self._begin(self._caller.call(act), f"a call for {act.what}")
            return
        if isinstance(act, OddAct):
            max_body = self._plan.settings["http"]["max_body"]
            work = self._senders[act.sender].ask_oddly(act, max_body)
            self._begin(work, f"something odd: {act.what}")
            return
        if isinstance(act, Send | Produce | LogWrite):
            self._evidence.sent(act.events)
        if isinstance(act, Send):
            self._senders[act.sender].send(act)
        elif isinstance(act, Produce):
            self._brokers.produce(act, self._clock.now())
        elif self._logs is not None:
            self._logs.perform(act)

    def _begin(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._aside.append(self._loop.create_task(work, name=name))

    def _explain(self, *, at_the_end: bool = False) -> None:
        self._met["explained"] += judge_explanations(
            self._evidence, self._loop, at_the_end=at_the_end
        )

    async def _tap(self, act: Tap) -> None:
        self._met[f"tap: {act.outcome}"] += await watch(
            act, self._evidence, self._process, self._loop
        )

    async def _operate(self, act: Reload | Restart | Marks | Explain | Tap) -> None:
        """What an operator does."""
        if isinstance(act, Explain):
            self._explain()
        elif isinstance(act, Tap):
            self._begin(self._tap(act), "the operator watches")
        elif isinstance(act, Marks):
            if act.where in self._services:
                self._mark(act.where, act.what)
        elif isinstance(act, Reload):
            self._rules = act.rules
            self._evidence.rules.append((self._loop.time(), act.rules))
            if self._pipeline is not None:
                self._process.call(self._pipeline.reload, self._settings())
        elif self._pipeline is not None:
            await self._end_by(act, self._pipeline)

    def _mark(self, where: str, what: str) -> None:
        """Mark the dead letters of a destination, as `forwarder dead-letters` does."""
        file = self._evidence.letter_file(where)
        if file is None:
            return
        with closing(open_writable(file)) as database:
            numbers = numbers_of(database, DeadLetterFilter())
            if what == "drop":
                mark_for_drop(database, numbers)
            else:
                mark_for_replay(
                    database, [(number, None) for number in numbers], None, lambda _: None
                )
        self._met[f"dead letters marked: {what}"] += len(numbers)
        self._evidence.marked_letters |= {letter.known for letter in self._evidence.letters(where)}
        self._evidence.marked[where, what] |= {
            number_of(letter.data) for letter in self._evidence.letters(where)
        }

    def _trouble(self, act: Trouble, *, ends: bool = False) -> None:
        if act.where == KAFKA:
            self._brokers.trouble = "" if ends else act.what
            if ends:
                self._say("plan", "the brokers are well")
            return
        if act.where == MEMORY:
            self._memory.short = not ends
            return
        if act.where == LOGS:
            if self._logs is not None:
                self._logs.trouble = "" if ends else act.what
            return
        if act.where == DISK:
            self._disk.trouble = "" if ends else act.what
            if ends:
                self._say("plan", "the disk is well")
            return
        service = self._services[act.where]
        if act.what == "refused":
            (service.serve if ends else service.refuse)()
        elif ends:
            service.trouble = ""
            self._say("plan", f"service {act.where} is well")
        else:
            service.trouble = act.what

    async def _watch(self) -> None:
        """Look at the books now and then, if anything has happened."""
        seen = -1
        while True:
            try:
                if self._trace.steps != seen:
                    self._evidence.check()
            except Promise as broken:
                self._say("oracle", str(broken))
                raise
            seen = self._trace.steps
            await passing(self._loop.chance.choice((0.01, 0.5, 30.0)))

    async def _until_delivered(self) -> None:
        begun = self._loop.time()
        end = begun + LONG
        logs = self._plan.logs
        wait = 1.0
        if logs is not None:
            wait = 10.0
            await passing(logs.quiet)
        while True:
            pipeline = await self._running()
            books = books_of(pipeline)
            if (
                not any(lane.buffered for figures in books for lane in figures.lanes)
                and not any(log.in_flight_bytes for log in pipeline.snapshot().logs)
                and (not self._plan.kafka or self._evidence.is_all_read())
                and not any(self._evidence.has_marks(name) for name in self._services)
                and not any(
                    destination.stores.dead_letter_file
                    and destination.stores.dead_letter_file.unwritten()
                    for destination in pipeline._parts.destinations
                )
            ):
                return
            if self._plan.few_letters and self._loop.time() > begun + FULL:
                for name in self._services:
                    self._mark(name, "drop")
            if self._loop.time() > end:
                raise Promise(f"not all is delivered {LONG:.0f} s after all is well")
            await passing(wait)


async def _ended(tasks: Sequence[asyncio.Task[None]], *, check: bool = True) -> None:
    """Cancel the tasks. Raises what one has raised, if that is looked at."""
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if check and isinstance(result, Exception):
            raise result
