"""The files of one source, followed from `start` to `close`: read in turns, handed over, their
positions stored.

A thread does what blocks (looking at files, reading, storing positions), one round at a time; the
loop parses, maps and hands over between the rounds. Invariants: the follower is called by one
thread at a time; a position is stored only after all before it is settled; no error of a file or
of the store ends the source: it is reported and tried again.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

import structlog

from forwarder.core.clock import Backoff, Clock, wait_for_event
from forwarder.core.error_text import error_text
from forwarder.core.record_intake import RecordIntake
from forwarder.sources.logs.flow import LEAST_PAUSE, RESULTS, LogFlow
from forwarder.sources.logs.followed import Block
from forwarder.sources.logs.following import Follower
from forwarder.sources.logs.policy import LogPolicy
from forwarder.sources.logs.positions import PositionStore
from forwarder.sources.logs.watching import Watch
from forwarder.telemetry.snapshot import LogSourceState

READ_BYTES: Final = 1_048_576
"""What a round reads, about."""

STATISTICS_SECONDS: Final = 1.0
"""How old the figures of the files may be."""

PAUSES: Final = Backoff(0.2, 30.0)
"""Between two rounds that fail."""

_log = structlog.get_logger(__name__)


class _Round(NamedTuple):
    """What the thread has to do."""

    settled: Sequence[Block]
    rewound: Sequence[Block]
    changed: Collection[str] | None
    """Paths to look at; None: everything."""
    budget: int
    """Bytes to read."""
    save: bool


class LogSource:
    """Follows the files of one source, from `start` to `close`."""

    def __init__(
        self,
        policy: LogPolicy,
        intake: RecordIntake,
        clock: Clock,
        store: PositionStore,
        *,
        follower: Follower | None = None,
        watch: Watch | None = None,
    ) -> None:
        self._policy = policy
        self._intake = intake
        self._clock = clock
        self._lines: Counter[str] = Counter()
        self._wake = asyncio.Event()
        self._flow = LogFlow(policy, intake, clock.monotonic, self._lines, on_eased=self._ease)
        self._follower = follower or Follower(policy, store, clock.now, clock.monotonic)
        self._watch = watch or Watch(policy.name, clock, policy.poll_interval)
        self._changed: set[str] | None = None
        """Paths that changed since they were looked at; None: everything has to be looked at."""
        self._drained = False
        """Whether nothing was left to be read."""
        self._dirty = False
        """Whether positions moved since they were stored."""
        self._saved = self._counted = self._looked_at = -math.inf
        """When positions were stored, the files' figures were taken, everything was looked at;
        monotonic seconds.
        """
        self._directories: set[str] = set()
        self._found = LogSourceState(policy.name)
        """What the follower said last: nothing before the first look."""
        self._error = ""
        """Why rounds fail; empty if they don't."""
        self._stopping = False
        self._closing = asyncio.Event()
        self._round: asyncio.Future[list[Block]] | None = None
        self._thread = ThreadPoolExecutor(1, f"logs {policy.name}")
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, on the running loop."""
        self._task = asyncio.get_running_loop().create_task(
            self._run(), name=f"logs {self._policy.name}"
        )

    def stop_reading(self) -> None:
        """Read nothing more; what was accepted may be delivered, and positions are stored."""
        self._stopping = True

    async def close(self) -> None:
        """Store what is settled, and give back the rest: it is read again at the next start.
        Cancelled, it stores nothing more.
        """
        self.stop_reading()
        self._closing.set()
        self._ease()
        if self._task is None:
            return
        try:
            await asyncio.shield(self._task)
        finally:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            if self._round is not None:  # its thread has the follower
                await asyncio.gather(self._round, return_exceptions=True)
        self._intake.give_back(self._flow.release())
        try:
            await asyncio.get_running_loop().run_in_executor(
                self._thread, self._finish, self._flow.take_settled()
            )
        except Exception:
            _log.exception(
                (
                    "logs: positions can't be stored at the end; lines are read again at the next "
                    "start"
                ),
                source=self._policy.name,
            )
        self._thread.shutdown(wait=False)
        await self._watch.close()

    def statistics(self) -> LogSourceState:
        """How it is, and what was counted since the start."""
        files = self._found
        lines = self._lines
        state, why = self._state(files)
        return replace(
            files,
            state=state,
            why=why,
            in_flight_bytes=self._flow.budget.bytes,
            lines={result: lines[result] for result in RESULTS},
            replaced=lines["replaced"],
        )

    def _state(self, files: LogSourceState) -> tuple[str, str]:
        """The state, and why; `files`: how the files are."""
        if self._stopping:
            return "stopping", ""
        if self._error:
            return "down", self._error
        if files.state == "reading":
            return files.state, files.why or self._flow.why_paused
        return files.state, files.why

    def _ease(self) -> None:
        """Something can be done that could not be done before."""
        self._wake.set()
        self._watch.wake()

    async def _run(self) -> None:
        """Rounds until `close`."""
        failures = 0
        while not self._closing.is_set():
            try:
                pause = await self._turn()
            except Exception as error:
                failures += 1
                self._error = error_text(error)
                self._changed = None
                _log.exception(
                    "logs: a round of reading failed; it is tried again", source=self._policy.name
                )
                await wait_for_event(self._closing, PAUSES.equal_jitter(failures), self._clock)
            else:
                failures = 0
                self._error = ""
                await self._wait(pause)

    async def _turn(self) -> float | None:
        """One round of the thread, if there is something to do, and of handing over; seconds to
        wait before the next; None: no limit.
        """
        self._wake.clear()
        flow = self._flow
        now = self._clock.monotonic()
        settled = flow.take_settled()
        rewound = flow.take_rewound()
        self._dirty = self._dirty or bool(settled)
        save = self._dirty and now - self._saved >= self._policy.commit_interval
        if now - self._looked_at >= self._policy.poll_interval:
            self._changed = None
        looks = self._changed is None or bool(self._changed)
        if self._changed is None:
            self._looked_at = now
        if looks or rewound:
            self._drained = False
        budget = 0 if self._stopping or self._drained or not flow.may_read else READ_BYTES
        if settled or rewound or save or looks or budget:
            changed = self._changed
            self._changed = set()
            blocks = await self._in_thread(_Round(settled, rewound, changed, budget, save))
            self._drained = budget > 0 and not blocks
            if not self._stopping:  # else they are read again at the next start
                flow.add(blocks)
        await flow.hand_over()
        return self._pause()

    def _pause(self) -> float | None:
        """Seconds until something is to be done, unless something changes or is settled before."""
        flow = self._flow
        pauses = list[float]()
        if flow.may_read and not self._drained and not self._stopping:
            return 0.0
        if flow.waits is not None:
            pauses.append(flow.waits)
        if self._dirty:
            pauses.append(
                max(
                    LEAST_PAUSE,
                    self._saved + self._policy.commit_interval - self._clock.monotonic(),
                )
            )
        return min(pauses, default=None)

    async def _wait(self, pause: float | None) -> None:
        """Wait until something changes, or for so many seconds."""
        if pause == 0.0 or self._wake.is_set():
            await asyncio.sleep(0)
            return
        timer = None if pause is None else self._clock.call_later(pause, self._ease)
        try:
            changed = await self._watch.changes(self._directories)
        finally:
            if timer is not None:
                timer.cancel()
        if changed is None:
            self._changed = None
        elif self._changed is not None:
            self._changed |= changed

    async def _in_thread(self, work: _Round) -> list[Block]:
        """A round. Cancelled, it leaves the thread to `close`."""
        now = self._clock.monotonic()
        counts = work.save or now - self._counted >= STATISTICS_SECONDS
        self._round = asyncio.get_running_loop().run_in_executor(
            self._thread, partial(self._work, work, counts=counts)
        )
        blocks = await asyncio.shield(self._round)
        if work.save:
            self._dirty = self._found.state == "down"
            self._saved = now
        if counts:
            self._counted = now
        return blocks

    def _work(self, work: _Round, *, counts: bool) -> list[Block]:
        """What blocks; in the thread."""
        follower = self._follower
        for block in work.settled:
            follower.settle(block)
        for block in work.rewound:
            follower.rewind(block)
        if work.save:
            follower.save()
        if work.changed is None or work.changed:
            follower.look(work.changed)
            self._directories = follower.directories()
        blocks = follower.read(work.budget) if work.budget else []
        if counts:
            self._found = follower.statistics()
        return blocks

    def _finish(self, settled: list[Block]) -> None:
        """Store what is settled, and close; in the thread."""
        for block in settled:
            self._follower.settle(block)
        self._follower.close()
        self._found = self._follower.statistics()
