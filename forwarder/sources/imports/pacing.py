"""The pace of an import: a rate over all processes of a job, quiet hours, and a slowdown after the service answered 429.

Everything here books ahead: a sender asks for a moment, gets one, and waits until then. So nothing has to be taken back, and a
process that dies leaves at most the gap that it had booked.

Invariants: between any two moments at most the rate times their distance is sent, plus one batch (or slice, if that is more) and what each
process has left of its last slice; no time is read here except the one that is passed in.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, time, tzinfo
from pathlib import Path
from typing import Final, Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from forwarder.core.errors import ConfigurationError
from forwarder.storage.private import open_file

SLICE: Final = 0.1
"""Seconds of the rate that a process books at once, or asking would cost more than it paces."""
_STATE: Final = struct.Struct("<dd")
_FORM: Final = re.compile(r"\s*(\d\d?):(\d\d)\s*-\s*(\d\d?):(\d\d)(?:\s+(\S+))?\s*", re.ASCII)
_MINUTE: Final = 60


class RateLine(Protocol):
    """One line in which all that share a rate stand."""

    def book(self, seconds: float, now: float) -> float:
        """Take so much time of the line; the moment at which it begins, now or later."""


class OwnLine:
    """A line for one process."""

    def __init__(self) -> None:
        self._end = 0.0

    def book(self, seconds: float, now: float) -> float:
        """Take so much time of the line; the moment at which it begins, now or later."""
        start = max(self._end, now)
        self._end = start + seconds
        return start


class SharedLine:
    """A line for all processes of a job: a small file with the line's end, under `flock`.

    The file also has the time at which it was written: if that is ahead of now, a clock was set back or the machine started anew, and what
    was booked moves with it. A file that can't be understood begins anew, for there is nothing in it to lose.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def book(self, seconds: float, now: float) -> float:
        """Take so much time of the line; the moment at which it begins, now or later. Raises OSError if the file can't be used."""
        with self._locked() as file:
            start = max(_line_end(os.pread(file, _STATE.size + 1, 0), now), now)
            os.pwrite(file, _STATE.pack(start + seconds, now), 0)
            os.ftruncate(file, _STATE.size)
        return start

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        file = open_file(self._path, os.O_RDWR)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file
        finally:
            os.close(file)  # which releases the lock


def _line_end(data: bytes, now: float) -> float:
    if len(data) != _STATE.size:
        return now
    end: float
    written: float
    end, written = _STATE.unpack(data)
    if not math.isfinite(end) or not math.isfinite(written):
        return now
    return end - max(0.0, written - now)


class Slowdown:
    """Which share of the rate is used: halved by a 429, once for all requests that were in flight, and then slowly back to all of it."""

    def __init__(self, *, floor: float = 1 / 64, recovery: float = 60.0, together: float = 1.0) -> None:
        """`recovery`: seconds from none to all; `together`: seconds in which 429s count as one."""
        self._floor, self._recovery, self._together = floor, recovery, together
        self._share, self._since = 1.0, 0.0
        self._paused_until = -math.inf
        self._halved = -math.inf

    def share(self, now: float) -> float:
        """The share of the rate that is used now."""
        return min(1.0, self._share + max(0.0, now - self._since) / self._recovery)

    def paused_until(self, now: float) -> float:
        """The moment before which nothing should be sent: now or later."""
        return max(now, self._paused_until)

    def refused(self, now: float, retry_after: float = 0.0) -> None:
        """The service said 429, perhaps with the seconds to wait."""
        until = now + retry_after
        self._paused_until = max(self._paused_until, until)
        if now - self._halved >= self._together:
            self._share, self._halved = max(self._floor, self.share(now) / 2), now
        self._since = max(self._since, until, now)


class ImportPace:
    """When how many events may be sent."""

    def __init__(
        self, rate: float, *, line: RateLine | None = None, quiet: QuietHours | None = None, slowdown: Slowdown | None = None
    ) -> None:
        """`rate`: events per second, over all who share the line."""
        if not (rate > 0 and math.isfinite(rate)):
            raise ValueError("a rate is more than 0 events per second")
        self.slowdown = slowdown or Slowdown()
        self._rate = rate
        self._line = line or OwnLine()
        self._quiet = quiet
        self._in_hand = 0.0  # events of the last slice that aren't sent yet
        self._from = -math.inf

    def resting_until(self, now: float, wall: float) -> float:
        """The moment (as `now`) before which nothing may be sent at all; now if that is this one. `wall` is seconds since 1970."""
        until = self.slowdown.paused_until(now)
        if self._quiet is not None:
            wall_then = wall + (until - now)
            until += self._quiet.next_allowed(wall_then) - wall_then
        return until

    def book(self, events: int, now: float) -> float:
        """The moment, now or later, from which these events may be sent. To be asked when nothing rests, for it is booked at once."""
        if self._in_hand < events:
            rate = self._rate * self.slowdown.share(now)
            wanted = max(events - self._in_hand, rate * SLICE)
            self._from = self._line.book(wanted / rate, now)
            self._in_hand += wanted
        self._in_hand -= events
        return max(now, self._from)


@dataclass(frozen=True, slots=True)
class QuietHours:
    """From a time of the day until another; over midnight if that one is earlier."""

    start: time
    end: time
    zone: tzinfo | None = None
    """None: the machine's."""

    @classmethod
    def parse(cls, text: str) -> QuietHours:
        """As people write them. Raises `ConfigurationError`."""
        found = _FORM.fullmatch(text)
        if found is None:
            raise _unusable(text, "it isn't of that form")
        try:
            start, end = time(int(found[1]), int(found[2])), time(int(found[3]) % 24, int(found[4]))
        except ValueError as error:
            raise _unusable(text, "there is no such time") from error
        if start == end or int(found[3]) > 24 or (int(found[3]) == 24 and end.minute):
            raise _unusable(text, "it begins where it ends" if start == end else "there is no such time")
        return cls(start, end, _zone(text, found[5]))

    def quiet(self, moment: float) -> bool:
        """Whether the wall shows a time within them, at a moment in seconds since 1970."""
        shown = datetime.fromtimestamp(moment, self.zone).time()
        if self.start < self.end:
            return self.start <= shown < self.end
        return shown >= self.start or shown < self.end

    def next_allowed(self, moment: float) -> float:
        """This moment if it isn't quiet, else the next minute that isn't.

        Minute by minute, because no arithmetic survives the nights in which clocks are changed; a day has only 1,440 of them.
        """
        if not self.quiet(moment):
            return moment
        minute = (moment // _MINUTE + 1) * _MINUTE
        while self.quiet(minute):
            minute += _MINUTE
        return minute


def _zone(text: str, name: str | None) -> tzinfo | None:
    if name is None:
        return None
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise _unusable(text, f"there is no zone {name!r}") from error


def _unusable(text: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"--quiet-hours: {text!r} can't be used: {why}",
        hint="Write them as 22:00-06:00, of this machine's zone, or as 22:00-06:00 Europe/Berlin.",
    )
