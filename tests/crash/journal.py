"""A sender's journal: for each request that was begun, what came of it. Written without a buffer,
so that it can be read at any time.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, TypeVar

UNKNOWN: Final = 0
"""The status of a request that got no answer: its events were taken, or not."""
PROMISED: Final = 200

Noted = TypeVar("Noted", bound=tuple[Any, ...])


class Entry(NamedTuple):
    """A request's number, and the status of its answer."""

    number: int
    status: int


@dataclass(frozen=True, slots=True)
class Layout(Generic[Noted]):
    """How entries are written."""

    fields: struct.Struct
    make: Callable[..., Noted]


ENTRIES: Final = Layout(struct.Struct("<QH"), Entry)


class JournalWriter:
    """Appends entries to a file."""

    def __init__(self, path: Path, layout: Layout[Any]) -> None:
        self._descriptor = os.open(
            path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
        )
        self._pack = layout.fields.pack

    def note(self, *fields: float) -> None:
        """A request has ended; the fields of its entry."""
        os.write(self._descriptor, self._pack(*fields))

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


class JournalReader(Generic[Noted]):
    """Reads what was appended since the last time."""

    def __init__(self, path: Path, layout: Layout[Noted]) -> None:
        self._path = path
        self._layout = layout
        self._offset = 0

    def more(self) -> list[Noted]:
        """The entries that are new; none before the file exists."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        fields = self._layout.fields
        whole = len(data) - len(data) % fields.size
        self._offset += whole
        return [self._layout.make(*values) for values in fields.iter_unpack(data[:whole])]
