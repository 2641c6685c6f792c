"""The Compose file with Kafka: read as text, and its producer and forwarders run with the same
settings against a real broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from forwarder.config.load import load_settings
from forwarder.sandbox import Sandbox
from tests.deploy.composing import check_mounts, check_privileges, published_to_others
from tests.support.cases import cases
from tests.support.commands import Running, running
from tests.support.deployment import CONFIGURATION, DEPLOY, STATE, holds, port, seconds
from tests.support.dockerfile import FORWARDER as FORWARDER_IMAGE
from tests.support.kafka import Kafka, unique
from tests.support.typed import options
from tests.support.waiting import LIMIT, tick

FOLDER = DEPLOY / "compose"
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "kafka.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
MEMBERS = ("forwarder-1", "forwarder-2")
OURS = (*MEMBERS, "producer", "sandbox")
FILE = FOLDER / "kafka" / "forwarder.yaml"
PRODUCER = FOLDER / "kafka" / "producer.py"
CONFIGURED = load_settings(FILE, FORWARDER_IMAGE.environment).settings
BROKER: dict[str, str] = SERVICES["kafka"]["environment"]


@cases("service", SERVICES)
def test_ports_are_published_to_this_machine_alone(service: str) -> None:
    """The broker, the admin servers and the sandbox have no password."""
    assert published_to_others(SERVICES[service]) == []


@cases("service", SERVICES)
def test_services_have_no_privileges(service: str) -> None:
    """All capabilities are dropped, none can be gained, and ours can't write
    to their root file system.
    """
    check_privileges(SERVICES[service], read_only=service in OURS)


@cases("service", SERVICES)
def test_what_is_mounted_exists(service: str) -> None:
    """Each file is there and can't be written to; each volume is declared, and no two services
    share one.
    """
    check_mounts(SERVICES[service], FOLDER, COMPOSE["volumes"])
    named = [
        volume.partition(":")[0]
        for declared in SERVICES.values()
        for volume in declared.get("volumes", ())
        if not volume.startswith(".")
    ]
    assert sorted(named) == sorted(COMPOSE["volumes"])


def test_both_forwarders_are_members_of_one_group() -> None:
    """They read the same file, whose group has no name of a member in it; each has a volume and an
    address of its own.
    """
    assert {SERVICES[service]["image"] for service in MEMBERS} == {"forwarder:1.0.0rc1"}
    for service in MEMBERS:
        assert f"./{FILE.relative_to(FOLDER)}:{CONFIGURATION}:ro" in SERVICES[service]["volumes"]
        assert f"{service}:{STATE}" in SERVICES[service]["volumes"]
        assert SERVICES[service]["ports"][0].endswith(f":{port(CONFIGURED.admin.listen)}")
        assert holds(seconds(SERVICES[service]["stop_grace_period"]), CONFIGURED)
    assert SERVICES["forwarder-1"]["ports"] != SERVICES["forwarder-2"]["ports"]
    assert CONFIGURED.sources.kafka[0].group_instance_id is None


def test_addresses_between_services() -> None:
    """Producer and forwarders use the broker's own listener and the same topic; the forwarders
    deliver to the sandbox.
    """
    [cluster] = CONFIGURED.sources.kafka
    assert list(cluster.bootstrap_servers) == [
        SERVICES["producer"]["environment"]["BOOTSTRAP_SERVERS"]
    ]
    listeners = BROKER["KAFKA_ADVERTISED_LISTENERS"].split(",")
    assert f"PLAINTEXT://{cluster.bootstrap_servers[0]}" in listeners
    assert list(cluster.topics) == [SERVICES["producer"]["environment"]["TOPIC"]]
    command = SERVICES["sandbox"]["command"]
    assert {option for option in command if option.startswith("--")} <= options(command)
    assert (
        CONFIGURED.upstream.url == f"http://sandbox:{port(command[command.index('--listen') + 1])}"
    )


def test_the_broker_is_one_node() -> None:
    """Every listener has a protocol, clients are notified of all but the controller's, and nothing
    wants more copies than there are nodes.
    """
    listeners = dict(listener.split("://") for listener in BROKER["KAFKA_LISTENERS"].split(","))
    advertised = dict(
        listener.split("://") for listener in BROKER["KAFKA_ADVERTISED_LISTENERS"].split(",")
    )
    assert set(listeners) == {
        listener.partition(":")[0]
        for listener in BROKER["KAFKA_LISTENER_SECURITY_PROTOCOL_MAP"].split(",")
    }
    assert set(advertised) == set(listeners) - {BROKER["KAFKA_CONTROLLER_LISTENER_NAMES"]}
    assert advertised["HOST"].rpartition(":")[2] == SERVICES["kafka"]["ports"][0].rpartition(":")[2]
    assert {
        value for name, value in BROKER.items() if name.endswith(("REPLICATION_FACTOR", "MIN_ISR"))
    } == {"1"}
    assert SERVICES["kafka"]["volumes"] == [f"log:{BROKER['KAFKA_LOG_DIRS']}"]


@contextlib.asynccontextmanager
async def member(file: Path, state: Path) -> AsyncIterator[Running]:
    """One of the forwarders, with a directory of its own."""
    environment = {
        "STATE_DIRECTORY": str(state),
        "FORWARDER_SOURCES__HTTP__LISTEN": "127.0.0.1:0",
        "FORWARDER_ADMIN__LISTEN": "127.0.0.1:0",
    }
    async with running("run", "--config", str(file), env=environment) as daemon:
        await daemon.line('"event": "listening"')
        yield daemon
        daemon.send(signal.SIGTERM)
        assert await daemon.ended() == 0, daemon.lines


async def produced(bootstrap: str, topic: str, events: int) -> list[str]:
    """Let the sample producer produce so many events; what it said."""
    environment = {
        **os.environ,
        "BOOTSTRAP_SERVERS": bootstrap,
        "TOPIC": topic,
        "EVENTS": str(events),
        "EVENTS_PER_SECOND": "10000",
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(PRODUCER),
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    producer = Running(process)
    assert await producer.ended() == 0, producer.lines
    return producer.lines


@pytest.mark.slow
async def test_the_sample_runs(tmp_path: Path, kafka: Kafka) -> None:
    """Both forwarders with the sample's configuration: what its producer produces arrives, each
    event once.
    """
    topic = unique("shop-events")
    assert (await produced(kafka.bootstrap, topic, 300))[-1] == "300 events"
    async with Sandbox() as sandbox:
        text = (
            FILE.read_text()
            .replace("http://sandbox:8322", sandbox.url)
            .replace("kafka:9092", kafka.bootstrap)
        )
        file = tmp_path / "forwarder.yaml"
        file.write_text(
            text.replace("shop-events", topic).replace("forwarder-sample", unique("group"))
        )
        async with member(file, tmp_path / "one"), member(file, tmp_path / "two"):
            async with asyncio.timeout(LIMIT):
                while (await sandbox.summary()).events < 300:
                    await tick()
        numbers = [json.loads(event.properties)["number"] for event in await sandbox.events()]
        assert sorted(set(numbers)) == list(range(300))
        assert await sandbox.conflicts() == []
