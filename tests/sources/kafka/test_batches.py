"""Records of a partition as units: their sizes, what is known of each, what is
left out, what is refused.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from forwarder.core.ports import Reason
from forwarder.core.record_intake import RecordFacts
from forwarder.core.stamps import derived_uuid
from forwarder.mapping import NotJson, Unmappable
from forwarder.sources.hand_over import MAX_BYTES, MAX_RECORDS
from forwarder.sources.kafka.batches import (
    TIMED_SINCE,
    KafkaBatch,
    cut,
)
from forwarder.sources.kafka.policy import KafkaPolicy
from tests.support.record_intakes import FakeRecord, records

PARTITION = ("events", 3)
POLICY = KafkaPolicy(name="main", bootstrap_servers=("a:9092",), api_key="phc_configured")


class Shout:
    """A mapping that knows a few words."""

    def map_record(self, data: bytes, time: float | None = None) -> bytes | None:
        """Words in capitals; None for silence."""
        if data == b"rubbish":
            raise NotJson("it is no JSON text")
        if data == b"odd":
            raise Unmappable("event: the expression gives nothing")
        return None if data == b"silence" else data.upper()


def one(policy: KafkaPolicy, *records_of_unit: FakeRecord) -> KafkaBatch:
    """The only unit of these records."""
    [unit] = cut(policy, PARTITION, records_of_unit)
    return unit


def spans(units: Sequence[KafkaBatch]) -> list[tuple[int, int, int]]:
    """First, end and count of each."""
    return [(unit.first, unit.end, unit.count) for unit in units]


def test_units_have_so_many_records() -> None:
    """No more than the limit, in order, each beginning after the one before."""
    units = cut(POLICY, PARTITION, records(range(10, 10 + 2 * MAX_RECORDS + 1)))
    assert spans(units) == [
        (10, 10 + MAX_RECORDS, MAX_RECORDS),
        (10 + MAX_RECORDS, 10 + 2 * MAX_RECORDS, MAX_RECORDS),
        (10 + 2 * MAX_RECORDS, 11 + 2 * MAX_RECORDS, 1),
    ]


def test_units_have_so_many_bytes() -> None:
    """Large records make small units; a record that is larger than the limit is one by itself."""
    units = cut(POLICY, PARTITION, records(range(10), b"x" * 300_000))
    assert all(unit.size <= MAX_BYTES for unit in units)
    assert [value for unit in units for value in unit.values] == [b"x" * 300_000] * 10
    assert spans(cut(POLICY, PARTITION, records([4], b"x" * (MAX_BYTES + 1)))) == [(4, 5, 1)]


def test_gaps_are_within_and_between_units() -> None:
    """Offsets that are left out, as in compacted topics, hold nothing."""
    assert spans([one(POLICY, FakeRecord(3), FakeRecord(9), FakeRecord(20))]) == [(3, 21, 3)]


def test_facts_are_the_records() -> None:
    """Its place, its own time, the configured key; nothing else unless it is asked for."""
    unit = one(POLICY, FakeRecord(1), FakeRecord(7, key=b"who", timestamp=1_767_225_600_250))
    assert unit.facts(1) == RecordFacts("main/events/3/7", 1_767_225_600.25, "phc_configured", None)
    assert unit.api_key == "phc_configured"


def test_names_and_times_are_those_of_the_facts() -> None:
    """Of some records, in any order."""
    unit = one(
        POLICY,
        FakeRecord(1),
        FakeRecord(7, None),
        FakeRecord(8, timestamp=-1),
        FakeRecord(9, timestamp=1_767_225_600_250),
        FakeRecord(10, timestamp=TIMED_SINCE),
    )
    wanted = [2, 0, 3, 1]
    facts = [unit.facts(index) for index in wanted]
    assert unit.names(wanted) == [fact.identity or fact.name for fact in facts]
    assert unit.times(wanted) == [unit.facts(index).at for index in wanted]


@pytest.mark.parametrize(
    ("timestamp", "name"),
    [
        (TIMED_SINCE, f"main/events/3/7@{TIMED_SINCE}"),
        (TIMED_SINCE + 1, f"main/events/3/7@{TIMED_SINCE + 1}"),
        (TIMED_SINCE - 1, "main/events/3/7"),
        (-1, "main/events/3/7"),
        (None, "main/events/3/7"),
    ],
)
def test_uuids_are_derived_from_position_and_time(timestamp: int | None, name: str) -> None:
    """Position and time: an offset may be another record's after a topic was created again. Those
    of records from before that was so don't change.
    """
    unit = one(POLICY, FakeRecord(7, timestamp=timestamp))
    assert unit.names([0]) == [name]
    assert unit.facts(0).name == "main/events/3/7"
    assert unit.facts(0).uuid(0) == derived_uuid(f"{name}/0")


def test_a_record_without_a_time_has_none() -> None:
    """As brokers say it: a negative one, or in the oldest form of records nothing."""
    assert one(POLICY, FakeRecord(0, timestamp=-1)).facts(0).at is None
    assert one(POLICY, FakeRecord(0, timestamp=None)).facts(0).at is None
    assert one(POLICY, FakeRecord(0, timestamp=0)).facts(0).at == 0.0


def test_the_key_may_be_the_distinct_id() -> None:
    """If the policy says so, and it is text."""
    policy = replace(POLICY, key_is_distinct_id=True)
    unit = one(
        policy, FakeRecord(0, key="Ünal".encode()), FakeRecord(1, key=b"\xff\xfe"), FakeRecord(2)
    )
    assert [unit.facts(index).distinct_id for index in range(3)] == ["Ünal", None, None]


def test_the_project_key_may_be_in_a_header() -> None:
    """Then each record is asked for its own; the last header of that name counts, and the
    configured key where there is none.
    """
    policy = replace(POLICY, api_key_header="project")
    headers = (("project", b"phc_first"), ("other", b"x"), ("project", b"phc_second"))
    unit = one(
        policy,
        FakeRecord(0, headers=headers),
        FakeRecord(1),
        FakeRecord(2, headers=(("project", None),)),
    )
    assert unit.api_key is None
    assert [unit.facts(index).api_key for index in range(3)] == [
        "phc_second",
        "phc_configured",
        "phc_configured",
    ]


def test_attributes_keep_what_is_beside_the_value() -> None:
    """Topic, partition, offset, key and headers, those that are no text too."""
    headers = (("trace", b"1-2"), ("raw", b"\xff\x00"), ("none", None))
    unit = one(POLICY, FakeRecord(12, key=b"\xfe", headers=headers))
    assert json.loads(unit.attributes(0)) == {
        "topic": "events",
        "partition": 3,
        "offset": 12,
        "key": {"base64": base64.b64encode(b"\xfe").decode()},
        "headers": [
            ["trace", "1-2"],
            ["raw", {"base64": base64.b64encode(b"\xff\x00").decode()}],
            ["none", None],
        ],
    }
    assert json.loads(one(POLICY, FakeRecord(1)).attributes(0))["key"] is None


def test_tombstones_are_left_out() -> None:
    """What is known by index is known of the records that are left."""
    unit = one(
        POLICY,
        FakeRecord(5, None),
        FakeRecord(6, b"a"),
        FakeRecord(7, None),
        FakeRecord(8, b"b"),
        FakeRecord(9, None),
    )
    assert (unit.values, unit.tombstones, unit.count, unit.size) == ([b"a", b"b"], 3, 5, 2)
    assert (unit.first, unit.end) == (5, 10)
    assert [unit.facts(index).name for index in range(2)] == ["main/events/3/6", "main/events/3/8"]


def test_foreign_records_are_mapped() -> None:
    """Some aren't events, some can't become any; each is distinguished from the others."""
    policy = replace(POLICY, mapping=Shout())
    values = (b"hello", b"silence", b"odd", None, b"rubbish", b"bye")
    unit = one(
        policy, *(FakeRecord(offset, value, key=b"k") for offset, value in enumerate(values))
    )
    assert unit.values == [b"HELLO", b"BYE"]
    assert (unit.foreign, one(POLICY, FakeRecord(0, b"{}")).foreign) == (True, False)
    assert (unit.filtered, unit.tombstones, unit.count) == (1, 1, 6)
    assert [
        (rejected.reason, rejected.data, rejected.facts.name) for rejected in unit.rejected
    ] == [
        (Reason.UNMAPPABLE, b"odd", "main/events/3/2"),
        (Reason.UNDECODABLE, b"rubbish", "main/events/3/4"),
    ]
    assert json.loads(unit.rejected[0].attributes)["offset"] == 2
    assert unit.facts(1).name == "main/events/3/5"


@pytest.mark.parametrize("mapping", [None, Shout()])
def test_halves_are_the_whole(mapping: Shout | None) -> None:
    """Cut in two, the same records are in the same order, and nothing is between them."""
    values = (b"a", None, b"odd", b"silence", b"b")
    unit = one(
        replace(POLICY, mapping=mapping),
        *(FakeRecord(offset, value) for offset, value in enumerate(values, 10)),
    )
    first, second = unit.halves()
    assert (first.first, first.end, second.end) == (unit.first, second.first, unit.end)
    assert [*first.values, *second.values] == list(unit.values)
    assert [*first.rejected, *second.rejected] == list(unit.rejected)
    assert first.count + second.count == unit.count
    assert first.size + second.size == unit.size


def test_accepted_records_are_released() -> None:
    """Nothing of the records is kept then but what is counted."""
    unit = one(POLICY, FakeRecord(5))
    unit.forget()
    assert (list(unit.values), unit.first, unit.end, unit.size) == ([], 5, 6, 2)
