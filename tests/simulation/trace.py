"""What happens in a life, step by step: the end of it for a story, a digest of all of it to tell
whether two lives are the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from hashlib import blake2b
from typing import Final

KEPT: Final = 4000
"""Steps that a story may show."""


class Trace:
    """The steps of one life."""

    def __init__(self) -> None:
        self.time: Callable[[], float] = lambda: 0.0
        self._digest = blake2b(digest_size=16)
        self.steps = 0
        self.kept: deque[tuple[float, str, str]] = deque(maxlen=KEPT)

    def note(self, who: str, what: str) -> None:
        """Somebody did something."""
        at = self.time()
        self.steps += 1
        self._digest.update(f"{at!r}\0{who}\0{what}\n".encode())
        self.kept.append((at, who, what))

    def data(self, who: str, data: bytes) -> None:
        """Bytes have arrived: a part of the digest that no story shows."""
        self.steps += 1
        self._digest.update(f"{self.time()!r}\0{who}\0".encode() + data)

    @property
    def digest(self) -> str:
        """Of every step so far."""
        return self._digest.hexdigest()
