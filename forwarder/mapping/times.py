"""Times of foreign records, written as ISO 8601 in UTC: to the microsecond where there are any,
else to the millisecond.

A time that can't be read is an error, never "now". Digits past the microsecond are cut off. Where
a zone puts its clocks forward, a time that they skip counts by the offset from before; where it
puts them back, a time that comes twice is the first of both.
"""

from __future__ import annotations

import math
import re
import zoneinfo
from collections.abc import Callable
from datetime import MAXYEAR, UTC, datetime, timedelta, timezone, tzinfo
from decimal import ROUND_FLOOR, Context, Decimal
from difflib import get_close_matches
from typing import Final

import msgspec

from forwarder.core.error_text import error_text
from forwarder.core.stamps import utc_text
from forwarder.mapping.mapping_rules import TimestampRule
from forwarder.mapping.problems import Unmappable, described, misconfigured

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS: Final = {
    "unix": Decimal(1_000_000),
    "unix_ms": Decimal(1000),
    "unix_us": Decimal(1),
    "unix_ns": Decimal("0.001"),
}
"""Microseconds of each."""
_FORMATS: Final = (
    "iso, unix, unix_ms, unix_us, unix_ns, or a format of strptime such as %d/%b/%Y:%H:%M:%S %z"
)
_NUMBER: Final = re.compile(r"-?\d{1,40}(\.\d{1,400})?([eE][+-]?\d{1,3})?", re.ASCII)
_EXACT: Final = Context(prec=1000)
_SAMPLE: Final = datetime(2001, 2, 3, 4, 5, 6, tzinfo=UTC)
_NO_YEAR_HINT: Final = "A time without a year would be another one each year that it is read in."
_REMEMBERED: Final = 4096
_YEAR: Final = re.compile("%[YyGcx]")
"""The directives of strptime that say a year."""
_LONGEST: Final = 100
"""Bytes of a value that is remembered."""
_BEFORE_OFFSET: Final = re.compile(r"\s+(?=[+-]\d{2}(?::?\d{2})?$)")
"""Snowflake writes a space there."""
_DAY: Final = 86_400.0
_LEAP_YEARS: Final = 9
"""The last and the next 29th of February may be so many years away."""
_decode_string = msgspec.json.Decoder(str).decode


class Times:
    """Reads times of one kind."""

    def __init__(self, key: str, rule: TimestampRule, *, has_time: bool = False) -> None:
        """Raises `ConfigurationError` for a zone or a format that isn't one; `key` is the setting
        of the rule.

        `has_time`: whether the source knows times of its records, which years that are missing
        follow from.
        """
        self._zone = zone_of(f"{key}.zone", rule.zone)
        self._parse = _parser(f"{key}.format", rule.format)
        self._years = self._parse is None
        if self._years and not has_time:
            raise misconfigured(f"{key}.format", f"{rule.format!r} says no year", _NO_YEAR_HINT)
        self._format = rule.format
        self._seconds = set[bytes]()
        """Times that are sent as they are written, but for what follows the milliseconds, without
        these: `"2026-01-31T12:00:00.+00:00"`.

        Neighbouring records share them.
        """
        self._known: dict[bytes, tuple[float, float, bytes]] | None = (
            {} if "%" in rule.format else None
        )
        """What values of strptime's formats stand for, and for which records' times (from, to
        before): a log repeats them.
        """

    def read(self, value: bytes, reference: float | None = None) -> bytes:
        """The time that a JSON value stands for, as JSON text. Raises `Unmappable` if it can't be
        read.

        `reference`: the record's own time, seconds since 1970; a year that is missing is the
        latest in which the time isn't later than a day after it.
        """
        if self._known is None:
            if value[:21] + value[24:] in self._seconds and value[21:24].isdigit():
                return value[:24] + b'Z"'
            return self._read_number_or_iso(value)
        if reference is None:
            if self._years:
                raise Unmappable(
                    f"timestamp: {described(value)} says no year, and the record has no time that "
                    "it would follow from"
                )
            reference = 0.0
        known = self._known.get(value)
        if known is None or not known[0] <= reference < known[1]:
            known = self._read(value, reference)
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            if len(value) <= _LONGEST:
                self._known[value] = known
        return known[2]

    def _read_number_or_iso(self, value: bytes) -> bytes:
        written = self._read(value, 0.0)[2]
        if written == value[:24] + b'Z"' and len(value) <= _LONGEST:
            if len(self._seconds) >= _REMEMBERED:
                self._seconds.clear()
            self._seconds.add(value[:21] + value[24:])
        return written

    def _read(self, value: bytes, reference: float) -> tuple[float, float, bytes]:
        if value[:1] not in b'"-0123456789':
            raise self._unreadable(value)
        try:
            text = (_decode_string(value) if value[:1] == b'"' else value.decode()).strip()
            if self._parse is not None:
                return -math.inf, math.inf, _written(self._parse(text), self._zone)
            begin, end, time = in_latest_year(
                lambda year: self._in_year(text, year), reference, self._zone
            )
            return begin, end, _written(time, self._zone)
        except (ValueError, OverflowError, OSError) as error:
            # OSError: a reference that is far out of the calendar
            raise self._unreadable(value) from error

    def _in_year(self, text: str, year: int) -> datetime:
        time = datetime.strptime(f"{year:04} {text}", f"%Y {self._format}")
        return time if time.tzinfo else time.replace(tzinfo=self._zone)

    def _unreadable(self, value: bytes) -> Unmappable:
        return Unmappable(
            f"timestamp: {described(value)} can't be read as a time of the format {self._format}"
        )


def _written(time: datetime, zone: tzinfo) -> bytes:
    text = utc_text(time if time.tzinfo else time.replace(tzinfo=zone))
    return b'"%b"' % text.encode()


def in_latest_year(
    in_year: Callable[[int], datetime], reference: float, zone: tzinfo
) -> tuple[float, float, datetime]:
    """A time (with its zone) whose year is missing: of the latest year in which it isn't later
    than a day after `reference`.

    Comes with the references, from one to before another, for which it is this time. Raises
    `ValueError` if there is no such time.
    """
    latest = datetime.fromtimestamp(reference + _DAY, zone).year
    end = math.inf
    for year in range(min(latest + _LEAP_YEARS, MAXYEAR), max(latest - _LEAP_YEARS, 0), -1):
        try:
            time = in_year(year)
        except ValueError:  # the 29th of February
            continue
        begin = time.timestamp() - _DAY
        if begin <= reference:
            return begin, end, time
        end = begin
    raise ValueError("it is a time of no year")


def _parser(key: str, form: str) -> Callable[[str], datetime] | None:
    """What reads texts of a format; None for one of strptime's without a year. Raises
    `ConfigurationError` if it is none.
    """
    if form == "iso":
        return _parse_iso
    if form in _UNITS:
        unit = _UNITS[form]
        return lambda text: _from_number(text, unit)
    if "%" not in form:
        raise misconfigured(key, f"{form!r} is no format", f"Write {_FORMATS}.")
    if "%Z" in form.replace("%%", ""):
        raise misconfigured(
            key,
            f"{form!r} reads short names of zones, which aren't unique",
            "Read an offset by %z, or set the zone.",
        )
    has_year = _YEAR.search(form.replace("%%", "")) is not None
    # never a day without its year: Python 3.13 warns of it, and a later one raises an error
    before = "" if has_year else "%Y "
    try:
        read = datetime.strptime(_SAMPLE.strftime(before + form), before + form)
    except (ValueError, re.error) as error:  # re.error: %Y twice
        words = error_text(error).replace(repr(before + form), repr(form))
        raise misconfigured(
            key, f"{form!r} can't be read: {words}", f"Write {_FORMATS}."
        ) from error
    if not has_year or read.year != _SAMPLE.year:
        if (read.month, read.day) != (_SAMPLE.month, _SAMPLE.day):
            raise misconfigured(key, f"{form!r} says no day", f"Write {_FORMATS}.")
        return None
    return lambda text: datetime.strptime(text, form)


def _parse_iso(text: str) -> datetime:
    """ISO 8601 in the forms that `datetime.fromisoformat` knows, but no mere number: 1712010112345
    isn't a day in 1712.
    """
    if "-" not in text and len(text) != len("20260131") and text.replace(".", "").isdigit():
        raise ValueError(text)
    if text.endswith(" UTC"):  # as BigQuery writes it
        text = f"{text.removesuffix(' UTC')}Z"
    return datetime.fromisoformat(_BEFORE_OFFSET.sub("", text.replace("z", "Z")))


def _from_number(text: str, unit: Decimal) -> datetime:
    if not _NUMBER.fullmatch(text):
        raise ValueError(text)
    micros = _EXACT.multiply(Decimal(text), unit)
    return _EPOCH + timedelta(microseconds=int(micros.to_integral_value(ROUND_FLOOR, _EXACT)))


_OFFSET: Final = re.compile(r"([+-])(\d{2}):?(\d{2})", re.ASCII)


_ABBREVIATIONS: Final = {
    **dict.fromkeys(("PST", "PDT", "PT"), "America/Los_Angeles"),
    **dict.fromkeys(("MDT", "MT"), "America/Denver"),
    **dict.fromkeys(("CST", "CDT", "CT"), "America/Chicago"),
    **dict.fromkeys(("EDT", "ET"), "America/New_York"),
    **dict.fromkeys(("AKST", "AKDT"), "America/Anchorage"),
    **dict.fromkeys(("AST", "ADT"), "America/Halifax"),
    **dict.fromkeys(("NST", "NDT"), "America/St_Johns"),
    "BRT": "America/Sao_Paulo",
    "ART": "America/Argentina/Buenos_Aires",
    "BST": "Europe/London",
    "WEST": "Europe/Lisbon",
    "CEST": "Europe/Berlin",
    "EEST": "Europe/Athens",
    "MSK": "Europe/Moscow",
    "SAST": "Africa/Johannesburg",
    "GST": "Asia/Dubai",
    "PKT": "Asia/Karachi",
    "IST": "Asia/Kolkata",
    "WIB": "Asia/Jakarta",
    "SGT": "Asia/Singapore",
    "HKT": "Asia/Hong_Kong",
    "JST": "Asia/Tokyo",
    "KST": "Asia/Seoul",
    "AWST": "Australia/Perth",
    "ACST": "Australia/Adelaide",
    **dict.fromkeys(("AEST", "AEDT"), "Australia/Sydney"),
    **dict.fromkeys(("NZST", "NZDT"), "Pacific/Auckland"),
}
"""The zone that is mostly meant by an abbreviation that is none."""
_is_abbreviation: Final = re.compile(r"[A-Z]{2,5}", re.ASCII).fullmatch


def zone_of(key: str, name: str) -> tzinfo:
    """The zone of a name such as Europe/Berlin, or of an offset such as +02:00. Raises
    `ConfigurationError`; `key` is its setting.
    """
    if name.upper() in ("UTC", "Z"):
        return UTC
    offset = _OFFSET.fullmatch(name)
    if offset is not None:
        sign, hours, minutes = offset.groups()
        distance = timedelta(hours=int(hours), minutes=int(minutes))
        if distance < timedelta(hours=24) and int(minutes) < 60:
            return timezone(-distance if sign == "-" else distance)
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
        # OSError: the name of a folder
        if not zoneinfo.available_timezones():
            hint = (
                "Install the system's tzdata (or Python's package tzdata), or write an offset "
                "such as +02:00."
            )
            raise misconfigured(
                key, f"{name!r} can't be looked up: this machine has no data of zones", hint
            ) from error
        is_short = _is_abbreviation(name) is not None
        close = _ABBREVIATIONS.get(name, "") if is_short else _similar_zone(name)
        meant = f"Did you mean {close}? " if close else ""
        hint = f"{meant}Write a name such as Europe/Berlin, or an offset such as +02:00."
        what = "an abbreviation, which is no zone" if is_short else "no zone"
        raise misconfigured(key, f"{name!r} is {what}", hint) from error


def _similar_zone(name: str) -> str:
    """The zone whose name, or whose city, is most like this; empty if none is."""
    by_name = {zone.lower(): zone for zone in sorted(zoneinfo.available_timezones())}
    last = {zone.rpartition("/")[2]: zone for zone in by_name}
    wanted = name.strip().lower().replace(" ", "_")
    close = get_close_matches(wanted, by_name, n=1, cutoff=0.75) or [
        last[near] for near in get_close_matches(wanted, last, n=1)
    ]
    return by_name[close[0]] if close else ""
