"""The look at a source before an import: what was found, what of it stops the import, and where that is kept."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from forwarder.sources.files.records import BrokenSource
from forwarder.sources.imports.preflight_page import as_json
from forwarder.sources.imports.preflight_report import PreflightFinding, PreflightReport, find_all, unaccepted
from forwarder.storage.private import atomic_file

FILE: Final = "preflight.json"


@dataclass(frozen=True, slots=True)
class Looked:
    """What a preflight found, judged."""

    report: PreflightReport
    broken: Sequence[BrokenSource]
    """Files that can't be read to their end."""
    findings: Sequence[PreflightFinding]
    stopping: Sequence[PreflightFinding]
    """Those that stop the import, for nobody accepted them."""

    @classmethod
    def judged(cls, report: PreflightReport, broken: Sequence[BrokenSource], accepted: Collection[str]) -> Looked:
        """The judgement on what was found. Raises `ConfigurationError` for a code to accept that is none."""
        findings = find_all(report)
        return cls(report, broken, findings, unaccepted(findings, accepted))

    def json(self) -> str:
        """All of it, for programs."""
        return as_json(self.report, self.findings, self.stopping)

    def keep(self, folder: Path) -> None:
        """Write it into the state folder. Raises `ConfigurationError` if that can't be."""
        with atomic_file(folder / FILE, replace=True) as file:
            file.write(f"{self.json()}\n".encode())

    @property
    def to_send(self) -> int:
        """Events that are to be sent; repeats aren't."""
        return _to_send(self.report.volume.events, self.report.repeats.repeats)


class _Count(Struct):
    events: int = 0
    repeats: int = 0


class _Volume(Struct):
    volume: _Count
    repeats: _Count


class _Kept(Struct):
    report: _Volume


def kept_to_send(folder: Path) -> int | None:
    """The events that the look of an earlier run found to be sent; None if it isn't known. It is only for the bar."""
    try:
        report = msgspec.json.decode((folder / FILE).read_bytes(), type=_Kept).report
    except (OSError, ValueError):
        return None
    return _to_send(report.volume.events, report.repeats.repeats)


def _to_send(events: int, repeats: int) -> int:
    return max(0, events - repeats)
