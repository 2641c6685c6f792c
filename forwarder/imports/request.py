"""The request for an import, and its progress while it runs: the interface between the command and the engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from forwarder.config.settings import Settings
from forwarder.sources.files.records import ReadOptions
from forwarder.sources.imports.conversion import EventFilters
from forwarder.sources.imports.format import ChosenFormat, PersonProperties
from forwarder.sources.imports.pacing import QuietHours


@dataclass(frozen=True, slots=True)
class ImportRequest:
    """One import."""

    chosen: ChosenFormat
    paths: tuple[str, ...]
    settings: Settings
    """Upstream, batches, retries."""
    api_key: str
    """Of the project that the events go to."""
    state: Path | None = None
    """The job's state folder; None: `state_root` has one for this format and these paths."""
    state_root: Path = Path("/var/lib/forwarder/imports")
    via: str = ""
    """Address of a running daemon to send through; empty: to the upstream itself."""
    reading: ReadOptions = field(default_factory=ReadOptions)
    filters: EventFilters = field(default_factory=EventFilters)
    """Without an `until` it is 48 h before the job's first run."""
    person_properties: PersonProperties = "set_once"
    geoip: bool = False
    rate: float | None = 2000.0
    """Events a second; None: as fast as it goes."""
    quiet_hours: QuietHours | None = None
    """When nothing is sent."""
    sort: bool = False
    accepted: frozenset[str] = frozenset()
    """Codes of findings that don't stop it."""


@dataclass(frozen=True, slots=True)
class ImportProgress:
    """How far an import is."""

    read: int
    """Records, since the start of the source; those of earlier runs among them."""
    delivered: int
    """Records whose events have arrived, in all runs."""
    refused: int
    left_out: int
    repeats: int
    in_flight: int
    """Events that were read from the source and aren't settled."""
    events: int
    """Events delivered in this run."""
    waiting: str = ""
    """Why nothing is sent now; empty if something is, or could be."""


ReportProgress = Callable[[ImportProgress], None]
"""Called about twice a second while an import runs, on the loop."""
