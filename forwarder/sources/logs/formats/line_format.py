"""The formats by name, and what each is: what makes a JSON object of a record of a log, and knows
the record's own time.

Here are those whose members the line names itself. None of them knows which member is the line's
time: the mapping says it.

- JSON: a line that is an object stays as it is.
- logfmt: `level=info msg="a \\"quoted\\" text" cached`; values are strings, a bare key is true, of
  equal keys the last one counts. A line without any `key=value` isn't of this format.
- A regular expression is searched in the line; values are strings, and groups that don't match are
  left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
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
from forwarder.sources.logs.formats.syslog import syslog_parser
from forwarder.sources.logs.formats.text import LineParser, MessageParser, ParsedLine, unescape

FORMATS: Final = ("json", "logfmt", "combined", "common", "syslog", "cri", "regex")
MESSAGE_FORMATS: Final = ("text", "json", "logfmt", "combined", "common", "regex")
"""What the message of syslog and CRI may be."""
DATED: Final = ("combined", "common", "cri")
"""Formats whose records all have a time of their own."""
_PATTERN_HINT: Final = (
    r"Write a regular expression with named groups, such as (?P<level>\w+) (?P<message>.*)."
)
_PAIR: Final = re.compile(
    r'([^\s="]++)(?:(=)(?:"((?:[^"\\]++|\\.)*+)"|([^\s"]\S*+)?+))?+(?!\S)|(\S.*+)', re.DOTALL
)
"""A key, its `=`, and its value, quoted or not; or what is neither."""
_SPACE: Final = b" \t\r\n"


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


def replace_undecodable(lines: Sequence[bytes]) -> tuple[Sequence[bytes], int]:
    """Lines in valid UTF-8, and how many had bytes that aren't: each of those became U+FFFD.
    Usually all are checked at once.
    """
    joined = b"\n".join(lines)
    if joined.isascii():
        return lines, 0
    try:
        joined.decode()
    except UnicodeDecodeError:
        valid = [line.decode("utf-8", "replace").encode() for line in lines]
        return valid, sum(one != other for one, other in zip(valid, lines, strict=True))
    return lines, 0


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
        return _regex_parser(_compiled(pattern, f"{key}.pattern"))
    if name == "logfmt":
        return _logfmt_parser()
    if name != "json":
        raise ConfigurationError(
            f"{setting}: {name!r} is not a format", hint=f"Formats are {', '.join(FORMATS)}."
        )
    return _parse_json


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


def _parse_json(line: bytes, reference: float) -> ParsedLine | None:
    """A line that begins as an object; the mapping decodes it, and finds out whether it is one."""
    if line[:1] == b"{" or line.lstrip(_SPACE)[:1] == b"{":
        return line, b"", reference
    return None


def _logfmt_parser() -> LineParser:
    """The parser of logfmt."""
    encode = msgspec.json.Encoder().encode
    pairs = _PAIR.findall

    def parse(line: bytes, reference: float) -> ParsedLine | None:
        members: dict[str, str | bool] = {}
        named = False
        for key, equals, quoted, plain, neither in pairs(line.decode("utf-8", "replace")):
            if neither:
                return None
            if equals:
                named = True
                members[key] = plain or (unescape(quoted) if "\\" in quoted else quoted)
            else:
                members[key] = True
        return (encode(members), b"", reference) if named else None

    return parse


def _regex_parser(pattern: LinearPattern) -> LineParser:
    """The parser of a regular expression with named groups."""
    encode = msgspec.json.Encoder().encode
    search = pattern.fields

    def parse(line: bytes, reference: float) -> ParsedLine | None:
        if not line.isascii():
            line = line.decode("utf-8", "replace").encode()
        fields = search(line)
        return None if fields is None else (encode(fields), b"", reference)

    return parse


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
