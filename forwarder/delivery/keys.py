"""The key check: does the upstream know a project key? `/batch/` answers 200 to any key and drops the events of an unknown one.

Each new key, and each again hourly while it is in use, costs one `POST /decide?v=3`, away from the hot path. A lane's first batch waits for
the answer, at most five seconds. 401: the lane halts, its events are kept, and the key is asked about again at growing intervals up to a
minute; any answer but 200 and 401 counts as unverified, and is delivered. At most `CONCURRENCY` checks run at once, so a flood of made-up
keys queues up among itself: a lane behind it waits its five seconds, and goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from forwarder.core.clock import Clock
from forwarder.core.outcome import Reply
from forwarder.delivery.key_ledger import KeyLedger, KeyStatus

CONCURRENCY: Final = 8

Answered = Callable[[str, KeyStatus], None]
"""Called with the key and what is known of it, after each check."""


class KeyCheck:
    """Checks keys in tasks of its own. Usable once a loop runs; `close` ends it."""

    def __init__(self, decide: Callable[[str], Awaitable[Reply]], clock: Clock, ledger: KeyLedger | None = None) -> None:
        self._decide = decide
        self._clock = clock
        self._ledger = ledger or KeyLedger()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listeners: list[Answered] = []
        self._closed = False

    def on_answer(self, listener: Answered) -> None:
        """Call `listener` after each check, on the loop."""
        self._listeners.append(listener)

    def status(self, api_key: str) -> KeyStatus:
        """What is known of the key. Starts nothing."""
        return self._ledger.status(api_key)

    def ask(self, api_key: str) -> KeyStatus:
        """What is known of the key; if nothing is, or not lately, a check starts soon. Cheap, and may be called again and again."""
        status = self._ledger.ask(api_key, self._clock.monotonic())
        self._pump()
        return status

    def recheck(self, api_key: str) -> None:
        """Check the key now, whenever its time would be."""
        self._ledger.ask(api_key, self._clock.monotonic(), at_once=True)
        self._pump()

    def wait_until(self, api_key: str) -> float:
        """The monotonic time until which a first batch waits for the answer."""
        return self._ledger.wait_until(api_key)

    def again_at(self, api_key: str) -> float:
        """The monotonic time of the key's next check."""
        return self._ledger.again_at(api_key)

    async def close(self) -> None:
        """Stop checking. Returns when no check runs any more; cancelling it leaves them to end by themselves."""
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
