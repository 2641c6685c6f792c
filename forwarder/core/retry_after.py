"""The header Retry-After, in both of its forms (RFC 9110, section 10.2.3)."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime


def retry_after(value: str | None, now: float) -> float | None:
    """Seconds to wait, seen from wall-clock second `now`; None if there is no such header, or one that can't be read."""
    text = (value or "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    moment = date if date.tzinfo else date.replace(tzinfo=UTC)
    return max(0.0, (moment - datetime.fromtimestamp(now, UTC)).total_seconds())
