"""The progress of an import, from its last checkpoint: for `import status`, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from forwarder.sources.imports.checkpoint import ImportCheckpoint
from forwarder.sources.imports.manifest import balance, plain, sentence
from forwarder.sources.imports.times import when
from forwarder.telemetry.readable import duration

PREFLIGHT: Final = "preflight.json"


class _Report(Struct):
    records: int


class _Preflight(Struct):
    report: _Report


class FileProgress(Struct, frozen=True):
    """The files of a source, members of archives one by one."""

    done: int
    """Settled to their end."""
    known: int
    all_known: bool
    """Whether none is still to be found; what is in an archive is known once it is read."""

    @classmethod
    def of(cls, checkpoint: ImportCheckpoint) -> FileProgress:
        """Those that were begun, and those that were named and not begun."""
        begun = {part for file in checkpoint.files for part in _ways(file.name)}
        waiting = sum(content.name not in begun for content in checkpoint.contents)
        done = sum(file.complete for file in checkpoint.files)
        return cls(done, len(checkpoint.files) + waiting, checkpoint.exhausted)

    def words(self) -> str:
        """In words."""
        return f"{self.done:,} of {self.known:,} files done" + ("" if self.all_known or not self.known else ", as far as they are known")


class ImportStatus(Struct, frozen=True):
    """One import."""

    folder: Path
    checkpoint: ImportCheckpoint | None
    """None: nothing is settled yet."""
    running: bool
    """Whether a process has the folder now."""
    counted: int | None = None
    """Records that the preflight counted; None: not known."""

    @property
    def state(self) -> str:
        """In one word, or a few."""
        complete = self.checkpoint is not None and self.checkpoint.complete
        if self.running:
            return "running" if self.checkpoint is not None else "running, nothing is settled yet"
        return "complete" if complete else "not complete: the same command resumes it"

    def words(self, now: float) -> Iterator[str]:
        """In a line with what it is, and some with how it is."""
        saved = self.checkpoint
        if saved is None:
            yield f"{plain(self.folder.name)}: {self.state}"
            yield f"  in {plain(str(self.folder))}"
            return
        events = sum(day.delivered for day in saved.totals.days.values())
        yield f"{plain(saved.job.format)} {plain(saved.job.source)}: {self.state}"
        yield f"  import {saved.job.id}, in {plain(str(self.folder))}"
        yield f"  started {_second(saved.started_at)}, last checkpoint {_second(saved.written_at)}, {duration(now - saved.written_at)} ago"
        yield f"  {sentence(saved.books)}: {balance(saved.books)}"
        if self.counted and not saved.complete:
            yield f"  {saved.books.read / self.counted:.0%} of the {self.counted:,} records that were counted before it began"
        first, last = saved.totals.first, saved.totals.last
        of_when = "" if first is None or last is None else f", of {when(first)} to {when(last)}"
        yield f"  {events:,} events delivered{of_when}; {FileProgress.of(saved).words()}"

    def plain(self) -> dict[str, Any]:
        """For machines."""
        saved = self.checkpoint
        if saved is None:
            return {"folder": str(self.folder), "job": None, "running": self.running, "complete": False}
        totals = saved.totals
        return {
            "folder": str(self.folder),
            "job": saved.job,
            "running": self.running,
            "complete": saved.complete,
            "started": _second(saved.started_at),
            "written": _second(saved.written_at),
            "counted": self.counted,
            "books": {**msgspec.structs.asdict(saved.books), "difference": saved.books.difference},
            "events": sum(day.delivered for day in totals.days.values()),
            "first": None if totals.first is None else when(totals.first),
            "last": None if totals.last is None else when(totals.last),
            "files": FileProgress.of(saved),
        }


def counted_in(folder: Path) -> int | None:
    """The records that the preflight of the import in a folder has counted; None if unknown: it only serves to compare."""
    try:
        return msgspec.json.decode((folder / PREFLIGHT).read_bytes(), type=_Preflight).report.records
    except (OSError, ValueError):  # msgspec's errors are such, too
        return None


def as_json(found: list[ImportStatus]) -> bytes:
    """All of them."""
    return msgspec.json.encode({"imports": [each.plain() for each in found]})


def _ways(name: str) -> Iterator[str]:
    """The names of all that a file may be in, and its own: `a.zip!b.json` is in `a.zip`."""
    parts = name.split("!")
    for end in range(1, len(parts) + 1):
        yield "!".join(parts[:end])


def _second(moment: float) -> str:
    return datetime.fromtimestamp(int(moment), UTC).isoformat().removesuffix("+00:00") + "Z"
