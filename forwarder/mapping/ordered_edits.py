"""Replacements in the order of a text, joined once: what that takes grows with the text and with
what is made of it, never with their product.
"""

from __future__ import annotations

import sys


class TooLong(Exception):
    """The text with its replacements would be longer than it may be."""


class OrderedEdits:
    """Replacements, each behind the one before it. The result is never longer than a limit, also
    while it is made.
    """

    __slots__ = ("_copied", "_pieces", "_size", "limit", "text")

    def __init__(self, text: bytes, limit: int = sys.maxsize) -> None:
        """`limit`: bytes that the text may have with the replacements."""
        self.text = text
        self.limit = limit
        self._pieces: list[bytes] = []
        self._copied = 0
        self._size = 0

    def replace(self, start: int, end: int, new: bytes) -> None:
        """Replace the bytes from `start` to `end`. Raises `TooLong`."""
        copied = self._copied
        self._size += start - copied + len(new)
        if self._size > self.limit:
            raise TooLong
        self._pieces += (self.text[copied:start], new)
        self._copied = end

    def made(self) -> bytes:
        """The text with all replacements. Raises `TooLong`."""
        text = self.text
        if self._size + len(text) - self._copied > self.limit:
            raise TooLong
        self._pieces.append(text[self._copied :])
        return b"".join(self._pieces)
