"""Replaying dead letters: through the intake, at the asked rate, unchanged, and never twice."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import pytest

from forwarder.core.ack import AckCallback
from forwarder.core.errors import Backpressure, BufferFull
from forwarder.core.event import Lane
from forwarder.core.ports import DeadLetter, Incoming, Reason, ReplayedDeadLetter
from forwarder.deadletter.replay import Replayer
from forwarder.deadletter.schema import open_writable
from forwarder.storage import failpoints
from forwarder.storage.directory import DEAD_LETTERS
from tests.deadletter.rig import LANE, StoreRig, event_letter, query, started
from tests.support.cases import cases
from tests.support.intakes import IntakeRig, stamped_event

UUID = "0190a0a0-1111-7222-8333-444455556666"
HISTORICAL = Lane(LANE.api_key, historical=True)
EVENT = (
    b"{ "
    b'"event":"a","distinct_id":"ann","uuid":"0190a0a0-1111-7222-8333-444455556666","timestamp":"2'
    b'025-12-31T12:00:00Z","n":1.0e3 '
    b"}"
)


@dataclass
class ReplayIntake:
    """An intake that gives scripted answers, and keeps what it took."""

    answer: Exception | bool = True
    accepted: list[Incoming] = field(default_factory=list)
    waiters: list[AckCallback] = field(default_factory=list)

    def accept(self, incoming: Incoming, callback: AckCallback) -> bool:
        if isinstance(self.answer, Exception):
            raise self.answer
        self.accepted.append(incoming)
        self.waiters.append(callback)
        return self.answer

    @property
    def bodies(self) -> list[bytes]:
        """What came in."""
        return [incoming.body for incoming in self.accepted]


@contextlib.asynccontextmanager
async def replaying(
    rig: StoreRig, door: ReplayIntake, api_keys: Mapping[str, str] = MappingProxyType({})
) -> AsyncIterator[Replayer]:
    """A replayer between the store and the door."""
    replayer = Replayer(rig.store, door, rig.clock, api_keys)
    replayer.start()
    await rig.commit()
    try:
        yield replayer
    finally:
        replayer.stop()
        assert rig.clock.pending == 0


async def turn(rig: StoreRig, seconds: float = 1.0) -> None:
    """Let time pass in small steps, and let what was wanted be written."""
    for _ in range(round(seconds / 0.05)):
        await rig.clock.advance(0.05)
        await rig.commit()


def mark(directory: Path, where: str = "1", rate: float | None = None) -> None:
    """What the command does to letters that are to be replayed."""
    query(directory, f"UPDATE letters SET mark = 'replay', rate = ? WHERE {where}", (rate,))


async def test_a_marked_letter_goes_through_the_intake(tmp_path: Path) -> None:
    """With its own bytes, its lane, its number and its reason; then it is gone."""
    door = ReplayIntake()
    async with started(tmp_path) as rig, replaying(rig, door) as replayer:
        rig.store.add([event_letter(EVENT), DeadLetter(Reason.REFUSED, HISTORICAL, EVENT, 5.0)])
        await turn(rig)
        assert door.accepted == []
        mark(tmp_path)
        await turn(rig)
        assert door.bodies == [
            b'{"api_key":"phc_deaddeaddead1234","historical_migration":%b,"batch":[%b]}'
            % (flag, EVENT)
            for flag in (b"false", b"true")
        ]
        assert [incoming.source for incoming in door.accepted] == ["replay", "replay"]
        assert [incoming.replayed for incoming in door.accepted] == [
            ReplayedDeadLetter(
                1, Reason.REFUSED, 1000.0, UUID, sender_key=LANE.api_key, source="http"
            ),
            ReplayedDeadLetter(
                2, Reason.REFUSED, 5.0, UUID, sender_key=LANE.api_key, source="http"
            ),
        ]
        await turn(rig)
        assert (rig.data(), rig.store.statistics().dead_letters, rig.store.busy) == ([], 0, set())
        assert replayer.statistics().replayed == 2


async def test_an_edited_letter_goes_instead(tmp_path: Path) -> None:
    """What someone put in its place is sent."""
    door = ReplayIntake()
    async with started(tmp_path) as rig, replaying(rig, door):
        rig.store.add([event_letter(b'{"event":""}')])
        await rig.commit()
        query(tmp_path, "UPDATE letters SET mark = 'replay', replacement = ?", (b'{"event":"b"}',))
        await turn(rig, 1.1)
        assert b'"batch":[{"event":"b"}]' in door.bodies[0]


async def test_a_replay_keeps_its_rate(tmp_path: Path) -> None:
    """The rate is the letters' own; without one it is a hundred a second."""
    door = ReplayIntake()
    async with started(tmp_path) as rig, replaying(rig, door):
        rig.store.add([event_letter(EVENT) for _ in range(1000)])
        await rig.commit()
        mark(tmp_path, "number <= 20", rate=10)
        await turn(rig, 1.5)
        assert 4 <= len(door.accepted) <= 7
        await turn(rig, 2)
        assert len(door.accepted) == 20
        mark(tmp_path)
        await turn(rig, 3)
        assert 20 + 200 <= len(door.accepted) <= 20 + 305


async def test_a_full_buffer_is_waited_for(tmp_path: Path) -> None:
    """The letter stays until there is room, and goes then."""
    door = ReplayIntake(BufferFull("full", retry_after=3.0))
    async with started(tmp_path) as rig, replaying(rig, door):
        rig.store.add([event_letter(EVENT)])
        await rig.commit()
        mark(tmp_path)
        await turn(rig, 2)
        door.answer = True
        await turn(rig, 1)
        assert (len(door.accepted), len(rig.data())) == (0, 1)
        await turn(rig, 2)
        assert (len(door.accepted), len(rig.data())) == (1, 0)


async def test_a_buffer_that_fails_later_is_waited_for(tmp_path: Path) -> None:
    """A buffer that could not keep the event after all leaves the letter marked; it is removed
    only once the buffer has it.
    """
    door = ReplayIntake(answer=False)
    async with started(tmp_path) as rig, replaying(rig, door):
        rig.store.add([event_letter(EVENT)])
        await rig.commit()
        mark(tmp_path)
        await turn(rig)
        assert (len(door.accepted), len(rig.data()), rig.store.busy) == (1, 1, {1})
        await turn(rig, 3)
        assert len(door.accepted) == 1
        door.waiters[0](Backpressure("disk full", retry_after=2.0))
        await turn(rig, 1)
        assert len(door.accepted) == 1
        await turn(rig, 2)
        assert len(door.accepted) == 2
        door.waiters[1](None)
        await rig.commit()
        assert rig.data() == []


@pytest.mark.parametrize(
    "data", [b'{"event":', b'1],"api_key":"phc_other","batch":[2', b"1,2", b""]
)
async def test_a_letter_that_is_no_event_stays(tmp_path: Path, data: bytes) -> None:
    """It is unmarked with a note that says why, and never part of a request's envelope."""
    door = ReplayIntake()
    async with started(tmp_path) as rig, replaying(rig, door) as replayer:
        rig.store.add([event_letter(data)])
        await rig.commit()
        mark(tmp_path)
        await turn(rig, 1.2)
        assert door.accepted == []
        assert replayer.statistics().refused == 1
        ((marked, note),) = rig.query("SELECT mark, note FROM letters")
        assert marked is None
        assert note


async def test_a_real_intake_takes_letters_as_they_are(tmp_path: Path) -> None:
    """An event that has uuid and timestamp keeps every byte; one that has none gets the time at
    which it was refused; one that is still refused stays, with the reason.
    """
    intake = IntakeRig()
    intake.books.dead_letter(LANE, Reason.REFUSED, 3)
    async with started(tmp_path, books=intake.books) as rig:
        replayer = Replayer(rig.store, intake.intake, rig.clock)
        unstamped = stamped_event(uuid=None, timestamp=None)
        rig.store.add(
            [
                event_letter(EVENT),
                event_letter(json.dumps(unstamped).encode()),
                event_letter(b'{"event":"x"}'),
            ]
        )
        await rig.commit()
        mark(tmp_path)
        replayer.start()
        await turn(rig, 1.2)
        replayer.stop()
        first, second = intake.events()
        assert first == EVENT.strip()
        assert json.loads(second)["timestamp"] == "1970-01-01T00:16:40.000Z"
        assert [(chunk.source, chunk.origin) for chunk in intake.chunks()] == [
            ("replay", 1),
            ("replay", 2),
        ]
        assert rig.query("SELECT number, mark, note FROM letters") == [
            (3, None, "the event has no distinct_id")
        ]
        assert intake.books.accounts[LANE].dead_lettered == {Reason.REFUSED: 1}
        assert intake.books.accounts[LANE].received == {}


async def test_a_crash_between_buffer_and_removal(tmp_path: Path) -> None:
    """At that instant the letter is still in the file; the log's record names it, and the opening
    forgets it: there is one copy.
    """
    door = ReplayIntake()
    (tmp_path / "one").mkdir()
    async with started(tmp_path / "one") as rig:
        rig.store.add([event_letter(EVENT, place=(1, 0))])
        await rig.commit()
        mark(tmp_path / "one")
        failpoints.arm("replay.held=eio@1")
        async with replaying(rig, door) as replayer:
            await turn(rig, 0.2)
            assert (len(door.accepted), replayer.statistics().replayed) == (1, 0)
            shutil.copytree(tmp_path / "one", tmp_path / "crashed")
            await turn(rig, 1.5)
            assert (len(door.accepted), rig.data()) == (1, [])
    crashed = StoreRig(tmp_path / "crashed")
    assert crashed.store.statistics().dead_letters == 1
    crashed.store.forget(
        [incoming.replayed.number for incoming in door.accepted if incoming.replayed]
    )
    assert (crashed.store.accounts(), crashed.store.statistics().dead_letters) == ({}, 0)
    crashed.store.close()


@cases(
    ("api_keys", "noted", "key"),
    [
        ({}, None, LANE.api_key),
        ({"phc_a": LANE.api_key}, None, "phc_a"),
        ({"phc_a": LANE.api_key, "phc_b": LANE.api_key}, None, ""),
        ({"phc_a": LANE.api_key, "phc_b": LANE.api_key}, "phc_b", "phc_b"),
        ({"phc_a": LANE.api_key}, "", LANE.api_key),
    ],
)
async def test_rules_match_the_key_of_the_sender(
    tmp_path: Path, api_keys: dict[str, str], noted: str | None, key: str
) -> None:
    """As the letter has it; an older one hasn't, and if several are possible it isn't known."""
    door = ReplayIntake()
    async with started(tmp_path) as rig:
        rig.store.add([event_letter(EVENT, source="kafka")])
        await rig.commit()
        mark(tmp_path)
        with contextlib.closing(open_writable(tmp_path / DEAD_LETTERS)) as connection:
            connection.execute("UPDATE letters SET sender_key = ?", (noted,))
        async with replaying(rig, door, api_keys):
            await turn(rig)
    (replayed,) = [incoming.replayed for incoming in door.accepted]
    assert replayed is not None
    assert (replayed.sender_key, replayed.source) == (key, "kafka")


async def test_a_stopped_replay_leaves_letters_marked(tmp_path: Path) -> None:
    """What was not taken yet stays marked, for the next start."""
    door = ReplayIntake(BufferFull("full"))
    async with started(tmp_path) as rig:
        rig.store.add([event_letter(EVENT)])
        await rig.commit()
        mark(tmp_path)
        async with replaying(rig, door):
            await turn(rig)
        assert rig.store.busy == set()
        assert rig.query("SELECT mark FROM letters") == [("replay",)]
    async with started(tmp_path) as rig:
        assert rig.store.statistics().marked == 1


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (Reason.UNDECODABLE, "can't be decoded"),
        (Reason.UNMAPPABLE, "mapping makes no event"),
        (Reason.INVALID_TOKEN, "no valid project key"),
        (Reason.TOO_LARGE, "project key is unknown"),
    ],
)
async def test_a_record_that_is_no_event_stays(tmp_path: Path, reason: Reason, words: str) -> None:
    """With a note that says why it can't be sent."""
    door = ReplayIntake()
    async with started(tmp_path) as rig:
        rig.store.add(
            [DeadLetter(reason, None, b"rubbish", 1000.0, "no JSON", "kafka", "kafka/ev/0/7")]
        )
        await rig.commit()
        query(tmp_path, "UPDATE letters SET mark = 'replay'")
        async with replaying(rig, door):
            await turn(rig)
        ((note, mark),) = rig.query("SELECT note, mark FROM letters")
    assert words in note
    assert (mark, door.accepted) == (None, [])
