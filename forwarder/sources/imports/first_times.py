"""Which keys were seen before, in bounded memory.

Invariants: the answers follow from the order of the keys alone, so whoever reads a source again from its start gets the same ones. A key
that was seen among the last `remembered` different ones is known; of older ones some are forgotten, and count as new once more.
"""

from __future__ import annotations

import hashlib
from typing import Final

_DIGEST_BYTES: Final = 12
"""Two of a million keys have one digest once in a hundred million billion times."""


class FirstSeenKeys:
    """Remembers the last `remembered` keys at least, and twice as many at most: about 100 bytes each, however long they are."""

    def __init__(self, remembered: int) -> None:
        if remembered < 1:
            raise ValueError(f"at least one key has to be remembered, not {remembered}")
        self._remembered = remembered
        self._recent: set[bytes] = set()
        self._older: set[bytes] = set()
        self._last: bytes | None = None

    def __len__(self) -> int:
        """How many keys are remembered."""
        return len(self._recent) + len(self._older)

    def is_new(self, key: bytes) -> bool:
        """Whether a key wasn't seen before, or was forgotten; it is remembered from now on."""
        if key == self._last:
            return False  # neighbouring records share their keys; it is in `_recent`, so this changes nothing
        self._last = key
        digest = hashlib.blake2b(key, digest_size=_DIGEST_BYTES).digest()
        if digest in self._recent:
            return False
        known = digest in self._older
        self._older.discard(digest)  # it moves, or its place would be taken twice
        if len(self._recent) == self._remembered:
            self._older, self._recent = self._recent, set()
        self._recent.add(digest)
        return not known
