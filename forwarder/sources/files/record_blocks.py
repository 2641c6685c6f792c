"""Records as they are read from files, the location of each, how files are
read, and how reading fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple, overload

from forwarder.core.error_text import error_text
from forwarder.core.errors import ForwarderError


class RecordLocation(NamedTuple):
    """Where a record stands."""

    file: str
    """The file as it was named, archives inside archives with `!`: `export.zip!2025-01.json.gz`."""
    line: int
    """From 1; of a record that takes several lines (CSV), its first. Of Parquet the row, from 1."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file of a source: an archive's members are files of their own."""

    name: str
    identity: str
    """What tells this content from another, in hex, whatever the file is called."""


@dataclass(frozen=True, slots=True, eq=False)
class LineRecords(Sequence[bytes]):
    """Records of a line each. Their text is kept whole as well, for what can be done with all of
    it at once.

    Invariant: no line is empty, and each ends with a line feed, which isn't part of its record.
    """

    text: bytes
    ended: Sequence[bytes]
    """The lines of the text with their ends."""

    def __len__(self) -> int:
        return len(self.ended)

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
        """One record, or some of them."""
        return (
            [line[:-1] for line in self.ended[index]]
            if isinstance(index, slice)
            else self.ended[index][:-1]
        )

    def __iter__(self) -> Iterator[bytes]:
        return (line[:-1] for line in self.ended)


@dataclass(frozen=True, slots=True, eq=False)
class RowRecords(LineRecords):
    """Records that were made of the rows of a table, each an object of texts: for readers that
    want those, not the JSON.
    """

    names: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class RecordBlock:
    """Neighbouring records of one file, in its order."""

    file: SourceFile
    first: int
    """The number of the first record in its file, from 0."""
    records: Sequence[bytes]
    """Each record as JSON text, or as it was read where it is none; never empty lines. CSV rows
    and Parquet rows come as JSON objects.
    """
    lines: Sequence[int]
    """The line of each record."""
    members: Sequence[int] | None = None
    """Where records are parts of records that hold several: the index of each in its record. None:
    they are whole records.
    """

    def part(self, start: int, stop: int) -> RecordBlock:
        """Its records from this index to before that one."""
        some = self.records[start:stop]
        if isinstance(self.records, LineRecords):
            ended = self.records.ended[start:stop]
            some = LineRecords(b"".join(ended), ended)
        members = None if self.members is None else self.members[start:stop]
        return RecordBlock(self.file, self.first + start, some, self.lines[start:stop], members)

    def place(self, index: int) -> RecordLocation:
        """Where the record with this index in the block stands."""
        return RecordLocation(self.file.name, self.lines[index])


class Framing(StrEnum):
    """How the records of a file are separated."""

    AUTO = "auto"
    """Parquet and JSON by their content, CSV by the name (`.csv`, `.tsv`, before or without that
    of a compression).
    """
    LINES = "lines"
    """A JSON object a line."""
    JSON = "json"
    """One array of objects, or objects one after the other, over as many lines as they like."""
    CSV = "csv"
    PARQUET = "parquet"


@dataclass(frozen=True)
class ReadOptions:
    """What a user may say about reading; the rest follows from the content."""

    framing: Framing = Framing.AUTO
    delimiter: str = ""
    """Of CSV; empty: a comma, in `.tsv` a tab."""
    quote: str = ""
    """Around cells of CSV; `NO_QUOTE`: cells have none. Empty: `"`, and none between tabs."""
    header: tuple[str, ...] = ()
    """The names of the columns of CSV files without a header; empty: the first row has them."""
    max_record: int = 8 << 20
    """Bytes. A longer record is cut to this; what follows it is read."""
    block_bytes: int = 1 << 18
    """About as much is read at once, and makes a block: so much that what is done for each block
    costs little, and no more than what stays in a core's cache until the last step is done with it.
    """
    max_depth: int = 4
    """Of archives and compressions within each other."""
    max_spool: int = 64 << 30
    """Bytes that one file may take on disk where it can't be read in one go."""
    follow_links: bool = False
    """Whether links that lead out of a folder, or out of where a pattern begins, are followed. A
    link that is named is.
    """
    encoding: str = ""
    """Of all texts, as Python calls it; empty: UTF-8."""
    store: Mapping[str, str] = field(default_factory=dict)
    """Of an object store (`region`, `endpoint`, `skip_signature` …), beside what its usual
    environment variables say.
    """


NO_QUOTE: Final = "none"
REFETCH: Final = "Fetch or export this file again."
"""What to do with a damaged file."""


class BrokenSource(ForwarderError):
    """A file can't be read to its end. What came before is good; the other files of the source can
    still be read.
    """

    code = "broken_source"

    def __init__(self, file: str, offset: int, reason: str, hint: str = "") -> None:
        where = (
            f"can't be read after {offset:,} bytes of its decompressed content"
            if offset
            else "can't be read"
        )
        super().__init__(f"{file}: {where}: {reason}", hint=hint or REFETCH)
        self.file = file
        self.offset = offset
        self.reason = reason


class DamagedContent(Exception):
    """Bytes aren't what their beginning promised. Inside this package only:
    outside it is a `BrokenSource`.
    """

    def __init__(self, reason: str, hint: str = "") -> None:
        """`hint`: what to do, if that isn't to fetch the file again."""
        super().__init__(reason)
        self.hint = hint


def reason(error: BaseException) -> str:
    """Why a file can't be read, in one line."""
    return error_text(error)
