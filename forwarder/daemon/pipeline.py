"""The wiring of the whole pipeline, in one place; no other module knows the order of its parts,
but for an import's, whose parts are created in other ways (`imports.py`;
docs/decisions/0044-sources-with-positions-share-one-hand-over.md).

source → intake → buffer → batcher → delivery → upstream. `build` makes the parts, `start` starts
them from the end, so that every event that is accepted has somewhere to go, and `close` says in
which order they stop. What few configurations use (Kafka, logs, a disk buffer, files of dead
letters) is imported only where it is configured.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import structlog
from structlog.contextvars import bound_contextvars

from forwarder.admin.event_lookup import Sighting, WantedUuid, find_in_memory
from forwarder.config.settings import DestinationSettings, Settings
from forwarder.config.source_settings import TlsSettings
from forwarder.core.clock import Clock
from forwarder.core.connection_loads import WorkerLoad
from forwarder.core.errors import ConfigurationError, ForwarderError
from forwarder.core.path import ForwarderPath
from forwarder.core.ports import DeadLetter
from forwarder.core.shares import Headroom, HeldTogether
from forwarder.core.taps import TapPoint
from forwarder.daemon.configured_rules import ConfiguredRules
from forwarder.daemon.decoder import DecoderProcess
from forwarder.daemon.destinations import EventDestination, own_keys
from forwarder.daemon.key_memory import KeyMemory
from forwarder.daemon.memory import MemorySource, find_memory
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
    reading_rules,
    retry_policy,
)
from forwarder.daemon.pressure import MemoryWatch
from forwarder.daemon.roles import ALONE, Role
from forwarder.daemon.stores import InheritedLocks, Stores, name_directories, open_stores
from forwarder.delivery.batching import Batcher
from forwarder.delivery.delivery import Delivery, EventDelivery
from forwarder.delivery.halting import Halts
from forwarder.delivery.keys import KeyCheck, KeyStatus
from forwarder.intake.admission import Admission, Admitter, Gate
from forwarder.intake.conditions import Conditions
from forwarder.intake.fan_out import Branch, FanOut
from forwarder.intake.intake import Intake
from forwarder.intake.lane_registry import KnownKeys, LaneRegistry, Quotas
from forwarder.intake.large import DECODE_SECONDS
from forwarder.intake.source_intake import SourceIntake
from forwarder.sources.http.listener import HttpListener
from forwarder.sources.http.passthrough import PassThrough
from forwarder.sources.http.sockets import adopt
from forwarder.sources.http.tls import load_tls, reload_tls
from forwarder.telemetry.books import Books
from forwarder.telemetry.labels import LaneNames
from forwarder.telemetry.snapshot import Snapshot, State
from forwarder.telemetry.taps import TapBatch, TapRequest, Taps

if TYPE_CHECKING:
    from forwarder.daemon.kafka import KafkaSources
    from forwarder.daemon.logs import LogSources
    from forwarder.intake.otlp import OtlpMapping

GRACE: Final = 1.5
"""Seconds after which a stop closes connections whose senders bring nothing: those that send learn
of the end by an answer.
"""

REQUEST_LIMIT: Final = 5.0
"""Seconds that a stop waits for requests in progress, beyond that."""

DELIVER_LIMIT: Final = 2.0
"""Seconds that a stop continues to deliver from a disk buffer while the upstream accepts; the
files are there for the next start.
"""

IN_FLIGHT_LIMIT: Final = 3.0
"""Seconds that it then waits for upstream requests in flight: a request that is cut off would be
delivered twice.
"""

_log = structlog.get_logger()


def build(
    settings: Settings,
    clock: Clock,
    role: Role = ALONE,
    *,
    window: int | None = None,
    memory: MemorySource | None = None,
) -> Pipeline:
    """The pipeline that the settings ask for, not yet started. `window`: bytes of memory for
    events of a disk buffer; None: the default. `memory`: what memory is measured by; None: this
    system.

    Raises `ConfigurationError` for files that can't be used.
    """
    path = ForwarderPath(clock, role.instance, settings.other_keys)
    destinations = _destinations(settings, role, clock, path=path, window=window)
    first = destinations[0]
    http = http_policy(settings, role)
    held = [destination.stores.memory for destination in destinations]
    buffers = HeldTogether(held) if held[1:] else held[0]
    headroom = Headroom(http.max_receiving, buffers)
    decoder = DecoderProcess(settings.sources.http.max_body, clock, DECODE_SECONDS)
    branches = [destination.branch for destination in destinations]
    admitter: Admitter = first.admission
    if destinations[1:] or first.branch.api_keys:
        from forwarder.rules.routing import EventRoutes  # noqa: PLC0415 - most have one destination

        api_keys = allowed_keys(settings.sources.http.api_keys, settings)
        front = LaneRegistry(settings.sources.http.max_lanes, {}, first.known, api_keys=api_keys)
        routes = EventRoutes(settings.routes, settings.destinations)
        admitter = FanOut(branches, routes, front)
    rules = ConfiguredRules(settings, clock)
    conditions = Conditions(
        clock,
        reading_rules(settings, admitter.quotas.max_events),
        rules=rules.compiled,
        decoder=decoder,
        headroom=headroom,
    )
    gate = Gate(admitter, conditions)
    policy = intake_policy(settings)
    intake = Intake(gate, policy, headroom=headroom, path=path, otlp=_otlp_mapping(settings))
    # a dead letter goes back to the destination that it is of, whatever the routes say
    replayers = [
        destination.stores.open_replayer(
            Intake(Gate(destination.admission, conditions), policy, headroom=headroom, path=path),
            clock,
            destination.branch.api_keys,
        )
        for destination in destinations
    ]

    def use_rules() -> None:
        conditions.rules = rules.compiled

    rules.on_change = use_rules

    passthrough = _pass_through(settings, destinations, clock)
    load = None if role.loads is None else WorkerLoad(role.loads, role.workers, role.number)
    listener = HttpListener(http, intake, clock, headroom, passthrough, path=path, load=load)
    kafka = _kafka_sources(settings, role, SourceIntake(gate, branches, source="kafka"), clock)
    logs = _log_sources(
        settings,
        role,
        SourceIntake(gate, branches, source="logs"),
        clock,
        first.stores,
    )

    def reject_for_memory(short: bool) -> None:  # noqa: FBT001 - a callback
        listener.memory_short = conditions.memory_short = short

    source = memory or find_memory(settings, role, lambda: decoder.pid)
    # a few events that can't be delivered, of a halted lane say, must not reject all others
    few = 0 if source is None else source.limit // 100
    watch = MemoryWatch(
        source,
        clock,
        is_empty=lambda: buffers.used <= few,
        on_change=reject_for_memory,
    )
    if watch.limited:
        headroom.on_received = watch.look

    parts = PipelineParts(
        destinations=destinations,
        decoder=decoder,
        intake=intake,
        conditions=conditions,
        replayers=[replayer for replayer in replayers if replayer is not None],
        passthrough=passthrough,
        listener=listener,
        sources=[connector for connector in (kafka, logs) if connector is not None],
        kafka=kafka,
        logs=logs,
        rules=rules,
        memory=watch,
    )
    return Pipeline(settings, clock, role, parts)


def _pass_through(
    settings: Settings, destinations: Sequence[EventDestination], clock: Clock
) -> PassThrough | None:
    """What passes calls to the destination that the settings name, else to the first service; None
    if there is none, or it is off.
    """
    if not settings.passthrough.enabled:
        return None
    named = sorted(
        destinations, key=lambda destination: destination.name != settings.passthrough.destination
    )
    for destination in named:
        if destination.sink is not None:
            return PassThrough(pass_through_policy(destination.settings, destination.sink), clock)
    return None


def _destinations(
    settings: Settings,
    role: Role,
    clock: Clock,
    *,
    path: ForwarderPath,
    window: int | None,
) -> Sequence[EventDestination]:
    """All destinations, the first of them the default. Raises
    `ConfigurationError`; then none is open.
    """
    built: list[EventDestination] = []
    with InheritedLocks(role.locks) as inherited:
        if name := settings.destinations[0]:
            name_directories(settings, role, name, inherited)
        try:
            for name in settings.destinations:
                own = settings.of_destination(name)
                built.append(
                    _destination(own, role, clock, path=path, inherited=inherited, window=window)
                )
        except BaseException:
            for lock in [lock for destination in built for lock in destination.stores.locks]:
                lock.release()
            raise
    return built


def _destination(
    settings: Settings,
    role: Role,
    clock: Clock,
    *,
    path: ForwarderPath,
    inherited: InheritedLocks,
    window: int | None,
) -> EventDestination:
    """The parts of the destination that is the `upstream` of these settings, not yet started: what
    it has to itself, so that one that is down or halted affects no other.

    Raises `ConfigurationError` for files that can't be used; then nothing of it is open.
    """
    upstream = settings.destination
    http = settings.sources.http
    ordering_of = lane_ordering(settings)
    sink = None if upstream.archive.url else open_sink(upstream, clock, path)
    keys = KeyCheck(sink.decide, clock) if sink is not None and upstream.verify_keys else None
    ask: Callable[[str], object] = keys.ask if keys else lambda _key: None
    known = _known_keys(settings, keys)
    halts = Halts()
    books = Books()
    stores = open_stores(
        settings,
        role,
        clock,
        books,
        known,
        ordering_of=ordering_of,
        destination=upstream.name,
        inherited=inherited,
        window=window,
    )
    key_memory = (
        KeyMemory(known, stores.state, clock, upstream.name)
        if keys is not None and stores.state is not None
        else None
    )
    batcher = Batcher(stores.buffer, batch_policy(settings))
    taps = TapPoint()
    delivery: EventDelivery
    if sink is None:
        delivery = _archiver(upstream, stores, books, clock)
    else:
        delivery = Delivery(
            batcher=batcher,
            buffer=stores.buffer,
            sink=sink,
            dead_letters=stores.dead_letters,
            books=books,
            clock=clock,
            retry=retry_policy(settings),
            concurrency=settings.delivery.concurrency
            if isinstance(settings.delivery.concurrency, int)
            else None,
            ordering_of=ordering_of,
            halts=halts,
            keys=keys,
            taps=taps,
        )
    admission = Admission(
        stores.buffer,
        stores.dead_letters,
        books,
        LaneRegistry(
            http.max_lanes,
            stores.buffer.holdings,
            known,
            api_keys=own_keys(allowed_keys(http.api_keys, settings), settings),
            ask=ask,
        ),
        Quotas(stores.buffer, halts, known, ask),
        clock=clock,
        on_accepted=delivery.wake,
        when_full=settings.buffer.when_full,
        ack_timeout=settings.buffer.ack_timeout,
        taps=taps,
    )
    return EventDestination(
        settings=settings,
        sink=sink,
        known=known,
        key_memory=key_memory,
        books=books,
        stores=stores,
        batcher=batcher,
        delivery=delivery,
        admission=admission,
        taps=taps,
        branch=Branch(admission, delivery, halts, upstream.required, upstream.api_keys),
    )


def _archiver(
    upstream: DestinationSettings, stores: Stores, books: Books, clock: Clock
) -> EventDelivery:
    """What delivers to an archive. Raises `ConfigurationError` where it can't be made."""
    from forwarder.archive.archiver import ArchivePolicy, Archiver  # noqa: PLC0415 - few have one
    from forwarder.archive.folders import archive_identity, open_folder  # noqa: PLC0415
    from forwarder.archive.spool import Partition  # noqa: PLC0415

    if stores.disk_buffer is None:
        raise ConfigurationError(
            f"upstreams.{upstream.name}.archive needs a disk buffer", hint="Set buffer.kind: disk."
        )
    archive = upstream.archive
    directory = stores.locks[0].path
    try:
        identity = archive_identity(directory)
        return Archiver(
            policy=ArchivePolicy(
                Partition(archive.partition), archive.max_age, directory, identity
            ),
            buffer=stores.disk_buffer,
            folder=lambda thread: open_folder(archive.url, archive.store, identity, thread),
            books=books,
            clock=clock,
        )
    except ForwarderError:
        for lock in stores.locks:
            lock.release()
        raise


def _known_keys(settings: Settings, keys: KeyCheck | None) -> KnownKeys:
    """The configured project keys, and those that the key check verifies from now on."""
    sources = settings.sources
    known = KnownKeys(
        own_keys(sources.http.api_keys, settings),
        own_keys(sources.source_keys, settings),
        verifiable=keys is not None,
    )
    if keys is not None:
        keys.on_answer(
            lambda key, status: known.verify(key) if status is KeyStatus.VERIFIED else None
        )
    return known


def _otlp_mapping(settings: Settings) -> OtlpMapping | None:
    """How log records over HTTP become events; None if they aren't accepted. Raises
    `ConfigurationError` for an invalid mapping.
    """
    otlp = settings.sources.http.otlp
    if not otlp.mapping.given or otlp.api_key is None:
        return None
    # Most configurations have no mappings.
    from forwarder.daemon.mappings import rules_of, without_zone_alone  # noqa: PLC0415
    from forwarder.intake.otlp import KEY, OtlpMapping, OtlpSource  # noqa: PLC0415

    return OtlpMapping(
        OtlpSource(rules_of(without_zone_alone(otlp.mapping), f"{KEY}.mapping"), otlp.api_key)
    )


def _kafka_sources(
    settings: Settings, role: Role, intake: SourceIntake, clock: Clock
) -> KafkaSources | None:
    """The clusters to read; None if there are none. Raises `ConfigurationError` for a mapping that
    can't be used.
    """
    if not settings.sources.kafka or not role.listens:
        return None
    # The client is large, and most configurations have no Kafka source.
    from forwarder.daemon.kafka import KafkaSources  # noqa: PLC0415

    return KafkaSources.of(settings, role, intake, clock)


def _log_sources(
    settings: Settings, role: Role, intake: SourceIntake, clock: Clock, stores: Stores
) -> LogSources | None:
    """The logs to read; None if there are none for this worker. Raises `ConfigurationError` for
    what can't be used.
    """
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

    def __init__(self, settings: Settings, clock: Clock, role: Role, parts: PipelineParts) -> None:
        self._settings = settings
        """What it was built with: keys that can't be reloaded keep these values."""
        self._clock = clock
        self._role = role
        self._parts = parts
        self._observer = Observer(settings, clock, parts)
        self._taps = Taps(
            {destination.name: destination.taps for destination in parts.destinations},
            clock,
            names=LaneNames(settings.key_names),
        )
        self._tls: ssl.SSLContext | None = None
        self.state = State.STARTING

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses that it listens on."""
        return tuple(self._parts.listener.addresses)

    async def start(self) -> None:
        """Accept and deliver. Raises `ConfigurationError` or `OSError` when it can't listen;
        cancelled or failed, `close` cleans up.
        """
        parts = self._parts
        tls = self._settings.sources.http.tls
        if tls.cert_file and tls.key_file:
            self._tls = load_tls(tls.cert_file, tls.key_file)
        for destination in parts.destinations:
            names = {"destination": destination.name} if parts.destinations[1:] else {}
            # The log lines of the destination's tasks name it, if there are several.
            with bound_contextvars(**names):
                destination.stores.committer.start()
                if destination.key_memory is not None:
                    destination.key_memory.start()
                destination.delivery.start()
        for replayer in parts.replayers:
            replayer.start()
        parts.rules.start()
        if self._role.listens:
            parts.memory.start()
            await self._listen()
        for source in parts.sources:
            source.start()
        self.state = State.RUNNING

    async def _listen(self) -> None:
        inherited = [adopt(descriptor) for descriptor in self._role.descriptors]
        listen = self._settings.sources.http.listen
        await self._parts.listener.start(
            listen, self._tls, inherited=inherited, removes_file=self._role.removes_socket
        )

    def keep_descriptors(self) -> KeptDescriptors:
        """Have the listening sockets and the locks outlive it, for the next
        program of this process.
        """
        locks = tuple(
            (str(lock.path), lock.duplicate())
            for destination in self._parts.destinations
            for lock in destination.stores.locks
        )
        return KeptDescriptors(self._parts.listener.duplicate_sockets(), locks)

    def stop_accepting(self) -> None:
        """Reject new events from now on."""
        self.state = State.DRAINING
        self._parts.conditions.draining = True
        self._parts.listener.draining = True
        self._stop_reading()

    def on_input_end(self, callback: Callable[[], None]) -> None:
        """Have `callback` called when standard input, if that is read, has ended
        and all of it is settled.
        """
        if self._parts.logs is not None:
            self._parts.logs.on_input_end = callback

    def _stop_reading(self) -> None:
        """Have the sources with positions read nothing more."""
        for source in self._parts.sources:
            source.stop_reading()

    async def shut_down(self, seconds: float) -> None:
        """Let senders finish, stop listening, and deliver: for at most `seconds` from memory; from
        disk only what is quick to deliver.

        Requests are accepted until the last moment before the end, each answer the last of its
        connection. Cancelled, it leaves the pipeline to `close`.
        """
        parts = self._parts
        durable = self._settings.buffer.kind == "disk"
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
            for destination in parts.destinations:
                destination.delivery.resume()
        await parts.listener.finish_requests(limit)
        self.stop_accepting()
        if not durable:
            await self.drain(max(0.0, end - self._clock.monotonic()))

    async def _deliver_briefly(self, seconds: float) -> None:
        """Deliver the events of disk buffers that are in memory, as long as the upstream accepts;
        a backlog waits for the next start.
        """

        async def deliver(delivery: EventDelivery, *, backlog: bool) -> None:
            if not backlog:
                await delivery.drain_while_it_works(min(DELIVER_LIMIT, seconds))
            await delivery.finish_in_flight(min(IN_FLIGHT_LIMIT, seconds))

        deliveries = [
            (destination.delivery, destination.stores.disk_buffer)
            for destination in self._parts.destinations
        ]
        await asyncio.gather(
            *[
                deliver(delivery, backlog=buffer is None or buffer.has_backlog)
                for delivery, buffer in deliveries
            ]
        )

    async def drain(self, seconds: float) -> bool:
        """Stop listening, deliver what is buffered, and let calls that are passed through finish,
        for at most `seconds`.

        Returns whether everything buffered was delivered.
        """
        await self._parts.listener.stop_listening()
        end = self._clock.monotonic() + seconds
        await self._parts.conditions.drain(seconds)
        left = max(0.0, end - self._clock.monotonic())
        drained = all(
            await asyncio.gather(
                *[destination.delivery.drain(left) for destination in self._parts.destinations]
            )
        )
        if self._parts.passthrough is not None:
            await self._parts.passthrough.until_idle(end - self._clock.monotonic())
        return drained

    async def close(self) -> list[DeadLetter]:
        """Stop everything; the undelivered events, which have become dead letters.

        Nothing new is accepted first. Then delivery ends before the sources do: what it settles
        last is still acknowledged, and after it nothing can change, so that each sender and each
        source that still waits gets its final answer. The stores end last, for all write to them.
        """
        parts = self._parts
        self.stop_accepting()
        parts.memory.stop()
        for replayer in parts.replayers:
            replayer.stop()
        for destination in parts.destinations:
            await destination.delivery.close()
        await parts.conditions.close()
        await parts.decoder.close()
        parts.intake.admitter.end_waiting()
        for destination in parts.destinations:
            # requests that wait for the disk get an answer
            await destination.stores.committer.settle()
        await parts.listener.close(0)
        if parts.passthrough is not None:
            await parts.passthrough.close()
        for source in parts.sources:
            await source.close()
        await parts.rules.close()
        left: list[DeadLetter] = []
        for destination in parts.destinations:
            if destination.sink is not None:
                await destination.sink.close()
            if destination.key_memory is not None:
                await destination.key_memory.close()
            left += destination.settle_the_rest()
            await destination.stores.close()
        return left

    def snapshot(self) -> Snapshot:
        """The state now."""
        return self._observer.snapshot(self.state)

    def explain(self, wanted: WantedUuid) -> list[Sighting]:
        """Where an event is, as far as it is in memory."""
        return [
            sighting
            for destination in self._parts.destinations
            for sighting in find_in_memory(
                wanted,
                destination.stores.buffer,
                destination.delivery.undelivered(),
                destination.stores.dead_letters_in_memory,
                destination.name,
            )
        ]

    def tap(self, request: TapRequest) -> TapBatch:
        """What a tap has collected (`telemetry.taps`)."""
        return self._taps.poll(request)

    def reload(self, settings: Settings) -> list[str]:
        """Use other settings from now on, as far as that is possible live; returns the keys that
        need a restart, each time until there was one.
        """
        parts = self._parts
        http = settings.sources.http
        if self._tls and http.tls == self._settings.sources.http.tls:
            _reload_tls(self._tls, http.tls)
        allowed = allowed_keys(http.api_keys, self._settings)
        parts.intake.admitter.lanes.configure(http.max_lanes, allowed)
        for destination in parts.destinations:
            own = destination.settings
            destination.batcher.policy = batch_policy(replace(settings, upstream=own.upstream))
            destination.admission.lanes.configure(http.max_lanes, own_keys(allowed, own))
            destination.known.configure(own_keys(http.api_keys, own))
        parts.rules.reload(settings.rules)
        names = LaneNames(settings.key_names)
        self._observer.rename(names)
        self._taps.names = names
        return keys_needing_restart(self._settings, settings)


def _reload_tls(context: ssl.SSLContext, tls: TlsSettings) -> None:
    """Read the certificate again; if that fails the old one stays."""
    if tls.cert_file and tls.key_file:
        try:
            reload_tls(context, tls.cert_file, tls.key_file)
        except ConfigurationError as error:
            _log.error(
                "the certificate can't be read again; the old one stays",
                why=error.message,
                hint=error.hint,
            )
