"""A pipeline that does nothing but obey: what the daemon asks of one, recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from forwarder.admin.event_lookup import Sighting, WantedUuid
from forwarder.config.settings import Settings
from forwarder.core.clock import Clock
from forwarder.core.ports import DeadLetter
from forwarder.daemon.pipeline import KeptDescriptors
from forwarder.telemetry.snapshot import Snapshot
from forwarder.telemetry.taps import TapBatch, TapRequest
from tests.support.snapshots import FULL


class FakePipeline:
    """Implements `forwarder.daemon.daemon.Runnable`; `done` lists the calls, `settings` are those
    in use.
    """

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self.settings = settings
        self.clock = clock
        self.done: list[str] = []
        self.shown: Snapshot = replace(FULL, lanes=())
        self.left: list[DeadLetter] = []
        self.fixed: list[str] = []
        self.at_hand: list[Sighting] = []
        self.failure: Exception | None = None
        self.started = asyncio.Event()
        self.input_ended: Callable[[], None] = lambda: None

    async def start(self) -> None:
        """Fail as set, or start."""
        self.done.append("start")
        if self.failure is not None:
            raise self.failure
        self.started.set()

    def snapshot(self) -> Snapshot:
        """What is to be shown."""
        return self.shown

    def explain(self, wanted: WantedUuid) -> list[Sighting]:
        """Have nothing available but what was set."""
        return self.at_hand

    def tap(self, request: TapRequest) -> TapBatch:
        """Have collected nothing."""
        return TapBatch()

    def reload(self, settings: Settings) -> list[str]:
        """Take other settings."""
        self.done.append("reload")
        self.settings = settings
        return self.fixed

    def stop_accepting(self) -> None:
        """Take no more."""
        self.done.append("stop_accepting")

    def keep_descriptors(self) -> KeptDescriptors:
        """Keep nothing."""
        self.done.append("keep")
        return KeptDescriptors((), ())

    def on_input_end(self, callback: Callable[[], None]) -> None:
        """Keep what is to be called."""
        self.input_ended = callback

    async def shut_down(self, seconds: float) -> None:
        """Be done at once."""
        self.done.append(f"shut_down {seconds:g}")

    async def close(self) -> list[DeadLetter]:
        """Leave behind what was set."""
        self.done.append("close")
        return self.left
