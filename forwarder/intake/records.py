"""Takes units of records into the pipeline, lets go of them, and buries what a halted lane holds of them.

Invariants: a unit is taken whole, or nothing of it is taken and counted; books, buffer and dead letters change in the same callback. What
is refused of a record uses the dead letters' whole room and is never dropped for want of it, and neither is an event because the buffer is
full: its source waits. `when_full: drop_oldest` may push events out later, for a newer request; those are counted, and count as settled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Final, NamedTuple, Protocol

import structlog

from forwarder.core.ack import Ack, AckCallback, AckLevel
from forwarder.core.errors import (
    Backpressure,
    BufferFull,
    DeadLettersFull,
    Draining,
    LaneFull,
    RequestTooLarge,
    StillDecoding,
    TogetherTooLarge,
)
from forwarder.core.event import Chunk, Lane
from forwarder.core.ports import DeadLetter, DropReason, Fate, Reason, letters_of
from forwarder.core.records import Records, Taken
from forwarder.intake.awkward import RecordRules
from forwarder.intake.decoding import RecordJob, encode_job
from forwarder.intake.intake import Intake
from forwarder.intake.large import LargeBodies, LargeBody
from forwarder.intake.stamping import Rejected, Stamped
from forwarder.intake.unit_reader import UnitContent, UnitReader
from forwarder.intake.units import Unit
from forwarder.telemetry.labels import UNDECODABLE, lane_label
from forwarder.wire.effort import TooMuchWork

MAX_LARGE: Final = 4
"""Large records that are decoded, or were and wait for room in the buffer."""
STALE_SECONDS: Final = 60.0
"""A record that nobody has asked for since isn't ours any more."""

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
        self._admission = admission = intake.admission
        self._buffer = admission.buffer
        self._letters = admission.dead_letters
        self._books = admission.books
        self._now = intake.clock.now
        limits = intake.rules
        rules = RecordRules(
            limits.max_body, limits.max_event, limits.max_events, limits.clock_skew_tolerance, intake.ordering_of, intake.effort
        )
        self._max_bytes = admission.quotas.max_lane_bytes
        self._reader = UnitReader(admission.lanes, rules, source, self._max_bytes, _report)
        self._decoded: dict[int, _LargeRecord] = {}
        """Records in the decoder process or back from it, by the identity of their units."""

    def take(self, records: Records, waiter: AckCallback, level: AckLevel, given_up: Collection[Lane] = ()) -> Taken | None:
        """See `core.records.RecordIntake.take`."""
        if self._intake.draining:
            raise Draining("shutting down", retry_after=2.0)
        now = self._now()
        content = self._read(records, now)
        try:
            taken = self._put(content, waiter, level, now, given_up)
        except RequestTooLarge as error:
            if len(records.values) + len(records.refused) > 1:
                raise TogetherTooLarge(error.message) from None
            taken = self._put(self._too_large(records, content, error.message, now), waiter, level, now, ())
        if self._decoded:
            self._decoded.pop(id(records), None)
        return taken

    def _read(self, records: Records, now: float) -> UnitContent:
        """What is in the unit. Raises `TogetherTooLarge`, and `StillDecoding` for one large record that isn't read yet."""
        large = self._decoded.get(id(records)) if self._decoded else None
        if large is None:
            try:
                return self._reader.read(records, now)
            except TooMuchWork:
                large = self._decode(records, now)
        if large.error is not None:
            del self._decoded[id(records)]
            raise large.error
        if large.content is None:
            error = StillDecoding("a large record is being decoded")
            error.when_done = large.done.append
            raise error
        large.asked = now
        content = large.content
        return UnitContent(list(content.events), list(content.letters), content.nulled)  # it is asked for again if there is no room now

    def _decode(self, records: Records, now: float) -> _LargeRecord:
        """Have the only record of a unit read by the decoder process. Raises a `Backpressure` if that can't be done now."""
        bodies, intake = self._intake.large, self._intake
        if bodies is None:
            raise TypeError("there is no decoder process")
        self._decoded = {key: each for key, each in self._decoded.items() if each.content is None or now - each.asked < STALE_SECONDS}
        if len(self._decoded) >= MAX_LARGE:
            raise BufferFull("other large records wait for room in the buffer")
        job = RecordJob(
            intake.rules, intake.ordered, self._max_bytes, now, records.facts(0), records.api_key, foreign=records.foreign
        )
        large = _LargeRecord(records, self._reader, now)
        bodies.submit(LargeBody(self, None, len(records.values[0]), partial(large.run, bodies, job), large.fail))
        self._decoded[id(records)] = large
        return large

    def _too_large(self, records: Records, content: UnitContent, why: str, now: float) -> UnitContent:
        """The only record there is can't be taken: it becomes one dead letter, as it was read."""
        lanes = {lane for lane, _ in content.events}
        lane = lanes.pop() if len(lanes) == 1 else None
        rejected = Rejected(Reason.TOO_LARGE, records.values[0], why=why)
        letter = self._reader.letter(lane, rejected, records.facts(0), records.attributes(0), now)
        return UnitContent(letters=[letter], whole=True)

    def _put(self, content: UnitContent, waiter: AckCallback, level: AckLevel, now: float, given_up: Collection[Lane]) -> Unit | None:
        """What was read of a unit into buffer, dead letters and books. Raises a `Backpressure`, or `RequestTooLarge` if it never fits."""
        chunks = [Chunk(lane, events.data, events.count, events.ids, now, self._source) for lane, events in content.events]
        try:
            self._check(chunks)
        except LaneFull:
            chunks = self._give_up(chunks, content, given_up, now)
        unit = Unit(now, _sizes(chunks), waiter, self._letters)
        entry = _Entry(chunks, content, self._reserve(content))
        try:
            waits = self._offer(unit, entry, level)
        except BaseException:
            unit.ack = None  # they refer to each other, and would wait for the garbage collector
            self._letters.release(entry.reserved)
            raise
        if waits:
            return unit
        return None if self._letters.when_durable(unit.letters_are_durable) else unit

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
        keys = len({chunk.lane for chunk in chunks})
        if keys > max(lanes.max_lanes // 2, 1):
            raise RequestTooLarge(f"events of {keys} project keys are more than can be taken at once")
        lanes.admit(chunks)
        self._admission.quotas.check(chunks)

    def _reserve(self, content: UnitContent) -> int:
        """Room for a unit's letters. Raises `DeadLettersFull`, or `RequestTooLarge` for such that there never is."""
        letters = content.letters
        if not letters:
            return 0
        size = sum([len(letter.data) + len(letter.why) + len(letter.attributes) for letter in letters])
        reserved = self._letters.reserve(size, len(letters))
        if reserved is None:
            if not content.whole and not self._letters.could_hold(size, len(letters)):
                what = f"{len(letters)} events of it are refused, which are more than the dead letters could hold (dead_letters.max_bytes)"
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
            if not self._buffer.offer(entry.chunks, unit.held):
                return True
            self._enter(entry)
            return False
        unit.ack = Ack(sum([chunk.count for chunk in entry.chunks]), unit.acknowledged, comes_again=False)
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
            for (lane, source, reason), count in Counter((letter.lane, letter.source, letter.reason) for letter in letters).items():
                self._books.receive(lane, source, count)
                self._books.bury(lane, reason, count)
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


class _LargeRecord:
    """A record that is read by the decoder process, until it is taken."""

    def __init__(self, records: Records, reader: UnitReader, now: float) -> None:
        self._records = records
        """Kept, so that its identity stays its own."""
        self._reader = reader
        self.asked = now
        """When somebody asked for it last, wall-clock seconds."""
        self.content: UnitContent | None = None
        self.error: Backpressure | None = None
        """Why it couldn't be read, though it is to come again."""
        self.done: list[Callable[[], None]] = []

    async def run(self, bodies: LargeBodies, job: RecordJob) -> None:
        """Have it read."""
        value, content = self._records.values[0], UnitContent()
        try:
            decoded = await bodies.decode(encode_job(job), value)
        except Exception as error:
            if isinstance(error, Backpressure):
                raise
            reason = Reason.TOO_LARGE if isinstance(error, RequestTooLarge) else Reason.UNDECODABLE
            content.letters = [self._letter(None, Rejected(reason, value, why=str(error)))]
        else:
            content.nulled = decoded.outcome.nulled
            for chunk in await bodies.sliced(decoded.chunks(0.0, "")):
                content.events.append((chunk.lane, Stamped(chunk.data, chunk.count, chunk.ids)))
            for group in await bodies.sliced(decoded.rejected()):
                content.letters += [self._letter(lane, each) for lane, each in group]
        self.content = content
        self._tell()

    def _letter(self, lane: Lane | None, rejected: Rejected) -> DeadLetter:
        records = self._records
        return self._reader.letter(lane, rejected, records.facts(0), records.attributes(0), self.asked)

    def fail(self, error: Exception) -> None:
        """It couldn't be read now: its source brings it again."""
        self.error = error if isinstance(error, Backpressure) else Backpressure(f"a large record could not be decoded: {error}")
        self._tell()

    def _tell(self) -> None:
        done, self.done = self.done, []
        for each in done:
            each()


def _report(name: str) -> None:
    _log.exception("reading a record failed in an unforeseen way; it becomes a dead letter", record=name)


def _sizes(chunks: Sequence[Chunk]) -> dict[Lane, tuple[int, int]]:
    """Bytes and events by lane."""
    sizes: dict[Lane, tuple[int, int]] = {}
    for chunk in chunks:
        size, count = sizes.get(chunk.lane, (0, 0))
        sizes[chunk.lane] = size + len(chunk.data), count + chunk.count
    return sizes


def _log_buried(letters: Sequence[DeadLetter]) -> None:
    """One line for each lane and reason; `why` is the first one's."""
    counted = Counter((letter.lane, letter.reason) for letter in letters)
    first = {(letter.lane, letter.reason): letter for letter in reversed(letters)}
    for (lane, reason), count in counted.items():
        label, letter = lane_label(lane) if lane else UNDECODABLE, first[lane, reason]
        _log.warning(
            "events became dead letters", lane=label, reason=reason.value, events=count, why=letter.why, coordinates=letter.coordinates
        )
