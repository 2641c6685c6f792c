"""From a decoded request to its stamped events by lane, and the rejected ones. Runs on the loop,
and in the decoder process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec
from msgspec import Raw

from forwarder.core.errors import InvalidRequest
from forwarder.core.event import Lane
from forwarder.core.ports import Incoming, Reason, Revived
from forwarder.intake.lanes import LaneRegistry
from forwarder.intake.stamp_event import AT_RECEIPT, StampContext, is_uuid
from forwarder.intake.stamping import RejectedEvent, StampedEvents, stamp, stamp_together
from forwarder.wire.effort import UNBOUNDED, Effort, check_effort
from forwarder.wire.shapes import Request, check_count, split_by_token
from forwarder.wire.timestamps import SenderClock, read_sender_clock
from forwarder.wire.v1 import V1Request
from forwarder.wire.v1_event import INVALID_OPTIONS, INVALID_SESSION, MALFORMED_PROPERTIES
from forwarder.wire.v1_results import TIMESTAMP_REPLACED, Results

_WHY: Final = {
    MALFORMED_PROPERTIES: "its properties are no object",
    INVALID_SESSION: "its session_id or window_id is no string",
    INVALID_OPTIONS: "its options, which may say that no person is to be made of it, can't be read",
}
"""What the dead letter of an event says that does not follow the protocol, if it is more than its
reason.
"""


class ReadingRules(NamedTuple):
    """What holds for all requests and records: limits in bytes and events, `clock_skew_tolerance`
    in seconds.
    """

    max_body: int
    max_event: int
    max_events: int
    clock_skew_tolerance: float
    ordered: tuple[bool, bool]
    """Whether live lanes, and historical ones, keep order by id, so that the ids of their events
    are collected.
    """


@dataclass(slots=True)
class RequestContent:
    """What is in a request."""

    stamped: list[tuple[Lane, StampedEvents]] = field(default_factory=list)
    """By lane, in the order of their first events; none is empty."""
    rejected: list[tuple[Lane, RejectedEvent]] = field(default_factory=list)
    nulled: int = 0
    """NaN and Infinity that became null."""
    filtered: int = 0
    """Foreign records that their mapping leaves out."""
    results: Results | None = None
    """For a sender that gets a result for each event."""


@dataclass(slots=True)
class MappedRequest(Request):
    """A request whose events were made of foreign records."""

    rejected: list[RejectedEvent] = field(default_factory=list)
    """Records of which no event was made."""
    filtered: int = 0
    """Records that the mapping leaves out."""


class RequestReader:
    """Splits decoded requests by lane, and stamps their events."""

    def __init__(
        self,
        rules: ReadingRules,
        lanes: LaneRegistry,
        check_room: Callable[[Lane, int], None] | None = None,
    ) -> None:
        """`check_room`: raises `LaneFull` before work is done on so many bytes of a lane's events;
        None: there is always room.
        """
        self._rules = rules
        self._lanes = lanes
        self._check_room = check_room

    def read(
        self, request: Request, incoming: Incoming, received: float, effort: Effort = UNBOUNDED
    ) -> RequestContent:
        """Stamp the request. Raises what lanes and quotas raise, `InvalidRequest`,
        `RequestTooLarge`; `TooMuchWork` beyond `effort`.
        """
        v1 = request if isinstance(request, V1Request) else None
        if request.token is None:
            check_count(request.events, self._rules.max_events)
            check_effort(request.events, effort.events)
        parts, rejected = _parts(request)
        self._lanes.check({lane for lane, _ in (*parts, *rejected)})
        content = RequestContent(
            [], rejected, request.nulled, results=None if v1 is None else v1.results
        )
        for lane, events in parts:
            if self._check_room is not None:
                self._check_room(lane, len(memoryview(events)))
            stamped = stamp(events, self._context(request, lane, incoming, received, effort))
            if v1 is not None:
                _note_stamps(v1, stamped)
            rejected += [(lane, each) for each in stamped.rejected]
            if stamped.count:
                content.stamped.append((lane, stamped))
        if isinstance(request, MappedRequest):
            content.filtered = request.filtered  # it may be all there is
        elif not content.stamped and not rejected:
            raise InvalidRequest("there are no events in the request")
        return content

    def read_together(
        self, request: Request, incoming: Incoming, received: float, effort: Effort
    ) -> RequestContent | None:
        """Stamp a request of one project key whose events are not decoded yet; None unless that
        can be done at once, for all of them.

        Raises what lanes and quotas raise, and what `stamp_together` does.
        """
        if request.token is None:
            return None
        lane = Lane(request.token, request.historical)
        self._lanes.check({lane})
        if self._check_room is not None:
            self._check_room(lane, len(memoryview(request.events)))
        stamped = stamp_together(
            request.events,
            self._context(request, lane, incoming, received, effort),
            check_nesting=True,
        )
        return RequestContent([(lane, stamped)]) if stamped is not None and stamped.count else None

    def _context(
        self, request: Request, lane: Lane, incoming: Incoming, now: float, effort: Effort
    ) -> StampContext:
        clock = (
            SenderClock(request.sent_at)
            if request.sent_at is not None
            else read_sender_clock(incoming.query, now)
        )
        skew = 0.0 if clock.sent_at is None else clock.sent_at - now
        client = incoming.client
        return StampContext(
            now,
            has_sent_at=clock.sent_at is not None,
            offset_base=clock.offset_base,
            skew=skew if abs(skew) >= self._rules.clock_skew_tolerance else 0.0,
            # who imports history is not the one who made it
            ip=None if client is None or lane.historical else msgspec.json.encode(client),
            ordered=self._rules.ordered[lane.historical],
            max_event=self._rules.max_event,
            max_events=self._rules.max_events,
            reports_changes=isinstance(request, V1Request),
            event=incoming.event,
            effort=effort.events,
            uuid_of=None if incoming.revived is None else _uuid_of(incoming.revived),
        )


def _uuid_of(revived: Revived) -> Callable[[int], bytes] | None:
    """What gives a replayed event its uuid, if its dead letter knows one."""
    uuid = revived.uuid.encode()
    return (lambda _: uuid) if is_uuid(uuid) else None


def _parts(
    request: Request,
) -> tuple[list[tuple[Lane, bytes | Raw]], list[tuple[Lane, RejectedEvent]]]:
    """The request's events as an array a lane, and those that are no text."""
    if request.token is not None:
        parts: list[tuple[Lane, bytes | Raw]] = [
            (Lane(request.token, request.historical), request.events)
        ]
    else:
        parts = [
            (Lane(token, request.historical), events)
            for token, events in split_by_token(request.events).items()
        ]
    rejected: list[tuple[Lane, RejectedEvent]] = []
    if isinstance(request, V1Request):
        rejected += [(parts[0][0], each) for each in _invalid_events(request)]
    elif isinstance(request, MappedRequest):
        rejected += [(parts[0][0], each) for each in request.rejected]
    for masked, original in request.garbled:
        token = request.token or next(iter(split_by_token(b"[%b]" % masked)))
        rejected.append(
            (Lane(token, request.historical), RejectedEvent(Reason.LONE_SURROGATE, original))
        )
    return parts, rejected


def _invalid_events(request: V1Request) -> list[RejectedEvent]:
    """The events that do not follow the protocol, or are no text."""
    return [
        RejectedEvent(reason, data, why=_WHY.get(details, ""))
        for reason, data, details in request.refused
    ]


def _note_stamps(request: V1Request, stamped: StampedEvents) -> None:
    """Add to the results which events were rejected when they were stamped, and what was replaced
    in others.
    """
    results = request.results
    kept = request.kept
    for rejected in stamped.rejected:
        results.drop(kept[rejected.at], AT_RECEIPT[rejected.reason].detail)
    for at, new_uuid, new_timestamp in stamped.replaced:
        if new_uuid:
            results.replaced(kept[at], new_uuid.decode())
        if new_timestamp:
            results.warn(kept[at], TIMESTAMP_REPLACED)
