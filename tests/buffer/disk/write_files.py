"""Writes the files that `test_older_files.py` reads: state directories of a daemon, made by the
`forwarder` command of some version.

    python -m tests.buffer.disk.write_files /path/to/.venv/bin/forwarder
    tests/buffer/disk/files/0.1.0

It drives the command by HTTP alone, so that it can run any version. The service that the daemon
delivers to accepts most events, refuses those named `poison` (400), keeps back those named `stuck`
(429 to a request with one), and after a while answers 503 to all. The daemon is then killed
(`one.tar.gz`, one worker) or stopped (`two.tar.gz`, two workers). `expected.json` in each archive
says what is in it.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from uuid import NAMESPACE_OID, uuid5

KEYS: Final = ("phc_olderfilesfirst0001", "phc_olderfilessecond02")
LIMIT: Final = 60.0
LARGEST_BATCH: Final = 20
"""Events of a request: a larger one is answered 413, so that records are settled in parts."""


class StubService(ThreadingHTTPServer):
    """The analytics service, as far as the daemon needs it."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), StubServiceHandler)
        self.down = False
        self.delivered: list[str] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()


class StubServiceHandler(BaseHTTPRequestHandler):
    """Answers one request."""

    protocol_version = "HTTP/1.1"
    server: StubService

    def do_POST(self) -> None:
        """Answer what the module says."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self._answer(self._status(json.loads(body)) if self.path.startswith("/batch") else 200)

    def _status(self, batch: dict[str, Any]) -> int:
        names = [event["event"] for event in batch["batch"]]
        if self.server.down:
            return 503
        if len(names) > LARGEST_BATCH:
            return 413
        if "poison" in names:
            return 400
        if "stuck" in names:
            return 429
        self.server.delivered += [event["uuid"] for event in batch["batch"]]
        return 200

    def _answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", "2")
        self.end_headers()
        with contextlib.suppress(BrokenPipeError):  # the daemon was killed
            self.wfile.write(b"{}")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's
        """Say nothing."""


class VersionedDaemon:
    """A daemon of some version, with a disk buffer under `state`."""

    def __init__(self, command: str, service: StubService, state: Path, workers: int) -> None:
        self.url = "http://127.0.0.1:18950"
        self.admin = "http://127.0.0.1:18951"
        settings = {
            "UPSTREAM__URL": f"http://127.0.0.1:{service.server_port}",
            "SOURCES__HTTP__LISTEN": "127.0.0.1:18950",
            "ADMIN__LISTEN": "127.0.0.1:18951",
            "BUFFER__KIND": "disk",
            "BUFFER__PATH": str(state),
            "BUFFER__MAX_BYTES": "8MiB",
            "UPSTREAM__MAX_EVENT": "40KiB",
            "BATCH__MAX_BYTES": "1MiB",
            "SOURCES__HTTP__MAX_BODY": "1MiB",
            "BATCH__MAX_AGE": "50ms",
            "DELIVERY__RETRY__INITIAL": "10ms",
            "DELIVERY__RETRY__MAX": "100ms",
            "SHUTDOWN__DRAIN_TIMEOUT": "100ms",
            "WORKERS": str(workers),
        }
        environment = {
            **os.environ,
            **{f"FORWARDER_{name}": value for name, value in settings.items()},
        }
        self.process = subprocess.Popen(
            [command, "run"], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT
        )
        self.until(lambda: self._get("/readyz") is not None)

    def until(self, condition: Any) -> None:
        """Return once the condition holds."""
        end = time.monotonic() + LIMIT
        while not condition():
            if time.monotonic() > end or self.process.poll() is not None:
                raise TimeoutError("the daemon doesn't get there")
            self.let_run(0.05)

    def let_run(self, seconds: float) -> None:
        """Return after so many seconds, or when the daemon has ended: a state that is in progress
        has nothing to wait for.
        """
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)

    def _get(self, path: str) -> Any:
        try:
            with urllib.request.urlopen(self.admin + path, timeout=5) as answer:
                return answer.read()
        except (urllib.error.URLError, ConnectionError):
            return None

    def status(self) -> Any:
        """Its status."""
        return json.loads(self._get("/status") or b"{}")

    def send(
        self, api_key: str, events: Iterable[dict[str, Any]], *, historical: bool = False
    ) -> None:
        """Send events, which it must accept, on a connection of their own."""
        body = json.dumps(
            {"api_key": api_key, "historical_migration": historical, "batch": list(events)}
        ).encode()
        request = urllib.request.Request(
            f"{self.url}/batch/", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            if answer.status != 200:
                raise ValueError(f"the daemon answers {answer.status}")


def event(name: str, number: int) -> dict[str, Any]:
    """An event that can be distinguished."""
    uuid = str(uuid5(NAMESPACE_OID, f"{name}-{number}"))
    properties = {"number": number, "text": "äöü 🎉"[: number % 6]}
    return {
        "event": name,
        "distinct_id": f"user-{number % 7}",
        "uuid": uuid,
        "timestamp": "2026-11-01T12:00:00Z",
        "properties": properties,
    }


def write(command: str, archive: Path, workers: int) -> None:
    """Make one archive."""
    service = StubService()
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "state"
        daemon = VersionedDaemon(command, service, state, workers)
        sent = [event("good", number) for number in range(200)]
        for at in range(0, 200, 10):
            daemon.send(KEYS[at // 10 % 2], sent[at : at + 10], historical=at % 50 == 40)
        daemon.until(lambda: len(service.delivered) >= 200)
        poison = [event("poison", number) for number in range(6)]
        for at, one in enumerate(poison):
            daemon.send(KEYS[0], [event("good", 200 + at), one, event("good", 300 + at)])
        nameless = [
            {key: value for key, value in event("nameless", number).items() if key != "event"}
            for number in range(3)
        ]
        daemon.send(KEYS[1], nameless)
        daemon.until(lambda: len(service.delivered) >= 212)
        mixed = [
            event("stuck" if number in (43, 54) else "good", 400 + number) for number in range(60)
        ]
        daemon.send(KEYS[1], mixed)
        daemon.let_run(3)
        service.down = True
        later = [event("later", number) for number in range(80)]
        for at in range(0, 80, 4):
            daemon.send(KEYS[at // 4 % 2], later[at : at + 4], historical=at % 20 == 8)
        daemon.let_run(2)
        daemon.process.send_signal(signal.SIGKILL if workers == 1 else signal.SIGTERM)
        daemon.process.wait(LIMIT)
        accepted = [
            one["uuid"]
            for one in [
                *sent,
                *mixed,
                *later,
                *[event("good", base + at) for at in range(6) for base in (200, 300)],
            ]
        ]
        pending = sorted(set(accepted) - set(service.delivered))
        expected = {
            "workers": workers,
            "received": len(accepted) + len(poison) + len(nameless),
            "delivered": len(service.delivered),
            "pending": pending,
            "refused": sorted(one["uuid"] for one in poison),
            "missing_event": sorted(one["uuid"] for one in nameless),
        }
        (state / "expected.json").write_text(json.dumps(expected, indent=1))
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=9) as tar:
            for path in sorted(path for path in state.rglob("*") if path.is_file()):
                tar.add(path, str(path.relative_to(state)))
        archive.write_bytes(packed.getvalue())
        print(
            archive,
            len(packed.getvalue()),
            "bytes;",
            len(pending),
            "pending;",
            len(service.delivered),
            "delivered",
        )


if __name__ == "__main__":
    folder = Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    write(sys.argv[1], folder / "one.tar.gz", 1)
    write(sys.argv[1], folder / "two.tar.gz", 2)
