"""Which import a request is: its state folder, its identity, and whether the source is the one that it began with.

The same source with the same format and options is the same job, on any machine. An import resumes at a record's number, which in a file
with other content is the middle of something else: so the source's files are compared with those that the import began with.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forwarder.config.settings import Settings
from forwarder.core.clock import Clock
from forwarder.core.errors import ConfigurationError
from forwarder.core.secrets import mask_credentials, mask_key
from forwarder.sources.files.origins import SCHEMES, plain_name
from forwarder.sources.files.records import ReadOptions
from forwarder.sources.files.source import FileSource
from forwarder.sources.imports.checkpoint import ImportCheckpoint, ImportJob, SourceChanged, SourceContent
from forwarder.sources.imports.conversion import EventFilters
from forwarder.sources.imports.format import ChosenFormat, PersonProperties, derived_uuid
from forwarder.sources.imports.pacing import QuietHours
from forwarder.sources.imports.times import RECENT, SECOND, parse_time, when
from forwarder.telemetry.readable import plural


class OtherJob(ConfigurationError):
    """The state folder is of a job with other options, or of another source."""

    code = "other_job"


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
    """The job; what isn't said of its target (for a look) is as before: what was brought to one project isn't in another."""
    sent: dict[str, Any] = {**request.chosen.options, "person-properties": request.person_properties, "geoip": request.geoip or None}
    filters, address, key = request.filters, request.address, request.api_key
    unsaid = {*(() if address else ("via", "upstream")), *(() if key else ("api-key",))}
    options = {
        **{name: value for name, value in (saved.job.options if saved else {}).items() if name in unsaid},
        **sent,
        "since": None if filters.since is None else when(filters.since),
        "until": when(until),
        "event": sorted(filters.events) or None,
        "exclude-event": sorted(filters.exclude_events) or None,
        "limit": filters.limit,
        "sort": request.sort or None,
    }
    if address:
        options["via" if request.via else "upstream"] = mask_credentials(address.rstrip("/"))
    if key:
        options["api-key"] = f"{mask_key(key)} (sha256 {hashlib.sha256(key.encode()).hexdigest()[:8]})"
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in sorted(options.items()) if value is not None}
    identity = job_id(request.chosen.name, sent, [source.identity])
    return ImportJob(identity, request.chosen.name, " ".join(map(plain_name, request.paths)), texts)


def job_id(format_name: str, options: Mapping[str, Any], sources: Iterable[str]) -> str:
    """The UUIDv5 of a format, its options, and the identities of the files of the source (`File.identity`: of content, not of names).

    `options` are JSON values, and only those that change what is sent: neither the rate nor where state is kept. None stands for an option
    that isn't set, so that one that comes with a later version changes no job. Neither the order of options nor that of files matters.
    """
    chosen = {name: value for name, value in options.items() if value is not None}
    parts = ["job", format_name, chosen, sorted(sources)]
    return derived_uuid(json.dumps(parts, sort_keys=True, allow_nan=False, separators=(",", ":")))


def check_same(state: Path, saved: ImportCheckpoint, found: Sequence[SourceContent], job: ImportJob) -> None:
    """Compare a request with the checkpoint of its state folder. A file that was only written again, or moved, is the same.

    Raises `SourceChanged` if the source isn't that of the checkpoint, and `OtherJob` if the job isn't the same in all.
    """
    changes = compare(saved.contents, found)
    if changes and saved.job.source == job.source:
        more = f"; and {len(changes) - 5:,} more" if len(changes) > 5 else ""
        raise SourceChanged(
            f"the source isn't the one that this import began with: {'; '.join(changes[:5])}{more}",
            hint="An import resumes at the number of a record, which would be another one now. Bring the source back as it was, and run "
            "the same command again; or import what it is now as a job of its own, with `--state`: events that the service has already "
            "come with the same uuid and time, where their records have ids of their own, and aren't counted twice.",
        )
    pairs = [("format", saved.job.format, job.format), ("source", saved.job.source, job.source)]
    different = [f"its {name} is {old!r}, now it is {new!r}" for name, old, new in pairs if old != new]
    for name in sorted(dict(saved.job.options.items() ^ job.options.items())):
        old, new = (repr(each.options[name]) if name in each.options else "not said" for each in (saved.job, job))
        different.append(f"`--{name}` was {old}, now it is {new}")
    if saved.job.id != job.id and not different:
        different.append(f"its id is {saved.job.id}, now it is {job.id}: what the source holds is another")
    if different:
        raise OtherJob(
            f"{state} is of another import: {'; '.join(different)}",
            hint="Use the same options to resume it, or give this import a state folder of its own with `--state`.",
        )


def compare(saved: Sequence[SourceContent], found: Iterable[SourceContent]) -> list[str]:
    """What has changed of a source's files since a checkpoint, in words. A file that was only written again is the same."""
    now = {each.name: each for each in found}
    changes = []
    for old in saved:
        new = now.pop(old.name, None)
        if new is None:
            changes.append(f"{old.name} is gone")
        elif (old.size, old.digest) != (new.size, new.digest):
            changes.append(f"{old.name} {_change(old, new)}")
    return changes + [f"{name} is new: it wasn't there when this import began" for name in now]


def _change(old: SourceContent, new: SourceContent) -> str:
    by = new.size - old.size
    if by:
        words = f"{'grew' if by > 0 else 'shrank'} by {plural(abs(by), 'byte')}, from {old.size:,} to {new.size:,}"
    else:
        what = "another beginning or end" if old.modified or new.modified else "another content (of an object: another ETag)"
        words = f"has {what} than before, and the same size"
    if old.modified and new.modified and old.modified != new.modified:
        words += f"; it was written at {when(new.modified // 1000)}, before at {when(old.modified // 1000)}"
    return words
