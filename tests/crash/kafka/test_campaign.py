"""The short forms of the Kafka crash tests, on real processes and a broker of their own. The long
form is `make test-crash-kafka`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.kafka.campaign import KafkaCampaign, KafkaOptions
from tests.crash.kafka.hostile import HostileHour
from tests.support.kafka import Kafka

pytestmark = pytest.mark.slow
SEED = 20240229


async def test_everything_arrives_whatever_fails(kafka: Kafka, tmp_path: Path) -> None:
    """Two forwarders, one of them killed, the broker killed, the upstream failing in three ways:
    every event is at the sandbox, once as far as it can tell, unchanged and in order for each id;
    what came twice came so with the same bytes.
    """
    report = await KafkaCampaign(
        KafkaOptions(SEED, 8_000, partitions=4, persons=100, short=True), tmp_path, kafka.broker
    ).run()
    assert report.distinct == report.events > 8_000
    assert report.repeats >= report.repeated_bare > 0
    assert len(report.done) == 5
    assert report.looks > 100


@pytest.mark.long
async def test_members_that_come_go_and_stall(kafka: Kafka, tmp_path: Path) -> None:
    """Forwarders join, leave, are killed, and are stopped until the group does without them:
    nothing is lost, nor committed over others.
    """
    options = KafkaOptions(SEED, 3_000, partitions=4, persons=100)
    report = await HostileHour(options, tmp_path, kafka.broker, deeds=3).run()
    assert report.distinct == report.events > 3_000
    assert any("stopped" in deed for deed in report.done)
    assert len(report.done) == 3
