"""One import, from its opening to its report: source, state folder and checkpoint are put together here, and nothing is sent by chance.

An import is identified by its format, its options and its source's content. The state folder is found again by format and
paths, so a source that changed is seen, and refused; the events' `$import_job_id` follows from the content alone, on any machine.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from forwarder import __version__
from forwarder.core.clock import Clock
from forwarder.core.errors import ConfigurationError
from forwarder.core.event import Lane
from forwarder.core.secrets import mask_credentials, mask_key
from forwarder.delivery.keys import KeyCheck
from forwarder.delivery.lanes import RetryPolicy
from forwarder.delivery.sink import HttpSink
from forwarder.imports.batching import DayBatcher
from forwarder.imports.counts import SourceOrderCounts, TimeOrderCounts
from forwarder.imports.dead_letters import ImportDeadLetters
from forwarder.imports.engine import ImportEngine
from forwarder.imports.replaying import LetterConversion, LetterReplays
from forwarder.imports.request import ImportRequest, ReportProgress
from forwarder.imports.target import PacedSink, check_key, open_target
from forwarder.sources.files.origins import SCHEMES, check_addresses, plain_name
from forwarder.sources.files.records import BrokenSource, SourceChanged
from forwarder.sources.files.source import FileSource, open_source
from forwarder.sources.imports.checkpoint import (
    ChangeKind,
    ImportCheckpoint,
    ImportJob,
    SourceChange,
    SourceContent,
    StateFolder,
    compare,
    job_id,
    read_checkpoint,
)
from forwarder.sources.imports.conversion import Conversion, EventFilters, EventSelection, open_conversion
from forwarder.sources.imports.day_batches import BatchLimits
from forwarder.sources.imports.finishing import FinishPolicy
from forwarder.sources.imports.manifest import ImportManifest, manifest_of
from forwarder.sources.imports.pacing import ImportPace, OwnLine, SharedLine
from forwarder.sources.imports.planning import PlanStep, SortedPlan, least_room, plan_steps
from forwarder.sources.imports.preflight import run_preflight
from forwarder.sources.imports.preflight_report import RECENT, PreflightReport, PreflightTerms
from forwarder.sources.imports.repeats import Repeats
from forwarder.sources.imports.report import write_reports
from forwarder.sources.imports.sorting import EventSpool
from forwarder.sources.imports.times import SECOND, parse_time, when
from forwarder.storage.private import make_directories

ENVELOPE: Final = 1024
"""Bytes of a request beside its events, at most."""
WINDOW: Final = 16 << 20
"""Bytes of events in flight, beside the batches that are being filled: a few batches of the usual size."""
UNPACED: Final = 1e9
"""Events a second, where no rate is asked for."""
LETTERS_BYTES: Final = 1 << 40
"""The folder is the import's own, and a record that can't be kept would hold up all of it: the disk is the limit."""


class ImportRun:
    """See the module."""

    def __init__(
        self, request: ImportRequest, clock: Clock, *, source: FileSource, folder: StateFolder, job: ImportJob, until: int
    ) -> None:
        self._request = request
        self._source = source
        self._folder = folder
        self._clock = clock
        self._filters = replace(request.filters, until=until)
        self._until_said = request.filters.until is not None
        self._engine: ImportEngine | None = None
        self._stopped = False
        self.job = job
        self.state = folder.path
        self.saved: ImportCheckpoint | None = None

    @classmethod
    def open(cls, request: ImportRequest, clock: Clock) -> ImportRun:
        """Open the source, and lock the state folder. Takes as long as looking at all files' ends.

        Raises `ConfigurationError`, `CheckpointDamaged`, `OtherJob`, `Locked`, and `SourceChanged` if the source isn't that of the
        checkpoint.
        """
        check_addresses(request.paths)
        request = replace(request, paths=tuple(_absolute(path) for path in request.paths))
        source = open_source(request.paths, request.reading)
        try:
            return cls._open(request, source, clock)
        except BaseException:
            source.close()
            raise

    @classmethod
    def _open(cls, request: ImportRequest, source: FileSource, clock: Clock) -> ImportRun:
        path = request.state or request.state_root / folder_name(request, source)
        _check_apart(path, request.paths)
        # of `<state directory>/imports/<job>` the last two parts are ours; what `--state` or `import.state` names is the user's
        folder = StateFolder(path, own=0 if request.state else 1 if request.settings.import_.state else 2)
        try:
            saved = read_checkpoint(path)
            until = _until(request.filters, saved, clock)
            job = _job(request, source, until, saved)
            if saved is not None:
                _compare(saved, contents_of(source), job)
                saved = folder.load(job)
            opened = cls(request, clock, source=source, folder=folder, job=job, until=until)
            opened.saved = saved
        except BaseException:
            folder.close()
            raise
        return opened

    @property
    def is_complete(self) -> bool:
        """Whether an earlier run has brought all there is, and no dead letter is marked for a replay."""
        return self.saved is not None and self.saved.complete and not ImportDeadLetters.marked_in(self.state)

    @property
    def broken(self) -> Sequence[BrokenSource]:
        """Files that couldn't be read to their end, once it ran."""
        return () if self._engine is None else self._engine.broken

    def preflight(self, progress: Callable[[int, int], None]) -> tuple[PreflightReport, tuple[BrokenSource, ...]]:
        """Look at all of the source; nothing is sent. Also the files that can't be read to their end.

        `progress` gets the records and bytes so far, now and then.
        """
        request, settings = self._request, self._request.settings
        terms = PreflightTerms(
            now=int(self._clock.now()) * SECOND,
            max_event=settings.upstream.max_event,
            batch_events=self._batch_events(),
            batch_bytes=settings.batch.max_bytes,
            rate=request.rate or UNPACED,
            until=self._filters.until if self._until_said else None,
            person_properties=request.person_properties,
            sort=request.sort,
            zone_said=request.chosen.zone_said,
        )
        return run_preflight(self._source, request.chosen, self._finish(), filters=self._filters, terms=terms, progress=progress)

    async def check_key(self) -> None:
        """Ask the service, or through the daemon, whether it knows the key. Raises `UpstreamRefuses`."""
        sink = self._sink()
        try:
            await check_key(sink, self._request.api_key, self._address)
        finally:
            await sink.close()

    async def run(self, report: ReportProgress) -> ImportManifest:
        """Bring what isn't there yet to the service; the manifest of where it stands then, which is in the state folder with the report.

        Raises `SourceChanged`, `ConfigurationError` if the state can't be written. Cancelled, it saves what is settled.
        """
        sink = self._sink()
        replayed = () if self.saved is None else self.saved.totals.replayed
        lane = Lane(self._request.api_key, historical=True)
        letters = ImportDeadLetters.open(self.state, self._clock, LETTERS_BYTES, lane=lane, replayed=replayed)
        letters.start()
        try:
            with Repeats(self.state) as repeats:
                await self._run(sink, letters, repeats, report)
        finally:
            await letters.close()
            await sink.close()
        return self._conclude()

    async def _run(self, sink: HttpSink, letters: ImportDeadLetters, repeats: Repeats, report: ReportProgress) -> None:
        settings = self._request.settings
        counts, plan = self._in_order_of_time(repeats) if self._request.sort else self._in_order_of_source(repeats)
        lane = Lane(self._request.api_key, historical=True)
        window = max(WINDOW, 3 * settings.batch.max_bytes)
        if self.saved is not None and self.saved.complete:
            plan = _nothing()  # only dead letters are marked: the source isn't read again for them
        replays = LetterReplays(letters, counts.totals, counts.books_of, self._remaking())
        witness = "" if self.saved is None else self.saved.witness
        engine = ImportEngine(
            plan, counts, letters, self._clock, replays=replays, folder=self._folder, lane=lane, window=window, witness=witness
        )
        keys = KeyCheck(sink.decide, self._clock) if settings.upstream.verify_keys else None
        pace = self._pace()
        batcher = DayBatcher(
            engine.buffer, pace, self._clock, max_body=settings.upstream.max_body, one_day_at_a_time=bool(self._request.via)
        )
        retry, concurrency = settings.delivery.retry, settings.delivery.concurrency
        engine.connect(
            batcher,
            PacedSink(sink, pace, self._clock),
            RetryPolicy(retry.initial, retry.max),
            concurrency if isinstance(concurrency, int) else None,
            keys,
        )
        self._engine = engine
        if self._stopped:
            engine.stop()
        try:
            await engine.run(report)
        finally:
            plan.close()
            self.saved = read_checkpoint(self.state)

    def _in_order_of_source(self, repeats: Repeats) -> tuple[SourceOrderCounts, Generator[PlanStep]]:
        counts = SourceOrderCounts(self.job, self._clock.now(), contents_of(self._source), self.saved)
        return counts, plan_steps(self._source, self._conversion(repeats), counts.saved(), self._limits())

    def _in_order_of_time(self, repeats: Repeats) -> tuple[TimeOrderCounts, Generator[PlanStep]]:
        """See `planning`. Its first checkpoint comes before all: what is sorted is sorted for one time that `--until` stands for."""
        now = self._clock.now()
        counts = TimeOrderCounts(self.job, now, contents_of(self._source), self.saved)
        if self.saved is None:
            self._folder.save(counts.checkpoint(now))
        spool = EventSpool(self.state, self.job)
        room = 0 if self._request.filters != EventFilters() else least_room(self._source)  # of a few events it isn't known
        plan = SortedPlan(self._source, self._conversion(repeats), spool, counts.saved(), counts.spool, limits=self._limits(), room=room)
        return counts, plan.steps()

    def stop(self) -> None:
        """Let `run` end soon: what is in flight is settled, and where it stands is saved."""
        self._stopped = True
        if self._engine is not None:
            self._engine.stop()

    def close(self) -> None:
        """Let go of the state folder and the source. Sorted events that are settled are removed."""
        if self.saved is not None and self.saved.spool is not None and self.saved.spool.is_settled:
            EventSpool(self.state, self.job).remove()
        self._folder.close()
        self._source.close()

    @property
    def _address(self) -> str:
        return self._request.via or self._request.settings.upstream.url

    def _sink(self) -> HttpSink:
        return open_target(self._request.settings.upstream, self._request.via, self._clock)

    def _finish(self) -> FinishPolicy:
        return FinishPolicy(self._request.person_properties, self._request.geoip, self.job.id)

    def _conversion(self, repeats: Repeats) -> Conversion:
        return open_conversion(
            self._request.chosen.make(), self._finish(), self._request.settings.upstream.max_event, EventSelection(self._filters, repeats)
        )

    def _remaking(self) -> LetterConversion:
        """How repaired letters become events: as their records would have, but each by itself."""
        chosen, max_event = self._request.chosen.make(), self._request.settings.upstream.max_event
        conversion = open_conversion(chosen, self._finish(), max_event, EventSelection(replace(self._filters, limit=None), None))
        return LetterConversion(lambda block, file: conversion.convert(block, file, 0), self._limits(), max_event)

    def _limits(self) -> BatchLimits:
        batch, upstream = self._request.settings.batch, self._request.settings.upstream
        return BatchLimits(min(batch.max_bytes, upstream.max_body - ENVELOPE), self._batch_events())

    def _batch_events(self) -> int:
        """How many events a batch has at most: a second's, for it is sent at once, whatever the rate."""
        rate, most = self._request.rate, self._request.settings.batch.max_events
        return most if rate is None else min(most, max(1, int(rate)))

    def _pace(self) -> ImportPace:
        request = self._request
        if request.rate is None:
            return ImportPace(UNPACED, line=OwnLine(), quiet=request.quiet_hours)
        target = hashlib.sha256(f"{self._address}\n{request.api_key}".encode()).hexdigest()[:16]
        line = SharedLine(_common_folder(request.state_root, self.state.parent, self.state) / f"rate-{target}")
        return ImportPace(request.rate, line=line, quiet=request.quiet_hours)

    def _conclude(self) -> ImportManifest:
        if self.saved is None:
            raise RuntimeError("a run ended without a checkpoint")
        found = manifest_of(self.saved, __version__, self._clock.now())
        write_reports(found, self.state)
        return found


def _nothing() -> Generator[PlanStep]:
    """The plan of an import of which all is brought."""
    yield from ()


def folder_name(request: ImportRequest, source: FileSource) -> str:
    """The state folder of a format and paths as they were named; standard input is named by its content."""
    named = [source.identity if path == "-" else path for path in request.paths]
    digest = hashlib.sha256(json.dumps([request.chosen.name, named]).encode()).hexdigest()
    return f"{request.chosen.name}-{digest[:8]}"


def _check_apart(state: Path, paths: Sequence[str]) -> None:
    """Raises `ConfigurationError` if what an import writes would be read as its source by the next run."""
    for path in paths:
        if Path(path).is_dir() and state.resolve().is_relative_to(Path(path).resolve()):
            raise ConfigurationError(
                f"the state folder {state} is in {path}, which is to be imported: its files would be taken for records",
                hint="Give it a place elsewhere with `--state`.",
            )


def _absolute(path: str) -> str:
    """A path that means the same from wherever the command is run again."""
    return path if path == "-" or path.startswith(SCHEMES) else str(Path(path).absolute())


def _common_folder(*candidates: Path) -> Path:
    """Where all processes with a rate in common meet: the first of these that can be written in; the state folder can."""
    for folder in candidates[:-1]:
        with suppress(OSError):
            make_directories(folder)
        if os.access(folder, os.W_OK):
            return folder
    return candidates[-1]


def contents_of(source: FileSource) -> list[SourceContent]:
    """The source's files as a checkpoint remembers them."""
    prints = [(origin.name, origin.fingerprint) for origin in source.origins]
    return [SourceContent(name, each.size, each.digest, each.modified) for name, each in prints]


def _until(filters: EventFilters, saved: ImportCheckpoint | None, clock: Clock) -> int:
    """Events from when on are left out: as said, else as in the first run, else 48 h ago."""
    if filters.until is not None:
        return filters.until
    if saved is not None and "until" in saved.job.options:
        return parse_time(saved.job.options["until"])
    return int(clock.now()) * SECOND - RECENT


def _job(request: ImportRequest, source: FileSource, until: int, saved: ImportCheckpoint | None) -> ImportJob:
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
    address, key = request.via or request.settings.upstream.url, request.api_key
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


def _compare(saved: ImportCheckpoint, found: Sequence[SourceContent], job: ImportJob) -> None:
    """Raises `SourceChanged` if the source isn't that of the checkpoint. A file that was only written again, or moved, is the same."""
    changes = [change for change in compare(saved.contents, found) if change.what is not ChangeKind.TOUCHED]
    if not changes or saved.job.source != job.source:
        return
    raise SourceChanged(
        _changed(changes),
        hint="An import resumes at the number of a record, which would be another one now. Bring the source back as it was, and run the "
        "same command again; or import what it is now as a job of its own, with `--state`: events that the service has already come with "
        "the same uuid and time, where their records have ids of their own, and aren't counted twice.",
    )


def _changed(changes: Sequence[SourceChange]) -> str:
    shown = "; ".join(change.words for change in changes[:5])
    more = f"; and {len(changes) - 5:,} more" if len(changes) > 5 else ""
    return f"the source isn't the one that this import began with: {shown}{more}"
