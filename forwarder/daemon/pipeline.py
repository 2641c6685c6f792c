"""The wiring of the whole pipeline, in one place; no other module knows the order of its parts.

source → intake → buffer → batcher → delivery → upstream. `build` makes the parts, `start` starts them from the end, and `close` stops them
from the beginning, so that every event that is accepted has somewhere to go. What few configurations use (Kafka, logs, a disk buffer, files
of dead letters) is imported only where it is configured.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import structlog

from forwarder.admin.event_lookup import Sighting, WantedUuid, find_in_memory
from forwarder.config.settings import Settings
from forwarder.config.source_settings import TlsSettings
from forwarder.core.clock import Clock
from forwarder.core.errors import ConfigurationError
from forwarder.core.event import Chunk
from forwarder.core.lanes import LaneQueue
from forwarder.core.path import ForwarderPath
from forwarder.core.ports import DeadLetter, DropReason, Fate, Reason, letters_of
from forwarder.core.shares import Headroom
from forwarder.core.taps import TapOutcome, TapPoint
from forwarder.daemon.decoder import DecoderProcess
from forwarder.daemon.key_memory import KeyMemory
from forwarder.daemon.observation import Observer, PipelineParts
from forwarder.daemon.policies import (
    allowed_keys,
    batch_policy,
    http_policy,
    intake_policy,
    keys_needing_restart,
    lane_ordering,
    open_sink,
    pass_through_policy,
    retry_policy,
)
from forwarder.daemon.roles import ALONE, Role
from forwarder.daemon.rules import ConfiguredRules
from forwarder.daemon.stores import Stores, open_stores
from forwarder.delivery.batching import Batcher
from forwarder.delivery.delivery import Delivery
from forwarder.delivery.halting import Halts
from forwarder.delivery.keys import KeyCheck, KeyStatus
from forwarder.intake.admission import Admission
from forwarder.intake.intake import Intake
from forwarder.intake.lanes import KnownKeys, LaneRegistry
from forwarder.intake.large import DECODE_SECONDS
from forwarder.intake.quotas import Quotas
from forwarder.intake.records import SourceIntake
from forwarder.sources.http.listener import HttpListener
from forwarder.sources.http.passthrough import PassThrough
from forwarder.sources.http.sockets import adopt
from forwarder.sources.http.tls import load_tls, reload_tls
from forwarder.telemetry.books import Books
from forwarder.telemetry.snapshot import Snapshot, State
from forwarder.telemetry.taps import TapBatch, TapRequest, Taps

if TYPE_CHECKING:
    from forwarder.daemon.kafka import KafkaSources
    from forwarder.daemon.logs import LogSources
    from forwarder.intake.otlp import OtlpMapping

GRACE: Final = 1.5
"""Seconds after which a stop closes connections whose senders bring nothing: those that send learn of the end by an answer."""

REQUEST_LIMIT: Final = 5.0
"""Seconds that a stop waits for requests in progress, beyond that."""

DELIVER_LIMIT: Final = 2.0
"""Seconds that a stop continues to deliver from a disk buffer while the upstream accepts; the files are there for the next start."""

IN_FLIGHT_LIMIT: Final = 3.0
"""Seconds that it then waits for upstream requests in flight: a request that is cut off would be delivered twice."""

_log = structlog.get_logger()


def build(settings: Settings, clock: Clock, role: Role = ALONE, *, window: int | None = None) -> Pipeline:
    """The pipeline that the settings ask for, not yet started. `window`: bytes of memory for events of a disk buffer; None: the default.

    Raises `ConfigurationError` for files that can't be used.
    """
    path = ForwarderPath(clock, role.instance)
    ordering_of = lane_ordering(settings)
    sink = open_sink(settings.upstream, clock, path)
    keys = KeyCheck(sink.decide, clock) if settings.upstream.verify_keys else None
    known = _known_keys(settings, keys)
    halts = Halts()

    books = Books()
    stores = open_stores(settings, role, clock, books, known, ordering_of=ordering_of, window=window)
    buffer, dead_letters = stores.buffer, stores.dead_letters
    key_memory = KeyMemory(known, stores.state, clock) if keys is not None and stores.state is not None else None

    taps = TapPoint()
    batcher = Batcher(buffer, batch_policy(settings))
    delivery = Delivery(
        batcher=batcher,
        buffer=buffer,
        sink=sink,
        dead_letters=dead_letters,
        books=books,
        clock=clock,
        retry=retry_policy(settings),
        concurrency=settings.delivery.concurrency if isinstance(settings.delivery.concurrency, int) else None,
        ordering_of=ordering_of,
        halts=halts,
        keys=keys,
        taps=taps,
    )

    http = http_policy(settings, role)
    headroom = Headroom(http.max_receiving, stores.memory)
    decoder = DecoderProcess(settings.sources.http.max_body, clock, DECODE_SECONDS)
    ask = keys.ask if keys else lambda _key: None
    lanes = LaneRegistry(
        settings.sources.http.max_lanes, buffer.holdings, known, api_keys=allowed_keys(settings.sources.http.api_keys, settings), ask=ask
    )
    admission = Admission(
        buffer,
        dead_letters,
        books,
        lanes,
        Quotas(buffer, halts, known, ask),
        clock=clock,
        on_accepted=delivery.wake,
        when_full=settings.buffer.when_full,
        ack_timeout=settings.buffer.ack_timeout,
        taps=taps,
    )
    policy = intake_policy(settings)
    otlp = _otlp_mapping(settings)
    rules = ConfiguredRules(settings, clock)
    intake = Intake(
        admission,
        policy=policy,
        ordering_of=ordering_of,
        headroom=headroom,
        decoder=decoder,
        path=path,
        otlp=otlp,
        event_rules=rules.compiled,
    )
    rules.on_change = lambda: setattr(intake, "event_rules", rules.compiled)
    replayer = stores.open_replayer(intake, clock)

    passthrough = PassThrough(pass_through_policy(settings, sink), clock) if settings.passthrough.enabled else None
    listener = HttpListener(http, intake, clock, headroom, passthrough, path=path)
    kafka = _kafka_sources(settings, role, SourceIntake(admission, delivery, halts, intake, source="kafka"), clock)
    logs = _log_sources(settings, role, SourceIntake(admission, delivery, halts, intake, source="logs"), clock, stores)

    parts = PipelineParts(
        stores=stores,
        books=books,
        sink=sink,
        known=known,
        key_memory=key_memory,
        batcher=batcher,
        delivery=delivery,
        decoder=decoder,
        lanes=lanes,
        intake=intake,
        replayer=replayer,
        passthrough=passthrough,
        listener=listener,
        kafka=kafka,
        logs=logs,
        rules=rules,
    )
    return Pipeline(settings, clock, role, parts, taps)


def _known_keys(settings: Settings, keys: KeyCheck | None) -> KnownKeys:
    """The configured project keys, and those that the key check verifies from now on."""
    sources = settings.sources
    keyed = [*[each.api_key for each in sources.kafka], *[each.api_key for each in sources.logs], sources.http.otlp.api_key]
    source_keys = [key for key in keyed if key]
    known = KnownKeys(settings.sources.http.api_keys, source_keys, verifiable=keys is not None)
    if keys is not None:
        keys.on_answer(lambda key, status: known.verify(key) if status is KeyStatus.VERIFIED else None)
    return known


def _otlp_mapping(settings: Settings) -> OtlpMapping | None:
    """How log records over HTTP become events; None if they aren't accepted. Raises `ConfigurationError` for an invalid mapping."""
    otlp = settings.sources.http.otlp
    if not otlp.mapping.given or otlp.api_key is None:
        return None
    from forwarder.daemon.mappings import rules_of, without_zone_alone  # noqa: PLC0415 - most have no use for mappings
    from forwarder.intake.otlp import KEY, OtlpMapping, OtlpSource  # noqa: PLC0415

    return OtlpMapping(OtlpSource(rules_of(without_zone_alone(otlp.mapping), f"{KEY}.mapping"), otlp.api_key))


def _kafka_sources(settings: Settings, role: Role, intake: SourceIntake, clock: Clock) -> KafkaSources | None:
    """The clusters to read; None if there are none. Raises `ConfigurationError` for a mapping that can't be used."""
    if not settings.sources.kafka or not role.listens:
        return None
    from forwarder.daemon.kafka import KafkaSources  # noqa: PLC0415 - the client is large, and most have no use for it

    return KafkaSources.of(settings, role, intake, clock)


def _log_sources(settings: Settings, role: Role, intake: SourceIntake, clock: Clock, stores: Stores) -> LogSources | None:
    """The logs to read; None if there are none for this worker. Raises `ConfigurationError` for what can't be used."""
    if not settings.sources.logs or not role.listens or role.number != 0:
        return None
    from forwarder.daemon.logs import LogSources  # noqa: PLC0415 - most have no use for it

    return LogSources.of(settings, intake, clock, stores.state)


@dataclass(frozen=True, slots=True)
class KeptDescriptors:
    """Descriptors that outlive a pipeline."""

    sockets: tuple[int, ...]
    locks: tuple[tuple[str, int], ...]
    """Directories, each with its lock."""


class Pipeline:
    """A pipeline's life: start, accept and deliver, shut down, close."""

    def __init__(self, settings: Settings, clock: Clock, role: Role, parts: PipelineParts, taps: TapPoint) -> None:
        self._settings = settings
        """What it was built with: keys that can't be reloaded keep these values."""
        self._clock = clock
        self._role = role
        self._parts = parts
        self._observer = Observer(settings, clock, parts)
        self._point = taps
        self._taps = Taps(taps, clock)
        self._tls: ssl.SSLContext | None = None
        self.state = State.STARTING

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses that it listens on."""
        return tuple(self._parts.listener.addresses)

    async def start(self) -> None:
        """Accept and deliver. Raises `ConfigurationError` or `OSError` when it can't listen; cancelled or failed, `close` cleans up."""
        parts, tls = self._parts, self._settings.sources.http.tls
        if tls.cert_file and tls.key_file:
            self._tls = load_tls(tls.cert_file, tls.key_file)
        parts.stores.committer.start()
        if parts.key_memory is not None:
            parts.key_memory.start()
        parts.delivery.start()
        if parts.replayer is not None:
            parts.replayer.start()
        parts.rules.start()
        if self._role.listens:
            await self._listen()
        if parts.kafka is not None:
            parts.kafka.start()
        if parts.logs is not None:
            parts.logs.start()
        self.state = State.RUNNING

    async def _listen(self) -> None:
        inherited = [adopt(descriptor) for descriptor in self._role.descriptors]
        listen = self._settings.sources.http.listen
        await self._parts.listener.start(listen, self._tls, inherited=inherited, removes_file=self._role.removes_socket)

    def keep_descriptors(self) -> KeptDescriptors:
        """Have the listening sockets and the locks outlive it, for the next program of this process."""
        locks = tuple((str(lock.path), lock.duplicate()) for lock in self._parts.stores.locks)
        return KeptDescriptors(self._parts.listener.duplicate_sockets(), locks)

    def stop_accepting(self) -> None:
        """Reject new events from now on."""
        self.state = State.DRAINING
        self._parts.intake.draining = True
        self._parts.listener.draining = True
        self._stop_reading()

    def on_input_end(self, callback: Callable[[], None]) -> None:
        """Have `callback` called when standard input, if that is read, has ended and all of it is settled."""
        if self._parts.logs is not None:
            self._parts.logs.on_input_end = callback

    def _stop_reading(self) -> None:
        """Have the sources with positions read nothing more."""
        for source in (self._parts.kafka, self._parts.logs):
            if source is not None:
                source.stop_reading()

    async def shut_down(self, seconds: float) -> None:
        """Let senders finish, stop listening, and deliver: for at most `seconds` from memory; from disk only what is quick to deliver.

        Requests are accepted until the last moment before the end, each answer the last of its connection. Cancelled, it leaves the
        pipeline to `close`.
        """
        parts, durable = self._parts, self._parts.stores.disk_buffer is not None
        end = self._clock.monotonic() + seconds
        self._stop_reading()
        limit = min(REQUEST_LIMIT, seconds)
        released = parts.listener.end_connections(min(GRACE, seconds), limit)
        if durable:  # the files hand over to the next start what isn't delivered
            await asyncio.gather(released, self._deliver_briefly(seconds))
        else:
            await released
        await parts.listener.stop_listening()
        if durable and parts.intake.statistics().awaiting_delivery:
            parts.delivery.resume()
        await parts.listener.finish_requests(limit)
        self.stop_accepting()
        if not durable:
            await self.drain(max(0.0, end - self._clock.monotonic()))

    async def _deliver_briefly(self, seconds: float) -> None:
        """Deliver the events of a disk buffer that are in memory, as long as the upstream accepts; a backlog waits for the next start."""
        delivery, buffer = self._parts.delivery, self._parts.stores.disk_buffer
        if buffer is not None and not buffer.has_backlog:
            await delivery.drain_while_it_works(min(DELIVER_LIMIT, seconds))
        await delivery.finish_in_flight(min(IN_FLIGHT_LIMIT, seconds))

    async def drain(self, seconds: float) -> bool:
        """Stop listening, deliver what is buffered, and let calls that are passed through finish, for at most `seconds`.

        Returns whether everything buffered was delivered.
        """
        await self._parts.listener.stop_listening()
        end = self._clock.monotonic() + seconds
        await self._parts.intake.drain(seconds)
        drained = await self._parts.delivery.drain(max(0.0, end - self._clock.monotonic()))
        if self._parts.passthrough is not None:
            await self._parts.passthrough.until_idle(end - self._clock.monotonic())
        return drained

    async def close(self) -> list[DeadLetter]:
        """Stop everything, from the beginning of the pipeline to its end; the undelivered events, which have become dead letters."""
        parts = self._parts
        self.stop_accepting()
        if parts.replayer is not None:
            parts.replayer.stop()
        await parts.delivery.close()
        await parts.intake.close()
        await parts.decoder.close()
        parts.intake.end_waiting()
        await parts.stores.committer.settle()  # requests that wait for the disk get an answer
        await parts.listener.close(0)
        if parts.passthrough is not None:
            await parts.passthrough.close()
        if parts.kafka is not None:
            await parts.kafka.close()
        if parts.logs is not None:
            await parts.logs.close()
        await parts.rules.close()
        await parts.sink.close()
        if parts.key_memory is not None:
            await parts.key_memory.close()
        left = self._settle_the_rest()
        await parts.stores.close()
        return left

    def _settle_the_rest(self) -> list[DeadLetter]:
        """Settle events that weren't delivered: records are read again; other events, if they are in memory, become dead letters."""
        stores = self._parts.stores
        left = self._parts.delivery.undelivered()
        if stores.disk_buffer is None:
            left += [chunk for lane in stores.buffer.waiting_lanes() for chunk in _emptied(stores.buffer.queue(lane))]
        returned = {chunk: None for chunk in left if chunk.ack is not None and not chunk.ack.comes_again}
        for chunk in returned:
            self._parts.books.drop(chunk.lane, DropReason.RETURNED_TO_BROKER, chunk.count)
            if self._point.tap is not None:
                self._point.tap.chunks(TapOutcome.DROPPED, (chunk,), DropReason.RETURNED_TO_BROKER)
            stores.buffer.settle([chunk], DropReason.RETURNED_TO_BROKER)
        if stores.disk_buffer is not None:
            return []
        return [letter for chunk in left if chunk not in returned for letter in self._bury(chunk)]

    def _bury(self, chunk: Chunk) -> list[DeadLetter]:
        reason, why = Reason.UNDELIVERED_AT_EXIT, "forwarder ended before the upstream accepted it"
        letters = letters_of(chunk, reason, why, chunk.received_at)
        self._parts.stores.dead_letters.bury_at_exit(letters)
        self._parts.books.bury(chunk.lane, reason, len(letters))
        if self._point.tap is not None:
            self._point.tap.letters(TapOutcome.DEAD_LETTERED, letters)
        self._parts.stores.buffer.settle([chunk], Fate.BURIED)
        return letters

    def snapshot(self) -> Snapshot:
        """The state now."""
        return self._observer.snapshot(self.state)

    def explain(self, wanted: WantedUuid) -> list[Sighting]:
        """Where an event is, as far as it is in memory."""
        stores = self._parts.stores
        return find_in_memory(wanted, stores.buffer, self._parts.delivery.undelivered(), stores.letters_in_memory)

    def tap(self, request: TapRequest) -> TapBatch:
        """What a tap has collected (`telemetry.taps`)."""
        return self._taps.poll(request)

    def reload(self, settings: Settings) -> list[str]:
        """Use other settings from now on, as far as that is possible live; returns the keys that need a restart, each time until there was
        one."""
        parts, http = self._parts, settings.sources.http
        if self._tls and http.tls == self._settings.sources.http.tls:
            _reload_tls(self._tls, http.tls)
        parts.batcher.policy = batch_policy(replace(settings, upstream=self._settings.upstream))
        parts.lanes.configure(http.max_lanes, allowed_keys(http.api_keys, self._settings))
        parts.known.configure(http.api_keys)
        parts.rules.reload(settings.rules)
        return keys_needing_restart(self._settings, settings)


def _reload_tls(context: ssl.SSLContext, tls: TlsSettings) -> None:
    """Read the certificate again; if that fails the old one stays."""
    if tls.cert_file and tls.key_file:
        try:
            reload_tls(context, tls.cert_file, tls.key_file)
        except ConfigurationError as error:
            _log.error("the certificate can't be read again; the old one stays", why=error.message, hint=error.hint)


def _emptied(queue: LaneQueue) -> Iterator[Chunk]:
    while queue:
        yield queue.popleft()
