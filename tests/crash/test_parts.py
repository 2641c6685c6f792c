"""The parts of the crash test beside its checker: the schedule of kills, the faulty upstream, the
sender, the reading of statuses.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from forwarder.storage.failpoints import NAMES
from tests.crash.archive.campaign import POINTS as OF_ARCHIVES
from tests.crash.children import Child
from tests.crash.faulty import LARGEST, FaultyService
from tests.crash.journal import ENTRIES, PROMISED, JournalReader, JournalWriter
from tests.crash.load_plan import LANES, EventKind, LoadPlan
from tests.crash.schedule import POINTS, Schedule, ScheduledKill
from tests.crash.scraper import LaneStatus, Status, wrong_with
from tests.crash.sender import CONNECTIONS, CrashSender
from tests.crash.victim import Places
from tests.support.upstream import Fault, Request, Upstream

PLAN = LoadPlan(1)
BALANCED = LaneStatus("a", {"http": 9}, 4, 2, {"refused": 1}, {"operator": 2})


def drawn(schedule: Schedule, *, hit: bool) -> list[ScheduledKill]:
    """All kills of a schedule, of which those at failpoints hit or miss."""
    kills = []
    while schedule:
        kills.append(schedule.next())
        schedule.done(kills[-1], hit=hit)
    return kills


def test_a_schedule_follows_from_its_seed() -> None:
    """Half at random instants, half at failpoints, each failpoint about equally often; the same
    ones for the same seed.
    """
    schedule = Schedule(7, 100, 100)
    kills = drawn(schedule, hit=True)
    assert kills == drawn(Schedule(7, 100, 100), hit=True) != drawn(Schedule(8, 100, 100), hit=True)
    assert schedule.random == 100 == schedule.hit.total()
    assert set(schedule.hit) == POINTS
    assert set(schedule.hit.values()) <= {100 // len(POINTS), 100 // len(POINTS) + 1}
    assert schedule.never_hit() == []


def test_each_failpoint_is_in_a_campaign() -> None:
    """Those of an archive in its own."""
    assert POINTS | set(OF_ARCHIVES) == NAMES


def test_a_failpoint_that_is_missed_is_tried_again_earlier_and_counts_as_random() -> None:
    """Until it has to be given up; then the schedule says that it was never hit."""
    schedule = Schedule(7, 5, 2, ["commit.begin", "settle.marked"])
    kills = drawn(schedule, hit=False)
    tries = [kill.passing for kill in kills if kill.failpoint == "commit.begin"]
    assert len(tries) == 8
    assert tries[-1] == 1
    assert schedule.random == len(kills)
    assert schedule.never_hit() == ["commit.begin", "settle.marked"]


def test_a_miss_replaces_a_random_kill() -> None:
    """The number of kills stays what was asked for, as long as there are others to come."""
    schedule = Schedule(7, 10, 10, ["commit.begin"])
    missed = 0
    while schedule:
        kill = schedule.next()
        hit = bool(kill.failpoint) and missed >= 3
        missed += bool(kill.failpoint) and not hit
        schedule.done(kill, hit=hit)
    assert (schedule.random, schedule.hit.total()) == (10, 10)


def asked(events: list[int], *, historical: bool = False) -> Request:
    """A request to the upstream with these events."""
    batch = b",".join(map(PLAN.event, events))
    body = b'{"api_key":"k"%b,"batch":[%b]}' % (
        b',"historical_migration":true' if historical else b"",
        batch,
    )
    return Request("/batch/", {}, 0, body)


def of_kind(kind: EventKind, count: int) -> list[int]:
    """Some events of a kind."""
    numbers = (number for number in range(1 << 20) if PLAN.kind(number) is kind)
    return [next(numbers) for _ in range(count)]


async def test_the_upstream_always_refuses_poison() -> None:
    """Whatever else is with it, healed or not; and nothing of the request is noted."""
    service = FaultyService(PLAN)
    mixed = asked([*of_kind(EventKind.CLEAN, 3), *of_kind(EventKind.POISON, 1)])
    assert service.answer(mixed).status == 400
    await service.handle({"do": "become", "healed": True, "stuck": False, "away": False})
    assert service.answer(mixed).status == 400
    assert service.answer(asked(of_kind(EventKind.DISPOSABLE, 1))).status == 400
    assert not service.arrivals.digests
    assert service.refused == 3


async def test_a_healed_upstream_takes_all_and_notes_it() -> None:
    """An event that comes again with other bytes is a conflict; one that is no one's
    is a stranger.
    """
    service = FaultyService(PLAN)
    await service.handle({"do": "become", "healed": True, "stuck": False, "away": False})
    clean = of_kind(EventKind.CLEAN, 500)
    assert service.answer(asked(clean)).accepts
    assert service.answer(asked(clean)).accepts
    assert all(service.arrivals.was_answered(number) for number in clean)
    assert (service.arrivals.repeats, service.arrivals.conflicts) == (500, [])
    changed = asked(clean[:1])
    changed.wire = changed.wire.replace(b"person", b"persom")
    service.answer(changed)
    service.answer(Request("/batch/", {}, 0, b'{"batch":[{"uuid":"x","event":"e"}]}'))
    assert (len(service.arrivals.conflicts), len(service.arrivals.strangers)) == (1, 1)


async def test_a_faulty_upstream_fails_in_every_way() -> None:
    """It refuses, breaks off, hangs, and takes some of what it doesn't answer; nothing that is too
    large or comes when it is away.
    """
    service = FaultyService(PLAN)
    clean = of_kind(EventKind.CLEAN, 3000)
    answers = [service.answer(asked([number])) for number in clean]
    assert {answer.status for answer in answers} == {200, 429, 500, 503}
    assert {Fault.RESET, Fault.TRUNCATE, Fault.CLOSE, Fault.HANG} <= {
        answer.fault for answer in answers
    }
    pairs = list(zip(clean, answers, strict=True))
    assert all(service.arrivals.was_answered(number) == answer.accepts for number, answer in pairs)
    unanswered = [
        bool(service.arrivals.digest_of(number)) for number, answer in pairs if not answer.accepts
    ]
    assert {True, False} == set(unanswered)
    fresh = of_kind(EventKind.CLEAN, 3001)[-1:]
    assert service.answer(asked(fresh * (LARGEST // 200))).status == 413
    await service.handle({"do": "become", "healed": False, "stuck": True, "away": False})
    assert service.answer(asked(fresh, historical=True)).status == 500
    await service.handle({"do": "become", "healed": False, "stuck": False, "away": True})
    assert service.answer(asked(fresh)).status == 500
    assert not service.arrivals.digest_of(fresh[0])


async def test_the_sender_keeps_a_journal_and_can_be_paused(tmp_path: Path) -> None:
    """Each request is sent once; what is answered 200 is journaled as promised, and after a pause
    nothing is in progress.
    """
    journal = JournalWriter(tmp_path / "journal", ENTRIES)
    reader = JournalReader(tmp_path / "journal", ENTRIES)
    async with Upstream() as upstream:
        sender = CrashSender(PLAN, journal, upstream.port, 20_000)
        load = asyncio.create_task(sender.run())
        await sender.handle({"do": "go"})
        await upstream.until(lambda: len(upstream.requests) >= 40)
        await sender.handle({"do": "pause"})
        entries = reader.more()
        sent = [PLAN.number(request.events[0]["uuid"]) for request in upstream.requests]
        assert sorted(PLAN.request(entry.number).events[0] for entry in entries) == sorted(
            number for number in sent if number is not None
        )
        assert {entry.status for entry in entries} == {PROMISED}
        assert upstream.connections == CONNECTIONS
        await sender.handle({"do": "trickle"})
        await upstream.until(lambda: len(upstream.requests) >= len(sent) + 8)
        await sender.handle({"do": "pause"})
        assert all(
            PLAN.kind(PLAN.request(entry.number).events[0]) is EventKind.CLEAN
            for entry in reader.more()
        )
        load.cancel()
        await asyncio.gather(load, return_exceptions=True)
    journal.close()


async def test_the_sender_outlives_who_it_sends_to(tmp_path: Path) -> None:
    """While no one listens nothing counts as sent; afterwards it continues."""
    journal = JournalWriter(tmp_path / "journal", ENTRIES)
    reader = JournalReader(tmp_path / "journal", ENTRIES)
    port = Places.choose(tmp_path).ingestion
    sender = CrashSender(PLAN, journal, port, 20_000)
    load = asyncio.create_task(sender.run())
    await sender.handle({"do": "go"})
    upstream = Upstream()
    upstream.port = port
    for _ in range(2):
        async with upstream:
            known = len(upstream.requests)
            # B023: the wait ends before the next round.
            await upstream.until(lambda: len(upstream.requests) > known + 5)  # noqa: B023
    load.cancel()
    await asyncio.gather(load, return_exceptions=True)
    journal.close()
    assert PROMISED in {entry.status for entry in reader.more()}


async def test_a_child_obeys_until_its_parent_lets_go(tmp_path: Path) -> None:
    """The upstream as a process tells its address, changes, and saves what came."""
    child = await Child.start("tests.crash.faulty", tmp_path / "log", "1")
    assert (await child.ask("tell"))["url"].startswith("http://127.0.0.1:")
    await child.ask("become", healed=True, stuck=False, away=False)
    assert (await child.ask("save", path=str(tmp_path / "saved"))) == {
        "refused": 0,
        "repeats": 0,
        "conflicts": 0,
    }
    await child.end()
    assert (tmp_path / "saved").exists()
    assert (tmp_path / "log").read_bytes() == b""
    with pytest.raises((AssertionError, ConnectionError)):
        await child.ask("tell")


def test_a_balanced_status_is_in_order() -> None:
    """Nothing is said of it; its lanes are those that were sent to."""
    assert wrong_with(Status("running", balanced=True, lanes=[BALANCED])) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"delivered": 5},
        {"delivered": 3},
        {"buffered": 3},
        {"dead_lettered": {}},
        {"dropped": {}},
        {"received": {}},
        {"difference": 1},
    ],
    ids=str,
)
def test_an_unbalanced_status_is_not(changes: dict[str, object]) -> None:
    """Any figure that is off is found, whatever the daemon says of its balance; and so is a figure
    below zero.
    """
    lane = msgspec.structs.replace(BALANCED, **changes)
    for balanced in (True, False):
        assert wrong_with(Status("running", balanced=balanced, lanes=[lane]))
    below = msgspec.structs.replace(BALANCED, buffered=-1, delivered=7)
    assert wrong_with(Status("running", balanced=True, lanes=[below]))
    assert wrong_with(Status("running", balanced=False, lanes=[BALANCED]))


def test_the_load_is_in_several_lanes() -> None:
    """Two project keys, and the historical lane of one of them; requests of one, of some and of
    many events.
    """
    requests = [PLAN.request(number) for number in range(1000)]
    assert {request.lane for request in requests} == set(LANES)
    assert {request.count for request in requests} == {1, 20, 200}
    assert any(request.delivered for request in requests)
    assert replace(requests[0]) == LoadPlan(1).request(0)
