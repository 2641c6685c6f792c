"""Tells the results of a v1 request what stamping made of its events (`wire/v1_results.py`)."""

from __future__ import annotations

from typing import Final

from forwarder.core.ports import Reason
from forwarder.intake.stamping import Rejected, Stamped
from forwarder.wire.v1 import V1Request
from forwarder.wire.v1_event import INVALID_OPTIONS, INVALID_SESSION, MALFORMED_EVENT, MALFORMED_PROPERTIES
from forwarder.wire.v1_results import TIMESTAMP_REPLACED

DETAILS: Final = {
    Reason.MISSING_EVENT: "missing_event_name",
    Reason.MISSING_DISTINCT_ID: "missing_distinct_id",
    Reason.INVALID_EVENT: MALFORMED_EVENT,
    Reason.LONE_SURROGATE: "lone_surrogate",
    Reason.TOO_LARGE: "event_too_big",
}
"""Why an event was dropped that was refused at receipt, as its sender is told; the service's words where it has one."""

_WHY: Final = {
    MALFORMED_PROPERTIES: "its properties are no object",
    INVALID_SESSION: "its session_id or window_id is no string",
    INVALID_OPTIONS: "its options, which may say that no person is to be made of it, can't be read",
}
"""What the dead letter of an event says that isn't one of this protocol, if it is more than its reason."""


def refused_by_form(request: V1Request) -> list[Rejected]:
    """The events that are none of the protocol, or no text."""
    return [Rejected(reason, data, why=_WHY.get(details, "")) for reason, data, details in request.refused]


def note_stamps(request: V1Request, stamped: Stamped) -> None:
    """Which events were refused when they were stamped, and of which something was replaced."""
    results, kept = request.results, request.kept
    for rejected in stamped.rejected:
        results.drop(kept[rejected.at], DETAILS[rejected.reason])
    for at, new_uuid, new_timestamp in stamped.replaced:
        if new_uuid:
            results.replaced(kept[at], new_uuid.decode())
        if new_timestamp:
            results.warn(kept[at], TIMESTAMP_REPLACED)
