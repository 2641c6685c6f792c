"""A destination of events: its sink, keys, halts, buffer, dead letters, books and delivery, built
together.

Behind the one intake each destination has these parts to itself, so that one that is down or
halted affects no other. `build_destination` is called once for each destination that the settings
name; of `upstream:` alone there is one, without a name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from forwarder.config.settings import DestinationSettings, Settings
from forwarder.core.clock import Clock
from forwarder.core.errors import ConfigurationError, ForwarderError
from forwarder.core.path import ForwarderPath
from forwarder.core.taps import TapPoint
from forwarder.daemon.key_memory import KeyMemory
from forwarder.daemon.policies import (
    allowed_keys,
    batch_policy,
    lane_ordering,
    open_sink,
    retry_policy,
)
from forwarder.daemon.roles import Role
from forwarder.daemon.stores import InheritedLocks, Stores, open_stores
from forwarder.delivery.batching import Batcher
from forwarder.delivery.delivery import Delivery, EventDelivery
from forwarder.delivery.halting import Halts
from forwarder.delivery.keys import KeyCheck, KeyStatus
from forwarder.delivery.sink import HttpSink
from forwarder.intake.admission import Admission
from forwarder.intake.fan_out import Branch
from forwarder.intake.lanes import KnownKeys, LaneRegistry
from forwarder.intake.quotas import Quotas
from forwarder.telemetry.books import Books


@dataclass(frozen=True, slots=True, kw_only=True)
class EventDestination:
    """The parts of one destination. None: what isn't configured."""

    settings: Settings
    """Those that hold for it: `upstream` is its own."""
    sink: HttpSink | None
    """None: of an archive."""
    known: KnownKeys
    key_memory: KeyMemory | None
    books: Books
    stores: Stores
    batcher: Batcher
    delivery: EventDelivery
    admission: Admission
    taps: TapPoint
    branch: Branch

    @property
    def name(self) -> str:
        """Empty for the one of `upstream:`."""
        return self.settings.destination.name

    @property
    def required(self) -> bool:
        """Whether it rejects events that it has no room for, and acknowledgements wait for it."""
        return self.branch.required


def build_destination(
    settings: Settings,
    role: Role,
    clock: Clock,
    *,
    path: ForwarderPath,
    inherited: InheritedLocks,
    window: int | None,
) -> EventDestination:
    """The parts of the destination that is the `upstream` of these settings, not yet started.

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
    keyed = [
        *[each.api_key for each in sources.kafka],
        *[each.api_key for each in sources.logs],
        sources.http.otlp.api_key,
    ]
    source_keys = [key for key in keyed if key]
    known = KnownKeys(
        own_keys(sources.http.api_keys, settings),
        own_keys(source_keys, settings),
        verifiable=keys is not None,
    )
    if keys is not None:
        keys.on_answer(
            lambda key, status: known.verify(key) if status is KeyStatus.VERIFIED else None
        )
    return known


def own_keys(api_keys: Collection[str], settings: Settings) -> list[str]:
    """The destination's project keys for those of senders."""
    mapped = settings.destination.api_keys
    return [mapped.get(key, key) for key in api_keys]
