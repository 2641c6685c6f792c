"""How a source is read, and how it fails."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from forwarder.core.errors import ForwarderError


class Framing(StrEnum):
    """How the records of a file are told from each other."""

    AUTO = "auto"
    """Parquet and JSON by their content, CSV by the name (`.csv`, `.tsv`, before or without that of a compression)."""
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
    quote: str = '"'
    max_record: int = 8 << 20
    """Bytes. A longer record is cut to this and so refused; what follows it is read."""
    block_bytes: int = 1 << 18
    """About as much is read at once, and makes a block: so much that what is done for each block costs little, and no more than what
    stays in a core's cache until the last step is done with it."""
    max_depth: int = 4
    """Of archives and compressions within each other."""
    max_spool: int = 64 << 30
    """Bytes that one file may take on disk where it can't be read in one go."""
    spool_directory: str | None = None
    follow_links: bool = False
    """Whether links that lead out of a folder, or out of where a pattern begins, are followed. A link that is named is."""
    store: Mapping[str, str] = field(default_factory=dict)
    """Of an object store (`region`, `endpoint`, `skip_signature` …), beside what its usual environment variables say."""


class Readable(Protocol):
    """What bytes are read from, in order."""

    def read(self, size: int, /) -> bytes:
        """At most so many bytes, at least one; none at the end. Raises one of `FAILURES`."""


class BrokenSource(ForwarderError):
    """A file can't be read to its end. What came before is good; the other files of the source can still be read."""

    code = "broken_source"

    def __init__(self, file: str, offset: int, reason: str) -> None:
        super().__init__(
            f"{file}: can't be read after {offset} bytes of its decompressed content: {reason}",
            hint="Fetch or export this file again. An import that has begun with what is there now takes it for a changed source: then "
            "import the new file by itself. Events whose records have ids of their own keep their uuids and times, so they aren't doubled.",
        )
        self.file, self.offset, self.reason = file, offset, reason


class SourceChanged(ForwarderError):
    """What was read in an earlier run isn't there any more, so that going on would leave out events or send others."""

    code = "source_changed"


class DamagedContent(Exception):
    """Bytes aren't what their beginning promised. Inside this package only: outside it is a `BrokenSource`."""
