"""From the files of a source to blocks, in the order of the source. Synchronous, for a thread of its own.

When an import is resumed, its source is read again from the start: that shows that it is the same (its running digest), and restores what
follows from earlier records: repeats, limits, first times. Settled records aren't sent again.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass

from forwarder.sources.files.records import BrokenSource, RecordBlock, SourceFile
from forwarder.sources.files.source import BlockReader, FileSource
from forwarder.sources.imports.blocks import ChunkLimits, ImportBlock
from forwarder.sources.imports.checkpoint import SettledFile, SourceChanged
from forwarder.sources.imports.conversion import Conversion, ConvertedRecords


@dataclass(frozen=True, slots=True)
class Portion:
    """Some neighbouring records of a file that weren't settled in an earlier run; or its beginning or end, without records."""

    file: int
    """The number of the file: files have numbers in the order in which they begin, from 0."""
    first: int = 0
    """The number in the file of the first of the records."""
    made: ConvertedRecords | None = None
    digest: str = ""
    """Of the file's records up to and with these."""
    ended: bool = False
    broken: BrokenSource | None = None
    """Why the file can't be read to its end, if it ended so."""


def source_blocks(
    source: FileSource, conversion: Conversion, saved: Mapping[str, SettledFile], limits: ChunkLimits
) -> Generator[ImportBlock]:
    """The blocks of a source; `saved` is by the files' names.

    Raises `SourceChanged` before anything of a file that isn't the same is sent.
    """
    files: dict[int, SourceFile] = {}
    for each in portions(source, conversion, saved, files, most=limits.max_events):
        if each.made is None:
            yield ImportBlock(files, file=each.file, ended=each.ended and each.broken is None, broken=each.broken)
        else:
            block = ImportBlock.of(each.made, each.file, each.first, files, limits)
            block.digest = each.digest
            yield block


def portions(
    source: FileSource, conversion: Conversion, saved: Mapping[str, SettledFile], files: dict[int, SourceFile], most: int | None = None
) -> Iterator[Portion]:
    """All files of a source in their order, which are added to `files` as they begin. Records that were settled are read, and not given.

    `most`: how many records are together at most; None: as many as are read at once. Raises as `source_blocks`.
    """
    missing = {name for name, each in saved.items() if each.records}
    for number, file in enumerate(source.files()):
        missing.discard(file.name)
        files[number] = file
        yield Portion(number)
        yield from _file(source.blocks(file), conversion, number, saved.get(file.name, SettledFile()), most)
        if conversion.is_full:
            return
    for name in missing:
        raise _changed(name, f"it no longer exists, {saved[name].records:,} records of it were imported before")


def _file(reading: BlockReader, conversion: Conversion, number: int, saved: SettledFile, most: int | None) -> Iterator[Portion]:
    read = 0
    broken = None
    with reading:
        try:
            for block in (part for whole in reading for part in _cut(whole, most)):
                end = block.first + len(block.records)
                if read <= saved.digested <= end and saved.digest and reading.digest_at(saved.digested) != saved.digest:
                    raise _changed(block.file.name, f"its first {saved.digested:,} records aren't those that were imported")
                settled = min(max(0, saved.records - block.first), len(block.records))
                made = conversion.convert(block, number, settled)
                read = end
                if len(block.records) > settled:
                    yield Portion(number, block.first + settled, made, reading.digest_at(end))
                else:
                    yield Portion(number)  # so that whoever reads can stop
                if conversion.is_full:
                    break
            else:
                if read < saved.records:
                    raise _changed(reading.name, f"it has {read:,} records, {saved.records:,} were imported before")
        except BrokenSource as error:
            broken = error
    yield Portion(number, ended=True, broken=broken)


def _cut(block: RecordBlock, most: int | None) -> Iterator[RecordBlock]:
    """The block in parts of at most so many records."""
    count = len(block.records)
    if most is None or count <= most:
        return iter((block,))
    return (block.part(start, min(start + most, count)) for start in range(0, count, most))


def _changed(name: str, how: str) -> SourceChanged:
    return SourceChanged(
        f"{name}: {how}",
        hint="Bring the file back as it was, and run the same command again; or import what it is now as a job of its own, with `--state`.",
    )
