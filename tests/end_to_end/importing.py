"""`forwarder import` run in this process, into a sandbox that is one of its own, and what both say
of it.
"""

from __future__ import annotations

import json
import select
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from typer.testing import CliRunner

from forwarder.cli.imports import app
from forwarder.sources.imports.report import MANIFEST, ImportManifest, read_manifest
from tests.support.commands import LIMIT, Finished, command_line, environment

KEY: Final = "phc_end_to_end_imports_0001"
_LISTENS: Final = "listening on"
_LOOK: Final = 0.05
"""Seconds between two looks at what has arrived."""


@dataclass(frozen=True, slots=True)
class RunningSandbox:
    """A sandbox that runs."""

    url: str

    def ask(self, path: str) -> Any:
        """What `/sandbox/…` says."""
        with urllib.request.urlopen(f"{self.url}/sandbox/{path}", timeout=LIMIT) as answer:
            return json.load(answer)

    def counts(self, job: str) -> tuple[int, int, int]:
        """Of an import: events, each once, repeats and conflicts."""
        rows = self.ask(f"imports?import={job}")["results"]
        events, duplicates, conflicts = (
            sum(row[name] for row in rows) for name in ("events", "duplicates", "conflicts")
        )
        return events, duplicates, conflicts

    def capture(self, event: dict[str, Any]) -> None:
        """Send an event as an SDK does, live."""
        request = urllib.request.Request(
            f"{self.url}/capture/", json.dumps(event).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=LIMIT) as answer:
            assert answer.status == 200

    def fault(self, *faults: dict[str, Any]) -> None:
        """Let the next requests fail."""
        request = urllib.request.Request(
            f"{self.url}/sandbox/faults",
            json.dumps(faults).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=LIMIT) as answer:
            assert answer.status == 201

    def person(self, key: str, distinct_id: str) -> dict[str, Any]:
        """What a person of a project has."""
        [person] = self.ask(f"persons?api_key={key}&distinct_id={distinct_id}")["results"]
        properties: dict[str, Any] = person["properties"]
        return properties


@contextmanager
def sandbox(*arguments: str) -> Iterator[RunningSandbox]:
    """A sandbox in a process of its own, whose memory is gone at the end."""
    command = command_line(("sandbox", "--listen", "127.0.0.1:0", "--strict", *arguments))
    with subprocess.Popen(
        command, env=environment(None), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert select.select([process.stdout], [], [], LIMIT)[0], "the sandbox says nothing"
            line = process.stdout.readline()
            assert _LISTENS in line, line
            yield RunningSandbox(line.split()[-1])
        finally:
            process.kill()


def imported(
    service: RunningSandbox, state: Path, *arguments: str | Path, key: str = KEY
) -> Finished:
    """`forwarder import` with `arguments`, into the sandbox, as fast as it goes."""
    target = (
        "--upstream",
        service.url,
        "--api-key",
        key,
        "--state",
        state,
        "--rate",
        "unlimited",
        "--yes",
    )
    return forwarder_import(*arguments, *target)


def interrupt_import(service: RunningSandbox, state: Path, key: str, *arguments: str | Path) -> int:
    """Begin an import of 600 events at least, and kill it (`kill -9`) when two or three of its
    requests, of 100 events each, have arrived: how many events. The others would take seconds.
    """
    target = ("--upstream", service.url, "--api-key", key, "--state", state, "--yes")
    given = ("import", *arguments, *target, "--rate", 200)
    count = f"events?api_key={key}&limit=1"
    before: int = service.ask(count)["count"]
    with subprocess.Popen(
        command_line([str(argument) for argument in given]),
        env={**environment(None), "FORWARDER_BATCH__MAX_EVENTS": "100"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        while service.ask(count)["count"] < before + 200:
            with suppress(subprocess.TimeoutExpired):
                raise AssertionError(f"it ended before it was interrupted: {process.wait(_LOOK)}")
        process.kill()
    return int(service.ask(count)["count"]) - before


def forwarder_import(*arguments: str | Path) -> Finished:
    """The command itself. Raises what it doesn't expect."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return Finished(done.exit_code, done.stdout, done.stderr)


def manifest_of(state: Path) -> ImportManifest:
    """What the import has written of itself."""
    return read_manifest(state / MANIFEST)
