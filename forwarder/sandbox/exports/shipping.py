"""One run of a batch export: records are read in order, cut into parts, and each part is made
durable at the destination before the next.

A part has up to so many records or bytes, counted from the beginning of the work, so that a run
that resumes from a cursor cuts the same parts. Its name follows from the interval, the work and
its number: a part that was written, but whose cursor wasn't stored, is replaced by the same
records. A run that selects nothing writes nothing. The destination's type is compared without
regard to case.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

from forwarder.sandbox.exports.export_records import ColumnKind, ExportRecord, RecordReader
from forwarder.sandbox.exports.files import FileForm
from forwarder.sandbox.exports.folder import FolderDestination
from forwarder.sandbox.exports.http import HttpDestination
from forwarder.sandbox.exports.jobs import (
    DestinationPolicy,
    ExportJob,
    ExportMisconfigured,
    Progress,
)
from forwarder.sandbox.exports.s3 import S3Destination
from forwarder.sandbox.store.thread import StoreThread

T = TypeVar("T")
WritePart: TypeAlias = Callable[
    [str, Mapping[str, ColumnKind], Sequence[ExportRecord]], Awaitable[None]
]
"""Makes a part durable under a name (which has no suffix yet). Raises
`DestinationFailed` and `ExportMisconfigured`.
"""
DESTINATIONS: Final = ("Folder", "HTTP", "S3")
_CURSOR: Final = re.compile(r"v1\.(\d{1,9})\.(\d{1,18})\.(\d{1,18})").fullmatch
_ENDS_WITHIN: Final = 5.0
_ORIGIN: Final = 8
"""Characters of the work's id in names."""


@dataclass(frozen=True, slots=True)
class _PartLimits:
    """When a part ends: both are reached at the same record whenever it is cut."""

    records: int
    size: int


_FILE: Final = _PartLimits(10_000, 16_000_000)
_REQUEST: Final = _PartLimits(1_000, 8_000_000)
"""A service accepts bodies up to 20 MB."""


@dataclass(frozen=True, slots=True)
class _ExportCursor:
    """Behind which part to resume."""

    parts: int = 0
    number: int = 0
    """Of the last record."""
    completed: int = 0
    """Records."""

    @classmethod
    def parse(cls, text: str) -> _ExportCursor:
        """A cursor from its text. Raises `ExportMisconfigured`."""
        match = _CURSOR(text)
        if text and match is None:
            raise ExportMisconfigured(
                "The run's cursor is none of a run that can be resumed. Export the interval again "
                "by a backfill."
            )
        return cls(*map(int, match.groups())) if match else cls()

    def __str__(self) -> str:
        return f"v1.{self.parts}.{self.number}.{self.completed}"

    def after(self, part: Sequence[ExportRecord]) -> _ExportCursor:
        """The cursor behind one more part."""
        return _ExportCursor(self.parts + 1, part[-1].number, self.completed + len(part))


async def export_records(
    job: ExportJob, thread: StoreThread, places: DestinationPolicy, progress: Progress
) -> None:
    """Write what a job selects to its destination, from its cursor on.

    `progress` is called at the beginning and after each durable part. Raises `DestinationFailed`
    and `ExportMisconfigured`. Cancellation writes no further part; a part in writing appears
    complete or not at all.
    """
    executor = ThreadPoolExecutor(1, "export")
    try:
        write, limits = _open_destination(job, places, executor)
        reader = RecordReader(job, thread, executor)
        cursor = _ExportCursor.parse(job.cursor)
        total = await reader.count()
        await progress(str(cursor), cursor.completed, max(total, cursor.completed))
        async with aclosing(_parts(reader, cursor.number, limits)) as parts:
            async for part in parts:
                await write(_part_name(job, cursor.parts), reader.columns, part)
                cursor = cursor.after(part)
                await progress(str(cursor), cursor.completed, max(total, cursor.completed))
    finally:
        executor.shutdown(wait=False, cancel_futures=True)


async def _parts(
    reader: RecordReader, after: int, limits: _PartLimits
) -> AsyncGenerator[list[ExportRecord], None]:
    part = list[ExportRecord]()
    size = 0
    async with aclosing(reader.pages(after)) as pages:
        async for page in pages:
            for record in page:
                part.append(record)
                size += record.size
                if len(part) >= limits.records or size >= limits.size:
                    yield part
                    part = []
                    size = 0
    if part:
        yield part


def _open_destination(
    job: ExportJob, places: DestinationPolicy, executor: Executor
) -> tuple[WritePart, _PartLimits]:
    kind = job.destination.get("type")
    config = job.destination.get("config") or {}
    if not isinstance(config, dict):
        raise ExportMisconfigured("config of the destination is not an object. Set its fields.")
    match kind.strip().lower() if isinstance(kind, str) else None:
        case "folder":
            return _to_folder(
                FolderDestination(config, places), FileForm.of(config), executor
            ), _FILE
        case "s3":
            return _to_bucket(
                S3Destination(job, config, places, executor), FileForm.of(config), executor
            ), _FILE
        case "http":
            return _to_service(HttpDestination(job, config, places, executor)), _REQUEST
    raise ExportMisconfigured(
        f"The destination type {kind!r} can't be exported to. Types are: {', '.join(DESTINATIONS)}."
    )


def _to_folder(folder: FolderDestination, form: FileForm, executor: Executor) -> WritePart:
    async def write(
        name: str, columns: Mapping[str, ColumnKind], records: Sequence[ExportRecord]
    ) -> None:
        await _run(
            executor, lambda: folder.write(name + form.suffix, form.encode(columns, records))
        )

    return write


def _to_bucket(bucket: S3Destination, form: FileForm, executor: Executor) -> WritePart:
    async def write(
        name: str, columns: Mapping[str, ColumnKind], records: Sequence[ExportRecord]
    ) -> None:
        await bucket.write(
            name + form.suffix, await _run(executor, lambda: form.encode(columns, records))
        )

    return write


def _to_service(service: HttpDestination) -> WritePart:
    async def write(
        _: str, columns: Mapping[str, ColumnKind], records: Sequence[ExportRecord]
    ) -> None:
        await service.write(columns, records)

    return write


async def _run(executor: Executor, do: Callable[[], T]) -> T:
    """Run what blocks. Cancellation waits for it up to `_ENDS_WITHIN`, so that the next attempt
    doesn't write the same file meanwhile.
    """
    work = asyncio.get_running_loop().run_in_executor(executor, do)
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work], timeout=_ENDS_WITHIN)
        raise


def _part_name(job: ExportJob, number: int) -> str:
    times = "_".join(
        _name_of(time) or unknown for time, unknown in ((job.first, "start"), (job.last, "end"))
    )
    return f"{times}_{_safe(job.origin)[:_ORIGIN]}_{number:04}"


def _name_of(time: str) -> str:
    """A time as file systems and shells like it: `2026-01-01T00-00-00Z`; fractions only where
    there are any.
    """
    return _safe(re.sub(r"\.0*Z$", "Z", time.replace(":", "-")))


def _safe(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.-]", "", text)
