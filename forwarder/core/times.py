"""Times as text."""

from __future__ import annotations

from datetime import UTC, datetime


def utc_text(time: datetime | float, timespec: str = "") -> str:
    """A time, or seconds since 1970, as ISO 8601 in UTC: `2026-03-01T10:20:30.123Z`. `timespec` is
    that of `isoformat`; without it, to the microsecond where the time has any, else to the
    millisecond.
    """
    utc = time.astimezone(UTC) if isinstance(time, datetime) else datetime.fromtimestamp(time, UTC)
    timespec = timespec or ("microseconds" if utc.microsecond % 1000 else "milliseconds")
    return f"{utc.isoformat('T', timespec)[:-6]}Z"
