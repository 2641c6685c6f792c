"""The short form of the soak: until its first fault, ended early as by Ctrl-C. The long form is
`make soak`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.soak.report import soak_text
from tests.soak.soak import Soak, SoakOptions
from tests.support.kafka import Kafka
from tests.support.waiting import eventually

SEED = 20240229
LIMIT = 40.0


@pytest.mark.long
async def test_everything_arrives_and_nothing_grows(kafka: Kafka, tmp_path: Path) -> None:
    """A mixed load with a fault upstream, ended while more was to come: every accepted event
    arrived or is a dead letter.
    """
    soak = Soak(SoakOptions(SEED, 60.0, 200.0), tmp_path, kafka.bootstrap)
    task = asyncio.create_task(soak.run())
    await eventually(lambda: task.done() or (soak.report.faults and soak.report.records), LIMIT)
    assert soak.stop()
    assert not soak.stop()
    report = await task
    assert report.failed() == [], soak_text(report)
    assert report.interrupted
    assert report.http.distinct + report.http.dead == report.http.accepted > 0
    assert (report.kafka.distinct, report.imported.distinct) == (
        report.kafka_events,
        report.import_events,
    )
    assert min(report.kafka_events, report.import_events, len(report.flags), len(report.looks)) > 0
    assert len(report.books) >= 2
