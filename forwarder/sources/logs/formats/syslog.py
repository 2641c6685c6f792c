"""Syslog: RFC 5424, and RFC 3164 as programs really write it.

| member | what it is |
|---|---|
| `facility`, `severity` | names (`auth`, `err`), if the line has a priority (`<34>`); few have |
| `time` | ISO 8601 in UTC: the line's own time |
| `host`, `app`, `pid` | strings; `app` is the tag of RFC 3164, `pid` what it has in brackets |
| `msgid` | RFC 5424 |
| `data` | RFC 5424: the structured data, `{id: {name: value}}` |
| `message` | the rest; an object if it is of a message format |

Nil values (`-`) are left out. Structured data over 16 KiB stays a string: it may have thousands of
values, which a line of a log may cost but not a daemon. Times of RFC 3164 are `Oct 11 22:14:15`, in
a zone, with or without a year and a pad of the day, or ISO 8601 as rsyslog writes them.
"""

from __future__ import annotations

import re
from datetime import tzinfo
from typing import Final

import msgspec
from msgspec import Raw, Struct

from forwarder.sources.logs.formats.text import LineParser, MessageParser, ParsedLine
from forwarder.sources.logs.formats.times import ISO_TIME, LogTime, OldSyslogTimes, Rfc3339Times

_FACILITIES: Final = (
    *("kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news"),
    *("uucp", "cron", "authpriv", "ftp", "ntp", "audit", "alert", "clock"),
    *(f"local{number}" for number in range(8)),
)
_SEVERITIES: Final = ("emerg", "alert", "crit", "err", "warning", "notice", "info", "debug")
_PRIORITIES: Final = {
    str(8 * at + level): (name, word)
    for at, name in enumerate(_FACILITIES)
    for level, word in enumerate(_SEVERITIES)
}

_DATA: Final = r'(?:\[[^ =\]"]++(?: [^ =\]"]++="(?:[^"\\]++|\\.)*+")*+\])++'
_FIELD: Final = r"(?:- |([^ ]++) )"
_NEW: Final = re.compile(
    rf"<([0-9]{{1,3}})>[1-9][0-9]? (?:-|{ISO_TIME}) {_FIELD * 4}(?:-|({_DATA}))(?: (.*+)|\Z)",
    re.DOTALL,
)
_OLD: Final = re.compile(
    (
        rf"(?:<([0-9]{{1,3}})>)?+(?:{ISO_TIME}|([A-Z][a-z]{{2}} {{1,2}}[0-9]{{1,2}} (?:[0-9]{{4}} "
        rf")?[0-9:]{{8}})(?:\.[0-9]++)?+:?) ++(.*+)"
    ),
    re.DOTALL,
)
_HOST_AND_TAG: Final = re.compile(
    r"(?:([^ \[\n]*[^ \[:\n])(?: ++|\Z))?(?:([^ :\[\]\n]++)(?:\[([^ \[\]]*+)\])?+:(?: |\Z))?(.*+)",
    re.DOTALL,
)
_ELEMENT: Final = re.compile(r'\[([^ =\]"]++)((?:[^"\]]++|"(?:[^"\\]++|\\.)*+")*+)\]', re.DOTALL)
_PARAMETER: Final = re.compile(r' ([^ =\]"]++)="((?:[^"\\]++|\\.)*+)"', re.DOTALL)
_ESCAPED: Final = re.compile(r'\\(["\\\]])')
_MOST_DATA: Final = 16 * 1024
"""The longest structured data that is taken apart, in characters: some 5 ms."""


class _SyslogLine(Struct, omit_defaults=True, gc=False):
    """The members, in the order in which they are written."""

    facility: str | None = None
    severity: str | None = None
    time: str | None = None
    host: str | None = None
    app: str | None = None
    pid: str | None = None
    msgid: str | None = None
    data: dict[str, dict[str, str]] | str | None = None
    message: str | Raw | None = None


def syslog_parser(zone: tzinfo, message: MessageParser) -> LineParser:
    """The parser of both; `zone`: of times that have none."""
    iso = Rfc3339Times().read
    old = OldSyslogTimes(zone).read
    encode = msgspec.json.Encoder().encode

    def parse(line: bytes, reference: float) -> ParsedLine | None:
        text = line.decode("utf-8", "replace")
        match = _NEW.fullmatch(text)
        time: LogTime | None = None
        if match is not None:
            priority, second, fraction, offset, host, app, pid, msgid, data, rest = match.groups()
            if second is not None and (time := iso(second, fraction, offset)) is None:
                return None
            elements = None if data is None else _structured(data)
            rest = None if rest is None else rest.removeprefix("\ufeff")
        else:
            match = _OLD.fullmatch(text)
            if match is None:
                return None
            priority, second, fraction, offset, at, rest = match.groups()
            time = old(at, reference) if second is None else iso(second, fraction, offset)
            parts = _HOST_AND_TAG.fullmatch(rest)
            if time is None or parts is None:
                return None
            host, app, pid, rest = parts.groups()
            msgid = elements = None
        value = None if rest is None else message(rest)
        if (priority is not None and priority not in _PRIORITIES) or (
            value is None and rest is not None
        ):
            return None
        facility, severity = (None, None) if priority is None else _PRIORITIES[priority]
        record = _SyslogLine(
            facility,
            severity,
            None if time is None else time.text,
            host,
            app,
            pid,
            msgid,
            elements,
            value,
        )
        return (
            (encode(record), b"", reference)
            if time is None
            else (encode(record), time.json, time.seconds)
        )

    return parse


def _structured(data: str) -> dict[str, dict[str, str]] | str:
    if len(data) > _MOST_DATA:
        return data
    return {name: _values(parameters) for name, parameters in _ELEMENT.findall(data)}


def _values(parameters: str) -> dict[str, str]:
    values = dict(_PARAMETER.findall(parameters))
    if "\\" in parameters:
        return {name: _ESCAPED.sub(r"\1", value) for name, value in values.items()}
    return values
