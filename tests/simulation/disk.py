"""A disk with a crash's semantics: real files below one directory, where what wasn't synced may be
there, gone or torn after a loss of power, and of the last operations on names only a beginning has
happened.

Python's own calls are intercepted (`os.open`, `os.pwritev`, `os.fdatasync` …), so files are read
and written as ever. Only `fsync` of a file makes its bytes durable, only that of its directory its
name. SQLite writes by itself: each `COMMIT` is one step, which may fail, and stays once it has
succeeded. A file that Python's `open` writes is left as it is; new directories stay.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, Final
from unittest.mock import patch

from tests.simulation.process import PROCESS, Killed, SimulatedProcess

BLOCK: Final = 512
"""Bytes that are written whole or not at all."""
SQLITE: Final = (".db", ".db-wal", ".db-shm", ".db-journal")
_open, _close, _dup, _dup2 = os.open, os.close, os.dup, os.dup2
_pread, _link = os.pread, os.link
_rename, _unlink, _mkdir = os.rename, os.unlink, os.mkdir


@dataclass(slots=True)
class _Opened:
    """A descriptor that a process has: of which file."""

    path: str
    inode: int
    process: SimulatedProcess


@dataclass(slots=True)
class _Unsynced:
    """A file with bytes that aren't durable: its size when they all were, and what was overwritten
    since, the oldest first.
    """

    size: int
    before: list[tuple[int, bytes]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _NameChange:
    """An operation on names that isn't durable."""

    directory: str
    undo: Callable[[], None]


class SimulatedDisk:
    """The files below `root`. `chance` draws what a loss of power leaves."""

    def __init__(self, root: Path, chance: Random, say: Callable[[str, str], None]) -> None:
        self.root = root / "disk"
        self.root.mkdir()
        self._spare = root / "removed"
        self._spare.mkdir()
        self._chance = chance
        self._say = say
        self.trouble = ""
        """`full`: nothing more can be written; `broken`: nothing becomes durable."""
        self.kill_after = 0
        """So many operations later the process that does them is killed; 0: never."""
        self._opened: dict[int, _Opened] = {}
        self._unsynced: dict[int, _Unsynced] = {}
        self._changes: list[_NameChange] = []
        self._connections: list[_Connection] = []
        self._left: list[int] = []
        self._removed = 0

    @contextmanager
    def intercepted(self) -> Iterator[None]:
        """Processes' calls go through this disk."""
        with ExitStack() as stack:
            for name, call in (
                ("open", self._on_open),
                ("close", self._on_close),
                ("dup", self._on_dup),
                ("fsync", self._on_sync),
                ("fdatasync", self._on_sync),
                ("pwrite", self._on_write(os.pwrite)),
                ("pwritev", self._on_write(os.pwritev)),
                ("ftruncate", self._on_truncate),
                ("rename", self._on_rename),
                ("replace", self._on_rename),
                ("unlink", self._on_unlink),
                ("mkdir", self._on_mkdir),
            ):
                stack.enter_context(patch.object(os, name, call))
            stack.enter_context(patch.object(sqlite3, "connect", self._on_connect))
            try:
                yield
            finally:
                for descriptor in self._left:
                    with suppress(OSError):
                        _close(descriptor)

    # The end of a process, and of power

    def end(self, process: SimulatedProcess) -> None:
        """A process is over, whatever it had open."""
        nothing = _open(os.devnull, os.O_RDWR)
        for descriptor, opened in list(self._opened.items()):
            if opened.process is process:
                del self._opened[descriptor]
                # its number stays taken: nothing of the process may meet another file by it
                _dup2(nothing, descriptor)
                self._left.append(descriptor)
        _close(nothing)
        for connection in self._connections:
            connection.close()
        self._connections.clear()
        self.kill_after = 0

    def lose_power(self) -> None:
        """Leave what a loss of power would leave: the operations on names undone from a drawn one
        on, and of each file a mixture of what is durable and what was written since.
        """
        first_lost = self._chance.randint(0, len(self._changes))
        for change in reversed(self._changes[first_lost:]):
            change.undo()
        self._say("disk", f"{len(self._changes) - first_lost} operations on names are lost")
        self._changes.clear()
        for path in sorted(self.root.rglob("*")):
            unsynced = self._unsynced.get(path.stat().st_ino)
            if unsynced is not None:
                self._tear(path, unsynced)
        self._unsynced.clear()

    def _tear(self, path: Path, unsynced: _Unsynced) -> None:
        now = path.read_bytes()
        durable = bytearray(now)
        for at, old in reversed(unsynced.before):
            durable[at : at + len(old)] = old
        del durable[unsynced.size :]
        mixed = bytearray(now[: self._chance.choice((unsynced.size, len(now)))])
        blocks = 0
        for at in range(0, len(mixed), BLOCK):
            old = bytes(durable[at : at + BLOCK]).ljust(BLOCK, b"\0")[: len(mixed) - at]
            if old != now[at : at + BLOCK] and self._chance.random() < 0.5:
                mixed[at : at + BLOCK] = old
                blocks += 1
        path.write_bytes(bytes(mixed))
        self._say("disk", f"{path.name}: {blocks} blocks are lost")

    # Operations

    def _step(self, what: str) -> bool:
        """An operation on files; whether it is a process's. Raises `Killed` if that is over."""
        process = PROCESS.get()
        if process is None:
            return False
        if process.killed:
            raise Killed
        if self.kill_after:
            self.kill_after -= 1
            if not self.kill_after:
                self._say("disk", f"the process is killed before it can {what}")
                process.kill()
                raise Killed
        return True

    def writes(self, what: str) -> bool:
        """An operation that needs room; whether it is of a process. Raises `OSError` if full."""
        ours = self._step(what)
        if ours and self.trouble == "full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return ours

    def _ours(self, path: Any) -> str:
        """The path as a text, if it is below the root; else nothing."""
        text = os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else ""
        return text if text.startswith(str(self.root)) and not text.endswith(SQLITE) else ""

    def _on_open(self, path: Any, flags: int, *args: Any, **more: Any) -> int:
        name = self._ours(path)
        if not name:
            return _open(path, flags, *args, **more)
        creates = bool(flags & os.O_CREAT) and not os.path.lexists(name)
        if not (self.writes("create a file") if creates else self._step("open a file")):
            return _open(path, flags, *args, **more)
        descriptor = _open(path, flags & ~os.O_TRUNC, *args, **more)
        process = PROCESS.get()
        assert process is not None
        self._opened[descriptor] = _Opened(name, os.fstat(descriptor).st_ino, process)
        if creates:
            self._change(name, lambda: _forgive(_unlink, name))
        if flags & os.O_TRUNC:
            self._on_truncate(descriptor, 0)
        return descriptor

    def _on_dup(self, descriptor: int) -> int:
        duplicate = _dup(descriptor)
        if opened := self._opened.get(descriptor):
            self._opened[duplicate] = replace(opened)
        return duplicate

    def hand_over(self, descriptors: Iterable[int], process: SimulatedProcess) -> None:
        """These are another process's."""
        for descriptor in descriptors:
            self._opened[descriptor].process = process

    def _on_close(self, descriptor: int) -> None:
        process = PROCESS.get()
        if process is not None and process.killed:
            return
        self._opened.pop(descriptor, None)
        _close(descriptor)

    def _on_sync(self, descriptor: int) -> None:
        opened = self._opened.get(descriptor)
        if opened is None:
            return
        self._step("sync a file")
        if self.trouble:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if Path(opened.path).is_dir():
            self._changes = [change for change in self._changes if change.directory != opened.path]
        else:
            self._unsynced.pop(opened.inode, None)

    def _on_write(self, real: Callable[..., int]) -> Callable[..., int]:
        def write(descriptor: int, data: Any, at: int, *more: Any) -> int:
            opened = self._opened.get(descriptor)
            if opened is not None:
                whole = b"".join(data) if isinstance(data, list) else bytes(data)
                if self.kill_after == 1:  # a part of it is written all the same
                    part = whole[: self._chance.randint(0, len(whole))]
                    self._remember(descriptor, opened, at, len(part))
                    os.lseek(descriptor, at, os.SEEK_SET)
                    os.write(descriptor, part)
                if self.writes("write into a file"):
                    self._remember(descriptor, opened, at, len(whole))
            return real(descriptor, data, at, *more)

        return write

    def _on_truncate(self, descriptor: int, size: int) -> None:
        opened = self._opened.get(descriptor)
        if opened is not None and self._step("truncate a file"):
            self._remember(descriptor, opened, size, os.fstat(descriptor).st_size - size)
        os.truncate(descriptor, size)

    def _remember(self, descriptor: int, opened: _Opened, at: int, size: int) -> None:
        unsynced = self._unsynced.get(opened.inode)
        if unsynced is None:
            unsynced = self._unsynced[opened.inode] = _Unsynced(os.fstat(descriptor).st_size)
        if size > 0 and not opened.path.endswith("lock"):
            unsynced.before.append((at, _pread(descriptor, size, at).ljust(size, b"\0")))

    def _on_rename(self, old: Any, new: Any, **more: Any) -> None:
        source, target = self._ours(old), self._ours(new)
        if not source or not target or not self._step("rename a file"):
            _rename(old, new, **more)
            return
        replaced = self._keep(target) if os.path.lexists(target) else ""
        _rename(source, target, **more)

        def undo() -> None:
            _forgive(_rename, target, source)
            if replaced:
                _forgive(_link, replaced, target)

        self._change(target, undo)

    def _on_unlink(self, path: Any, **more: Any) -> None:
        name = self._ours(path)
        if not name or not os.path.lexists(name) or not self._step("remove a file"):
            _unlink(path, **more)
            return
        spare = self._keep(name)
        _unlink(path, **more)
        self._change(name, lambda: _forgive(_link, spare, name))

    def _on_mkdir(self, path: Any, *args: Any, **more: Any) -> None:
        name = self._ours(path)
        if not name or os.path.lexists(name) or not self.writes("make a directory"):
            _mkdir(path, *args, **more)
            return
        _mkdir(path, *args, **more)
        self._change(name, lambda: _forgive(_rename, name, self._spare_name()))

    def _keep(self, name: str) -> str:
        """Another name of the file, which lives as long as this disk."""
        spare_name = self._spare_name()
        _link(name, spare_name)
        return spare_name

    def _spare_name(self) -> str:
        self._removed += 1
        return str(self._spare / str(self._removed))

    def _change(self, path: str, undo: Callable[[], None]) -> None:
        self._changes.append(_NameChange(str(Path(path).parent), undo))

    # SQLite

    def _on_connect(self, *args: Any, **more: Any) -> sqlite3.Connection:
        if not self._step("open a database"):
            return sqlite3.Connection(*args, **more)
        connection = _Connection(*args, **more)
        connection.disk = self
        self._connections.append(connection)
        return connection

    def commits(self) -> None:
        """A process commits a transaction. Raises `Killed`, and `sqlite3.OperationalError` while
        the disk doesn't work.
        """
        self._step("commit a transaction")
        if self.trouble:
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            error.sqlite_errorname = "SQLITE_FULL"
            raise error


class _Connection(sqlite3.Connection):
    """One of a process."""

    disk: SimulatedDisk | None = None

    def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
        if self.disk is not None and sql.lstrip()[:6].upper() == "COMMIT":
            self.disk.commits()
        return super().execute(sql, *args)

    def commit(self) -> None:
        if self.disk is not None and self.in_transaction:
            self.disk.commits()
        super().commit()


def _forgive(work: Callable[..., object], *names: str) -> None:
    """Undo an operation, unless that was undone otherwise."""
    with suppress(FileNotFoundError, FileExistsError):
        work(*names)
