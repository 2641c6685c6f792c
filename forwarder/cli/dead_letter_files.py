"""The dead letters' files that a command works on: those of all workers together, beside a running daemon or without one.

Invariant: a file is only dropped from directly while this process has its directory's lock; a running daemon is asked by marks.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from forwarder.config.units import parse_duration
from forwarder.core.errors import ConfigurationError
from forwarder.deadletter.schema import UnreadableDatabase, open_readable, open_writable
from forwarder.deadletter.selection import DeadLetterFilter, first_source
from forwarder.imports.batching import SOURCE
from forwarder.storage.directory import is_locked

_NUMBER: Final = re.compile(r"(?:(?P<worker>\d{1,4})/)?(?P<number>\d{1,18})", re.ASCII)
_WORKER: Final = re.compile(r"worker-(\d+)")


@dataclass(frozen=True, slots=True)
class LetterFile:
    """One worker's file. `worker` is its number where there are several files, else empty."""

    path: Path
    worker: str = ""

    @property
    def has_daemon(self) -> bool:
        """Whether a process has its directory now."""
        return is_locked(self.path.parent)

    @property
    def number(self) -> str:
        """The worker's number, also of a file that is the only one; empty if it is nobody's."""
        match = _WORKER.fullmatch(self.path.parent.name)
        return self.worker or (match[1] if match else "")

    @property
    def is_of_import(self) -> bool:
        """Whether it is in the state folder of an import: no daemon sends its letters."""
        with self.reading() as connection:
            return first_source(connection) == SOURCE

    def name(self, number: int) -> str:
        """How a letter of it is called on the command line."""
        return f"{self.worker}/{number}" if self.worker else str(number)

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection that reads. Raises `ConfigurationError`."""
        with self._told(), contextlib.closing(open_readable(self.path)) as connection:
            yield connection

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A connection that writes. Raises `ConfigurationError`."""
        with self._told(), contextlib.closing(open_writable(self.path)) as connection:
            yield connection

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except (UnreadableDatabase, sqlite3.Error, OSError) as error:
            raise ConfigurationError(
                f"{self.path} can't be used: {error}",
                hint="Run this as the user that forwarder runs as. The next start moves a damaged file aside, and saves what it can.",
            ) from error


@dataclass(frozen=True, slots=True)
class Wanted:
    """The letters that a command line names, before it is known which file they are in."""

    numbers: tuple[tuple[str, int], ...]
    """Worker (empty: none was named) and number."""
    criteria: DeadLetterFilter

    def of(self, file: LetterFile) -> DeadLetterFilter | None:
        """What is meant in this file; None if nothing is."""
        if not self.numbers and not self.criteria.uuids:
            return self.criteria
        numbers = tuple(number for worker, number in self.numbers if worker in ("", file.number))
        if not numbers and not self.criteria.uuids:
            return None
        return replace(self.criteria, numbers=numbers)


def letter_files(paths: Sequence[Path]) -> list[LetterFile]:
    """The files, each with a name of its own if there are several."""
    if len(paths) == 1:
        return [LetterFile(paths[0])]
    numbers = [match[1] if (match := _WORKER.fullmatch(path.parent.name)) else "" for path in paths]
    if "" in numbers or len(set(numbers)) < len(numbers):
        numbers = [str(index) for index in range(len(paths))]
    return [LetterFile(path, number) for path, number in zip(paths, numbers, strict=True)]


def wanted(
    names: Sequence[str], files: Sequence[LetterFile], *, reason: str = "", event: str = "", lane: str = "", since: str = "", now: float
) -> Wanted:
    """What the arguments mean at the time `now`. Raises `ConfigurationError` for what is no letter and no time."""
    numbers: list[tuple[str, int]] = []
    uuids: list[str] = []
    for name in names:
        match = _NUMBER.fullmatch(name)
        if match is None:
            uuids.append(_uuid(name))
        elif match["worker"] is None and len(files) > 1:
            what = f"there are several workers: which one's letter {name} is meant?"
            raise ConfigurationError(what, hint="Write it as `ls` does, for example 1/7.")
        else:
            numbers.append((match["worker"] or "", int(match["number"])))
    criteria = DeadLetterFilter(uuids=tuple(uuids), reason=reason, event=event, lane=lane, since=_moment(since, now) if since else None)
    return Wanted(tuple(numbers), criteria)


def _uuid(text: str) -> str:
    try:
        return uuid.UUID(text).hex
    except ValueError:
        what = f"{text!r} is neither the number of a letter nor a uuid"
        raise ConfigurationError(what, hint="`forwarder dead-letters ls` shows both.") from None


def _moment(text: str, now: float) -> float:
    """The time that `--since` means: so long ago, or a date. One without a zone is UTC."""
    with contextlib.suppress(ValueError):
        return now - parse_duration(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(f"--since: {text!r} is no time", hint="Write 2h, 3d, or 2026-01-31T12:00:00Z.") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
