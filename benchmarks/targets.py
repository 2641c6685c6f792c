"""What can be measured: forwarder itself, or any other program that listens on a port and posts to
the sink.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from urllib.request import urlopen

from benchmarks.processes import (
    START_LIMIT,
    BenchmarkError,
    Program,
    free_port,
    started,
    wait_for_port,
)


@dataclass(frozen=True, slots=True)
class Machine:
    """Who runs where: the target alone on `target_core`, load generator and sink on `load_core`."""

    target_core: int
    load_core: int


@dataclass(frozen=True, slots=True)
class Target:
    """The program under measurement. An empty `command` stands for forwarder."""

    port: int
    sink_port: int
    command: str = ""

    @contextlib.contextmanager
    def running(
        self,
        core: int,
        compression: str = "none",
        ordering: str = "none",
        max_bytes: str = "",
        *,
        disk: bool = False,
        workers: int = 1,
        state: Path | None = None,
        more: Mapping[str, str] = MappingProxyType({}),
        wait: bool = True,
    ) -> Iterator[Program]:
        """Run it until the block ends. Another program than forwarder brings its own settings, and
        is told the ports.

        Enters once it listens, and raises `BenchmarkError` if it does not; without `wait`, as soon
        as the process exists.

        `disk`: with the disk buffer. `workers`: processes, all of which listen when it enters.
        `state`: where it keeps what it keeps on disk; by itself a folder that is gone afterwards.
        `more`: further settings, by the names of their variables.
        """
        with tempfile.TemporaryDirectory(prefix="forwarder-benchmark-") as temporary:
            if self.command:
                command = shlex.split(self.command)
                environment = dict(os.environ)
            else:
                command = [str(Path(sys.executable).parent / "forwarder"), "run"]
                environment = self._settings(
                    compression, ordering, max_bytes or ("1GiB" if disk else "64MiB")
                )
                environment |= _kept_at(state or Path(temporary), disk=disk) | {
                    "FORWARDER_WORKERS": str(workers)
                }
            environment |= {**more, "PORT": str(self.port), "SINK_PORT": str(self.sink_port)}
            with started(command, core, environment) as program:
                if wait:
                    wait_for_port(program, self.port)
                if workers > 1 and not self.command:
                    _wait_for_workers(environment["FORWARDER_ADMIN__LISTEN"], workers)
                yield program

    def copying(self, copies: int, compression: str, *, by_name: bool = False) -> dict[str, str]:
        """Settings with so many destinations instead of one, each of which gets all events; all
        are the sink. `by_name`: but for events with a name that none has.
        """
        url = f"http://127.0.0.1:{self.sink_port}"
        upstreams = [
            {"name": f"copy-{number}", "url": url, "compression": compression}
            for number in range(copies)
        ]
        routes: list[dict[str, object]] = [{"to": [upstream["name"] for upstream in upstreams]}]
        if by_name:
            routes.insert(0, {"match": {"event": "$autocapture"}, "to": [upstreams[0]["name"]]})
        alone = {"FORWARDER_UPSTREAM__URL": "", "FORWARDER_UPSTREAM__COMPRESSION": ""}
        return {
            **alone,
            "FORWARDER_UPSTREAMS": json.dumps(upstreams),
            "FORWARDER_ROUTES": json.dumps(routes),
        }

    def _settings(self, compression: str, ordering: str, max_bytes: str) -> dict[str, str]:
        settings = {
            "UPSTREAM__URL": f"http://127.0.0.1:{self.sink_port}",
            "UPSTREAM__COMPRESSION": compression,
            "SOURCES__HTTP__LISTEN": f"127.0.0.1:{self.port}",
            "SOURCES__HTTP__TRUSTED_PROXIES": '["127.0.0.1"]',
            "BUFFER__MAX_BYTES": max_bytes,
            "DELIVERY__ORDERING": ordering,
            "ADMIN__LISTEN": f"127.0.0.1:{free_port()}",
            "LOG__LEVEL": "error",
        }
        return {
            **_without_settings(os.environ),
            **{f"FORWARDER_{name}": value for name, value in settings.items()},
        }


def _wait_for_workers(admin: str, workers: int) -> None:
    """Wait until so many workers run. Raises `BenchmarkError` if they don't."""
    until = time.monotonic() + START_LIMIT
    while time.monotonic() < until:
        with contextlib.suppress(OSError), urlopen(f"http://{admin}/status", timeout=1) as answer:
            if (
                sum(worker["state"] == "running" for worker in json.load(answer)["workers"])
                == workers
            ):
                return
        time.sleep(0.05)
    raise BenchmarkError(f"the {workers} workers don't run after {START_LIMIT:.0f} s")


def _kept_at(state: Path, *, disk: bool) -> dict[str, str]:
    """The settings of what is kept on disk."""
    if disk:
        return {"FORWARDER_BUFFER__KIND": "disk", "FORWARDER_BUFFER__PATH": str(state)}
    return {"FORWARDER_DEAD_LETTERS__PATH": str(state)}


def _without_settings(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if not name.startswith("FORWARDER_")}
