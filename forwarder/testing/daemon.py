"""A forwarder in tests: a real `forwarder run` that delivers to a sandbox."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from forwarder.testing.process import ServerFailed, ServerProcess

DRAIN: Final = 5
"""Seconds for which it delivers at its end: a test that leaves the service failing does not wait
for long.
"""


class ForwarderDaemon:
    """A `forwarder run` with these settings, as a configuration file has them; `folder` is for its
    files. `start` starts it.
    """

    def __init__(self, settings: Mapping[str, Any], folder: Path) -> None:
        self.settings = merged(_defaults(folder), settings)
        self.url = ""
        """The address for SDKs, without a slash at its end; the same after another start."""
        self.admin_url = ""
        """The address of `/status`, `/metrics` and `/readyz`."""
        self._file = folder / "forwarder.yaml"
        self._folder = folder
        self._process: ServerProcess | None = None
        self._stopped = True

    def __repr__(self) -> str:
        return f"<forwarder at {self.url}>"

    @property
    def log(self) -> str:
        """Its log since it was started last: a line of JSON for each entry."""
        return "" if self._process is None else self._process.output

    @property
    def running(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.running

    def start(self) -> None:
        """Start it, for the first time or again. Raises `ServerFailed`."""
        level = "debug" if self.settings["log"].get("level") == "debug" else "info"
        # the log says where it listens
        settings = merged(self.settings, {"log": {"format": "json", "level": level}})
        self._file.write_text(json.dumps(settings), "utf-8")  # JSON is YAML too
        self._process = ServerProcess(
            ["run", "--config", str(self._file)], {"STATE_DIRECTORY": str(self._folder / "state")}
        )
        listening = json.loads(self._process.line('"event": "listening"'))
        self._stopped = False
        self.url = _url(listening["ingestion"][0])
        self.admin_url = _url(listening["admin"])
        if self.url.startswith("http://"):
            self.settings = merged(
                self.settings, {"sources": {"http": {"listen": self.url.removeprefix("http://")}}}
            )

    def stop(self) -> int:
        """Stop it as SIGTERM does, and return its exit code: 0 if every accepted event was
        delivered or is on disk.
        """
        self._stopped = True
        return 0 if self._process is None else self._process.stop()

    def kill(self) -> int:
        """End it as `kill -9` does; a disk buffer keeps what it has for the next `start`."""
        self._stopped = True
        return 0 if self._process is None else self._process.kill()

    def check(self) -> None:
        """Raises `ServerFailed` if it has ended by itself."""
        if self._process is not None and not (self._stopped or self._process.running):
            raise ServerFailed(
                f"the forwarder ended with exit code {self.stop()} during the test.\n"
                f"{self._process.tail()}"
            )


@contextmanager
def running_forwarder(settings: Mapping[str, Any], folder: Path) -> Iterator[ForwarderDaemon]:
    """A forwarder with these settings, such as `{"upstream": {"url": sandbox.url}}`, stopped at
    the end.

    Raises `ServerFailed` if it doesn't start, or has ended by itself.
    """
    daemon = ForwarderDaemon(settings, folder)
    try:
        daemon.start()
        yield daemon
        daemon.check()
    finally:
        daemon.stop()


def merged(settings: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with those of `others` above them, section by section."""
    result = dict(settings)
    for name, value in others.items():
        below = result.get(name)
        result[name] = (
            merged(below, value)
            if isinstance(below, Mapping) and isinstance(value, Mapping)
            else value
        )
    return result


def _defaults(folder: Path) -> dict[str, Any]:
    """What suits tests: ports of its own, everything in memory, batches and
    retries that come at once.
    """
    return {
        "sources": {"http": {"listen": "127.0.0.1:0"}},
        "admin": {"listen": "127.0.0.1:0"},
        "buffer": {"kind": "memory", "path": str(folder / "buffer")},
        "batch": {"max_age": "20ms"},
        "delivery": {"retry": {"initial": "50ms", "max": "500ms"}},
        "shutdown": {"drain_timeout": f"{DRAIN}s"},
        "log": {},
    }


def _url(address: str) -> str:
    return address if "://" in address or address.startswith("unix:") else f"http://{address}"
