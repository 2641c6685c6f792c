"""The sender's journal: for each request that was begun, what came of it. Written without a buffer, so that it can be read at any time."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Final, NamedTuple

UNKNOWN: Final = 0
"""The status of a request that got no answer: its events were taken, or not."""
PROMISED: Final = 200

_ENTRY: Final = struct.Struct("<QH")


class Entry(NamedTuple):
    """A request's number, and the status of its answer."""

    number: int
    status: int


class JournalWriter:
    """Appends entries to a file."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def note(self, number: int, status: int) -> None:
        """A request has ended."""
        os.write(self._descriptor, _ENTRY.pack(number, status))

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


class JournalReader:
    """Reads what was appended since the last time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def more(self) -> list[Entry]:
        """The entries that are new; none if there is no file yet."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = len(data) - len(data) % _ENTRY.size
        self._offset += whole
        return [Entry(*fields) for fields in _ENTRY.iter_unpack(data[:whole])]
