"""Which log lines are written, and which are only counted.

A log must not grow with what senders, brokers or the upstream do. Lines of one kind are written up
to `BURST` times; of those that follow within `INTERVAL` seconds the last one is written when the
interval ends, with `suppressed`: how many others there were. A kind is a logger, a level, a
message, and the values of `WHAT` (the lane, the reason), so that news of another kind is never
lost in a flood. Lines with one message but ever different values are bounded by `MESSAGE_BURST` in
the same way.

Invariants: lines written + the sum of their `suppressed` = lines logged, once `drain` was called;
what is remembered is bounded. Time is an argument; there are no locks here.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from copy import copy
from math import inf
from typing import Any, Final, TypeAlias

BURST: Final = 10
"""Lines of one kind that are written as they come."""

MESSAGE_BURST: Final = 100
"""Lines with one message, of all kinds together, that are written as they come."""

INTERVAL: Final = 60.0
"""Seconds from the first line of a kind to the next report of those suppressed; quiet ones are
forgotten by then.
"""

MAX_MESSAGES: Final = 1000
"""Messages that are counted by themselves; further ones of a logger and level count as one."""

WHAT: Final = ("lane", "reason", "cluster", "topic", "worker", "upstream", "file", "path")
"""The values that make lines with the same message differ in kind."""

_Key: TypeAlias = tuple[Any, ...]


class _Window:
    """The lines of one kind since the interval began."""

    __slots__ = ("count", "ends", "last", "limit", "suppressed")

    def __init__(self, limit: int, now: float) -> None:
        self.limit = limit
        self.ends = now + INTERVAL
        self.count = self.suppressed = 0
        self.last: logging.LogRecord | None = None

    def suppress(self, record: logging.LogRecord) -> None:
        self.suppressed += 1
        self.last = record

    def report(self, now: float) -> logging.LogRecord | None:
        """The interval is over: the line that stands for those suppressed. While they keep coming
        there is one each interval.
        """
        record = self.last
        others = self.suppressed - 1
        self.last = None
        self.suppressed = 0
        self.ends = now + INTERVAL
        return None if record is None else _summary(record, others)


class LogLimiter:
    """Decides on each line."""

    def __init__(self) -> None:
        self._messages: dict[_Key, _Window] = {}
        self._kinds: dict[_Key, _Window] = {}
        self._first_end = inf
        """When the first of the intervals is over."""

    def admit(self, record: logging.LogRecord, now: float) -> bool:
        """Whether to write the line now. If not, it is counted, and in `reports` later."""
        message, kind = _keys(record)
        if message not in self._messages and len(self._messages) >= MAX_MESSAGES:
            message = kind = (record.name, record.levelno)
        whole = self._messages.get(message)
        if whole is None:
            whole = self._messages[message] = _Window(MESSAGE_BURST, now)
            self._first_end = min(self._first_end, whole.ends)
        window = self._kinds.get(kind)
        if window is not None and window.count >= window.limit:
            window.suppress(record)
            return False
        if whole.count >= whole.limit:
            whole.suppress(record)
            return False
        if window is None:
            window = self._kinds[kind] = _Window(BURST, now)
            self._first_end = min(self._first_end, window.ends)
        window.count += 1
        whole.count += 1
        return True

    def due(self) -> float | None:
        """When `reports` has to be called next; None if no line is suppressed."""
        return min((window.ends for window in self._windows() if window.suppressed), default=None)

    def reports(self, now: float) -> list[logging.LogRecord]:
        """The lines that stand for those suppressed in the intervals that are over. Kinds that
        were quiet are forgotten.
        """
        records: list[logging.LogRecord] = []
        if now < self._first_end:
            return records
        for windows in (self._kinds, self._messages):
            for key, window in [
                (key, window) for key, window in windows.items() if window.ends <= now
            ]:
                record = window.report(now)
                if record is None:
                    del windows[key]
                else:
                    records.append(record)
        self._first_end = min((window.ends for window in self._windows()), default=inf)
        return records

    def drain(self) -> list[logging.LogRecord]:
        """The lines that stand for all that are suppressed now, before their intervals are over."""
        return [
            record
            for window in self._windows()
            if (record := window.report(window.ends)) is not None
        ]

    def _windows(self) -> Iterator[_Window]:
        yield from self._kinds.values()
        yield from self._messages.values()


def _keys(record: logging.LogRecord) -> tuple[_Key, _Key]:
    """What names the line's message, and its kind."""
    fields = record.msg
    if not isinstance(fields, dict):
        message = (record.name, record.levelno, str(fields), _error(record.exc_info))
        return message, message
    message = (
        record.name,
        record.levelno,
        str(fields.get("event")),
        _error(fields.get("exc_info")),
    )
    return message, (*message, *[str(fields.get(name)) for name in WHAT])


def _error(exc_info: object) -> str:
    """The name of the error that a line is about; empty if it is about none."""
    if exc_info is True:
        exc_info = sys.exception()
    elif isinstance(exc_info, tuple):
        exc_info = exc_info[1]
    return type(exc_info).__name__ if isinstance(exc_info, BaseException) else ""


def _summary(record: logging.LogRecord, others: int) -> logging.LogRecord:
    """The line with the number of others like it. Its traceback is left out: those written before
    had theirs.
    """
    record = copy(record)
    record.exc_info = None
    if isinstance(record.msg, dict):
        record.msg = {name: value for name, value in record.msg.items() if name != "exc_info"}
        if others:
            record.msg["suppressed"] = others
    elif others:
        record.__dict__["suppressed"] = others
    return record
