"""An open log file: what is read of it, split into records, and whether it is still the content
that it was.
"""

from __future__ import annotations

import errno
from bisect import bisect_left
from collections.abc import Collection
from typing import Final

import structlog

from forwarder.core.error_text import error_text
from forwarder.sources.logs.contents import TAIL, FileContent, digest
from forwarder.sources.logs.splitting import LogRecords, Splitter

_HINTS: Final = {
    errno.EACCES: (
        "Let the user that forwarder runs as read it, for example through a group; reading is "
        "retried."
    ),
    errno.EPERM: (
        "Let the user that forwarder runs as read it, for example through a group; reading is "
        "retried."
    ),
    0: "It is incomplete or damaged, or still being written; it is read again when it changes.",
    errno.EMFILE: (
        "Raise the limit of open files (ulimit -n), or lower `max_open_files`; reading is retried."
    ),
    errno.ELOOP: "Remove the symbolic link that leads to itself.",
}

_LOGGED: Final = 20
"""Paths of which it is logged that they can't be read, at one time."""

_log = structlog.get_logger(__name__)


class FileReader:
    """Reads one open file from an offset on. Whether its content is the expected one up to there
    is checked before.
    """

    __slots__ = ("_head", "_recent", "_tail", "content", "read", "splitter")

    def __init__(self, content: FileContent, splitter: Splitter, offset: int) -> None:
        """Raises `OSError`."""
        self.content = content
        self.splitter = splitter
        self.read = offset
        """The offset of the next byte to be read."""
        begin = max(0, offset - TAIL)
        self._tail = content.exactly(begin, offset - begin)
        self._head = b"" if content.packed else content.read(0, TAIL)
        self._recent = self._tail
        """What was read last, with the tail before it."""

    def next(self, size: int) -> bytes | None:
        """At most so many bytes; None if the file was truncated, and has another content now.
        Raises `OSError`.

        What was read before is read again in part, as is the beginning of the file after that: so
        truncation is found even if the file has grown past the offset since.
        """
        if self.content.packed:
            data = self.content.read(self.read, size)
            self._recent = self._tail + data
        else:
            recent = self.content.read(self.read - len(self._tail), len(self._tail) + size)
            head = self.content.read(0, TAIL)
            if not recent.startswith(self._tail) or not head.startswith(self._head):
                return None
            self._head = head
            self._recent = recent
            data = recent[len(self._tail) :]
        self.read += len(data)
        self._tail = self._recent[-TAIL:]
        return data

    def check_before(self, offset: int) -> bytes:
        """The digest of what is before an offset up to which it was read; empty if that isn't
        known any more. Raises `OSError`.
        """
        begin = max(0, offset - TAIL)
        if (at := begin - (self.read - len(self._recent))) >= 0:
            return digest(self._recent[at : at + offset - begin])
        return b"" if self.content.packed else digest(self.content.exactly(begin, offset - begin))

    def forget(self) -> None:
        """Keep no more of what was read last than the next reading needs."""
        self._recent = self._tail

    def close(self) -> None:
        """Close the file."""
        self.content.close()


class ReadTroubles:
    """What can't be read, by path. Each is logged once, until it is over or
    changes; reading is retried.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._known: dict[str, tuple[str, str]] = {}

    @property
    def first(self) -> tuple[str, str]:
        """The one that has lasted longest: what happened, and what to do; empty if
        there is none.
        """
        return next(iter(self._known.values()), ("", ""))

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._known)

    def report(self, path: str, error: OSError) -> None:
        """This can't be read now."""
        words = error_text(error)
        why = f"{path} can't be read: {words}"
        if self._known.get(path, ("",))[0] != why:
            hint = _HINTS.get(
                error.errno or 0, "Check the disk or network that it is on; reading is retried."
            )
            self._known[path] = why, hint
            if len(self._known) <= _LOGGED:
                _log.error(
                    "logs: a file can't be read",
                    source=self._source,
                    path=path,
                    why=words,
                    hint=hint,
                )
            elif len(self._known) == _LOGGED + 1:
                _log.error(
                    "logs: more files can't be read than are logged",
                    source=self._source,
                    logged=_LOGGED,
                    hint=hint,
                )

    def clear(self, path: str) -> None:
        """This was read."""
        self._known.pop(path, None)

    def keep(self, paths: Collection[str]) -> None:
        """Forget what isn't among these."""
        self._known = {path: trouble for path, trouble in self._known.items() if path in paths}


def cut_records(records: LogRecords, end: int) -> tuple[LogRecords, LogRecords]:
    """The records that begin before an offset, and the others."""
    at = bisect_left(records.offsets, end)
    overlong = [line for line in records.overlong if line[0] < end]
    rest = LogRecords(
        records.values[at:],
        records.offsets[at:],
        records.end,
        records.overlong[len(overlong) :],
        records.lines,
    )
    begins = [*rest.offsets[:1], *(line[0] for line in rest.overlong[:1])]
    lines = min(records.lines, at + len(overlong)) if begins else records.lines
    before = LogRecords(
        records.values[:at], records.offsets[:at], min(begins, default=records.end), overlong, lines
    )
    return before, rest._replace(lines=records.lines - lines)
