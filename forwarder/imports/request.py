"""What somebody wants imported, and how far an import is while it runs: what the command and the engine say to each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forwarder.config.settings import Settings
from forwarder.sources.files.options import ReadOptions
from forwarder.sources.imports.events import Converter
from forwarder.sources.imports.policy import EventFilters, PersonProperties
from forwarder.sources.imports.quiet_hours import QuietHours
from forwarder.sources.imports.raw_events import RawConverter


@dataclass(frozen=True, slots=True)
class ChosenFormat:
    """A format with its options said."""

    name: str
    options: Mapping[str, Any]
    """Those that change what is sent, as JSON values by their names on the command line; None stands for one that isn't set."""
    make: Callable[[], Converter | RawConverter]
    """A new one, for one pass over the source from its start."""
    time_fields: Sequence[str] = ()
    """Where its records have their times."""
    zone_said: bool = False
    """Whether it is known what a time without a zone means."""


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
    """Events that were taken from the source and aren't settled."""
    events: int
    """Events delivered in this run."""
    waiting: str = ""
    """Why nothing is sent now; empty if something is, or could be."""


ReportProgress = Callable[[ImportProgress], None]
"""Called about twice a second while an import runs, on the loop."""
