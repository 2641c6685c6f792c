"""The dead letters' file and the connection to it, which is opened again after a failure.

Used by one thread at a time: at the opening by the loop's, from then on by the commit thread.
"""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

from forwarder.deadletter.schema import open_writable


class LetterFile:
    """`connection` is None where there is none now; `read_only`: it can't write, and another one is to be tried for that."""

    def __init__(self, path: Path, connection: sqlite3.Connection | None = None, *, read_only: bool = False) -> None:
        self.path = path
        self.connection = connection
        self.read_only = read_only

    def writable(self) -> sqlite3.Connection:
        """A connection that may write. Raises `sqlite3.Error`, `OSError` or `schema.Garbled`."""
        if self.connection is None or self.read_only:
            connection = open_writable(self.path)
            self.close()
            self.connection, self.read_only = connection, False
        return self.connection

    def close(self) -> None:
        """Close the connection, if there is one."""
        connection, self.connection = self.connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()
