"""A plan for a person: what a load needs, each figure with the limit that it comes from and the
key that moves it; and settings to write.

Figures in texts are rounded to three digits; those beside them, for programs, are not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf
from typing import Any, Final

from forwarder.config.section import GIB, MIB
from forwarder.config.settings import Settings
from forwarder.config.units import format_duration, format_size
from forwarder.daemon.memory import BROKERS
from forwarder.planning.capacity import (
    LAG_SECONDS,
    PARTITIONS_EACH,
    RESERVE,
    SPARE,
    UNEVEN,
    Capacity,
    CapacityLimit,
    Load,
    LoadSource,
    MigrationLoad,
    capacity_of,
    full_batch,
    import_capacity,
    in_flight_bytes,
    kafka_of,
    keeps_backlog,
    keeps_order,
    lag_threshold,
    limits_of,
    max_in_flight_for,
    most_requests,
    partitions_for,
    process_memory,
    requests_for,
    retention,
)
from forwarder.planning.figures import OTHER, MeasuredQuantity
from forwarder.planning.routed import largest_shares, most_copies
from forwarder.telemetry.readable import duration, plural

EXAMPLE_URL: Final = "https://us.i.example.com"
_LEAST_DELAY: Final = 5.0
"""Seconds of `shutdown.delay` behind a load balancer."""


@dataclass(frozen=True, slots=True)
class PlannedFigure:
    """One line: `value` for programs (None: without limit), `text` for a person, the limit that it
    comes from, and what moves it.
    """

    name: str
    value: float | None
    text: str
    why: str
    knob: str = ""


@dataclass(frozen=True, slots=True)
class PlannedLimit:
    """How far one limit reaches: `factor` times the load. `fix` says what to do if that is less
    than 1.
    """

    name: str
    reached: str
    factor: float
    fix: str

    @property
    def holds(self) -> bool:
        """Whether the load is within the limit."""
        return self.factor >= 1


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """What a load needs. `settings` are those to write, as they stand in a file."""

    title: str
    figures: Sequence[PlannedFigure]
    limits: Sequence[PlannedLimit]
    settings: Mapping[str, Any]
    notes: Sequence[str]

    @property
    def carried(self) -> bool:
        """Whether all limits hold."""
        return all(limit.holds for limit in self.limits)


def plan_load(load: Load, settings: Settings, *, configured: bool) -> CapacityPlan:
    """The plan for events over HTTP or from Kafka.

    `configured`: the settings are a daemon's own, whose limits are listed; else they are defaults,
    and the limits of what is planned are.
    """
    if len(settings.destinations) > 1:
        return _plan_several(load, settings)
    addresses = _addresses(settings)
    given = settings = settings.of_destination()
    capacity = capacity_of(load, settings)
    requests = requests_for(load, settings, capacity.processes)
    if requests > most_requests(settings):
        settings = replace(settings, delivery=replace(settings.delivery, concurrency=requests))
        capacity = capacity_of(load, settings)
    planned = _planned(load, settings, capacity)
    figures = [
        *_machines(load, settings, capacity),
        *_storage(load, settings, capacity),
        *_upstream(load, settings, capacity),
    ]
    if load.source is LoadSource.KAFKA:
        figures += _kafka(load, planned, capacity)
    if configured:
        as_given = capacity_of(
            replace(load, machines=capacity.machines),
            given,
            fixed_workers=True,
            max_bytes=given.buffer.limit,
        )
        limits = limits_of(load, given, as_given)
    else:
        limits = limits_of(load, planned, replace(capacity, max_bytes=planned.buffer.limit))
    shown = [_limit(limit, planned) for limit in limits]
    return CapacityPlan(
        _title(load, settings),
        figures,
        shown,
        _settings(load, planned, addresses),
        list(_notes(load, settings)),
    )


@dataclass(frozen=True, slots=True)
class _DestinationPart:
    """What one of several destinations takes of the machines that all share."""

    name: str
    load: Load
    given: Settings
    planned: Settings
    capacity: Capacity
    limits: Sequence[CapacityLimit]

    def named(self, text: str) -> str:
        """As labels of lanes name it."""
        return f"{text}@{self.name}"


def _plan_several(load: Load, settings: Settings) -> CapacityPlan:
    """The plan for a configuration with several destinations: an event is received once, and
    buffered and delivered for each that its route names.
    """
    shares = largest_shares(settings)
    copies = replace(load, rate=load.rate * most_copies(settings))
    first = settings.of_destination()
    whole = capacity_of(copies, first)
    parts = [_part(name, share, load, settings, whole) for name, share in shares.items()]
    for part in parts:  # one setting holds for all of them
        if most_requests(part.planned) > most_requests(first):
            first = replace(first, delivery=part.planned.delivery)
    largest = max(part.capacity.max_bytes for part in parts)
    whole = replace(
        whole,
        max_bytes=largest,
        memory=_memory_of_all(whole, parts),
        traffic_in=load.rate * load.event_bytes,
    )
    planned = _planned(load, first, whole)
    gets = ", ".join(f"{part.name} {shares[part.name]:.3g}" for part in parts)
    figures = [
        PlannedFigure(
            "copies",
            copies.rate,
            f"{about(copies.rate)} events/s",
            f"an event has one for each destination; as if all took the route to the most ({gets})",
            "routes",
        ),
        *_machines(copies, first, whole),
    ]
    for part in parts:
        own = [*_storage(part.load, part.planned, part.capacity)]
        if not part.given.destination.archive.url:
            own += _upstream(part.load, part.planned, part.capacity)
        figures += [replace(figure, name=part.named(figure.name)) for figure in own]
    if load.source is LoadSource.KAFKA:
        figures += _kafka(load, planned, whole)
    cpu = CapacityLimit("cpu", settings.workers * whole.carrying * whole.core_rate, copies.rate)
    limits = [_limit(cpu, planned)]
    for part in parts:
        limits += [
            replace(shown, name=part.named(shown.name))
            for shown in (_limit(limit, planned) for limit in part.limits)
        ]
    return CapacityPlan(
        f"{_title(load, first)}; {plural(len(parts), 'destination')}",
        figures,
        sorted(limits, key=lambda limit: limit.factor),
        _settings(load, planned, _addresses(settings)),
        [*_notes(load, first), "Keep your routes, and the other keys of upstreams."],
    )


def _part(
    name: str, share: float, load: Load, settings: Settings, whole: Capacity
) -> _DestinationPart:
    """What a destination takes, on so many machines and workers as the whole has."""
    own_load = replace(load, rate=load.rate * share, machines=whole.machines)
    given = settings.of_destination(name)
    planned = replace(given, workers=whole.workers)
    requests = requests_for(own_load, planned, whole.processes)
    if requests > most_requests(planned):
        planned = replace(planned, delivery=replace(planned.delivery, concurrency=requests))
    as_given = capacity_of(own_load, given, fixed_workers=True, max_bytes=given.buffer.limit)
    left_out = {"cpu", *(("upstream", "service") if given.destination.archive.url else ())}
    return _DestinationPart(
        name,
        own_load,
        given,
        planned,
        capacity_of(own_load, planned, fixed_workers=True),
        [limit for limit in limits_of(own_load, given, as_given) if limit.name not in left_out],
    )


def _memory_of_all(whole: Capacity, parts: Sequence[_DestinationPart]) -> int:
    """Bytes of a machine: of its processes, and what each destination's buffer has in memory."""
    return parts[0].capacity.memory + sum(
        whole.workers
        * (
            process_memory(part.load, part.planned, part.capacity.max_bytes // whole.workers)
            - process_memory(part.load, part.planned, 0)
        )
        for part in parts[1:]
    )


def _addresses(settings: Settings) -> Mapping[str, Any]:
    """Where events go, as it is written in a file."""
    if not settings.upstreams:
        return {"upstream": {"url": settings.upstream.url or EXAMPLE_URL}}
    return {
        "upstreams": {
            upstream.name: {"archive": upstream.archive.url}
            if upstream.archive.url
            else {"url": upstream.url}
            for upstream in settings.upstreams
        }
    }


def about(number: float) -> str:
    """A number rounded to three digits."""
    if number < 1000:
        return f"{number:.3g}"
    return f"{round(number, 3 - len(str(int(number)))):,.0f}"


def rounded_size(size: int) -> int:
    """A size that is written, rounded up to whole GiB or MiB."""
    unit = GIB if size >= 10 * GIB else MIB
    return ceil(size / unit) * unit


def _bytes(size: float) -> str:
    for unit, factor in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{about(size / factor)} {unit}"
    return f"{size:.0f} B"


def _title(load: Load, settings: Settings) -> str:
    if load.source is LoadSource.HTTP:
        what = (
            f"{about(load.rate)} events/s over HTTP, {plural(load.request_events, 'event')} "
            f"of {load.event_bytes:,} bytes in a request"
        )
    else:
        what = f"{about(load.rate)} events/s from Kafka, {load.event_bytes:,} bytes each"
    storage = (
        f"buffered {_place(settings)}" if keeps_backlog(load, settings) else "kept in their topic"
    )
    return (
        f"{what}; {storage} through an outage of {duration(load.outage)}"
        if load.outage
        else f"{what}; without an outage"
    )


def _place(settings: Settings) -> str:
    return "on disk" if settings.buffer.kind == "disk" else "in memory"


# Figures


def _machines(load: Load, settings: Settings, capacity: Capacity) -> Iterator[PlannedFigure]:
    busy = f"{capacity.busy:.2g}" if capacity.busy < 10 else about(capacity.busy)
    measured = (
        f"half of the {about(capacity.core_rate * RESERVE)} that were measured for such events"
    )
    moved = "events in a request, upstream.compression, buffer.kind"
    yield PlannedFigure(
        "cores",
        capacity.busy,
        f"{busy} busy",
        f"a core is planned for {about(capacity.core_rate)} events/s: {measured}",
        moved,
    )
    most = (
        "several keep no order"
        if keeps_order(load, settings)
        else f"of {plural(load.cores, 'core')} one is left to the system"
    )
    yield PlannedFigure(
        "workers",
        capacity.workers,
        f"{capacity.workers} a machine",
        f"a worker uses one core; {most}",
        "workers, --cores",
    )
    needed = {
        "cpu": f"{capacity.carrying:,} for the load, and {SPARE} that may be missing",
        "buffer": (
            f"{capacity.carrying:,} for the backlog, since a buffer has 1 TiB at most, and "
            f"{SPARE} that may be missing"
        ),
        "given": f"as given; {SPARE} of them may be missing",
    }[capacity.carrying_by]
    yield PlannedFigure(
        "machines",
        capacity.machines,
        f"{capacity.machines:,}",
        f"{needed}; a pod counts as one",
        "replicas, --machines",
    )
    share = format_size(rounded_size(capacity.max_bytes // capacity.workers))
    held = (
        "64MiB of what is on disk"
        if settings.buffer.kind == "disk"
        else f"its part of the buffer, {share}"
    )
    fetched = f", fetches of {BROKERS} brokers" if load.source is LoadSource.KAFKA else ""
    why = f"each worker: {OTHER[MeasuredQuantity.MEMORY]} MB at most, {held}{fetched}"
    yield PlannedFigure(
        "memory",
        capacity.memory,
        f"{_bytes(capacity.memory)} a machine",
        why,
        "buffer.kind, buffer.max_bytes",
    )
    left = (
        f"gzip leaves {OTHER[MeasuredQuantity.GZIP_PERCENT]} %"
        if settings.upstream.compression == "gzip"
        else "not compressed"
    )
    traffic = f"{_bytes(capacity.traffic_in)}/s in, {_bytes(capacity.traffic_out)}/s out"
    yield PlannedFigure(
        "traffic",
        capacity.traffic_in,
        traffic,
        f"of all machines; towards the service {left}",
        "upstream.compression",
    )


def _storage(load: Load, settings: Settings, capacity: Capacity) -> Iterator[PlannedFigure]:
    if not keeps_backlog(load, settings):
        seconds = retention(load, capacity)
        stored = (
            ""
            if seconds == inf
            else f", {_bytes(load.rate * load.event_bytes * seconds)} without compression"
        )
        why = f"the outage and the time to catch up, twice{stored}"
        shown = duration(seconds) if seconds < inf else "without end"
        yield PlannedFigure(
            "retention",
            _finite(seconds),
            shown,
            why,
            "the topic's retention.ms and retention.bytes",
        )
        return
    share = (
        f"{capacity.max_bytes * capacity.carrying / capacity.backlog:,.0f} bytes each"
        if capacity.backlog
        else "none"
    )
    counted = (
        f"{about(capacity.backlog)} events, {share}: JSON, overhead, a lane's share of 7/8, "
        f"{UNEVEN - 1:.0%} more since senders spread unevenly"
    )
    size = f"{format_size(rounded_size(capacity.max_bytes))} a machine"
    on_disk = settings.buffer.kind == "disk"
    dead_letters = (
        f"; dead letters ({format_size(settings.dead_letter_limit)}) are beside it"
        if on_disk
        else ""
    )
    yield PlannedFigure(
        "disk" if on_disk else "buffer",
        capacity.max_bytes,
        size,
        f"{counted}{dead_letters}",
        "buffer.max_bytes, --outage",
    )


def _upstream(load: Load, settings: Settings, capacity: Capacity) -> Iterator[PlannedFigure]:
    full = full_batch(load, settings)
    closed = (
        f"batch.max_age ({format_duration(settings.batch.max_age)}), in each worker and for "
        "each project key"
    )
    if capacity.batch >= full:
        closed = "batch.max_events" if full == settings.batch.max_events else "batch.max_bytes"
    moved = "batch.max_events, batch.max_bytes, batch.max_age"
    yield PlannedFigure(
        "batch", capacity.batch, plural(ceil(capacity.batch), "event"), f"closed by {closed}", moved
    )
    most = most_requests(settings)
    processes = capacity.machines * capacity.workers
    flight = f"{about(capacity.in_flight)} in flight at answers of {format_duration(load.latency)}"
    kind = "adaptive" if settings.delivery.concurrency == "adaptive" else "fixed"
    requests = f"{about(capacity.requests)} a second"
    yield PlannedFigure(
        "requests",
        capacity.requests,
        requests,
        f"{flight}; {most} a worker at most ({kind})",
        "delivery.concurrency",
    )
    why = f"{plural(processes, 'worker')}, a connection for each request in flight"
    yield PlannedFigure(
        "connections",
        capacity.connections,
        f"{capacity.connections:,} at most",
        why,
        "delivery.concurrency",
    )
    if load.outage:
        yield _catch_up(load, settings, capacity)


def _catch_up(load: Load, settings: Settings, capacity: Capacity) -> PlannedFigure:
    assumed = " (assumed: twice the load)" if load.service_rate is None else ""
    own = (
        f"; forwarder itself needs {_duration(capacity.own_catch_up)}"
        if capacity.own_catch_up < inf
        else ""
    )
    why, knob = {
        "service": (
            f"the service accepts {about(load.accepted_rate)} events/s{assumed}{own}",
            "--service-rate",
        ),
        "upstream": (
            f"each worker has {most_requests(settings)} requests in flight at most",
            "delivery.concurrency, batch.max_events",
        ),
        "cpu": ("half of the cores that the load leaves", "workers, replicas"),
    }[capacity.catch_up_by]
    return PlannedFigure(
        "catch-up",
        _finite(capacity.catch_up),
        _duration(capacity.catch_up),
        f"beside the load: {why}",
        knob,
    )


def _kafka(load: Load, planned: Settings, capacity: Capacity) -> Iterator[PlannedFigure]:
    members = capacity.machines * capacity.workers
    count = partitions_for(members)
    share = f"{PARTITIONS_EACH} for each of {plural(members, 'member')} of the group"
    yield PlannedFigure("partitions", count, f"{count:,} or more", share, "the topic's partitions")
    held = kafka_of(planned).max_in_flight or 0
    waiting = _bytes(in_flight_bytes(load, planned, capacity.processes))
    why = (
        f"{waiting} wait for their batch and its answer while the group catches up; a pause "
        "lasts until half is settled"
    )
    yield PlannedFigure(
        "in flight", held, f"{format_size(held)} a worker", why, "max_in_flight of the source"
    )
    threshold = lag_threshold(load, planned)
    why = f"to scale by the group's lag: what a busy replica works off in {LAG_SECONDS} s"
    yield PlannedFigure(
        "lag", threshold, f"{about(threshold)} records a replica", why, "lagThreshold"
    )


def _finite(value: float) -> float | None:
    return value if value < inf else None


def _duration(seconds: float) -> str:
    return duration(seconds) if seconds < inf else "never"


# Settings and limits


def _planned(load: Load, settings: Settings, capacity: Capacity) -> Settings:
    """The settings with what is planned."""
    changed = replace(
        settings,
        workers=capacity.workers,
        buffer=replace(settings.buffer, max_bytes=rounded_size(capacity.max_bytes)),
    )
    if load.source is LoadSource.KAFKA:
        first = replace(
            kafka_of(settings), max_in_flight=max_in_flight_for(load, settings, capacity.processes)
        )
        changed = replace(
            changed, sources=replace(settings.sources, kafka=(first, *settings.sources.kafka[1:]))
        )
    return changed


def _limit(limit: CapacityLimit, planned: Settings) -> PlannedLimit:
    reached = (
        f"an outage of {duration(limit.reached)}"
        if limit.name == "buffer"
        else f"{about(limit.reached)} events/s"
    )
    in_flight = format_size(kafka_of(planned).max_in_flight or 0)
    name, fix = {
        "cpu": ("CPU", f"set workers to {planned.workers}, or run more machines"),
        "upstream": (
            "requests to the service",
            f"set delivery.concurrency to {most_requests(planned)}, or use larger batches",
        ),
        "service": ("the service", "no setting of forwarder moves it"),
        "in_flight": ("max_in_flight", f"set max_in_flight of the source to {in_flight}"),
        "buffer": (
            "buffer.max_bytes",
            f"set buffer.max_bytes to {format_size(planned.buffer.limit)}",
        ),
    }[limit.name]
    return PlannedLimit(name, reached, limit.factor, fix)


def _settings(load: Load, planned: Settings, addresses: Mapping[str, Any]) -> Mapping[str, Any]:
    """What to write: what the plan decides, and what a file can't do without."""
    written: dict[str, Any] = {**addresses}
    if load.source is LoadSource.KAFKA:
        cluster = kafka_of(planned)
        topics = (
            {"topics_pattern": cluster.topics_pattern}
            if cluster.topics_pattern
            else {"topics": list(cluster.topics or ("events",))}
        )
        source = {
            "name": cluster.name,
            "bootstrap_servers": list(cluster.bootstrap_servers or ("kafka:9092",)),
            **topics,
        }
        written["sources"] = {
            "kafka": [
                {
                    **source,
                    "group_id": cluster.group_id,
                    "max_in_flight": format_size(cluster.max_in_flight or 0),
                }
            ]
        }
    written["buffer"] = {
        "kind": planned.buffer.kind,
        "max_bytes": format_size(planned.buffer.limit),
    }
    if planned.delivery.concurrency != "adaptive":
        written["delivery"] = {"concurrency": planned.delivery.concurrency}
    if planned.workers > 1:
        written["workers"] = planned.workers
    if load.source is LoadSource.HTTP:
        written["shutdown"] = {"delay": format_duration(max(_LEAST_DELAY, planned.shutdown.delay))}
    return written


def _notes(load: Load, settings: Settings) -> Iterator[str]:
    yield (
        "Measured on one core of a shared machine. TLS, rules and slower cores come out of "
        "the half that is in reserve."
    )
    if load.source is LoadSource.HTTP and not load.unstamped:
        yield (
            "Events have uuid and timestamp, as those of official SDKs; --unstamped is for others."
        )
    if keeps_backlog(load, settings) and settings.buffer.kind == "memory":
        yield "Events in memory are lost with their process; buffer.kind: disk keeps them."


# Imports


def plan_import(load: MigrationLoad, settings: Settings) -> CapacityPlan:
    """The plan for a migration."""
    addresses = _addresses(settings)
    settings = settings.of_destination()
    capacity = import_capacity(load, settings)
    core = f"a core is planned for {about(capacity.shard_rate)} events/s of this format"
    guidance = "import.rate; the service's published guidance is a few thousand"
    limit = guidance if capacity.rate >= load.rate else core
    shard = "--shard K/N"
    figures = [
        PlannedFigure(
            "duration",
            capacity.duration,
            duration(capacity.duration),
            f"{about(capacity.rate)} events/s in all: {limit}",
            "--rate",
        ),
        PlannedFigure(
            "shards",
            capacity.shards,
            f"{capacity.shards:,}",
            f"{core}, and a preflight for a day at most",
            shard,
        ),
        PlannedFigure(
            "preflight",
            capacity.preflight,
            duration(capacity.preflight),
            "everything is read once before anything is sent",
            shard,
        ),
        PlannedFigure(
            "resume",
            capacity.reread,
            f"up to {duration(capacity.reread)}",
            "a killed shard reads again what it has sent",
            shard,
        ),
        PlannedFigure(
            "memory",
            capacity.memory,
            f"{_bytes(capacity.memory)} a shard",
            "whatever the size of its files",
        ),
        PlannedFigure(
            "source",
            capacity.source_bytes,
            _bytes(capacity.source_bytes),
            "the events' JSON, before compression",
        ),
        PlannedFigure(
            "requests",
            capacity.requests,
            f"{about(capacity.requests)} a second",
            "or more: a batch has one UTC day",
            "batch.max_events",
        ),
    ]
    rate = "unlimited" if load.rate == inf else int(load.rate)
    written = {**addresses, "import": {"rate": rate}}
    note = (
        "Imported events can't be deleted one by one: rehearse with a sample first, as "
        "`forwarder help migration` says."
    )
    return CapacityPlan(
        f"An import of {load.events:,} events in the format {load.form}",
        figures,
        [],
        written,
        [note],
    )
