"""Times of foreign records, written as ISO 8601 in UTC: to the microsecond where there are any, else to the millisecond.

A time that can't be read is an error, never "now". Digits past the microsecond are cut off. Where a zone puts its clocks forward, a time
that they skip counts by the offset from before; where it puts them back, a time that comes twice is the first of both.
"""

from __future__ import annotations

import re
import zoneinfo
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from decimal import ROUND_FLOOR, Context, Decimal
from typing import Final

import msgspec

from forwarder.mapping.problems import Unmappable, described, misconfigured
from forwarder.mapping.rules import TimestampRule

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS: Final = {"unix": Decimal(1_000_000), "unix_ms": Decimal(1000), "unix_us": Decimal(1), "unix_ns": Decimal("0.001")}
"""Microseconds of each."""
_FORMATS: Final = "iso, unix, unix_ms, unix_us, unix_ns, or a format of strptime such as %d/%b/%Y:%H:%M:%S %z"
_NUMBER: Final = re.compile(r"-?\d{1,40}(\.\d{1,400})?([eE][+-]?\d{1,3})?", re.ASCII)
_EXACT: Final = Context(prec=1000)
_SAMPLE: Final = datetime(2001, 2, 3, 4, 5, 6, tzinfo=UTC)
_decode_string = msgspec.json.Decoder(str).decode


class Times:
    """Reads times of one kind."""

    def __init__(self, key: str, rule: TimestampRule) -> None:
        """Raises `ConfigurationError` for a zone or a format that isn't one; `key` is the setting of the rule."""
        self._zone = zone_of(f"{key}.zone", rule.zone)
        self._parse = _parser(f"{key}.format", rule.format)
        self._format = rule.format

    def read(self, value: bytes) -> bytes:
        """The time that a JSON value stands for, as JSON text. Raises `Unmappable` if it can't be read."""
        if value[:1] not in b'"-0123456789':
            raise self._unreadable(value)
        try:
            text = _decode_string(value) if value[:1] == b'"' else value.decode()
            return _written(self._parse(text.strip()), self._zone)
        except (ValueError, OverflowError) as error:
            raise self._unreadable(value) from error

    def _unreadable(self, value: bytes) -> Unmappable:
        return Unmappable(f"timestamp: {described(value)} can't be read as a time of the format {self._format}")


def _written(time: datetime, zone: tzinfo) -> bytes:
    utc = (time if time.tzinfo else time.replace(tzinfo=zone)).astimezone(UTC)
    text = utc.isoformat(timespec="microseconds" if utc.microsecond % 1000 else "milliseconds")
    return b'"%bZ"' % text.removesuffix("+00:00").encode()


def _parser(key: str, form: str) -> Callable[[str], datetime]:
    """What reads texts of a format. Raises `ConfigurationError` if it is none."""
    if form == "iso":
        return _parse_iso
    if form in _UNITS:
        unit = _UNITS[form]
        return lambda text: _from_number(text, unit)
    if "%" not in form:
        raise misconfigured(key, f"{form!r} is no format", f"Write {_FORMATS}.")
    if "%Z" in form.replace("%%", ""):
        raise misconfigured(key, f"{form!r} reads short names of zones, which aren't unique", "Read an offset by %z, or set the zone.")
    try:
        read = datetime.strptime(_SAMPLE.strftime(form), form)
    except (ValueError, re.error) as error:  # re.error: %Y twice
        raise misconfigured(key, f"{form!r} can't be read: {error}", f"Write {_FORMATS}.") from error
    if read.year != _SAMPLE.year:
        raise misconfigured(key, f"{form!r} says no year", "A time without a year would be another one each year that it is read in.")
    return lambda text: datetime.strptime(text, form)


def _parse_iso(text: str) -> datetime:
    """ISO 8601 in the forms that `datetime.fromisoformat` knows, but no mere number: 1712010112345 isn't a day in 1712."""
    if "-" not in text and len(text) != len("20260131") and text.replace(".", "").isdigit():
        raise ValueError(text)
    return datetime.fromisoformat(text.replace("z", "Z"))


def _from_number(text: str, unit: Decimal) -> datetime:
    if not _NUMBER.fullmatch(text):
        raise ValueError(text)
    micros = _EXACT.multiply(Decimal(text), unit)
    return _EPOCH + timedelta(microseconds=int(micros.to_integral_value(ROUND_FLOOR, _EXACT)))


_OFFSET: Final = re.compile(r"([+-])(\d{2}):?(\d{2})", re.ASCII)


def zone_of(key: str, name: str) -> tzinfo:
    """The zone of a name such as Europe/Berlin, or of an offset such as +02:00. Raises `ConfigurationError`; `key` is its setting."""
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
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:  # OSError: the name of a folder
        if not zoneinfo.available_timezones():
            hint = "Install the system's tzdata (or Python's package tzdata), or write an offset such as +02:00."
            raise misconfigured(key, f"{name!r} can't be looked up: this machine has no data of zones", hint) from error
        hint = "Write a name such as Europe/Berlin, or an offset such as +02:00."
        raise misconfigured(key, f"{name!r} is no zone", hint) from error
