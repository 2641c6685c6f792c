"""What the drill sends: the demo's shop, told through the SDK in portions, under one project key or another.

Invariant: when a portion is over, the SDK has handed all of it over or given it up; the uuids of all that it was given are in `sent`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

from forwarder.demo.traffic import Sdk, play, story

Connect = Callable[[str, str], Sdk]
"""Makes an SDK of a host and a project key."""


class Traffic:
    """Sends to one address."""

    def __init__(self, host: str, connect: Connect) -> None:
        self._host = host
        self._connect = connect
        self._story = story(None)
        self.sent: dict[str, set[str]] = {}
        """Uuids by project key."""

    @property
    def everything(self) -> frozenset[str]:
        """The uuids of all events."""
        return frozenset().union(*self.sent.values())

    async def send(self, api_key: str, events: int) -> None:
        """Send so many events more and flush the SDK. Cancelled, it ends at the next event, flushed all the same.

        Raises `ConfigurationError` without the SDK.
        """
        client = self._connect(self._host, api_key)
        stop = threading.Event()
        with ThreadPoolExecutor(1, "drill-traffic") as executor:
            thread = asyncio.get_running_loop().run_in_executor(executor, self._play, client, api_key, events, stop)
            try:
                await asyncio.shield(thread)
            except asyncio.CancelledError:
                stop.set()
                await thread
                raise

    def _play(self, client: Sdk, api_key: str, events: int, stop: threading.Event) -> None:
        try:
            play(client, islice(self._story, events), self.sent.setdefault(api_key, set()), stop)
        finally:
            client.shutdown()
