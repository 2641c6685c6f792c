"""What a plain record hasn't is put at its beginning: uuid, time, distinct_id, from its place, its own time and its key.

Invariant: the bytes are those that `stamping.py` makes of the same event, and the same each time the record is read.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET

from forwarder.core.records import RecordFacts
from forwarder.intake.loose import time_text
from forwarder.intake.plain import PlainHead
from forwarder.intake.uuids import derived_uuid
from forwarder.wire.identity import ABSENT

_LAST_MOMENT: Final = 253_402_300_799.0
"""The end of the calendar, seconds since 1970."""


def time_of(facts: RecordFacts) -> float | None:
    """The record's time; None if it has none that is in the calendar."""
    at = facts.at
    return at if at is not None and 0.0 <= at < _LAST_MOMENT else None


def id_of(facts: RecordFacts) -> str:
    """The distinct_id of the record's events that have none; empty if it knows none that is text."""
    text = facts.distinct_id or ""
    try:
        text.encode()
    except UnicodeEncodeError:
        return ""
    return text if text.strip() else ""


def uuid_of(facts: RecordFacts, index: int) -> bytes:
    """The uuid of the event at this place in the record."""
    return derived_uuid(f"{facts.name}/{index}")


def mended(value: bytes, head: PlainHead, facts: RecordFacts, max_event: int) -> tuple[bytes, str] | None:
    """The record with what it had not, and its distinct_id; None if that can't be told from here."""
    members: list[bytes] = []
    if head.uuid is UNSET:
        members.append(b'"uuid":"%b"' % uuid_of(facts, 0))
    if head.timestamp is UNSET:
        now = time_of(facts)
        if now is None:
            return None
        members.append(b'"timestamp":%b' % time_text(now))
    distinct_id = head.distinct_id
    if distinct_id is UNSET:
        distinct_id = id_of(facts)
        if not distinct_id or head.dollar_distinct_id is not ABSENT or head.properties.distinct_id is not ABSENT:
            return None
        members.append(b'"distinct_id":%b' % msgspec.json.encode(distinct_id))
    data = b"{%b,%b" % (b",".join(members), value[1:])
    return None if len(data) > max_event else (data, distinct_id)
