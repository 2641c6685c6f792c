"""The drill: all well → upstream down → forwarder killed → upstream back → unknown project key →
key known → the end.

Invariants: both processes are the product's own commands with a user's settings, except for a
buffer on disk; no step waits for a fixed time; each claim is checked against figures that were
read afterwards; a step that fails ends the drill, and the verdict says what is missing. Processes
and directory are gone when `run` returns, in every case. After each portion of traffic the SDK has
sent or given up all of it; `Traffic.sent` holds the uuids of all events that it was given.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Final

import aiohttp

from forwarder.core.clock import Clock, SystemClock
from forwarder.core.event import Lane
from forwarder.demo.demo import Ports
from forwarder.demo.drill.checks import (
    AnswerCounts,
    Check,
    DrillVerdict,
    Step,
    answered_200,
    balanced_books,
    counted,
    flags_answered,
    flags_fail_fast,
    lane_of,
)
from forwarder.demo.drill.processes import DrillFiles, DrillProbe, DrillProcesses, drill_processes
from forwarder.demo.traffic import PROJECT_KEY, Sdk, connect, play, story
from forwarder.telemetry.labels import lane_label
from forwarder.telemetry.snapshot import LaneSnapshot, Snapshot, unbalanced

NEW_KEY: Final = "phc_drillProjectThatComesLater"
"""The project that the upstream doesn't know at first."""

PORTION: Final = 200
SMALL_PORTION: Final = 50
FLAG_CALLS: Final = 8
"""More than it takes to open the pass-through's circuit breaker, so that
some calls meet an open one.
"""

SDK_FLAG_SECONDS: Final = 3.0
"""What the official Python SDK waits for flags (`feature_flags_request_timeout_seconds`), blocking
its caller.
"""

ALL_ARRIVED: Final = "the sandbox has all of them"

Tell = Callable[[Step], object]
"""Called with each step when it is over."""


async def run_drill(
    ports: Ports, tell: Tell, connect_sdk: Connect = connect, *, directory: Path | None = None
) -> DrillVerdict:
    """Run the drill in a temporary directory, created in `directory` if given. Cancellation ends
    it, with its processes and files.

    Raises `DrillFailed` when a process ends unexpectedly, `ConfigurationError` without the SDK.
    """
    clock = SystemClock()
    with tempfile.TemporaryDirectory(prefix="forwarder-drill-", dir=directory) as place:
        async with aiohttp.ClientSession() as client:
            probe = DrillProbe(client, ports, clock)
            async with drill_processes(DrillFiles(Path(place)), ports, probe) as members:
                traffic = Traffic(probe.ingestion, connect_sdk)
                return await Drill(members, probe, traffic, tell, clock).run()


class Drill:
    """One drill."""

    def __init__(
        self, members: DrillProcesses, probe: DrillProbe, traffic: Traffic, tell: Tell, clock: Clock
    ) -> None:
        self._processes = members
        self._probe = probe
        self._traffic = traffic
        self._tell = tell
        self._clock = clock
        self._steps: list[Step] = []
        self._began = clock.monotonic()

    async def run(self) -> DrillVerdict:
        """All steps, or those up to the first that fails, and the verdict."""
        first = (self._all_well, self._upstream_down, self._forwarder_killed)
        for part in (*first, self._upstream_back, self._key_unknown, self._key_known):
            await part()
            if not self._steps[-1].good:
                break
        return await self._end()

    async def _all_well(self) -> None:
        await self._processes.start_sandbox(PROJECT_KEY)
        await self._processes.start_forwarder()
        answers = await self._send(PROJECT_KEY, PORTION)
        flags = await self._probe.flags(PROJECT_KEY)
        snapshot = await self._emptied()
        checks = [
            answered_200(answers),
            flags_answered(flags),
            await self._arrived(ALL_ARRIVED, PROJECT_KEY),
        ]
        self._over(
            "All is well",
            f"a sandbox and a forwarder were started; {PORTION} events were sent with the SDK",
            checks,
            snapshot,
        )

    async def _upstream_down(self) -> None:
        await self._processes.sandbox.kill()
        answers = await self._send(PROJECT_KEY, PORTION)
        flags = [await self._probe.flags(PROJECT_KEY) for _ in range(FLAG_CALLS)]
        snapshot = await self._probe.until(
            self._processes.forwarder, lambda now: now.buffered == PORTION
        )
        buffered = counted("the events are buffered", snapshot.buffered, PORTION)
        checks = [answered_200(answers), buffered, flags_fail_fast(flags, SDK_FLAG_SECONDS)]
        self._over(
            "The upstream is down",
            f"the sandbox was killed; {PORTION} more events were sent",
            checks,
            snapshot,
        )

    async def _forwarder_killed(self) -> None:
        before = await self._probe.status()
        await self._processes.forwarder.kill()
        await self._processes.start_forwarder()
        stored = (await self._probe.status()).buffer_found
        answers = await self._send(PROJECT_KEY, SMALL_PORTION)
        snapshot = await self._probe.status()
        checks = [
            counted("the buffered events are in the files", stored, before.buffered),
            answered_200(answers),
            counted(
                "new events are buffered with the old ones",
                snapshot.buffered,
                before.buffered + SMALL_PORTION,
            ),
        ]
        did = (
            f"kill -9, then a start on the same directory; {SMALL_PORTION} more events were "
            "sent, with the upstream still down"
        )
        self._over("The forwarder is killed", did, checks, snapshot)

    async def _upstream_back(self) -> None:
        began = self._clock.monotonic()
        await self._processes.start_sandbox(PROJECT_KEY)
        snapshot = await self._emptied()
        waited = self._clock.monotonic() - began
        checks = [_drained(snapshot, waited), await self._arrived(ALL_ARRIVED, PROJECT_KEY)]
        self._over(
            "The upstream is back",
            "the sandbox was started again on its database",
            checks,
            snapshot,
        )

    async def _key_unknown(self) -> None:
        answers = await self._send(NEW_KEY, PORTION)
        await self._send(PROJECT_KEY, SMALL_PORTION)
        label = _label(NEW_KEY)
        snapshot = await self._probe.until(
            self._processes.forwarder,
            lambda now: (
                lane_of(now, label).halted is not None
                and not lane_of(now, _label(PROJECT_KEY)).buffered
            ),
        )
        lane = lane_of(snapshot, label)
        known = len(await self._probe.stored() & self._traffic.sent[NEW_KEY])
        discarded = f"{lane.delivered:,} delivered, {known:,} in the sandbox"
        checks = [
            answered_200(answers),
            Check(
                "its lane is halted, and the reason is reported",
                lane.halted == "unknown_key" and bool(lane.hint),
                _halt(lane),
            ),
            counted("its events are buffered", lane.buffered, PORTION),
            Check(
                "none was sent, only to be discarded", not lane.delivered and not known, discarded
            ),
            await self._arrived("the other key's events arrive", PROJECT_KEY),
        ]
        did = (
            f"{PORTION} events were sent with a project key that the upstream doesn't know, "
            f"and {SMALL_PORTION} with the other one"
        )
        self._over("A key is wrong", did, checks, snapshot)

    async def _key_known(self) -> None:
        await self._processes.sandbox.stop()
        began = self._clock.monotonic()
        await self._processes.start_sandbox(PROJECT_KEY, NEW_KEY)
        snapshot = await self._emptied()
        waited = self._clock.monotonic() - began
        lane = lane_of(snapshot, _label(NEW_KEY))
        checks = [
            Check("the lane resumed by itself", lane.halted is None, _halt(lane)),
            _drained(snapshot, waited),
            await self._arrived(ALL_ARRIVED, PROJECT_KEY, NEW_KEY),
        ]
        self._over(
            "The key is right",
            "the sandbox was started again on its database, and knows the key now",
            checks,
            snapshot,
        )

    async def _end(self) -> DrillVerdict:
        snapshot = await self._delivered()
        stored = await self._probe.stored()
        conflicts = await self._probe.conflicts()
        code = await self._processes.forwarder.stop()
        sent = self._traffic.everything
        checks = [
            counted("every event that was sent is in the sandbox", len(sent & stored), len(sent)),
            Check("no event was changed on the way", not conflicts, f"{conflicts:,} conflicts"),
            balanced_books(snapshot),
            Check("the forwarder ends cleanly", code == 0, f"SIGTERM, exit code {code}"),
        ]
        self._over("The end", "the forwarder was stopped", checks, snapshot)
        off = tuple(lane.label for lane in unbalanced(snapshot))
        return DrillVerdict(tuple(self._steps), sent, stored, conflicts, off)

    async def _delivered(self) -> Snapshot:
        """The forwarder's state after everything was delivered; starts the upstream again if a
        step ended without it.
        """
        if self._processes.sandbox.code is not None:
            await self._processes.start_sandbox(PROJECT_KEY, NEW_KEY)
        return await self._emptied()

    async def _send(self, api_key: str, events: int) -> dict[int, int]:
        before = AnswerCounts.of(await self._probe.status())
        await self._traffic.send(api_key, events)
        return AnswerCounts.of(await self._probe.status()).since(before)

    async def _emptied(self) -> Snapshot:
        return await self._probe.until(self._processes.forwarder, lambda now: now.buffered == 0)

    async def _arrived(self, claim: str, *api_keys: str) -> Check:
        sent = frozenset().union(*(self._traffic.sent[api_key] for api_key in api_keys))
        return counted(claim, len(await self._probe.stored() & sent), len(sent))

    def _over(self, title: str, did: str, checks: Sequence[Check], snapshot: Snapshot) -> None:
        now = self._clock.monotonic()
        step = Step(title, did, tuple(checks), snapshot.lanes, now - self._began)
        self._began = now
        self._steps.append(step)
        self._tell(step)


def _label(api_key: str) -> str:
    return lane_label(Lane(api_key, historical=False))


def _halt(lane: LaneSnapshot) -> str:
    return f"{lane.halted}: {lane.why}; {lane.hint}" if lane.halted else "not halted"


def _drained(snapshot: Snapshot, seconds: float) -> Check:
    return Check(
        "buffered events are delivered",
        snapshot.buffered == 0,
        f"{snapshot.buffered:,} left {seconds:,.1f} s after the start",
    )


Connect = Callable[[str, str], Sdk]
"""Creates an SDK for a host and a project key."""


class Traffic:
    """Sends the demo's events to one address, in portions, under one project key or another."""

    def __init__(self, host: str, connect: Connect) -> None:
        self._host = host
        self._connect = connect
        self._story = story(None)
        self.sent: dict[str, set[str]] = {}
        """Uuids by project key."""

    @property
    def everything(self) -> frozenset[str]:
        """The uuids of all events."""
        return frozenset().union(*self.sent.values())

    async def send(self, api_key: str, events: int) -> None:
        """Send this many more events and flush the SDK. Cancelled, it ends at the next event,
        flushed all the same.

        Raises `ConfigurationError` without the SDK.
        """
        client = self._connect(self._host, api_key)
        stop = threading.Event()
        with ThreadPoolExecutor(1, "drill-traffic") as executor:
            thread = asyncio.get_running_loop().run_in_executor(
                executor, self._play, client, api_key, events, stop
            )
            try:
                await asyncio.shield(thread)
            except asyncio.CancelledError:
                stop.set()
                await thread
                raise

    def _play(self, client: Sdk, api_key: str, events: int, stop: threading.Event) -> None:
        try:
            play(client, islice(self._story, events), self.sent.setdefault(api_key, set()), stop)
        finally:
            client.shutdown()
