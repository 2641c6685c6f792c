"""The quarantine of damaged data, the folder `aside/`: bytes are copied, files moved, whole,
logged, and never deleted.

Each is a file in `aside/`, named after when and where it was found, with a line in `aside/README`
that describes it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import structlog

from forwarder.buffer.disk.reading import Damage
from forwarder.buffer.disk.segment import open_segment, read_at
from forwarder.core.error_text import error_text
from forwarder.core.installation import help_on
from forwarder.core.proposals import proposed
from forwarder.storage.private import make_directory, open_file, sync_directory


def _hint() -> str:
    return (
        f"nothing of it was deleted; see `{proposed('buffer verify')}`, and "
        f"{help_on('inspect-buffer')} for what to do"
    )


_log = structlog.get_logger()


class Quarantine:
    """The folder of a worker."""

    def __init__(self, directory: Path, now: Callable[[], float]) -> None:
        self.directory = directory
        self._now = now
        self.files = self.count()
        """How many files are in it: counted once, and with each new one."""

    def copy(self, segment: Path, generation: int, damage: Damage) -> None:
        """Copy a damaged part of a segment. Logs if even that fails; the part itself stays until
        its file is used again.
        """
        place = f"segment-{generation}-at-{damage.offset}.bytes"
        copied = next(self.directory.glob(f"*-{place}"), None)  # at an earlier start
        name = copied.name if copied else f"{self._stamp()}-{place}"
        _log.error(
            "part of the buffer's files is damaged; a copy is quarantined",
            file=str(segment),
            at=damage.offset,
            bytes=damage.size,
            what=damage.what,
            events=damage.events or "unknown",
            copy=str(self.directory / name),
            hint=_hint(),
        )
        if copied is None:
            self._copy(segment, generation, damage, name)

    def _copy(self, segment: Path, generation: int, damage: Damage, name: str) -> None:
        try:
            fd = open_segment(segment, read_only=True)
            try:
                data = read_at(fd, damage.size, damage.offset)
            finally:
                os.close(fd)
            self._write(
                name,
                data,
                (
                    f"{damage.what}: {damage.size} bytes at {damage.offset} of {segment.name}, "
                    f"generation {generation}"
                ),
            )
        except OSError as error:
            _log.error("damaged bytes can't be copied to the quarantine", why=error_text(error))

    def move(self, file: Path, what: str) -> bool:
        """Move a whole file; return whether that succeeded."""
        target = self.directory / f"{self._stamp()}-{file.name}"
        try:
            make_directory(self.directory)
            while target.exists():
                target = target.with_name(f"{target.name}.more")
            file.rename(target)
            sync_directory(file.parent)
            self._note(target.name, what)
        except OSError as error:
            why = error_text(error)
            _log.error(
                "a file of the buffer can't be used, and can't be quarantined",
                file=str(file),
                what=what,
                why=why,
            )
            return False
        _log.error(
            "a file of the buffer can't be used; it was quarantined whole",
            file=str(file),
            to=str(target),
            what=what,
            hint=_hint(),
        )
        return True

    def count(self) -> int:
        """How many files are in it."""
        try:
            return sum(1 for entry in self.directory.iterdir() if entry.name != "README")
        except OSError:  # usually there is no folder
            return 0

    def _stamp(self) -> str:
        return datetime.fromtimestamp(self._now(), UTC).strftime("%Y%m%dT%H%M%S.%fZ")

    def _write(self, name: str, data: bytes, what: str) -> None:
        make_directory(self.directory)
        with os.fdopen(open_file(self.directory / name, os.O_WRONLY | os.O_EXCL), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        self._note(name, what)

    def _note(self, name: str, what: str) -> None:
        self.files += 1
        with os.fdopen(
            open_file(self.directory / "README", os.O_WRONLY | os.O_APPEND), "a", encoding="utf-8"
        ) as file:
            file.write(f"{name}: {what}\n")
