"""What `forwarder dead-letters` does with the files of all workers: choosing letters, and dropping them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from forwarder.cli.dead_letter_files import LetterFile, Wanted
from forwarder.deadletter.selection import (
    DeadLetterContent,
    DeadLetterSummary,
    content_of,
    count_of,
    drop_now,
    mark_for_drop,
    numbers_of,
    still_marked,
    summaries,
)
from forwarder.storage.directory import Locked, LockedDirectory

PATIENCE: Final = 10.0
"""Seconds that a running daemon has for what it does within one."""

_LOOK_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True)
class Selected:
    """Letters of one file."""

    file: LetterFile
    numbers: list[int]


def newest(files: Sequence[LetterFile], meant: Wanted, limit: int) -> tuple[list[tuple[LetterFile, DeadLetterSummary]], int]:
    """The newest letters that are meant, and how many there are."""
    found: list[tuple[LetterFile, DeadLetterSummary]] = []
    total = 0
    for file in files:
        criteria = meant.of(file)
        if criteria is not None:
            with file.reading() as connection:
                total += count_of(connection, criteria)
                found += [(file, letter) for letter in summaries(connection, criteria, limit)]
    return sorted(found, key=lambda each: -each[1].at)[:limit], total


def with_content(files: Sequence[LetterFile], meant: Wanted) -> list[tuple[LetterFile, DeadLetterSummary, DeadLetterContent]]:
    """The letters that are meant, with their bytes."""
    found: list[tuple[LetterFile, DeadLetterSummary, DeadLetterContent]] = []
    for file in files:
        criteria = meant.of(file)
        if criteria is None:
            continue
        with file.reading() as connection:
            for letter in summaries(connection, criteria):
                content = content_of(connection, letter.number)
                if content is not None:
                    found.append((file, letter, content))
    return found


def select(files: Sequence[LetterFile], meant: Wanted, limit: int | None) -> list[Selected]:
    """The letters that are meant, file by file, the oldest of each first."""
    selected: list[Selected] = []
    left = limit
    for file in files:
        criteria = meant.of(file)
        if criteria is None or left == 0:
            continue
        with file.reading() as connection:
            numbers = numbers_of(connection, criteria, left)
        if numbers:
            selected.append(Selected(file, numbers))
            left = None if left is None else left - len(numbers)
    return selected


def drop(selected: Sequence[Selected], pause: Callable[[float], None] = time.sleep) -> tuple[int, int]:
    """Drop the letters: at once where no daemon has them, else by marking them; how many are gone, and how many still marked."""
    gone = left = 0
    for each in selected:
        try:
            directory = LockedDirectory.acquire(each.file.path.parent, "dead_letters.path")
        except Locked:
            marked, remaining = _ask_to_drop(each, pause)
            gone, left = gone + marked - remaining, left + remaining
            continue
        try:
            with each.file.writing() as connection:
                gone += drop_now(connection, each.numbers)
        finally:
            directory.release()
    return gone, left


def _ask_to_drop(selected: Selected, pause: Callable[[float], None]) -> tuple[int, int]:
    """Mark the letters, and wait a little for the daemon to drop them."""
    with selected.file.writing() as connection:
        marked = set(mark_for_drop(connection, selected.numbers))
        remaining, waited = marked, 0.0
        while remaining and waited < PATIENCE:
            pause(_LOOK_SECONDS)
            waited += _LOOK_SECONDS
            remaining = still_marked(connection, "drop", marked)
    return len(marked), len(remaining)
