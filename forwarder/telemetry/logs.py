"""The daemon's log: structlog, with the standard library's loggers (aiohttp, asyncio, warnings) led through the same lines.

Invariant: the last step masks every line as a whole (messages, values, tracebacks), so that nothing written through here holds a key
or an address's credentials.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import Any, Literal, TypeAlias

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from forwarder.core.secrets import mask_secrets

LogFormat: TypeAlias = Literal["json", "console"]
LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]


class StandardErrorHandler(logging.Handler):
    """Writes to what standard error is at that moment."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line, or a line and its traceback."""
        try:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()
        except Exception:  # a line that can't be written must not stop what it tells about
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the library's name
        """Name the logger and nothing else: the library's own report would show the arguments unmasked."""
        if sys.stderr and not sys.stderr.closed:
            sys.stderr.write(f"a log line of {record.name} could not be written: {type(sys.exception()).__name__}\n")


def configure_logging(format: LogFormat | None = None, level: LogLevel = "info") -> None:  # noqa: A002 - named as the setting is
    """Send all logging to standard error as JSON lines or for a console (None: console on a terminal, else JSON).

    Times are ISO 8601 in UTC. Can be called again, to change either. Handlers of others are left alone.
    """
    number = logging.getLevelNamesMapping()[level.upper()]
    terminal = sys.stderr.isatty()
    handler = StandardErrorHandler()
    handler.setFormatter(_formatter(format or ("console" if terminal else "json"), colors=terminal))
    root = logging.getLogger()
    root.handlers[:] = [*[other for other in root.handlers if not isinstance(other, StandardErrorHandler)], handler]
    root.setLevel(number)
    logging.captureWarnings(capture=True)
    logging.getLogger("aiohttp.access").setLevel(max(number, logging.WARNING) if number > logging.DEBUG else number)
    _configure_structlog(number)


def _configure_structlog(level: int) -> None:
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, *_shared(), structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
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


def _formatter(format: LogFormat, *, colors: bool) -> logging.Formatter:  # noqa: A002 - as above
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=_shared(),
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_renderers(format, colors=colors), mask_line],
    )


def _renderers(format: LogFormat, *, colors: bool) -> list[Processor]:  # noqa: A002 - as above
    if format == "console":
        return [structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback)]
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(serializer=_dumps)]


def _dumps(line: EventDict, default: Any = repr, **_options: Any) -> str:
    return json.dumps(line, default=default, ensure_ascii=False)


def mask_line(_logger: WrappedLogger, _method: str, line: str | EventDict) -> str:
    """A rendered line, with the secrets in it masked."""
    return mask_secrets(str(line))
