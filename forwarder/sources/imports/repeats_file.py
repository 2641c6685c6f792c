"""Digests of events on disk, for who can't hold them all in memory: which of them were added is searched for in a file.

Invariants: exact, for whole digests are kept and compared. One bit in memory for each says where a search would be in vain.

Nothing is kept from run to run, so the file needs no care when the process dies; the next run removes it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from pathlib import Path
from typing import Final

from forwarder.core.errors import ConfigurationError
from forwarder.storage.private import make_file

_FILTER: Final = 1 << 26
"""Bits, eight MiB: with a million digests in the file one search in seventy is in vain, with ten million one in seven."""

_CACHE_KIB: Final = 4_096
_SETTINGS: Final = ("journal_mode=OFF", "synchronous=OFF", "locking_mode=EXCLUSIVE", "temp_store=MEMORY", f"cache_size=-{_CACHE_KIB}")
_TABLE: Final = "CREATE TABLE seen (day INTEGER, digest BLOB, PRIMARY KEY (day, digest)) WITHOUT ROWID"


class SeenFile:
    """Digests by day; the file is there once there are any."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._path.unlink(missing_ok=True)
        self._bits = bytearray()  # one is set for each digest in the file
        self._file: sqlite3.Connection | None = None

    def __bool__(self) -> bool:
        """Whether it has any."""
        return bool(self._bits)

    def has(self, day: int, digest: bytes) -> bool:
        """Whether it was added. Raises `ConfigurationError` if the file can't be read."""
        if not self._bits:
            return False
        bit = int.from_bytes(digest[:4]) % _FILTER
        if not self._bits[bit >> 3] >> (bit & 7) & 1:
            return False
        try:
            return self._opened().execute("SELECT 1 FROM seen WHERE day = ? AND digest = ?", (day, digest)).fetchone() is not None
        except (sqlite3.Error, OSError) as error:
            raise unusable(self._path, error) from error

    def add(self, day: int, digests: Collection[bytes]) -> None:
        """Add digests that it hasn't. Raises `ConfigurationError` if the file can't be written."""
        try:
            file = self._opened()
            file.execute("BEGIN")
            file.executemany("INSERT INTO seen VALUES (?, ?)", ((day, digest) for digest in sorted(digests)))
            file.execute("COMMIT")
        except (sqlite3.Error, OSError) as error:
            raise unusable(self._path, error) from error
        bits = self._bits = self._bits or bytearray(_FILTER >> 3)
        for digest in digests:
            bit = int.from_bytes(digest[:4]) % _FILTER
            bits[bit >> 3] |= 1 << (bit & 7)

    def close(self) -> None:
        """Forget all, and remove the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._path.unlink(missing_ok=True)
        self._bits.clear()

    def _opened(self) -> sqlite3.Connection:
        if self._file is None:
            make_file(self._path)
            self._file = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
            for setting in _SETTINGS:
                self._file.execute(f"PRAGMA {setting}").close()
            self._file.execute(_TABLE)
        return self._file


def unusable(path: Path, error: Exception) -> ConfigurationError:
    """What is seen can't be written down, or looked up."""
    return ConfigurationError(f"{path} can't be used: {error}", hint="It holds what was seen: 20 to 40 bytes for each event.")
