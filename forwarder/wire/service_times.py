"""The texts that the service reads as an event's time, and what each stands for.

The service (`rust/common/types/src/timestamp.rs`, `parse_date`) tries RFC 3339, then the forms of
the crate `dateparser` (0.2.1, `src/datetime.rs`) in that one's order, then an ISO 8601 time without
a zone (`jiff`), whose offset, if there is one, it ignores. What none of them reads becomes its own
"now". tests/support/service_times.txt holds what those three say of some hundred texts.

Invariant: a text that is found here stays as it is, so it means to the service what it means here;
but where a part of the date or of the time is missing, the service takes that of its own "now".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta
from functools import cache
from typing import Final, NamedTuple

_LONGEST: Final = 200
"""No text with more characters is a time."""
_MONTHS: Final = (
    *("january", "february", "march", "april", "may", "june", "july", "august"),
    *("september", "october", "november", "december"),
)
_MONTH: Final = {name: number for number, name in enumerate(_MONTHS, 1)}
_SHORT_MONTH: Final = {name[:3]: number for name, number in _MONTH.items()}
_ANY_MONTH: Final = _MONTH | _SHORT_MONTH
WEEKDAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_ZONES: Final = {
    **dict.fromkeys(("gmt", "ut", "utc"), 0),
    "edt": -4,
    "est": -5,
    "cdt": -5,
    "cst": -6,
    "mdt": -6,
    "mst": -7,
    "pdt": -7,
    "pst": -8,
}
"""Hours. Any other name is UTC to `dateparser`; RFC 2822 has no `UTC`."""

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NAMES_OF_ZONES: Final = ("offset", "zone", "mail_zone")
_DATE: Final = r"(?P<Y>[0-9]{4})-(?P<m>[0-9]{2})-(?P<d>[0-9]{2})"
_CLOCK: Final = r"(?P<H>[0-9]{1,2}):(?P<M>[0-9]{2})(?::(?P<S>[0-9]{2}))?"
_CLOCK_2: Final = r"(?P<H>[0-9]{2}):(?P<M>[0-9]{2})(?::(?P<S>[0-9]{2}))?"
_FRACTION: Final = r"(?P<f>\.[0-9]{1,9})?"
_HALF: Final = r"(?:\s*(?P<half>am|pm|AM|PM))?"
_ZONE: Final = r"[+-:a-zA-Z0-9]{3,6}"
"""A zone, as `dateparser` looks for it."""


def _full(pattern: str) -> Callable[[str], re.Match[str] | None]:
    return re.compile(pattern).fullmatch


_is_rfc3339: Final = _full(
    rf"{_DATE}[Tt ](?P<H>[0-9]{{2}}):(?P<M>[0-9]{{2}}):(?P<S>[0-9]{{2}})(?P<f>\.[0-9]+)?"
    r"(?P<offset>[Zz]|[+\-\u2212][0-9]{2}:[0-9]{2})"
)
_is_short_offset: Final = _full(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?[+-][0-9]{2}"
)
_is_epoch: Final = _full(r"[0-9]{10}(?:[0-9]{3}(?:[0-9]{6})?)?")
_is_mail: Final = _full(
    r"\s*(?:(?P<weekday>[a-zA-Z]{3})\s*,\s*)?(?P<d>[0-9]{1,2})\s+(?P<b>[a-zA-Z]{3})\s+"
    r"(?P<mail_year>[0-9]{2,})\s+(?P<H>[0-9]{2})\s*:(?P<M>[0-9]{2})(?:\s*:(?P<S>[0-9]{2}))?"
    r"\s+(?P<mail_zone>[+-][0-9]{4}|[a-zA-Z]+)(?:\s*\([^()]*\))*"
)
_FORMS: Final = (
    rf"{_DATE}\s+{_CLOCK_2}{_FRACTION}(?P<offset>[+-][0-9]{{2}}:?(?:[0-9]{{2}})?)",
    rf"{_DATE}\s+(?P<H>[0-9]{{2}}):(?P<M>[0-9]{{2}}):(?P<S>[0-9])"
    r"(?P<offset>[+-][0-9]{2})",
    rf"{_DATE}\s+{_CLOCK_2}{_FRACTION}{_HALF}",
    rf"{_DATE}\s+{_CLOCK_2}{_FRACTION}(?:\s*(?P<zone>{_ZONE}))",
    rf"{_DATE}\s+(?P<H>[0-9]{{2}}):(?P<M>[0-9]{{2}})(?::[0-9]{{2}})?(?:\.[0-9]{{1,9}})?"
    rf"(?P<zone>{_ZONE})",
    _DATE,
    rf"{_DATE}(?:\s*(?P<zone>{_ZONE}))",
    rf"{_CLOCK}{_HALF}",
    rf"{_CLOCK}{_HALF}\s+(?P<zone>{_ZONE})",
    r"(?P<Y>[0-9]{4})-(?P<b>[a-zA-Z]{3})-(?P<d>[0-9]{2})",
    r"(?P<b>[a-zA-Z]{3})\s+(?P<d>[0-9]{1,2})\s*at\s+(?P<H>[0-9]{1,2}):(?P<M>[0-9]{2})"
    r"\s*(?P<half>am|pm|AM|PM)",
    r"(?P<b>[a-zA-Z]{3})\s+(?P<d>[0-9]{1,2})\s+(?P<H>[0-9]{1,2}):(?P<M>[0-9]{2}):"
    r"(?P<S>[0-9]{2})",
    rf"(?P<B>[a-zA-Z]{{3,9}})(?:\. \s*|\s+)(?P<d>[0-9]{{1,2}}), \s*(?P<Y>[0-9]{{2,4}})"
    rf"(?:, \s*|\s+){_CLOCK}{_HALF}",
    rf"(?P<B>[a-zA-Z]{{3,9}})\s+(?P<d>[0-9]{{1,2}}),?\s+(?P<Y>[0-9]{{4}})\s*,?(?:at)?\s+"
    rf"{_CLOCK_2}{_HALF}\s+(?P<zone>{_ZONE})",
    r"(?P<B>[a-zA-Z]{3,9})(?:\. \s*|\s+)(?P<d>[0-9]{1,2}), \s*(?P<y>[0-9]{2,4})",
    rf"(?P<d>[0-9]{{1,2}})\s+(?P<B>[a-zA-Z]{{3,9}})\s+(?P<Y>[0-9]{{2,4}})(?:, \s*|\s+)"
    rf"{_CLOCK}{_FRACTION}",
    r"(?P<d>[0-9]{1,2})\s+(?P<B>[a-zA-Z]{3,9})\s+(?P<y>[0-9]{2,4})",
    rf"(?P<m>[0-9]{{1,2}})/(?P<d>[0-9]{{1,2}})/(?P<y>[0-9]{{2,4}})\s+{_CLOCK}"
    rf"{_FRACTION}{_HALF}",
    r"(?P<m>[0-9]{1,2})/(?P<d>[0-9]{1,2})/(?P<y>[0-9]{2,4})",
    rf"(?P<Y>[0-9]{{4}})/(?P<m>[0-9]{{1,2}})/(?P<d>[0-9]{{1,2}})\s+{_CLOCK}{_FRACTION}{_HALF}",
    r"(?P<Y>[0-9]{4})/(?P<m>[0-9]{1,2})/(?P<d>[0-9]{1,2})",
    r"(?=.*?[0-9].[0-9]{2})(?P<m>[0-9]{1,2})\.(?P<d>[0-9]{1,2})\.(?P<y>[0-9]{1,4})",
    r"(?=.*?[0-9].[0-9]{2})(?P<Y>[0-9]{1,4})\.(?P<m>[0-9]{1,2})(?:\.(?P<d>[0-9]{1,2}))?",
    r"(?P<y>[0-9]{2})(?P<m>[0-9]{2})(?P<d>[0-9]{2})\s+(?P<H>[0-9]{2}):(?P<M>[0-9]{2}):"
    r"(?P<S>[0-9]{2})",
    r"(?P<Y>[0-9]{4})年(?P<m>[0-9]{2})月(?P<d>[0-9]{2})日"
    r"(?:(?P<H>[0-9]{2})时(?P<M>[0-9]{2})分(?P<S>[0-9]{2})秒)?",
)


@cache
def _forms() -> Sequence[Callable[[str], re.Match[str] | None]]:
    """Compiled when the first text needs them: that takes longer than the rest of this module."""
    return [_is_mail, *map(_full, _FORMS)]


_is_without_zone: Final = _full(
    r"(?P<Y>[0-9]{4})(?:-(?P<m>[0-9]{2})-(?P<d>[0-9]{2})|(?P<m2>[0-9]{2})(?P<d2>[0-9]{2}))"
    r"(?:[Tt ](?P<H>[0-9]{2})(?:(?P<colon>:?)(?P<M>[0-9]{2})(?:(?P=colon)(?P<S>[0-9]{2})"
    r"(?P<f>[.,][0-9]{1,9})?)?)?(?:[+-](?:[01][0-9]|2[0-5])(?:(?P<mark>:?)[0-5][0-9]"
    r"(?:(?P=mark)[0-5][0-9](?:[.,][0-9]{1,9})?)?)?)?)?(?:\[!?[a-zA-Z_.][a-zA-Z0-9_.+/=-]*\])*"
)


class ServiceTime(NamedTuple):
    """What a text stands for."""

    time: datetime
    """In UTC."""
    has_zone: bool
    """Whether the text names a zone, or needs none: without one it is UTC to the service."""


def service_time(text: str, now: datetime | None = None) -> ServiceTime | None:
    """The time that the service takes a text for; None if it would take its own "now" instead.

    `now`: that, for texts that say only a part of a date or a time; None: those are no times.
    """
    if len(text) > _LONGEST:
        return None
    if _is_short_offset(text):
        text += ":00"
    parts = _is_rfc3339(text)
    if parts is not None:
        with suppress(ValueError, OverflowError):
            return _of_parts(parts, now)
    with suppress(ValueError, OverflowError, KeyError):
        return _by_form(text, now)
    return _without_zone(text)


def _by_form(text: str, now: datetime | None) -> ServiceTime:
    """By the forms of `dateparser`, in its order: the first that fits decides, if its parts are
    possible, or else the next. Raises `ValueError` where none does.
    """
    if _is_epoch(text):
        scale = {10: 1, 13: 1_000, 19: 1_000_000_000}[len(text)]
        if int(text) >= 1 << 63:
            raise ValueError("no nanoseconds of 64 bits")
        seconds, parts = divmod(int(text), scale)
        rest = timedelta(microseconds=parts * 1_000_000 // scale)
        return ServiceTime(datetime.fromtimestamp(seconds, UTC) + rest, has_zone=True)
    for form in _forms():
        match = form(text)
        if match is None:
            continue
        try:
            return _of_parts(match, now)
        except (ValueError, OverflowError, KeyError):
            continue
    raise ValueError("no form of these")


def _without_zone(text: str) -> ServiceTime | None:
    """Before 1970 the service reads no fraction of a second in this form."""
    match = _is_without_zone(text)
    try:
        known = None if match is None else _of_parts(match, None, alone=time())
    except (ValueError, OverflowError):
        return None
    if known is not None and known.time < EPOCH and known.time.microsecond:
        return None
    return known


def _of_parts(
    match: re.Match[str], now: datetime | None, *, alone: time | None = None
) -> ServiceTime:
    """The time of a form's parts; what is missing is that of `now`, or for a date `alone` that
    time. Raises `ValueError`, `OverflowError` or `KeyError` if they are impossible.
    """
    parts = match.groupdict()
    offset = _offset(parts)
    here = None if now is None else now + offset
    hour = parts.get("H")
    if hour is not None:
        clock = time(_hour(hour, parts), int(parts.get("M") or 0))
    else:
        clock = alone or _known(here).time()
    moment = datetime.combine(_day(parts, here), clock)
    second = int(parts.get("S") or 0)
    if second > 60:
        raise ValueError("no such second")
    moment += timedelta(seconds=second) + _fraction(parts)
    if (weekday := parts.get("weekday")) and WEEKDAYS[moment.weekday()] != weekday.lower():
        raise ValueError("another day of the week")
    has_zone = any(parts.get(name) is not None for name in _NAMES_OF_ZONES)
    return ServiceTime((moment - offset).replace(tzinfo=UTC), has_zone)


def _known(here: datetime | None) -> datetime:
    if here is None:
        raise ValueError("only a part of a time")
    return here


def _day(parts: dict[str, str | None], here: datetime | None) -> date:
    month = parts.get("m") or parts.get("m2")
    if (name := parts.get("b")) is not None:
        number = _SHORT_MONTH[name.lower()]
    elif (name := parts.get("B")) is not None:
        number = _ANY_MONTH[name.lower()]
    else:
        number = _known(here).month if month is None else int(month)
    day = parts.get("d") or parts.get("d2")
    return date(_year(parts, here), number, _known(here).day if day is None else int(day))


def _year(parts: dict[str, str | None], here: datetime | None) -> int:
    if (full := parts.get("Y")) is not None:
        return int(full)
    if (short := parts.get("y")) is not None:
        year = int(short)
        return year if len(short) > 2 else year + (1900 if year >= 70 else 2000)
    if (mail := parts.get("mail_year")) is not None:
        year = int(mail)
        if len(mail) > 3:
            return year
        return year + (2000 if len(mail) == 2 and year < 50 else 1900)
    return _known(here).year


def _hour(text: str, parts: dict[str, str | None]) -> int:
    half = parts.get("half")
    hour = int(text)
    if half is None:
        return hour
    if not 1 <= hour <= 12 or parts.get("f"):
        raise ValueError("no hour of a half day")
    return hour % 12 + (12 if half.lower() == "pm" else 0)


def _fraction(parts: dict[str, str | None]) -> timedelta:
    digits = parts.get("f")
    if not digits:
        return timedelta()
    if parts.get("S") is None:
        raise ValueError("a fraction of no second")
    return timedelta(microseconds=int(digits[1:7].ljust(6, "0")))


def _offset(parts: dict[str, str | None]) -> timedelta:
    """How far a zone is ahead of UTC."""
    if (offset := parts.get("offset")) is not None:
        return timedelta() if offset in ("Z", "z") else _offset_of(offset)
    if (zone := parts.get("zone")) is not None:
        name = re.match("[a-zA-Z]*", zone)
        if ":" not in zone and name and name[0]:
            return timedelta(hours=_ZONES.get(name[0].lower(), 0))
        if not re.match(r"[+-][0-9]{2}[:\s]*[0-5][0-9]" if ":" in zone else "[+-][0-9]{4}", zone):
            raise ValueError("no offset")
        return _offset_of(zone)
    if (zone := parts.get("mail_zone")) is not None:
        if zone[0] in "+-":
            return _offset_of(zone)
        if len(zone) == 1 and zone.lower() != "j":
            return timedelta()
        if zone.lower() == "utc":
            raise ValueError("RFC 2822 has none of that name")
        return timedelta(hours=_ZONES[zone.lower()])
    return timedelta()


def _offset_of(text: str) -> timedelta:
    hours = int(text[1:3])
    minutes = text[3:].lstrip(": ")[:2]
    if hours > 23 or (minutes and int(minutes) > 59):
        raise ValueError("no offset")
    offset = timedelta(hours=hours, minutes=int(minutes or 0))
    return offset if text[0] == "+" else -offset
