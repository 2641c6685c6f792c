"""How many events came in each second, how many of them as conflicts, and how many requests were refused: `/sandbox/rates`.

Nothing is counted along: it is asked of the requests that are kept, so it holds after a restart, too. Requests are numbered in the order
in which they were kept, which is nearly that of their times; where a stretch of seconds begins is found by halving.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from forwarder.sandbox.store import Store
from forwarder.sandbox.timing import format_time

LONGEST: Final = 3600
"""Seconds that may be asked for at once."""
SLOW: Final = 30
"""Seconds by which a request may have come earlier than those that were kept before it: its body took that long."""
_BY_SECOND: Final = """
SELECT substr(received_at, 1, 19) AS second, sum(events + duplicates + conflicts), sum(conflicts), sum(status >= 400)
FROM requests WHERE id >= ? AND received_at >= ? GROUP BY second"""


@dataclass(frozen=True, slots=True)
class Rates:
    """Counts by second: the first is that of the second `start` (since 1970), each next one that of `step` seconds later."""

    start: int
    events: list[int]
    """Arrivals of events, repeats included."""
    conflicts: list[int]
    refused: list[int]
    """Requests that were answered 4xx or 5xx."""
    step: int = 1


def rates(store: Store, now: float, seconds: int) -> Rates:
    """The counts of the last `seconds` seconds until `now`, wall-clock seconds, whose own second is the last."""
    start = int(now) - seconds + 1
    found = Rates(start, [0] * seconds, [0] * seconds, [0] * seconds)
    since, earlier = (format_time(datetime.fromtimestamp(second, UTC)) for second in (start, start - SLOW))
    for second, events, conflicts, refused in store.select(_BY_SECOND, [_first_since(store, earlier), since]):
        place = int(datetime.fromisoformat(f"{second}+00:00").timestamp()) - start
        if place < seconds:
            found.events[place], found.conflicts[place], found.refused[place] = events, conflicts, refused
    return found


def _first_since(store: Store, since: str) -> int:
    """The number of the first request that came at `since` or later; one past the last if none did."""
    low, high = 1, 1 + int(store.select("SELECT coalesce(max(id), 0) FROM requests", [])[0][0])
    while low < high:
        middle = (low + high) // 2
        if store.select("SELECT received_at FROM requests WHERE id >= ? ORDER BY id LIMIT 1", [middle])[0][0] < since:
            low = middle + 1
        else:
            high = middle
    return low
