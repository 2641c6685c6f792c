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

from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Final, NamedTuple


def parse_timestamp(text: str) -> datetime | None:
    """The time that a text stands for, in UTC where it names no zone; None if it is no time.

    ISO 8601 in all forms that `datetime.fromisoformat` knows (also `+03`, a date alone, more than
    six digits), or an RFC 2822 date.
    """
    found = _parse_iso(text.strip().replace("z", "Z")) or _parse_mail_date(text)
    return found if found is None or found.tzinfo else found.replace(tzinfo=UTC)


def _parse_iso(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def _parse_mail_date(text: str) -> datetime | None:
    try:
        return parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def format_timestamp(time: datetime) -> bytes:
    """A time as ISO 8601 in UTC, to the microsecond where it has any, else to the millisecond."""
    utc = time.astimezone(UTC)
    return (
        utc.isoformat(timespec="microseconds" if utc.microsecond % 1000 else "milliseconds")
        .removesuffix("+00:00")
        .encode()
        + b"Z"
    )


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
    if b"_=" not in query:
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
