"""One life of the daemon: the real pipeline, built from real settings, in a world of its own."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Iterator, MutableMapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final
from unittest.mock import patch

import structlog

from forwarder.config.settings import Settings
from forwarder.core.ports import DeadLetter
from forwarder.daemon.pipeline import Pipeline, build
from forwarder.daemon.roles import Role
from forwarder.intake.decoder_jobs import LookUp, work
from tests.simulation.loop import SimulatedLoop, StandsStill
from tests.simulation.network import Connected, Network, Weather, passing
from tests.simulation.oracle import Evidence, Promise, books_of, judge, letters_in
from tests.simulation.plan import RULES, ClockJump, Plan, Reload, Send, Trouble, told
from tests.simulation.senders import Sender
from tests.simulation.services import Service
from tests.simulation.threads import CommitThread
from tests.simulation.trace import Trace

BEGIN: Final = 1_767_225_600.0
"""2026-01-01T00:00:00Z: the wall clock when a life begins."""
LONG: Final = 4 * 3600.0
"""Seconds within which everything has to be delivered once all is well."""
OWN: Final = ("127.0.0.1", 8318)
ADDRESSES: Final = {"a": ("10.1.0.1", 80), "b": ("10.1.0.2", 80)}
SENDERS: Final = 4


class SimulatedClock:
    """See `core.clock.Clock`: the loop's time, from a fixed date on."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self.offset = 0.0
        """Seconds by which the wall clock is off."""

    def now(self) -> float:
        """See `Clock.now`; to the microsecond, as clocks are."""
        return round(BEGIN + self._loop.time() + self.offset, 6)

    def monotonic(self) -> float:
        """See `Clock.monotonic`."""
        return self._loop.time()

    def call_later(self, delay: float, callback: Any) -> asyncio.TimerHandle:
        """See `Clock.call_later`."""
        return self._loop.call_later(delay, callback)

    async def sleep(self, seconds: float) -> None:
        """See `Clock.sleep`."""
        await passing(seconds)


class SimulatedDecoder:
    """In the place of the decoder process: its work is a step at an instant that is drawn."""

    pid = None

    def __init__(self, *_: object) -> None:
        pass

    async def decode(
        self, head: bytes, body: bytes, accept: Any, look_up: LookUp
    ) -> tuple[bytes, list[bytes]]:
        """See `intake.large.Decoder`."""
        loop = asyncio.get_running_loop()
        outcome, parts = await loop.run_in_executor(None, work, head, body, look_up)
        accept(sum(map(len, parts)))
        return outcome, parts

    async def close(self) -> None:
        """There is no process."""


class Unlimited:
    """See `daemon.memory.MemorySource`: memory is never short."""

    limit = 0
    origin = "simulated"

    def used(self) -> int:
        """Nothing."""
        return 0


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
        with _deterministic(plan.seed), ExitStack() as stack:
            world = _World(plan, loop, trace, life.met, stack)
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
                life.broken = _left(loop)
            trace.note("end", str(life.broken or "all is well"))
    finally:
        _end(loop)
        asyncio.set_event_loop(None)
    return life


def _left(loop: SimulatedLoop) -> Promise | None:
    """What a life has left behind."""
    tasks = [task.get_name() for task in asyncio.all_tasks(loop)]
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


def _end(loop: SimulatedLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    try:
        if tasks:
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
    except StandsStill:
        pass  # the life was judged already
    loop.close()


@contextmanager
def _deterministic(seed: int) -> Iterator[None]:
    """All randomness is that of the seed."""
    chance = Random(seed + 2)
    before = random.getstate()
    random.seed(seed + 3)
    try:
        with (
            patch.object(os, "urandom", chance.randbytes),
            patch("forwarder.storage.directory.state_directories", lambda *_, **__: ()),
            patch("forwarder.daemon.stores.state_directories", lambda *_, **__: ()),
        ):
            yield
    finally:
        random.setstate(before)


class _World:
    def __init__(
        self,
        plan: Plan,
        loop: SimulatedLoop,
        trace: Trace,
        met: Counter[str],
        stack: ExitStack,
    ) -> None:
        self._plan = plan
        self._loop = loop
        self._say = trace.note
        self._met = met
        self._network = Network(loop, loop.chance)
        self._logged: list[str] = []
        """What the daemon's log says that nothing in the plan explains."""
        self._services = {
            name: Service(name, ADDRESSES[name], self._network, loop, self._say)
            for name in plan.destinations
        }
        self._senders = [
            Sender(number, loop, self._network, lambda: OWN, self._say) for number in range(SENDERS)
        ]
        self._rules = plan.rules
        self._clock = SimulatedClock(loop)
        self._evidence = Evidence(plan, self._services, self._senders)
        self._evidence.rules.append((0.0, plan.rules))

        async def start_connection(addresses: Any, **_: object) -> Connected:
            host, port = addresses[0][4][:2]
            return await self._network.connect(host, port)

        for what, replacement in (
            ("forwarder.upstream.connections.start_connection", start_connection),
            ("forwarder.sources.http.listener.bind_tcp", self._bind),
            ("forwarder.daemon.pipeline.DecoderProcess", SimulatedDecoder),
            ("forwarder.storage.committer.threading.Thread", CommitThread),
        ):
            stack.enter_context(patch(what, replacement))
        structlog.configure(processors=[self._log], cache_logger_on_first_use=False)
        stack.callback(structlog.reset_defaults)

    def _bind(self, address: Any) -> list[Any]:
        return [self._network.listen(address.host, address.port)]

    def _log(self, _: object, method: str, event: MutableMapping[str, Any]) -> str:
        self._say("log", f"{method}: {event.get('event')}")
        if method in ("error", "exception", "critical"):
            self._logged.append(f"{method}: {event}")
        raise structlog.DropEvent

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
            {"upstreams": upstreams, "routes": [dict(each) for each in plan.routes]}
            if plan.routes
            else {"upstream": {k: v for k, v in upstreams[0].items() if k != "name"}}
        )
        for each in several.get("upstreams", [several.get("upstream")]):
            each["verify_keys"] = False
        settings = Settings.parse(
            {
                "sources": {"http": {"listen": "{}:{}".format(*OWN)}},
                "admin": {"listen": "127.0.0.1:0"},
                "buffer": {
                    name: value
                    for name, value in plan.settings["buffer"].items()
                    if name != "max_bytes"
                },
                "batch": dict(plan.settings["batch"]),
                "delivery": dict(plan.settings["delivery"]),
                "rules": [dict(RULES[name]) for name in self._rules],
                **several,
            }
        )
        # smaller than may be configured, so that it is full now and then
        smaller = replace(settings.buffer, max_bytes=plan.settings["buffer"]["max_bytes"])
        return replace(settings, buffer=smaller)

    async def run(self) -> None:
        """The whole life. Raises `Promise` for one that is broken."""
        loop = self._loop
        for service in self._services.values():
            service.serve()
        pipeline = build(self._settings(), self._clock, Role(instance="0" * 12), memory=Unlimited())
        self._evidence.pipeline = pipeline
        watching = None
        running = [
            loop.create_task(sender.run(), name=f"sender {number}")
            for number, sender in enumerate(self._senders)
        ]
        try:
            await pipeline.start()
            for sender in self._senders:
                sender.on_accepted = self._evidence.accepted
            watching = loop.create_task(self._watch(), name="watching")
            await self._act(pipeline)
            for sender in self._senders:
                sender.send(None)
            await asyncio.gather(*running)
            if not self._plan.early:
                await self._until_delivered(pipeline)
        finally:
            if watching is not None:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
            left = await self._end(pipeline, running)
        if self._logged:
            raise Promise(f"the log has an error: {self._logged[0]}")
        judge(self._evidence, left, self._met)

    async def _end(
        self, pipeline: Pipeline, running: list[asyncio.Task[None]]
    ) -> dict[str, list[DeadLetter]]:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await pipeline.shut_down(self._plan.shut_down)
        self._evidence.check()
        left = await pipeline.close()
        self._evidence.check(closed=True)
        letters = {each.name: list(letters_in(each)) for each in pipeline._parts.destinations}
        for service in self._services.values():
            await service.close()
        await passing(3.0)
        first = next(iter(letters))
        letters[first] += [each for each in left if each not in letters[first]]
        return letters

    async def _act(self, pipeline: Pipeline) -> None:
        """What the plan says, at its times."""
        plan = self._plan
        ends: list[tuple[float, Trouble]] = []
        acts = list(plan.acts)
        while acts or ends:
            ends.sort(key=lambda each: each[0])
            at = min([each.at for each in acts[:1]] + [until for until, _ in ends[:1]])
            await passing(max(0.0, at - self._loop.time()))
            if ends and ends[0][0] <= at:
                self._trouble(ends.pop(0)[1], ends=True)
                continue
            act = acts.pop(0)
            for line in told(act):
                self._say("plan", line)
            if isinstance(act, Send):
                self._evidence.sent(act)
                self._senders[act.sender].send(act)
            elif isinstance(act, Trouble):
                if act.where in self._services:
                    self._trouble(act)
                    ends.append((act.until, act))
            elif isinstance(act, Reload):
                self._rules = act.rules
                self._evidence.rules.append((self._loop.time(), act.rules))
                pipeline.reload(self._settings())
            elif isinstance(act, ClockJump):
                self._clock.offset = act.offset
                self._evidence.offsets.append((self._loop.time(), act.offset))
            else:
                self._network.weather = Weather(act.latency, act.segment)
        await passing(max(0.0, plan.ends - self._loop.time()))
        for service in self._services.values():
            service.refuses_poison = False

    def _trouble(self, act: Trouble, *, ends: bool = False) -> None:
        service = self._services[act.where]
        if act.what == "refused":
            (service.serve if ends else service.refuse)()
        elif ends:
            service.trouble = ""
            self._say("plan", f"service {act.where} is well")
        else:
            service.trouble = act.what

    async def _watch(self) -> None:
        """Look at the books now and then."""
        while True:
            self._evidence.check()
            await passing(self._loop.chance.choice((0.01, 0.5, 30.0)))

    async def _until_delivered(self, pipeline: Pipeline) -> None:
        end = self._loop.time() + LONG
        while any(lane.buffered for each in books_of(pipeline) for lane in each.lanes):
            if self._loop.time() > end:
                raise Promise(f"not all is delivered {LONG:.0f} s after all is well")
            await passing(1.0)
