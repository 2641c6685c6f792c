"""What is known of project keys, and which to ask about next. Pure.

Invariants: at most `capacity` keys are remembered, and the one not asked for longest is forgotten first; a key is in the queue at most
once, and those that were forgotten leave it before it is over twice as long. A check is repeated only for keys somebody asked for since
its last answer: made-up keys cost one request each, not one a minute. A refused key stays refused until the upstream answers 200 (a
time-out doesn't make it good); a verified one stays so until 401.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from forwarder.core.clock import Backoff

HOUR: Final = 3600.0
FIRST_WAIT: Final = 5.0
"""Seconds that a lane's first batch waits for the answer at most."""
CAPACITY: Final = 10_000


class KeyStatus(StrEnum):
    """What the upstream's `/decide` says of a key."""

    UNKNOWN = "unknown"
    """Not answered yet."""
    VERIFIED = "verified"
    REFUSED = "refused"
    UNVERIFIED = "unverified"
    """Neither 200 nor 401: deliver, nobody knows better."""


@dataclass(slots=True)
class _Entry:
    status: KeyStatus
    since: float
    """When it was first asked for, monotonic seconds."""
    again_at: float
    """When the next check is due."""
    queued: bool = False
    tries: int = 0
    """Checks in a row that didn't end in 200."""


class KeyLedger:
    """The keys. All times are monotonic seconds."""

    def __init__(self, capacity: int = CAPACITY, refused: Backoff | None = None, unverified: Backoff | None = None) -> None:
        self._capacity = capacity
        self._waits = {
            KeyStatus.REFUSED: refused or Backoff(1.0, 60.0),
            KeyStatus.UNVERIFIED: unverified or Backoff(60.0, HOUR),
        }
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._queue: deque[str] = deque()

    def __len__(self) -> int:
        return len(self._entries)

    def status(self, key: str) -> KeyStatus:
        """What is known of the key. Starts nothing."""
        entry = self._entries.get(key)
        return KeyStatus.UNKNOWN if entry is None else entry.status

    def ask(self, key: str, now: float, *, at_once: bool = False) -> KeyStatus:
        """What is known of the key; if nothing is, or it is time to ask again (or `at_once`), it joins the queue."""
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry(KeyStatus.UNKNOWN, now, now)
            if len(self._entries) > self._capacity:
                self._entries.popitem(last=False)
        else:
            self._entries.move_to_end(key)
        if not entry.queued and (at_once or now >= entry.again_at):
            entry.queued = True
            self._queue.append(key)
            if len(self._queue) > 2 * self._capacity:
                self._queue = deque(dict.fromkeys([key for key in self._queue if key in self._entries]))
        return entry.status

    def wait_until(self, key: str) -> float:
        """Until when a first batch waits for the answer."""
        entry = self._entries.get(key)
        return 0.0 if entry is None else entry.since + FIRST_WAIT

    def again_at(self, key: str) -> float:
        """When the key's next check is due, if it is asked for then."""
        entry = self._entries.get(key)
        return 0.0 if entry is None else entry.again_at

    def take(self) -> str | None:
        """The next key to check. It isn't queued again before `answered`."""
        while self._queue:
            key = self._queue.popleft()
            if key in self._entries:
                return key
        return None

    def answered(self, key: str, status: int | None, now: float) -> KeyStatus:
        """The upstream answered with HTTP `status` (None: not at all) about the key; what is known of it now."""
        entry = self._entries.get(key)
        if entry is None:
            return _meaning(status, KeyStatus.UNKNOWN)
        entry.queued = False
        entry.status = _meaning(status, entry.status)
        entry.tries = 0 if status == 200 else entry.tries + 1
        entry.again_at = now + self._wait(entry)
        return entry.status

    def _wait(self, entry: _Entry) -> float:
        backoff = self._waits.get(entry.status if entry.tries else KeyStatus.VERIFIED)
        return HOUR if backoff is None else backoff.equal_jitter(entry.tries)


def _meaning(status: int | None, known: KeyStatus) -> KeyStatus:
    if status == 200:
        return KeyStatus.VERIFIED
    if status == 401:
        return KeyStatus.REFUSED
    return known if known in (KeyStatus.VERIFIED, KeyStatus.REFUSED) else KeyStatus.UNVERIFIED
