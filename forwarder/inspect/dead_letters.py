"""The dead letters of all workers together, as a command line names them: found, selected, and
dropped, with a daemon or without one.

Invariant: letters are dropped directly only while this process has the lock of their directory; a
running daemon is asked by marks.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from forwarder.config.units import parse_duration
from forwarder.core.error_text import error_text
from forwarder.core.errors import ConfigurationError
from forwarder.core.proposals import proposed
from forwarder.deadletter.schema import open_readable, open_writable
from forwarder.deadletter.selection import (
    DeadLetterContent,
    DeadLetterFilter,
    DeadLetterSummary,
    content_of,
    count_of,
    drop_now,
    first_source,
    mark_for_drop,
    numbers_of,
    still_marked,
    summaries,
)
from forwarder.storage.directory import (
    Locked,
    LockedDirectory,
    destination_of,
    is_locked,
    worker_directories,
    worker_number,
)

DROP_TIMEOUT: Final = 10.0
"""Seconds to wait for a running daemon, which drops marked letters within one."""
_POLL_SECONDS: Final = 0.2
_NUMBER: Final = re.compile(r"(?:(?P<worker>[a-z0-9_-]{1,40})/)?(?P<number>\d{1,18})", re.ASCII)


@dataclass(frozen=True, slots=True)
class WorkerDeadLetters:
    """One worker's file, or a destination's of it. `worker` is its number, its destination or both
    if there are several, else empty.
    """

    path: Path
    worker: str = ""

    @property
    def has_daemon(self) -> bool:
        """Whether a process has its directory now."""
        return is_locked(self.path.parent)

    @property
    def has_supervisor(self) -> bool:
        """Whether its directory is a former worker's, which the daemon that runs adopts when there
        is work in it.
        """
        directory = self.path.resolve().parent
        return (
            worker_number(directory) is not None
            and not self.has_daemon
            and any(is_locked(other) for other in worker_directories(directory.parent).values())
        )

    @property
    def number(self) -> str:
        """The worker's number, also if its file is the only one; empty if no worker's directory
        holds it.
        """
        number = worker_number(self.path.parent)
        return self.worker or ("" if number is None else str(number))

    @property
    def source(self) -> str:
        """The source of its first letter; empty if it has none."""
        with self.reading() as connection:
            return first_source(connection)

    def name(self, number: int) -> str:
        """A letter's name on the command line."""
        return f"{self.worker}/{number}" if self.worker else str(number)

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection that reads. Raises `ConfigurationError`."""
        with self._explained(), contextlib.closing(open_readable(self.path)) as connection:
            yield connection

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A connection that writes. Raises `ConfigurationError`."""
        with self._explained(), contextlib.closing(open_writable(self.path)) as connection:
            yield connection

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise ConfigurationError(
                f"{self.path} can't be used: {error_text(error)}",
                hint=(
                    "Run this as the user that forwarder runs as. The next start quarantines "
                    "a damaged file and recovers what it can."
                ),
            ) from error


@dataclass(frozen=True, slots=True)
class DeadLetterQuery:
    """The letters that a command line names, not yet bound to files."""

    numbers: tuple[tuple[str, int], ...]
    """Worker (empty if not named) and number."""
    criteria: DeadLetterFilter

    def of(self, file: WorkerDeadLetters) -> DeadLetterFilter | None:
        """The criteria for this file; None if they match nothing in it."""
        lanes = [lane.partition("@") for lane in self.criteria.lanes]
        if any(at and name != destination_of(file.path.parent) for _, at, name in lanes):
            return None
        criteria = replace(self.criteria, lanes=tuple(label for label, _, _ in lanes))
        if not self.numbers and not criteria.uuids:
            return criteria
        numbers = tuple(number for worker, number in self.numbers if worker in ("", file.number))
        if not numbers and not criteria.uuids:
            return None
        return replace(criteria, numbers=numbers)


@dataclass(frozen=True, slots=True)
class SelectedDeadLetters:
    """Letters of one file."""

    file: WorkerDeadLetters
    numbers: list[int]


def dead_letter_files(paths: Sequence[Path]) -> list[WorkerDeadLetters]:
    """The files, each with a distinct worker if there are several."""
    if len(paths) == 1:
        return [WorkerDeadLetters(paths[0])]
    workers = [(worker_number(path.parent), destination_of(path.parent)) for path in paths]
    one = len({number for number, _ in workers}) == 1
    numbers = [_directory_name(number, name, one=one) for number, name in workers]
    if "" in numbers or len(set(numbers)) < len(numbers):
        numbers = [str(index) for index in range(len(paths))]
    return [WorkerDeadLetters(path, number) for path, number in zip(paths, numbers, strict=True)]


def _directory_name(number: int | None, destination: str, *, one: bool) -> str:
    """A directory's distinct name, without the worker's number where there is `one` worker."""
    if number is None:
        return ""
    if not destination:
        return str(number)
    return destination if one else f"{number}-{destination}"


def parse_query(
    names: Sequence[str],
    files: Sequence[WorkerDeadLetters],
    *,
    reason: str = "",
    event: str = "",
    lanes: tuple[str, ...] = (),
    since: str = "",
    now: float,
) -> DeadLetterQuery:
    """The query for these arguments at the time `now`. Raises `ConfigurationError`."""
    numbers: list[tuple[str, int]] = []
    uuids: list[str] = []
    for name in names:
        match = _NUMBER.fullmatch(name)
        if match is None:
            uuids.append(_uuid(name))
        elif match["worker"] is None and len(files) > 1:
            raise ConfigurationError(
                f"{name} is ambiguous: there are several workers or destinations",
                hint=f"Write it as `ls` does, for example {files[0].name(7)}.",
            )
        else:
            numbers.append((match["worker"] or "", int(match["number"])))
    criteria = DeadLetterFilter(
        uuids=tuple(uuids),
        reason=reason,
        event=event,
        lanes=lanes,
        since=_time(since, now) if since else None,
    )
    return DeadLetterQuery(tuple(numbers), criteria)


def newest(
    files: Sequence[WorkerDeadLetters], query: DeadLetterQuery, limit: int
) -> tuple[list[tuple[WorkerDeadLetters, DeadLetterSummary]], int]:
    """The newest matching letters, and the number of all."""
    rows: list[tuple[WorkerDeadLetters, DeadLetterSummary]] = []
    total = 0
    for file, criteria in _criteria(files, query):
        with file.reading() as connection:
            total += count_of(connection, criteria)
            rows += [(file, dead_letter) for dead_letter in summaries(connection, criteria, limit)]
    return sorted(rows, key=lambda row: -row[1].at)[:limit], total


def with_content(
    files: Sequence[WorkerDeadLetters], query: DeadLetterQuery
) -> list[tuple[WorkerDeadLetters, DeadLetterSummary, DeadLetterContent]]:
    """The matching letters with their bytes."""
    dead_letters: list[tuple[WorkerDeadLetters, DeadLetterSummary, DeadLetterContent]] = []
    for file, criteria in _criteria(files, query):
        with file.reading() as connection:
            for dead_letter in summaries(connection, criteria):
                content = content_of(connection, dead_letter.number)
                if content is not None:
                    dead_letters.append((file, dead_letter, content))
    return dead_letters


def select(
    files: Sequence[WorkerDeadLetters], query: DeadLetterQuery, limit: int | None
) -> list[SelectedDeadLetters]:
    """The matching letters, at most `limit`, file by file, the oldest of each first."""
    selected: list[SelectedDeadLetters] = []
    left = limit
    for file, criteria in _criteria(files, query):
        if left == 0:
            break
        with file.reading() as connection:
            numbers = numbers_of(connection, criteria, left)
        if numbers:
            selected.append(SelectedDeadLetters(file, numbers))
            left = None if left is None else left - len(numbers)
    return selected


def drop(
    selected: Sequence[SelectedDeadLetters], pause: Callable[[float], None] = time.sleep
) -> tuple[int, int]:
    """Drop the letters: at once where no daemon has them, else by marking them. Returns how many
    are dropped, and how many still marked.
    """
    dropped = left = 0
    for selection in selected:
        try:
            directory = LockedDirectory.acquire(selection.file.path.parent, "dead_letters.path")
        except Locked:
            marked, remaining = _mark_and_wait(selection, pause)
            dropped = dropped + marked - remaining
            left = left + remaining
            continue
        try:
            with selection.file.writing() as connection:
                dropped += drop_now(connection, selection.numbers)
        finally:
            directory.release()
    return dropped, left


def _mark_and_wait(
    selected: SelectedDeadLetters, pause: Callable[[float], None]
) -> tuple[int, int]:
    """Mark the letters, and wait until the daemon has dropped them, at most `DROP_TIMEOUT`."""
    with selected.file.writing() as connection:
        marked = set(mark_for_drop(connection, selected.numbers))
        remaining = marked
        waited = 0.0
        while remaining and waited < DROP_TIMEOUT:
            pause(_POLL_SECONDS)
            waited += _POLL_SECONDS
            remaining = still_marked(connection, "drop", marked)
    return len(marked), len(remaining)


def _criteria(
    files: Sequence[WorkerDeadLetters], query: DeadLetterQuery
) -> Iterator[tuple[WorkerDeadLetters, DeadLetterFilter]]:
    for file in files:
        criteria = query.of(file)
        if criteria is not None:
            yield file, criteria


def _uuid(text: str) -> str:
    try:
        return uuid.UUID(text).hex
    except ValueError:
        what = f"{text!r} is neither the number of a dead letter nor a uuid"
        raise ConfigurationError(
            what, hint=f"`{proposed('dead-letters ls')}` shows both."
        ) from None


def _time(text: str, now: float) -> float:
    """The time of `--since`: an age, or a date, in UTC if it has no zone."""
    with contextlib.suppress(ValueError):
        return now - parse_duration(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(
            f"--since: {text!r} is not a time", hint="Write 2h, 3d, or 2026-01-31T12:00:00Z."
        ) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
