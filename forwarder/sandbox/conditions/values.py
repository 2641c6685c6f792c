"""Values of conditions and properties as operators compare them: texts, truths, numbers, times,
versions and their ranges.
"""

from __future__ import annotations

import calendar
import json
import math
import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from email.utils import parsedate_to_datetime
from functools import lru_cache, partial
from typing import Final, TypeAlias

Version: TypeAlias = tuple[float, int, int]

MAX_DEPTH: Final = 100
"""How deep a value may be nested that is compared as JSON text."""
MAX_VERSION: Final = 200
"""The longest version, in characters."""
_SHOWN: Final = 80
"""The longest value in an explanation, in characters."""
_ASCII_LOWER: Final = str.maketrans("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz")
_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_RELATIVE_DATE: Final = re.compile(r"-?([0-9]{1,30})([hdwmy])")
_YEAR: Final = re.compile(r"\s*\d{4}\s*")


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
        case float():
            return _float_text(value)
        case list() | tuple():
            return "[" + ",".join([_json(each, _deeper(depth)) for each in value]) + "]"
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
        return all(says_truth(each, _deeper(depth)) for each in value)
    return isinstance(value, bool) or (
        isinstance(value, str) and value.lower() in ("true", "false")
    )


def is_true(value: object, depth: int = 0) -> bool:
    """Whether a value is true, also as a text in any case, or a list of nothing else."""
    if isinstance(value, list):
        return all(is_true(each, _deeper(depth)) for each in value)
    return value is True or (isinstance(value, str) and value.lower() == "true")


def ascii_lower(value: object) -> str:
    """A value's text with its ASCII letters in lower case."""
    text = json_text(value)
    return text.lower() if text.isascii() else text.translate(_ASCII_LOWER)


def number_of(value: object) -> float | None:
    """A finite number, or one in a text; None for anything else."""
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
    return number if math.isfinite(number) else None


def depends_on_now(text: str) -> bool:
    """Whether `date_of` answers another time later: for `-30d`, and for a year alone, which is
    this day in that year.
    """
    return _RELATIVE_DATE.fullmatch(text) is not None or _YEAR.fullmatch(text) is not None


def date_of(value: object, now: datetime) -> datetime | None:
    """The time that a value names, with a zone; None if it is none."""
    if isinstance(value, str):
        relative = _RELATIVE_DATE.fullmatch(value)
        parsed = (
            _long_ago(int(relative[1]), relative[2], now)
            if relative
            else _absolute_date(value.strip(), now)
        )
        if parsed is not None:
            return parsed
    number = number_of(value)
    try:
        return None if number is None else datetime.fromtimestamp(number, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def _absolute_date(text: str, now: datetime) -> datetime | None:
    if text.upper().endswith(" UTC"):
        text = text[:-4] + "+00:00"
    text = re.sub(r" ([+-]\d{2}:\d{2})$", r"\1", text)
    for parse in (datetime.fromisoformat, partial(_year, now=now), parsedate_to_datetime):
        try:
            parsed = parse(text)
        except (ValueError, TypeError, IndexError, OverflowError):
            continue
        return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)
    return None


def _year(text: str, now: datetime) -> datetime:
    """A year alone is this day in that year, as in the Python SDK."""
    if not _YEAR.fullmatch(text):
        raise ValueError(text)
    return datetime(int(text), now.month, now.day, tzinfo=UTC)


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


def version_of(value: object) -> Version | None:
    """The three numbers of a version, the missing ones 0; None if it isn't one. Leading zeros
    count for nothing, as in the service.
    """
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        return None
    text = str(value)
    return _cached_version(text) if len(text) <= MAX_VERSION else None


@lru_cache(maxsize=1024)
def _cached_version(text: str) -> Version | None:
    return _numbers(re.split(r"[-+]", text.strip().lstrip("vV"), maxsplit=1)[0].split("."))


def _numbers(parts: list[str]) -> Version | None:
    if not all(part.isdigit() for part in [parts[0], *filter(None, parts[1:3])]):
        return None
    try:
        major, minor, patch = (int(part or "0") for part in [*parts, "", ""][:3])
    except ValueError:
        return None
    return major, minor, patch


def tilde_range(value: object) -> tuple[Version, Version] | None:
    """From a version to the next minor one."""
    version = version_of(value)
    return version and (version, (version[0], version[1] + 1, 0))


def caret_range(value: object) -> tuple[Version, Version] | None:
    """From a version to the next that may be incompatible: the first number that isn't
    0 goes up.
    """
    version = version_of(value)
    if version is None:
        return None
    major, minor, patch = version
    if major:
        return version, (major + 1, 0, 0)
    if minor:
        return version, (0, minor + 1, 0)
    return version, (0, 0, patch + 1)


def wildcard_range(value: object) -> tuple[Version, Version] | None:
    """`1.*`, `1.2.*`; `*` is any version."""
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        return None
    text = str(value).strip().lstrip("vV")
    parts = [part for part in text.replace("*", "").split(".") if part]
    if not parts:
        return ((0, 0, 0), (math.inf, 0, 0)) if "*" in text else None
    low = _numbers(parts)
    if low is None:
        return None
    major, minor, patch = low
    return low, {1: (major + 1, 0, 0), 2: (major, minor + 1, 0)}.get(
        len(parts), (major, minor, patch + 1)
    )
