"""The broker of the tests and of the demo: what it keeps over a restart, and that nothing of it is
left behind.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.kafka import Kafka, MakeTopic, Record, add_partitions, committed, ends, produce
from tests.support.waiting import in_thread

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("compression", [None, "gzip", "snappy", "lz4", "zstd"])
async def test_what_is_produced_is_there(
    kafka: Kafka, topic: MakeTopic, compression: str | None
) -> None:
    """Every compression, keys, headers, tombstones and chosen partitions reach the broker, and
    each record's place is reported.
    """
    name = await topic(2)
    records = [
        Record(b"a" * 1000, b"key", [("h", b"\xff")], 0, 1_700_000_000_000),
        Record(None, b"key", partition=0),
        Record(b"b", partition=1),
    ]
    assert await produce(kafka.bootstrap, name, records, compression) == [(0, 0), (0, 1), (1, 0)]
    assert await ends(kafka.bootstrap, name) == {0: 2, 1: 1}


async def test_a_broker_killed_and_started_again_has_its_records_and_its_address(
    kafka: Kafka, topic: MakeTopic
) -> None:
    """kill -9 costs nothing that was acknowledged, and clients find the broker where it was."""
    name = await topic()
    await produce(kafka.bootstrap, name, [b"1", b"2"])
    await in_thread(lambda: kafka.broker.restart(kill=True))
    await produce(kafka.bootstrap, name, [b"3"])
    assert await ends(kafka.bootstrap, name) == {0: 3}


async def test_partitions_are_added(kafka: Kafka, topic: MakeTopic) -> None:
    """A topic grows; a group that has committed nothing has no offsets."""
    name = await topic()
    await add_partitions(kafka.bootstrap, name, 3)
    assert await ends(kafka.bootstrap, name) == {0: 0, 1: 0, 2: 0}
    assert await committed(kafka.bootstrap, "nobody", name) == {}


ENDS = """
import os, signal, sys
from forwarder.demo.broker import Broker, BrokerOptions
with Broker(BrokerOptions(port=int(sys.argv[1]))) as broker:
    print(broker.bootstrap, broker.log_file.parent, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_broker_dies_with_the_process_that_made_it(kafka: Kafka) -> None:
    """Of a process that is killed with -9 neither the broker nor its data is left. It was asked for
    a port that another broker listens on, and had one of its own.
    """
    busy_port = kafka.bootstrap.rpartition(":")[2]
    ended = subprocess.run(
        [sys.executable, "-c", ENDS, busy_port],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    # the guard holds its stderr: it has ended as well by now
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    bootstrap, folder = ended.stdout.split()
    assert bootstrap != kafka.bootstrap
    assert not Path(folder).exists()
    assert [
        path.parent.name
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if folder in _command(path)
    ] == []


def _command(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:  # it has ended meanwhile
        return ""
