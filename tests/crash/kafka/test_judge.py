"""The checker of the Kafka crash test finds what is wrong, whatever it is, and
nothing where nothing is.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from uuid import NAMESPACE_OID, uuid5

import pytest

from tests.crash.kafka.judge import KafkaArrival, judge
from tests.crash.kafka.plan import IN_HEADER, IN_RECORD, RecordPlan, RecordShape

PLAN = RecordPlan(seed=5, count=200, persons=4, padding=3)


def arrived(plan: RecordPlan = PLAN) -> list[KafkaArrival]:
    """What should come: every event, in order, stamped."""
    return [came(plan, known) for known in sorted(plan.events())]


def came(plan: RecordPlan, known: tuple[int, int], stamp: str = "") -> KafkaArrival:
    """An event as it should come."""
    uuid = str(uuid5(NAMESPACE_OID, f"{known}{stamp}"))
    fields = {
        "distinct_id": plan.person(known[0]),
        "uuid": uuid,
        "timestamp": "2026-01-01T00:00:00Z",
    }
    return KafkaArrival(
        plan.lane(known[0]),
        b'%b,"properties":%b}' % (json.dumps(fields).encode()[:-1], plan.properties(known)),
    )


def first(shape: RecordShape, lane: str | None = None) -> int:
    """The first record of a shape."""
    return next(
        number
        for number in range(PLAN.count)
        if PLAN.shape(number) is shape and lane in (None, PLAN.lane(number))
    )


def test_what_should_come_is_in_order() -> None:
    """Nothing is wrong with it, also if all of it comes again."""
    verdict = judge(PLAN, arrived(), ordered=True)
    assert (verdict.problems, verdict.distinct, verdict.repeats) == ([], len(PLAN.events()), 0)
    verdict = judge(PLAN, [*arrived(), *arrived()], ordered=True)
    assert (verdict.problems, verdict.distinct, verdict.repeats) == (
        [],
        len(PLAN.events()),
        len(PLAN.events()),
    )
    assert 0 < verdict.repeated_bare < verdict.repeats


MISTAKES: dict[str, Callable[[list[KafkaArrival]], list[KafkaArrival]]] = {
    "never came: (0, 0)": lambda right: right[1:],
    "came out of order": lambda right: right[::-1],
    "was never written: (200, 0)": lambda right: [*right, came(RecordPlan(5, 201, 4, 3), (200, 0))],
    "was never written": lambda right: [*right, KafkaArrival(IN_RECORD, b"{}")],
    "was changed": lambda right: [
        KafkaArrival(right[0].api_key, right[0].raw.replace(b"xxx", b"xx")),
        *right[1:],
    ],
    "came again with other bytes": lambda right: [*right, came(PLAN, (0, 0), "another")],
    "came with the wrong project key": lambda right: [
        KafkaArrival("phc_somebodyElses000001", right[0].raw),
        *right[1:],
    ],
    "have one uuid": lambda right: [
        KafkaArrival(arrival.api_key, arrival.raw.replace(uuid_of(arrival), uuid_of(right[0])))
        for arrival in right
    ],
}


def uuid_of(arrival: KafkaArrival) -> bytes:
    """The uuid that stands in an event."""
    return str(json.loads(arrival.raw)["uuid"]).encode()


@pytest.mark.parametrize("problem", MISTAKES)
def test_what_is_wrong_is_found(problem: str) -> None:
    """Each kind of mistake is named, and no other."""
    problems = judge(PLAN, MISTAKES[problem](arrived()), ordered=True).problems
    assert problems
    assert all(message.startswith(problem.partition(":")[0]) for message in problems)
    assert problems[0].startswith(problem)


def test_order_is_only_asked_for_where_it_is_promised() -> None:
    """Without an order any will do."""
    assert judge(PLAN, arrived()[::-1], ordered=False).problems == []


def test_records_are_what_their_shape_says() -> None:
    """All shapes occur, and each record holds as many events as its plan says, with keys where
    they should be.
    """
    assert {PLAN.shape(number) for number in range(PLAN.count)} == set(RecordShape)
    array = first(RecordShape.ARRAY, IN_RECORD)
    batch = first(RecordShape.BATCH, IN_RECORD)
    assert [event["api_key"] for event in json.loads(PLAN.record(array).value or b"")] == [
        IN_RECORD
    ] * PLAN.size(array)
    body = json.loads(PLAN.record(batch).value or b"")
    assert (body["api_key"], len(body["batch"])) == (IN_RECORD, PLAN.size(batch))
    assert PLAN.record(first(RecordShape.TOMBSTONE)).value is None
    assert "distinct_id" not in json.loads(PLAN.record(first(RecordShape.NO_ID)).value or b"")
    bare = json.loads(PLAN.record(first(RecordShape.BARE)).value or b"")
    assert not {"uuid", "timestamp"} & bare.keys()
    packed = PLAN.record(first(RecordShape.GZIP)).value or b""
    assert json.loads(gzip.decompress(packed))["properties"]["n"] == first(RecordShape.GZIP)
    named = [PLAN.record(number) for number in range(PLAN.count) if PLAN.lane(number) == IN_HEADER]
    assert {record.headers for record in named} == {(("project", IN_HEADER.encode()),)}
