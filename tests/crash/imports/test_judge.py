"""The checker of the crash test of imports finds what is wrong, whatever it is, and nothing else,
and plan and schedule are what they say.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from uuid import UUID, uuid5

import msgspec
import pytest
import zstandard

from tests.crash.imports.judge import ImportArrival, Settled, judge
from tests.crash.imports.plan import BARE, DAYS, Division, EventPlan, write
from tests.crash.kills import READING, schedule
from tests.support.cases import cases

PLAN = EventPlan(seed=5, count=2_000)
DERIVED = UUID(int=5)


def came(number: int, request: int = 0, kind: str = "new") -> ImportArrival:
    """An event as it should come: alone in its request."""
    what = PLAN.expected(number)
    raw = PLAN.record(number).replace(b'"properties":{', b'"properties":{"$import_job_id":"x",')
    time = what.timestamp.removesuffix("Z") + "000Z"
    return ImportArrival(
        request or number + 1,
        kind,
        1,
        what.uuid or str(uuid5(DERIVED, str(number))),
        what.event,
        what.distinct_id,
        time,
        raw,
    )


def arrived() -> list[ImportArrival]:
    """What should come: every event, in order."""
    return [came(number) for number in range(PLAN.count)]


def test_what_should_come_is_right() -> None:
    """Nothing is wrong with it, also if some comes again."""
    verdict = judge(PLAN, arrived())
    assert (verdict.problems, verdict.distinct, verdict.repeats, verdict.requests) == (
        [],
        PLAN.count,
        0,
        PLAN.count,
    )
    assert verdict.derived == len([number for number in range(PLAN.count) if number % BARE == 4])
    assert DAYS <= verdict.days <= DAYS + 2
    again = [came(number, 5_000, "duplicate") for number in (100, 101)]
    verdict = judge(PLAN, [*arrived(), *again], [Settled(4_000, 100)])
    assert (verdict.problems, verdict.distinct, verdict.repeats) == ([], PLAN.count, 2)


MISTAKES: dict[str, Callable[[list[ImportArrival]], list[ImportArrival]]] = {
    "never came: 0": lambda right: right[1:],
    "came out of order": lambda right: right[::-1],
    "was in no record: 2000": lambda right: [
        *right,
        right[0]._replace(raw=b'{"properties":{"n":2000}}'),
    ],
    "was in no record: b'{}'": lambda right: [*right, right[0]._replace(raw=b"{}")],
    "was changed: 3": lambda right: [
        *right[:3],
        right[3]._replace(timestamp="2024-05-01T06:00:00.000000Z"),
        *right[4:],
    ],
    "was changed: 4": lambda right: [
        *right[:4],
        right[4]._replace(raw=right[4].raw.replace(b".10", b".1")),
        *right[5:],
    ],
    "was changed: 5": lambda right: [*right[:5], right[5]._replace(event="another"), *right[6:]],
    "came with another uuid: 6": lambda right: [
        *right[:6],
        right[6]._replace(uuid=str(DERIVED)),
        *right[7:],
    ],
    "came with another uuid: 13": lambda right: [
        *right[:13],
        right[13]._replace(uuid=str(UUID(int=1, version=4))),
        *right[14:],
    ],
    "came twice with two uuids: 7": lambda right: [*right, right[7]._replace(uuid=str(DERIVED))],
    "came again with other bytes: 8": lambda right: [*right, right[8]._replace(kind="conflict")],
    "was settled and came again: 99": lambda right: [*right, came(99, 5_000, "duplicate")],
    "were in one request": lambda right: [
        arrival._replace(request=1) if arrival.request > 1_900 else arrival for arrival in right
    ],
    "came as if they were live": lambda right: [
        *right[:9],
        right[9]._replace(historical=0),
        *right[10:],
    ],
}


@cases("problem", MISTAKES)
def test_what_is_wrong_is_found(problem: str) -> None:
    """Each kind of mistake is named, and no other."""
    problems = judge(PLAN, MISTAKES[problem](arrived()), [Settled(4_000, 100)]).problems
    assert problems
    assert all(message.startswith(problem.partition(":")[0]) for message in problems)
    assert problems[0].startswith(problem)


def test_shards_are_checked_separately() -> None:
    """What is settled of one, and in which order its events come; two at
    once may come in any order.
    """
    division = Division(PLAN.count, files=7, of=3)
    places = [division.place(number) for number in range(PLAN.count)]
    parts = [
        [number for number, (shard, _) in enumerate(places) if shard == shard_number]
        for shard_number in range(3)
    ]
    assert [[places[number][1] for number in part] for part in parts] == [
        list(range(division.size(shard_number))) for shard_number in range(3)
    ]
    assert [places[number][0] for number in (0, 300, 600, 900)] == [0, 1, 2, 0]
    assert {places[number][0] for number in division.records(6)} == {0}
    backwards = [
        came(number, at + 1) for at, number in enumerate([*parts[2], *parts[1], *parts[0]])
    ]
    assert judge(PLAN, backwards, division=division).problems == []
    assert judge(PLAN, backwards).problems
    again = [came(parts[1][number], 5_000, "duplicate") for number in (40, 41)]
    verdict = judge(
        PLAN, [*backwards, *again], [Settled(4_000, 40, 1), Settled(4_000, 300, 0)], division
    )
    assert (verdict.problems, verdict.repeats, verdict.repeated) == ([], 2, {1})
    [problem] = judge(PLAN, [*backwards, *again], [Settled(4_000, 41, 1)], division).problems
    assert problem == f"was settled and came again: {parts[1][40]}, when the first 41 were"


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_the_source_is_what_the_plan_says(suffix: str, tmp_path: Path) -> None:
    """Lines of some 600 bytes, each an event with its number; most in the order of time, some of
    the day before.
    """
    path = tmp_path / f"events.jsonl{suffix}"
    size = write(PLAN, path)
    with gzip.open(path) if suffix == ".gz" else zstandard.open(path, "rb") as file:
        lines = file.read().splitlines()
    assert size == sum(len(line) + 1 for line in lines)
    assert 550 < size / PLAN.count < 650
    events = [msgspec.json.decode(line) for line in lines]
    assert [event["properties"]["n"] for event in events] == list(range(PLAN.count))
    assert (
        50
        <= sum(later["timestamp"] < earlier["timestamp"] for earlier, later in pairwise(events))
        < PLAN.count // 2
    )
    assert (
        len({event["uuid"] for event in events if "uuid" in event})
        == PLAN.count - PLAN.count // BARE
    )


@cases("seed", range(20))
def test_kills_are_spread_over_all_of_it(seed: int) -> None:
    """One in each part of what has to arrive, in order; the others before anything can."""
    kills = schedule(seed, 10, reading=3, patience=1)
    shares = [kill.share for kill in kills if kill.share is not None]
    assert [int(share * 10) for share in shares] == list(range(10))
    assert len(kills) - len(shares) == READING
    assert kills[0].share is None
    assert all(0 <= kill.after <= (3 if kill.share is None else 1) for kill in kills)
    assert schedule(seed, 10, reading=3, patience=1) == kills
