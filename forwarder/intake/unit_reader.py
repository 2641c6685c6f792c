"""What there is in a unit of records: its events by lane, in the order of the records, and the dead letters of what is no good.

Ways, fastest first: all records at once, where each is complete and of one project key (`complete.py`, or by `plain.py` where ids are to
be known); each plain record by itself (`mending.py`); and whatever else there is (`awkward.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from forwarder.core.errors import ForwarderError, InvalidRequest, InvalidToken, RequestTooLarge, TogetherTooLarge
from forwarder.core.event import EVENT_OVERHEAD, NO_IDS, Lane
from forwarder.core.ports import DeadLetter, Ordering, Reason
from forwarder.core.records import RecordFacts, Records
from forwarder.intake.admission import WHY
from forwarder.intake.awkward import RecordRules, Unwrapped, unwrap
from forwarder.intake.complete import key_of_complete
from forwarder.intake.lanes import LaneRegistry
from forwarder.intake.mending import mended, time_of
from forwarder.intake.plain import PlainHead, PlainProperties, all_plain, common_key, complete_ids, plain_or_none
from forwarder.intake.stamping import Rejected, Stamped, order_keys
from forwarder.wire.effort import Effort, TooMuchWork
from forwarder.wire.identity import ABSENT

_REASONS: Final[dict[type[ForwarderError], Reason]] = {
    InvalidRequest: Reason.UNDECODABLE,
    InvalidToken: Reason.INVALID_TOKEN,
    RequestTooLarge: Reason.TOO_LARGE,
}

@dataclass(slots=True)
class UnitContent:
    """What is to be taken of a unit."""

    events: list[tuple[Lane, Stamped]] = field(default_factory=list)
    """By lane; those of a large record are in several pieces."""
    letters: list[DeadLetter] = field(default_factory=list)
    nulled: int = 0
    whole: bool = False
    """Whether its letter is the record as it was read: it can't be made smaller."""


class UnitReader:
    """Reads units. `max_bytes`: of events; more than an empty lane could hold needn't be worked on."""

    def __init__(
        self, lanes: LaneRegistry, rules: RecordRules, source: str, max_bytes: int, report: Callable[[str], None]
    ) -> None:
        """`report`: called with the place of a record that made reading it fail, while the exception is handled."""
        self._report = report
        self._lanes = lanes
        self._rules = rules
        self._source = source
        self._max_bytes = max_bytes
        self._live_is_ordered = rules.ordering_of(Lane("")) is Ordering.PER_DISTINCT_ID

    def read(self, records: Records, now: float) -> UnitContent:
        """Read a unit, at the wall-clock time `now`. Raises `TogetherTooLarge`, and `TooMuchWork` for one record that takes too much."""
        content = UnitContent()
        values = records.values
        if values:
            if len(values) == 1 and len(values[0]) > self._rules.effort.text:
                raise TooMuchWork
            try:
                self._read_values(records, values, now, content)
            except TooMuchWork:
                if len(values) + len(records.refused) > 1:
                    raise TogetherTooLarge("these records take too much work to be read together") from None
                raise
        for refused in records.refused:
            rejected = Rejected(refused.reason, refused.data, why=refused.why)
            content.letters.append(self.letter(None, rejected, refused.facts, refused.attributes, now))
        return content

    def _read_values(self, records: Records, values: Sequence[bytes], now: float, content: UnitContent) -> None:
        joined, max_event = b",".join(values), self._rules.max_event
        if not self._live_is_ordered:
            key = key_of_complete(values, joined, records.api_key, max_event)
            lane = None if key is None else self._lane_of(key)
            if lane is not None:
                content.events.append((lane, Stamped(joined, len(values), NO_IDS)))
                return
        heads = all_plain(values, joined, max_event)
        if heads is None or not self._read_complete(heads, joined, records.api_key, content):
            self._read_each(records, heads or plain_or_none(values, max_event), now, content)

    def _lane_of(self, api_key: str) -> Lane | None:
        """The live lane of a project key; None if it can't be one."""
        try:
            return self._lanes.of_record(api_key)
        except InvalidToken:
            return None

    def _read_complete(self, heads: list[PlainHead], joined: bytes, api_key: str | None, content: UnitContent) -> bool:
        """All records together, if there is nothing to be done with any; `joined`: by commas."""
        ids, key = complete_ids(heads), common_key(heads, api_key)
        lane = None if ids is None or key is None else self._lane_of(key)
        if ids is None or lane is None:
            return False
        content.events.append((lane, Stamped(joined, len(heads), self._keys(lane, ids, [head.properties for head in heads]))))
        return True

    def _keys(self, lane: Lane, ids: list[str], properties: list[PlainProperties]) -> frozenset[str]:
        return order_keys(ids, properties) if self._rules.ordering_of(lane) is Ordering.PER_DISTINCT_ID else NO_IDS

    def _read_each(self, records: Records, heads: Sequence[PlainHead | None], now: float, content: UnitContent) -> None:
        """The records one by one."""
        gathered: dict[Lane, _Gathered] = {}
        size = 0
        effort = self._rules.effort
        values = records.values
        for index, (value, head) in enumerate(zip(values, heads, strict=True)):
            if head is not None and self._read_plain(records, index, head, gathered):
                size += len(value)
            else:
                unwrapped = self._read_awkward(records, index, effort)
                size += _gather(unwrapped, gathered)
                content.letters += self._letters(records, index, unwrapped.rejected, now)
                content.nulled += unwrapped.nulled
                effort = effort.without(unwrapped.one_by_one)
            if size > self._max_bytes and len(values) > 1:
                raise TogetherTooLarge("these records hold more events than a lane may have in the buffer")
        for lane, found in gathered.items():
            keys = self._keys(lane, found.ids, found.properties).union(found.keys)
            content.events.append((lane, Stamped(b",".join(found.data), found.count, keys)))

    def _read_plain(self, records: Records, index: int, head: PlainHead, gathered: dict[Lane, _Gathered]) -> bool:
        """A plain record; False if it has to be looked at more closely."""
        data: bytes = records.values[index]
        key, distinct_id = head.api_key, head.distinct_id
        if not (isinstance(distinct_id, str) and isinstance(head.uuid, str) and head.timestamp):
            facts = records.facts(index)
            whole = mended(data, head, facts, self._rules.max_event)
            if whole is None:
                return False
            data, distinct_id = whole
            key = key or records.api_key or facts.api_key
        elif key is None:
            key = records.api_key or records.facts(index).api_key
        if key is None or (head.api_key is None and head.properties.token is not ABSENT and not records.foreign):
            return False
        lane = self._lane_of(key)
        if lane is None:
            return False
        found = gathered.get(lane)
        if found is None:
            found = gathered[lane] = _Gathered()
        found.data.append(data)
        found.count += 1
        found.ids.append(distinct_id)
        found.properties.append(head.properties)
        return True

    def _read_awkward(self, records: Records, index: int, effort: Effort) -> Unwrapped:
        """A record of any form. Raises `TooMuchWork` beyond `effort`."""
        value, facts = records.values[index], records.facts(index)
        try:
            return unwrap(value, facts, records.api_key or facts.api_key, self._rules, foreign=records.foreign, effort=effort)
        except TooMuchWork:
            raise
        except ForwarderError as error:
            reason, why = _REASONS.get(type(error), Reason.UNDECODABLE), error.message
        except Exception as error:  # a record that makes it fail would make it fail each time, and hold up its partition for ever
            self._report(facts.name)
            reason, why = Reason.UNDECODABLE, f"unforeseen: {type(error).__name__}"
        return Unwrapped(rejected=[(None, Rejected(reason, value, why=why))])

    def _letters(self, records: Records, index: int, rejected: Sequence[tuple[Lane | None, Rejected]], now: float) -> list[DeadLetter]:
        """The dead letters of a record's rejected events."""
        if not rejected:
            return []
        facts, attributes = records.facts(index), records.attributes(index)
        return [self.letter(known, each, facts, attributes, now) for known, each in rejected]

    def letter(self, lane: Lane | None, rejected: Rejected, facts: RecordFacts, attributes: str, now: float) -> DeadLetter:
        """The dead letter of a record, or of an event of it. Its time is the record's, if that isn't to come yet."""
        at = time_of(facts)
        moment = now if at is None else min(at, now)
        why = rejected.why or WHY[rejected.reason]
        return DeadLetter(rejected.reason, lane, rejected.data, moment, why, self._source, facts.name, attributes=attributes)


@dataclass(slots=True)
class _Gathered:
    """A lane's events, while they are gathered. `ids` and `properties` are of those whose ordering keys aren't among `keys` yet."""

    data: list[bytes] = field(default_factory=list)
    count: int = 0
    ids: list[str] = field(default_factory=list)
    properties: list[PlainProperties] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)


def _gather(unwrapped: Unwrapped, gathered: dict[Lane, _Gathered]) -> int:
    """Put a record's events behind those of the records before it; what it counts for, in bytes."""
    size = sum([len(each.data) + EVENT_OVERHEAD for _, each in unwrapped.rejected])
    for lane, stamped in unwrapped.stamped:
        size += len(stamped.data)
        found = gathered.setdefault(lane, _Gathered())
        found.data.append(stamped.data)
        found.count += stamped.count
        found.keys |= stamped.ids
    return size
