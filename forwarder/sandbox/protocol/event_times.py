"""When an event happened, by the service's rules.

Sources: `rust/common/types/src/timestamp.rs` of PostHog/posthog (commit 1acee2e; the rules since
commit 7b0cd1b), `rust/capture/src/v0_request.rs` (f12243d) for `sent_at` and `_`, and the crates
that they read texts with: `chrono` 0.4 (RFC 3339, RFC 2822), `dateparser` 0.2.1, `jiff` 0.2, `time`
0.3.

A text is tried as RFC 3339, then by the forms of `dateparser` in that one's order, then as ISO 8601
without a zone, whose offset is ignored. A form that leaves out the date or the time takes it from
the service's clock. A text without a zone is in UTC, and so is one with a name of a zone that
`dateparser` doesn't know. The forwarder reads the same texts by code of its own
(`forwarder.wire.service_times`): tests/support/service_times.txt holds both against those crates.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time, timedelta, timezone
from typing import Final, TypeAlias

_Reader: TypeAlias = Callable[[str, datetime], datetime | None]
FUTURE: Final = timedelta(hours=23)
"""How far ahead of the service's clock a time may be."""
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""What the service takes for a time before the calendar's first year."""
_FIRST_YEAR_OF_SENT_AT: Final = 2021
_LONGEST: Final = 200
"""Characters; a longer text is no time."""
_MONTHS: Final = [
    "jan",
    "feb",
    "mar",
    "apr",
    "may",
    "jun",
    "jul",
    "aug",
    "sep",
    "oct",
    "nov",
    "dec",
]
_LONG_MONTHS: Final = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
]
_WEEKDAYS: Final = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
_MAIL_ZONES: Final = {
    **dict.fromkeys(("gmt", "ut"), 0),
    "edt": -4,
    "est": -5,
    "cdt": -5,
    "cst": -6,
    "mdt": -6,
    "mst": -7,
    "pdt": -7,
    "pst": -8,
    **dict.fromkeys("abcdefghiklmnopqrstuvwxyz", 0),
}
"""Hours ahead of UTC, of the zones of RFC 2822."""
_TOKENS: Final = {
    "year": r"(?P<year>[0-9]{4})",
    "years": r"(?P<year>[0-9]{2,4})",
    "short": r"(?P<short>[0-9]{2,4})",
    "mail-year": r"(?P<mail>[0-9]{2,})",
    "mm": r"(?P<month>[0-9]{2})",
    "m": r"(?P<month>[0-9]{1,2})",
    "mon": r"(?P<name>[a-zA-Z]{3})",
    "month": r"(?P<name>[a-zA-Z]{3,9})",
    "dd": r"(?P<day>[0-9]{2})",
    "d": r"(?P<day>[0-9]{1,2})",
    "weekday": r"(?:(?P<weekday>[a-zA-Z]{3})\s*,\s*)?",
    "HH": r"(?P<hour>[0-9]{2})",
    "H": r"(?P<hour>[0-9]{1,2})",
    "MM": r"(?P<minute>[0-9]{2})",
    "SS": r"(?P<second>[0-9]{2})",
    "seconds": r"(?::(?P<second>[0-9]{2}))?",
    "mail-seconds": r"(?:\s*:(?P<second>[0-9]{2}))?",
    "fraction": r"(?P<fraction>\.[0-9]{1,9})?",
    "digits": r"(?P<fraction>\.[0-9]+)?",
    "half": r"(?:\s*(?P<half>am|pm|AM|PM))?",
    "half!": r"(?P<half>am|pm|AM|PM)",
    "zone": r"(?P<zone>[+-:a-zA-Z0-9]{3,6})",
    "offset": r"(?P<offset>[+-][0-9]{2}:?(?:[0-9]{2})?)",
    "rfc-zone": r"(?P<offset>[zZ]|[+\-\u2212][0-9]{2}:[0-9]{2})",
    "mail-zone": r"(?P<mail_zone>[+-][0-9]{4}|[a-zA-Z]+)",
    "comments": r"(?:\s*\([^()]*\))*",
    "date": r"(?P<year>[0-9]{4})-(?P<month>[0-9]{2})-(?P<day>[0-9]{2})",
    "T": "[Tt ]",
    "_": r"\s+",
    "~": r"\s*",
    "comma": r", \s*",
    "after-month": r"(?:\. \s*|\s+)",
    "after-year": r"(?:, \s*|\s+)",
    "maybe-at": r",?(?:at)?",
    "dots": r"(?=.*?[0-9].[0-9]{2})",
    ".": r"\.",
}
"""The parts of a form; another word stands for itself."""
_RFC3339: Final = "date T HH : MM : SS digits rfc-zone"
_FORMS: Final = (
    "~ weekday d _ mon _ mail-year _ HH ~ : MM mail-seconds _ mail-zone comments",
    "date _ HH : MM seconds fraction offset",
    "date _ HH : MM : (?P<second>[0-9]) (?P<offset>[+-][0-9]{2})",
    "date _ HH : MM seconds fraction half",
    "date _ HH : MM seconds fraction ~ zone",
    "date _ HH : MM (?::[0-9]{2})?(?:\\.[0-9]{1,9})? zone",
    "date",
    "date ~ zone",
    "H : MM seconds half",
    "H : MM seconds half _ zone",
    "year - mon - dd",
    "mon _ d ~ at _ H : MM ~ half!",
    "mon _ d _ H : MM : SS",
    "month after-month d comma years after-year H : MM seconds half",
    "month _ d ,? _ year ~ maybe-at _ HH : MM seconds half _ zone",
    "month after-month d comma short",
    "d _ month _ years after-year H : MM seconds fraction",
    "d _ month _ short",
    "m / d / short _ H : MM seconds fraction half",
    "m / d / short",
    "year / m / d _ H : MM seconds fraction half",
    "year / m / d",
    "dots m . d . (?P<short>[0-9]{1,4})",
    "dots (?P<year>[0-9]{1,4}) . m (?:\\.(?P<day>[0-9]{1,2}))?",
    "(?P<short>[0-9]{2}) mm dd _ HH : MM : SS",
    "year 年 mm 月 dd 日",
    "year 年 mm 月 dd 日 HH 时 MM 分 SS 秒",
)


def _matcher(form: str) -> Callable[[str], re.Match[str] | None]:
    return re.compile("".join(_TOKENS.get(word, word) for word in form.split(" "))).fullmatch


_lacks_minutes: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?[+-][0-9]{2}"
).fullmatch
_match_civil: Final = re.compile(
    r"(?P<year>[0-9]{4})(?P<dash>-?)(?P<month>[0-9]{2})(?P=dash)(?P<day>[0-9]{2})"
    r"(?:[Tt ](?P<hour>[0-9]{2})(?:(?P<colon>:?)(?P<minute>[0-9]{2})(?:(?P=colon)"
    r"(?P<second>[0-9]{2})(?P<fraction>[.,][0-9]{1,9})?)?)?(?:[+-](?:[01][0-9]|2[0-5])"
    r"(?:(?P<mark>:?)[0-5][0-9](?:(?P=mark)[0-5][0-9](?:[.,][0-9]{1,9})?)?)?)?)?"
    r"(?:\[!?[a-zA-Z_.][a-zA-Z0-9_.+/=-]*\])*"
).fullmatch
_ZONED: Final = r"(?:Z|[+-][0-9]{2}(?::?[0-9]{2})?)"
_HOUR: Final = r"(?:[01][0-9]|2[0-3])"
_is_sent_at: Final = re.compile(
    rf"[0-9]{{4}}-(?:[0-9]{{2}}-[0-9]{{2}}|W[0-9]{{2}}-[0-9])T{_HOUR}:[0-9]{{2}}"
    rf"(?::[0-9]{{2}}(?:[.,][0-9]+)?)?{_ZONED}"
    rf"|[0-9]{{4}}(?:[0-9]{{4}}|W[0-9]{{3}})T{_HOUR}[0-9]{{2}}"
    rf"(?:[0-9]{{2}}(?:[.,][0-9]+)?)?{_ZONED}"
).fullmatch


def happened_at(
    timestamp: object, offset: object, sent_at: datetime | None, now: datetime
) -> datetime:
    """When an event happened that was received at `now`. `offset`: in milliseconds, counts before
    the timestamp; `sent_at`: the sender's clock at `now`, None where it must not count.
    """
    try:
        moment = _unlimited(timestamp, offset, sent_at, now)
    except OverflowError:
        return EPOCH
    return now if moment is None or moment - now > FUTURE else moment


def _unlimited(
    timestamp: object, offset: object, sent_at: datetime | None, now: datetime
) -> datetime | None:
    """Raises `OverflowError` before the calendar's first year."""
    if isinstance(offset, int | float) and not isinstance(offset, bool):
        try:
            return now - timedelta(milliseconds=offset)
        except OverflowError:
            if offset < 0:
                return None
            raise
    moment = read_time(timestamp, now)
    return moment if moment is None or sent_at is None else _corrected(moment, sent_at - now)


def _corrected(moment: datetime, ahead: timedelta) -> datetime | None:
    try:
        return moment - ahead
    except OverflowError:
        if ahead < timedelta():
            return None
        raise


def why_now(timestamp: object, received_at: datetime) -> str | None:
    """Why the service takes its own now in place of an event's timestamp; None if it doesn't."""
    try:
        moment = read_time(timestamp, received_at)
    except OverflowError:
        return None
    if moment is None:
        return "the service can't read it as a time, and takes its own now instead"
    if moment - received_at > FUTURE:
        return "it is more than 23 hours ahead of the service, which takes its own now instead"
    return None


def read_time(text: object, now: datetime) -> datetime | None:
    """The time that the service reads in a text; None if it reads none. `now`: the service's clock,
    for what the text leaves out. Raises `OverflowError` before the calendar's first year.
    """
    if not isinstance(text, str) or len(text) > _LONGEST:
        return None
    if _lacks_minutes(text):
        text += ":00"
    return _first_of(_READERS, text, now)


def read_dateparser(text: str, now: datetime) -> datetime | None:
    """The time that `dateparser` alone reads in a text, otherwise as `read_time`: flags read with
    it what is in none of their own forms.
    """
    return _first_of(_DATEPARSER, text, now) if len(text) <= _LONGEST else None


def _first_of(readers: Sequence[_Reader], text: str, now: datetime) -> datetime | None:
    for read in readers:
        try:
            moment = read(text, now)
        except (ValueError, KeyError):
            continue
        if moment is not None:
            return moment
    return None


def read_sent_at(text: object) -> datetime | None:
    """The time of a batch's `sent_at`; None if the service ignores it: it must be ISO 8601 with a
    T and a zone.
    """
    if not isinstance(text, str) or len(text) > _LONGEST or not _is_sent_at(text):
        return None
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def sent_at_of_query(digits: str | None) -> datetime | None:
    """The time of `_` in a query, milliseconds since 1970; None if the service ignores it: it must
    be after 2020.
    """
    if digits is None or not (digits.isascii() and digits.isdecimal()) or len(digits) > 14:
        return None
    moment = EPOCH + timedelta(milliseconds=int(digits))
    return moment if moment.year >= _FIRST_YEAR_OF_SENT_AT else None


def _reader(match: Callable[[str], re.Match[str] | None]) -> _Reader:
    def read(text: str, now: datetime) -> datetime | None:
        parsed = match(text)
        return None if parsed is None else _moment(parsed.groupdict(), now)

    return read


def _civil(text: str, now: datetime) -> datetime | None:
    """ISO 8601 without a zone. Before 1970 the service reads no fraction of a second."""
    match = _match_civil(text)
    if match is None:
        return None
    moment = _moment({"hour": "00", **_given(match)}, now)
    return None if moment < EPOCH and moment.microsecond else moment


def _given(match: re.Match[str]) -> dict[str, str | None]:
    return {name: part for name, part in match.groupdict().items() if part is not None}


def _epoch(text: str, _now: datetime) -> datetime | None:
    """Seconds, milliseconds or nanoseconds since 1970, by the number of digits."""
    if not (text.isascii() and text.isdigit()) or len(text) not in (10, 13, 19):
        return None
    if int(text) >= 2**63:
        return None
    seconds = text[:10]
    return EPOCH + timedelta(seconds=int(seconds), microseconds=int(text[10:16].ljust(6, "0")))


def _moment(parts: dict[str, str | None], now: datetime) -> datetime:
    """The time of a form's parts, what is missing taken from `now`. Raises `ValueError` or
    `KeyError` if there is no such time.
    """
    zone = _zone(parts)
    here = now.astimezone(zone)
    clock = here.time()
    if parts.get("hour"):
        clock = time(_hour(parts), int(parts.get("minute") or 0))
    moment = datetime.combine(_day(parts, here), clock, zone) + _seconds(parts)
    weekday = parts.get("weekday")
    if weekday and _WEEKDAYS[moment.weekday()] != weekday.lower():
        raise ValueError("another day of the week")
    return moment.astimezone(UTC)


def _seconds(parts: dict[str, str | None]) -> timedelta:
    second = parts.get("second")
    fraction = parts.get("fraction")
    if second is None:
        if fraction:
            raise ValueError("a fraction without a second")
        return timedelta()
    if int(second) > 60:
        raise ValueError("no such second")
    digits = (fraction or "")[1:7]
    return timedelta(seconds=int(second), microseconds=int(digits.ljust(6, "0")))


def _day(parts: dict[str, str | None], here: datetime) -> date:
    year = _year(parts, here)
    month = int(parts.get("month") or here.month)
    if name := parts.get("name"):
        months = _MONTHS if len(name) == 3 else _LONG_MONTHS
        month = months.index(name.lower()) + 1
    day = int(parts.get("day") or here.day)
    if year == 0:
        date(4, month, day)  # as the year 0, a leap year
        raise OverflowError("before the first year")
    return date(year, month, day)


def _year(parts: dict[str, str | None], here: datetime) -> int:
    if full := parts.get("year"):
        return int(full)
    if mail := parts.get("mail"):
        past = {2: 2000 if int(mail) < 50 else 1900, 3: 1900}
        return int(mail) + past.get(len(mail), 0)
    if short := parts.get("short"):
        century = 0 if len(short) > 2 else 1900 if int(short) >= 70 else 2000
        return int(short) + century
    return here.year


def _hour(parts: dict[str, str | None]) -> int:
    hour = int(parts["hour"] or 0)
    half = parts.get("half")
    if half is None:
        return hour
    if parts.get("fraction") or not 1 <= hour <= 12:
        raise ValueError("no hour of half a day")
    return hour % 12 + (12 if half.lower() == "pm" else 0)


def _zone(parts: dict[str, str | None]) -> timezone:
    if mail := parts.get("mail_zone"):
        if mail[0] in "+-":
            return _ahead(mail)
        return timezone(timedelta(hours=_MAIL_ZONES[mail.lower()]))
    if offset := parts.get("offset"):
        return UTC if offset in "zZ" else _ahead(offset)
    zone = parts.get("zone")
    if zone is None:
        return UTC
    name = re.match("[a-zA-Z]*", zone)
    if ":" not in zone and name and name[0]:
        known = len(name[0]) > 1
        return timezone(timedelta(hours=_MAIL_ZONES.get(name[0].lower(), 0) if known else 0))
    if not re.match(r"[+-][0-9]{2}:+[0-9]{2}" if ":" in zone else "[+-][0-9]{4}", zone):
        raise ValueError("no zone")
    return _ahead(zone)


def _ahead(text: str) -> timezone:
    """The zone of a sign, hours and maybe minutes."""
    digits = re.sub("[^0-9]", "", text).ljust(4, "0")
    minutes = int(digits[2:4])
    if minutes > 59:
        raise ValueError("no such minute")
    ahead = timedelta(hours=int(digits[:2]), minutes=minutes)
    return timezone(ahead if text[0] == "+" else -ahead)


_DATEPARSER: Final = (_epoch, *(_reader(_matcher(form)) for form in _FORMS))
_READERS: Final = (_reader(_matcher(_RFC3339)), *_DATEPARSER, _civil)
