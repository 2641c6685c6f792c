"""A body that arrives in pieces.

Invariant: what it takes in memory is its bytes and a small fraction of them, however small the pieces are, and also while it is put
together: small pieces are gathered; past `_LARGE_BODY` all of them grow into one buffer, which is handed on as it is, not copied.
"""

from __future__ import annotations

from io import BytesIO
from typing import Final

_LARGE: Final = 4096
_LARGE_BODY: Final = 1 << 20
"""Below this, pieces are kept and joined at the end: twice so many bytes for a moment are nothing, and a growing buffer is slower."""


class Body:
    """Pieces of one body. One that is not kept is measured only, for a request that will be refused when it is complete."""

    __slots__ = ("_keep", "_pieces", "_whole", "length")

    def __init__(self, *, keep: bool) -> None:
        self._keep = keep
        self._pieces: list[bytes | bytearray] = []
        self._whole: BytesIO | None = None
        self.length = 0

    def add(self, piece: bytes) -> None:
        """The next piece arrived."""
        self.length += len(piece)
        if not self._keep:
            return
        if self._whole is not None:
            self._whole.write(piece)
        elif self._pieces and self.length > _LARGE_BODY:
            self._whole = self._poured()
            self._whole.write(piece)
        elif len(piece) >= _LARGE:
            self._pieces.append(piece)
        elif self._pieces and isinstance(last := self._pieces[-1], bytearray):
            last += piece
        else:
            self._pieces.append(bytearray(piece))

    def _poured(self) -> BytesIO:
        """The pieces in one buffer that can grow."""
        whole = BytesIO()
        for piece in self._pieces:
            whole.write(piece)
        self._pieces.clear()
        return whole

    def joined(self) -> bytes:
        """The body so far."""
        return b"".join(self._pieces) if self._whole is None else self._whole.getvalue()
