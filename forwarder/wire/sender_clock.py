"""What a request's query says about its sender's clock: `_`, the time at which it was sent, in milliseconds since 1970.

The service treats `_` as `sent_at` (wire facts: Time, and the notes on older versions of the browser SDK). A repeated request, marked by
`retry_count`, may keep the `_` of its first attempt; a beacon that empties a retry queue keeps it without any mark. Corrected by that,
events would move by the length of the outage. But a request can only be late, never early: a `_` in the future always shows a clock that
is ahead.
"""

from __future__ import annotations

from typing import Final, NamedTuple

_MAX_DIGITS: Final = 14
_FALSE: Final = (b"", b"0")


class SenderClock(NamedTuple):
    """The clock of a request's sender. Times in seconds since 1970."""

    sent_at: float | None = None
    """When the request was sent, by the sender's clock; None if that says nothing about the clock."""
    offset_base: float | None = None
    """The time from which the events' `offset` counts, if it isn't the time of receipt: a repeated request keeps its old offsets."""


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
    is_repeated = fields.get(b"retry_count", b"") not in _FALSE
    if sent_at > now or not (is_repeated or fields.get(b"beacon") == b"1"):
        return SenderClock(sent_at)
    return SenderClock(offset_base=sent_at if is_repeated else None)
