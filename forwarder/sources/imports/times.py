"""Times as imports count them: microseconds and days since 1970, UTC. How records' times are
parsed, and how times are printed.

A time that can't be parsed is refused and never replaced by "now": an event at a wrong time can't
be removed again. Digits past the microsecond are cut off.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from decimal import ROUND_FLOOR, Context, Decimal, DecimalException
from functools import lru_cache
from typing import Final

import msgspec

from forwarder.core.ports import Reason
from forwarder.core.stamps import utc_text
from forwarder.sources.imports.format import RecordRefused

SECOND: Final = 1_000_000
DAY: Final = 86_400 * SECOND
RECENT: Final = 48 * 3600 * SECOND
"""Historical events should be older than this (wire facts: What the service does not tell)."""
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MINUTE: Final = 60 * SECOND
_MICROSECOND: Final = timedelta(microseconds=1)
_EPOCH_WITHOUT_ZONE: Final = EPOCH.replace(tzinfo=None)
AFTER_LAST: Final = 253_402_300_800_000_000
"""The first microsecond of the year 10,000."""
_AFTER_LAST_DAY: Final = AFTER_LAST // DAY
LAST_SECONDS: Final = 10_000_000_000
"""An epoch above it counts milliseconds (as seconds it would be past 2286; as milliseconds it is
past April 1970).
"""
_LAST_MILLISECONDS: Final = 10_000_000_000_000
"""An epoch above it counts microseconds."""
_LONGEST: Final = 64
"""No time takes more characters; a longer text is refused unread."""
_BASIC_DATE: Final = len("20260131")
_EXACT: Final = Context(prec=100)
_JSON: Final = (bytes, msgspec.Raw)
_decode_text = msgspec.json.Decoder(str).decode


def when(time: int) -> str:
    """A time in UTC: to the millisecond, or to the microsecond where it has any."""
    return utc_text(EPOCH + timedelta(microseconds=time))


def date_of(day: int) -> str:
    """The date of a day, counted from 1970: `2024-02-29`."""
    return (EPOCH + timedelta(days=day)).date().isoformat()


def day_of(time: int) -> str:
    """The date of a time."""
    return date_of(time // DAY)


def parse_moment(value: str | float, clock: tzinfo | None = None) -> tuple[int, datetime]:
    """The same as `parse_time` of a text or a number, and as a time with the zone UTC."""
    if clock is None and type(value) is str and len(value) <= _LONGEST and "-" in value:
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            pass
        else:
            since = moment - (_EPOCH_WITHOUT_ZONE if moment.tzinfo is None else EPOCH)
            if 0 <= since.days < _AFTER_LAST_DAY:
                return (
                    since.days * 86_400 + since.seconds
                ) * 1_000_000 + since.microseconds, EPOCH + since
    micros = parse_time(value, clock)
    return micros, EPOCH + timedelta(0, 0, micros)


def parse_time(
    value: bytes | msgspec.Raw | str | int | float | Decimal, clock: tzinfo | None = None
) -> int:
    """The microseconds since 1970 of a time. Raises `RecordRefused` (`MISSING_TIMESTAMP`) if it
    can't be read or isn't of the years 1970 to 9999.

    Bytes and `Raw` are a JSON value, text is the time itself: ISO 8601 with `T` or a space, or an
    epoch in seconds, milliseconds (above 1e10) or microseconds (above 1e13), as a number or as its
    digits; eight digits as a text are a date. A text without a zone is what `clock` shows (None:
    UTC). Epochs are UTC: a format whose vendor shifts them moves them itself (`ahead_of_utc`).
    """
    if isinstance(value, _JSON):
        value = _json_value(value)
    micros = _of_text(value, clock) if isinstance(value, str) else _of_number(value)
    if not 0 <= micros < AFTER_LAST:
        raise _unreadable(value)
    return micros


def _json_value(raw: bytes | msgspec.Raw) -> int | Decimal | str:
    value = bytes(raw)
    try:
        if value.isdigit():  # as most epochs are
            return int(value)
        return _decode_text(value) if value[:1] == b'"' else Decimal(value.decode())
    except (ValueError, DecimalException) as error:
        # null, an object, a number that is out of all bounds
        raise _unreadable(value) from error


def _of_text(text: str, clock: tzinfo | None) -> int:
    if len(text) > _LONGEST:
        raise _unreadable(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or "-" not in text:
        return _of_uncommon_text(text.strip(), clock)
    return micros_of(moment, clock)


def micros_of(time: datetime, clock: tzinfo | None = None) -> int:
    """The microseconds since 1970 of a time; without a zone it is what `clock` shows
    (None: UTC).
    """
    since = time - (_EPOCH_WITHOUT_ZONE if time.tzinfo is None else EPOCH)
    # The same as `// microsecond`, in half of its time.
    micros = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    return (
        micros
        if clock is None or time.tzinfo is not None
        else micros - ahead_of_utc(clock, micros // MINUTE)
    )


@lru_cache(maxsize=4096)
def ahead_of_utc(clock: tzinfo, minute: int) -> int:
    """How many microseconds ahead of UTC a clock is when it shows this minute, counted from 1970.

    Where clocks are put back, a time comes twice: the first one is meant. Where they are put
    forward, times that they skip count by the offset from before.
    """
    shown = (_EPOCH_WITHOUT_ZONE + timedelta(minutes=minute)).replace(tzinfo=clock)
    return (shown.utcoffset() or timedelta()) // _MICROSECOND


@lru_cache(maxsize=4096)
def repeated_by(clock: tzinfo, minute: int) -> int:
    """By how many microseconds a clock was put back, if it shows this minute twice; else 0."""
    shown = _EPOCH_WITHOUT_ZONE + timedelta(minutes=minute)
    first, second = (shown.replace(tzinfo=clock, fold=fold).utcoffset() for fold in (0, 1))
    return max(0, ((first or timedelta()) - (second or timedelta())) // _MICROSECOND)


def _of_uncommon_text(text: str, clock: tzinfo | None) -> int:
    """Digits, spaces around, a small z, a zone named UTC or GMT, or the basic form
    without hyphens.
    """
    if text.replace(".", "", 1).isdecimal() and text.isascii() and len(text) != _BASIC_DATE:
        return _of_number(Decimal(text))
    plain = text.upper()
    for zone in ("UTC", "GMT"):
        plain = plain.removesuffix(zone) + "Z" if plain.endswith(zone) else plain
    try:
        return micros_of(datetime.fromisoformat(plain.replace(" Z", "Z")), clock)
    except ValueError as error:
        raise _unreadable(text) from error


def _of_number(number: float | Decimal) -> int:
    """Floats count by their shortest digits: 1712010112.345 is that, not what is
    nearest to it in binary.
    """
    if isinstance(number, bool):
        raise _unreadable(number)
    if isinstance(number, int):
        return number * (
            1_000_000 if number <= LAST_SECONDS else 1000 if number <= _LAST_MILLISECONDS else 1
        )
    exact = Decimal(repr(number)) if isinstance(number, float) else number
    try:
        micros = _EXACT.multiply(
            exact,
            1_000_000 if exact <= LAST_SECONDS else 1000 if exact <= _LAST_MILLISECONDS else 1,
        )
        if not 0 <= micros < AFTER_LAST:
            raise _unreadable(number)
        return int(micros.to_integral_value(ROUND_FLOOR, _EXACT))
    except DecimalException as error:  # not a number
        raise _unreadable(number) from error


def _unreadable(value: object) -> RecordRefused:
    if isinstance(value, str):
        shown = repr(value)
    elif isinstance(value, bytes):
        shown = value.decode(errors="replace")
    else:
        shown = str(value)
    return RecordRefused(
        Reason.MISSING_TIMESTAMP,
        (
            f"{shown if len(shown) <= 80 else shown[:80] + '…'} can't be read as a time of the "
            "years 1970 to 9999"
        ),
    )
