"""Runs of batch exports without a scheduler: events in a store, jobs over them, and what
destinations hold afterwards.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pyarrow.parquet as pq
import zstandard

from forwarder.sandbox.exports.jobs import DestinationPolicy, ExportJob, Selection
from forwarder.sandbox.exports.shipping import export_records
from forwarder.sandbox.protocol.times import format_time
from forwarder.sandbox.store.stored_records import IngestedEvent, RequestRecord
from forwarder.sandbox.store.thread import StoreThread

KEY: Final = "phc_exported_key_00000000001"
ORIGIN: Final = "0d4c3a52-7a3a-4a52-9a52-000000000001"
NAME: Final = "2026-01-01T00-00-00Z_2026-01-01T01-00-00Z_0d4c3a52"
"""How the names of a job's files begin."""
START: Final = datetime.fromisoformat("2026-01-01T00:00:00+00:00")


def at(minutes: float) -> str:
    """A time so many minutes after the beginning, as the database has it."""
    return format_time(START + timedelta(minutes=minutes))


def uuid_of(number: int) -> str:
    """The uuid of an event."""
    return str(UUID(int=number))


def stored(
    number: int,
    minutes: float = 0,
    *,
    event: str = "seen",
    distinct_id: str = "u1",
    beside: str = "",
    properties: str = "{}",
) -> IngestedEvent:
    """An event as the store takes it; `beside` is the text of more members."""
    head = {
        "uuid": uuid_of(number),
        "event": event,
        "distinct_id": distinct_id,
        "timestamp": at(minutes),
    }
    raw = f'{json.dumps(head)[:-1]}, "properties": {properties}{beside}}}'
    return IngestedEvent(
        0, uuid_of(number), event, distinct_id, None, at(minutes), properties, raw.encode()
    )


def request(
    events: Sequence[IngestedEvent], *, received: float = 0, api_key: str = KEY
) -> RequestRecord:
    """A request of these events."""
    return RequestRecord(at(received), "/batch/", "", {}, 200, "", api_key=api_key, events=events)


@asynccontextmanager
async def holding(
    events: Iterable[IngestedEvent] = (), path: Path | None = None
) -> AsyncIterator[StoreThread]:
    """A store with these events."""
    thread = StoreThread(path)
    try:
        event_list = list(events)
        await thread.run(lambda store: store.add(request(event_list)))
        yield thread
    finally:
        await thread.close()


def job(destination: Mapping[str, Any] | None = None, **changes: Any) -> ExportJob:
    """A run over everything that there is."""
    whole = ExportJob(
        origin=ORIGIN,
        run=ORIGIN,
        project=7,
        api_key=KEY,
        model="events",
        destination=folder() if destination is None else destination,
        filters=None,
        selection=Selection(None, None, 1_000_000_000),
        cursor="",
        first=at(0),
        last=at(60),
    )
    return replace(whole, **changes)


def folder(path: str = "exported", **config: Any) -> dict[str, Any]:
    """A folder as a destination."""
    return {"type": "Folder", "config": {"path": path, **config}}


@dataclass
class ProgressCalls:
    """What `progress` was called with. With `fail_after`, it fails after so many calls."""

    calls: list[tuple[str, int, int]] = field(default_factory=list)
    fail_after: int | None = None

    async def __call__(self, cursor: str, completed: int, total: int) -> None:
        if len(self.calls) == self.fail_after:
            raise Interrupted
        self.calls.append((cursor, completed, total))

    @property
    def cursor(self) -> str:
        """The last cursor."""
        return self.calls[-1][0] if self.calls else ""


class Interrupted(Exception):
    """The run is cut off."""


async def ship(
    work: ExportJob,
    thread: StoreThread,
    root: Path | None,
    *,
    private: bool = True,
    callback: ProgressCalls | None = None,
) -> ProgressCalls:
    """Run a job; what its progress was."""
    callback = callback or ProgressCalls()
    await export_records(work, thread, DestinationPolicy(root, private), callback)
    return callback


def read_part(name: str, content: bytes) -> list[dict[str, Any]]:
    """The records of a file, by its name."""
    if name.endswith(".parquet"):
        rows: list[dict[str, Any]] = pq.read_table(io.BytesIO(content)).to_pylist()
        return rows
    plain = gzip.decompress(content) if name.endswith(".gz") else content
    plain = (
        zstandard.ZstdDecompressor().decompressobj().decompress(content)
        if name.endswith(".zst")
        else plain
    )
    return [json.loads(line) for line in plain.splitlines()]


def read_folder(path: Path) -> list[dict[str, Any]]:
    """The records of all files in a folder, in the order of their names."""
    # a killed one leaves its temporary file
    files = sorted(file for file in path.iterdir() if not file.name.startswith("."))
    return [record for file in files for record in read_part(file.name, file.read_bytes())]
