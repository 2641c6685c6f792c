"""The formulas: beside the code that they describe, at the figures that were measured, and in
which direction each quantity moves.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forwarder.buffer.memory import MemoryBuffer
from forwarder.config.settings import (
    BatchSettings,
    BufferSettings,
    DeliverySettings,
    Settings,
    UpstreamSettings,
)
from forwarder.config.source_settings import HttpSettings, KafkaSettings, SourcesSettings
from forwarder.core.event import NO_IDS, Chunk, Lane
from forwarder.core.ports import Fate, Ordering
from forwarder.daemon.policies import batch_policy
from forwarder.delivery.batching import Batcher
from forwarder.planning.capacity import (
    LARGEST_BUFFER,
    RESERVE,
    UNEVEN,
    Load,
    LoadSource,
    MigrationLoad,
    batch_events,
    capacity_of,
    core_rate,
    event_cost,
    full_batch,
    import_capacity,
    in_flight_rate,
    kafka_of,
    lag_threshold,
    limits_of,
    max_in_flight_for,
    retention,
    room,
)
from forwarder.planning.figures import BODY_EVENTS, HTTP, KAFKA, OTHER, MeasuredQuantity, WorkKind
from tests.support.cases import cases

PLAIN = Settings(
    upstream=UpstreamSettings(compression="none"),
    sources=SourcesSettings(http=HttpSettings(stamp_ip="never")),
    buffer=BufferSettings(),
)
DISK = Settings(buffer=BufferSettings(kind="disk"))
HOUR = 3600.0
MIB = 1 << 20

settings_of = {
    WorkKind.PLAIN: PLAIN,
    WorkKind.GZIP: replace(PLAIN, upstream=UpstreamSettings()),
    WorkKind.DISK: replace(PLAIN, buffer=BufferSettings(kind="disk")),
    WorkKind.ORDERED: replace(PLAIN, delivery=DeliverySettings(ordering=Ordering.PER_DISTINCT_ID)),
    WorkKind.ADDRESSED: replace(PLAIN, sources=SourcesSettings()),
    WorkKind.UNSTAMPED: PLAIN,
}


@cases("kind", HTTP)
@cases("at", range(len(BODY_EVENTS)))
def test_what_was_measured_over_http_is_what_is_planned_with(kind: WorkKind, at: int) -> None:
    """At each measured body and difference the cost is the measured one, and a core is planned for
    half of its throughput.
    """
    load = Load(rate=1.0, request_events=BODY_EVENTS[at], unstamped=kind is WorkKind.UNSTAMPED)
    assert event_cost(load, settings_of[kind]) == pytest.approx(1 / HTTP[kind][at])
    assert core_rate(load, settings_of[kind]) == pytest.approx(HTTP[kind][at] / RESERVE)


@cases("kind", KAFKA)
def test_what_was_measured_of_kafka_is_what_is_planned_with(kind: WorkKind) -> None:
    """The same of records; the disk costs where offsets are committed by it."""
    sources = SourcesSettings(
        kafka=(KafkaSettings(commit="disk" if kind is WorkKind.DISK else "delivered"),)
    )
    size = OTHER[MeasuredQuantity.RECORD_BYTES]
    load = Load(
        rate=1.0, source=LoadSource.KAFKA, event_bytes=size, unstamped=kind is WorkKind.UNSTAMPED
    )
    assert event_cost(load, replace(settings_of[kind], sources=sources)) == pytest.approx(
        1 / KAFKA[kind]
    )


def test_differences_add_up() -> None:
    """Compression, the disk and a stamp each take their own time."""
    load = Load(rate=1.0, request_events=50, unstamped=True)
    both = replace(settings_of[WorkKind.GZIP], buffer=BufferSettings(kind="disk"))
    kinds = WorkKind.GZIP, WorkKind.DISK, WorkKind.UNSTAMPED
    expected = sum([1 / HTTP[kind][1] for kind in kinds]) - 2 / HTTP[WorkKind.PLAIN][1]
    assert event_cost(load, both) == pytest.approx(expected)


@given(st.integers(1, 5000), st.integers(1, 5000))
def test_an_event_costs_less_in_a_larger_body(one: int, other: int) -> None:
    """Between the measured bodies, and beyond them, too."""
    small, large = sorted((one, other))
    assert (
        event_cost(Load(rate=1.0, request_events=large), DISK)
        <= event_cost(Load(rate=1.0, request_events=small), DISK) * 1.000001
    )


def test_larger_events_cost_in_proportion() -> None:
    """And smaller ones are planned as the measured ones."""
    measured, small, large = (
        core_rate(Load(rate=1.0, event_bytes=size), DISK) for size in (600, 60, 6000)
    )
    assert small == measured
    assert large == pytest.approx(measured / 10)


@cases(
    ("rate", "together", "keys", "batch"),
    [
        (20_000, 50, 1, BatchSettings()),
        (2_000, 50, 1, BatchSettings()),
        (500, 1, 4, BatchSettings()),
        (20_000, 100, 1, BatchSettings(max_bytes=1_000_000)),
        (3_000, 10, 2, BatchSettings(max_age=0.2)),
    ],
)
def test_batches_are_those_that_the_batcher_makes(
    rate: int, together: int, keys: int, batch: BatchSettings
) -> None:
    """The real batcher, given such a load for half a minute, sends as many requests as
    are planned.
    """
    settings = replace(DISK, batch=batch)
    buffer = MemoryBuffer(1 << 30)
    batcher = Batcher(buffer, batch_policy(settings))
    data = b",".join([b"x" * 600] * together)
    lanes = [Lane(f"phc_{number:043}") for number in range(keys)]
    seconds = 30
    sent = 0
    now = 0.0
    for number in range(rate * seconds // together):
        now = number * together / rate
        buffer.offer([Chunk(lanes[number % keys], data, together, NO_IDS, now)])
        for lane in lanes:
            while (made := batcher.next(lane, now)) is not None:
                buffer.settle(made.chunks, Fate.DELIVERED)
                sent += 1
    load = Load(rate=rate, request_events=together, keys=keys)
    assert sent / seconds == pytest.approx(rate / batch_events(load, settings, 1), rel=0.1)
    assert capacity_of(load, settings).requests == pytest.approx(
        rate / batch_events(load, settings, 1)
    )


def test_a_full_batch_is_closed_by_count_or_by_bytes() -> None:
    """The first that is reached; an event that is larger than a batch goes alone."""
    assert full_batch(Load(rate=1.0), DISK) == 5000
    assert full_batch(Load(rate=1.0, event_bytes=10_000), DISK) == 499
    assert full_batch(Load(rate=1.0, event_bytes=9_000_000), DISK) == 1


@given(
    rate=st.floats(1, 5_000_000),
    outage=st.floats(0, 3 * 86_400),
    together=st.integers(1, 1000),
    cores=st.integers(1, 64),
    event_bytes=st.integers(50, 20_000),
)
def test_what_is_planned_carries_the_load(
    rate: float, outage: float, together: int, cores: int, event_bytes: int
) -> None:
    """Whatever the load: cores, requests and buffers of the machines that are left, when one is
    missing, hold it; with a reserve.
    """
    load = Load(
        rate=rate,
        outage=outage,
        request_events=together,
        cores=cores,
        event_bytes=event_bytes,
        latency=0.05,
    )
    capacity = capacity_of(load, DISK)
    assert capacity.machines == capacity.carrying + 1
    assert capacity.workers <= max(1, cores - 1)
    assert capacity.processes * capacity.core_rate >= rate
    assert capacity.busy <= capacity.processes / RESERVE * 1.000001
    assert capacity.max_bytes <= LARGEST_BUFFER
    held = (
        room(capacity.max_bytes // capacity.workers, "disk", event_bytes, together)
        * capacity.processes
    )
    assert held >= capacity.backlog * UNEVEN
    assert all(limit.factor >= 0.999 for limit in limits_of(load, DISK, capacity))


@given(st.floats(1, 1_000_000), st.floats(1.01, 10))
def test_more_load_never_takes_less(rate: float, more: float) -> None:
    """Cores, machines, disk, requests and memory grow with the rate."""
    less, greater = (
        capacity_of(Load(rate=load_rate, outage=HOUR), DISK) for load_rate in (rate, rate * more)
    )
    assert less.busy < greater.busy
    assert less.machines <= greater.machines
    assert less.max_bytes * less.carrying <= greater.max_bytes * greater.carrying * 1.01 + 2 * MIB
    assert less.requests <= greater.requests * 1.000001


def test_order_over_http_has_one_worker_a_machine() -> None:
    """Several would keep no order; from Kafka they do, by partition."""
    ordered = replace(DISK, delivery=DeliverySettings(ordering=Ordering.PER_DISTINCT_ID))
    load = Load(rate=1_000_000, cores=8, outage=0.0)
    assert capacity_of(load, ordered).workers == 1
    assert capacity_of(replace(load, source=LoadSource.KAFKA), ordered).workers > 1


def test_catching_up_takes_what_the_service_leaves() -> None:
    """A service that takes twice the load needs as long as the outage; one that takes the load
    alone never ends.
    """
    load = Load(rate=10_000, outage=HOUR)
    assert capacity_of(load, DISK).catch_up == pytest.approx(HOUR)
    assert capacity_of(replace(load, service_rate=40_000), DISK).catch_up == pytest.approx(HOUR / 3)
    assert capacity_of(replace(load, service_rate=10_000), DISK).catch_up == inf
    assert capacity_of(replace(load, service_rate=10**9, latency=1e-3), DISK).catch_up_by == "cpu"
    assert (
        capacity_of(replace(load, service_rate=10**9, latency=10.0), DISK).catch_up_by == "upstream"
    )


def test_a_topic_keeps_what_an_outage_leaves_in_it() -> None:
    """From Kafka the backlog needs no buffer, but retention; with `commit: disk` it
    needs the disk.
    """
    load = Load(rate=20_000, outage=8 * HOUR, source=LoadSource.KAFKA)
    capacity = capacity_of(load, Settings())
    assert capacity.max_bytes < 1 << 30
    assert retention(load, capacity) == pytest.approx(2 * (8 + 8) * HOUR)
    by_disk = replace(DISK, sources=SourcesSettings(kafka=(KafkaSettings(commit="disk"),)))
    over_http = capacity_of(replace(load, source=LoadSource.HTTP), DISK)
    assert capacity_of(load, by_disk).max_bytes == pytest.approx(over_http.max_bytes, rel=0.01)


def test_what_may_be_in_flight_is_enough_to_catch_up() -> None:
    """`max_in_flight` as planned lets a group deliver what the service accepts, one of its members
    missing; the default doesn't always.
    """
    load = Load(rate=60_000, outage=HOUR, source=LoadSource.KAFKA)
    capacity = capacity_of(load, Settings())
    planned = Settings(
        sources=SourcesSettings(
            kafka=(
                KafkaSettings(
                    max_in_flight=max_in_flight_for(load, Settings(), capacity.processes)
                ),
            )
        )
    )
    assert in_flight_rate(load, planned, capacity.processes) >= load.accepted_rate
    assert in_flight_rate(load, Settings(), capacity.processes) < load.rate
    assert kafka_of(planned).max_in_flight is not None


def test_a_lag_is_worked_off_within_seconds() -> None:
    """The threshold is what a replica delivers in ten seconds: of all its workers, as far as
    requests in flight allow.
    """
    load = Load(rate=1.0, source=LoadSource.KAFKA, event_bytes=510)
    wide = Settings(sources=SourcesSettings(kafka=(KafkaSettings(max_in_flight=1 << 30),)))
    assert lag_threshold(load, wide) == pytest.approx(
        KAFKA[WorkKind.GZIP] / RESERVE * 10, rel=0.001
    )
    assert lag_threshold(load, replace(wide, workers=2)) == pytest.approx(
        2 * lag_threshold(load, wide), abs=2
    )
    assert lag_threshold(load, Settings()) < lag_threshold(load, wide)


def test_an_import_takes_as_long_as_its_rate() -> None:
    """More shards shorten the preflight; the sending only where no rate limits it."""
    load = MigrationLoad(events=10**10, form="amplitude")
    few, many = (import_capacity(replace(load, shards=shards), DISK) for shards in (2, 20))
    assert few.duration == many.duration == pytest.approx(10**10 / 2000)
    assert few.preflight == pytest.approx(10 * many.preflight)
    free = replace(load, rate=inf, shards=10)
    assert import_capacity(free, DISK).duration == pytest.approx(10**10 / (10 * few.shard_rate))
    assert import_capacity(load, DISK).preflight <= 86_400


def test_the_rate_of_imports_is_the_default() -> None:
    """A migration is planned at the rate that an import has by itself."""
    assert MigrationLoad(events=1).rate == DISK.import_.rate


def test_limits_are_in_the_order_in_which_they_are_reached() -> None:
    """The first is the one that carries least of the load."""
    load = Load(rate=200_000, outage=HOUR, machines=2)
    capacity = capacity_of(load, DISK, fixed_workers=True, max_bytes=1 << 30)
    limits = limits_of(load, DISK, capacity)
    assert [limit.name for limit in limits] == ["buffer", "cpu", "upstream"]
    assert limits[0].factor < limits[1].factor < 1 < limits[2].factor
