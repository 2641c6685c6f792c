"""Segments of a log as they lie on disk, and ways to damage them."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from forwarder.buffer.disk.format import SEGMENT_HEADER_SIZE, RecordKind, decode_segment_header
from forwarder.buffer.disk.reading import FoundRecord, records

PAGE: Final = 4096


class SegmentFile:
    """A segment's file and the records in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        header = decode_segment_header(self.data[:SEGMENT_HEADER_SIZE])
        assert header is not None
        self.generation = header.generation

    @property
    def data(self) -> bytes:
        """Its bytes."""
        return self.path.read_bytes()

    def records(self, kind: RecordKind | None = None) -> list[FoundRecord]:
        """Its whole records, of that kind."""
        whole_records = [
            item for item in records(self.data, self.generation) if isinstance(item, FoundRecord)
        ]
        return [item for item in whole_records if kind in (None, item.header.kind)]

    def write(self, at: int, data: bytes) -> None:
        """Put other bytes somewhere."""
        descriptor = os.open(self.path, os.O_WRONLY)
        try:
            os.pwrite(descriptor, data, at)
        finally:
            os.close(descriptor)

    def flip(self, at: int, bit: int = 1) -> None:
        """Turn a bit."""
        self.write(at, bytes([self.data[at] ^ bit]))

    def zero_page(self, number: int) -> None:
        """A page that the disk lost."""
        self.write(number * PAGE, bytes(PAGE))

    def garble_page(self, number: int) -> None:
        """A page that the disk took for another."""
        self.write(number * PAGE, random.Random(number).randbytes(PAGE))

    def truncate(self, size: int) -> None:
        """Cut the file off."""
        os.truncate(self.path, size)


def segments(directory: Path) -> list[SegmentFile]:
    """The segments in a folder that were used, by generation."""
    files = [SegmentFile(path) for path in sorted(directory.glob("*.segment"))]
    return sorted((file for file in files if file.generation), key=lambda file: file.generation)


def aside(directory: Path) -> dict[str, bytes]:
    """What lies aside, by name, without the README."""
    return {
        path.name: path.read_bytes()
        for path in _files(directory / "aside")
        if path.name != "README"
    }


def notes(directory: Path) -> list[str]:
    """The README's lines."""
    file = directory / "aside" / "README"
    return file.read_text().splitlines() if file.exists() else []


def _files(folder: Path) -> Iterator[Path]:
    return (
        iter(sorted(path for path in folder.iterdir() if path.is_file()))
        if folder.exists()
        else iter(())
    )
