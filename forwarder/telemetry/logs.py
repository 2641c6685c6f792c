"""The daemon's log: structlog, with the standard library's loggers (aiohttp, asyncio, warnings)
led through the same lines.

Invariants: a line of JSON begins with level, time and event; what differs between lines of one
kind is in fields, not in the event. The last step masks every line as a whole (messages,
values, tracebacks), so that nothing written through here holds a key or an address's
credentials. Lines of one kind that come again and again are counted, not written
(`log_limiter.py`), except at level debug.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, Protocol, TypeAlias

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from forwarder.core.clock import Timer
from forwarder.core.error_text import error_text
from forwarder.core.secrets import mask_secrets
from forwarder.telemetry.labels import LaneNames
from forwarder.telemetry.log_limiter import LogLimiter

LogFormat: TypeAlias = Literal["json", "console"]
LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]

FIRST: Final = ("level", "timestamp", "event")
"""The members with which each line of JSON begins."""

_PROSE: Final = ("meaning", "hint", "keys")
"""Fields with sentences or settings, which have lines of their own on a terminal."""
_INDENT: Final = "    "
_COLOR: Final = re.compile(r"\x1b\[[\d;]*m")
_TRACEBACK: Final = "\nTraceback (most recent call last)"


class LogClock(Protocol):
    """Time for the log, which doesn't depend on an event loop: lines come from any thread, before
    a loop runs and after.
    """

    def monotonic(self) -> float:
        """Seconds that never go back, from an arbitrary beginning."""

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        """Call `callback` after `delay` seconds, unless cancelled."""


class ThreadClock:
    """The real clock. A call in the future has a thread of its own, which keeps no
    process alive.
    """

    monotonic = staticmethod(time.monotonic)

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        timer = threading.Timer(delay, callback)
        timer.daemon = True
        timer.start()
        return timer


class StandardErrorHandler(logging.Handler):
    """Writes to what standard error is at that moment; with a limiter, only the lines that it
    admits, and its reports of others.
    """

    def __init__(self, limiter: LogLimiter | None = None, clock: LogClock | None = None) -> None:
        super().__init__()
        self._limiter = limiter
        self._clock = clock or ThreadClock()
        self._timer: Timer | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line, or a line and its traceback. Called with the handler's lock held."""
        limiter = self._limiter
        if limiter is None:
            self._write(record)
            return
        now = self._clock.monotonic()
        self._write_all(limiter.reports(now))
        if limiter.admit(record, now):
            self._write(record)
        elif self._timer is None and (due := limiter.due()) is not None:
            self._timer = self._clock.call_later(due - now, self._report)

    def close(self) -> None:
        """Write what stands for the lines suppressed so far. Called at the end of the
        process too.
        """
        self.acquire()
        try:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self._limiter is not None:
                self._write_all(self._limiter.drain())
        finally:
            self.release()
        super().close()

    def _report(self) -> None:
        """The interval of a suppressed line is over."""
        limiter = self._limiter
        if limiter is None:
            return
        self.acquire()
        try:
            if self._timer is None:
                return  # closed meanwhile
            now = self._clock.monotonic()
            self._write_all(limiter.reports(now))
            due = limiter.due()
            self._timer = None if due is None else self._clock.call_later(due - now, self._report)
        finally:
            self.release()

    def _write_all(self, records: list[logging.LogRecord]) -> None:
        for record in records:
            self._write(record)

    def _write(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()
        except Exception:  # a line that can't be written must not stop what it tells about
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the library's name
        """Name the logger and nothing else: the library's own report would
        show the arguments unmasked.
        """
        if sys.stderr and not sys.stderr.closed:
            sys.stderr.write(f"a log line of {record.name} could not be written\n")


# A002: `format` is the name of the setting.
def configure_logging(
    format: LogFormat | None = None,  # noqa: A002
    level: LogLevel = "info",
    names: LaneNames | None = None,
) -> None:
    """Send all logging to standard error as JSON lines or for a console (None: console on a
    terminal, else JSON). Lines about a lane that has a name say it, too.

    Times are ISO 8601 in UTC. At level debug every line is written, however often it comes. Can be
    called again, to change either. Handlers of others are left alone.
    """
    number = logging.getLevelNamesMapping()[level.upper()]
    terminal = sys.stderr.isatty()
    handler = StandardErrorHandler(LogLimiter() if number > logging.DEBUG else None)
    handler.setFormatter(
        _formatter(format or ("console" if terminal else "json"), terminal=terminal)
    )
    root = logging.getLogger()
    former = [other for other in root.handlers if isinstance(other, StandardErrorHandler)]
    root.handlers[:] = [*[other for other in root.handlers if other not in former], handler]
    for other in former:
        other.close()
    root.setLevel(number)
    logging.captureWarnings(capture=True)
    logging.getLogger("aiohttp.access").setLevel(
        max(number, logging.WARNING) if number > logging.DEBUG else number
    )
    _configure_structlog(number, names or LaneNames())


def _configure_structlog(level: int, names: LaneNames) -> None:
    def with_name(_logger: WrappedLogger, _method: str, line: EventDict) -> EventDict:
        lane = line.get("lane")
        return {**line, **names.beside(lane)} if isinstance(lane, str) else line

    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            with_name,
            *_shared(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=False,
    )


def _shared() -> list[Processor]:
    """What structlog's lines and the standard library's have in common."""
    return [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]


def _formatter(format: LogFormat, *, terminal: bool) -> logging.Formatter:  # noqa: A002 - as above
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[*_shared(), structlog.stdlib.ExtraAdder(allow=["suppressed"])],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            *_renderers(format, terminal=terminal),
            mask_line,
            *([_folded] if terminal and format == "console" else []),
        ],
    )


def _renderers(format: LogFormat, *, terminal: bool) -> list[Processor]:  # noqa: A002 - as above
    if format == "console":
        render = structlog.dev.ConsoleRenderer(
            colors=terminal, exception_formatter=structlog.dev.plain_traceback
        )
        return [_for_people, _with_prose_below(render) if terminal else render]
    return [
        structlog.processors.format_exc_info,
        _in_order,
        structlog.processors.JSONRenderer(serializer=_dumps),
    ]


def _in_order(_logger: WrappedLogger, _method: str, line: EventDict) -> EventDict:
    """The members of a line in the order in which it is read."""
    first = {name: line.pop(name) for name in FIRST if name in line}
    return {**first, **line}


def _dumps(line: EventDict, **_options: Any) -> str:
    return json.dumps(line, default=_plain, ensure_ascii=False)


def _plain(value: object) -> object:
    """What JSON has no form for, as text or as a list."""
    if isinstance(value, BaseException):
        return error_text(value)
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _for_people(_logger: WrappedLogger, _method: str, line: EventDict) -> EventDict:
    """Fields as a person writes them: the console would show lists, mappings
    and truth as Python does. A lane that has a name is shown by it.
    """
    if "lane_name" in line:
        line["lane"] = line.pop("lane_name")
    return {name: value if name == "exc_info" else _shown(value) for name, value in line.items()}


def _with_prose_below(render: Processor) -> Processor:
    """Renders a line for a terminal: the time of day alone, no logger, and sentences below."""

    def rendered(logger: WrappedLogger, method: str, line: EventDict) -> str:
        line.pop("logger", None)
        if "timestamp" in line:
            line["timestamp"] = line["timestamp"][11:19]
        prose = [str(line.pop(name)) for name in _PROSE if name in line]
        head, traceback, rest = str(render(logger, method, line)).partition(_TRACEBACK)
        return "\n".join([head.rstrip(), *(_INDENT + text for text in prose)]) + traceback + rest

    return rendered


def _folded(_logger: WrappedLogger, _method: str, text: str | EventDict) -> str:
    """The line folded at words, with an indent, to the terminal's width; a traceback as it is."""
    try:
        width = os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError):  # no terminal any more
        return str(text)
    head, traceback, rest = str(text).partition(_TRACEBACK)
    return "\n".join(fold(line, width) for line in head.split("\n")) + traceback + rest


def fold(line: str, width: int) -> str:
    """The line in lines of at most `width` columns, as far as its words allow; colors have none."""
    lines: list[str] = []
    current, *words = line.split(" ")
    columns = len(_COLOR.sub("", current))
    for word in words:
        added = len(_COLOR.sub("", word))
        if columns + 1 + added <= width:
            current += f" {word}"
            columns += 1 + added
        else:
            lines.append(current.rstrip())
            current = _INDENT + word
            columns = len(_INDENT) + added
    return "\n".join([*lines, current.rstrip()])


def _shown(value: object) -> object:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{_shown(key)}: {_shown(item)}" for key, item in value.items())
    plain = value if isinstance(value, str | int | float | list | tuple) else _plain(value)
    return (
        ", ".join(str(_shown(item)) for item in plain) if isinstance(plain, list | tuple) else plain
    )


def mask_line(_logger: WrappedLogger, _method: str, line: str | EventDict) -> str:
    """A rendered line, with the secrets in it masked."""
    return mask_secrets(str(line))
