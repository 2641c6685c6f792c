"""When an event happened, by the service's rules (wire facts: Time).

With `sent_at` and `timestamp`: `timestamp - (sent_at - now)`; else with `offset`: `now - offset`,
which takes precedence over a timestamp; else the timestamp; else now. `$ignore_sent_at` skips the
correction. More than 23 hours in the future, or unparseable: now. A time without a zone is UTC.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

FUTURE: Final = timedelta(hours=23)
_RFC3339: Final = re.compile(
    r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII
).fullmatch


def parse_time(text: object) -> datetime | None:
    """An ISO 8601 time, in UTC where it names no zone; None if it can't be read as one."""
    if not isinstance(text, str):
        return None
    try:
        parsed = datetime.fromisoformat(text)
        return parsed.replace(tzinfo=UTC) if parsed.tzinfo is None else parsed.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def parse_rfc3339(text: str) -> datetime | None:
    """A time exactly as RFC 3339 writes it, with its zone; None if it isn't one."""
    return parse_time(text.upper()) if _RFC3339(text) else None


def from_milliseconds(digits: str | None) -> datetime | None:
    """A time given as milliseconds since 1970; None if it isn't."""
    if digits is None or not (digits.isascii() and digits.isdecimal()) or len(digits) > 14:
        return None
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=int(digits))


def format_time(time: datetime) -> str:
    """A time in UTC with microseconds: fixed width, so that texts sort as times do."""
    return time.astimezone(UTC).isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"


def happened_at(
    timestamp: object, offset: object, sent_at: datetime | None, now: datetime
) -> datetime:
    """When an event happened that was received at `now`. `offset` is in milliseconds; `sent_at` is
    None where it must not count.
    """
    try:
        time = _uncorrected(timestamp, offset, sent_at, now)
    except OverflowError:
        return now
    return time if time is not None and time <= now + FUTURE else now


def _uncorrected(
    timestamp: object, offset: object, sent_at: datetime | None, now: datetime
) -> datetime | None:
    stated = parse_time(timestamp)
    if sent_at is not None and timestamp is not None:
        return None if stated is None else stated - (sent_at - now)
    if isinstance(offset, int | float) and not isinstance(offset, bool):
        return now - timedelta(milliseconds=offset)
    return stated
