"""Reads requests: from the bytes of a body to its stamped events by lane, and the rejected ones.
Runs on the loop, and in the decoder process.

A form is how one kind of request is read: the usual one here, `V1Form`, and OTLP's (`otlp.py`).
The last two name their project in the head, and their answers say what became of the events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

import msgspec
from msgspec import Raw

from forwarder.core.errors import ForwarderError, InvalidRequest
from forwarder.core.event import Chunk, Lane
from forwarder.core.ports import (
    DeadLetter,
    EventResults,
    Incoming,
    Reason,
    ReplayedDeadLetter,
    V1Head,
)
from forwarder.core.stamps import is_uuid, new_uuid7
from forwarder.intake.content import Content
from forwarder.intake.lane_registry import LaneRegistry
from forwarder.stamping.stamp import RejectedEvent, StampedEvents, stamp, stamp_together
from forwarder.stamping.stamp_event import AT_RECEIPT, ReadingRules, StampContext
from forwarder.wire.effort import Effort, TooMuchWork, check_effort, decoded_within
from forwarder.wire.encodings import decode_body
from forwarder.wire.shapes import (
    MALFORMED,
    Request,
    check_count,
    is_utf8,
    read_outline,
    read_request,
    split_by_token,
)
from forwarder.wire.timestamps import SenderClock, read_sender_clock
from forwarder.wire.v1 import V1Request, bearer_token, decode_v1_body, read_v1
from forwarder.wire.v1_event import INVALID_OPTIONS, INVALID_SESSION, MALFORMED_PROPERTIES
from forwarder.wire.v1_results import TIMESTAMP_REPLACED

OUTLINED_TEXT: Final = 2048
"""Bytes of a text from which on a batch is outlined first: for less it would not pay."""

_WHY: Final = {
    MALFORMED_PROPERTIES: "its properties are no object",
    INVALID_SESSION: "its session_id or window_id is no string",
    INVALID_OPTIONS: "its options, which may say that no person is to be made of it, can't be read",
}
"""What the dead letter of an event says that does not follow the protocol, if it is more than its
reason.
"""


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

    @property
    def max_events(self) -> int:
        """Events that a request may have."""
        return self._rules.max_events

    def read(self, request: Request, incoming: Incoming, now: float, effort: Effort) -> Content:
        """Stamp the request. Raises what lanes and quotas raise, `InvalidRequest`,
        `RequestTooLarge`; `TooMuchWork` beyond `effort`.
        """
        v1 = request if isinstance(request, V1Request) else None
        if request.token is None:
            check_count(request.events, self._rules.max_events)
            check_effort(request.events, effort.events)
        parts, rejected = _parts(request)
        self._lanes.check({lane for lane, _ in (*parts, *rejected)})
        accepted: list[tuple[Lane, StampedEvents]] = []
        for lane, events in parts:
            if self._check_room is not None:
                self._check_room(lane, len(memoryview(events)))
            stamped = stamp(events, self._context(request, lane, incoming, now, effort))
            if v1 is not None:
                _note_stamps(v1, stamped)
            rejected += [(lane, rejection) for rejection in stamped.rejected]
            if stamped.count:
                accepted.append((lane, stamped))
        content = Content(
            _chunks(accepted, now, incoming.source),
            names=[lane_events.names for _, lane_events in accepted],
            rejected=rejected,
            nulled=request.nulled,
            results=None if v1 is None else v1.results,
        )
        if isinstance(request, MappedRequest):
            content.filtered = request.filtered  # it may be all there is
        elif not accepted and not rejected:
            raise InvalidRequest("there are no events in the request")
        return content

    def read_together(
        self, request: Request, incoming: Incoming, now: float, effort: Effort
    ) -> Content | None:
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
            self._context(request, lane, incoming, now, effort),
            check_nesting=True,
        )
        if stamped is None or not stamped.count:
            return None
        return Content(_chunks([(lane, stamped)], now, incoming.source), names=(stamped.names,))

    def _context(
        self, request: Request, lane: Lane, incoming: Incoming, now: float, effort: Effort
    ) -> StampContext:
        replayed = incoming.replayed
        if replayed is not None and replayed.at is not None:
            now = replayed.at  # a replayed dead letter is not received anew
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
            uuid_of=None if replayed is None else _uuid_of(replayed),
        )


class RequestForm(Protocol):
    """How one kind of request is read."""

    def decode(self, incoming: Incoming, limit: int, effort: Effort) -> bytes:
        """The body's text. Raises `InvalidRequest`, `UnsupportedMedia`, `RequestTooLarge` over
        `limit` bytes, and `TooMuchWork` if decoding it could take more than `effort`.
        """

    def read(
        self, reader: RequestReader, text: bytes, incoming: Incoming, now: float, effort: Effort
    ) -> Content:
        """The stamped events. Raises as `RequestReader.read`."""

    def results(self, content: Content) -> EventResults | None:
        """What is answered if the content is accepted; None: the usual answer."""


class KeyedForm(RequestForm, Protocol):
    """A form whose head names the project."""

    def key(self) -> str:
        """The project key. Raises `InvalidToken`."""


class UsualForm:
    """Batches, single events and arrays, in every encoding."""

    decode = staticmethod(decode_body)

    def read(
        self, reader: RequestReader, text: bytes, incoming: Incoming, now: float, effort: Effort
    ) -> Content:
        if len(text) > OUTLINED_TEXT and incoming.replayed is None and text.startswith(b"{"):
            content = _read_outlined(reader, text, incoming, now, effort)
            if content is not None:
                return content
        request = read_request(text, reader.max_events, effort=effort)
        return reader.read(request, incoming, now, effort)

    def results(self, content: Content) -> None:
        """None: the usual answer is the same whatever is in the content."""


USUAL: Final = UsualForm()


class V1Form:
    """A request as in docs/reference/v1.md."""

    def __init__(self, head: V1Head) -> None:
        self._head = head

    def key(self) -> str:
        return bearer_token(self._head.authorization)

    def decode(self, incoming: Incoming, limit: int, effort: Effort) -> bytes:
        return decode_keyed(decode_v1_body, incoming, limit, effort)

    def read(
        self, reader: RequestReader, text: bytes, incoming: Incoming, now: float, effort: Effort
    ) -> Content:
        request = read_v1(text, self._head, reader.max_events, effort)
        return reader.read(request, incoming, now, effort)

    def results(self, content: Content) -> EventResults | None:
        """Those of each event."""
        return content.results


def decode_keyed(
    decode: Callable[[Incoming, int], bytes], incoming: Incoming, limit: int, effort: Effort
) -> bytes:
    """Decode the body of a `KeyedForm`, as `RequestForm.decode` says."""
    size = len(incoming.body)
    if size > effort.encoded and (incoming.content_encoding or size > effort.text):
        raise TooMuchWork
    return decoded_within(partial(decode, incoming), limit, effort)


def _read_outlined(
    reader: RequestReader, text: bytes, incoming: Incoming, now: float, effort: Effort
) -> Content | None:
    """What is in a batch in its usual form, without a pass that only finds its events; None: all
    else, which is read the whole way.
    """
    try:
        request = read_outline(text) if text.isascii() or is_utf8(text) else None
        return None if request is None else reader.read_together(request, incoming, now, effort)
    except (ForwarderError, *MALFORMED):  # the whole way says what is wrong
        return None


def dead_letter_at_receipt(
    lane: Lane, rejected: RejectedEvent, source: str, now: float
) -> DeadLetter:
    """The dead letter of an event that was rejected at receipt."""
    return DeadLetter(
        rejected.reason,
        lane,
        rejected.data,
        now,
        rejected.why or AT_RECEIPT[rejected.reason].why,
        source,
        to=rejected.to,
        new_uuid=new_uuid7(now).decode(),
    )


def _uuid_of(replayed: ReplayedDeadLetter) -> Callable[[int], bytes] | None:
    """What gives a replayed event its uuid, if its dead letter knows one."""
    uuid = replayed.uuid.encode()
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
        rejected += [(parts[0][0], invalid) for invalid in _invalid_events(request)]
    elif isinstance(request, MappedRequest):
        rejected += [(parts[0][0], rejection) for rejection in request.rejected]
    for masked, original in request.garbled:
        token = request.token or next(iter(split_by_token(b"[%b]" % masked)))
        rejected.append(
            (Lane(token, request.historical), RejectedEvent(Reason.LONE_SURROGATE, original))
        )
    return parts, rejected


def _chunks(stamped: Iterable[tuple[Lane, StampedEvents]], at: float, source: str) -> list[Chunk]:
    """The chunks of events that were read at `at`."""
    return [
        Chunk(lane, events.data, events.count, events.ids, at, source) for lane, events in stamped
    ]


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
    indexes = request.indexes
    for rejected in stamped.rejected:
        results.drop(indexes[rejected.at], AT_RECEIPT[rejected.reason].detail)
    for at, new_uuid, new_timestamp in stamped.replaced:
        if new_uuid:
            results.replaced(indexes[at], new_uuid.decode())
        if new_timestamp:
            results.warn(indexes[at], TIMESTAMP_REPLACED)
