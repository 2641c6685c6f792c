"""Whether the files of a source are those that an import began with, and if not, what has changed, in words.

An import goes on at the number of a record: in a file with other content that is the middle of something else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum

from msgspec import Struct

from forwarder.sources.imports.moments import when


class SourceContent(Struct, frozen=True, forbid_unknown_fields=True):
    """What is known of a file's content without reading it whole: its fingerprint, as the source tells it, under its name."""

    name: str
    size: int
    digest: str
    """Of local files the digest of size, beginning and end; of objects that of size and ETag."""
    modified: int = 0
    """Nanoseconds since 1970; 0 where that says nothing: objects, standard input."""


class ChangeKind(StrEnum):
    """How a file has changed."""

    GONE = "gone"
    NEW = "new"
    CONTENT = "content"
    """Its size, or its beginning, end or ETag."""
    TOUCHED = "touched"
    """Only the time at which it was last written: its size, its beginning and its end are the same."""


class SourceChange(Struct, frozen=True):
    """A file that isn't as it was."""

    name: str
    what: ChangeKind
    words: str


def compare(saved: Sequence[SourceContent], found: Iterable[SourceContent]) -> list[SourceChange]:
    """What has changed since a checkpoint: what it has of the source's files, and what they are now."""
    now = {each.name: each for each in found}
    changes = [change for old in saved if (change := _changed(old, now.pop(old.name, None))) is not None]
    return changes + [SourceChange(name, ChangeKind.NEW, f"{name} is new: it wasn't there when this import began") for name in now]


def _changed(old: SourceContent, new: SourceContent | None) -> SourceChange | None:
    if new is None:
        return SourceChange(old.name, ChangeKind.GONE, f"{old.name} is gone")
    if old.size != new.size:
        change = new.size - old.size
        words = f"{'grew' if change > 0 else 'shrank'} by {abs(change):,} byte{'s' * (abs(change) != 1)}, from {old.size:,} to {new.size:,}"
        return SourceChange(old.name, ChangeKind.CONTENT, f"{old.name} {words}{_times(old, new)}")
    if old.digest != new.digest:
        what = "another beginning or end" if old.modified or new.modified else "another content (of an object: another ETag)"
        return SourceChange(old.name, ChangeKind.CONTENT, f"{old.name} has {what} than before, and the same size{_times(old, new)}")
    if old.modified != new.modified:
        return SourceChange(old.name, ChangeKind.TOUCHED, f"{old.name} has the same size, beginning and end{_times(old, new)}")
    return None


def _times(old: SourceContent, new: SourceContent) -> str:
    if old.modified == new.modified or not (old.modified and new.modified):
        return ""
    return f"; it was written at {when(new.modified // 1000)}, before at {when(old.modified // 1000)}"
