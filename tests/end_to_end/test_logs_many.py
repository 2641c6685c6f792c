"""Thousands of files that appear and go, as the logs of pods do: few are open at a time, memory
stays flat, and nothing is lost.
"""

from __future__ import annotations

import json
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from tests.crash.process import Killable
from tests.support.admin import resident
from tests.support.upstream import OK, Answer, Request, Upstream
from tests.support.waiting import pause
from tests.support.whole import KEY

FILES: Final = 5000
THERE: Final = 1500
"""Files that exist at a time, at most."""
AT_ONCE: Final = 500
"""So many appear together: the pods of a deployment."""
OPEN: Final = 32
"""`max_open_files`."""
EXAMINED: Final = 2
"""Files that may be open beside those, while files are recognized."""
LINES: Final = 4
"""What a file gets when it appears; every other one gets as many again, once those have arrived."""
WARM: Final = 1000
"""Files that were gone when memory is measured for the first time."""
GROWTH: Final = 8 << 20
"""By which it may have grown at the end."""

PACE: Final = 0.01
"""Seconds between two steps."""
LOOKS: Final = 0.05
"""Seconds between two looks at what is open."""


@dataclass
class Pods:
    """The logs of pods below a folder, each with a folder of its own, and what arrived of them."""

    folder: Path
    arrived: Counter[tuple[int, int]] = field(default_factory=Counter)
    created: int = 0
    gone: int = 0
    _due: dict[int, int] = field(default_factory=dict)
    """Lines of each file that haven't arrived."""
    _written: dict[int, int] = field(default_factory=dict)
    _complete: deque[int] = field(default_factory=deque)
    """Files of which all has arrived."""

    def answer(self, request: Request) -> Answer:
        """Accept a batch."""
        for event in request.events:
            number = event["properties"]["file"]
            line = event["properties"]["line"]
            self.arrived[number, line] += 1
            self._due[number] -= 1
            if not self._due[number]:
                self._complete.append(number)
        return OK

    def step(self) -> None:
        """Append to files of which all has arrived, or remove them; make new ones in
        their places.
        """
        while self._complete:
            number = self._complete.popleft()
            if number % 2 and self._written[number] == LINES:
                self._append(number)
            else:
                self._remove(self._path(number))
                del self._due[number], self._written[number]
                self.gone += 1
        there = self.created - self.gone
        appearing = min(FILES - self.created, AT_ONCE) if there <= THERE - AT_ONCE else 0
        for _ in range(appearing):
            self._path(self.created).parent.mkdir()
            self._append(self.created)
            self.created += 1

    def _path(self, number: int) -> Path:
        return self.folder / f"shop_web-{number:05}_{number * 7919 % 99991:08x}" / "0.log"

    def _remove(self, path: Path) -> None:
        path.unlink()
        path.parent.rmdir()

    def _append(self, number: int) -> None:
        first = self._written.get(number, 0)
        self._written[number] = first + LINES
        self._due[number] = LINES
        lines = [
            json.dumps({"pod": f"web-{number}", "file": number, "line": line}) + "\n"
            for line in range(first, first + LINES)
        ]
        with self._path(number).open("a") as file:
            file.writelines(lines)


def settings(url: str, folder: Path) -> dict[str, Any]:
    """The daemon's."""
    source = {
        "path": f"{folder}/logs/*/*.log",
        "api_key": KEY,
        "host": "node-1",
        "max_open_files": OPEN,
        "mapping": {
            "event": '"line"',
            "distinct_id": ".pod",
            "properties": {"file": ".file", "line": ".line"},
        },
    }
    return {
        "upstream": {"url": url, "verify_keys": False, "compression": "none"},
        "sources": {"http": {"listen": f"unix:{folder}/http.sock"}, "logs": [source]},
        "dead_letters": {"path": str(folder / "state")},
        "admin": {"listen": f"unix:{folder}/admin.sock"},
        "batch": {"max_age": "50ms"},
    }


def open_logs(pid: int, folder: Path) -> int:
    """How many files below the folder a process has open."""
    count = 0
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            count += descriptor.readlink().is_relative_to(folder)
        except OSError:  # closed in the meantime
            continue
    return count


async def test_5000_files_that_appear_and_go(tmp_path: Path) -> None:
    """Each line arrives once, at most `max_open_files` are open at any look, and memory at the end
    is what it was after the first ones.
    """
    pods = Pods(tmp_path / "logs")
    pods.folder.mkdir()
    config = tmp_path / "forwarder.yaml"
    most = 0
    before = 0
    looked = 0.0
    async with Upstream(pods.answer, keeps=False) as upstream:
        config.write_text(yaml.safe_dump(settings(upstream.url, tmp_path)))
        async with Killable.living(("run", "--config", str(config)), tmp_path / "log") as daemon:
            while pods.gone < FILES:
                pods.step()
                if time.monotonic() - looked > LOOKS:
                    most = max(most, open_logs(daemon.pid, pods.folder))
                    looked = time.monotonic()
                if not before and pods.gone >= WARM:
                    before = resident(daemon.pid)
                assert not daemon.ended, (tmp_path / "log").read_text()
                await pause(PACE)
            after = resident(daemon.pid)
            assert await daemon.stopped() == 0
    assert pods.arrived == Counter(
        {(number, line): 1 for number in range(FILES) for line in range(LINES * (1 + number % 2))}
    )
    assert 0 < most <= OPEN + EXAMINED
    assert after < before + GROWTH, (
        f"{before / 1e6:.1f} MB after {WARM:,} files, {after / 1e6:.1f} MB after {FILES:,}"
    )
