"""Rejects new events while memory is short, instead of being killed with all that the buffer
holds.

Memory is short from nine tenths of its limit on, until it is below eight tenths. Before that is
decided, memory that is free but not given back is reclaimed, if that was not done a moment ago.
While the buffer is empty nothing is rejected, however much memory is used: there is nothing that
could be delivered to free any, and rejecting would have no end.

Invariant: with an empty buffer memory isn't short after a decision.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from forwarder.core.clock import Clock, Timer
from forwarder.core.proposals import proposed
from forwarder.daemon.allocator import trim
from forwarder.daemon.memory import MemorySource, begins_at, ends_at
from forwarder.telemetry.readable import size

LOOK_EVERY: Final = 0.2
"""Seconds between two measurements."""

LOOK_NEAR: Final = 0.05
"""The same while more than seven tenths are used."""

RECLAIM_EVERY: Final = 5.0
"""Seconds between two attempts to reclaim memory while the buffer holds events: each visits all
objects.
"""

RECLAIM_EMPTY: Final = 1.0
"""The same while the buffer is empty."""

UNKNOWN_AFTER: Final = 10.0
"""Seconds for which the last figure counts if there is no newer one."""

REPORT_EVERY: Final = 60.0
"""Seconds between two lines in the log that say that memory is short."""

_log = structlog.get_logger(__name__)


class MemoryGauge:
    """Decides whether memory is short."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.short = False
        self._reclaimed_at = -math.inf

    def decide(self, used: int, now: float, *, empty: bool) -> bool:
        """Decide, with `used` bytes at monotonic second `now`; `empty`: whether the buffer is.

        True: memory should be reclaimed and measured again first; nothing is decided before.
        """
        if used < (ends_at(self.limit) if self.short else begins_at(self.limit)):
            self.short = False
            return False
        if now >= self._reclaimed_at + (RECLAIM_EMPTY if empty else RECLAIM_EVERY):
            self._reclaimed_at = now
            return True
        self.short = not empty
        return False


@dataclass(frozen=True, slots=True)
class MemoryStatistics:
    """Memory as the daemon sees it."""

    bytes: int = 0
    limit_bytes: int = 0
    """0: there is no limit."""
    short: bool = False


class MemoryWatch:
    """Measures memory again and again, and says when it becomes short or is so no longer."""

    def __init__(
        self,
        source: MemorySource | None,
        clock: Clock,
        *,
        is_empty: Callable[[], bool],
        on_change: Callable[[bool], None],
        reclaim: Callable[[], None] | None = None,
    ) -> None:
        """`source`: None where memory can't be measured. `is_empty`: whether the buffer is."""
        self._source = source
        self._clock = clock
        self._is_empty = is_empty
        self._on_change = on_change
        self._reclaim = reclaim or reclaim_memory
        self._gauge = MemoryGauge(0 if source is None else source.limit)
        self._used = 0
        self._measured_at = clock.monotonic()
        self._timer: Timer | None = None
        self._reported_at = -math.inf
        self._reported = False
        """Whether the log says that memory is short."""

    @property
    def limited(self) -> bool:
        """Whether there is a limit."""
        return self._gauge.limit > 0

    def start(self) -> None:
        """Measure from now on, if there is a limit."""
        if self.limited:
            self._tick()

    def stop(self) -> None:
        """Measure no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def look(self) -> None:
        """Measure now, and decide."""
        gauge = self._gauge
        before = gauge.short
        used = self._measure()
        empty = self._is_empty()
        if gauge.decide(used, self._clock.monotonic(), empty=empty):
            self._reclaim()
            gauge.decide(self._measure(), self._clock.monotonic(), empty=empty)
        if gauge.short is not before:
            self._report()
            self._on_change(gauge.short)

    def statistics(self) -> MemoryStatistics:
        """What is used now."""
        return MemoryStatistics(self._measure(), self._gauge.limit, self._gauge.short)

    def warnings(self) -> tuple[str, ...]:
        """What a person should know."""
        if self._source is None or not self.limited:
            return ()
        limit = self._gauge.limit
        if self._clock.monotonic() >= self._measured_at + UNKNOWN_AFTER:
            return (f"memory can't be measured any more ({self._source.origin})",)
        if self._gauge.short:
            return (
                f"memory is short: over {size(ends_at(limit))} of {size(limit)} are used "
                f"({self._source.origin}), and new events get 503",
            )
        if self._used >= begins_at(limit) and self._is_empty():
            return (
                f"memory is short although the buffer is empty: over {size(begins_at(limit))} of "
                f"{size(limit)} are used ({self._source.origin})",
            )
        return ()

    def _tick(self) -> None:
        self.look()
        near = self._used > self._gauge.limit * 7 // 10
        self._timer = self._clock.call_later(LOOK_NEAR if near else LOOK_EVERY, self._tick)

    def _measure(self) -> int:
        if self._source is not None:
            now = self._clock.monotonic()
            try:
                self._used = self._source.used()
            except (OSError, ValueError):
                if now >= self._measured_at + UNKNOWN_AFTER:
                    self._used = 0  # what can't be measured rejects nothing
            else:
                self._measured_at = now
                self._gauge.limit = self._source.limit
        return self._used

    def _report(self) -> None:
        gauge = self._gauge
        figures = {"used_bytes": self._used, "limit_bytes": gauge.limit}
        now = self._clock.monotonic()
        if gauge.short and now >= self._reported_at + REPORT_EVERY:
            self._reported_at = now
            self._reported = True
            _log.warning(
                "memory is short: new events get 503",
                **figures,
                limit="" if self._source is None else self._source.origin,
                hint=(
                    "Events are accepted again when those in the buffer are delivered. Raise the "
                    f"limit, or lower buffer.max_bytes: {proposed('config check')} says how far."
                ),
            )
        elif not gauge.short and self._reported:
            self._reported = False
            if self._used < ends_at(gauge.limit):
                _log.info("memory is no longer short: events are accepted again", **figures)
            else:
                _log.warning(
                    "memory is short although the buffer is empty: events are accepted again",
                    **figures,
                    hint=(
                        "Other processes in the same cgroup may take it; else raise the limit, "
                        "and report it if memory keeps growing."
                    ),
                )


def reclaim_memory() -> None:
    """Free what is garbage, and give back to the system what is free."""
    gc.collect()
    trim()
