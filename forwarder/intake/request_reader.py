"""From a decoded request to its events by lane, stamped, and those that are rejected. Runs on the loop, and in the decoder process."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import msgspec
from msgspec import Raw

from forwarder.core.errors import InvalidRequest
from forwarder.core.event import Lane
from forwarder.core.ports import Incoming, Reason
from forwarder.intake.loose import Receipt
from forwarder.intake.stamping import Rejected, Stamped, stamp
from forwarder.intake.v1 import note_stamps, refused_by_form
from forwarder.wire.effort import UNBOUNDED, Effort, check_effort
from forwarder.wire.sender_clock import SenderClock, read_sender_clock
from forwarder.wire.shapes import Request, check_count, split_by_token
from forwarder.wire.v1 import V1Request
from forwarder.wire.v1_results import Results


class ReadingRules(NamedTuple):
    """What holds for all requests: limits in bytes and events, `clock_skew_tolerance` in seconds."""

    max_body: int
    max_event: int
    max_events: int
    clock_skew_tolerance: float


class Gate(Protocol):
    """Says early that events can't be accepted, before they are worked on."""

    def check(self, lanes: Collection[Lane]) -> None:
        """Raises what keeps these lanes from being accepted, whatever the buffer holds."""

    def check_room(self, lane: Lane, size: int) -> None:
        """Raises `LaneFull` if a lane has no room now for `size` bytes of events."""


@dataclass(slots=True)
class RequestContent:
    """What is in a request."""

    stamped: list[tuple[Lane, Stamped]] = field(default_factory=list)
    """By lane, in the order of their first events; none is empty."""
    rejected: list[tuple[Lane, Rejected]] = field(default_factory=list)
    nulled: int = 0
    """NaN and Infinity that became null."""
    results: Results | None = None
    """For a sender that gets a result for each event."""


class RequestReader:
    """Reads decoded requests."""

    def __init__(self, rules: ReadingRules, gate: Gate, is_ordered: Callable[[Lane], bool]) -> None:
        """`is_ordered`: whether the ids of a lane's events are collected."""
        self._rules = rules
        self._gate = gate
        self._is_ordered = is_ordered

    def read(self, request: Request, incoming: Incoming, received: float, effort: Effort = UNBOUNDED) -> RequestContent:
        """The request, stamped. Raises what the gate raises, `InvalidRequest`, `RequestTooLarge`; `TooMuchWork` beyond `effort`."""
        v1 = request if isinstance(request, V1Request) else None
        if request.token is None:
            check_count(request.events, self._rules.max_events)
            check_effort(request.events, effort.events)
        parts, rejected = _parts(request)
        self._gate.check({lane for lane, _ in (*parts, *rejected)})
        content = RequestContent([], rejected, request.nulled, None if v1 is None else v1.results)
        for lane, events in parts:
            self._gate.check_room(lane, len(memoryview(events)))
            stamped = stamp(events, self._receipt(request, lane, incoming, received, effort))
            if v1 is not None:
                note_stamps(v1, stamped)
            rejected += [(lane, each) for each in stamped.rejected]
            if stamped.count:
                content.stamped.append((lane, stamped))
        if not content.stamped and not rejected:
            raise InvalidRequest("there are no events in the request")
        return content

    def _receipt(self, request: Request, lane: Lane, incoming: Incoming, now: float, effort: Effort) -> Receipt:
        clock = SenderClock(request.sent_at) if request.sent_at is not None else read_sender_clock(incoming.query, now)
        skew = 0.0 if clock.sent_at is None else clock.sent_at - now
        client = incoming.client
        return Receipt(
            now,
            has_sent_at=clock.sent_at is not None,
            offset_base=clock.offset_base,
            skew=skew if abs(skew) >= self._rules.clock_skew_tolerance else 0.0,
            ip=None if client is None or lane.historical else msgspec.json.encode(client),  # who brings history wasn't there
            ordered=self._is_ordered(lane),
            max_event=self._rules.max_event,
            max_events=self._rules.max_events,
            tells=isinstance(request, V1Request),
            event=incoming.event,
            effort=effort.events,
        )


def _parts(request: Request) -> tuple[list[tuple[Lane, bytes | Raw]], list[tuple[Lane, Rejected]]]:
    """The request's events as an array a lane, and those that aren't text."""
    if request.token is not None:
        parts: list[tuple[Lane, bytes | Raw]] = [(Lane(request.token, request.historical), request.events)]
    else:
        parts = [(Lane(token, request.historical), events) for token, events in split_by_token(request.events).items()]
    rejected: list[tuple[Lane, Rejected]] = []
    if isinstance(request, V1Request):
        rejected += [(parts[0][0], each) for each in refused_by_form(request)]
    for masked, original in request.garbled:
        token = request.token or next(iter(split_by_token(b"[%b]" % masked)))
        rejected.append((Lane(token, request.historical), Rejected(Reason.LONE_SURROGATE, original)))
    return parts, rejected
