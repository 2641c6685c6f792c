"""Times on the wire: which texts are a time, how a corrected one is written (wire facts: Time),
what a query says of its sender's clock.

That is `_`, the time at which a request was sent, in milliseconds since 1970. The service treats
it as `sent_at` (wire facts: Time, and the notes on older versions of the browser SDK), if its year
is after 2020: a 0, say, is no time (wire facts: "Times", and `rust/capture`). A repeated
request, marked by `retry_count`, may keep the `_` of its first attempt; a beacon that empties a
retry queue keeps it without any mark. Corrected by that, events would move by the length of the
outage. But a request can only be late, never early: a `_` in the future always shows a clock that
is ahead.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from forwarder.core.stamps import utc_text
from forwarder.wire.service_times import EPOCH, WEEKDAYS, service_time


class TextTime(NamedTuple):
    """What a text stands for."""

    time: datetime
    has_zone: bool
    """Whether the text names a zone; without one it is UTC."""
    by_service: bool
    """Whether the service reads it, too; else it would take its own "now"."""


_is_usual: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ](?:[01][0-9]|2[0-3]):[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?"
    r"(?:Z|[+-][0-9]{2}:[0-9]{2})?"
).fullmatch
_is_iso: Final = re.compile(r"[0-9W-]{8,10}(?:[Tt ](?:[01][0-9]|2[0-3])[0-9:.,Zz+-]*)?").fullmatch
"""Leaves the midnight of 24:00 to those who write it: not each Python reads it."""
_is_javascript: Final = re.compile(
    r"[A-Z][a-z]{2} (?P<month>[A-Z][a-z]{2}) (?P<day>[0-9]{2}) (?P<year>[0-9]{4}) "
    r"(?P<time>[0-9]{2}:[0-9]{2}:[0-9]{2}) GMT(?P<offset>[+-][0-9]{4})(?: \([^()]*\))?"
).fullmatch
_has_weekday: Final = re.compile(rf"({'|'.join(WEEKDAYS)}), ", re.IGNORECASE).match
_UTC_OF_MAIL: Final = re.compile(r"(?<=[0-9] )UTC\Z")


def read_time(text: str, now: float | None = None) -> TextTime | None:
    """The time that a text stands for: to the service, or, where it reads none, to any reader:
    ISO 8601 in its other forms, white space around, what JavaScript's `Date` prints. None if it is
    no time; nothing is guessed.

    `now`: seconds since 1970, for texts that say only a part of it (`service_time`); None: those
    are no times.
    """
    usual = _from_iso(text, by_service=True) if _is_usual(text) else None
    if usual is not None and (usual.has_zone or usual.time >= EPOCH):
        return usual
    moment = None if now is None else at(now)
    time = service_time(text, moment)
    if time is not None:
        return TextTime(*time, by_service=True)
    return _read_by_others(text.strip(), moment)


def _read_by_others(text: str, now: datetime | None) -> TextTime | None:
    if parts := _is_javascript(text):
        text = "{day} {month} {year} {time} {offset}".format_map(parts.groupdict())
    time = service_time(_UTC_OF_MAIL.sub("GMT", text), now)
    if time is None and (day := _has_weekday(text)):
        time = service_time(text[day.end() :])
        if time is not None and time.time.weekday() != WEEKDAYS.index(day[1].lower()):
            return None
    if time is not None:
        return TextTime(*time, by_service=False)
    return _from_iso(text.upper(), by_service=False) if _is_iso(text) else None


def _from_iso(text: str, *, by_service: bool) -> TextTime | None:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    if time.tzinfo is None:
        return TextTime(time.replace(tzinfo=UTC), has_zone=False, by_service=by_service)
    return TextTime(time, has_zone=True, by_service=by_service)


def parse_timestamp(text: str) -> datetime | None:
    """The time of `read_time` alone, if the text says all of it."""
    time = read_time(text)
    return None if time is None else time.time


def format_timestamp(time: datetime) -> bytes:
    """A time as ISO 8601 in UTC, to the microsecond where it has any, else to the millisecond."""
    return utc_text(time).encode()


def at(seconds: float) -> datetime:
    """A point in time from seconds since 1970."""
    return datetime.fromtimestamp(seconds, UTC)


def shifted(time: datetime, seconds: float) -> datetime | None:
    """A time moved by some seconds; None where the calendar ends."""
    try:
        return (time + timedelta(seconds=seconds)).astimezone(UTC)
    except OverflowError:
        return None


_MAX_DIGITS: Final = 14
_EARLIEST: Final = datetime(2021, 1, 1, tzinfo=UTC).timestamp()
"""A `_` before this moment says nothing."""
_FALSE: Final = (b"", b"0")


class SenderClock(NamedTuple):
    """The clock of a request's sender. Times in seconds since 1970."""

    sent_at: float | None = None
    """When the request was sent, by the sender's clock; None if that says nothing about the clock.
    """
    offset_base: float | None = None
    """The time from which the events' `offset` counts, if it isn't the time of receipt: a repeated
    request keeps its old offsets.
    """


UNKNOWN: Final = SenderClock()


def read_sender_clock(query: bytes, now: float) -> SenderClock:
    """The sender's clock by the query of a request that was received at `now`."""
    if not query or b"_=" not in query:
        return UNKNOWN
    fields: dict[bytes, bytes] = {}
    for field in query.split(b"&", 100):
        name, _, value = field.partition(b"=")
        fields.setdefault(name, value)
    digits = fields.get(b"_", b"")
    if not digits.isdigit() or len(digits) > _MAX_DIGITS:
        return UNKNOWN
    sent_at = int(digits) / 1000
    if sent_at < _EARLIEST:
        return UNKNOWN
    is_repeated = fields.get(b"retry_count", b"") not in _FALSE
    if sent_at > now or not (is_repeated or fields.get(b"beacon") == b"1"):
        return SenderClock(sent_at)
    return SenderClock(offset_base=sent_at if is_repeated else None)
