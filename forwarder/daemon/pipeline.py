"""The wiring of the whole pipeline, in one place; nothing else knows the order of its parts.

source → intake → buffer → batcher → delivery → upstream. It starts from the end and stops from the beginning, so that nothing is taken
that has nowhere to go.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import structlog

from forwarder.admin.event_lookup import Sighting, WantedUuid, find_in_memory
from forwarder.buffer.disk.backlog import WINDOW
from forwarder.buffer.disk.buffer import DiskBuffer
from forwarder.buffer.disk.opening import OpenPolicy
from forwarder.buffer.holdings import assign_pools
from forwarder.buffer.memory import MemoryBuffer
from forwarder.config.settings import Settings, UpstreamSettings
from forwarder.core.clock import Clock
from forwarder.core.errors import ConfigurationError
from forwarder.core.event import Chunk, Lane
from forwarder.core.path import ForwarderPath
from forwarder.core.ports import DeadLetter, DropReason, Fate, Ordering, Reason, letters_of
from forwarder.core.records import RecordIntake
from forwarder.core.shares import LEAST, Headroom, size_for
from forwarder.daemon.decoder import DecoderProcess
from forwarder.daemon.descriptors import files_beside_connections, reserve_descriptors
from forwarder.daemon.key_memory import KeyMemory
from forwarder.daemon.observation import Observer, Parts
from forwarder.daemon.reload import changed_keys
from forwarder.daemon.roles import ALONE, Role
from forwarder.daemon.stores import Stores, open_stores
from forwarder.deadletter.memory import MemoryDeadLetters
from forwarder.deadletter.replay import Replayer
from forwarder.deadletter.store import DeadLetterStore
from forwarder.delivery.batching import Batcher, BatchPolicy
from forwarder.delivery.delivery import Delivery
from forwarder.delivery.halting import Halts
from forwarder.delivery.key_ledger import KeyStatus
from forwarder.delivery.keys import KeyCheck
from forwarder.delivery.network_errors import describe
from forwarder.delivery.pausing import RetryPolicy
from forwarder.delivery.sink import HttpSink, UpstreamPolicy
from forwarder.delivery.turns import Turns
from forwarder.intake.intake import Intake, IntakePolicy
from forwarder.intake.lanes import KnownKeys, LaneRegistry
from forwarder.intake.large import DECODE_SECONDS
from forwarder.intake.quotas import Quotas
from forwarder.intake.records import SourceIntake
from forwarder.sources.http.limits import HttpPolicy
from forwarder.sources.http.listener import HttpListener
from forwarder.sources.http.passthrough import PassThrough, PassThroughPolicy
from forwarder.sources.http.sockets import adopt
from forwarder.sources.http.tls import load_tls, reload_tls
from forwarder.telemetry.books import Books
from forwarder.telemetry.snapshot import Snapshot, State

if TYPE_CHECKING:
    from forwarder.daemon.kafka import KafkaSources

GRACE: Final = 1.5
"""Seconds after which a stop closes connections whose senders bring nothing: those that send learn of the end by an answer."""

REQUEST_LIMIT: Final = 5.0
"""Seconds that a stop waits for requests in progress, beyond that."""

DELIVER_LIMIT: Final = 2.0
"""Seconds that a stop goes on delivering from a disk buffer while the upstream accepts; the files are there for the next start."""

IN_FLIGHT_LIMIT: Final = 3.0
"""Seconds that it then waits for upstream requests in flight: what is cut off would be delivered twice."""

RELOADABLE: Final = frozenset(
    {
        "sources.http.api_keys",
        "sources.http.api_keys_file",
        "sources.http.max_lanes",
        "batch.max_bytes",
        "batch.max_events",
        "batch.max_age",
    }
)
"""The keys that take effect on a reload, beside the daemon's own; a certificate is read again in any case."""

_log = structlog.get_logger()


def build(settings: Settings, clock: Clock, role: Role = ALONE, *, window: int = WINDOW) -> Pipeline:
    """The pipeline that the settings ask for, not yet started. `window`: bytes of memory for what a disk buffer has at hand.

    Raises `ConfigurationError` for files that can't be used.
    """
    books = Books()
    ordering = _Orderings(settings.delivery.ordering, settings.workers)
    path = ForwarderPath(clock, role.instance)
    sink = open_sink(settings.upstream, clock, path)
    stores = open_stores(settings, role, clock, books, OpenPolicy(settings.buffer_share, ordering.of, window))
    buffer, dead_letters = stores.buffer, stores.dead_letters
    keys = KeyCheck(sink.decide, clock) if settings.upstream.verify_keys else None
    halts = Halts()
    batcher = Batcher(buffer, Turns(), batch_policy(settings))
    retry = settings.delivery.retry
    concurrency = settings.delivery.concurrency
    delivery = Delivery(
        batcher=batcher,
        buffer=buffer,
        sink=sink,
        dead_letters=dead_letters,
        books=books,
        clock=clock,
        retry=RetryPolicy(retry.initial, retry.max, retry.give_up_after),
        concurrency=concurrency if isinstance(concurrency, int) else None,
        ordering_of=ordering.of,
        halts=halts,
        keys=keys,
    )
    known, key_memory = _open_known_keys(settings, stores, keys, clock)
    ask = keys.ask if keys else lambda _key: None
    lanes = LaneRegistry(
        settings.sources.http.max_lanes,
        buffer.holdings,
        known,
        api_keys=settings.sources.http.api_keys,
        ask=ask,
    )
    policy = _http_policy(settings, role)
    headroom = Headroom(policy.max_receiving, buffer.memory if isinstance(buffer, DiskBuffer) else buffer)
    decoder = DecoderProcess(settings.sources.http.max_body, clock, DECODE_SECONDS)
    intake = Intake(
        buffer,
        dead_letters,
        books,
        lanes,
        Quotas(buffer, halts, known, ask),
        policy=_intake_policy(settings),
        ordering_of=ordering.of,
        clock=clock,
        on_accepted=delivery.wake,
        headroom=headroom,
        decoder=decoder,
        path=path,
    )
    if isinstance(buffer, DiskBuffer):
        buffer.on_arrival = delivery.wake
    replayer = Replayer(dead_letters, intake, clock) if isinstance(dead_letters, DeadLetterStore) else None
    passthrough = PassThrough(_pass_policy(settings, sink), clock, describe) if settings.passthrough.enabled else None
    listener = HttpListener(policy, intake, clock, headroom, passthrough, path=path)
    kafka = _open_kafka(settings, role, SourceIntake(intake, delivery, halts), clock)
    parts = Parts(books, dead_letters, buffer, delivery, intake, listener, passthrough, kafka)
    keyring = _Keyring(lanes, known, key_memory)
    return Pipeline(
        settings, clock, parts, role, stores=stores, replayer=replayer, batcher=batcher, keyring=keyring, sink=sink, decoder=decoder
    )


def _open_known_keys(settings: Settings, stores: Stores, keys: KeyCheck | None, clock: Clock) -> tuple[KnownKeys, KeyMemory | None]:
    """Which keys are known, in the buffer too; and what keeps the verified ones, if there is a state directory for them."""
    sources = settings.sources
    source_keys = [cluster.api_key for cluster in sources.kafka if cluster.api_key]
    known = KnownKeys(sources.http.api_keys, source_keys, verifiable=keys is not None)
    memory = KeyMemory(known, stores.state, clock) if keys is not None and stores.state is not None else None
    buffer = stores.buffer
    buffer.pool_of = known.pool_of

    def assign() -> None:
        assign_pools(buffer.holdings, known.pool_of)
        stores.dead_letters.distinguish(known)

    assign()
    known.on_change = assign
    if keys is not None:
        keys.on_answer(lambda key, status: known.verify(key) if status is KeyStatus.VERIFIED else None)
    return known, memory


def batch_policy(settings: Settings) -> BatchPolicy:
    """When batches are closed; their bodies stay below the service's limit."""
    batch = settings.batch
    return BatchPolicy(min(batch.max_bytes, settings.upstream.max_body), batch.max_events, batch.max_age)


def open_sink(upstream: UpstreamSettings, clock: Clock, path: ForwarderPath | None = None) -> HttpSink:
    """The way to the upstream; `path` is the daemon's. Raises `ConfigurationError` for a `ca_file` that can't be used."""
    ca_file = str(upstream.ca_file) if upstream.ca_file else None
    try:
        policy = UpstreamPolicy(upstream.url, upstream.compression == "gzip", upstream.timeout, ca_file, upstream.proxy)
        return HttpSink(policy, clock, path)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(f"upstream.ca_file {ca_file} can't be used: {error}", hint="Give a readable PEM file.") from error


def _open_kafka(settings: Settings, role: Role, intake: RecordIntake, clock: Clock) -> KafkaSources | None:
    """The clusters to read; None if there are none. Raises `ConfigurationError` for a mapping that can't be used."""
    if not settings.sources.kafka or not role.listens:
        return None
    from forwarder.daemon.kafka import KafkaSources  # noqa: PLC0415 - the client is large, and most have no use for it

    return KafkaSources.of(settings, role, intake, clock)


def _largest_body(settings: Settings) -> int:
    """Bytes of the largest body that is accepted: "the whole request body must be smaller than 20 MB" (interface document, Limits 1)."""
    return settings.sources.http.max_body - 1


def _intake_policy(settings: Settings) -> IntakePolicy:
    buffer = settings.buffer
    return IntakePolicy(
        _largest_body(settings),
        settings.upstream.max_event,
        settings.delivery.clock_skew_tolerance,
        ack=buffer.ack_level,
        ack_timeout=buffer.ack_timeout,
        when_full=buffer.when_full,
        durable=buffer.kind == "disk",
    )


def _http_policy(settings: Settings, role: Role) -> HttpPolicy:
    http = settings.sources.http
    connections = http.max_connections
    if role.listens:
        connections = reserve_descriptors(connections, files_beside_connections(settings))
    return HttpPolicy(
        max_body=_largest_body(settings),
        max_connections=connections,
        answer_timeout=settings.buffer.ack_timeout + 1.0,  # a delivery that isn't acknowledged in time ends itself, a little sooner
        max_receiving=size_for(http.max_body) + LEAST,
        stamp_ip=http.stamp_ip == "auto",
        trusted_proxies=http.trusted_proxies,
        cors_origins=http.cors_origins,
        path_prefixes=http.path_prefix,
    )


def _pass_policy(settings: Settings, sink: HttpSink) -> PassThroughPolicy:
    upstream, passed = settings.upstream, settings.passthrough
    return PassThroughPolicy(
        url=upstream.url,
        assets_url=upstream.assets_url or upstream.url,
        connect_timeout=passed.connect_timeout,
        flags_timeout=passed.flags_timeout,
        timeout=passed.timeout,
        max_body=passed.max_body,
        definitions_max_age=passed.definitions_max_age,
        tls=sink.tls,
        proxy=upstream.proxy,
    )


class _Orderings:
    """Which order a lane keeps: what is configured; else none for live events and per_distinct_id for historical ones.

    Events of one id come to any of several workers, which can't keep an order between them.
    """

    def __init__(self, configured: Ordering | None, workers: int) -> None:
        self._live = configured or Ordering.NONE
        self._historical = configured or (Ordering.PER_DISTINCT_ID if workers == 1 else Ordering.NONE)

    def of(self, lane: Lane) -> Ordering:
        """The lane's ordering."""
        return self._historical if lane.historical else self._live


@dataclass(frozen=True, slots=True)
class _Keyring:
    """What knows project keys; `memory` is None where none is remembered."""

    lanes: LaneRegistry
    known: KnownKeys
    memory: KeyMemory | None


@dataclass(frozen=True, slots=True)
class Kept:
    """Descriptors that outlive a pipeline."""

    sockets: tuple[int, ...]
    locks: tuple[tuple[str, int], ...]
    """Directories, each with its lock."""


class Pipeline:
    """A pipeline's life: start, accept and deliver, shut down, close."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        parts: Parts,
        role: Role,
        *,
        stores: Stores,
        replayer: Replayer | None,
        batcher: Batcher,
        keyring: _Keyring,
        sink: HttpSink,
        decoder: DecoderProcess,
    ) -> None:
        self._decoder = decoder
        self._settings = settings
        """What it was built with: keys that can't be reloaded keep these values."""
        self._role = role
        self._parts = parts
        self._clock = clock
        self._stores = stores
        self._replayer = replayer
        self._batcher = batcher
        self._keyring = keyring
        self._sink = sink
        self._observer = Observer(parts, settings.upstream.url, clock, settings.buffer.when_full)
        self._tls: ssl.SSLContext | None = None
        self.state = State.STARTING

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where senders are listened to."""
        return tuple(self._parts.listener.addresses)

    async def start(self) -> None:
        """Take and deliver. Raises `ConfigurationError` or `OSError` when it can't listen; cancelled or failed, `close` cleans up."""
        http = self._settings.sources.http
        if http.tls.cert_file and http.tls.key_file:
            self._tls = load_tls(http.tls.cert_file, http.tls.key_file)
        self._stores.committer.start()
        if self._keyring.memory is not None:
            self._keyring.memory.start()
        self._parts.delivery.start()
        if self._replayer is not None:
            self._replayer.start()
        if self._role.listens:
            await self._listen(http.listen)
        if self._parts.kafka is not None:
            self._parts.kafka.start()
        self.state = State.RUNNING

    async def _listen(self, listen: str) -> None:
        inherited = [adopt(descriptor) for descriptor in self._role.descriptors]
        await self._parts.listener.start(listen, self._tls, inherited=inherited, removes_file=self._role.removes_socket)

    def keep(self) -> Kept:
        """Have the listening sockets and the locks outlive it, for the next program of this process."""
        locks = tuple((str(lock.path), lock.duplicate()) for lock in self._stores.locks)
        return Kept(self._parts.listener.duplicate_sockets(), locks)

    def stop_taking(self) -> None:
        """Refuse new events from now on."""
        self.state = State.DRAINING
        self._parts.intake.draining = True
        self._parts.listener.draining = True
        if self._parts.kafka is not None:
            self._parts.kafka.stop_reading()

    async def shut_down(self, seconds: float) -> None:
        """Let senders go, stop listening, and deliver: for at most `seconds` from memory; from disk only what is quick to deliver.

        Requests are accepted until the last moment before the end, each answer the last of its connection. Cancelled, it leaves the
        pipeline to `close`.
        """
        end = self._clock.monotonic() + seconds
        if self._parts.kafka is not None:
            self._parts.kafka.stop_reading()
        limit = min(REQUEST_LIMIT, seconds)
        released = self._parts.listener.end_connections(min(GRACE, seconds), limit)
        if self._hands_over:
            await asyncio.gather(released, self._deliver_briefly(seconds))
        else:
            await released
        await self._parts.listener.stop_listening()
        if self._hands_over and self._parts.intake.statistics().awaiting_delivery:
            self._parts.delivery.resume()
        await self._parts.listener.finish_requests(limit)
        self.stop_taking()
        if not self._hands_over:
            await self.drain(max(0.0, end - self._clock.monotonic()))

    @property
    def _hands_over(self) -> bool:
        """Whether the files of a disk buffer hand over to the next start what isn't delivered."""
        return isinstance(self._parts.buffer, DiskBuffer)

    async def _deliver_briefly(self, seconds: float) -> None:
        """Deliver what a disk buffer has in memory, as long as the upstream accepts; a backlog has to wait for the next start anyway."""
        delivery, buffer = self._parts.delivery, self._parts.buffer
        if isinstance(buffer, DiskBuffer) and not buffer.has_backlog:
            await delivery.drain_while_it_works(min(DELIVER_LIMIT, seconds))
        await delivery.finish_in_flight(min(IN_FLIGHT_LIMIT, seconds))

    async def drain(self, seconds: float) -> bool:
        """Close the door, deliver what is buffered, and let calls that are passed through end, for at most `seconds`.

        Whether everything buffered was delivered.
        """
        await self._parts.listener.stop_listening()
        end = self._clock.monotonic() + seconds
        await self._parts.intake.drain(seconds)
        drained = await self._parts.delivery.drain(max(0.0, end - self._clock.monotonic()))
        if self._parts.passthrough is not None:
            await self._parts.passthrough.until_idle(end - self._clock.monotonic())
        return drained

    async def close(self) -> list[DeadLetter]:
        """Stop everything; the events that were left undelivered, which have become dead letters."""
        self.stop_taking()
        if self._replayer is not None:
            self._replayer.stop()
        await self._parts.delivery.close()
        await self._parts.intake.close()
        await self._decoder.close()
        self._parts.intake.end_waiting()
        await self._stores.committer.settle()  # who waits for the disk gets an answer
        await self._parts.listener.close(0)
        if self._parts.passthrough is not None:
            await self._parts.passthrough.close()
        if self._parts.kafka is not None:
            await self._parts.kafka.close()
        await self._sink.close()
        if self._keyring.memory is not None:
            await self._keyring.memory.close()
        left = self._end_of_the_rest()
        await self._stores.close()
        return left

    def _end_of_the_rest(self) -> list[DeadLetter]:
        """What becomes of events that weren't delivered: records are read again; others, if they are in memory, become dead letters."""
        left = self._parts.delivery.undelivered()
        in_memory = isinstance(self._parts.buffer, MemoryBuffer)
        if in_memory:
            left += self._waiting()
        returned = {chunk: None for chunk in left if chunk.ack is not None and not chunk.ack.comes_again}
        for chunk in returned:
            self._parts.books.drop(chunk.lane, DropReason.RETURNED_TO_BROKER, chunk.count)
            self._parts.buffer.settle([chunk], DropReason.RETURNED_TO_BROKER)
        return [letter for chunk in left if chunk not in returned for letter in self._bury(chunk)] if in_memory else []

    def _waiting(self) -> list[Chunk]:
        buffer, found = self._parts.buffer, []
        for lane in buffer.waiting_lanes():
            queue = buffer.queue(lane)
            while queue:
                found.append(queue.popleft())
        return found

    def _bury(self, chunk: Chunk) -> list[DeadLetter]:
        reason, why = Reason.UNDELIVERED_AT_EXIT, "forwarder ended before the upstream took it"
        letters = letters_of(chunk, reason, why, chunk.received_at)
        self._parts.dead_letters.bury_at_exit(letters)
        self._parts.books.bury(chunk.lane, reason, len(letters))
        self._parts.buffer.settle([chunk], Fate.BURIED)
        return letters

    def snapshot(self) -> Snapshot:
        """The state now."""
        return self._observer.snapshot(self.state)

    def explain(self, wanted: WantedUuid) -> list[Sighting]:
        """Where an event is, as far as it is at hand."""
        parts = self._parts
        letters = parts.dead_letters.letters if isinstance(parts.dead_letters, MemoryDeadLetters) else ()
        return find_in_memory(wanted, parts.buffer, parts.delivery.undelivered(), letters)

    def reload(self, settings: Settings) -> list[str]:
        """Use other settings from now on, as far as that can be done live; the keys that need a restart, each time until there was one."""
        if self._tls and settings.sources.http.tls == self._settings.sources.http.tls and settings.sources.http.tls.cert_file:
            self._reload_tls(settings)
        self._batcher.policy = batch_policy(replace(settings, upstream=self._settings.upstream))
        self._keyring.lanes.configure(settings.sources.http.max_lanes, settings.sources.http.api_keys)
        self._keyring.known.configure(settings.sources.http.api_keys)
        return [key for key in changed_keys(self._settings, settings) if key not in RELOADABLE]

    def _reload_tls(self, settings: Settings) -> None:
        tls = settings.sources.http.tls
        if self._tls and tls.cert_file and tls.key_file:
            try:
                reload_tls(self._tls, tls.cert_file, tls.key_file)
            except ConfigurationError as error:
                _log.error("the certificate can't be read again; the old one stays", why=error.message, hint=error.hint)
