"""Reads one record of any form, as a request's body is read: encodings, shapes, tokens, stamps.

Such a record is a batch, an array or an event. Its events may have project keys of their own, and
each that has none, or an invalid one, is rejected alone. Plain records need none of this:
`intake/record_reader.py` reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from msgspec import Raw

from forwarder.core.errors import ForwarderError, InvalidRequest, InvalidToken
from forwarder.core.event import Lane, split_events
from forwarder.core.ports import Incoming, Reason
from forwarder.core.record_intake import RecordFacts
from forwarder.stamping.stamp import RejectedEvent, StampedEvents, stamp
from forwarder.stamping.stamp_event import ReadingRules, StampContext
from forwarder.wire.effort import UNBOUNDED, Effort, check_effort
from forwarder.wire.encodings import decode_body
from forwarder.wire.identity import check_token
from forwarder.wire.shapes import Request, check_count, read_request, split_by_token


@dataclass(slots=True)
class RecordEvents:
    """What was read of one record."""

    stamped: list[tuple[Lane, StampedEvents]] = field(default_factory=list)
    """Its valid events, by lane."""
    rejected: list[tuple[Lane | None, RejectedEvent]] = field(default_factory=list)
    """Each with its lane, if that is known."""
    nulled: int = 0
    """NaN and Infinity that became null."""

    @property
    def one_by_one(self) -> int:
        """Events that were stamped one by one."""
        return sum(
            [stamped.count for _, stamped in self.stamped if stamped.one_by_one], len(self.rejected)
        )


def read_record(
    value: bytes,
    facts: RecordFacts,
    default: str | None,
    rules: ReadingRules,
    *,
    foreign: bool = False,
    effort: Effort = UNBOUNDED,
) -> RecordEvents:
    """Read a record; `default`: the project key of events that name none. `foreign`: see
    `core.record_intake.RecordBatch`.

    Raises `InvalidRequest` where it can't be read, `InvalidToken` where the one key of all its
    events can't be one, `RequestTooLarge` over a limit, and `TooMuchWork` beyond `effort`.
    """
    text = decode_body(Incoming(value), rules.max_body, effort)
    request = read_request(text, rules.max_events, foreign=foreign, effort=effort)
    check_count(request.events, rules.max_events)
    if request.token is None:
        check_effort(request.events, effort.events)
    content = RecordEvents(nulled=request.nulled)
    default, unusable = _checked(default)
    for token, events, places in _events_by_key(request, default, content, unusable):
        lane = Lane(token, request.historical)
        context = _context(request, facts, lane, rules, effort)
        context.uuid_of = partial(_uuid_at, facts, places)
        stamped = stamp(events, context)
        content.rejected += [(lane, rejection) for rejection in stamped.rejected]
        if stamped.count:
            content.stamped.append((lane, stamped))
    for masked, original in request.garbled:
        content.rejected.append(
            (_lane_of(masked, request, default), RejectedEvent(Reason.LONE_SURROGATE, original))
        )
    if not content.stamped and not content.rejected:
        raise InvalidRequest("there are no events in it")
    return content


def _checked(default: str | None) -> tuple[str | None, str]:
    """The project key of events that name none, if it can be one; else why not."""
    try:
        return check_token(default) if default else None, ""
    except InvalidToken as error:
        return None, f"; the one that their source names can't be used: {error.message}"


def _events_by_key(
    request: Request, default: str | None, content: RecordEvents, unusable: str
) -> list[tuple[str, bytes | Raw, list[int] | None]]:
    """The events as an array for each project key, with their places in the record; None: as they
    stand.
    """
    if request.token is not None:
        return [(request.token, request.events, None)]
    try:
        parts = split_by_token(request.events, default, foreign=request.foreign)
    except (InvalidToken, InvalidRequest):
        parts = {}
    if len(parts) == 1:
        return [(token, events, None) for token, events in parts.items()]
    groups: dict[str, tuple[list[bytes], list[int]]] = {}
    for place, raw in enumerate(split_events(request.events)):
        event = bytes(raw)
        try:
            (token,) = split_by_token(b"[%b]" % event, default, foreign=request.foreign)
        except ForwarderError as error:
            no_key = isinstance(error, InvalidToken)
            reason, why = (
                (Reason.INVALID_TOKEN, error.message + unusable)
                if no_key
                else (Reason.INVALID_EVENT, error.message)
            )
            content.rejected.append((None, RejectedEvent(reason, event, place, why)))
            continue
        events, places = groups.setdefault(token, ([], []))
        events.append(event)
        places.append(place)
    return [
        (token, b"[%b]" % b",".join(events), places) for token, (events, places) in groups.items()
    ]


def _uuid_at(facts: RecordFacts, places: Sequence[int] | None, index: int) -> bytes:
    return facts.uuid(index if places is None else places[index])


def _lane_of(event: bytes, request: Request, default: str | None) -> Lane | None:
    try:
        token = request.token or next(
            iter(split_by_token(b"[%b]" % event, default, foreign=request.foreign))
        )
    except (InvalidToken, InvalidRequest):
        return None
    return Lane(token, request.historical)


def _context(
    request: Request, facts: RecordFacts, lane: Lane, rules: ReadingRules, effort: Effort
) -> StampContext:
    """As for a request, but at the record's own time."""
    now = facts.time
    skew = 0.0 if request.sent_at is None or now is None else request.sent_at - now
    return StampContext(
        now or 0.0,
        timeless=now is None,
        has_sent_at=request.sent_at is not None,
        skew=skew if abs(skew) >= rules.clock_skew_tolerance else 0.0,
        ordered=rules.ordered[lane.historical],
        max_event=rules.max_event,
        max_events=rules.max_events,
        distinct_id=facts.usable_id,
        effort=effort.events,
    )
