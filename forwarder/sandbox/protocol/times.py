"""Times of the sandbox's own texts: in its database, in parameters and in management resources.

Times of events are read by the service's rules (`event_times`).
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from forwarder.core.stamps import utc_text

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


def format_time(time: datetime) -> str:
    """A time in UTC with microseconds: fixed width, so that texts sort as times do."""
    return utc_text(time, "microseconds")
