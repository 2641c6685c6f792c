"""An import for the command's tests: it reads and sends nothing, and
remembers what was asked of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from forwarder.cli.import_options import CommonOptions
from forwarder.cli.import_run import ImportCommand
from forwarder.config.settings import Settings
from forwarder.core.errors import ForwarderError
from forwarder.core.ports import Reason
from forwarder.daemon.imports import ImportRun, UpstreamRefuses
from forwarder.sources.files.record_blocks import BrokenSource
from forwarder.sources.imports.checkpoint import ImportCheckpoint, ImportJob
from forwarder.sources.imports.format import ChosenFormat
from forwarder.sources.imports.formats.native import NativeConverter
from forwarder.sources.imports.import_books import ImportTotals
from forwarder.sources.imports.job import ImportRequest
from forwarder.sources.imports.preflight_report import PreflightReport
from forwarder.sources.imports.report import ImportManifest
from forwarder.sources.imports.source import ImportProgress, ReportProgress
from tests.sources.imports.preflights import event, refused, report, seen
from tests.sources.imports.samples.manifests import JOB, manifest

URL: Final = "https://service.example.com"
KEY: Final = "phc_0123456789hunter2good"
GOOD: Final = [seen(event(number)) for number in range(5)]
STOPPING: Final = [
    *GOOD,
    refused(Reason.ILLEGAL_DISTINCT_ID, "the id 'nil' is one that many share"),
]
"""A source with findings that stop an import."""
ACCEPTED: Final = frozenset({"illegal-merges", "many-refused"})
BROKEN: Final = BrokenSource("export/0.json.gz", 17, "it is cut off")
PROGRESS: Final = ImportProgress(
    read=10, delivered=7, refused=1, left_out=1, repeats=1, in_flight=3, events=7
)


@dataclass
class FakeImport:
    """An `Import`, with all that it answers."""

    state: Path
    preflight_report: PreflightReport = field(default_factory=lambda: report(GOOD))
    saved: ImportCheckpoint | None = None
    is_complete: bool = False
    refuses: ForwarderError | None = None
    result: ImportManifest = field(default_factory=lambda: manifest(2))
    broken: tuple[BrokenSource, ...] = ()
    waits: Callable[[], Any] | None = None
    """Called while it runs, which then goes on until it is stopped."""
    job: ImportJob = JOB
    has_files: bool = True
    asked: list[str] = field(default_factory=list)
    """What was called, in order."""
    stopped: asyncio.Event = field(default_factory=asyncio.Event)

    def preflight(
        self, reported: Callable[[int, int], None]
    ) -> tuple[PreflightReport, tuple[BrokenSource, ...]]:
        self.asked.append("preflight")
        reported(5, 500)
        return self.preflight_report, self.broken

    async def check_key(self, _waits: Callable[[str, float], None] | None = None) -> None:
        self.asked.append("check_key")
        if self.refuses is not None:
            raise self.refuses

    async def run(self, reported: ReportProgress) -> ImportManifest:
        self.asked.append("run")
        reported(PROGRESS)
        if self.waits is not None:
            self.waits()
            await self.stopped.wait()
        return self.result

    def stop(self) -> None:
        self.asked.append("stop")
        self.stopped.set()

    def close(self) -> None:
        self.asked.append("close")


def refusal() -> UpstreamRefuses:
    """What a service says that doesn't know the key."""
    return UpstreamRefuses("it doesn't know the project key", hint="Check the key.")


def checkpoint(*, complete: bool = False) -> ImportCheckpoint:
    """Of an earlier run."""
    return ImportCheckpoint(
        JOB, 1_750_000_000.0, 1_750_000_600.0, [], [], ImportTotals(), exhausted=complete
    )


def request(**changes: Any) -> ImportRequest:
    """A request for an import."""
    chosen = ChosenFormat("native", {}, lambda _: NativeConverter("oldest"), ("timestamp",))
    settings = Settings.parse({"upstream": {"url": URL}})
    return ImportRequest(
        **{"chosen": chosen, "paths": ("export",), "settings": settings, "api_key": KEY, **changes}
    )


def flow(
    opened: FakeImport, asked: ImportRequest | None = None, *, yes: bool = True, **typed: Any
) -> int:
    """Run an import that is opened with what was typed; the exit code."""
    return ImportCommand(
        cast("ImportRun", opened),
        asked or request(),
        CommonOptions(paths=["export"], yes=yes, **typed),
    ).run()
