"""How much of everything a load takes. Pure: a load and the settings in, figures out.

What was measured is taken from `figures.py`; what the code counts (the cost of an event in a
buffer, the share of a lane, the size of a segment, the limits of a batch and of concurrency) is
taken from the code that counts it. A core is planned for half of what was measured (`RESERVE`), a
buffer a quarter larger than the backlog (`UNEVEN`), and one machine may be missing (`SPARE`);
nothing else is rounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import ceil, inf
from typing import Final

from forwarder.buffer.disk import backlog
from forwarder.buffer.disk.format import RECORD_HEADER_SIZE, SEGMENT_HEADER_SIZE, encode_meta
from forwarder.buffer.disk.log import MAX_RECORD_OVERHEAD
from forwarder.buffer.disk.log import RESERVE as RESERVED_SEGMENTS
from forwarder.buffer.disk.pending import MERGE_BELOW, MERGED_BYTES
from forwarder.config.section import MIB
from forwarder.config.settings import Settings
from forwarder.config.source_settings import KafkaSettings
from forwarder.core.event import CHUNK_OVERHEAD, EVENT_OVERHEAD, Lane
from forwarder.core.ports import Ordering
from forwarder.core.segments import segment_size
from forwarder.daemon.memory import BROKERS
from forwarder.delivery.limiter import MAXIMUM as MOST_REQUESTS
from forwarder.intake.lane_registry import LIVE
from forwarder.planning.figures import (
    BODY_EVENTS,
    HTTP,
    IMPORTS,
    KAFKA,
    OTHER,
    MeasuredQuantity,
    WorkKind,
)
from forwarder.wire.envelope import envelope_size

RESERVE: Final = 2
"""A core is planned for the measured throughput divided by this: for peaks, TLS, larger
properties, a slower machine.
"""

UNEVEN: Final = 1.25
"""How much more than its part a process may get: a connection stays with one process."""

SPARE: Final = 1
"""Machines beyond those that carry the load: one may be restarted, or lost."""

PARTITIONS_EACH: Final = 2
"""Partitions for each member of a group, so that the shares stay even when one is down."""

LAG_SECONDS: Final = 10
"""A further replica is worthwhile once a busy one would take so long to work off the lag."""

LONGEST_PREFLIGHT: Final = 86_400.0
"""Seconds that an import's preflight may take before more shards are planned."""

LARGEST_BUFFER: Final = 1 << 40
"""Bytes that `buffer.max_bytes` may be."""

LARGEST_CONCURRENCY: Final = 256
"""What `delivery.concurrency` may be."""

MB: Final = 1_000_000
_KEY: Final = "phc_" + "x" * 43
"""A project key of the usual length, for the sizes of envelopes and records."""


class LoadSource(StrEnum):
    """Where events come from."""

    HTTP = "http"
    KAFKA = "kafka"
    IMPORT = "import"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is to be carried. Rates are events a second, times are seconds."""

    rate: float
    outage: float = 3600.0
    """How long the service may be unreachable without a sender being rejected."""
    event_bytes: int = OTHER[MeasuredQuantity.EVENT_BYTES]
    """Of an event's JSON, at the mean."""
    request_events: int = 50
    """Events in a request of a sender, at the mean."""
    source: LoadSource = LoadSource.HTTP
    unstamped: bool = False
    """Whether events come without uuid and timestamp."""
    keys: int = 1
    """Project keys that share the load evenly."""
    cores: int = 4
    """Of a machine; one of several is left to the system."""
    latency: float = 0.5
    """Of the service's answer to a batch."""
    service_rate: float | None = None
    """What the service accepts at most. None: twice the load."""
    machines: int | None = None
    """How many there are. None: as many as needed."""

    @property
    def accepted_rate(self) -> float:
        """Events a second that the service is expected to accept."""
        return 2 * self.rate if self.service_rate is None else self.service_rate


def kafka_of(settings: Settings) -> KafkaSettings:
    """The cluster that is planned: the first that is configured, else one with the defaults."""
    return settings.sources.kafka[0] if settings.sources.kafka else KafkaSettings()


# CPU


def event_cost(load: Load, settings: Settings) -> float:
    """Seconds of a core for one event, as measured: that of the plain case and what each
    difference from it adds.

    Events larger than the measured ones cost in proportion, smaller ones as much.
    """
    kinds = list(_kinds(load, settings))
    if load.source is LoadSource.KAFKA:
        plain = 1 / KAFKA[WorkKind.PLAIN]
        measured_bytes = OTHER[MeasuredQuantity.RECORD_BYTES]
        extra = sum([1 / KAFKA[kind] - plain for kind in kinds])
    else:
        plain = _body_cost(WorkKind.PLAIN, load.request_events)
        measured_bytes = OTHER[MeasuredQuantity.EVENT_BYTES]
        extra = sum([_body_cost(kind, load.request_events) - plain for kind in kinds])
    return (plain + extra) * max(1.0, load.event_bytes / measured_bytes)


def _kinds(load: Load, settings: Settings) -> Iterator[WorkKind]:
    """How the load differs from the plain case."""
    if settings.upstream.compression == "gzip":
        yield WorkKind.GZIP
    if settings.buffer.kind == "disk":
        yield WorkKind.DISK
    if settings.delivery.ordering not in (None, Ordering.NONE):
        yield WorkKind.ORDERED
    if load.unstamped:
        yield WorkKind.UNSTAMPED
    elif load.source is LoadSource.HTTP and settings.sources.http.stamp_ip == "auto":
        yield WorkKind.ADDRESSED


def _body_cost(kind: WorkKind, events: int) -> float:
    """Seconds for one event in bodies of `events`: a part for the event and a part of the
    request's, between the measured bodies.
    """
    costs = [1 / rate for rate in HTTP[kind]]
    shares = [1 / count for count in BODY_EVENTS]
    share = min(max(1 / events, shares[-1]), shares[0])
    at = 0 if share >= shares[1] else 1
    return costs[at + 1] + (costs[at] - costs[at + 1]) * (share - shares[at + 1]) / (
        shares[at] - shares[at + 1]
    )


def core_rate(load: Load, settings: Settings) -> float:
    """Events a second that one core is planned for."""
    return 1 / (RESERVE * event_cost(load, settings))


# Batches and requests to the service


def full_batch(load: Load, settings: Settings) -> int:
    """Events of a batch that is closed by bytes or by count."""
    room = (
        min(settings.batch.max_bytes, settings.upstream.max_body)
        - envelope_size(Lane(_KEY), ())
        - 1
    )
    return max(1, min(settings.batch.max_events, room // (load.event_bytes + 1)))


def batch_events(load: Load, settings: Settings, processes: int) -> float:
    """Events of a batch of one of so many processes: full, or those of `batch.max_age`, or those
    that wait for a request to end.
    """
    rate = load.rate / processes
    by_age = rate / load.keys * settings.batch.max_age
    by_turn = rate * load.latency / most_requests(settings)
    return max(1.0, min(full_batch(load, settings), max(by_age, by_turn)))


def most_requests(settings: Settings) -> int:
    """Requests that one process may have in flight."""
    concurrency = settings.delivery.concurrency
    return MOST_REQUESTS if concurrency == "adaptive" else concurrency


def requests_for(load: Load, settings: Settings, processes: int) -> int:
    """Requests that one process has in flight while the backlog is delivered as fast as the
    service accepts it, and a quarter more.
    """
    rate = max(load.rate, load.accepted_rate) / processes
    return min(LARGEST_CONCURRENCY, ceil(UNEVEN * rate * load.latency / full_batch(load, settings)))


def upstream_rate(load: Load, settings: Settings, processes: int) -> float:
    """Events a second that full batches carry when all requests are in flight all the time."""
    in_turn = settings.delivery.ordering is Ordering.STRICT
    requests = min(most_requests(settings), load.keys) if in_turn else most_requests(settings)
    return processes * requests / load.latency * full_batch(load, settings)


def in_flight_bytes(load: Load, settings: Settings, processes: int) -> int:
    """Bytes of unsettled records that one process has while the group catches up: as fast as
    service, cores and requests allow.
    """
    most = min(
        load.accepted_rate,
        processes * core_rate(load, settings),
        upstream_rate(load, settings, processes),
    )
    rate = max(load.rate, most) / processes
    waits = (
        min(settings.batch.max_age, load.keys * full_batch(load, settings) / rate) if rate else 0.0
    )
    return ceil(rate * (waits + load.latency) * load.event_bytes)


def in_flight_rate(load: Load, settings: Settings, processes: int) -> float:
    """Events a second from Kafka at which unsettled records reach half of `max_in_flight`: they
    wait for their batch and its answer.
    """
    held = settings.max_in_flight(kafka_of(settings)) / 2 / load.event_bytes
    by_age = held / (settings.batch.max_age + load.latency)
    # at a high rate a batch is full before it is old
    full = (held - load.keys * full_batch(load, settings)) / load.latency
    return processes * max(by_age, full)


# The buffer


def room(max_bytes: int, kind: str, event_bytes: int, request_events: int) -> int:
    """Events that the buffer of one process holds at least, when they come in such requests.

    A lane alone may hold seven eighths of the buffer (`intake.quotas`), and so may all keys
    together while none is known; several known keys may hold more. On disk the files must
    hold the events, too: what a segment has left is less than a record, and the last
    segment is kept for marks.
    """
    data = request_events * (event_bytes + 1) - 1
    on_disk = kind == "disk"
    counts = (
        backlog.cost(data, request_events)
        if on_disk
        else data + CHUNK_OVERHEAD + EVENT_OVERHEAD * request_events
    )
    requests = max_bytes * LIVE // (1 + LIVE) // counts
    if on_disk:
        requests = min(requests, _requests_in_files(max_bytes, data))
    return requests * request_events


def _requests_in_files(max_bytes: int, data: int) -> int:
    """Requests that the segments hold at least, if each has `data` bytes of events."""
    size = segment_size(max_bytes)
    usable = size - SEGMENT_HEADER_SIZE - MAX_RECORD_OVERHEAD
    header = RECORD_HEADER_SIZE + len(encode_meta("http", _KEY))
    if data < MERGE_BELOW:
        merged = min(MERGED_BYTES, size // 4)
        in_a_segment: float = usable // (merged + header) * (merged // data)
    else:
        largest = (size - SEGMENT_HEADER_SIZE) // 2
        in_a_segment = usable // (min(data, largest) + header) / ceil(data / largest)
    return int((max_bytes // size - RESERVED_SEGMENTS) * in_a_segment)


def bytes_for(events: float, kind: str, event_bytes: int, request_events: int) -> int:
    """The least `max_bytes` of one process whose buffer holds so many events,
    to a part in a thousand.
    """
    low = MIB
    high = MIB
    while room(high, kind, event_bytes, request_events) < events:
        low = high
        high = high * 2
    while high - low > max(1, high // 1000):
        middle = (low + high) // 2
        low, high = (
            (low, middle)
            if room(middle, kind, event_bytes, request_events) >= events
            else (middle, high)
        )
    return high


def process_memory(load: Load, settings: Settings, buffer_share: int) -> int:
    """Resident bytes of one process at most, with a full buffer of `buffer_share` bytes."""
    held = min(backlog.WINDOW, buffer_share) if settings.buffer.kind == "disk" else buffer_share
    kafka = 0
    if load.source is LoadSource.KAFKA:
        kafka = (
            OTHER[MeasuredQuantity.KAFKA_MEMORY] * MB + BROKERS * kafka_of(settings).fetch_max_bytes
        )
    return OTHER[MeasuredQuantity.MEMORY] * MB + held + kafka


def keeps_backlog(load: Load, settings: Settings) -> bool:
    """Whether an outage's events are in forwarder's buffer; else they stay in their topic."""
    return load.source is LoadSource.HTTP or (
        kafka_of(settings).commit == "disk" and settings.buffer.kind == "disk"
    )


def keeps_order(load: Load, settings: Settings) -> bool:
    """Whether there can be one worker only: several keep no order among events over HTTP."""
    return load.source is LoadSource.HTTP and settings.delivery.ordering not in (
        None,
        Ordering.NONE,
    )


# All together


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What a load takes. Sizes are bytes, times are seconds."""

    core_rate: float
    """Events a second that one core is planned for."""
    busy: float
    """Cores that the load keeps busy, as measured, without any reserve."""
    workers: int
    """Processes on a machine."""
    carrying: int
    """Machines that carry the load when one is missing."""
    carrying_by: str
    """What their number comes from: `cpu`, `buffer` (the largest that there may be), or `given`."""
    machines: int
    backlog: int
    """Events of an outage."""
    max_bytes: int
    """Of the buffer of a machine."""
    memory: int
    """Of a machine."""
    traffic_in: float
    """Bytes a second on all machines."""
    traffic_out: float
    batch: float
    """Events in a batch."""
    requests: float
    """Requests to the service a second."""
    in_flight: float
    """Requests to the service that are in flight, at the mean."""
    connections: int
    """Connections to the service at most."""
    catch_up: float
    """Seconds after the outage until nothing is left of the backlog."""
    own_catch_up: float
    """The same if the service accepted everything at once."""
    catch_up_by: str
    """What the first of them depends on: `service`, `upstream` or `cpu`."""

    @property
    def processes(self) -> int:
        """Workers of all machines that carry the load."""
        return self.carrying * self.workers


def capacity_of(
    load: Load, settings: Settings, *, fixed_workers: bool = False, max_bytes: int | None = None
) -> Capacity:
    """What the load takes. `fixed_workers`: each machine has `settings.workers`; `max_bytes`: its
    buffer has that size.
    """
    per_core = core_rate(load, settings)
    needed = max(1, ceil(load.rate / per_core))
    if fixed_workers:
        most = settings.workers
    elif keeps_order(load, settings):
        most = 1
    else:
        most = max(1, load.cores - 1)
    backlog_events = ceil(load.rate * load.outage)
    carrying = max(1, load.machines - SPARE) if load.machines is not None else ceil(needed / most)
    workers = most
    share = 0
    by_what = "cpu" if load.machines is None else "given"
    # where a machine's buffer would be larger than a buffer can be, more machines share it
    for _ in range(3):
        workers = most if fixed_workers else min(most, ceil(needed / carrying))
        share = _buffer_share(load, settings, carrying * workers, backlog_events)
        if load.machines is not None or max_bytes is not None or share * workers <= LARGEST_BUFFER:
            break
        carrying = ceil(carrying * share * workers / LARGEST_BUFFER)
        by_what = "buffer"
    machines = carrying + SPARE if load.machines is None else load.machines
    processes = carrying * workers
    max_bytes = workers * share if max_bytes is None else max_bytes
    batch = batch_events(load, settings, processes)
    requests = load.rate / batch
    seconds, by = _catch_up(load, settings, processes, load.accepted_rate, backlog_events)
    supervisor = OTHER[MeasuredQuantity.SUPERVISOR_MEMORY] * MB if workers > 1 else 0
    gzip = (
        OTHER[MeasuredQuantity.GZIP_PERCENT] / 100
        if settings.upstream.compression == "gzip"
        else 1.0
    )
    return Capacity(
        core_rate=per_core,
        busy=load.rate * event_cost(load, settings),
        workers=workers,
        carrying=carrying,
        carrying_by=by_what,
        machines=machines,
        backlog=backlog_events,
        max_bytes=max_bytes,
        memory=workers * process_memory(load, settings, max_bytes // workers) + supervisor,
        traffic_in=load.rate * load.event_bytes,
        traffic_out=load.rate * load.event_bytes * gzip,
        batch=batch,
        requests=requests,
        in_flight=requests * load.latency,
        connections=machines * workers * most_requests(settings),
        catch_up=seconds,
        own_catch_up=_catch_up(load, settings, processes, inf, backlog_events)[0],
        catch_up_by=by,
    )


def _buffer_share(load: Load, settings: Settings, processes: int, events: int) -> int:
    """Bytes of one process's buffer."""
    if keeps_backlog(load, settings):
        held = events / processes * UNEVEN
        return bytes_for(held, settings.buffer.kind, load.event_bytes, load.request_events)
    counts = (load.event_bytes + EVENT_OVERHEAD) / load.event_bytes * (1 + LIVE) / LIVE
    return ceil(max(64 * MIB, max(2.0, counts) * max_in_flight_for(load, settings, processes)))


def max_in_flight_for(load: Load, settings: Settings, processes: int) -> int:
    """`max_in_flight` of one process: a pause lasts until half of it is settled, so twice what is
    unsettled, and a quarter more.
    """
    return (
        ceil(
            max(
                settings.upstream.max_event, 2 * UNEVEN * in_flight_bytes(load, settings, processes)
            )
            / MIB
        )
        * MIB
    )


def _catch_up(
    load: Load, settings: Settings, processes: int, accepted: float, events: int
) -> tuple[float, str]:
    """Seconds until a backlog is delivered beside the load, and what limits it."""
    spare = {
        "service": accepted - load.rate,
        "upstream": upstream_rate(load, settings, processes) - load.rate,
        "cpu": _drain_rate(load, settings, processes),
    }
    by = min(spare, key=lambda name: spare[name])
    return (events / spare[by] if spare[by] > 0 else inf), by


def _drain_rate(load: Load, settings: Settings, processes: int) -> float:
    """Events of a backlog that the cores deliver a second beside the load, at
    half of what was measured.
    """
    left = max(0.0, processes - load.rate * event_cost(load, settings))
    if keeps_backlog(load, settings):
        cost = 1 / OTHER[MeasuredQuantity.DRAINED]
        if settings.upstream.compression == "gzip":
            cost += _body_cost(WorkKind.GZIP, BODY_EVENTS[-1]) - _body_cost(
                WorkKind.PLAIN, BODY_EVENTS[-1]
            )
        cost *= max(1.0, load.event_bytes / OTHER[MeasuredQuantity.EVENT_BYTES])
    else:
        cost = event_cost(load, settings)
    return left / cost / RESERVE


# Kafka


def partitions_for(members: int) -> int:
    """Partitions that a topic needs at least for so many members of a group."""
    return PARTITIONS_EACH * members


def lag_threshold(load: Load, settings: Settings) -> int:
    """The lag of a group, in records, for each replica that it should have: what a busy replica
    works off in `LAG_SECONDS`.
    """
    workers = settings.workers
    rates = (
        workers * core_rate(load, settings),
        upstream_rate(load, settings, workers),
        in_flight_rate(load, settings, workers),
    )
    return int(min(rates) * LAG_SECONDS)


def retention(load: Load, capacity: Capacity) -> float:
    """Seconds that a topic has to keep its records: the outage and the time to catch up, and as
    long again.
    """
    return 2 * (load.outage + capacity.catch_up)


# Imports


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationLoad:
    """What is to be imported."""

    events: int
    form: str = "native"
    rate: float = 2000.0
    """Events a second of all shards together, at most; infinite for as fast as they go."""
    event_bytes: int = OTHER[MeasuredQuantity.EVENT_BYTES]
    shards: int | None = None
    """None: as many as needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportCapacity:
    """What a migration takes. Sizes are bytes, times are seconds."""

    rate: float
    """Events a second of all shards together."""
    shard_rate: float
    """Events a second that a shard's core is planned for."""
    shards: int
    duration: float
    """Of the sending."""
    preflight: float
    """Of reading everything once before it."""
    reread: float
    """Of reading again what was sent, after a shard was killed at the end."""
    memory: int
    """Of a shard."""
    source_bytes: int
    """Of the events, uncompressed."""
    requests: float
    """Requests to the service a second, at least."""


def import_capacity(load: MigrationLoad, settings: Settings) -> ImportCapacity:
    """What the import takes. Without a number of shards there are enough for the rate, and for a
    preflight of a day at most.
    """
    larger = max(1.0, load.event_bytes / OTHER[MeasuredQuantity.EVENT_BYTES])
    sent = 1 / OTHER[MeasuredQuantity.IMPORTED] - 1 / IMPORTS["native"]
    shard_rate = 1 / (RESERVE * larger * (1 / IMPORTS[load.form] + sent))
    looked_at = OTHER[MeasuredQuantity.LOOKED_AT] / RESERVE / larger
    by_rate = 1 if load.rate == inf else ceil(load.rate / shard_rate)
    shards = load.shards or max(1, by_rate, ceil(load.events / looked_at / LONGEST_PREFLIGHT))
    rate = min(load.rate, shards * shard_rate)
    return ImportCapacity(
        rate=rate,
        shard_rate=shard_rate,
        shards=shards,
        duration=load.events / rate,
        preflight=load.events / shards / looked_at,
        reread=load.events / shards / shard_rate,
        memory=OTHER[MeasuredQuantity.IMPORT_MEMORY] * MB,
        source_bytes=load.events * load.event_bytes,
        requests=rate
        / batch_events(Load(rate=rate, event_bytes=load.event_bytes), settings, shards),
    )


# Limits


@dataclass(frozen=True, slots=True)
class CapacityLimit:
    """A limit of a configuration: `reached` and `needed` are events a second, or seconds of an
    outage (`name` is `buffer`).
    """

    name: str
    reached: float
    needed: float

    @property
    def factor(self) -> float:
        """How many times the load it carries."""
        return self.reached / self.needed if self.needed else inf


def limits_of(load: Load, settings: Settings, capacity: Capacity) -> Sequence[CapacityLimit]:
    """How far the settings carry the load on the machines of `capacity`, one of them missing; the
    first limit that is reached first.
    """
    processes = capacity.processes
    reached: Mapping[str, float] = {
        "cpu": processes * capacity.core_rate,
        "upstream": upstream_rate(load, settings, processes),
        "service": load.accepted_rate,
    }
    limits = [
        CapacityLimit(name, rate, load.rate)
        for name, rate in reached.items()
        if name != "service" or load.service_rate
    ]
    if load.source is LoadSource.KAFKA:
        limits.append(
            CapacityLimit("in_flight", in_flight_rate(load, settings, processes), load.rate)
        )
    if keeps_backlog(load, settings) and load.rate:
        share = capacity.max_bytes // capacity.workers
        held = room(share, settings.buffer.kind, load.event_bytes, load.request_events)
        limits.append(CapacityLimit("buffer", held * processes / UNEVEN / load.rate, load.outage))
    return sorted(limits, key=lambda limit: limit.factor)
