"""Which import a request is: its state folder, its identity, and whether the source is the one
that it began with.

The same source with the same format and options is the same job, on any machine. An import resumes
at a record's number, which in a file with other content is the middle of something else: so the
source's files are compared with those that the import began with.

An import in shards (`--shard`) is one job: each event is the same, byte for byte, whichever shard
sends it and however many there are. The shards' state folders are in one folder, whose
`shards.json` holds the job as the first shard began with it: `version`, `sha256`, `job`, as
`checkpoint.seal` writes them. A shard that would read another list of files, or send other events,
doesn't start there.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from msgspec.structs import replace

from forwarder.config.settings import Settings
from forwarder.core.clock import Clock
from forwarder.core.error_text import error_text
from forwarder.core.errors import ConfigurationError
from forwarder.core.secrets import mask_credentials, mask_key
from forwarder.sources.files.origins import SCHEMES, plain_name
from forwarder.sources.files.record_blocks import ReadOptions
from forwarder.sources.files.source import FileSource
from forwarder.sources.imports.checkpoint import (
    FILE,
    FORMER_CHOICES,
    PERSONS,
    ImportCheckpoint,
    ImportJob,
    SourceChanged,
    SourceContent,
    SourceShard,
    seal,
    unseal,
)
from forwarder.sources.imports.conversion import EventFilters
from forwarder.sources.imports.format import ChosenFormat, PersonProperties, derived_uuid
from forwarder.sources.imports.pacing import QuietHours
from forwarder.sources.imports.times import RECENT, SECOND, parse_time, when
from forwarder.storage.private import locked_file
from forwarder.telemetry.readable import plural

SHARDS: Final = "shards.json"
"""What the shards of an import have in common, in the folder above theirs."""
MOST_SHARDS: Final = 10_000
_VERSION: Final = 1
_SHARD: Final = re.compile(r"\s*(\d{1,9})\s*/\s*(\d{1,9})\s*", re.ASCII)
_FOLDER: Final = re.compile(r"shard-(\d{1,9})-of-(\d{1,9})", re.ASCII)


class OtherJob(ConfigurationError):
    """The state folder is of a job with other options, or of another source."""

    code = "other_job"


class Shard(NamedTuple):
    """One of the parts of an import: every `of`-th file of the source, beginning with the one of
    its own number; both count from 0.
    """

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """As it is typed: `3/8`. Raises `ConfigurationError`."""
        match = _SHARD.fullmatch(text)
        number, of = (int(match[1]), int(match[2])) if match else (0, 0)
        if match is None or not 0 < of <= MOST_SHARDS:
            hint = (
                "Write K/N, such as 0/8: number K of N shards, counted from 0; at most "
                f"{MOST_SHARDS:,}."
            )
            raise ConfigurationError(f"--shard: {text!r} is not of the form K/N", hint=hint)
        if number >= of:
            hint = (
                f"Shards are counted from 0, as in JOB_COMPLETION_INDEX: 0/{of} to {of - 1}/{of}."
            )
            raise ConfigurationError(f"--shard: there is no shard {number} of {of}", hint=hint)
        return cls(number, of)

    @classmethod
    def of_folder(cls, name: str) -> Self | None:
        """The shard whose state folder has this name; None if it is of none."""
        match = _FOLDER.fullmatch(name)
        return (
            cls(int(match[1]), int(match[2])) if match and int(match[1]) < int(match[2]) else None
        )

    @property
    def folder(self) -> str:
        """The name of its state folder."""
        return f"shard-{self.number}-of-{self.of}"

    @property
    def files(self) -> slice:
        """Which of the source's files are its own."""
        return slice(self.number, None, self.of)

    def part(self, total: int) -> int:
        """Its part of a number, so that the parts of all shards add up to it."""
        return total * (self.number + 1) // self.of - total * self.number // self.of

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


@dataclass(frozen=True, slots=True)
class ImportRequest:
    """One import, as a user asks for it."""

    chosen: ChosenFormat
    paths: tuple[str, ...]
    settings: Settings
    """Upstream, batches, retries."""
    api_key: str
    """Project key, as senders use it: rules match it."""
    state: Path | None = None
    """The job's state folder, of an import in shards the one above those of the shards; None:
    `state_root` has one for this format and these paths.
    """
    state_root: Path = Path("/var/lib/forwarder/imports")
    via: str = ""
    """Address of a running daemon to send through; empty: to the upstream itself."""
    reading: ReadOptions = field(default_factory=ReadOptions)
    filters: EventFilters = field(default_factory=EventFilters)
    """Without an `until` it is 48 h before the job's first run."""
    person_properties: PersonProperties = "oldest"
    persons_chosen: bool = True
    """Whether that was said."""
    geoip: bool = False
    rate: float | None = 2000.0
    """Events a second; None: as fast as it goes."""
    quiet_hours: QuietHours | None = None
    """When nothing is sent."""
    sort: bool = False
    accepted: frozenset[str] = frozenset()
    """Codes of findings that don't stop it."""
    shard: Shard | None = None
    """The part of the source that is read; None: all of it. Rate and limit are
    those of all shards together.
    """

    @property
    def own_rate(self) -> float | None:
        """Events a second of this process."""
        return self.rate if self.rate is None or self.shard is None else self.rate / self.shard.of

    @property
    def own_limit(self) -> int | None:
        """How many events this process selects at most."""
        limit = self.filters.limit
        return limit if limit is None or self.shard is None else self.shard.part(limit)

    @property
    def address(self) -> str:
        """Where its events go."""
        return self.via or self.settings.upstream.url

    @property
    def own_key(self) -> str:
        """The project key at `address`: the one that stands for `api_key` there (`api_keys`), if
        one does. A running daemon translates it by itself.
        """
        own = {} if self.via else self.settings.destination.api_keys
        return own.get(self.api_key, self.api_key)

    @property
    def shown_project(self) -> str:
        """What people see of the key at `address`: the key's name, if it has one, and its end."""
        name = self.settings.key_names.get(self.api_key)
        return f"{name} ({mask_key(self.own_key)})" if name else mask_key(self.own_key)


RULES: Final = "rules"
"""Among a job's options: the digest of the rules for events."""


def folder_name(request: ImportRequest, source: FileSource) -> str:
    """The state folder of a format and paths as they were named; standard input
    is named by its content.
    """
    named = [source.identity if path == "-" else path for path in request.paths]
    digest = hashlib.sha256(json.dumps([request.chosen.name, named]).encode()).hexdigest()
    return f"{request.chosen.name}-{digest[:8]}"


def check_apart(state: Path, paths: Sequence[str]) -> None:
    """Raises `ConfigurationError` if what an import writes would be read as
    its source by the next run.
    """
    for path in paths:
        if Path(path).is_dir() and state.resolve().is_relative_to(Path(path).resolve()):
            raise ConfigurationError(
                (
                    f"the state folder {state} is in {path}, which is to be imported: its files "
                    "would be taken for records"
                ),
                hint="Give it a place elsewhere with `--state`.",
            )


def absolute(path: str) -> str:
    """A path that means the same from wherever the command is run again."""
    return path if path == "-" or path.startswith(SCHEMES) else str(Path(path).absolute())


def contents_of(source: FileSource) -> list[SourceContent]:
    """The source's files as a checkpoint remembers them."""
    prints = [(origin.name, origin.fingerprint) for origin in source.origins]
    return [
        SourceContent(name, fingerprint.size, fingerprint.digest, fingerprint.modified)
        for name, fingerprint in prints
    ]


def until_of(filters: EventFilters, begun: ImportJob | None, clock: Clock) -> int:
    """Events from when on are left out: as said, else as in the first run (of any shard), else 48
    h ago.
    """
    if filters.until is not None:
        return filters.until
    if begun is not None and "until" in begun.options:
        return parse_time(begun.options["until"])
    return int(clock.now()) * SECOND - RECENT


def job_of(
    request: ImportRequest,
    source: FileSource,
    until: int,
    begun: ImportJob | None,
    rules: str | None = None,
) -> ImportJob:
    """The job; what isn't said of its target (for a look) is as before: what was brought to one
    project isn't in another.

    `rules`: the digest of the rules for events, if there are any.
    """
    sent: dict[str, Any] = {
        **request.chosen.options,
        PERSONS: request.person_properties,
        "geoip": request.geoip or None,
    }
    filters = request.filters
    address = request.address
    key = request.own_key
    unsaid = {*(() if address else ("via", "upstream")), *(() if key else ("api-key",))}
    before = begun.options if begun else {}
    options = {
        **{name: value for name, value in before.items() if name in unsaid},
        **sent,
        "since": None if filters.since is None else when(filters.since),
        "until": when(until),
        "event": sorted(filters.events) or None,
        "exclude-event": sorted(filters.exclude_events) or None,
        "limit": filters.limit,
        "sort": request.sort or None,
        RULES: rules,
    }
    if address:
        options["via" if request.via else "upstream"] = mask_credentials(address.rstrip("/"))
    if key:
        options["api-key"] = (
            f"{mask_key(key)} (sha256 {hashlib.sha256(key.encode()).hexdigest()[:8]})"
        )
    texts = {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in sorted(options.items())
        if value is not None
    }
    choice = request.person_properties
    former = next((old for old, new in FORMER_CHOICES.items() if new == choice), choice)
    identity = job_id(request.chosen.name, {**sent, PERSONS: former}, [source.identity])
    shard = (
        None
        if request.shard is None
        else SourceShard(*request.shard, len(source.named), source.identity)
    )
    return ImportJob(
        identity, request.chosen.name, " ".join(map(plain_name, request.paths)), texts, shard
    )


def job_id(format_name: str, options: Mapping[str, Any], sources: Iterable[str]) -> str:
    """The UUIDv5 of a format, its options, and the identities of the files of the source
    (`File.identity`: of content, not of names).

    `options` are JSON values, and only those that change what is sent: neither the rate nor where
    state is kept. None stands for an option that isn't set, so that one that comes with a later
    version changes no job. Neither the order of options nor that of files matters.
    """
    chosen = {name: value for name, value in options.items() if value is not None}
    parts = ["job", format_name, chosen, sorted(sources)]
    return derived_uuid(json.dumps(parts, sort_keys=True, allow_nan=False, separators=(",", ":")))


def check_same(
    state: Path, saved: ImportCheckpoint, contents: Sequence[SourceContent], job: ImportJob
) -> None:
    """Compare a request with the checkpoint of its state folder. A file that was only written
    again, or moved, is the same.

    Raises `SourceChanged` if the source isn't that of the checkpoint, and `OtherJob` if the job
    isn't the same in all.
    """
    changes = [*_list_changes(saved.job, job), *compare(saved.contents, contents)]
    if changes and (saved.job.source, _part(saved.job)) == (job.source, _part(job)):
        more = f"; and {len(changes) - 5:,} more" if len(changes) > 5 else ""
        raise SourceChanged(
            f"the source isn't the one that this import began with: {'; '.join(changes[:5])}{more}",
            hint="An import resumes at the number of a record, which would be another one now. "
            "Bring the source back as it was, and run "
            "the same command again; or import what it is now as a job of its own, with "
            "`--state`: events that the service has already "
            "come with the same uuid and time, where their records have ids of their own, and "
            "aren't counted twice.",
        )
    _check_job(state, saved.job, job)


def _check_job(state: Path, begun: ImportJob, job: ImportJob) -> None:
    pairs = [
        ("format", begun.format, job.format),
        ("source", begun.source, job.source),
        ("shard", _part(begun), _part(job)),
    ]
    different = [
        f"its {name} is {old!r}, now it is {new!r}" for name, old, new in pairs if old != new
    ]
    different += option_changes(begun, job)
    if begun.id != job.id and not different:
        different.append(
            f"its id is {begun.id}, now it is {job.id}: what the source holds is another"
        )
    if different:
        hint = (
            "Use the same options to resume it. What it has sent can't be taken back: under other "
            "options the same records would be there a second time, so they belong in another "
            "project. That import, or one of another source, needs a state folder of its own: "
            "`--state DIR`."
        )
        raise OtherJob(f"{state} is of another import: {'; '.join(different)}", hint=hint)


def option_changes(begun: ImportJob, job: ImportJob) -> list[str]:
    """Which options of an import are others than before, in words."""
    begun = begun.with_current_names()
    different = []
    for name in sorted(dict(begun.options.items() ^ job.options.items())):
        old, new = (
            repr(identity.options[name]) if name in identity.options else "not said"
            for identity in (begun, job)
        )
        if name == RULES:
            different.append("its `rules:`, or a salt of theirs, were others")
        else:
            different.append(f"`--{name}` was {old}, now it is {new}")
    return different


def _part(job: ImportJob) -> str:
    """Which part of its source a job reads, in words."""
    return "all of the source" if job.shard is None else str(job.shard)


def check_divisible(paths: Sequence[str]) -> None:
    """Raises `ConfigurationError` for what only one process can read, so
    that shards can't divide it.
    """
    for path in paths:
        if path == "-" or Path(path).is_fifo():
            what = "standard input" if path == "-" else path
            hint = "Write it to files first; or import it without `--shard`."
            raise ConfigurationError(
                f"--shard: {what} can't be divided: only one process can read it", hint=hint
            )


def check_division(folder: Path, shard: Shard | None) -> ImportJob | None:
    """The job of an import in shards, as the first of them began with it; None if none has begun
    there.

    Raises `OtherJob` if what was begun in the folder is divided into another number of shards, or
    into none.
    """
    begun = read_shards(folder)
    before = None if begun is None or begun.shard is None else begun.shard.of
    now = None if shard is None else shard.of
    if (begun is not None or (folder / FILE).is_file()) and before != now:
        resumed = "without --shard" if before is None else f"with `--shard K/{before}`"
        raise OtherJob(
            (
                f"{folder} is of an import that began {_in_shards(before)}, this one is "
                f"{_in_shards(now)}"
            ),
            hint=f"Resume it {resumed}; or give this one a state folder of its own with "
            "`--state`: it begins anew, and sends the same "
            "events, of which the service counts none twice.",
        )
    return begun


def _in_shards(of: int | None) -> str:
    return "without shards" if of is None else f"in {plural(of, 'shard')}"


def check_shared(folder: Path, begun: ImportJob, job: ImportJob) -> None:
    """Compare a shard's job with the one that another began with. Raises `SourceChanged` for
    another list of files, and `OtherJob`.
    """
    if (changes := [*_list_changes(begun, job)]) and begun.source == job.source:
        raise SourceChanged(
            (
                f"the source isn't the one that the shards in {folder} began with: "
                f"{'; '.join(changes)}"
            ),
            hint="A shard reads every N-th file of the list, so of another list some files "
            "would be read twice and others never. Bring the "
            "list back as it was, and run the same command again: name a pattern or a folder to "
            "which nothing is added. What is new is "
            "an import of its own.",
        )
    _check_job(folder, replace(begun, shard=job.shard), job)


def _list_changes(begun: ImportJob, job: ImportJob) -> Iterator[str]:
    """How the list of files that shards divide has changed, in words."""
    before = begun.shard
    now = job.shard
    if before is not None and now is not None and before.listing != now.listing:
        if before.files != now.files:
            yield f"it has {plural(now.files, 'file')} now, and had {before.files:,}"
        else:
            yield f"its {plural(now.files, 'file')} have another content, or another order"


def read_shards(folder: Path) -> ImportJob | None:
    """What the shards of an import have in common, without a lock; None if there is nothing that
    can be read.
    """
    with suppress(OSError):
        return _unsealed((folder / SHARDS).read_bytes())
    return None


def share_job(folder: Path, job: ImportJob) -> ImportJob:
    """Save the job for the other shards, unless one of them has saved it: that one's,
    then. Raises `ConfigurationError`.
    """
    path = folder / SHARDS
    try:
        with locked_file(path) as file:
            begun = _unsealed(os.pread(file, os.fstat(file).st_size, 0))
            # or one that was killed while it wrote: each checkpoint has the job, too
            if begun is None:
                data = seal(
                    _VERSION, "job", replace(job, shard=job.shard and replace(job.shard, number=0))
                )
                os.pwrite(file, data, 0)
                os.ftruncate(file, len(data))
                os.fsync(file)
    except OSError as error:
        hint = (
            "Make room there, or the folder writable, and run the same command again: nothing "
            "was sent."
        )
        raise ConfigurationError(
            f"{path} can't be written: {error_text(error)}", hint=hint
        ) from error
    return begun or job


def _unsealed(data: bytes) -> ImportJob | None:
    with suppress(ValueError):  # msgspec's errors are such, too
        return unseal(data, _VERSION, "job", ImportJob)
    return None


def compare(saved: Sequence[SourceContent], contents: Iterable[SourceContent]) -> list[str]:
    """What has changed of a source's files since a checkpoint, in words. A file that was only
    written again is the same.
    """
    now = {content.name: content for content in contents}
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
        words = (
            f"{'grew' if by > 0 else 'shrank'} by {plural(abs(by), 'byte')}, from "
            f"{old.size:,} to {new.size:,}"
        )
    else:
        what = (
            "another beginning or end"
            if old.modified or new.modified
            else "another content (of an object: another ETag)"
        )
        words = f"has {what} than before, and the same size"
    if old.modified and new.modified and old.modified != new.modified:
        words += (
            f"; it was written at {when(new.modified // 1000)}, before at "
            f"{when(old.modified // 1000)}"
        )
    return words
