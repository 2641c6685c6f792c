"""The pace of an import: a rate over all processes of a job, quiet hours, and a slowdown after the
service answered 429.

A line is booked ahead: a process asks for a moment, gets one, and waits until then. So nothing has
to be taken back, and a process that dies leaves at most the gap that it had booked.

Invariant: between any two moments at most the rate times their distance is sent, plus one batch
(or slice, if that is more) and what each process has left of its last slice.
"""

from __future__ import annotations

import math
import os
import re
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, time, tzinfo
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from forwarder.core.clock import Clock
from forwarder.core.error_text import error_text
from forwarder.core.errors import ConfigurationError
from forwarder.core.event import Batch
from forwarder.core.outcome import Reply
from forwarder.core.ports import Sink
from forwarder.sources.imports.times import SECOND, when
from forwarder.storage.private import locked_file
from forwarder.telemetry.readable import duration

UNPACED: Final = 1e9
"""Events a second, where no rate is asked for."""
SLICE: Final = 0.1
"""Seconds of the rate that a process books at once, or asking would cost more than it paces."""
_STATE: Final = struct.Struct("<dd")
_FORM: Final = re.compile(r"\s*(\d\d?):(\d\d)\s*-\s*(\d\d?):(\d\d)(?:\s+(\S+))?\s*", re.ASCII)
_MINUTE: Final = 60
_LIMITS: Final = "the service limits requests (429)"
_HELD: Final = 2.0
"""Seconds for which the rate counts as what keeps events back, after it did."""


def rate_text(rate: float) -> str:
    """Events a second, for people: that of a shard is seldom a whole number."""
    return f"{round(rate, 1 if rate >= 10 else 3):,.10g}"


class RateLine:
    """A line in which all stand that share a rate: of one process, or of all of a job by a small
    file with the line's end, under `flock`.

    The file also has the time at which it was written: if that is ahead of now, a clock was set
    back or the machine started anew, and what was booked moves with it. A file that can't be
    understood begins anew, for there is nothing in it to lose.
    """

    def __init__(self, path: Path | None = None) -> None:
        """`path`: of the file; None: the line is this process's own."""
        self._path = path
        self._end = 0.0

    def book(self, seconds: float, now: float) -> float:
        """Take so much time of the line; the moment at which it begins, now or later. Raises
        OSError if the line can't be used.
        """
        if self._path is None:
            start = max(self._end, now)
            self._end = start + seconds
            return start
        with locked_file(self._path) as file:
            data = os.pread(file, _STATE.size + 1, 0)
            end, written = _STATE.unpack(data) if len(data) == _STATE.size else (math.nan, now)
            start = (
                max(end - max(0.0, written - now), now)
                if math.isfinite(end) and math.isfinite(written)
                else now
            )
            os.pwrite(file, _STATE.pack(start + seconds, now), 0)
            os.ftruncate(file, _STATE.size)
        return start


class Slowdown:
    """Which share of the rate is used: halved by a 429, once for all requests that were in flight,
    and then slowly back to all of it.
    """

    def __init__(
        self, *, floor: float = 1 / 64, recovery: float = 60.0, together: float = 1.0
    ) -> None:
        """`recovery`: seconds from none to all; `together`: seconds in which 429s count as one."""
        self._floor = floor
        self._recovery = recovery
        self._together = together
        self._share = 1.0
        self._since = 0.0
        self.paused_until = -math.inf
        """The moment before which nothing should be sent."""
        self._halved = -math.inf

    def share(self, now: float) -> float:
        """The share of the rate that is used now."""
        return min(1.0, self._share + max(0.0, now - self._since) / self._recovery)

    def refused(self, now: float, retry_after: float = 0.0) -> None:
        """The service said 429, perhaps with the seconds to wait."""
        until = now + retry_after
        self.paused_until = max(self.paused_until, until)
        if now - self._halved >= self._together:
            self._share = max(self._floor, self.share(now) / 2)
            self._halved = now
        self._since = max(self._since, until, now)


@dataclass(frozen=True, slots=True)
class SendingPause:
    """Why nothing is sent for a while, and until when."""

    until: float
    """Seconds since 1970."""
    quiet: QuietHours | None = None
    """The hours that it is for; None: the service said 429."""

    def words(self, now: float) -> str:
        """For who watches it now."""
        if self.quiet is None:
            return f"{_LIMITS}, retry in {duration(max(1.0, math.ceil(self.until - now)))}"
        return self.lasting()

    def lasting(self) -> str:
        """The same for who reads it later."""
        if self.quiet is None:
            return f"{_LIMITS}, retry at {when(math.ceil(self.until) * SECOND)}"
        clock = datetime.fromtimestamp(self.until, self.quiet.zone)
        zone = "" if self.quiet.zone is None else f" {self.quiet.zone}"
        return f"paused until {clock:%H:%M}{zone} by {self.quiet.name}"


class ImportPace:
    """When how many events may be sent. Wall-clock times are seconds since
    1970, others are monotonic.
    """

    def __init__(
        self,
        rate: float,
        clock: Clock,
        *,
        line: RateLine | None = None,
        quiet: QuietHours | None = None,
    ) -> None:
        """`rate`: events per second, over all who share the line."""
        if not (rate > 0 and math.isfinite(rate)):
            raise ValueError("a rate is more than 0 events per second")
        self.clock = clock
        self.slowdown = Slowdown()
        self._rate = rate
        self._line = line or RateLine()
        self._quiet = quiet
        self._booked = 0.0
        """Events that are booked and weren't sent; below zero after more were
        sent than were asked for.
        """
        self._from = -math.inf
        """The moment from which these may be sent."""
        self._asked = 0.0, 0.0
        """The wall-clock time of the last question, and the moment then, which is the same for all
        questions of one time: if a batch became due between one that asks for it and one that asks
        when it is due, neither would wait for it.
        """
        self.on_failure: Callable[[Exception], None] | None = None
        """Called when nothing can be sent any more, because the line can't be used."""
        self._held_at = -math.inf
        """When the rate kept something back last."""

    def due_at(self, events: int, wall: float) -> float:
        """The wall-clock time, `wall` or later, from which so many events may be sent."""
        if self._asked[0] != wall:
            self._asked = wall, self.clock.monotonic()
        now = self._asked[1]
        rest = self._resting_until(now, wall) - now
        if rest > 0:
            return wall + rest
        if self._booked < events:
            rate = self._rate * self.slowdown.share(now)
            count = max(events - self._booked, rate * SLICE)
            try:
                self._from = self._line.book(count / rate, now)
            except OSError as error:
                what = (
                    f"{error.filename or 'the file of the rate'} can't be used: {error_text(error)}"
                )
                hint = (
                    "Processes that import to the same project share their rate by this small "
                    "file: make it writable, or its folder."
                )
                if self.on_failure is None:
                    raise ConfigurationError(what, hint=hint) from error
                self.on_failure(ConfigurationError(what, hint=hint))
                return wall + _MINUTE
            self._booked += count
        if self._from > now:
            self._held_at = now
        return wall + max(0.0, self._from - now)

    def went(self, events: int) -> None:
        """So many events are sent now."""
        self._booked -= events

    def pause(self) -> SendingPause | None:
        """Why nothing is sent now though something could be; None if nothing keeps it."""
        if not (rest := self.rest_seconds()):
            return None
        wall = self.clock.now()
        return SendingPause(
            wall + rest,
            self._quiet if self._quiet is not None and self._quiet.quiet(wall) else None,
        )

    def slowed(self) -> str:
        """Why less is sent than could be: the service's limits, or the rate that was asked for;
        empty if it isn't.
        """
        now = self.clock.monotonic()
        if (share := self.slowdown.share(now)) < 1:
            return f"slowed to {share:.0%} of the rate: {_LIMITS}"
        return "slowed by --rate" if now - self._held_at < _HELD else ""

    def rest_seconds(self) -> float:
        """How long nothing may be sent at all, not even again."""
        now = self.clock.monotonic()
        return self._resting_until(now, self.clock.now()) - now

    def _resting_until(self, now: float, wall: float) -> float:
        until = max(now, self.slowdown.paused_until)
        if self._quiet is not None:
            wall_then = wall + (until - now)
            until += self._quiet.next_allowed(wall_then) - wall_then
        return until


class PacedSink:
    """A sink that sends nothing while the job rests, also nothing that is sent again; and slows
    the job down after a 429.
    """

    def __init__(self, sink: Sink, pace: ImportPace) -> None:
        self._sink = sink
        self._pace = pace

    async def send(self, batch: Batch) -> Reply:
        clock = self._pace.clock
        while (rest := self._pace.rest_seconds()) > 0:
            await clock.sleep(rest)
        reply = await self._sink.send(batch)
        if reply.status == 429:
            self._pace.slowdown.refused(clock.monotonic(), reply.retry_after or 0.0)
        return reply


@dataclass(frozen=True, slots=True)
class QuietHours:
    """From a time of the day until another; over midnight if that one is earlier."""

    start: time
    end: time
    zone: tzinfo | None = None
    """None: the machine's."""
    name: str = field(default="--quiet-hours", compare=False)
    """The option or the setting that says so."""

    @classmethod
    def parse(cls, text: str, name: str = "--quiet-hours") -> QuietHours:
        """As people write them. Raises `ConfigurationError`."""
        why = "it isn't of that form"
        match = _FORM.fullmatch(text)
        with suppress(ZoneInfoNotFoundError, ValueError, OSError):
            if match is not None:
                why = "there is no such time"
                hour, minute, end_hour, end_minute = map(int, match.groups()[:4])
                start = time(hour, minute)
                end = time(0 if (end_hour, end_minute) == (24, 0) else end_hour, end_minute)
                why = f"there is no zone {match[5]!r}"
                zone = None if match[5] is None else ZoneInfo(match[5])
                if start != end:
                    return cls(start, end, zone, name)
                why = "it begins where it ends"
        raise ConfigurationError(
            f"{name}: {text!r} can't be used: {why}",
            hint=(
                "Write them as 22:00-06:00, of this machine's zone, or as 22:00-06:00 "
                "Europe/Berlin."
            ),
        )

    def quiet(self, moment: float) -> bool:
        """Whether the wall shows a time within them, at a moment in seconds since 1970."""
        shown = datetime.fromtimestamp(moment, self.zone).time()
        if self.start < self.end:
            return self.start <= shown < self.end
        return shown >= self.start or shown < self.end

    def next_allowed(self, moment: float) -> float:
        """This moment if it isn't quiet, else the next minute that isn't.

        Minute by minute, because no arithmetic survives the nights in which clocks are changed; a
        day has only 1,440 of them.
        """
        if not self.quiet(moment):
            return moment
        minute = (moment // _MINUTE + 1) * _MINUTE
        while self.quiet(minute):
            minute += _MINUTE
        return minute
