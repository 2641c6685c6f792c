"""What the broker is told: one node that is broker and controller, small in memory, threads and files, quick to start and to rebalance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

HOST: Final = "127.0.0.1"
CONTROLLER: Final = "CONTROLLER"


@dataclass(frozen=True, slots=True)
class Listener:
    """One address of the broker. `settings` are those that Kafka has per listener (`listener.name.…`); `advertised` is where it tells
    clients to find it, if that isn't where it is."""

    name: str = "PLAIN"
    protocol: str = "PLAINTEXT"
    settings: Mapping[str, str] = field(default_factory=dict)
    advertised: str = ""


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """How a broker differs from the usual. The first listener is the broker's own, too, and must ask for no login."""

    listeners: tuple[Listener, ...] = (Listener(),)
    settings: Mapping[str, str] = field(default_factory=dict)
    """Kafka's own settings, which win."""
    users: tuple[str, ...] = ()
    """SCRAM users as its storage tool wants them, `SCRAM-SHA-256=[name=…,password=…]`."""
    port: int = 0
    """Of the first listener; any free one if something else listens there, or for 0."""
    heap: str = "512m"


_SMALL: Final = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "auto.create.topics.enable": "false",
    "background.threads": "2",
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "3000",
    "group.coordinator.threads": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    "log.cleaner.dedupe.buffer.size": "4194304",
    "log.index.size.max.bytes": "1048576",
    "log.segment.bytes": "16777216",
    "min.insync.replicas": "1",
    "num.io.threads": "2",
    "num.network.threads": "1",
    "num.partitions": "1",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.segment.bytes": "1048576",
    "share.coordinator.threads": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.segment.bytes": "1048576",
}


def properties(options: BrokerOptions, ports: Mapping[str, int], data: Path) -> str:
    """The broker's configuration file; `ports` has one for each listener, and one for the controller."""
    addresses = {name: f"{name}://{HOST}:{port}" for name, port in ports.items()}
    advertised = [f"{each.name}://{each.advertised}" if each.advertised else addresses[each.name] for each in options.listeners]
    protocols = {CONTROLLER: "PLAINTEXT"} | {listener.name: listener.protocol for listener in options.listeners}
    told = {
        **_SMALL,
        "log.dirs": str(data),
        "listeners": ",".join(addresses.values()),
        "advertised.listeners": ",".join(advertised),
        "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
        "inter.broker.listener.name": options.listeners[0].name,
        "controller.listener.names": CONTROLLER,
        "controller.quorum.voters": f"1@{HOST}:{ports[CONTROLLER]}",
    }
    for listener in options.listeners:
        told |= {f"listener.name.{listener.name.lower()}.{key}": value for key, value in listener.settings.items()}
    return "".join(f"{key}={_escaped(value)}\n" for key, value in (told | dict(options.settings)).items())


def _escaped(value: str) -> str:
    """As Java's files of properties have it: a backslash starts an escape, and what isn't ASCII is one, in UTF-16."""
    plain = value.replace("\\", "\\\\").replace("\n", "\\n")
    units = [each if each.isascii() else each.encode("utf-16-be").hex() for each in plain]
    return "".join(each if len(each) == 1 else "".join(f"\\u{each[at : at + 4]}" for at in range(0, len(each), 4)) for each in units)
