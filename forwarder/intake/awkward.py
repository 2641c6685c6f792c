"""A record of any form, read as a request's body is: encodings, shapes, tokens, stamps. What of it is no good becomes `Rejected`.

A record is a batch, an array or an event; its events may have project keys of their own, and each that has none, or one that can't be one,
is refused alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from msgspec import Raw

from forwarder.core.errors import ForwarderError, InvalidRequest, InvalidToken, RequestTooLarge
from forwarder.core.event import Lane, split_events
from forwarder.core.ports import Incoming, Ordering, Reason
from forwarder.core.records import RecordFacts
from forwarder.intake.loose import Receipt
from forwarder.intake.mending import id_of, time_of, uuid_of
from forwarder.intake.stamping import Rejected, Stamped, stamp
from forwarder.wire.effort import UNBOUNDED, Effort, TooMuchWork, check_effort
from forwarder.wire.encodings import decode_body
from forwarder.wire.shapes import Request, check_count, read_request, split_by_token
from forwarder.wire.token import check_token


@dataclass(frozen=True, slots=True)
class RecordRules:
    """What holds for all records. Limits in bytes and events; `clock_skew_tolerance` in seconds."""

    max_body: int
    max_event: int
    max_events: int
    clock_skew_tolerance: float
    ordering_of: Callable[[Lane], Ordering]
    effort: Effort = UNBOUNDED
    """What may be done with the records of one unit; the first one's `TooMuchWork` ends the reading."""


@dataclass(slots=True)
class Unwrapped:
    """What there is in a record."""

    stamped: list[tuple[Lane, Stamped]] = field(default_factory=list)
    rejected: list[tuple[Lane | None, Rejected]] = field(default_factory=list)
    nulled: int = 0
    """NaN and Infinity that became null."""

    @property
    def one_by_one(self) -> int:
        """Events that were stamped one by one."""
        return sum([stamped.count for _, stamped in self.stamped if stamped.one_by_one], len(self.rejected))


def unwrap(
    value: bytes, facts: RecordFacts, default: str | None, rules: RecordRules, *, foreign: bool = False, effort: Effort = UNBOUNDED
) -> Unwrapped:
    """Read a record; `default`: the project key of events that name none. `foreign`: see `core.records.Records`.

    Raises `InvalidRequest` where it can't be read, `InvalidToken` where the one key of all its events can't be one, `RequestTooLarge`
    over a limit, and `TooMuchWork` beyond `effort`.
    """
    request = read_request(_text(value, rules, effort), rules.max_events, foreign=foreign, effort=effort)
    check_count(request.events, rules.max_events)
    if request.token is None:
        check_effort(request.events, effort.events)
    found = Unwrapped(nulled=request.nulled)
    default, unusable = _checked(default)
    for token, events, places in _parts(request, default, found, unusable):
        lane = Lane(token, request.historical)
        receipt = _receipt(request, facts, lane, rules, effort)
        receipt.uuid_of = partial(_uuid_at, facts, places)
        stamped = stamp(events, receipt)
        found.rejected += [(lane, each) for each in stamped.rejected]
        if stamped.count:
            found.stamped.append((lane, stamped))
    for masked, original in request.garbled:
        found.rejected.append((_lane_of(masked, request, default), Rejected(Reason.LONE_SURROGATE, original)))
    if not found.stamped and not found.rejected:
        raise InvalidRequest("there are no events in it")
    return found


def _text(value: bytes, rules: RecordRules, effort: Effort) -> bytes:
    """The record's text."""
    if len(value) > effort.encoded and (len(value) > effort.text or not value.startswith((b"{", b"["))):
        raise TooMuchWork
    try:
        return decode_body(Incoming(value), min(rules.max_body, effort.text))
    except RequestTooLarge:
        if effort.text < rules.max_body:
            raise TooMuchWork from None
        raise


def _checked(default: str | None) -> tuple[str | None, str]:
    """The project key of events that name none, if it can be one; else why not."""
    try:
        return check_token(default) if default else None, ""
    except InvalidToken as error:
        return None, f"; the one that their source names can't be used: {error.message}"


def _parts(
    request: Request, default: str | None, found: Unwrapped, unusable: str
) -> list[tuple[str, bytes | Raw, list[int] | None]]:
    """The events as an array for each project key, with their places in the record; None: as they stand."""
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
            reason, why = (Reason.INVALID_TOKEN, error.message + unusable) if no_key else (Reason.INVALID_EVENT, error.message)
            found.rejected.append((None, Rejected(reason, event, place, why)))
            continue
        events, places = groups.setdefault(token, ([], []))
        events.append(event)
        places.append(place)
    return [(token, b"[%b]" % b",".join(events), places) for token, (events, places) in groups.items()]


def _uuid_at(facts: RecordFacts, places: Sequence[int] | None, index: int) -> bytes:
    return uuid_of(facts, index if places is None else places[index])


def _lane_of(event: bytes, request: Request, default: str | None) -> Lane | None:
    try:
        token = request.token or next(iter(split_by_token(b"[%b]" % event, default, foreign=request.foreign)))
    except (InvalidToken, InvalidRequest):
        return None
    return Lane(token, request.historical)


def _receipt(request: Request, facts: RecordFacts, lane: Lane, rules: RecordRules, effort: Effort) -> Receipt:
    """As at a request's receipt, at the record's own time."""
    now = time_of(facts)
    skew = 0.0 if request.sent_at is None or now is None else request.sent_at - now
    return Receipt(
        now or 0.0,
        timeless=now is None,
        has_sent_at=request.sent_at is not None,
        skew=skew if abs(skew) >= rules.clock_skew_tolerance else 0.0,
        ordered=rules.ordering_of(lane) is Ordering.PER_DISTINCT_ID,
        max_event=rules.max_event,
        max_events=rules.max_events,
        distinct_id=id_of(facts),
        effort=effort.events,
    )
