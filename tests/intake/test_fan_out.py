"""Admission to several destinations: by all required ones or by none, and acknowledged when the
last one confirms.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from forwarder.buffer.memory import MemoryBuffer
from forwarder.core.ack import AckLevel
from forwarder.core.errors import BufferFull
from forwarder.core.event import Chunk, Lane
from forwarder.core.ports import DeadLetter, DropReason, Fate, Reason, WhenFull
from forwarder.intake.admission import Admission, Gate
from forwarder.intake.conditions import Conditions
from forwarder.intake.content import Content, apply_routes
from forwarder.intake.fan_out import Branch, FanOut
from forwarder.intake.lane_registry import LaneRegistry, UnsharedBuffer
from forwarder.intake.source_intake import SourceIntake
from forwarder.wire.effort import UNBOUNDED, Allowance
from forwarder.wire.v1_results import Results
from tests.support.intakes import AllKnown, IntakeRig
from tests.support.records import IdleDelivery
from tests.support.waiters import IntakeCallback

LANE = Lane("phc_senders_key")
EVENTS = b'{"event":"a"},{"event":"b"},{"event":"c"}'


class Fixed:
    """Routes to these destinations; events named `b` to the first alone, if they are
    distinguished.
    """

    def __init__(self, to: Sequence[int], *, apart: bool = False) -> None:
        self.to = to
        self.apart = apart

    def whole(self, lane: Lane, source: str) -> Sequence[int] | None:
        return None if self.apart else self.to

    encoded = None

    def of_events(
        self,
        lane: Lane,
        source: str,
        data: bytes,
        count: int,
        *,
        allowance: Allowance | None = None,
    ) -> Sequence[Sequence[int]]:
        return [self.to, (0,), self.to][:count]


class Two:
    """Two destinations, with room for so many bytes each."""

    def __init__(
        self,
        rooms: tuple[int, int],
        *,
        required: tuple[bool, bool] = (True, True),
        apart: bool = False,
        when_full: WhenFull = WhenFull.REJECT,
    ) -> None:
        self.rigs = [IntakeRig(max_bytes=room) for room in rooms]
        self.buffers = [MemoryBuffer(room) for room in rooms]
        self.admissions = [
            self._admission(*pair, when_full) for pair in zip(self.rigs, self.buffers, strict=True)
        ]
        self.idle = [IdleDelivery(), IdleDelivery()]
        keys = {LANE.api_key: "phc_other_key"}
        self.branches = [
            Branch(admission, idle, idle, needed, {} if number == 0 else keys, f"d{number}")
            for number, (admission, idle, needed) in enumerate(
                zip(self.admissions, self.idle, required, strict=True)
            )
        ]
        self.fan = FanOut(
            self.branches, Fixed((0, 1), apart=apart), LaneRegistry(10, {}, AllKnown())
        )

        self.gate = Gate(self.fan, Conditions(self.rigs[0].clock))

    def enter(self, chunk: Chunk) -> bool:
        """Admit a chunk; whether it is held."""
        return self.gate.enter(Content([chunk]), AckLevel.MEMORY, IntakeCallback()) is None

    @staticmethod
    def _admission(rig: IntakeRig, buffer: MemoryBuffer, when_full: WhenFull) -> Admission:
        lanes = LaneRegistry(10, buffer.holdings, AllKnown())
        quotas = UnsharedBuffer(buffer, (), AllKnown())
        return Admission(
            buffer,
            rig.dead_letters,
            rig.books,
            lanes,
            quotas,
            clock=rig.clock,
            on_accepted=lambda: None,
            when_full=when_full,
        )

    def held(self) -> list[list[tuple[Lane, bytes]]]:
        """What each destination holds."""
        return [
            [(lane, chunk.data) for lane in buffer.waiting_lanes() for chunk in buffer.queue(lane)]
            for buffer in self.buffers
        ]

    def settle(self, number: int) -> None:
        """Deliver what a destination holds."""
        buffer = self.buffers[number]
        for lane in list(buffer.waiting_lanes()):
            buffer.settle(buffer.queue(lane).take(1_000_000, 1_000), Fate.DELIVERED)


def chunk() -> Chunk:
    """Three events."""
    return Chunk(LANE, EVENTS, 3, frozenset(), 0.0)


def test_each_destination_has_its_own_chunks_and_lanes() -> None:
    """The bytes are the same; the sender's chunk stays as it was."""
    two = Two((10_000, 10_000))
    mine = chunk()
    assert two.enter(mine)
    assert two.held() == [[(LANE, EVENTS)], [(Lane("phc_other_key"), EVENTS)]]
    assert mine.lane == LANE
    assert [
        rig.books.accounts[lane].received["http"]
        for rig, lane in zip(two.rigs, (LANE, Lane("phc_other_key")), strict=True)
    ] == [3, 3]


def test_events_of_one_chunk_may_go_different_ways() -> None:
    """Each destination gets its own of them, in their order."""
    two = Two((10_000, 10_000), apart=True)
    assert two.enter(chunk())
    assert two.held() == [
        [(LANE, EVENTS)],
        [(Lane("phc_other_key"), b'{"event":"a"},{"event":"c"}')],
    ]


@pytest.mark.parametrize("rooms", [(10_000, 100), (100, 10_000)])
def test_all_destinations_accept_or_none(rooms: tuple[int, int]) -> None:
    """Whichever has no room: nothing is held or counted anywhere."""
    two = Two(rooms)
    with pytest.raises(BufferFull):
        two.enter(chunk())
    with pytest.raises(BufferFull):
        two.gate.enter_one(chunk(), AckLevel.MEMORY, IntakeCallback(), UNBOUNDED)
    assert two.held() == [[], []]
    assert not any(rig.books.accounts for rig in two.rigs)


@pytest.mark.parametrize("rooms", [(10_000, 100), (100, 10_000)])
def test_room_for_dead_letters_is_free_again_when_one_destination_rejects(
    rooms: tuple[int, int],
) -> None:
    """It was reserved at each, whichever has no room for the events."""
    two = Two(rooms)
    before = [rig.dead_letters.statistics() for rig in two.rigs]
    letter = DeadLetter(Reason.TOO_LARGE, LANE, b"{}", 0.0)
    with pytest.raises(BufferFull):
        two.gate.enter(Content([chunk()], dead_letters=[letter]), AckLevel.MEMORY, IntakeCallback())
    assert [rig.dead_letters.statistics() for rig in two.rigs] == before


def test_an_optional_destination_without_room_drops() -> None:
    """It rejects nothing; its books have what it dropped."""
    two = Two((10_000, 100), required=(True, False))
    assert two.enter(chunk())
    assert two.held() == [[(LANE, EVENTS)], []]
    assert two.rigs[1].books.accounts[Lane("phc_other_key")].dropped == {"optional_destination": 3}


def test_an_optional_destination_that_can_make_no_room_drops() -> None:
    """Its oldest events were to make room, and all are in flight: the new ones are dropped there,
    and the other destination, which has accepted them, calls back as for any request.
    """
    two = Two((10_000, 1_000), required=(True, False), when_full=WhenFull.DROP_OLDEST)
    theirs = Lane("phc_other_key")
    two.buffers[1].offer([Chunk(theirs, b"x" * 200, 1, frozenset(), 0.0)])
    two.buffers[1].queue(theirs).popleft()
    callback = IntakeCallback()
    content = Content([chunk()])
    assert two.gate.enter(content, AckLevel.DELIVERED, callback) is not None
    assert two.held() == [[(LANE, EVENTS)], []]
    assert two.rigs[1].books.accounts[theirs].dropped == {"optional_destination": 3}
    assert not callback.answers
    two.settle(0)
    assert len(callback.answers) == 1


@pytest.mark.parametrize("waits", [True, False])
def test_dead_letters_of_a_source_are_kept_at_every_destination(waits: bool) -> None:
    """Also where the service wouldn't ingest the event, and by an optional destination, which no
    source waits for; those of a request may be dropped.
    """
    two = Two((10_000, 10_000), required=(True, False))
    letter = DeadLetter(Reason.MISSING_DISTINCT_ID, LANE, b"{}", 0.0)
    parts = two.fan.divide(Content(dead_letters=[letter], ruled=True), source_waits=waits)
    counts = [len(part.submission.dead_letters) for part in parts]
    assert counts == ([1, 1] if waits else [0, 0])
    assert [len(part.submission.droppable) for part in parts] == ([0, 0] if waits else [1, 1])


def test_events_that_an_optional_destination_drops_are_in_its_books() -> None:
    """Events of a lane that was halted for too long, for which neither buffer nor dead letters have
    room, are received and dropped there.
    """
    two = Two((10_000, 10_000), required=(True, False))
    theirs = Lane("phc_other_key")
    rig = two.rigs[1]
    letter = DeadLetter(Reason.LANE_HALTED, theirs, b"{}", 0.0)
    content = Content([chunk()])
    apply_routes(content, two.fan.routes)
    (_, part) = two.fan.divide(content, source_waits=True)
    part.submission.chunks, part.submission.dead_letters = (), [letter]
    two.admissions[1].drop_at_receipt(part.submission, DropReason.OPTIONAL_DESTINATION)
    assert rig.books.accounts[theirs].received == {"http": 1}
    assert rig.books.accounts[theirs].dropped == {"optional_destination": 1}


def test_drops_of_two_keys_are_counted_together() -> None:
    """Where both are one key at a destination."""
    two = Two((10_000, 10_000))
    theirs = Lane("phc_other_key")
    content = Content([chunk()], overflow=[(LANE, "http", 3), (theirs, "http", 4)])
    two.gate.enter(content, AckLevel.MEMORY, IntakeCallback())
    assert two.rigs[1].books.accounts[theirs].dropped == {"invalid_overflow": 7}


def test_results_are_of_the_destination_that_gets_events() -> None:
    """Not of one that gets a dead letter only, which never changes them."""
    two = Two((10_000, 10_000))
    mine = chunk()
    mine.to = (1,)
    letter = DeadLetter(Reason.MISSING_DISTINCT_ID, LANE, b"{}", 0.0, to=(0,))
    results = Results([b'"a"'])
    parts = two.fan.divide(Content([mine], [letter], results=results, ruled=True))
    assert [part.submission.content.results for part in parts] == [None, results]


def test_a_source_waits_for_all_required_destinations() -> None:
    """Its batch is settled when the last destination has delivered it; given back, it is withdrawn
    from all.
    """
    two = Two((10_000, 10_000))
    records = SourceIntake(two.gate, two.branches, source="kafka")
    callback = IntakeCallback()
    other = IntakeCallback()
    accepted = records.accept_events([chunk()], [], callback)
    assert accepted is not None
    assert set(accepted.lanes) == {LANE, Lane("phc_other_key")}
    two.settle(0)
    assert callback.answers == []
    two.settle(1)
    assert callback.answers == [None]
    second = records.accept_events([chunk()], [], other)
    assert second is not None
    two.settle(1)
    assert records.give_back([second]) == 3
    assert (other.answers, two.held()) == ([], [[], []])


def test_what_one_halted_destination_holds_too_long_is_buried_there_alone() -> None:
    """The other still delivers it, and the batch is settled by both."""
    two = Two((10_000, 10_000))
    callback = IntakeCallback()
    records = SourceIntake(two.gate, two.branches, source="kafka")
    accepted = records.accept_events([chunk()], [], callback)
    assert accepted is not None
    theirs = Lane("phc_other_key")
    two.idle[1].halted_lanes[theirs] = 5.0
    assert records.halted() == {theirs: 5.0}
    assert records.dead_letter([accepted], theirs, "halted")
    assert two.held() == [[(LANE, EVENTS)], []]
    assert callback.answers == []
    two.settle(0)
    assert callback.answers == [None]
