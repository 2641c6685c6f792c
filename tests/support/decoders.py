"""Decoders that do their work in this process, when a test says so; and senders that wait for
large requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable

from forwarder.core.errors import Backpressure
from forwarder.intake.decoder_jobs import LookUp, work
from forwarder.wire.effort import Effort
from tests.support.waiters import IntakeCallback

NO_EFFORT = Effort(text=0, encoded=0, repaired=0, events=0, ruled=0.0)
"""Nothing may be done on the event loop: everything is for the decoder."""


class InProcessDecoder:
    """Does the decoder process's work in this process: immediately, or if `closed`, once `open` is
    called.
    """

    def __init__(self, *, closed: bool = False) -> None:
        self._gate = asyncio.Event()
        if not closed:
            self._gate.set()
        self.bodies: list[bytes] = []
        """What it was asked to decode."""
        self.failure: Exception | None = None

    def open(self) -> None:
        """Do the work that was asked for, and any further work immediately."""
        self._gate.set()

    async def decode(
        self, head: bytes, body: bytes, accept: Callable[[int], None], look_up: LookUp
    ) -> tuple[bytes, list[bytes]]:
        self.bodies.append(body)
        await self._gate.wait()
        if self.failure is not None:
            raise self.failure
        outcome, parts = work(head, body, look_up)
        accept(sum(map(len, parts)))
        return outcome, parts


class Patient(IntakeCallback):
    """A `core.ports.PatientWaiter` that records its calls."""

    def __init__(self, sender: Hashable = "somebody", origin: object | None = None) -> None:
        super().__init__()
        self.sender = sender
        self.origin: object | None = origin or self
        self.postponed = 0.0
        self.failures: list[Exception] = []
        self.called = asyncio.Event()

    def postpone(self, seconds: float) -> None:
        self.postponed = seconds

    def __call__(self, error: Backpressure | None) -> None:
        super().__call__(error)
        self.called.set()

    def failed(self, error: Exception) -> None:
        assert not self.answers
        self.failures.append(error)
        self.called.set()
