"""Reads a batch of records: its events by lane, in the order of the records, and the dead letters
of what is invalid.

Ways, fastest first: all records at once, where each is complete and of one project key
(`plain_records.py`); each plain record by itself; and a record of any form as a request's body is
read: encodings, shapes, tokens, stamps. Such a record is a batch, an array or an event; its events
may have project keys of their own, and each that has none, or an invalid one, is rejected alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec import Raw

from forwarder.core.error_text import error_text
from forwarder.core.errors import (
    ForwarderError,
    InvalidRequest,
    InvalidToken,
    RequestTooLarge,
    TogetherTooLarge,
)
from forwarder.core.event import EVENT_OVERHEAD, NO_IDS, Lane, split_events
from forwarder.core.ports import DeadLetter, Incoming, Reason
from forwarder.core.record_intake import RecordBatch, RecordFacts
from forwarder.core.stamps import derived_uuid
from forwarder.intake.content import Content, chunks_of
from forwarder.intake.lane_registry import LaneRegistry
from forwarder.intake.requests import ReadingRules
from forwarder.stamping.plain_records import (
    Head,
    all_plain,
    common_key,
    completed,
    completed_all,
    id_of,
    plain_or_none,
    time_of,
    uuid_of,
)
from forwarder.stamping.stamp import RejectedEvent, StampedEvents, order_keys, stamp
from forwarder.stamping.stamp_event import AT_RECEIPT, StampContext
from forwarder.wire.effort import UNBOUNDED, Effort, TooMuchWork, check_effort
from forwarder.wire.encodings import decode_body
from forwarder.wire.identity import ABSENT, check_token
from forwarder.wire.shapes import Request, check_count, read_request, split_by_token

if TYPE_CHECKING:
    from forwarder.rules.event_rules import FailedEvent

_REASONS: Final[dict[type[ForwarderError], Reason]] = {
    InvalidRequest: Reason.UNDECODABLE,
    InvalidToken: Reason.INVALID_TOKEN,
    RequestTooLarge: Reason.TOO_LARGE,
}


class RecordBatchReader:
    """Reads batches of records."""

    def __init__(
        self,
        lanes: LaneRegistry,
        rules: ReadingRules,
        source: str,
        max_bytes: int,
        *,
        report: Callable[[str], None],
        effort: Effort = UNBOUNDED,
    ) -> None:
        """`max_bytes`: of events; more than an empty lane could hold is not read. `report`: called
        with the position of a record that made reading it fail, while the exception is handled.
        `effort`: what may be done with the records of one batch.
        """
        self._report = report
        self._lanes = lanes
        self._rules = rules
        self._source = source
        self._max_bytes = max_bytes
        self._effort = effort

    def read(self, records: RecordBatch, now: float) -> Content:
        """Read a batch, at the wall-clock time `now`. Raises `TogetherTooLarge`, and `TooMuchWork`
        for one record that takes too much.
        """
        content = Content()
        stamped: Sequence[tuple[Lane, StampedEvents]] = ()
        try:
            if records.values:
                stamped = self._read_values(records, now, content)
        except TooMuchWork:
            if len(records.values) + len(records.rejected) > 1:
                raise TogetherTooLarge(
                    "these records take too much work to be read together"
                ) from None
            raise
        content.chunks = chunks_of(stamped, now, self._source)
        content.dead_letter = partial(self._dead_letter_of_rules, records, stamped, now)
        for refusal in records.rejected:
            rejected = RejectedEvent(refusal.reason, refusal.data, why=refusal.why)
            content.dead_letters += self.dead_letters(
                [(None, rejected)], refusal.facts, refusal.attributes, now
            )
        return content

    def _read_values(
        self, records: RecordBatch, now: float, content: Content
    ) -> Sequence[tuple[Lane, StampedEvents]]:
        """The events by lane; the dead letters of rejected ones go to `content`."""
        values = records.values
        if len(values) == 1 and len(values[0]) > self._effort.text:
            raise TooMuchWork
        joined = b",".join(values)
        max_event = self._rules.max_event
        plain = all_plain(values, joined, max_event, ordered=self._rules.ordered[False])
        if plain is None:
            return self._read_each(records, plain_or_none(values, max_event), now, content)
        # all at once, where each has a distinct_id, and they are of one project key
        heads, ids = plain
        key = common_key(heads, records.api_key) if len(ids) == len(heads) else None
        lane = None if key is None else self._lane_of(key)
        data = None if lane is None else completed_all(records, heads, joined, max_event)
        if lane is None or data is None:
            return self._read_each(records, heads, now, content)
        keys = self._keys(lane, ids, heads)
        return ((lane, StampedEvents(data, len(heads), keys)),)

    def _lane_of(self, api_key: str) -> Lane | None:
        """The live lane of a project key; None if the key is invalid."""
        try:
            return self._lanes.of_record(api_key)
        except InvalidToken:
            return None

    def _keys(self, lane: Lane, ids: list[str], heads: Sequence[Head]) -> frozenset[str]:
        """The ids of these events that order is kept by, if it is."""
        if not self._rules.ordered[lane.historical]:
            return NO_IDS
        return order_keys(ids, [head.properties for head in heads])

    def _read_each(
        self,
        records: RecordBatch,
        heads: Sequence[Head | None],
        now: float,
        content: Content,
    ) -> list[tuple[Lane, StampedEvents]]:
        """The records one by one."""
        gathered: dict[Lane, _Gathered] = {}
        size = 0
        effort = self._effort
        values = records.values
        for index, (value, head) in enumerate(zip(values, heads, strict=True)):
            if head is not None and self._read_plain(records, index, head, gathered):
                size += len(value)
            else:
                unwrapped = self._read_any(records, index, effort)
                size += _gather(unwrapped, index, gathered)
                content.dead_letters += self._dead_letters(records, index, unwrapped.rejected, now)
                content.nulled += unwrapped.nulled
                effort = effort.without(unwrapped.one_by_one)
            if size > self._max_bytes and len(values) > 1:
                raise TogetherTooLarge(
                    "these records hold more events than a lane may have in the buffer"
                )
        stamped = []
        for lane, lane_records in gathered.items():
            keys = self._keys(lane, lane_records.ids, lane_records.heads).union(lane_records.keys)
            joined = b",".join(lane_records.data)
            events = StampedEvents(
                joined, len(lane_records.records), keys, records=lane_records.records
            )
            stamped.append((lane, events))
        return stamped

    def _read_plain(
        self, records: RecordBatch, index: int, head: Head, gathered: dict[Lane, _Gathered]
    ) -> bool:
        """A plain record; False if it has to be read as any other."""
        data: bytes = records.values[index]
        key = head.api_key
        distinct_id = head.distinct_id
        if not (isinstance(distinct_id, str) and head.uuid is not ABSENT and head.timestamp):
            facts = records.facts(index)
            whole = completed(data, head, facts, self._rules.max_event)
            if whole is None:
                return False
            data, distinct_id = whole
        if key is None:
            key = records.api_key or records.facts(index).api_key
        if key is None or (
            head.api_key is None and head.properties.token is not ABSENT and not records.foreign
        ):
            return False
        lane = self._lane_of(key)
        if lane is None:
            return False
        lane_records = gathered.get(lane)
        if lane_records is None:
            lane_records = gathered[lane] = _Gathered()
        lane_records.data.append(data)
        lane_records.records.append(index)
        lane_records.ids.append(distinct_id)
        lane_records.heads.append(head)
        return True

    def _read_any(self, records: RecordBatch, index: int, effort: Effort) -> _RecordContent:
        """A record of any form. Raises `TooMuchWork` beyond `effort`."""
        value = records.values[index]
        facts = records.facts(index)
        try:
            return _unwrap(
                value,
                facts,
                records.api_key or facts.api_key,
                self._rules,
                foreign=records.foreign,
                effort=effort,
            )
        except TooMuchWork:
            raise
        except ForwarderError as error:
            reason = _REASONS.get(type(error), Reason.UNDECODABLE)
            why = error.message
        except Exception as error:
            # a record that makes it fail would make it fail each time, and hold up its partition
            # for ever
            self._report(facts.name)
            reason = Reason.UNDECODABLE
            why = error_text(error)
        return _RecordContent(rejected=[(None, RejectedEvent(reason, value, why=why))])

    def _dead_letters(
        self,
        records: RecordBatch,
        index: int,
        rejected: Sequence[tuple[Lane | None, RejectedEvent]],
        now: float,
    ) -> list[DeadLetter]:
        if not rejected:
            return []
        return self.dead_letters(rejected, records.facts(index), records.attributes(index), now)

    def dead_letters(
        self,
        rejected: Sequence[tuple[Lane | None, RejectedEvent]],
        facts: RecordFacts,
        attributes: str,
        now: float,
    ) -> list[DeadLetter]:
        """The dead letters of all that is rejected of a record: itself, or events of it."""
        return [
            replace(
                self._dead_letter(lane, rejection, facts, attributes, now),
                new_uuid=derived_uuid(f"{facts.identity or facts.name}/rejected/{number}").decode(),
            )
            for number, (lane, rejection) in enumerate(rejected)
        ]

    def _dead_letter_of_rules(
        self,
        records: RecordBatch,
        stamped: Sequence[tuple[Lane, StampedEvents]],
        now: float,
        chunk: int,
        failed: FailedEvent,
    ) -> DeadLetter:
        """The dead letter of an event of these records that rules failed on."""
        lane, events = stamped[chunk]
        index = failed.place if events.records is None else events.records[failed.place]
        rejected = RejectedEvent(Reason.RULE_FAILED, failed.data, why=failed.why)
        return self._dead_letter(
            lane, rejected, records.facts(index), records.attributes(index), now
        )

    def _dead_letter(
        self,
        lane: Lane | None,
        rejected: RejectedEvent,
        facts: RecordFacts,
        attributes: str,
        now: float,
    ) -> DeadLetter:
        """A dead letter, whose time is the record's, if that isn't to come yet."""
        at = time_of(facts)
        moment = now if at is None else min(at, now)
        why = rejected.why or AT_RECEIPT[rejected.reason].why
        return DeadLetter(
            rejected.reason,
            lane,
            rejected.data,
            moment,
            why,
            self._source,
            facts.name,
            attributes=attributes,
            to=rejected.to,
        )


@dataclass(slots=True)
class _Gathered:
    """A lane's events, while they are gathered. `ids` and `heads` are of those whose ordering
    keys aren't among `keys` yet.
    """

    data: list[bytes] = field(default_factory=list)
    records: list[int] = field(default_factory=list)
    """Of each event, the index of its record."""
    ids: list[str] = field(default_factory=list)
    heads: list[Head] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)


def _gather(unwrapped: _RecordContent, record: int, gathered: dict[Lane, _Gathered]) -> int:
    """Put a record's events behind those of the records before it; what it counts for, in bytes."""
    size = sum([len(rejection.data) + EVENT_OVERHEAD for _, rejection in unwrapped.rejected])
    for lane, stamped in unwrapped.stamped:
        size += len(stamped.data)
        lane_records = gathered.setdefault(lane, _Gathered())
        lane_records.data.append(stamped.data)
        lane_records.records += [record] * stamped.count
        lane_records.keys |= stamped.ids
    return size


@dataclass(slots=True)
class _RecordContent:
    """What is in one record."""

    stamped: list[tuple[Lane, StampedEvents]] = field(default_factory=list)
    rejected: list[tuple[Lane | None, RejectedEvent]] = field(default_factory=list)
    nulled: int = 0
    """NaN and Infinity that became null."""

    @property
    def one_by_one(self) -> int:
        """Events that were stamped one by one."""
        return sum(
            [stamped.count for _, stamped in self.stamped if stamped.one_by_one], len(self.rejected)
        )


def _unwrap(
    value: bytes,
    facts: RecordFacts,
    default: str | None,
    rules: ReadingRules,
    *,
    foreign: bool = False,
    effort: Effort = UNBOUNDED,
) -> _RecordContent:
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
    content = _RecordContent(nulled=request.nulled)
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
    request: Request, default: str | None, content: _RecordContent, unusable: str
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
    return uuid_of(facts, index if places is None else places[index])


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
    """As at a request's context, at the record's own time."""
    now = time_of(facts)
    skew = 0.0 if request.sent_at is None or now is None else request.sent_at - now
    return StampContext(
        now or 0.0,
        timeless=now is None,
        has_sent_at=request.sent_at is not None,
        skew=skew if abs(skew) >= rules.clock_skew_tolerance else 0.0,
        ordered=rules.ordered[lane.historical],
        max_event=rules.max_event,
        max_events=rules.max_events,
        distinct_id=id_of(facts),
        effort=effort.events,
    )
