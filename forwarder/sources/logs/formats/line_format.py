"""The formats by name, and what each is: what makes a JSON object of a record of a log, and knows
the record's own time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec import Raw, Struct

from forwarder.core.errors import ConfigurationError
from forwarder.core.nesting import check_nesting
from forwarder.core.patterns import LinearPattern, PatternError
from forwarder.mapping.times import zone_of
from forwarder.sources.logs.formats.access import access_parser
from forwarder.sources.logs.formats.cri import cri_parsers
from forwarder.sources.logs.formats.fields import logfmt_parser, parse_json, regex_parser
from forwarder.sources.logs.formats.syslog import syslog_parser
from forwarder.sources.logs.formats.text import LineParser, MessageParser

FORMATS: Final = ("json", "logfmt", "combined", "common", "syslog", "cri", "regex")
MESSAGE_FORMATS: Final = ("text", "json", "logfmt", "combined", "common", "regex")
"""What the message of syslog and CRI may be."""
_PATTERN_HINT: Final = (
    r"Write a regular expression with named groups, such as (?P<level>\w+) (?P<message>.*)."
)


@dataclass(frozen=True, slots=True)
class LineFormat:
    """Parses the records of a log."""

    has_time: bool
    """Whether `parse` gives the record's own time."""
    parse: LineParser
    """Given a record, and a time (seconds since 1970) before which it was written, such as the
    file's mtime, for years that are missing.

    None if the record isn't of this format; never raises. Bytes that aren't UTF-8 become U+FFFD,
    except in JSON (`replace_undecodable`).
    """
    bind: Callable[[str], LineParser] | None = None

    def for_file(self, path: str) -> LineFormat:
        """The format for the records of one file: CRI adds what the path says of the pod."""
        return self if self.bind is None else LineFormat(self.has_time, self.bind(path), self.bind)


def line_format(
    name: str, pattern: str | None, message_format: str | None, zone: str | None, key: str
) -> LineFormat:
    """The format of this name (of `FORMATS`). Raises `ConfigurationError`; `key` is the setting of
    the source: `sources.logs[0]`.

    `pattern`: of `regex`, as format or message format. `message_format` (of `MESSAGE_FORMATS`;
    None: text): of syslog and CRI. `zone`: of times without one (RFC 3164); None: UTC.
    """
    if name == "syslog":
        return LineFormat(
            True,
            syslog_parser(
                zone_of(f"{key}.zone", zone or "UTC"), _message(message_format, pattern, key)
            ),
        )
    if name == "cri":
        bind = cri_parsers(_message(message_format, pattern, key))
        return LineFormat(True, bind(""), bind)
    return LineFormat(name in ("combined", "common"), _parser(name, pattern, f"{key}.format", key))


def _parser(name: str, pattern: str | None, setting: str, key: str) -> LineParser:
    if name in ("combined", "common"):
        return access_parser(name)
    if name == "regex":
        return regex_parser(_compiled(pattern, f"{key}.pattern"))
    if name == "logfmt":
        return logfmt_parser()
    if name != "json":
        raise ConfigurationError(
            f"{setting}: {name!r} is not a format", hint=f"Formats are {', '.join(FORMATS)}."
        )
    return parse_json


def _compiled(pattern: str | None, key: str) -> LinearPattern:
    if not pattern:
        raise ConfigurationError(f"{key}: is missing: what the lines look like", hint=_PATTERN_HINT)
    try:
        compiled = LinearPattern(pattern)
    except PatternError as error:
        raise ConfigurationError(f"{key}: {pattern!r} {error}", hint=_PATTERN_HINT) from error
    if not compiled.names:
        raise ConfigurationError(
            f"{key}: {pattern!r} has no named group, so lines would have no fields",
            hint=_PATTERN_HINT,
        )
    return compiled


class _AnyObject(Struct, gc=False):
    """Any JSON object: its text is checked to its end."""


def _message(name: str | None, pattern: str | None, key: str) -> MessageParser:
    """What makes a JSON value of a message."""
    if name in (None, "text"):
        return lambda text: text
    parse = _parser(name or "", pattern, f"{key}.message_format", key)
    check = msgspec.json.Decoder(_AnyObject).decode if name == "json" else None

    def parse_message(text: str) -> Raw | None:
        data = text.encode()
        parsed = parse(data, 0.0)
        if parsed is None:
            return None
        if check is not None:
            try:
                check_nesting(data)
                check(data)
            except (msgspec.DecodeError, RecursionError):
                return None
        return Raw(parsed[0])

    return parse_message
