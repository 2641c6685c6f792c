"""Opens SQLite files that hold what must survive a crash: write-ahead log, synchronous, so that a
commit that has returned is on the disk.

`user_version` is the version of a file's format; 0 is that of a file without tables. A file that
this forwarder can't read is never changed: its header is read before SQLite opens it, which may
change it, and whoever opens it quarantines it (`quarantine.py`) or reports it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from forwarder.core.error_text import error_text

_MAGIC: Final = b"SQLite format 3\0"
_DURABLE: Final = """
    PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA journal_size_limit = 4194304;
"""


class UnreadableDatabase(sqlite3.DatabaseError):
    """The file is no database that this version can read; the message says why."""


class OtherVersion(UnreadableDatabase):
    """The file's format has a version that this forwarder doesn't read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseFormat:
    """The format of a file: its tables, and the versions that are read, of which the newest is
    written. All methods that open raise `UnreadableDatabase`, and `sqlite3.Error` or `OSError` if
    the file can't be used now.
    """

    oldest: int
    newest: int
    tables: Sequence[str]
    """The statements that create the tables of a new file."""
    busy_seconds: float
    """Seconds that a writer waits for another one."""
    pragma: str = ""
    """What a new file has to be told before it has a page."""
    upgrade: Callable[[sqlite3.Connection], object] = lambda _: None
    """Upgrades the tables of an older version, within a transaction."""
    present: Callable[[sqlite3.Connection], object] = lambda _: None
    """Shows a reader the tables of an older version, or none, as those of the newest."""

    def open_writable(self, path: Path, *, check: bool = False) -> sqlite3.Connection:
        """A connection that writes, for any thread, to an existing file. Creates the tables of an
        empty one, and upgrades those of an older version. `check`: every page is checked.
        """
        with path.open("rb") as file:
            header = file.read(64)
        if header and not header.startswith(_MAGIC):
            raise UnreadableDatabase("it is not a database")
        self._check_version(int.from_bytes(header[60:], "big") or self.newest)
        return self._connect(path, "rw", self._prepare, check=check)

    def open_readable(self, path: Path, *, check: bool = False) -> sqlite3.Connection:
        """A connection that only reads, for any thread."""
        return self._connect(path, "ro", self._present, check=check)

    def version(self, connection: sqlite3.Connection) -> int:
        """The version of the tables; 0: there are none. Raises `OtherVersion`."""
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if version or tables:
            self._check_version(version)
        return int(version)

    def _connect(
        self, path: Path, mode: str, prepare: Callable[[sqlite3.Connection], None], *, check: bool
    ) -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={mode}",
            timeout=self.busy_seconds,
            isolation_level=None,
            uri=True,
            check_same_thread=False,
        )
        try:
            prepare(connection)
            if check:
                _check_pages(connection)
        except BaseException as error:
            connection.close()
            raise _classified(error) from error
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        version = self.version(connection)
        if not version:
            connection.execute(self.pragma)
        connection.executescript(_DURABLE)
        if version == self.newest:
            return
        connection.execute("BEGIN IMMEDIATE")
        if self.version(connection):  # another process may have created them meanwhile
            self.upgrade(connection)
        else:
            for statement in self.tables:
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {self.newest}")
        connection.execute("COMMIT")

    def _present(self, connection: sqlite3.Connection) -> None:
        if self.version(connection) < self.newest:
            self.present(connection)

    def _check_version(self, version: int) -> None:
        if not self.oldest <= version <= self.newest:
            read = " to ".join(dict.fromkeys([str(self.oldest), str(self.newest)]))
            raise OtherVersion(
                f"it is of version {version} of the format; this forwarder reads {read}"
            )


def _check_pages(connection: sqlite3.Connection) -> None:
    (finding,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if finding != "ok":
        raise UnreadableDatabase(str(finding).replace("\n", " "))


def _classified(error: BaseException) -> BaseException:
    """`UnreadableDatabase` if the error says that the file is corrupt or of another kind; else the
    error itself.
    """
    code = getattr(error, "sqlite_errorcode", None)
    if code is not None and code & 0xFF in (
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_ERROR,
    ):
        return UnreadableDatabase(error_text(error))
    return error
