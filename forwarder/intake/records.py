"""Takes units of records into the pipeline, lets go of them, and buries what a halted lane holds of them.

Invariants: a unit is taken whole, or nothing of it is taken and counted; books, buffer and dead letters change in the same callback. What
is refused of a record uses the dead letters' whole room and is never dropped for want of it, and neither is an event because the buffer is
full: its source waits. `when_full: drop_oldest` may push events out later, for a newer request; those are counted, and count as settled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple, Protocol

import structlog

from forwarder.core.ack import Ack, AckLevel, Waiter
from forwarder.core.errors import Backpressure, DeadLettersFull, Draining, LaneFull, RequestTooLarge, TogetherTooLarge
from forwarder.core.event import Chunk, Lane
from forwarder.core.ports import DeadLetter, DropReason, Fate, Reason, letters_of
from forwarder.core.records import Records, Taken
from forwarder.intake.awkward import RecordRules
from forwarder.intake.intake import Intake
from forwarder.intake.stamping import Rejected
from forwarder.intake.unit_reader import UnitContent, UnitReader
from forwarder.intake.units import Unit, WhenLettersAre
from forwarder.telemetry.labels import UNDECODABLE, lane_label

_log = structlog.get_logger()


class Delivery(Protocol):
    """What delivery has of a unit."""

    def withdraw(self, acks: Collection[Ack], lane: Lane | None = None) -> list[Chunk]:
        """Take back the chunks with these acks that wait to be sent again."""


class Halts(Protocol):
    """The halted lanes."""

    def since(self) -> Mapping[Lane, float]:
        """When each lane was halted, wall-clock seconds."""


class RecordsIntake:
    """See `core.records.RecordIntake`. It stands beside an `Intake`, whose buffer, books and limits it shares."""

    def __init__(self, intake: Intake, delivery: Delivery, halts: Halts, *, source: str = "kafka") -> None:
        self._intake = intake
        self._delivery = delivery
        self._halts = halts
        self._source = source
        admission, policy = intake.admission, intake.policy
        self._admission = admission
        self._buffer = admission.buffer
        self._letters = admission.dead_letters
        self._books = admission.books
        self._now = intake.clock.now
        rules = RecordRules(
            policy.max_body, policy.max_event, admission.quotas.max_events, policy.clock_skew_tolerance, intake.ordering_of
        )
        self._reader = UnitReader(admission.lanes, rules, source, admission.quotas.max_lane_bytes)

    def take(self, records: Records, waiter: Waiter, level: AckLevel, given_up: Collection[Lane] = ()) -> Taken | None:
        """See `core.records.RecordIntake.take`."""
        if self._intake.draining:
            raise Draining("shutting down", retry_after=2.0)
        now = self._now()
        content = self._reader.read(records, now)
        try:
            return self._put(content, waiter, level, now, given_up)
        except RequestTooLarge as error:
            if len(records.values) + len(records.refused) > 1:
                raise TogetherTooLarge(error.message) from None
            return self._put(self._too_large(records, content, error.message, now), waiter, level, now, ())

    def _too_large(self, records: Records, content: UnitContent, why: str, now: float) -> UnitContent:
        """The only record there is can't be taken: it becomes one dead letter, as it was read."""
        lane = next(iter(content.events)) if len(content.events) == 1 else None
        rejected = Rejected(Reason.TOO_LARGE, records.values[0], why=why)
        letter = self._reader.letter(lane, rejected, records.facts(0), records.attributes(0), now)
        return UnitContent(letters=[letter])

    def _put(self, content: UnitContent, waiter: Waiter, level: AckLevel, now: float, given_up: Collection[Lane]) -> Unit | None:
        """What was read of a unit into buffer, dead letters and books. Raises a `Backpressure`, or `RequestTooLarge` if it never fits."""
        chunks = [Chunk(lane, events.data, events.count, events.ids, now, self._source) for lane, events in content.events.items()]
        try:
            self._check(chunks)
        except LaneFull:
            chunks = self._give_up(chunks, content, given_up, now)
        unit = Unit(now, {chunk.lane: (len(chunk.data), chunk.count) for chunk in chunks}, waiter, self._letters)
        entry = _Entry(chunks, content, self._reserve(content.letters))
        try:
            waits = self._offer(unit, entry, level)
        except BaseException:
            unit.ack = None  # they refer to each other, and would wait for the garbage collector
            self._letters.release(entry.reserved)
            raise
        if waits:
            return unit
        return None if self._letters.when_durable(WhenLettersAre(unit)) else unit

    def _give_up(self, chunks: Sequence[Chunk], content: UnitContent, given_up: Collection[Lane], now: float) -> list[Chunk]:
        """The chunks but for those of halted lanes that were given up, which become letters. Raises if there is no room for the rest."""
        halted = self._halts.since()
        left = [chunk for chunk in chunks if chunk.lane not in given_up or chunk.lane not in halted]
        why = "its project key was halted for too long, and the buffer has no room for its events"
        for chunk in chunks:
            if chunk not in left:
                content.letters += letters_of(chunk, Reason.LANE_HALTED, why, now)
        self._check(left)
        return left

    def _check(self, chunks: Sequence[Chunk]) -> None:
        """Raises what says that there is no room for these chunks, now or ever."""
        lanes = self._admission.lanes
        if len(chunks) > max(lanes.max_lanes // 2, 1):
            raise RequestTooLarge(f"events of {len(chunks)} project keys are more than can be taken at once")
        lanes.admit(chunks)
        self._admission.quotas.check(chunks)

    def _reserve(self, letters: Sequence[DeadLetter]) -> int:
        """Room for these letters. Raises `DeadLettersFull`, or `RequestTooLarge` for so many that there never is."""
        if not letters:
            return 0
        size = sum([len(letter.data) + len(letter.why) + len(letter.attributes) for letter in letters])
        reserved = self._letters.reserve(size, len(letters))
        if reserved is None:
            if len(letters) > 1 and not self._letters.could_hold(size, len(letters)):
                what = f"{len(letters)} events of it are refused, more than the dead letters could hold (dead_letters.max_bytes)"
                raise RequestTooLarge(what)
            what = f"no room among the dead letters for {len(letters)} refused events ({letters[0].reason.value}: {letters[0].why})"
            raise DeadLettersFull(what, retry_after=5.0, hint="raise dead_letters.max_bytes, or look why they are refused")
        return reserved

    def _offer(self, unit: Unit, entry: _Entry, level: AckLevel) -> bool:
        """Into the buffer, or raise; whether its events are still to be waited for."""
        if not entry.chunks:
            self._enter(entry)
            return False
        if level is AckLevel.DISK:
            unit.enter = partial(self._enter_late, entry)
            if not self._buffer.offer(entry.chunks, unit):
                return True
            self._enter(entry)
            return False
        unit.ack = Ack(sum([chunk.count for chunk in entry.chunks]), unit, comes_again=False)
        for chunk in entry.chunks:
            chunk.ack = unit.ack
        self._buffer.offer(entry.chunks)
        self._enter(entry)
        return True

    def _enter_late(self, entry: _Entry, error: Backpressure | None) -> None:
        if error is None:
            self._enter(entry)
        else:
            self._letters.release(entry.reserved)

    def _enter(self, entry: _Entry) -> None:
        """Count a unit in the books, and bury what of it was refused. Nothing can fail from here on."""
        for chunk in entry.chunks:
            self._books.receive(chunk.lane, chunk.source, chunk.count)
        letters = entry.content.letters
        if letters:
            self._letters.bury_reserved(letters, entry.reserved)
            for letter in letters:
                self._books.receive(letter.lane, letter.source, 1)
                self._books.bury(letter.lane, letter.reason, 1)
            _log_buried(letters)
        self._admission.nulled_numbers += entry.content.nulled
        if entry.chunks:
            self._admission.on_taken()

    def give_back(self, units: Collection[Taken]) -> int:
        """See `core.records.RecordIntake.give_back`. What waits for its fsync goes its way, too."""
        mine = [unit for unit in units if isinstance(unit, Unit)]
        for unit in mine:
            unit.let_go()
        chunks = self._withdraw(mine, None)
        for lane, group in groupby(chunks, attrgetter("lane")):
            of_lane = list(group)
            self._books.drop(lane, DropReason.RETURNED_TO_BROKER, sum([chunk.count for chunk in of_lane]))
            self._buffer.settle(of_lane, DropReason.RETURNED_TO_BROKER)
        return sum([chunk.count for chunk in chunks])

    def bury(self, units: Sequence[Taken], lane: Lane, why: str) -> bool:
        """See `core.records.RecordIntake.bury`."""
        mine = [unit for unit in units if isinstance(unit, Unit) and lane in unit.lanes]
        sizes = [unit.size_of(lane) for unit in mine]
        count = sum([events for _, events in sizes])
        reserved = self._letters.reserve(sum([size for size, _ in sizes]) + count * len(why), count)
        if reserved is None:
            return False
        chunks = self._withdraw(mine, lane)
        letters = [letter for chunk in chunks for letter in letters_of(chunk, Reason.LANE_HALTED, why, self._now())]
        self._letters.bury_reserved(letters, reserved)
        if letters:
            self._books.bury(lane, Reason.LANE_HALTED, len(letters))
            self._buffer.settle(chunks, Fate.BURIED)
            _log_buried(letters)
        return True

    def _withdraw(self, units: Sequence[Unit], lane: Lane | None) -> list[Chunk]:
        """The chunks of these units that wait, to be sent again or for the first time."""
        acks = [unit.ack for unit in units if unit.ack is not None and not unit.ack.settled]
        return self._delivery.withdraw(acks, lane) + self._buffer.withdraw(acks, lane) if acks else []

    def halted(self) -> Mapping[Lane, float]:
        """See `core.records.RecordIntake.halted`."""
        return self._halts.since()


class _Entry(NamedTuple):
    """What is entered of a unit."""

    chunks: Sequence[Chunk]
    content: UnitContent
    reserved: int
    """The room that its letters have among the dead letters, as their store counts it."""


def _log_buried(letters: Sequence[DeadLetter]) -> None:
    """One line for each lane and reason; `why` is the first one's."""
    counted = Counter((letter.lane, letter.reason) for letter in letters)
    first = {(letter.lane, letter.reason): letter for letter in reversed(letters)}
    for (lane, reason), count in counted.items():
        label, letter = lane_label(lane) if lane else UNDECODABLE, first[lane, reason]
        _log.warning(
            "events became dead letters", lane=label, reason=reason.value, events=count, why=letter.why, coordinates=letter.coordinates
        )
