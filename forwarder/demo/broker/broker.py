"""One Kafka broker as a process: started, stopped, killed and restarted on the same data and ports.

Its configuration is one node that is broker and controller, small in memory, threads and files,
fast to start and to rebalance.

Invariants: it ends with the process that created it, in every case (see `guard`), and its data
with it; between `start` and the end of the block this process holds the same two descriptors,
whatever the broker does; ports are outside the range of outgoing connections, because a restart
could find its own port in use otherwise.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final

from forwarder.core.error_text import error_text
from forwarder.demo.broker.jars import BrokerUnavailable, class_path, java

START_SECONDS: Final = 40.0
"""A start takes three seconds on an idle machine."""

STOP_SECONDS: Final = 30.0
ATTEMPTS: Final = 5
"""At a first start: a port that was free a moment ago may be taken by then."""

PORTS: Final = range(20_000, 32_000)
LOG_LINES: Final = 15
"""Of the broker's log, quoted when it fails."""

_STARTED: Final = "Kafka Server started"
_TAKEN: Final = "Address already in use"
_CLUSTER: Final = "Zm9yd2FyZGVyLWJyb2tlcg"
_POLL: Final = 0.05
_QUIET: Final = (
    "-Xshare:auto",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
    "-Dorg.slf4j.simpleLogger.log.kafka.server.KafkaRaftServer=info",
    "-Dlog4j2.disable.jmx=true",
    "--enable-native-access=ALL-UNNAMED",
    "--sun-misc-unsafe-memory-access=allow",
)


class Broker:
    """A broker with its data in a folder of its own, which is removed at the end. Its methods
    block: a loop calls them in a thread.

    with Broker() as broker:      # fetched if need be, started; killed at the end
        broker.bootstrap          # "127.0.0.1:…"
    """

    def __init__(self, options: BrokerOptions | None = None) -> None:
        self.options = options or BrokerOptions()
        self._folder = Path("/nonexistent")
        self._ports: dict[str, int] = {}
        self._guard: subprocess.Popen[str] | None = None

    def __enter__(self) -> Broker:
        try:
            self._start_anew()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def bootstrap(self) -> str:
        """Where clients of the first listener connect to."""
        return self.address(self.options.listeners[0].name)

    def address(self, listener: str) -> str:
        """Where clients of a listener connect to."""
        return f"{HOST}:{self._ports[listener]}"

    @property
    def log(self) -> str:
        """What the broker has written so far."""
        with contextlib.suppress(FileNotFoundError):
            return self.log_file.read_text(errors="replace")
        return ""

    @property
    def log_file(self) -> Path:
        """In the folder that also holds its data."""
        return self._folder / "broker.log"

    @property
    def running(self) -> bool:
        """Whether its process is there."""
        return self._order("look") == ""

    def start(self) -> None:
        """Start it on its data and ports; returns when it serves, at once if it
        runs. Raises `BrokerUnavailable`.
        """
        if self.running:
            return
        seen = len(self.log)
        self._order("start")
        if not self._until(lambda: _STARTED in self.log[seen:], START_SECONDS):
            raise BrokerUnavailable(
                f"the broker didn't start:\n{self._last_lines()}",
                hint="The end of its log is above.",
            )

    def stop(self) -> None:
        """SIGTERM, and wait for its end; killed after `STOP_SECONDS`. Nothing if it doesn't run."""
        if self.running:
            self._order("stop")
            self._until(lambda: False, STOP_SECONDS)
            self.kill()

    def kill(self) -> None:
        """kill -9; returns when it is gone."""
        self._order("kill")

    def restart(self, *, kill: bool = False) -> None:
        """Stop it, or kill it, and start it again on the same data and ports."""
        self.kill() if kill else self.stop()
        self.start()

    def close(self) -> None:
        """Kill it, and remove its data."""
        guard = self._guard
        self._guard = None
        if guard is not None:
            guard.communicate()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _properties(self) -> Path:
        return self._folder / "server.properties"

    def _start_anew(self) -> None:
        for attempt in range(1, ATTEMPTS + 1):
            self._format(0 if attempt > 1 else self.options.port)
            try:
                return self.start()
            except BrokerUnavailable:
                if attempt == ATTEMPTS or _TAKEN not in self.log:
                    raise
                self.close()
        return None

    def _format(self, first_port: int) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="forwarder-kafka-"))
        self._guard = self._launch()
        self._ports = _free_ports(
            [*(listener.name for listener in self.options.listeners), CONTROLLER], first_port
        )
        self._properties.write_text(properties(self.options, self._ports, self._folder / "data"))
        users = [word for user in self.options.users for word in ("--add-scram", user)]
        self._run(
            "kafka.tools.StorageTool",
            "format",
            "--cluster-id",
            _CLUSTER,
            "--config",
            str(self._properties),
            *users,
        )

    def _run(self, *tool: str) -> None:
        """Run one of Kafka's own tools to its end."""
        environment = os.environ | {"LC_ALL": "C.UTF-8"}  # how Java reads its arguments
        try:
            subprocess.run(  # noqa: S603 — Kafka's own, with arguments of ours
                [*self._java(), *tool],
                check=True,
                capture_output=True,
                stdin=subprocess.DEVNULL,
                env=environment,
                timeout=START_SECONDS,
            )
        except subprocess.SubprocessError as error:
            words = (
                getattr(error, "stderr", None)
                or getattr(error, "stdout", None)
                or error_text(error).encode()
            )
            raise BrokerUnavailable(
                f"the broker's storage can't be made: {words.decode(errors='replace').strip()}"
            ) from error

    def _java(self) -> list[str]:
        return [java(), f"-Xmx{self.options.heap}", *_QUIET, "-cp", class_path()]

    def _launch(self) -> subprocess.Popen[str]:
        """The guard hears no signal of the terminal: a Ctrl-C would end the broker before those
        who use it.
        """
        command = [*self._java(), "kafka.Kafka", str(self._properties)]
        return subprocess.Popen(  # noqa: S603 — this Python and the broker's Java
            [sys.executable, "-SE", Path(__file__).with_name("guard.py"), self._folder, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def _order(self, order: str) -> str:
        """Tell the guard; the broker's exit code, nothing while it runs, `none` if it was never
        started or is closed.
        """
        if self._guard is None or self._guard.stdin is None or self._guard.stdout is None:
            return "none"
        print(order, file=self._guard.stdin, flush=True)
        return self._guard.stdout.readline().strip()

    def _until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait until `condition` holds, for at most `seconds` and while the broker runs; whether
        it holds.
        """
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end or not self.running:
                return condition()
            time.sleep(_POLL)
        return True

    def _last_lines(self) -> str:
        return "\n".join(f"  {line}" for line in self.log.splitlines()[-LOG_LINES:])


def _free_ports(names: list[str], first: int) -> dict[str, int]:
    """One for each name, the first as wanted if it is free; all are held until all are found."""
    with contextlib.ExitStack() as held:
        return {name: _free(held, first if name == names[0] else 0) for name in names}


def _free(held: contextlib.ExitStack, wanted: int) -> int:
    candidates = [wanted] * bool(wanted) + random.sample(PORTS, 100)
    for port in candidates:
        holder = held.enter_context(socket.socket())
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):
            holder.bind((HOST, port))
            return port
    raise BrokerUnavailable(f"no port is free on {HOST}")


HOST: Final = "127.0.0.1"
CONTROLLER: Final = "CONTROLLER"


@dataclass(frozen=True, slots=True)
class BrokerListener:
    """One address of the broker. `settings` are those that Kafka has per listener
    (`listener.name.…`); `advertised` is the address that clients get, if it differs.
    """

    name: str = "PLAIN"
    protocol: str = "PLAINTEXT"
    settings: Mapping[str, str] = field(default_factory=dict)
    advertised: str = ""


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """How a broker differs from the default. The first listener is also the broker's own, and must
    not require a login.
    """

    listeners: tuple[BrokerListener, ...] = (BrokerListener(),)
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
    """The broker's configuration file; `ports` has one for each listener,
    and one for the controller.
    """
    addresses = {name: f"{name}://{HOST}:{port}" for name, port in ports.items()}
    advertised = [
        f"{socket.name}://{socket.advertised}" if socket.advertised else addresses[socket.name]
        for socket in options.listeners
    ]
    protocols = {CONTROLLER: "PLAINTEXT"} | {
        listener.name: listener.protocol for listener in options.listeners
    }
    properties = {
        **_SMALL,
        "log.dirs": str(data),
        "listeners": ",".join(addresses.values()),
        "advertised.listeners": ",".join(advertised),
        "listener.security.protocol.map": ",".join(
            f"{name}:{protocol}" for name, protocol in protocols.items()
        ),
        "inter.broker.listener.name": options.listeners[0].name,
        "controller.listener.names": CONTROLLER,
        "controller.quorum.voters": f"1@{HOST}:{ports[CONTROLLER]}",
    }
    for listener in options.listeners:
        properties |= {
            f"listener.name.{listener.name.lower()}.{key}": value
            for key, value in listener.settings.items()
        }
    return "".join(
        f"{key}={_escaped(value)}\n" for key, value in (properties | dict(options.settings)).items()
    )


def _escaped(value: str) -> str:
    """As Java's files of properties have it: a backslash starts an escape, and what isn't ASCII is
    one, in UTF-16.
    """
    plain = value.replace("\\", "\\\\").replace("\n", "\\n")
    escaped = ""
    for character in plain:
        if character.isascii():
            escaped += character
        else:
            units = character.encode("utf-16-be").hex()
            escaped += "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
    return escaped
