"""Records as they are read from a source, and where each of them stands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, overload


class RecordLocation(NamedTuple):
    """Where a record stands, for people and dead letters."""

    file: str
    """The file as it was named, archives inside archives with `!`: `export.zip!2025-01.json.gz`."""
    line: int
    """From 1; of a record that takes several lines (CSV), its first. Of Parquet the row, from 1."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file of a source: an archive's members are files of their own."""

    name: str
    identity: str
    """What tells this content from another, in hex, whatever the file is called: part of uuids of records that have no natural key."""


class LineRecords(Sequence[bytes]):
    """Records of a line each. Their text is kept whole as well, for what can be done with all of it at once.

    Invariant: no line is empty, and each ends with a line feed, which isn't part of its record.
    """

    __slots__ = ("ended", "text")

    def __init__(self, text: bytes, ended: Sequence[bytes]) -> None:
        """`ended` are the lines of the text with their ends."""
        self.text = text
        self.ended = ended

    def __len__(self) -> int:
        return len(self.ended)

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
        """One record, or some of them."""
        return [line[:-1] for line in self.ended[index]] if isinstance(index, slice) else self.ended[index][:-1]

    def __iter__(self) -> Iterator[bytes]:
        return (line[:-1] for line in self.ended)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class RecordBlock:
    """Neighbouring records of one file, in its order."""

    file: SourceFile
    first: int
    """The number of the first record in its file, from 0: what the checkpoint counts in."""
    records: Sequence[bytes]
    """Each record as JSON text, or as it was read where it is none; never empty lines. CSV rows and Parquet rows come as JSON objects."""
    lines: Sequence[int]
    """The line of each record."""
    members: Sequence[int] | None = None
    """Of records that are single events of records that hold several: the index of each in its record. None: they are whole records."""

    def place(self, index: int) -> RecordLocation:
        """Where the record with this index in the block stands."""
        return RecordLocation(self.file.name, self.lines[index])
