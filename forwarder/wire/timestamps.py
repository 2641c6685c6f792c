"""Times on the wire: which texts are a time, and how a corrected one is written (wire facts: Time)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime


def parse_timestamp(text: str) -> datetime | None:
    """The time that a text stands for, in UTC where it names no zone; None if it is no time.

    ISO 8601 in all forms that `datetime.fromisoformat` knows (also `+03`, a date alone, more than six digits), or an RFC 2822 date.
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
    return utc.isoformat(timespec="microseconds" if utc.microsecond % 1000 else "milliseconds").removesuffix("+00:00").encode() + b"Z"


def at(seconds: float) -> datetime:
    """A point in time from seconds since 1970."""
    return datetime.fromtimestamp(seconds, UTC)


def shifted(time: datetime, seconds: float) -> datetime | None:
    """A time moved by some seconds; None where the calendar ends."""
    try:
        return (time + timedelta(seconds=seconds)).astimezone(UTC)
    except OverflowError:
        return None
