"""How far log files are read while no daemon runs: the stored positions, beside the files as they
are now. Nothing is written.

A file that was renamed since is looked for in its directory, by device and inode. Files that
appeared since aren't known here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from forwarder.config.settings import Settings
from forwarder.core.error_text import error_text
from forwarder.core.errors import ConfigurationError
from forwarder.daemon.logs import DIRECTORY
from forwarder.inspect.state_files import dead_letter_roots
from forwarder.sources.logs.followed import SKIPPED
from forwarder.sources.logs.positions import (
    DONE,
    FILE,
    GONE,
    PACKED,
    REPLACED,
    StoredPosition,
    read_positions,
)
from forwarder.telemetry.readable import line_excerpt, plain
from forwarder.telemetry.snapshot import LogFile, LogSourceState

STOPPED: Final = "stopped"
"""The state of a source whose daemon doesn't run."""
_LINE: Final = 64 << 10
"""Bytes before a position among which its last line is looked for."""


def stored_logs(
    settings: Settings, environment: Mapping[str, str], *, everything: bool = False
) -> tuple[LogSourceState, ...] | None:
    """The configured log sources with the files that are to be read further; None if no positions
    are stored.

    `everything`: also files that are gone. They come with the largest lag first. Raises
    `ConfigurationError` if positions can't be read.
    """
    roots = (
        [settings.buffer.path]
        if settings.buffer.kind == "disk"
        else dead_letter_roots(settings, environment)
    )
    path = next(filter(_is_file, [root / DIRECTORY / FILE for root in roots]), None)
    if path is None:
        return None
    rows = read_positions(path)
    sources = []
    for source in settings.sources.logs:
        its_rows = rows.get(source.name, [])
        if not everything:
            its_rows = [row for row in its_rows if not row.state & (GONE | REPLACED)]
        sources.append(_source(source.name, its_rows))
    return tuple(sources)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError as error:
        hint = "Run this as the user that forwarder runs as."
        raise ConfigurationError(f"{path} can't be read: {error_text(error)}", hint=hint) from error


def _source(name: str, rows: Sequence[StoredPosition]) -> LogSourceState:
    places = _Places()
    files = sorted((_file(row, places) for row in rows), key=lambda file: (-file.lag, file.path))
    missing = (
        f"{places.missing:,} of the files aren't there any more, with bytes that weren't read"
        if places.missing
        else ""
    )
    return LogSourceState(
        name,
        STOPPED,
        why=missing,
        files=tuple(files),
        followed=len(files),
        open=0,
        lag=sum(file.lag for file in files),
    )


class _Places:
    """Where files are now."""

    def __init__(self) -> None:
        self._directories: dict[str, dict[int, str]] = {}
        self.missing = 0
        """Files that weren't found and weren't read to their end."""

    def find(self, row: StoredPosition) -> tuple[str, os.stat_result] | None:
        """The file's path, if it is still somewhere in its directory, and its status."""
        for path in (row.path, self._renamed(row)):
            try:
                status = Path(path).stat() if path else None
            except OSError:
                continue
            if status is not None and (status.st_dev, status.st_ino) == (row.device, row.inode):
                return path, status
        return None

    def _renamed(self, row: StoredPosition) -> str:
        directory = str(Path(row.path).parent)
        if directory not in self._directories:
            self._directories[directory] = dict(_inodes(directory))
        return self._directories[directory].get(row.inode, "")


def _inodes(directory: str) -> Iterator[tuple[int, str]]:
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                yield entry.inode(), entry.path
    except OSError:
        return


def _file(row: StoredPosition, places: _Places) -> LogFile:
    located = None if row.state & REPLACED else places.find(row)
    path, size = (row.path, row.size) if located is None else (located[0], located[1].st_size)
    packed = bool(row.state & PACKED)
    position = 0 if row.position == SKIPPED else row.position
    if row.state & DONE:
        lag = 0
    elif packed:
        lag = size
    else:
        lag = max(0, size - position)
    if located is None and lag:
        places.missing += 1
    line = b"" if located is None or packed else _line_before(path, position)
    return LogFile(plain(path), row.identity, position, size, lag, line_excerpt(line))


def _line_before(path: str, position: int) -> bytes:
    """The last line before the position, or its end; empty if it can't be read."""
    begin = max(0, position - _LINE)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            data = os.pread(descriptor, position - begin, begin)
        finally:
            os.close(descriptor)
    except OSError:
        return b""
    return data.rstrip(b"\r\n").rpartition(b"\n")[2]
