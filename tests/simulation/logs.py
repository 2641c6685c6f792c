"""Logs: the folder that they are in, programs that write and rotate them, and what the daemon's
reader sees of it. The folder is in memory: its calls of the system are steps between which the
programs do something; its inodes are used again, its clock is the life's.

What is written survives the end of the daemon; of what is younger than half a minute a loss of
power leaves a drawn part, with NULs behind it now and then. Names stay.
"""

from __future__ import annotations

import errno
import gzip
import os
import stat
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

from forwarder.sources.logs.positions import PositionStore, StoredPosition
from forwarder.sources.logs.watching import Watch
from tests.simulation.log_acts import (
    CUT_LINE,
    FOLDER,
    PROGRAMS,
    Line,
    LogAct,
    LogPlan,
    LogRemoval,
    LogRotation,
    LogWrite,
)
from tests.simulation.process import PROCESS, SimulatedProcess

if TYPE_CHECKING:
    from forwarder.core.clock import Clock
    from tests.simulation.loop import SimulatedLoop

WRITTEN_BACK: Final = 30.0
"""Seconds after which a system has made durable what was written."""
_DEVICE: Final = 1
_TAIL: Final = 256
"""Bytes before a position whose digest is stored with it."""
_FIRST_DESCRIPTOR: Final = 1 << 20
_SUFFIX: Final = ".gz"


@dataclass(slots=True, eq=False)
class LogInode:
    """A file."""

    number: int
    path: str
    """Empty once it has no name."""
    content: int
    """Another one after each truncation; a copy has another one, too."""
    data: bytearray = field(default_factory=bytearray)
    plain: bytearray | None = None
    """What is compressed in it."""
    copied: int = -1
    """The content that was copied, and is truncated next."""
    opened: int = -1
    """The content that was opened last."""
    lines: list[tuple[int, int, Line]] = field(default_factory=list)
    """Whole lines: where each begins and ends, its end with it."""
    modified: int = 0
    changed: float = 0.0
    """When it was written or renamed."""
    written: list[tuple[float, int]] = field(default_factory=list)
    """When it had become how long."""
    checked: int = 0
    """Lines that were before a stored position."""

    @property
    def text(self) -> bytearray:
        """What is in it."""
        return self.data if self.plain is None else self.plain


@dataclass(frozen=True, slots=True)
class LogStatus:
    """As much of a file's status as is looked at."""

    st_ino: int
    st_size: int
    st_mtime_ns: int
    st_mode: int = stat.S_IFREG | 0o644
    st_dev: int = _DEVICE


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A file in the folder, as it is listed."""

    name: str
    path: str
    _system: LogSystem
    _inode: int

    def inode(self) -> int:
        return self._inode

    def stat(self) -> LogStatus:
        return self._system.stat(self.path)

    def is_symlink(self) -> bool:
        return False

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return False


@dataclass(slots=True)
class _Half:
    """The rest of a line of which a part is written."""

    rest: bytes
    line: Line
    inode: LogInode
    content: int
    begin: int


@dataclass(slots=True)
class LogProgram:
    """A program that writes a log."""

    number: int
    path: str
    inode: LogInode | None = None
    """The file that it has open."""
    offset: int = 0
    half: _Half | None = None
    reopens: bool = False
    """Whether it opens its log anew before it writes next."""
    rotated: int = 0


class LogFolder:
    """The logs of a life, and the programs that write them. `on_saved` is called with a file and a
    position in it, when that is stored.
    """

    def __init__(
        self, plan: LogPlan, loop: SimulatedLoop, clock: Clock, say: Callable[[str, str], None]
    ) -> None:
        self.plan = plan
        self.loop = loop
        self.chance = loop.chance
        self._clock = clock
        self._say = say
        self.trouble = ""
        self.met: Counter[str] = Counter()
        self.files: dict[str, LogInode] = {}
        self.parts: dict[str, list[Line]] = {}
        """All whole lines that were ever written, by the content that they are in."""
        self._late: list[Line] = []
        """Those that were whole when their reader may have given up waiting."""
        self.twins: set[int] = set()
        """Events of lines that may be read as two contents, and so be two events: those that may be
        found first in a log and in the copy that is made of it, while the log is longer; and those
        behind a first line that counted as whole before it was.
        """
        self._early: set[int] = set()
        """Contents whose first line may have counted as whole too early."""
        self.shrunk = False
        """Whether a loss of power has taken lines that may have been read."""
        self.on_saved: Callable[[list[Line]], None] = lambda _: None
        self.pending: tuple[int, LogAct] | None = None
        self.watches: list[SimulatedWatch] = []
        self._programs = [
            LogProgram(number, f"{FOLDER}/app{number}.log") for number in range(PROGRAMS)
        ]
        self._inodes: dict[int, LogInode] = {}
        self._removed: list[LogInode] = []
        self._contents = 0
        self._system = LogSystem(self)

    @contextmanager
    def intercepted(self) -> Iterator[None]:
        """The daemon reads these logs."""
        system = self._system
        real = PositionStore.save

        def save(store: PositionStore, source: str, rows: Any, *more: Any) -> None:
            real(store, source, rows, *more)
            self._saved(rows)

        with ExitStack() as stack:
            stack.enter_context(patch("forwarder.sources.logs.discovery.os", system))
            stack.enter_context(patch("forwarder.sources.logs.contents.os", system))
            stack.enter_context(
                patch("forwarder.sources.logs.source.Watch", partial(SimulatedWatch, self))
            )
            stack.enter_context(patch.object(PositionStore, "save", save))
            yield

    def open_by(self, process: SimulatedProcess) -> int:
        """How many files a process has open."""
        return len(self._system.opened(lambda owner: owner is process))

    # What is expected

    def due(self) -> Iterator[tuple[str, Line]]:
        """All whole lines that are still in a file, with what they are a part of, in order."""
        there = {
            line.event.number for file in self.files.values() for _begin, _end, line in file.lines
        }
        for part, lines in self.parts.items():
            for line in lines:
                if line.event.number in there:
                    yield part, line

    def lines(self) -> Iterator[Line]:
        """All lines that were ever whole."""
        for lines in self.parts.values():
            yield from lines
        yield from self._late

    def _saved(self, rows: Collection[StoredPosition]) -> None:
        """Positions are stored just now."""
        for row in rows:
            file = self._inodes.get(row.inode)
            if file is None or not 0 < row.position <= len(file.text):
                continue
            before = bytes(file.text[max(0, row.position - _TAIL) : row.position])
            if blake2b(before, digest_size=16).digest() != row.tail:
                continue  # it is of what was in the file before
            passed = [line for _, end, line in file.lines[file.checked :] if end <= row.position]
            file.checked += len(passed)
            self.met["a position was stored"] += 1
            if passed:
                self.on_saved(passed)

    # What happens

    def perform(self, act: LogAct) -> None:
        """A program does something, now or between two of the daemon's calls."""
        self._flush()
        if act.calls:
            self.pending = (act.calls, act)
        else:
            self._do(act)

    def called(self) -> None:
        """The daemon calls the system."""
        if self.pending is not None:
            calls, act = self.pending
            self.pending = (calls - 1, act)
            if calls == 1:
                self.pending = None
                self.met["logs: between two calls"] += 1
                Context().run(self._do, act)

    def finish(self) -> None:
        """Nothing more is written: what was begun is ended."""
        self._flush()
        for program in self._programs:
            self._end_line(program)
            file = program.inode
            if file is not None and file.data and not file.data.endswith(b"\n"):
                self._append(program, b"\n")

    def lose_power(self) -> None:
        """All programs end, and what wasn't written back may be lost."""
        self._flush()
        now = self.loop.time()
        for program in self._programs:
            program.inode = program.half = None
        for file in self.files.values():
            synced = max([size for at, size in file.written if now - at >= WRITTEN_BACK], default=0)
            if file.plain is not None or synced >= len(file.data):
                continue
            remaining = self.chance.randint(synced, len(file.data))
            lost = len(file.data) - remaining
            del file.data[remaining:]
            file.lines = [line for line in file.lines if line[1] <= remaining]
            file.checked = min(file.checked, len(file.lines))
            if lost and self.chance.random() < 0.25:
                file.data += bytes(lost)
            self.shrunk = self.shrunk or bool(lost)
            self._touch(file)
            self._say("logs", f"{file.path}: {lost} bytes are lost")

    def _flush(self) -> None:
        if self.pending is not None:
            act = self.pending[1]
            self.pending = None
            self._do(act)

    def _do(self, act: LogAct) -> None:
        program = self._programs[act.program]
        if isinstance(act, LogWrite):
            self._write(program, act)
        elif isinstance(act, LogRemoval):
            rotated = [inode for inode in self._rotated(program) if inode is not program.inode]
            if rotated:
                self.met["logs: a file is removed"] += 1
                self._unlink(rotated[0])
        elif act.how == "compress":
            self._compress(program, act)
        elif (file := self.files.get(program.path)) is None:
            return
        elif file.copied != file.content:  # else it is being rotated
            self.met[f"logs: {act.how}"] += 1
            if act.how == "copy":
                if act.gap and file.opened != file.content:
                    self.twins |= {line.event.number for _, _, line in file.lines}
                file.copied = file.content
                copy = self._create(self._make_room(program))
                copy.data += file.data
                copy.lines += file.lines
                self._touch(copy)
                self._later(act.gap, partial(self._truncate, file, file.content))
            else:
                self._rename(file, self._make_room(program))
                program.reopens = act.how == "rename"

    def _later(self, seconds: float, work: Callable[[], None]) -> None:
        if seconds:
            self.loop.call_later(seconds, work)
        else:
            work()

    def _write(self, program: LogProgram, act: LogWrite) -> None:
        self._end_line(program)
        written_on = not program.reopens
        file = self._opened(program)
        if file.data and not file.data.endswith(b"\n"):
            self._append(program, b"\n")  # it was ended in the midst of a line
        end = self.plan.ends[program.number]
        for number, line in enumerate(act.lines, 1):
            text = line.text + end
            cut = len(text)
            if number == len(act.lines) and act.half < 1:
                cut = max(1, int(len(line.text) * act.half))
            begin = self._append(program, text[:cut])
            program.half = _Half(text[cut:], line, file, file.content, begin)
            if cut == len(text):
                self._end_line(program)
        program.reopens = program.reopens or (written_on and file.path != program.path)

    def _end_line(self, program: LogProgram) -> None:
        """Write the rest of the line that is begun."""
        half = program.half
        if half is None:
            return
        program.half = None
        waits = self.loop.time() - half.inode.changed
        late = half.inode.path != program.path and waits > 0.8 * self.plan.rotate_wait
        if half.rest:
            self._append(program, half.rest)
        text = half.line.text
        file = half.inode
        whole = file.content == half.content and file.data[half.begin :].startswith(text)
        if late and not half.begin:
            self._early.add(file.content)
        if file.content in self._early:
            self.twins.add(half.line.event.number)
        if whole and not late:
            end = half.begin + len(text) + len(self.plan.ends[program.number])
            file.lines.append((half.begin, end, half.line))
            part = f"log {program.number}, content {file.content}"
            self.parts.setdefault(part, []).append(half.line)
        else:
            self.met[CUT_LINE] += 1
            if whole:
                self._late.append(half.line)

    def _opened(self, program: LogProgram) -> LogInode:
        if program.inode is None or program.reopens:
            program.reopens = False
            file = self.files.get(program.path)
            if file is None:
                file = self._create(program.path)
            program.inode = file
            program.offset = len(file.data)
            if not file.data and self.plan.headers[program.number]:
                self._append(program, b"The same first line\n")
        return program.inode

    def _append(self, program: LogProgram, data: bytes) -> int:
        """Write at the file's end, or where this program is; where that was."""
        file = program.inode
        assert file is not None
        at = len(file.data) if self.plan.appends[program.number] else program.offset
        file.data += bytes(max(0, at - len(file.data)))
        file.data[at : at + len(data)] = data
        program.offset = at + len(data)
        self._touch(file)
        return at

    # Files

    def _create(self, path: str) -> LogInode:
        self._contents += 1
        number = self._contents + 100
        held = self._system.opened(lambda owner: owner is None or not owner.killed)
        held |= {program.inode for program in self._programs if program.inode is not None}
        free = [inode for inode in self._removed if inode not in held]
        if free and self.chance.random() < 0.5:
            used = self.chance.choice(free)
            self._removed.remove(used)
            number = used.number
            self.met["logs: an inode is used again"] += 1
        file = LogInode(number, path, self._contents)
        self._inodes[number] = self.files[path] = file
        self._touch(file)
        return file

    def _touch(self, file: LogInode, *paths: str) -> None:
        """The file has changed, and so have these paths."""
        file.changed = self.loop.time()
        if not paths:
            file.modified = int(self._clock.now() * 1e9)
            file.written.append((file.changed, len(file.data)))
        for watch in self.watches:
            watch.report({*paths, file.path} - {""})

    def _rename(self, file: LogInode, path: str) -> None:
        before = file.path
        replaced = self.files.get(path)
        if replaced is not None and replaced is not file:
            self._unlink(replaced)
        del self.files[before]
        file.path = path
        self.files[path] = file
        self._touch(file, before)

    def _truncate(self, file: LogInode, content: int) -> None:
        """`content`: what was copied."""
        if file.content == content and file.path:
            self._contents += 1
            file.content = self._contents
            file.data.clear()
            file.lines.clear()
            file.written.clear()
            file.checked = 0
            self._touch(file)

    def _unlink(self, file: LogInode) -> None:
        path = file.path
        del self.files[path]
        file.path = ""
        for watch in self.watches:
            watch.report({path})
        self._removed.append(file)

    def _rotated(self, program: LogProgram) -> list[LogInode]:
        """The rotated files of a program, the oldest first."""
        files = [
            file
            for path, file in self.files.items()
            if path.startswith(f"{program.path}.") and not path.endswith(".tmp")
        ]
        return sorted(files, key=lambda file: (file.content, file.path))

    def _make_room(self, program: LogProgram) -> str:
        """The name that the next rotated file gets; others are renamed for it."""
        program.rotated += 1
        if not self.plan.shifts[program.number]:
            return f"{program.path}.{program.rotated}"
        for number in range(program.rotated, 0, -1):
            for suffix in ("", _SUFFIX):
                file = self.files.get(f"{program.path}.{number}{suffix}")
                if file is not None:
                    self._rename(file, f"{program.path}.{number + 1}{suffix}")
        return f"{program.path}.1"

    def _compress(self, program: LogProgram, act: LogRotation) -> None:
        """Compress a rotated file that nobody writes to."""
        plain = [
            file
            for file in self._rotated(program)
            if file.plain is None and file is not program.inode and file.data
        ]
        if not plain:
            return
        self.met["logs: compress"] += 1
        file = plain[-1]
        path = file.path
        packed = self._create(f"{path}{_SUFFIX}.tmp")
        packed.plain = bytearray(file.data)
        packed.data += gzip.compress(bytes(file.data), mtime=0)
        packed.lines += file.lines
        self._rename(packed, f"{path}{_SUFFIX}")
        self._later(act.gap, lambda: self._unlink(file) if file.path == path else None)


class LogSystem:
    """Stands for the module `os` where logs are found and read."""

    def __init__(self, folder: LogFolder) -> None:
        self._folder = folder
        self._opened: dict[int, tuple[LogInode, SimulatedProcess | None]] = {}
        self._next = _FIRST_DESCRIPTOR
        self.path = LogPaths()

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def opened(self, by: Callable[[SimulatedProcess | None], bool]) -> set[LogInode]:
        """What these processes have open."""
        return {file for file, owner in self._opened.values() if by(owner)}

    def _called(self, *faults: str) -> None:
        self._folder.called()
        if self._folder.trouble in faults:
            code = errno.EIO if self._folder.trouble == "broken" else errno.EACCES
            raise OSError(code, os.strerror(code))

    def stat(self, path: str) -> LogStatus:
        self._called()
        return _status(self._found(path))

    def fstat(self, descriptor: int) -> LogStatus:
        self._called()
        return _status(self._opened[descriptor][0])

    @contextmanager
    def scandir(self, path: str) -> Iterator[list[LogEntry]]:
        self._called("unlisted")
        yield [
            LogEntry(PurePosixPath(file_path).name, file_path, self, file.number)
            for file_path, file in self._folder.files.items()
            if file_path.startswith(f"{path}/")
        ]

    def open(self, path: str, _: int) -> int:
        self._called("forbidden")
        file = self._found(path)
        self._next += 1
        self._opened[self._next] = file, PROCESS.get()
        file.opened = file.content
        return self._next

    def close(self, descriptor: int) -> None:
        del self._opened[descriptor]

    def pread(self, descriptor: int, size: int, offset: int) -> bytes:
        self._called("broken")
        return bytes(self._opened[descriptor][0].data[offset : offset + size])

    def lseek(self, descriptor: int, offset: int, _: int) -> int:
        """Where data is from there on, by pages."""
        self._called()
        data = self._opened[descriptor][0].data
        rest = data[offset:].lstrip(b"\0")
        if not rest:
            raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))
        return (len(data) - len(rest)) // 4096 * 4096

    def _found(self, path: str) -> LogInode:
        file = self._folder.files.get(path)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return file


class LogPaths:
    """Stands for the module `os.path`: there is one directory, and no link."""

    def __getattr__(self, name: str) -> Any:
        return getattr(os.path, name)

    def isdir(self, path: str) -> bool:
        return path == FOLDER

    def realpath(self, path: str) -> str:
        return path


def _status(file: LogInode) -> LogStatus:
    return LogStatus(file.number, len(file.data), file.modified)


class SimulatedWatch(Watch):
    """Its thread is told by the folder what has changed; where nothing is reported, never."""

    def __init__(self, folder: LogFolder, *args: Any) -> None:
        super().__init__(*args)
        self._folder = folder
        self._context = copy_context()
        folder.watches.append(self)

    def _watch(self, directories: frozenset[str]) -> None:
        self._directories = directories

    def report(self, paths: set[str]) -> None:
        """These have changed."""
        folder = self._folder
        if folder.plan.reported and FOLDER in self._directories and not self._stop.is_set():
            folder.loop.call_later(
                folder.chance.uniform(0.0, 0.15),
                self._add,
                paths,
                self._stop,
                context=self._context,
            )
