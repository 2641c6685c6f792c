"""An archive in the place of a service: a folder on the simulated disk, whose finished files are
what it has stored.
"""

from __future__ import annotations

import asyncio
import errno
import io
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

import zstandard

from forwarder.archive.folders import LocalFolder
from tests.simulation.oracle import BEGIN, Evidence, Promise
from tests.simulation.process import PROCESS, SimulatedProcess
from tests.simulation.services import Stored

if TYPE_CHECKING:
    from tests.simulation.disk import SimulatedDisk
    from tests.simulation.loop import SimulatedLoop

_HOUR: Final = re.compile(r"date=(\d{4}-\d\d-\d\d)(?:/hour=(\d\d))?/")


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """A finished file."""

    name: str
    seen: float
    """When it was seen first."""
    events: tuple[Stored, ...]

    @property
    def folder(self) -> str:
        """What it is for: `2026-01-01`, or `2026-01-01T10`."""
        match = _HOUR.match(self.name)
        if match is None:
            raise Promise(f"{self.name} is in no folder of a span")
        day, hour = match.groups()
        return day if hour is None else f"{day}T{hour}"


class SimulatedArchive:
    """A destination that is a folder. It has what the oracle asks of a service."""

    def __init__(self, name: str, disk: SimulatedDisk, loop: SimulatedLoop) -> None:
        self.name = name
        self.loop = loop
        self.trouble = ""
        self.refuses_poison = False
        self.root = disk.root / "archive"
        self.files: dict[str, ArchivedFile] = {}
        """Finished files by name, in the order in which they were seen."""
        self.cleaned: SimulatedProcess | None = None
        """The last process that has finished a file."""
        self.broken: list[Promise] = []
        """What was noticed within a step of the daemon, which would take it for an error."""
        self._disk = disk
        self._read_before = True
        """Whether files that were seen are as they were."""

    @property
    def url(self) -> str:
        """Its address."""
        return f"file://{self.root}"

    @property
    def stored(self) -> list[Stored]:
        """What is in finished files. Raises `Promise` for one that isn't whole."""
        self._look()
        return [event for file in self.files.values() for event in file.events]

    def lose_power(self) -> None:
        """Files may be gone or torn: they are read again when they are looked at."""
        self._read_before = False

    def unfinished(self) -> list[Path]:
        """What was begun, and is left."""
        return sorted(self.root.rglob(".*.part"))

    def serve(self) -> None:
        """A folder is there."""

    def refuse(self) -> None:
        pass

    async def close(self) -> None:
        pass

    @contextmanager
    def intercepted(self) -> Iterator[None]:
        """The archiver's files are the disk's, its thread's work is steps."""
        real_open, real_publish = io.open, LocalFolder._publish

        def open_part(path: Any, mode: str = "r", *more: Any, **named: Any) -> Any:
            ours = PROCESS.get() is not None and str(path).startswith(str(self.root))
            return (
                self._part(path) if ours and "w" in mode else real_open(path, mode, *more, **named)
            )

        def publish(folder: LocalFolder, *args: Any) -> None:
            real_publish(folder, *args)
            self.cleaned = PROCESS.get()
            try:
                self._look()
            except Promise as broken:
                self.broken.append(broken)

        with ExitStack() as stack:
            stack.enter_context(patch.object(io, "open", open_part))
            stack.enter_context(patch.object(LocalFolder, "_publish", publish))
            spools = SimpleNamespace(TemporaryFile=partial(SimulatedSpool, self._disk))
            stack.enter_context(patch("forwarder.archive.spool.tempfile", spools))
            stack.enter_context(
                patch("forwarder.archive.archiver.ThreadPoolExecutor", SimulatedExecutor)
            )
            yield

    def _part(self, path: Any) -> ArchivePart:
        if self.trouble == "forbidden":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return ArchivePart(self, path)

    def _look(self) -> None:
        """Read finished files that are new; forget those that a loss of power has undone."""
        there = [
            (path, str(path.relative_to(self.root)))
            for path in sorted(self.root.rglob("*.jsonl.zst"))
        ]
        names = {name for _, name in there}
        self.files = {name: file for name, file in self.files.items() if name in names}
        for path, name in there:
            known = self.files.get(name)
            if known is None or not self._read_before:
                seen = self.loop.time() if known is None else known.seen
                self.files[name] = ArchivedFile(name, seen, self._read(path, name))
        self._read_before = True

    def _read(self, path: Path, name: str) -> tuple[Stored, ...]:
        frame = zstandard.ZstdDecompressor().decompressobj()
        try:
            text = frame.decompress(path.read_bytes())
        except zstandard.ZstdError as error:
            raise Promise(f"{name} can't be read: {error}") from error
        if not frame.eof or frame.unused_data or not text.endswith(b"\n"):
            raise Promise(f"{name} isn't whole")
        key = path.name.partition("-")[0]
        return tuple(
            Stored(self.loop.time(), line, json.loads(line), key)
            for line in text.decode().splitlines()
        )


class ArchivePart:
    """An unfinished file that is written, on the disk."""

    def __init__(self, archive: SimulatedArchive, path: Any) -> None:
        self._archive = archive
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)
        self._at = 0

    def __enter__(self) -> ArchivePart:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def write(self, data: bytes) -> int:
        written = os.pwrite(self._descriptor, data, self._at)
        self._at += written
        return written

    def flush(self) -> None:
        if self._archive.trouble == "broken":
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def fileno(self) -> int:
        return self._descriptor


class SimulatedSpool(io.BytesIO):
    """A file without a name, on the disk: a crash leaves nothing of it."""

    def __init__(self, disk: SimulatedDisk, **_: object) -> None:
        super().__init__()
        self._disk = disk
        disk.writes("write aside")

    def write(self, data: Any) -> int:
        """Perhaps not all of it."""
        self._disk.writes("write aside")
        return super().write(data[: max(1, len(data) // 2)] if len(data) % 3 == 0 else data)


class SimulatedExecutor:
    """In the place of a thread: what is submitted is a step."""

    def __init__(self, *_: object) -> None:
        pass

    def submit(self, work: Callable[..., Any], *args: object, **named: object) -> Any:
        """A future of the running loop, which `asyncio.wrap_future` leaves as it is."""
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(None, partial(work, *args, **named))

    def shutdown(self, *_: object) -> None:
        """It has nothing left."""


def judge_archive(evidence: Evidence, archive: SimulatedArchive, last: SimulatedProcess) -> None:
    """Events are in the folder of when they were received, each once unless something was repeated,
    and nothing unfinished is left. Raises `Promise`.
    """
    if archive.cleaned is last and archive.unfinished():
        raise Promise(f"the archive has unfinished files: {archive.unfinished()[0].name}")
    jumps = [offset for _, offset in evidence.offsets]
    times: Counter[int] = Counter()
    for file in archive.files.values():
        latest = BEGIN + file.seen + max(jumps)
        for stored in file.events:
            number = stored.event["properties"]["n"]
            times[number] += 1
            earliest = BEGIN + evidence.began[number] + min(jumps) - 1.0
            if not _span(earliest, file.folder) <= file.folder <= _span(latest, file.folder):
                raise Promise(f"event {number} is in {file.name}")
    plan = evidence.plan
    once = {
        event.number
        for sender in evidence.senders
        for answered in sender.answers
        for event in answered.send.events
        if answered.maybe == 1
    }
    if not plan.restarts and not plan.early and not plan.replays and not plan.marked:
        for number, count in times.items():
            if number in once and count > 1:
                raise Promise(f"event {number} is {count} times in the archive")


def _span(at: float, like: str) -> str:
    """The span of a wall-clock second, as a folder of this form is for."""
    return datetime.fromtimestamp(at, UTC).isoformat()[: len(like)]
