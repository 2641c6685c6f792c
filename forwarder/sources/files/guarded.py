"""A stream that ends where it can't be read any further, and remembers why."""

from __future__ import annotations

import lzma
import tarfile
import zipfile
import zlib
from typing import Final

from forwarder.sources.files.options import DamagedContent, Readable

FAILURES: Final = (
    DamagedContent,
    OSError,
    EOFError,
    zlib.error,
    lzma.LZMAError,
    zipfile.BadZipFile,
    tarfile.TarError,
    NotImplementedError,  # zipfile: a compression that it doesn't have
    RuntimeError,  # zipfile: it is encrypted
    UnicodeDecodeError,  # zipfile: the name of a member isn't in the encoding that it says
)
"""What reading a file raises when its content is at fault, or the disk or network it is on."""


class GuardedStream:
    """A stream for framers: `failure` is set once it has ended early."""

    def __init__(self, head: bytes, source: Readable) -> None:
        self._head, self._source = head, source
        self.offset = 0
        self.failure: str | None = None

    def read(self, size: int, /) -> bytes:
        """About so many bytes; none at the end, and at a failure."""
        head, self._head = self._head, b""
        if self.failure is not None:
            return head
        try:
            data = self._source.read(max(1, size - len(head)))
        except FAILURES as error:
            self.failure, data = reason(error), b""
        data = head + data if head else data
        self.offset += len(data)
        return data


class PeekedStream:
    """A stream whose first bytes were looked at."""

    def __init__(self, head: bytes, source: Readable) -> None:
        self._head, self._source = head, source

    def read(self, size: int, /) -> bytes:
        """At most so many bytes; none at the end."""
        if self._head:
            head, self._head = self._head[:size], self._head[size:]
            return head
        return self._source.read(size)


def reason(error: BaseException) -> str:
    """Why a file can't be read, in one line."""
    return (str(error) or type(error).__name__).splitlines()[0].rstrip()
