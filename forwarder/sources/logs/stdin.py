"""Standard input as a source: `app | forwarder run`.

It is read once: what was read can't be read again, so lines that are in memory when the process is
killed are lost, and nothing is stored. Lines are kept until they are settled; while they can't be
accepted, or too many aren't settled, nothing is read, and the writer waits. The end of input, once
all of it is settled, is reported: then the daemon ends.

The descriptor is shared with other processes, so it stays as it is (blocking), and it is read only
when it has something.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import structlog

from forwarder.core.clock import Clock
from forwarder.core.error_text import error_text
from forwarder.core.record_intake import RecordIntake
from forwarder.sources.hand_over import Watermark
from forwarder.sources.logs.flow import RESULTS, LogFlow
from forwarder.sources.logs.followed import Block, FollowedFile
from forwarder.sources.logs.policy import LogPolicy
from forwarder.sources.logs.splitting import LogRecords
from forwarder.telemetry.readable import line_excerpt
from forwarder.telemetry.snapshot import LogFile, LogSourceState

READ_BYTES: Final = 262_144
"""What one call reads at most."""

LOOK_SECONDS: Final = 0.5
"""How often records of several lines that wait for more are looked at."""

NAME: Final = "stdin"

_log = structlog.get_logger(__name__)


class StdinSource:
    """Reads standard input, from `start` to its end or `close`."""

    def __init__(
        self,
        policy: LogPolicy,
        intake: RecordIntake,
        clock: Clock,
        on_end: Callable[[], None],
        descriptor: int = 0,
    ) -> None:
        """`on_end`: called once, when the input has ended and all of it is settled."""
        self._policy = policy
        self._intake = intake
        self._clock = clock
        self._on_end = on_end
        self._descriptor = descriptor
        self._lines: Counter[str] = Counter()
        self._wake = asyncio.Event()
        self._flow = LogFlow(
            policy, intake, clock.monotonic, self._lines, on_eased=self._wake.set, rereads=False
        )
        self._file = FollowedFile((0, 0), NAME)
        self._file.identity = secrets.token_hex(16)
        self._splitter = policy.split(0)
        self._read = 0
        """Bytes that were read."""
        self._mark = Watermark(0)
        self._last_line = b""
        self._last_read: float | None = None
        self._thread = ThreadPoolExecutor(1, NAME)
        self._pollable = True
        """Whether the loop can report that there is something; not for a file, which never keeps a
        reader waiting.
        """
        self._ended = False
        self._error = ""
        self._stopping = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, on the running loop."""
        self._task = asyncio.get_running_loop().create_task(
            self._run(), name="logs: standard input"
        )

    def stop_reading(self) -> None:
        """Read nothing more; what was read may be handed over and delivered."""
        self._stopping = True
        self._wake.set()

    async def close(self) -> None:
        """Stop. What was accepted and isn't delivered is left to the
        pipeline; it can't be read again.
        """
        self.stop_reading()
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._thread.shutdown(wait=False)
        if lost := self._flow.unaccepted():
            hint = "Let the program that writes end first: the end of input is waited for."
            _log.error(
                "logs: lines of standard input were read and could not be accepted",
                lines=lost,
                source=self._policy.name,
                hint=hint,
            )
        self._intake.keep(self._flow.release())

    def statistics(self) -> LogSourceState:
        """How it is, and what was counted since the start."""
        flow = self._flow
        lines = self._lines
        state, why = self._state()
        lag = self._read - self._mark.position
        file = LogFile(
            path=NAME,
            identity=self._file.identity,
            position=self._mark.position,
            size=self._read,
            lag=lag,
            last_line=line_excerpt(self._last_line),
            last_read=self._last_read,
            open=not self._ended,
        )
        return LogSourceState(
            name=self._policy.name,
            state=state,
            why=why,
            hint="Pipe a program's output into it, or read the files with `path`."
            if state == "failed"
            else "",
            files=(file,),
            followed=1,
            open=int(file.open),
            lag=lag,
            in_flight_bytes=flow.budget.bytes,
            lines={result: lines[result] for result in RESULTS},
            bytes=self._read,
            replaced=lines["replaced"],
        )

    def _state(self) -> tuple[str, str]:
        if self._error:
            return "failed", self._error
        if self._ended:
            return "ended", ""
        return ("stopping", "") if self._stopping else ("reading", self._flow.why_paused)

    async def _run(self) -> None:
        try:
            while not self._stopping:
                data = await self._next()
                if data is None:
                    continue
                self._add(
                    self._splitter.feed(data, self._clock.monotonic())
                    if data
                    else self._splitter.finish()
                )
                if not data:
                    break
        except OSError as error:
            self._error = f"standard input can't be read: {error_text(error)}"
            _log.error(
                "logs: standard input can't be read",
                why=error_text(error),
                source=self._policy.name,
            )
        self._ended = not self._stopping and not self._error
        await self._hand_over()
        while self._flow.outstanding:
            await self._until_eased(None)
            await self._hand_over()
        if self._ended:
            _log.info(
                "logs: standard input has ended, and all of it is settled", source=self._policy.name
            )
            self._on_end()

    async def _next(self) -> bytes | None:
        """What comes next; empty at the end; None if there is nothing yet, or
        it isn't to be read now.
        """
        if self._splitter.held:
            self._add(self._splitter.overdue(self._clock.monotonic()))
        await self._hand_over()
        if not self._flow.may_read:
            await self._until_eased(LOOK_SECONDS)
            return None
        if self._pollable and not await self._readable():
            return None
        if not self._pollable:
            data = await asyncio.get_running_loop().run_in_executor(
                self._thread, os.read, self._descriptor, READ_BYTES
            )
        else:
            data = os.read(self._descriptor, READ_BYTES)
        self._read += len(data)
        self._last_read = self._clock.now()
        return data

    async def _readable(self) -> bool:
        """Wait until there is something to be read, or until records that wait have to be looked
        at; whether there is.
        """
        loop = asyncio.get_running_loop()
        ready = list[bool]()

        def on_ready() -> None:
            ready.append(True)
            self._wake.set()

        try:
            loop.add_reader(self._descriptor, on_ready)
        except OSError:  # a file, or /dev/null
            self._pollable = False
            return True
        try:
            await self._until_eased(LOOK_SECONDS if self._splitter.held else None)
        finally:
            loop.remove_reader(self._descriptor)
        return bool(ready) and not self._stopping

    async def _until_eased(self, seconds: float | None) -> None:
        """Wait until something can be done, at most for so many seconds."""
        pauses = [pause for pause in (seconds, self._flow.waits) if pause is not None]
        timer = self._clock.call_later(min(pauses), self._wake.set) if pauses else None
        try:
            await self._wake.wait()
        finally:
            self._wake.clear()
            if timer is not None:
                timer.cancel()

    def _add(self, records: LogRecords) -> None:
        """Records that are whole."""
        if records.values or records.overlong:
            now = self._clock.now()
            self._last_line = records.values[-1] if records.values else records.overlong[-1][1]
            first = self._mark.read
            count = len(records.values) + len(records.overlong)
            span = self._mark.open(first, records.end, count)
            block = Block(
                self._file,
                self._file.identity,
                0,
                first,
                records,
                now,
                now,
                span,
                self._mark,
                records.end - first,
            )
            self._flow.add([block])
        self._mark.pass_by(records.end)

    async def _hand_over(self) -> None:
        await self._flow.hand_over()
        for block in self._flow.take_settled():
            self._mark.settle(block.span)
