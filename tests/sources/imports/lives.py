"""Runs of an import from its files to its checkpoints, without a pipeline: a test settles what was
read, in any order, or kills the run.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import msgspec

from forwarder.core.event import Lane
from forwarder.sources.files.record_blocks import ReadOptions
from forwarder.sources.files.source import open_source
from forwarder.sources.hand_over import Span, Watermark
from forwarder.sources.imports.blocks import ChunkLimits, ImportBlock, source_blocks
from forwarder.sources.imports.checkpoint import (
    ImportCheckpoint,
    ImportJob,
    StateFolder,
    read_checkpoint,
)
from forwarder.sources.imports.columns import EventKey, FinishedEvent
from forwarder.sources.imports.conversion import Conversion, EventFilters, FinishPolicy
from forwarder.sources.imports.formats.native import NativeConverter
from forwarder.sources.imports.import_books import FateKind, RecordFate, RefusalExample
from forwarder.sources.imports.repeats import Repeats
from forwarder.sources.imports.sorting import EventSorter, EventSpool, sorted_blocks
from forwarder.sources.imports.source import ImportLedger

JOB: Final = ImportJob("0190a0a0-1111-5222-8333-444455556666", "native", "a.jsonl")
LANE: Final = Lane("phc_lives123456789", historical=True)
REJECTED: Final = "refused"
_READING: Final = ReadOptions(block_bytes=900)
"""Some six records a block."""


def uuid_of(number: int) -> str:
    """The uuid of the event with that number."""
    return str(UUID(int=number + 1, version=4))


def line(number: int, day: int = 0, name: str = "seen", **properties: Any) -> bytes:
    """An event as it stands in a native file; `number` is its time of the day in seconds."""
    event = {
        "event": name,
        "distinct_id": f"p{number}",
        "uuid": uuid_of(number),
        "timestamp": f"2024-01-{day + 1:02}T00:{number // 60:02}:{number % 60:02}Z",
    }
    return msgspec.json.encode({**event, "properties": {"n": number, **properties}})


def nameless(number: int) -> bytes:
    """An event that the format refuses."""
    return msgspec.json.encode(
        {"distinct_id": f"p{number}", "uuid": uuid_of(number), "timestamp": "2024-01-01T00:00:00Z"}
    )


def body(*events: bytes) -> bytes:
    """A record with several events."""
    return b'{"batch":[' + b",".join(events) + b"]}"


def write(path: Path, records: Iterable[bytes]) -> Path:
    """A file of such records."""
    path.write_bytes(b"".join(record + b"\n" for record in records))
    return path


class ImportLife:
    """One run from the last checkpoint in a state folder on."""

    def __init__(
        self,
        blocks: Generator[ImportBlock],
        ledger: ImportLedger,
        folder: Path,
        refused: frozenset[str],
    ) -> None:
        self.ledger = ledger
        self.flying: list[tuple[Span, ImportBlock]] = []
        """Blocks that aren't settled."""
        self.arrived: list[FinishedEvent] = []
        self.left: list[FinishedEvent] = []
        """All events in the order in which they were read."""
        self.letters: set[EventKey] = set()
        """What the format refused."""
        self.progress: list[str] = []
        self._blocks = blocks
        self._folder = folder
        self._refused = refused
        self._refusals: dict[EventKey, RecordFate] = {}
        self._watermark = Watermark(0)
        self._held: dict[Span, ImportBlock] = {}

    def read(self) -> ImportBlock | None:
        """Read the next block, which is in flight then; None at the end. What is to be settled
        before it is settled.
        """
        block = next(self._blocks, None)
        if block is None:
            self.ledger.checkpoint.exhausted = not self.ledger.broken
            return None
        while block.sorted is not None and self.flying:
            self.settle()
        span = self._watermark.open(
            self._watermark.read, self._watermark.read + 1, block.records or block.entries
        )
        self._held[span] = block
        self.flying.append((span, block))
        self.letters |= {
            (letter.file_number, letter.number, letter.part) for letter in block.dead_letters
        }
        block.chunks(LANE, 0.0)
        self.left += [event for part in block.parts for event in part]
        return block

    def settle(self, at: int = 0) -> None:
        """Settle one of the blocks in flight."""
        span, block = self.flying.pop(at)
        for event in [event for part in block.parts for event in part]:
            if event.uuid in self._refused:
                example = RefusalExample(block.files[event.file].name, event.line, "no")
                self._refusals[event.file, event.number, event.part] = RecordFate(
                    FateKind.REFUSED, REJECTED, example
                )
            else:
                self.arrived.append(event)
        for passed in self._watermark.settle(span):
            ready = self._held.pop(passed)
            ready.refuse(self._refusals)
            self.ledger.add(ready)

    def save(self) -> ImportCheckpoint:
        """Write a checkpoint, and read it back, which checks its books."""
        folder = StateFolder(self._folder)
        folder.save(self.ledger.checkpoint)
        folder.close()
        saved = read_checkpoint(self._folder)
        assert saved is not None
        return saved

    def read_all(self) -> None:
        """Read everything that there is."""
        while self.read() is not None:
            """It is in flight."""

    def finish(self) -> ImportCheckpoint:
        """Read and settle everything in turn."""
        while self.read() is not None:
            self.settle()
        while self.flying:
            self.settle()
        assert not self._held
        assert not self._refusals
        return self.save()


@contextmanager
def life(
    *paths: Path,
    state: Path,
    sort: bool,
    refused: frozenset[str] = frozenset(),
    filters: EventFilters | None = None,
    room: int = 0,
) -> Generator[ImportLife]:
    """A run, which is as killed when the context is left. `refused`: uuids
    that the service refuses.
    """
    state.mkdir(exist_ok=True)
    ledger = ImportLedger(read_checkpoint(state) or ImportCheckpoint(JOB, 1.0, 1.0, []))
    checkpoint = ledger.checkpoint
    saved = ledger.checkpoint.settled
    limits = ChunkLimits(100_000, 4)
    progress: list[str] = []
    with open_source([str(path) for path in paths], _READING) as source, Repeats(state) as repeats:
        finish = FinishPolicy("oldest", False, JOB.id)
        conversion = Conversion(
            NativeConverter("oldest"), finish, 1_000_000, filters or EventFilters(), repeats
        )
        if sort:
            spool = EventSpool(state, JOB)
            sorter = EventSorter(state, memory=8_000, runs=2)  # some ten events a run
            at = checkpoint.spool
            blocks = sorted_blocks(
                source,
                conversion,
                spool,
                saved,
                at,
                limits,
                doing=progress.append,
                sorter=sorter,
                room=room,
            )
        else:
            blocks = source_blocks(source, conversion, saved, limits)
        run = ImportLife(blocks, ledger, state, refused)
        run.progress = progress
        try:
            yield run
        finally:
            blocks.close()
