"""What a source says for the first time, in bounded memory."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

_DIGEST_BYTES: Final = 12
"""Two of a million keys have one digest once in a hundred million billion times."""


class FirstSeenKeys:
    """Remembers the last `remembered` keys at least, and twice as many at most: about 100 bytes
    each, however long they are.
    """

    def __init__(self, remembered: int) -> None:
        self._remembered = remembered
        self._recent = set[bytes]()
        self._older = set[bytes]()
        self._last = b""

    def is_new_device(self, device: str) -> bool:
        """The same of a device that is seen with a user. It is the first user's: another one
        isn't joined with it, for the service would make one person of both, if that one has had no
        event before.
        """
        return self.is_new(f"device {device}".encode())

    def is_new(self, key: bytes) -> bool:
        """Whether a key wasn't seen before, or was forgotten; it is remembered from now on."""
        if key == self._last:
            # neighbouring records share their keys; it is in `_recent`, so this changes nothing
            return False
        self._last = key
        digest = blake2b(key, digest_size=_DIGEST_BYTES).digest()
        if digest in self._recent:
            return False
        known = digest in self._older
        if len(self._recent) == self._remembered:
            self._older = self._recent
            self._recent = set()
        self._recent.add(digest)
        return not known
