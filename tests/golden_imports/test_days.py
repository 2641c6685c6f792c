"""Records that alternate between many days: no request mixes two, each person keeps its order, and
requests are large.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import pytest

from tests.golden_imports.making import Dice, Record, as_json, lines, zulu
from tests.golden_imports.recording import RecordedBatch, command, recording, target

pytestmark = pytest.mark.slow
DAYS: Final = 15
EVENTS: Final = 30_000
"""Of each day enough for several requests."""
LEAST: Final = 500
"""Events of a request on average, those at the end aside."""
FIRST: Final = datetime(2024, 3, 1, tzinfo=UTC)


def alternating() -> list[Record]:
    """Each event is of another day than its neighbours; most persons have one event, ten have one
    of each 500.
    """
    dice = Dice(11)
    return [
        {
            "event": "seen",
            "distinct_id": f"often-{number // 500 % 10}" if number % 500 == 0 else f"once-{number}",
            "uuid": dice.uuid(),
            "timestamp": zulu(FIRST + timedelta(days=number % DAYS, milliseconds=number)),
            "properties": {"n": number},
        }
        for number in range(EVENTS)
    ]


@pytest.fixture(scope="module")
def batches(tmp_path_factory: pytest.TempPathFactory) -> Sequence[RecordedBatch]:
    """The requests of one import with default limits."""
    folder = tmp_path_factory.mktemp("days")
    (folder / "events.jsonl").write_bytes(lines(map(as_json, alternating())))
    with recording(lambda _: False) as service:
        done = command(
            "import",
            "native",
            folder / "events.jsonl",
            "--until",
            "2024-06-01",
            *target(service, folder / "state"),
        )
    assert done.code == 0, done.err
    return service.batches


def test_no_request_mixes_days_and_each_person_keeps_its_order(
    batches: Sequence[RecordedBatch],
) -> None:
    """All events are there once."""
    assert {len(batch.days) for batch in batches} == {1}
    sent = [fact for batch in batches for fact in batch.facts]
    expected: dict[str, list[str]] = {}
    actual: dict[str, list[str]] = {}
    for event in alternating():
        expected.setdefault(event["distinct_id"], []).append(event["uuid"])
    for fact in sent:
        actual.setdefault(fact.distinct_id, []).append(fact.uuid)
    assert actual == expected


def test_requests_are_large_though_days_alternate(batches: Sequence[RecordedBatch]) -> None:
    """On average, except the last request of each day."""
    last = {max(batch.days): number for number, batch in enumerate(batches)}
    sizes = [
        len(batch.events) for number, batch in enumerate(batches) if number not in last.values()
    ]
    assert len(batches) <= EVENTS / LEAST + DAYS
    assert sum(sizes) >= LEAST * len(sizes)
