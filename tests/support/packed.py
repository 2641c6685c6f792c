"""Sources for tests: packed content, and streams that tell how they were read."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from forwarder.sources.files.record_blocks import BrokenSource, ReadOptions, RecordBlock
from forwarder.sources.files.source import open_source


def zipped(members: Mapping[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A zip archive."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return made.getvalue()


def tarred(members: Mapping[str, bytes], mode: str = "w") -> bytes:
    """A tar archive; `w:gz` for one in gzip."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode=mode) as archive:  # type: ignore[call-overload]
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return made.getvalue()


def read_all(
    paths: Sequence[Path | str], options: ReadOptions | None = None
) -> tuple[dict[str, list[bytes]], list[BrokenSource]]:
    """The records of each file by its name without the folder, and what was broken."""
    by_name: dict[str, list[bytes]] = {}
    broken: list[BrokenSource] = []
    with open_source([str(path) for path in paths], options) as source:
        for file in source.files():
            records = by_name.setdefault(
                file.name.rpartition("/")[2] if "!" not in file.name else _short(file.name), []
            )
            try:
                for block in source.blocks(file):
                    records += block.records
            except BrokenSource as error:
                broken.append(error)
    return by_name, broken


def _short(name: str) -> str:
    origin, _, member = name.partition("!")
    return f"{origin.rpartition('/')[2]}!{member}"


def numbered(blocks: Sequence[RecordBlock]) -> list[tuple[int, bytes]]:
    """The records of blocks with their lines."""
    return [
        (line, record)
        for block in blocks
        for line, record in zip(block.lines, block.records, strict=True)
    ]


class WatchedStream:
    """A stream that gives at most `most` bytes at once, notes what was asked for, and may fail at
    its end.
    """

    def __init__(
        self, content: bytes, most: int = 1 << 30, failure: Exception | None = None
    ) -> None:
        self._content = content
        self._most = most
        self._failure = failure
        self._position = 0
        self.asked: list[int] = []

    def read(self, size: int, /) -> bytes:
        """The next bytes."""
        self.asked.append(size)
        data = self._content[self._position : self._position + min(size, self._most)]
        self._position += len(data)
        if not data and self._failure is not None:
            raise self._failure
        return data
