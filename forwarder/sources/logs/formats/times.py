"""The times that lines of logs have, in UTC. Texts of one second are parsed once."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Final, NamedTuple

from forwarder.core.stamps import utc_text
from forwarder.mapping.times import in_latest_year

_MONTHS: Final = dict(
    zip(
        ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"),
        range(1, 13),
        strict=True,
    )
)
_ACCESS: Final = re.compile(
    r"(\d\d)/([A-Z][a-z]{2})/(\d{4}):(\d\d):(\d\d):(\d\d) ([+-]\d\d)(\d\d)", re.ASCII
)
_OLD: Final = re.compile(
    r"([A-Z][a-z]{2}) {1,2}(\d{1,2}) (?:(\d{4}) )?(\d\d):(\d\d):(\d\d)", re.ASCII
)
ISO_TIME: Final = (
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]++))?+(Z|[+-][0-9]{2}:"
    r"[0-9]{2})"
)
"""The three parts that `Rfc3339Times` wants."""
_REMEMBERED: Final = 10_000
"""Texts that are remembered: many more than there are seconds in the files that are read at the
same time.
"""


class LogTime(NamedTuple):
    """When a line was written."""

    text: str
    """ISO 8601 in UTC: to the millisecond, or to the microsecond if it has any."""
    json: bytes
    seconds: float
    """Whole seconds since 1970."""


def _log_time(time: datetime) -> LogTime:
    text = utc_text(time)
    return LogTime(text, b'"%b"' % text.encode(), float(time.timestamp() // 1))


class AccessTimes:
    """`10/Oct/2000:13:55:36 -0700`, or ISO 8601 with a zone."""

    def __init__(self) -> None:
        self._known: dict[str, LogTime | None] = {}

    def read(self, text: str) -> LogTime | None:
        """The time; None if it is none."""
        known = self._known
        if text in known:
            return known[text]
        if len(known) >= _REMEMBERED:
            known.clear()
        known[text] = time = _of_access(text) if len(text) < 40 else None
        return time


def _of_access(text: str) -> LogTime | None:
    try:
        match = _ACCESS.fullmatch(text)
        if match is None:
            time = datetime.fromisoformat(text)
            return None if time.tzinfo is None else _log_time(time)
        day, month, year, hour, minute, second, hours, minutes = match.groups()
        offset = timedelta(hours=int(hours), minutes=int(hours[0] + minutes))
        return _log_time(
            datetime(
                int(year),
                _MONTHS[month],
                int(day),
                int(hour),
                int(minute),
                min(int(second), 59),
                tzinfo=timezone(offset),
            )
        )
    except (ValueError, KeyError, OverflowError):
        return None


class Rfc3339Times:
    """`2016-10-06T00:17:09.669794202Z`, in its three parts."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], tuple[str, float] | None] = {}

    def read(self, second: str, fraction: str | None, zone: str) -> LogTime | None:
        """The time; None if there is no such one. Digits past the microsecond are cut off."""
        known = self._known
        key = second, zone
        if key not in known:
            if len(known) >= _REMEMBERED:
                known.clear()
            known[key] = _whole_second(second, zone)
        parsed = known[key]
        if parsed is None:
            return None
        digits = "000" if fraction is None else fraction.ljust(6, "0")[:6].removesuffix("000")
        text = f"{parsed[0]}.{digits}Z"
        return LogTime(text, b'"%b"' % text.encode(), parsed[1])


def _whole_second(text: str, zone: str) -> tuple[str, float] | None:
    try:
        time = datetime.fromisoformat(f"{text.replace(':60', ':59')}{zone}").astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    return time.isoformat()[:19], time.timestamp()


class OldSyslogTimes:
    """`Oct 11 22:14:15`, in a zone; the year is the latest in which it isn't later than a day
    after the reference.
    """

    def __init__(self, zone: tzinfo) -> None:
        self._zone = zone
        self._known: dict[str, tuple[float, float, LogTime]] = {}
        """By text: for which references (from, to before) it is which time."""

    def read(self, text: str, reference: float) -> LogTime | None:
        """The time; None if it is none."""
        known = self._known.get(text)
        if known is not None and known[0] <= reference < known[1]:
            return known[2]
        try:
            parsed = self._resolve(text, reference)
        except (ValueError, KeyError, OverflowError, OSError):
            # OSError: a reference that is far out of the calendar
            return None
        if parsed is not None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[text] = parsed
        return None if parsed is None else parsed[2]

    def _resolve(self, text: str, reference: float) -> tuple[float, float, LogTime] | None:
        match = _OLD.fullmatch(text)
        if match is None:
            return None
        month, day, year, hour, minute, second = match.groups()
        rest = _MONTHS[month], int(day), int(hour), int(minute), min(int(second), 59)
        if year is not None:
            return -math.inf, math.inf, _log_time(datetime(int(year), *rest, tzinfo=self._zone))
        begin, end, time = in_latest_year(
            lambda year: datetime(year, *rest, tzinfo=self._zone), reference, self._zone
        )
        return begin, end, _log_time(time)
