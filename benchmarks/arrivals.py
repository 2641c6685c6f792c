"""The counting sink, which also notes when each event with a number (`bodies.LIVE`) arrived:
`GET /arrivals` answers `[[number, monotonic seconds], …]`, and forgets them.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time
import urllib.request
from collections.abc import Iterator
from typing import Final

from benchmarks.bodies import LIVE, NUMBER
from benchmarks.processes import running
from benchmarks.server import serve
from benchmarks.sink import Count, Sink, json_answer
from benchmarks.upstream import STALLED, Upstream

_NUMBER: Final = re.compile(LIVE + rb"(\d{%d})" % NUMBER)


class ArrivalSink(Sink):
    """One connection to it."""

    def __init__(self, count: Count, arrived: list[tuple[int, float]]) -> None:
        super().__init__(count)
        self._arrived = arrived

    def asked(self, path: bytes) -> bytes | None:
        if not path.startswith(b"/arrivals"):
            return super().asked(path)
        answer = json_answer(self._arrived)
        self._arrived.clear()
        return answer

    def take(self, body: bytes) -> None:
        now = time.monotonic()
        super().take(body)
        if LIVE in body:
            self._arrived += [(int(number), now) for number in _NUMBER.findall(body)]


class ArrivalUpstream(Upstream):
    """The running sink, and when events arrived."""

    def arrivals(self, expected: int) -> dict[int, float]:
        """When events with numbers arrived, by number, since this was last asked: once `expected`
        of them have, or none has for a while.
        """
        found: dict[int, float] = {}
        since = time.monotonic()
        while len(found) < expected and time.monotonic() - since < STALLED:
            time.sleep(0.5)
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.port}/arrivals", timeout=60
            ) as answer:
                new = arrivals(answer.read())
            if new:
                found = new | found
                since = time.monotonic()
        return found


def arrivals(text: bytes) -> dict[int, float]:
    """What `/arrivals` answered, by number; of an event that came twice, its first arrival."""
    return dict(reversed(json.loads(text)))


@contextlib.contextmanager
def arrival_upstream(port: int, core: int, nice: int = 0) -> Iterator[ArrivalUpstream]:
    """Run the sink on `port` until the block ends; `nice`: with so much less of the core, if
    others want it.
    """
    with running([sys.executable, "-m", "benchmarks.arrivals", str(port)], core, port) as program:
        os.setpriority(os.PRIO_PROCESS, program.pid, nice)
        yield ArrivalUpstream(port, program)


if __name__ == "__main__":
    shared = Count()
    noted = list[tuple[int, float]]()
    serve(lambda: ArrivalSink(shared, noted), int(sys.argv[1]))
