"""A source: everything the user named, file by file, as blocks of records.

Files come in the order they were named, those of a folder, pattern or prefix by name (numbers by value), each once. What is inside
archives is found while they are read, so that the first record comes at once however large they are. All is synchronous: it is for a
thread of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Self

from forwarder.sources.files.addresses import SCHEMES, check_addresses
from forwarder.sources.files.archives import ArchiveOpener, OpenedFile
from forwarder.sources.files.objects import Connect, connect, stored_objects
from forwarder.sources.files.options import ReadOptions, SourceChanged
from forwarder.sources.files.origins import Fingerprint, SourceOrigin, SpooledFile, local_origins
from forwarder.sources.files.reading import RecordReader
from forwarder.sources.files.records import SourceFile


@dataclass(frozen=True, slots=True)
class SourceMember:
    """A file with records in it, and the file on disk or in the store that it came from."""

    file: SourceFile
    origin: str
    """The name of what the user named; the same as the file's if that is no archive."""
    member: str
    """The way from there."""
    fingerprint: Fingerprint
    """Of the origin."""


class FileSource:
    """What is imported. Closing it gives back the space that standard input takes."""

    def __init__(self, origins: Sequence[SourceOrigin], options: ReadOptions) -> None:
        self.origins = origins
        self._options = options
        self._by_name = {origin.name: origin for origin in origins}
        self._current: tuple[SourceMember, OpenedFile] | None = None

    @cached_property
    def identity(self) -> str:
        """What tells this source from another, in hex: of the content of its files in their order, whatever they are called."""
        digest = blake2b(digest_size=20)
        for origin in self.origins:
            digest.update(f"{origin.fingerprint.digest}\n".encode())
        return digest.hexdigest()

    def files(self, after: str | None = None) -> Iterator[SourceMember]:
        """All files with records. Reading one's blocks before the next is asked for spares opening its archive again.

        `after`: origins before the one of this name are left out, it isn't.
        """
        names = [origin.name for origin in self.origins]
        if after is not None and after not in names:
            raise SourceChanged(f"{after}: isn't among the files any more", hint="Bring it back, or start a new import.")
        for origin in self.origins[names.index(after) if after is not None else 0 :]:
            with origin.open() as opened:
                for leaf in ArchiveOpener(self._options).leaves(opened, opened):
                    file = _source_file(origin, leaf.member)
                    self._current = file, leaf
                    try:
                        yield file
                    finally:
                        self._current = None

    def blocks(self, file: SourceMember, skip_records: int = 0) -> RecordReader:
        """The blocks of a file, from this record on.

        Raises, while it is read, `BrokenSource` after the last good block, and `SourceChanged` if there are fewer records than are skipped.
        """
        if self._current is not None and self._current[0] == file:
            leaf, self._current = self._current[1], None
            return RecordReader(file.file, leaf, self._options, skip_records, _nothing)
        return self._reopened(file, skip_records)

    def _reopened(self, file: SourceMember, skip_records: int) -> RecordReader:
        origin = self._by_name[file.origin]
        opened = origin.open()
        leaves = ArchiveOpener(self._options, file.member).leaves(opened, opened)

        def close() -> None:
            leaves.close()  # type: ignore[attr-defined]
            opened.close()

        leaf = next((leaf for leaf in leaves if leaf.member == file.member), None)
        if leaf is None:
            close()
            raise SourceChanged(f"{file.file.name}: isn't there any more", hint="Bring it back, or start a new import.")
        return RecordReader(file.file, leaf, self._options, skip_records, close)

    def close(self) -> None:
        """Forget standard input."""
        for origin in self.origins:
            if isinstance(origin, SpooledFile):
                origin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_source(paths: Sequence[str], options: ReadOptions | None = None, *, connect: Connect = connect) -> FileSource:
    """The source of what the user named: files, folders, patterns, URLs of object stores, `-` for standard input.

    Nothing is read yet but names. Raises `ConfigurationError`.
    """
    options = options or ReadOptions()
    check_addresses(paths)
    origins: dict[str, SourceOrigin] = {}
    for path in paths:
        found = stored_objects(path, options, connect) if path.startswith(SCHEMES) else local_origins(path, options)
        for origin in found:
            origins.setdefault(origin.name, origin)
    return FileSource(list(origins.values()), options)


def _nothing() -> None:
    """Who asks for the next file closes this one."""


def _source_file(origin: SourceOrigin, member: str) -> SourceMember:
    content = origin.fingerprint
    name, identity = origin.name, content.digest
    if member:
        name = f"{name}!{member}"
        identity = blake2b(f"{identity}!{member}".encode(), digest_size=20).hexdigest()
    return SourceMember(SourceFile(name, identity), origin.name, member, content)
