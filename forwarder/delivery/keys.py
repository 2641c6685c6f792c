"""The key check: does the upstream know a project key? `/batch/` answers 200 to any key and drops
the events of an unknown one.

Each new key, and each again hourly while it is in use, costs one `POST /decide?v=3`, away from the
hot path. A lane's first batch waits for the answer, at most five seconds. 401: the lane halts, its
events are kept, and the key is checked again at growing intervals up to a minute; a key with any
other answer but 200 counts as unverified, and its events are delivered. At most `CONCURRENCY`
checks run at once, so a flood of made-up keys queues up among itself: a lane behind it waits its
five seconds, and is delivered.

Invariants of the ledger: at most `capacity` keys are remembered, and the one not used for longest
is forgotten first; a key is queued at most once, and forgotten keys leave the queue before it is
over twice as long. A check is repeated only for keys used since their last answer: made-up keys
cost one request each, not one a minute. A refused key stays refused until the upstream answers 200
(a time-out doesn't make it good); a verified one stays so until 401.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from forwarder.core.clock import Backoff, Clock
from forwarder.core.outcome import Reply

CONCURRENCY: Final = 8
HOUR: Final = 3600.0
FIRST_WAIT: Final = 5.0
"""Most seconds that a lane's first batch waits for the answer."""
CAPACITY: Final = 10_000


class KeyStatus(StrEnum):
    """What the upstream's `/decide` says of a key."""

    UNKNOWN = "unknown"
    """Not answered yet."""
    VERIFIED = "verified"
    REFUSED = "refused"
    UNVERIFIED = "unverified"
    """Neither 200 nor 401: events are delivered."""


class KeyCheck:
    """Checks keys in tasks of its own. Usable once a loop runs; `close` ends it."""

    def __init__(
        self,
        decide: Callable[[str], Awaitable[Reply]],
        clock: Clock,
        ledger: KeyLedger | None = None,
    ) -> None:
        self._decide = decide
        self._clock = clock
        self._ledger = ledger or KeyLedger()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listeners: list[Callable[[str, KeyStatus], None]] = []
        self._closed = False

    def on_answer(self, listener: Callable[[str, KeyStatus], None]) -> None:
        """Call `listener` with the key and its status after each check, on the loop."""
        self._listeners.append(listener)

    def status(self, api_key: str) -> KeyStatus:
        """The key's status. Starts nothing."""
        return self._ledger.status(api_key)

    def ask(self, api_key: str) -> KeyStatus:
        """The key's status; if it is unknown or old, a check starts soon. Cheap,
        and may be called often.
        """
        status = self._ledger.ask(api_key, self._clock.monotonic())
        self._pump()
        return status

    def recheck(self, api_key: str) -> None:
        """Check the key now, even if no check is due."""
        self._ledger.ask(api_key, self._clock.monotonic(), at_once=True)
        self._pump()

    def wait_until(self, api_key: str) -> float:
        """The monotonic time until which a first batch waits for the answer."""
        return self._ledger.wait_until(api_key)

    def again_at(self, api_key: str) -> float:
        """The monotonic time of the key's next check."""
        return self._ledger.again_at(api_key)

    async def close(self) -> None:
        """Stop checking. Returns when no check runs any more; cancellation leaves
        them to end by themselves.
        """
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _pump(self) -> None:
        while len(self._tasks) < CONCURRENCY and not self._closed:
            key = self._ledger.take()
            if key is None:
                return
            task = asyncio.get_running_loop().create_task(self._check(key))
            self._tasks.add(task)
            task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._pump()
        if not task.cancelled():
            task.result()

    async def _check(self, key: str) -> None:
        reply = await self._decide(key)
        status = self._ledger.answered(key, reply.status, self._clock.monotonic())
        for listener in self._listeners:
            listener(key, status)


@dataclass(slots=True)
class _KnownKey:
    status: KeyStatus
    since: float
    """When it was first used, monotonic seconds."""
    again_at: float
    """When the next check is due."""
    queued: bool = False
    tries: int = 0
    """Consecutive checks that weren't answered 200."""


class KeyLedger:
    """What is known of project keys, and which to check next. Pure; all
    times are monotonic seconds.
    """

    def __init__(
        self,
        capacity: int = CAPACITY,
        refused: Backoff | None = None,
        unverified: Backoff | None = None,
    ) -> None:
        self._capacity = capacity
        self._waits = {
            KeyStatus.REFUSED: refused or Backoff(1.0, 60.0),
            KeyStatus.UNVERIFIED: unverified or Backoff(60.0, HOUR),
        }
        self._entries: OrderedDict[str, _KnownKey] = OrderedDict()
        self._queue: deque[str] = deque()

    def __len__(self) -> int:
        return len(self._entries)

    def status(self, key: str) -> KeyStatus:
        """The key's status. Starts nothing."""
        entry = self._entries.get(key)
        return KeyStatus.UNKNOWN if entry is None else entry.status

    def ask(self, key: str, now: float, *, at_once: bool = False) -> KeyStatus:
        """The key's status; if a check is due (or `at_once`), the key is queued."""
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _KnownKey(KeyStatus.UNKNOWN, now, now)
            if len(self._entries) > self._capacity:
                self._entries.popitem(last=False)
        else:
            self._entries.move_to_end(key)
        if not entry.queued and (at_once or now >= entry.again_at):
            entry.queued = True
            self._queue.append(key)
            if len(self._queue) > 2 * self._capacity:
                self._queue = deque(
                    dict.fromkeys([key for key in self._queue if key in self._entries])
                )
        return entry.status

    def wait_until(self, key: str) -> float:
        """Until when a first batch waits for the answer."""
        entry = self._entries.get(key)
        return 0.0 if entry is None else entry.since + FIRST_WAIT

    def again_at(self, key: str) -> float:
        """When the key's next check is due, if it is used then."""
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
        """The upstream answered the check with HTTP `status` (None: not at all); return the key's
        new status.
        """
        entry = self._entries.get(key)
        if entry is None:
            return _meaning(status, KeyStatus.UNKNOWN)
        entry.queued = False
        entry.status = _meaning(status, entry.status)
        entry.tries = 0 if status == 200 else entry.tries + 1
        entry.again_at = now + self._wait(entry)
        return entry.status

    def _wait(self, entry: _KnownKey) -> float:
        backoff = self._waits.get(entry.status if entry.tries else KeyStatus.VERIFIED)
        return HOUR if backoff is None else backoff.equal_jitter(entry.tries)


def _meaning(status: int | None, known: KeyStatus) -> KeyStatus:
    if status == 200:
        return KeyStatus.VERIFIED
    if status == 401:
        return KeyStatus.REFUSED
    return known if known in (KeyStatus.VERIFIED, KeyStatus.REFUSED) else KeyStatus.UNVERIFIED
