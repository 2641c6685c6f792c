"""Who waits for an answer of the intake, and what it was answered; and stores that keep what they
get when a test says so.
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
        """What `take` answered."""
        self.answers: list[Backpressure | None] = []

    def __call__(self, error: Backpressure | None) -> None:
        """See `AckCallback`. After an answer at once, or twice, would be a mistake."""
        assert not self.reached
        assert not self.answers
        self.answers.append(error)

    @property
    def code(self) -> str:
        """How it was answered: `waiting`, `taken`, or the code of the error."""
        if self.reached:
            return "taken"
        if not self.answers:
            return "waiting"
        error = self.answers[0]
        return "taken" if error is None else error.code


class SlowBuffer(MemoryBuffer):
    """Like a buffer on disk: holds what it is offered with a `held` only when `hold` is called, or
    never, when `fail` is.
    """

    def __init__(self, max_bytes: int) -> None:
        super().__init__(max_bytes)
        self.offered: list[tuple[Sequence[Chunk], AckCallback]] = []

    def offer(self, chunks: Sequence[Chunk], held: AckCallback | None = None) -> bool:
        """See `Buffer.offer`."""
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

    def hold(self) -> None:
        """What was offered is on disk."""
        offered = self.offered
        self.offered = []
        for chunks, held in offered:
            self._append(chunks)
            held(None)

    def fail(self) -> None:
        """What was offered couldn't be written."""
        offered = self.offered
        self.offered = []
        for _, held in offered:
            held(Backpressure("the disk is full"))


class SlowDeadLetters(MemoryDeadLetters):
    """Dead letters that are as durable as they can be; or, if `slow`, only when
    `write` is called.
    """

    slow = False

    def __init__(self, max_bytes: int, largest: int = 0) -> None:
        super().__init__(max_bytes, largest)
        self.asked: list[AckCallback] = []

    def when_durable(self, held: AckCallback) -> bool:
        """See `ReceiptDeadLetters.when_durable`."""
        if not self.slow:
            return True
        self.asked.append(held)
        return False

    def write(self, error: Backpressure | None = None) -> None:
        """The letters are on disk, or couldn't be written."""
        asked = self.asked
        self.asked = []
        for held in asked:
            held(error)
