"""One import, from its opening to its report: the daemon's pipeline with one source, in a process
of its own.

source → intake → buffer in memory (the source is the durable copy) → batcher → delivery → the
service, or a running daemon (`--via`).

An import is identified by its format, its options and its source's content. The state folder is
found again by format and paths, so a source that changed is seen, and refused; the events'
`$import_job_id` follows from the content alone, on any machine.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from forwarder.buffer.memory import MemoryBuffer
from forwarder.core.clock import Backoff, Clock
from forwarder.core.errors import ConfigurationError, ForwarderError
from forwarder.core.event import NO_IDS, Batch, Chunk, Lane
from forwarder.core.outcome import Delivered, HaltReason, Reply, Retry
from forwarder.core.ports import Ordering, Sink
from forwarder.core.secrets import mask_key, mask_secrets
from forwarder.daemon.configured_rules import ConfiguredRules
from forwarder.daemon.import_dead_letters import DeadLetterReplays, ImportDeadLetters
from forwarder.daemon.policies import batch_policy, open_sink
from forwarder.delivery.batching import Batcher, BatchPolicy
from forwarder.delivery.classify import classify
from forwarder.delivery.delivery import Delivery
from forwarder.delivery.keys import KeyCheck
from forwarder.delivery.lane_state import RetryPolicy
from forwarder.delivery.sink import HttpSink
from forwarder.intake.admission import Admission, Gate, ReceiptDeadLetters
from forwarder.intake.conditions import Conditions
from forwarder.intake.fan_out import Branch
from forwarder.intake.lane_registry import KnownKeys, LaneRegistry, UnsharedBuffer
from forwarder.intake.source_intake import SourceIntake
from forwarder.sources.files.origins import check_addresses
from forwarder.sources.files.record_blocks import BrokenSource
from forwarder.sources.files.source import open_source
from forwarder.sources.imports.blocks import SOURCE, ChunkLimits, ImportBlock, source_blocks
from forwarder.sources.imports.checkpoint import (
    ImportCheckpoint,
    ImportJob,
    StateFolder,
    read_checkpoint,
)
from forwarder.sources.imports.conversion import (
    Conversion,
    EventFilters,
    FinishPolicy,
    ImportRules,
    PersonStage,
)
from forwarder.sources.imports.earlier import earlier_imports
from forwarder.sources.imports.format import PersonProperties
from forwarder.sources.imports.formats.catalog import FORMATS
from forwarder.sources.imports.job import (
    ImportRequest,
    absolute,
    check_apart,
    check_divisible,
    check_division,
    check_same,
    check_shared,
    contents_of,
    folder_name,
    job_of,
    share_job,
    until_of,
)
from forwarder.sources.imports.pacing import UNPACED, ImportPace, PacedSink, RateLine
from forwarder.sources.imports.persons import (
    PersonHistory,
    PersonIndex,
    PersonIndexBuilder,
    PersonPlacement,
    find_index,
)
from forwarder.sources.imports.preflight import PreflightTerms, run_preflight
from forwarder.sources.imports.preflight_report import PreflightReport
from forwarder.sources.imports.repeats import Repeats
from forwarder.sources.imports.report import ImportManifest, manifest_of, write_reports
from forwarder.sources.imports.sorting import EventSpool, least_room, sorted_blocks
from forwarder.sources.imports.source import (
    ImportLedger,
    ImportProgress,
    ImportSource,
    ReportProgress,
)
from forwarder.sources.imports.times import SECOND
from forwarder.storage.private import make_directories
from forwarder.telemetry.books import Books
from forwarder.wire.envelope import envelope_size

WINDOW: Final = 4
"""How many full batches the buffer holds."""
LEAST_WINDOW: Final = 16 << 20
"""Bytes that the buffer holds at least."""
GATHER_SECONDS: Final = 10.0
"""How long an event waits at least for others of its day, while there is more
to read and room for it.
"""
STOP_SECONDS: Final = 15.0
"""How long a run that is stopped waits for what is in flight."""
REPORT_SECONDS: Final = 0.5
MAX_WITNESS: Final = 10_000
"""Bytes of a witness, which is in each checkpoint."""
LETTERS_BYTES: Final = 1 << 40
"""The folder is the import's own, and a record that can't be kept would hold up all of it: the
disk is the limit.
"""
ACKNOWLEDGED: Final = (("Forwarder-Ack", "delivered"),)
"""With `--via`, the daemon answers once the service has the events."""
_OK = 200
_UNKNOWN = 401


class UpstreamRefuses(ForwarderError):
    """The service isn't there, or doesn't know the key."""

    code = "upstream_refuses"


class KeyUnverified(UpstreamRefuses):
    """It isn't known whether the service knows the key: it can't be reached,
    or answers something else.
    """


class ImportRun:
    """One run of an import, from its opening to its report."""

    def __init__(self, request: ImportRequest, clock: Clock) -> None:
        """Open the source, and lock the state folder. Takes as long as looking at all files' ends.

        Raises `ConfigurationError`, `CheckpointDamaged`, `OtherJob`, `Locked`, and `SourceChanged`
        if the source isn't that of the checkpoint, or that of the other shards.
        """
        check_addresses(request.paths)
        shard = request.shard
        if shard is not None:
            check_divisible(request.paths)
        self._request = request = replace(request, paths=tuple(map(absolute, request.paths)))
        self._clock = clock
        self._lane = Lane(request.own_key, historical=True)
        self._pipeline: ImportPipeline | None = None
        self._stopped = False
        self._doing = ""
        self._rules = _rules_of(request, clock)
        with ExitStack() as opened:
            self._source = opened.enter_context(
                open_source(
                    request.paths, request.reading, slice(None) if shard is None else shard.files
                )
            )
            self.folder = request.state or request.state_root / folder_name(request, self._source)
            """The import's state folder."""
            self.state = self.folder if shard is None else self.folder / shard.folder
            """This process's: the same, or in an import in shards one in it."""
            check_apart(self.state, request.paths)
            begun = check_division(self.folder, shard)
            # of `<state directory>/imports/<job>/<shard>` all but the first are ours; what
            # `--state` or `import.state` names is the user's
            if request.state:
                named = 0
            elif request.settings.import_.state:
                named = 1
            else:
                named = 2
            self._folder = StateFolder(self.state, own=named + (shard is not None))
            opened.callback(self._folder.close)
            self.saved = read_checkpoint(self.state)
            self._identify(begun)
            if begun is not None:
                check_shared(self.folder, begun, self.job)
            if self.saved is not None:
                check_same(self.state, self.saved, contents_of(self._source), self.job)
            self._opened = opened.pop_all()

    def _identify(self, begun: ImportJob | None) -> None:
        """Which job it is, given what an earlier run, or another shard, began with."""
        request = self._request
        begun = begun if self.saved is None else self.saved.job
        until = until_of(request.filters, begun, self._clock)
        self._filters = replace(request.filters, until=until, limit=request.own_limit)
        self.job = job_of(
            request, self._source, until, begun, rules=self._rules and self._rules.rules.digest
        )

    @property
    def has_files(self) -> bool:
        """Whether there is a file to read: of few files some shards get none."""
        return bool(self._source.origins)

    @property
    def is_complete(self) -> bool:
        """Whether an earlier run has brought all there is, and no dead
        letter is marked for a replay.
        """
        return (
            self.saved is not None
            and self.saved.complete
            and not ImportDeadLetters.marked_in(self.state)
        )

    @property
    def broken(self) -> Sequence[BrokenSource]:
        """Files that couldn't be read to their end, once it ran."""
        return () if self._pipeline is None else self._pipeline.ledger.broken

    def preflight(
        self, progress: Callable[[int, int], None]
    ) -> tuple[PreflightReport, tuple[BrokenSource, ...]]:
        """Look at all of the source; nothing is sent. Also the files that can't be read to their
        end.

        `progress` gets the records and bytes so far, now and then.
        """
        request = self._request
        settings = self._request.settings
        terms = PreflightTerms(
            now=int(self._clock.now()) * SECOND,
            max_event=settings.upstream.max_event,
            batch_events=self._batch_events(),
            batch_bytes=settings.batch.max_bytes,
            rate=request.own_rate or UNPACED,
            until=request.filters.until,
            person_properties=request.person_properties,
            persons_chosen=request.persons_chosen,
            sort=request.sort,
            zone_said=request.chosen.zone_said,
            unfit_accepted="unfit-files" in request.accepted,
        )
        report, broken = run_preflight(
            self._source,
            request.chosen,
            self._finish(request.person_properties),
            filters=self._filters,
            terms=terms,
            progress=progress,
            formats=FORMATS,
        )
        if request.person_properties == "newest" and report.persons.setting:
            index = self._persons_index("", progress)
            report.persons.index_persons = index.persons
            report.persons.index_bytes = index.size
        if request.own_key:
            report.earlier = earlier_imports(
                request.state_root, self.folder, self.job, contents_of(self._source)
            )
        return report, broken

    async def check_key(self, waits: Callable[[str, float], None] | None = None) -> None:
        """Ask whether the service knows the key: `/batch/` answers 200 to any (wire facts: What
        the service does not tell).

        An answer that a delivery would be retried after (429, 5xx, or none in time) is waited out
        as there, for as long as it takes; `waits` gets each and the seconds until the next attempt.
        Without it the service is asked once. Raises `UpstreamRefuses`, also for an inconclusive
        answer: events sent in vain can't be detected later.
        """
        sink = self._sink()
        url = self._request.address
        key = self._request.own_key
        retry = self._request.settings.delivery.retry
        backoff = Backoff(retry.initial, retry.max)
        attempt = 0
        try:
            while True:
                reply = await sink.decide(key)
                outcome = classify(reply, secret=key)
                if waits is None or not isinstance(outcome, Retry):
                    break
                if reply.status is None and not reply.is_late:
                    break  # nothing listens there: another address is needed, not another attempt
                attempt += 1
                seconds = max(outcome.not_before, backoff.equal_jitter(attempt))
                waits(outcome.why, seconds)
                await self._clock.sleep(seconds)
        finally:
            await sink.close()
        if reply.status is None:
            hint = "Check the address, proxy and certificates."
            raise KeyUnverified(f"{url} can't be reached: {mask_secrets(reply.error)}", hint=hint)
        if reply.status == _UNKNOWN:
            raise UpstreamRefuses(
                (
                    f"{url} doesn't know the project key {mask_key(key)}: it would accept the "
                    "events and drop them"
                ),
                hint=(
                    "Check the key in the project's settings, and that the address is of the "
                    "region that the project is in."
                ),
            )
        if reply.status != _OK:
            raise KeyUnverified(
                (
                    f"{url} was asked whether it knows the project key, and answered HTTP "
                    f"{reply.status}"
                ),
                hint="Check the address. `upstream.verify_keys: false` leaves the question out.",
            )

    async def run(self, report: ReportProgress) -> ImportManifest:
        """Bring what isn't there yet to the service; the manifest of where it stands then, which
        is in the state folder with the report.

        Raises `SourceChanged`, `OtherJob` if another shard began meanwhile with another job,
        `ConfigurationError` if the state can't be written. Cancelled, it saves what is settled.
        """
        if self._request.shard is not None:
            begun = share_job(self.folder, self.job)
            self._identify(begun)
            check_shared(self.folder, begun, self.job)
        sink = self._sink()
        replayed = () if self.saved is None else self.saved.totals.replayed
        dead_letters = ImportDeadLetters.open_in(self.state, self._clock, LETTERS_BYTES, replayed)
        dead_letters.start()
        try:
            index = None
            if self._request.person_properties == "newest" and not self.is_complete:
                saved = self.saved
                index = await asyncio.to_thread(
                    self._persons_index, saved.persons if saved else "", lambda *_: None
                )
            with Repeats(self.state) as repeats:
                self._pipeline = self._build(sink, dead_letters, repeats, index)
                if self._stopped:
                    self._pipeline.stop()
                await self._pipeline.run(report, lambda: self._doing)
        finally:
            await dead_letters.end()
            await sink.close()
            self.saved = read_checkpoint(self.state)
        if self.saved is None:
            raise RuntimeError("a run ended without a checkpoint")
        manifest = manifest_of(self.saved, self._clock.now())
        write_reports(manifest, self.state)
        return manifest

    def stop(self) -> None:
        """Let `run` end soon: what is in flight is settled, and where it stands is saved."""
        self._stopped = True
        if self._pipeline is not None:
            self._pipeline.stop()

    def close(self) -> None:
        """Let go of the state folder and the source. Sorted events that are settled are removed."""
        if self.saved is not None and self.saved.spool is not None and self.saved.spool.is_settled:
            EventSpool(self.state, self.job).remove()
        self._opened.close()

    def _persons_index(self, digest: str, progress: Callable[[int, int], None]) -> PersonIndex:
        """The index of persons, from the state folder or by a pass over the source. `digest`: that
        by which events were sent; empty: none was. `progress` gets the events and bytes so far.

        Raises `ConfigurationError` if it can't be written, or is another one than before.
        """
        contents = contents_of(self._source)
        index = find_index(self.state, self.job, contents, digest)
        if index is not None:
            return index
        request = self._request
        # Without rules nothing but its size depends on what an event says of its person.
        max_event = request.settings.upstream.max_event
        limits = max_event if self._rules else sys.maxsize
        with (
            PersonIndexBuilder(
                self.state,
                is_sorted=request.sort,
                max_event=max_event,
                refused_alone=request.chosen.name == "native",
            ) as builder,
            Repeats(self.state) as repeats,
        ):
            conversion = Conversion(
                request.chosen.make(self._filters.until),
                self._finish("history"),
                limits,
                self._filters,
                repeats,
                rules=self._rules,
            )
            count = size = 0
            for block in source_blocks(self._source, conversion, {}, None):
                if block.made is not None:
                    events = block.made.events
                    builder.add(events)
                    count += len(events)
                    size += sum(map(len, events.data))
                    progress(count, size)
            index = builder.finish(self.job, contents)
        if digest not in {"", index.digest}:
            raise ConfigurationError(
                f"{self.state}: the index of persons is lost, and the source gives another one",
                hint=(
                    "Bring persons.index and persons.json back from a backup of the folder. An "
                    "import that began with another version of forwarder resumes with that one."
                ),
            )
        return index

    def _build(
        self,
        sink: HttpSink,
        dead_letters: ImportDeadLetters,
        repeats: Repeats,
        index: PersonIndex | None,
    ) -> ImportPipeline:
        """The pipeline, which continues from the checkpoint."""
        request = self._request
        settings = self._request.settings
        clock = self._clock
        checkpoint = self.saved or ImportCheckpoint(self.job, clock.now(), clock.now(), [])
        checkpoint.contents = contents_of(self._source)
        checkpoint.exhausted = checkpoint.complete
        checkpoint.persons = checkpoint.persons or (index.digest if index else "")
        ledger = ImportLedger(checkpoint)
        policy = batch_policy(settings)
        age = max(policy.max_age, GATHER_SECONDS)
        policy = replace(
            policy,
            max_age=age,
            max_events=self._batch_events(),
            by_day=True,
            one_day=bool(request.via),
        )
        limits = ChunkLimits.of_batches(policy.max_bytes, policy.max_events)
        # a record that is repaired later says nothing newer than what was sent
        replayed = request.person_properties
        alone = Conversion(
            request.chosen.make(self._filters.until),
            self._finish(replayed if replayed == "none" else "oldest"),
            settings.upstream.max_event,
            replace(self._filters, limit=None),
            None,
            rules=self._rules,
        )
        target = hashlib.sha256(f"{request.address}\n{request.own_key}".encode()).hexdigest()[:16]
        # a shard has its part for itself, whatever machine it is on
        shares = request.rate and request.shard is None
        line = (
            _common_folder(request.state_root, self.state.parent, self.state) / f"rate-{target}"
            if shares
            else None
        )
        return ImportPipeline(
            self._blocks(checkpoint, repeats, limits, index),
            ledger,
            dead_letters,
            sink,
            clock,
            lane=self._lane,
            folder=self._folder,
            policy=policy,
            pace=ImportPace(
                request.own_rate or UNPACED, clock, line=RateLine(line), quiet=request.quiet_hours
            ),
            retry=RetryPolicy(settings.delivery.retry.initial, settings.delivery.retry.max),
            concurrency=settings.delivery.concurrency
            if isinstance(settings.delivery.concurrency, int)
            else None,
            keys=KeyCheck(sink.decide, clock) if settings.upstream.verify_keys else None,
            replays=DeadLetterReplays(
                dead_letters, ledger, alone, limits, settings.upstream.max_event, self._lane, clock
            ),
        )

    def _blocks(
        self,
        checkpoint: ImportCheckpoint,
        repeats: Repeats,
        limits: ChunkLimits,
        index: PersonIndex | None,
    ) -> Generator[ImportBlock]:
        if checkpoint.complete:
            # only dead letters are marked: the source isn't read again for them
            return (block for block in tuple[ImportBlock, ...]())
        history = PersonHistory() if self._request.person_properties == "history" else None
        conversion = self._conversion(repeats, index, None if self._request.sort else history)
        if not self._request.sort:
            return source_blocks(self._source, conversion, checkpoint.settled, limits)
        # The checkpoint is saved first: `--until` stands for the same time in all that is sorted.
        if self.saved is None:
            self._folder.save(checkpoint)
        # How much room a few selected events need isn't known.
        room = 0 if self._request.filters != EventFilters() else least_room(self._source)
        spool = EventSpool(self.state, self.job)
        return sorted_blocks(
            self._source,
            conversion,
            spool,
            checkpoint.settled,
            checkpoint.spool,
            limits,
            room=room,
            changed=history.sorted if history else iter,
            doing=partial(setattr, self, "_doing"),
        )

    def _conversion(
        self, repeats: Repeats, index: PersonIndex | None, persons: PersonStage | None
    ) -> Conversion:
        request = self._request
        max_event = request.settings.upstream.max_event
        # rules see what events say of their persons
        strip = index is not None and self._rules is not None
        finish = self._finish("history" if strip else request.person_properties)
        if index is not None:
            placement = PersonPlacement(self.state, index, finish, max_event, strip=strip)
            self._opened.callback(placement.close)
            persons = placement
        return Conversion(
            request.chosen.make(self._filters.until),
            finish,
            max_event,
            self._filters,
            repeats,
            rules=self._rules,
            persons=persons,
        )

    def _sink(self) -> HttpSink:
        """The way to the service, or with `via` to a daemon, uncompressed: it is
        near. Raises `ConfigurationError`.
        """
        upstream = self._request.settings.upstream
        via = self._request.via
        if not via:
            return open_sink(upstream, self._clock)
        return open_sink(
            replace(upstream, url=via, compression="none", proxy=None),
            self._clock,
            headers=ACKNOWLEDGED,
        )

    def _finish(self, persons: PersonProperties) -> FinishPolicy:
        return FinishPolicy(persons, self._request.geoip, self.job.id)

    def _batch_events(self) -> int:
        """How many events a batch has at most: a second's, for it is sent at
        once, whatever the rate.
        """
        rate = self._request.own_rate
        most = self._request.settings.batch.max_events
        return most if rate is None else min(most, max(1, int(rate)))


def _rules_of(request: ImportRequest, clock: Clock) -> ImportRules | None:
    """The configured rules; None if there are none, or a daemon applies its
    own. Raises `ConfigurationError`.
    """
    settings = request.settings
    compiled = None if request.via else ConfiguredRules(settings, clock).compiled
    return None if compiled is None else ImportRules(compiled, request.api_key)


def import_intake(
    buffer: MemoryBuffer,
    dead_letters: ReceiptDeadLetters,
    books: Books,
    delivery: Delivery,
    clock: Clock,
    *,
    lane: Lane,
) -> SourceIntake:
    """What stands between an import's source and its buffer, which its one lane has to itself. Its
    gate has neither rules nor routes: the source has applied the rules.
    """
    known = KnownKeys(source_keys=[lane.api_key])
    admission = Admission(
        buffer,
        dead_letters,
        books,
        LaneRegistry(1, buffer.holdings, known),
        UnsharedBuffer(buffer, (), known),
        clock=clock,
        on_accepted=delivery.wake,
        logs_rejected=False,
    )
    branch = Branch(admission, delivery, delivery.halts)
    return SourceIntake(Gate(admission, Conditions(clock)), [branch], source=SOURCE)


class ImportPipeline:
    """An import's pipeline at work. `run` once."""

    def __init__(
        self,
        blocks: Generator[ImportBlock],
        ledger: ImportLedger,
        dead_letters: ImportDeadLetters,
        sink: Sink,
        clock: Clock,
        *,
        lane: Lane,
        folder: StateFolder,
        policy: BatchPolicy,
        pace: ImportPace,
        retry: RetryPolicy,
        concurrency: int | None,
        keys: KeyCheck | None,
        replays: DeadLetterReplays,
    ) -> None:
        """`policy`: of batches of one day, without `gather_bytes`. `dead_letters`
        are open, and have started.
        """
        window = max(LEAST_WINDOW, WINDOW * policy.max_bytes)
        buffer = MemoryBuffer(window, any_if_empty=True, by_day=True)
        self._max_age = policy.max_age
        self._batcher = Batcher(buffer, replace(policy, gather_bytes=window * 3 // 5), pace)
        self._sink = PacedSink(WitnessSink(sink, ledger.checkpoint), pace)
        self._delivery = Delivery(
            batcher=self._batcher,
            buffer=buffer,
            sink=self._sink,
            dead_letters=dead_letters,
            books=(books := Books()),
            clock=clock,
            retry=retry,
            concurrency=concurrency,
            ordering_of=lambda _lane: Ordering.PER_DISTINCT_ID,
            keys=keys,
        )
        self.ledger = ledger
        self._source = ImportSource(
            blocks,
            ledger,
            import_intake(buffer, dead_letters, books, self._delivery, clock, lane=lane),
            clock,
            lane=lane,
            folder=folder,
            refusals=dead_letters.refusals,
            replay=replays.run,
            on_saved=replays.saved,
            flush=self._flush,
        )
        pace.on_failure = self._source.fail
        self._dead_letters = dead_letters
        self._pace = pace
        self._lane = lane
        self._clock = clock
        self._stopped = False

    def _flush(self, now: bool) -> None:  # noqa: FBT001 - a switch
        self._batcher.policy = replace(self._batcher.policy, max_age=0.0 if now else self._max_age)
        self._delivery.wake()

    def stop(self) -> None:
        """Read nothing more, and let `run` end once what is in flight is settled, or soon."""
        self._stopped = True
        self._source.stop()

    async def run(self, report: ReportProgress, doing: Callable[[], str]) -> None:
        """Bring all of the source to the service, or what is of it until `stop`. Raises what
        reading raises; then, too, all is saved.

        `doing`: what is done before the first event can be sent; empty if nothing is. Cancelled,
        it drops what is in flight; what was settled is saved.
        """
        self._delivery.start()
        helpers = [
            asyncio.create_task(self._report(report, doing)),
            asyncio.create_task(self._find_who_is_at_fault()),
        ]
        for helper in helpers:
            helper.add_done_callback(self._helper_ended)
        try:
            await self._source.run()
            if self._stopped:
                await self._delivery.finish_in_flight(STOP_SECONDS)
        finally:
            for helper in helpers:
                helper.cancel()
            try:
                await asyncio.gather(*helpers, return_exceptions=True)
            finally:
                await self._delivery.close()  # also if it is cancelled only now
            await self._save()
            report(self._progress(doing()))

    def _helper_ended(self, helper: asyncio.Task[None]) -> None:
        """A run whose progress can't be reported ends."""
        if not helper.cancelled() and isinstance(error := helper.exception(), Exception):
            self._source.fail(error)

    async def _save(self) -> None:
        """Save where it stands, if what was dead-lettered can be made durable soon. Raises
        `ConfigurationError` if it can't be saved.
        """
        if not await self._dead_letters.durable(STOP_SECONDS):
            raise ConfigurationError(
                (
                    f"{self._dead_letters.folder}: "
                    f"{self._dead_letters.waiting or 'the dead letters are not written'}"
                ),
                hint=(
                    "Make room there, and run the same command again: it resumes from the "
                    "last checkpoint, and nothing is lost."
                ),
            )
        self._source.save()

    async def _report(self, report: ReportProgress, doing: Callable[[], str]) -> None:
        while True:
            report(self._progress(doing()))
            await self._clock.sleep(REPORT_SECONDS)

    def _progress(self, doing: str) -> ImportProgress:
        """How far it is, and why nothing goes, if nothing does; `import status`
        gets that by the checkpoint.
        """
        pause = None
        if waiting := self._dead_letters.waiting or doing or self._halt():
            lasting = waiting
        elif (pause := self._pace.pause()) is not None:
            waiting = pause.words(self._clock.now())
            lasting = pause.lasting()
        else:
            waiting = lasting = self._failure()
        self._source.note(lasting, save=pause is not None)
        return self._source.progress(waiting, "" if waiting else self._pace.slowed())

    def _halt(self) -> str:
        """Why the service takes nothing of this project, if so."""
        for halt in self._delivery.statistics().halts:
            return f"the service refuses: {halt.why}; {halt.hint}"
        return ""

    def _failure(self) -> str:
        """What went wrong with the last requests, if something did."""
        statistics = self._delivery.statistics()
        if statistics.upstream.failing:
            return f"the service doesn't accept events now: {statistics.upstream.why}"
        return next(
            (f"the last request is sent again: {retry.why}" for retry in statistics.retries), ""
        )

    async def _find_who_is_at_fault(self) -> None:
        """While everything is answered 400 or 413, send an event again that was accepted before,
        which changes nothing.

        If it is accepted, the others are refused for themselves. At the end of a source there may
        be no other event left that could show it.
        """
        asked = -1
        while True:
            await self._clock.sleep(REPORT_SECONDS)
            halted = self._delivery.halts.get(self._lane)
            witness = self.ledger.checkpoint.witness
            if halted is None or halted.reason is not HaltReason.REFUSES_ALL or not witness:
                asked = -1
            elif halted.probes > asked:
                asked = halted.probes
                chunk = Chunk(self._lane, witness.encode(), 1, NO_IDS, self._clock.now(), SOURCE)
                reply = await self._sink.send(
                    Batch(self._lane, (chunk,), envelope_size(self._lane, (chunk,)))
                )
                if isinstance(classify(reply), Delivered):
                    self._delivery.confirm_acceptance(self._lane)


class WitnessSink:
    """A sink that keeps an event that the service has accepted (`ImportCheckpoint.witness`), also
    before its block is settled.
    """

    def __init__(self, sink: Sink, checkpoint: ImportCheckpoint) -> None:
        self._sink = sink
        self._checkpoint = checkpoint

    async def send(self, batch: Batch) -> Reply:
        reply = await self._sink.send(batch)
        if isinstance(classify(reply), Delivered):
            start = batch.chunks[0].data[:MAX_WITNESS].decode(errors="ignore")
            with suppress(ValueError):  # its first event is longer
                self._checkpoint.witness = start[: _end_of_first(start)[1]]
        return reply


_end_of_first: Final = json.JSONDecoder().raw_decode
"""The first value of a text, and where it ends."""


def _common_folder(*candidates: Path) -> Path:
    """Where all processes with a rate in common meet: the first of these that can be written in;
    the state folder can.
    """
    for folder in candidates[:-1]:
        with suppress(OSError):
            make_directories(folder)
        if os.access(folder, os.W_OK):
            return folder
    return candidates[-1]
