"""Which import a request is: its state folder, its identity, and whether the source is the one that it began with."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forwarder.config.settings import Settings
from forwarder.core.clock import Clock
from forwarder.core.errors import ConfigurationError
from forwarder.core.secrets import mask_credentials, mask_key
from forwarder.sources.files.origins import SCHEMES, plain_name
from forwarder.sources.files.records import ReadOptions, SourceChanged
from forwarder.sources.files.source import FileSource
from forwarder.sources.imports.checkpoint import ImportCheckpoint, ImportJob, SourceContent, compare, job_id
from forwarder.sources.imports.conversion import EventFilters
from forwarder.sources.imports.format import ChosenFormat, PersonProperties
from forwarder.sources.imports.pacing import QuietHours
from forwarder.sources.imports.preflight_report import RECENT
from forwarder.sources.imports.times import SECOND, parse_time, when


@dataclass(frozen=True, slots=True)
class ImportRequest:
    """One import, as a user asks for it."""

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

    @property
    def address(self) -> str:
        """Where its events go."""
        return self.via or self.settings.upstream.url


def folder_name(request: ImportRequest, source: FileSource) -> str:
    """The state folder of a format and paths as they were named; standard input is named by its content."""
    named = [source.identity if path == "-" else path for path in request.paths]
    digest = hashlib.sha256(json.dumps([request.chosen.name, named]).encode()).hexdigest()
    return f"{request.chosen.name}-{digest[:8]}"


def check_apart(state: Path, paths: Sequence[str]) -> None:
    """Raises `ConfigurationError` if what an import writes would be read as its source by the next run."""
    for path in paths:
        if Path(path).is_dir() and state.resolve().is_relative_to(Path(path).resolve()):
            raise ConfigurationError(
                f"the state folder {state} is in {path}, which is to be imported: its files would be taken for records",
                hint="Give it a place elsewhere with `--state`.",
            )


def absolute(path: str) -> str:
    """A path that means the same from wherever the command is run again."""
    return path if path == "-" or path.startswith(SCHEMES) else str(Path(path).absolute())


def contents_of(source: FileSource) -> list[SourceContent]:
    """The source's files as a checkpoint remembers them."""
    prints = [(origin.name, origin.fingerprint) for origin in source.origins]
    return [SourceContent(name, each.size, each.digest, each.modified) for name, each in prints]


def until_of(filters: EventFilters, saved: ImportCheckpoint | None, clock: Clock) -> int:
    """Events from when on are left out: as said, else as in the first run, else 48 h ago."""
    if filters.until is not None:
        return filters.until
    if saved is not None and "until" in saved.job.options:
        return parse_time(saved.job.options["until"])
    return int(clock.now()) * SECOND - RECENT


def job_of(request: ImportRequest, source: FileSource, until: int, saved: ImportCheckpoint | None) -> ImportJob:
    sent: dict[str, Any] = {
        **request.chosen.options,
        "person-properties": request.person_properties,
        "geoip": request.geoip or None,
    }
    identity = job_id(request.chosen.name, sent, [source.identity])
    options = {**sent, **_filters(request.filters, until), **_target(request, saved), "sort": request.sort or None}
    return ImportJob(identity, request.chosen.name, " ".join(map(plain_name, request.paths)), _said(options))


def _target(request: ImportRequest, saved: ImportCheckpoint | None) -> dict[str, str]:
    """Where it goes: what was brought to one project isn't in another. What isn't said (for a look) is as before."""
    address, key = request.address, request.api_key
    target = {}
    if address:
        target["via" if request.via else "upstream"] = mask_credentials(address.rstrip("/"))
    if key:
        target["api-key"] = f"{mask_key(key)} (sha256 {hashlib.sha256(key.encode()).hexdigest()[:8]})"
    unsaid = {*(() if address else ("via", "upstream")), *(() if key else ("api-key",))}
    before = {} if saved is None else saved.job.options
    return target | {name: before[name] for name in unsaid & before.keys()}


def _filters(filters: EventFilters, until: int) -> dict[str, Any]:
    return {
        "since": None if filters.since is None else when(filters.since),
        "until": when(until),
        "event": sorted(filters.events) or None,
        "exclude-event": sorted(filters.exclude_events) or None,
        "limit": filters.limit,
    }


def _said(options: Mapping[str, Any]) -> dict[str, str]:
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in options.items() if value is not None}
    return dict(sorted(texts.items()))


def check_same(saved: ImportCheckpoint, found: Sequence[SourceContent], job: ImportJob) -> None:
    """Raises `SourceChanged` if the source isn't that of the checkpoint. A file that was only written again, or moved, is the same."""
    changes = compare(saved.contents, found)
    if not changes or saved.job.source != job.source:
        return
    raise SourceChanged(
        _changed(changes),
        hint="An import resumes at the number of a record, which would be another one now. Bring the source back as it was, and run the "
        "same command again; or import what it is now as a job of its own, with `--state`: events that the service has already come with "
        "the same uuid and time, where their records have ids of their own, and aren't counted twice.",
    )


def _changed(changes: Sequence[str]) -> str:
    shown = "; ".join(changes[:5])
    more = f"; and {len(changes) - 5:,} more" if len(changes) > 5 else ""
    return f"the source isn't the one that this import began with: {shown}{more}"
