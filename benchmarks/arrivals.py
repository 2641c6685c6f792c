"""The counting sink, which also notes when each live event arrived: `GET /arrivals` answers `[[number, monotonic seconds], …]`.

Live events have `LIVE` and their number in seven digits in their names, and nothing else has.
"""

from __future__ import annotations

import json
import re
import sys
import time
from typing import Final

from benchmarks.server import serve
from benchmarks.sink import Count, Sink, json_answer

LIVE: Final = b"~lv~"
DIGITS: Final = 7
_NUMBER: Final = re.compile(LIVE + rb"(\d{%d})" % DIGITS)


class ArrivalSink(Sink):
    """One connection to it."""

    def __init__(self, count: Count, arrived: list[tuple[int, float]]) -> None:
        super().__init__(count)
        self._arrived = arrived

    def asked(self, path: bytes) -> bytes | None:
        """See `Sink.asked`."""
        return json_answer(self._arrived) if path.startswith(b"/arrivals") else super().asked(path)

    def take(self, body: bytes) -> None:
        """See `Sink.take`."""
        now = time.monotonic()
        super().take(body)
        if LIVE in body:
            self._arrived += [(int(number), now) for number in _NUMBER.findall(body)]


def arrivals(text: bytes) -> dict[int, float]:
    """What `/arrivals` answered, by number; of an event that came twice, its first arrival."""
    found: dict[int, float] = {}
    for number, at in json.loads(text):
        found.setdefault(number, at)
    return found


if __name__ == "__main__":
    shared, noted = Count(), list[tuple[int, float]]()
    serve(lambda: ArrivalSink(shared, noted), int(sys.argv[1]))
