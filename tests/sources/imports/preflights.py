"""Records and events for the preflight's tests."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import timedelta, timezone
from typing import Any, NamedTuple

from forwarder.core.ports import Reason
from forwarder.sources.files.record_blocks import RecordLocation
from forwarder.sources.imports.format import ImportedEvent, RecordRefused
from forwarder.sources.imports.preflight import Preflight, PreflightTerms
from forwarder.sources.imports.preflight_report import PreflightFinding, PreflightReport, find_all
from forwarder.sources.imports.times import DAY, SECOND

NOW = 1_780_000_000 * SECOND
"""2026-05-28, 20:26:40 UTC."""
TERMS = PreflightTerms(
    now=NOW, max_event=1_000_000, batch_events=100, batch_bytes=1_000_000, rate=2000
)
OLD = 1_700_000_000 * SECOND
"""2023-11-14, 22:13:20 UTC."""


class PreflightRecord(NamedTuple):
    """One record, as the preflight is given it."""

    place: RecordLocation
    record: bytes
    outcome: Sequence[ImportedEvent] | RecordRefused
    finished: Sequence[bytes] = ()


def event(number: int = 0, **changes: Any) -> ImportedEvent:
    """An event, an hour after the one before it."""
    made = {
        "event": "seen",
        "distinct_id": f"person-{number % 7}",
        "time": OLD + number * 3600 * SECOND,
        "uuid": f"uuid-{number}",
    }
    return ImportedEvent(**{**made, "properties": {}, **changes})


def body(one: ImportedEvent) -> bytes:
    """An event's bytes, more or less as they would be sent."""
    return json.dumps(
        {"event": one.event, "distinct_id": one.distinct_id, "time": one.time}
    ).encode()


def seen(
    *events: ImportedEvent,
    line: int = 1,
    file: str = "a.json",
    record: bytes = b'{"timestamp":"2023-11-14T22:13:20Z"}',
) -> PreflightRecord:
    """A record that makes these events."""
    return PreflightRecord(
        RecordLocation(file, line), record, events, [body(imported) for imported in events]
    )


def refused(why: Reason, detail: str = "", line: int = 1) -> PreflightRecord:
    """A record that is refused."""
    return PreflightRecord(RecordLocation("a.json", line), b"{", RecordRefused(why, detail))


def preflight(
    stream: Iterable[PreflightRecord], terms: PreflightTerms = TERMS, **options: Any
) -> Preflight:
    """A preflight that has looked at these."""
    looking = Preflight(terms, ("timestamp",), receipts=("received",), **options)
    for record in stream:
        looking.add(*record)
    return looking


def report(stream: Iterable[PreflightRecord], **terms: Any) -> PreflightReport:
    """What a preflight says of these."""
    return preflight(stream, replace(TERMS, **terms)).report()


def findings(
    stream: Iterable[PreflightRecord],
    upper_case_ids: int = 0,
    broken: Sequence[str] = (),
    **terms: Any,
) -> dict[str, PreflightFinding]:
    """The findings on these, by code."""
    made = preflight(stream, replace(TERMS, **terms)).report(
        upper_case_ids=upper_case_ids, broken=broken
    )
    return {finding.code: finding for finding in find_all(made)}


def ahead(minutes: int) -> timezone:
    """A clock so far ahead of UTC."""
    return timezone(timedelta(minutes=minutes))


__all__ = [
    "DAY",
    "NOW",
    "OLD",
    "SECOND",
    "TERMS",
    "PreflightRecord",
    "ahead",
    "body",
    "event",
    "findings",
    "preflight",
    "refused",
    "report",
    "seen",
]
