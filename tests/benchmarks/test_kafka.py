"""The Kafka cases: their records, their names, and one short round against a real broker. Nothing
here looks at how fast anything is.
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from statistics import mean

import pytest

from benchmarks.bodies import API_KEY
from benchmarks.events import MARKER, EventMaker
from benchmarks.kafka import CASES, Reading, Topic, kafka_row, select
from benchmarks.processes import free_port
from benchmarks.records import Content, record
from benchmarks.targets import Machine, Target
from benchmarks.throughput import Figure
from tests.support.cases import cases
from tests.support.kafka import Kafka, unique

COUNT = 5000
TWO_CORES = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2,
    reason="the benchmarks need a core for the target and one for the load",
)


def made(content: Content) -> list[tuple[bytes, bytes]]:
    """Some records."""
    maker = EventMaker(seed=1, beginning=datetime.now(UTC))
    return [record(maker, content) for _ in range(300)]


def test_records_are_of_about_500_bytes() -> None:
    """As the agreed figure has them; the sink finds each one's marker once."""
    values = [value for _, value in made(Content.STAMPED)]
    assert 480 <= mean(map(len, values)) <= 540
    assert {value.count(MARKER) for value in values} == {1}


@cases(
    ("content", "names"),
    [
        (Content.STAMPED, {"api_key", "uuid", "timestamp"}),
        (Content.KEYLESS, {"uuid", "timestamp"}),
        (Content.BARE, {"api_key"}),
    ],
)
def test_records_bring_what_their_name_says(content: Content, names: set[str]) -> None:
    """Beside name, distinct_id and properties; the key is the distinct_id."""
    for key, value in made(content):
        event = json.loads(value)
        assert set(event) == {"event", "distinct_id", "properties"} | names
        assert event["distinct_id"].encode() == key


def test_cases_are_chosen_by_name() -> None:
    """All of them without a pattern; their names are different."""
    assert select([]) == list(CASES)
    assert len({case.name for case in CASES}) == len(CASES)
    assert [case.name for case in select(["kafka-stamped-none"])] == ["kafka-stamped-none"]
    assert select(["stamped-*"]) == []


def test_the_daemon_is_configured_for_its_case_only() -> None:
    """Everything else is a default; the project key is in the configuration
    where records bring none.
    """
    reported = {
        case.name: json.loads(case.settings("b:9092", "t", "g")["FORWARDER_SOURCES__KAFKA"])
        for case in CASES
    }
    plain = {"bootstrap_servers": "b:9092", "topics": ["t"], "group_id": "g"}
    assert reported["kafka-stamped-gzip"] == [plain]
    assert reported["kafka-keyless-none"] == [{**plain, "api_key": API_KEY}]
    assert reported["kafka-stamped-none-disk"] == [{**plain, "commit": "disk"}]


@pytest.mark.long
@TWO_CORES
def test_floor_and_case_read_every_record(kafka: Kafka) -> None:
    """Both read a whole topic, and nothing is lost; its line says what it is compared with."""
    [case] = select(["kafka-stamped-gzip"])
    cores = sorted(os.sched_getaffinity(0))
    target = Target(free_port(), free_port())
    reading = Reading(
        Machine(cores[0], cores[1]), target, kafka.bootstrap, unique("benchmark"), records=COUNT
    )
    figure = Figure()
    floor = Figure()
    with reading.topics([case]):
        reading.floor(Topic(Content.STAMPED, "none"), floor)
        reading.case(case, figure)
    row = kafka_row(case, figure, floor)
    assert (row["case"], row["against"], row["lost"], floor.lost) == (
        "kafka-stamped-gzip",
        "counting loop",
        0,
        0,
    )
    assert row["ratio"] == round(figure.rate / floor.rate, 3) > 0
