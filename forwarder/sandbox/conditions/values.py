"""Values of conditions and properties as operators compare them: texts, truths, numbers, times."""

from __future__ import annotations

import calendar
import json
import math
import re
from datetime import UTC, datetime, timedelta, tzinfo
from decimal import Decimal
from functools import lru_cache
from typing import Final

from forwarder.sandbox.protocol.event_times import read_dateparser

MAX_DEPTH: Final = 100
"""How deep a value may be nested that is compared as JSON text."""
_SHOWN: Final = 80
"""The longest value in an explanation, in characters."""
_ASCII_LOWER: Final = str.maketrans("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz")
_NUMBER: Final = re.compile(
    r"[+-]?(?:(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:e[+-]?[0-9]+)?|inf|infinity|nan)",
    re.ASCII | re.IGNORECASE,
)
"""As Rust reads a number."""
_INTEGERS: Final = range(-(2**63), 2**64)
"""The service has other whole numbers as fractions."""
_SECONDS: Final = (-8_334_601_228_800, 8_210_266_876_799)
"""The first and the last moment of the service's calendar, in seconds since 1970."""
_RELATIVE_DATE: Final = re.compile(r"-?([0-9]{1,30})([hdwmy])")
_LONGEST_TIME: Final = 60
"""The longest time, in characters."""
_NAIVE_TIME: Final = re.compile(
    r"(?P<date>[0-9]{4}-[0-9]{1,2}-[0-9]{1,2})"
    r"(?:[T ](?P<hour>[0-9]{1,2}):(?P<minute>[0-9]{1,2})"
    r"(?::(?P<second>[0-9]{1,2})(?:\.(?P<fraction>[0-9]{1,9}))?)?)?",
)
_RFC3339: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]+)?"
    r"(?:[Zz]|[+-][0-9]{2}:[0-9]{2})"
)


class CannotDecide(Exception):
    """Whether a condition matches can't be computed."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why: Final = why


def json_text(value: object) -> str:
    """A value as texts are compared: a text as it is, else compact JSON with sorted keys. Raise
    `CannotDecide` if it is nested too deep.
    """
    return value if isinstance(value, str) else _json(value, 0)


def _json(value: object, depth: int) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return json.dumps(value, ensure_ascii=False)
        case int() if value not in _INTEGERS and abs(value) < 10**308:
            return _float_text(float(value))
        case float():
            return _float_text(value)
        case list() | tuple():
            return "[" + ",".join([_json(item, _deeper(depth)) for item in value]) + "]"
        case dict():
            inner = _deeper(depth)
            members = [
                f"{json.dumps(str(key), ensure_ascii=False)}:{_json(value[key], inner)}"
                for key in sorted(value, key=str)
            ]
            return "{" + ",".join(members) + "}"
    return str(value)


def _deeper(depth: int) -> int:
    if depth >= MAX_DEPTH:
        raise CannotDecide(f"a value is nested deeper than {MAX_DEPTH} levels")
    return depth + 1


def _float_text(number: float) -> str:
    """A number as the service writes it: exponents only from 1e+16 on and below 1e-5, without
    leading zeros.
    """
    if not math.isfinite(number):
        return "null"
    text = repr(number)
    if "e" not in text:
        return text
    mantissa, _, exponent = text.partition("e")
    power = int(exponent)
    return format(Decimal(text), "f") if -6 < power < 0 else f"{mantissa}e{power:+d}"


def shown(value: object) -> str:
    """A value as JSON, as long as an explanation may show it."""
    return cut(_json(value, 0))


def cut(text: str) -> str:
    """A text, as long as an explanation may show it."""
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def says_truth(value: object, depth: int = 0) -> bool:
    """Whether a value is true or false, also as a text in any case, or a list of those."""
    if isinstance(value, list):
        return all(says_truth(item, _deeper(depth)) for item in value)
    return isinstance(value, bool) or (
        isinstance(value, str) and value.lower() in ("true", "false")
    )


def is_true(value: object, depth: int = 0) -> bool:
    """Whether a value is true, also as a text in any case, or a list of nothing else."""
    if isinstance(value, list):
        return all(is_true(item, _deeper(depth)) for item in value)
    return value is True or (isinstance(value, str) and value.lower() == "true")


def ascii_lower(value: object) -> str:
    """A value's text with its ASCII letters in lower case."""
    text = json_text(value)
    return text.lower() if text.isascii() else text.translate(_ASCII_LOWER)


def number_of(value: object) -> float | None:
    """A finite number, or one in a text, which can also be infinite or `nan`; None for anything
    else.
    """
    if (
        isinstance(value, bool)
        or not isinstance(value, str | int | float)
        or (isinstance(value, str) and not _NUMBER.fullmatch(value))
    ):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) or isinstance(value, str) else None


def date_of(value: object, now: datetime) -> datetime | None:
    """The time that a property names; None if it is none. A number, also in a text, counts the
    seconds since 1970; a text is one of `time_of`. As for the service, milliseconds are seconds of
    a late century, which here is the last moment that there is, and `nan` is 1970.
    """
    number = number_of(value)
    if number is None:
        return time_of(value, now) if isinstance(value, str) else None
    if math.isnan(number):
        number = 0.0
    if not _SECONDS[0] <= number <= _SECONDS[1]:
        return None
    try:
        return datetime.fromtimestamp(number, UTC)
    except (ValueError, OverflowError, OSError):
        return (datetime.max if number > 0 else datetime.min).replace(tzinfo=UTC)


def time_of(text: str, now: datetime) -> datetime | None:
    """The time that a text names; None if it is none. The zone of `now` is the project's: a time
    without a zone is one of its clocks, and so is the one from which relative times count. Other
    forms than a date, with or without a time, are those of `dateparser`, without a zone in UTC.
    """
    if len(text) > _LONGEST_TIME:
        return None
    zone = now.tzinfo or UTC
    relative = _RELATIVE_DATE.fullmatch(text)
    if relative is not None:
        clock = _long_ago(int(relative[1]), relative[2], now.replace(tzinfo=None))
        return None if clock is None else _in_zone(clock, zone)
    exact = _exact_time(text, zone)
    if exact is not None or _NAIVE_TIME.fullmatch(text):
        return exact
    try:
        return read_dateparser(text, now)
    except OverflowError:
        return None


@lru_cache(maxsize=4096)
def _exact_time(text: str, zone: tzinfo) -> datetime | None:
    """RFC 3339, a date, or a date with a time; None if the text is in another form."""
    try:
        if _RFC3339.fullmatch(text):
            return datetime.fromisoformat(text.upper())
        naive = _NAIVE_TIME.fullmatch(text)
        return None if naive is None else _in_zone(_clock(naive), zone)
    except ValueError:
        return None


def _clock(match: re.Match[str]) -> datetime:
    year, month, day = (int(part) for part in match["date"].split("-"))
    microseconds = int((match["fraction"] or "0").ljust(9, "0")[:6])
    hour, minute, second = (int(match[part] or 0) for part in ("hour", "minute", "second"))
    return datetime(year, month, day, hour, minute, second, microseconds)


def _in_zone(clock: datetime, zone: tzinfo) -> datetime | None:
    """The first moment at which a zone's clocks show a time; None if they skip it."""
    try:
        moment = clock.replace(tzinfo=zone).astimezone(UTC)
        return moment if moment.astimezone(zone).replace(tzinfo=None) == clock else None
    except OverflowError:
        return None


def _long_ago(number: int, unit: str, now: datetime) -> datetime | None:
    """The time that long before now. Months and years keep the day, or the last one of each
    shorter month on the way.
    """
    if number >= 10_000:
        return None
    if unit not in "my":
        return now - number * timedelta(**{{"h": "hours", "d": "days", "w": "weeks"}[unit]: 1})
    here = now.year * 12 + now.month - 1
    there = here - number * (12 if unit == "y" else 1)
    year = there // 12
    day = now.day
    if year < 1:
        return None
    passed = range(here - (12 if unit == "y" else 1), there - 1, -12 if unit == "y" else -1)
    for month in passed:
        if day <= 28:
            break
        day = min(day, calendar.monthrange(month // 12, month % 12 + 1)[1])
    return now.replace(year=year, month=there % 12 + 1, day=day)
