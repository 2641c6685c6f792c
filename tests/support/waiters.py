"""Callbacks for an intake that record their calls; and stores that finish their writes when a test
says so.
"""

from __future__ import annotations

from collections.abc import Sequence

from forwarder.buffer.memory import MemoryBuffer
from forwarder.core.ack import AckCallback
from forwarder.core.errors import Backpressure, BufferFull
from forwarder.core.event import Chunk
from forwarder.deadletter.memory import MemoryDeadLetters


class IntakeCallback:
    """A `core.ack.AckCallback` that records its calls."""

    def __init__(self) -> None:
        self.reached = False
        """Whether the level was reached at once, so that there is no call."""
        self.answers: list[Backpressure | None] = []

    def __call__(self, error: Backpressure | None) -> None:
        assert not self.reached
        assert not self.answers
        self.answers.append(error)

    @property
    def code(self) -> str:
        """How it was answered: `waiting`, `accepted`, or the code of the error."""
        if self.reached:
            return "accepted"
        if not self.answers:
            return "waiting"
        error = self.answers[0]
        return "accepted" if error is None else error.code


class SlowBuffer(MemoryBuffer):
    """Like a buffer on disk: chunks that are offered with a callback are in it once `finish_writes`
    is called, or rejected late by `fail_writes`.
    """

    def __init__(self, max_bytes: int) -> None:
        super().__init__(max_bytes)
        self.offered: list[tuple[Sequence[Chunk], AckCallback]] = []

    def offer(self, chunks: Sequence[Chunk], held: AckCallback | None = None) -> bool:
        reserved = sum(chunk.cost for waiting, _ in self.offered for chunk in waiting)
        if self.used + reserved + sum(chunk.cost for chunk in chunks) > self.max_bytes:
            raise BufferFull("the buffer is full")
        if held is None:
            self._append(chunks)
            return True
        self.offered.append((chunks, held))
        return False

    def _append(self, chunks: Sequence[Chunk]) -> None:
        for chunk in chunks:
            self._hold(chunk).queue.append(chunk)

    def finish_writes(self) -> None:
        """All chunks that were offered are on disk."""
        offered = self.offered
        self.offered = []
        for chunks, held in offered:
            self._append(chunks)
            held(None)

    def fail_writes(self) -> None:
        """The chunks that were offered couldn't be written."""
        offered = self.offered
        self.offered = []
        for _, held in offered:
            held(Backpressure("the disk is full"))


class SlowDeadLetters(MemoryDeadLetters):
    """Dead letters that are durable at once; if `slow`, only when `write` is called."""

    slow = False

    def __init__(self, max_bytes: int, largest: int = 0) -> None:
        super().__init__(max_bytes, largest)
        self._callbacks: list[AckCallback] = []

    def when_durable(self, callback: AckCallback) -> bool:
        if not self.slow:
            return True
        self._callbacks.append(callback)
        return False

    def write(self, error: Backpressure | None = None) -> None:
        """The dead letters are on disk, or couldn't be written."""
        callbacks = self._callbacks
        self._callbacks = []
        for callback in callbacks:
            callback(error)
