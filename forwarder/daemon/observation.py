"""Puts the figures of all parts together into one snapshot.

Invariant: it is taken in one go on the loop's thread, so that figures of different parts belong together and the books balance in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from forwarder import __version__
from forwarder.buffer.disk.buffer import DiskBuffer, DiskStatistics
from forwarder.buffer.memory import MemoryBuffer
from forwarder.core.clock import Clock
from forwarder.core.event import Lane
from forwarder.core.ports import DropReason, WhenFull
from forwarder.deadletter.memory import MemoryDeadLetters
from forwarder.deadletter.store import DeadLetterStore
from forwarder.delivery.delivery import Delivery
from forwarder.delivery.halting import HaltReport
from forwarder.delivery.statistics import DeliveryStatistics, HistogramCounts
from forwarder.intake.intake import Intake
from forwarder.sources.http.listener import HttpListener
from forwarder.sources.http.passthrough import PassThrough, PassThroughStatistics
from forwarder.telemetry.books import Account, Books
from forwarder.telemetry.labels import OTHER, LaneLabels
from forwarder.telemetry.readable import duration
from forwarder.telemetry.snapshot import Histogram, LaneSnapshot, Snapshot, State, Upstream, UpstreamState, by_label, without_credentials

if TYPE_CHECKING:  # it brings a large client with it
    from forwarder.daemon.kafka import KafkaSources

FULL: Final = 0.98
"""The share of the buffer in use from which on it counts as full: hardly a request fits any more."""

NAMED: Final = 3
"""Lanes that are named in warnings; the others are counted."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a pipeline that have something to tell."""

    books: Books
    dead_letters: DeadLetterStore | MemoryDeadLetters
    buffer: DiskBuffer | MemoryBuffer
    delivery: Delivery
    intake: Intake
    listener: HttpListener
    passthrough: PassThrough | None = None
    kafka: KafkaSources | None = None


class Observer:
    """Takes snapshots of one pipeline."""

    def __init__(self, parts: Parts, upstream_url: str, clock: Clock, when_full: WhenFull = WhenFull.REJECT) -> None:
        self._parts = parts
        self._when_full = when_full
        self._url = without_credentials(upstream_url)
        self._clock = clock
        self._labels = LaneLabels()
        self._started_at = clock.now()
        self._found = sum(map(parts.buffer.count, parts.buffer.waiting_lanes()))
        self._dropped_before = sum(_dropped_when_full(parts.books))

    def snapshot(self, state: State) -> Snapshot:
        """The state of all parts now."""
        parts, now = self._parts, self._clock.now()
        delivery, listener, buffer = parts.delivery.statistics(), parts.listener.statistics(), parts.buffer.statistics()
        letters, disk = parts.dead_letters.statistics(), buffer if isinstance(buffer, DiskStatistics) else DiskStatistics(0, 0, 0)
        passed = PassThroughStatistics({}) if parts.passthrough is None else parts.passthrough.statistics()
        kafka, kafka_warnings = parts.kafka.observe(now) if parts.kafka is not None else ((), ())
        not_ready = _not_ready(state, buffer.bytes, buffer.limit_bytes, disk.refusing)
        return Snapshot(
            version=__version__,
            state=state,
            started_at=self._started_at,
            now=now,
            lanes=self._lanes(delivery, now),
            buffer_kind="disk" if disk is buffer else "memory",
            buffer_bytes=buffer.bytes,
            buffer_limit_bytes=buffer.limit_bytes,
            buffer_disk_bytes=disk.disk_bytes,
            buffer_refusing=bool(disk.refusing),
            upstream=Upstream(self._url, _upstream_state(delivery), delivery.upstream.why),
            upstream_requests=delivery.requests,
            request_duration=_histogram(delivery.durations),
            batch_bytes=_histogram(delivery.batch_bytes),
            batch_events=_histogram(delivery.batch_events),
            concurrency_limit=delivery.concurrency_limit,
            in_flight=delivery.in_flight,
            http_requests=listener.requests,
            passthrough_requests=passed.requests,
            http_rejected_connections=listener.rejected_connections,
            rejected_requests=listener.rejected,
            addresses=tuple(parts.listener.addresses),
            connections=listener.connections,
            warnings=(
                *_warnings(delivery, parts.intake.statistics().nulled_numbers),
                *self._retries(delivery, now),
                *_passed_warnings(passed),
                *kafka_warnings,
                *self._buffer_warnings(disk),
                *letters.warnings,
            ),
            kafka=kafka,
            ready=not not_ready,
            not_ready=not_ready,
            buffer_found=self._found,
            dead_letters_path=str(letters.path or ""),
            dead_letters_wanted=letters.marked,
        )

    def _lanes(self, delivery: DeliveryStatistics, now: float) -> tuple[LaneSnapshot, ...]:
        halts = {halt.lane: halt for halt in delivery.halts}
        oldest = self._oldest()
        accounts = self._parts.books.accounts
        lanes = [self._lane(lane, account, halts.get(lane) if lane else None, oldest, now) for lane, account in accounts.items()]
        return by_label([*lanes, _of_account(OTHER, accounts.others)] if accounts.others.received else lanes)

    def _lane(
        self, lane: Lane | None, account: Account, halt: HaltReport | None, oldest: dict[Lane, float], now: float
    ) -> LaneSnapshot:
        since = oldest.get(lane) if lane else None
        return replace(
            _of_account(self._labels.label(lane), account),
            buffered=self._parts.buffer.count(lane) if lane else 0,
            oldest_age=None if since is None else max(0.0, now - since),
            halted=halt.reason.value if halt else None,
            halted_since=halt.since if halt else None,
            next_probe=halt.next_probe if halt else None,
            why=halt.why if halt else "",
            hint=halt.hint if halt else "",
        )

    def _retries(self, delivery: DeliveryStatistics, now: float) -> Iterator[str]:
        """Which lanes the upstream doesn't take for now; the first few by name."""
        for retry in delivery.retries[:NAMED]:
            wait = duration(max(0.0, retry.next_attempt - now))
            yield f"lane {self._labels.label(retry.lane)} is to be sent again in {wait}: {retry.why}; its events wait in the buffer"
        if len(delivery.retries) > NAMED:
            yield f"{len(delivery.retries) - NAMED} more lanes are to be sent again"

    def _buffer_warnings(self, disk: DiskStatistics) -> Iterator[str]:
        """What the files of the buffer have lost, and what is lost because it is full."""
        if disk.aside:
            yield f"{disk.aside} files lie aside that hold what couldn't be read of the buffer; `forwarder buffer ls` names them"
        dropped = sum(_dropped_when_full(self._parts.books)) - self._dropped_before
        if dropped and self._when_full is not WhenFull.REJECT:
            yield f"{dropped} events were dropped since the start because the buffer was full (buffer.when_full: {self._when_full.value})"

    def _oldest(self) -> dict[Lane, float]:
        """When each lane's oldest event was received, waiting or in flight."""
        oldest = self._parts.delivery.oldest()
        for lane in self._parts.buffer.waiting_lanes():
            waiting = self._parts.buffer.oldest(lane)
            if waiting is not None:
                oldest[lane] = min(waiting, oldest.get(lane, waiting))
        return oldest


def _of_account(label: str, account: Account) -> LaneSnapshot:
    return LaneSnapshot(
        label=label,
        received=dict(account.received),
        delivered=account.delivered,
        dead_lettered={reason.value: count for reason, count in account.dead_lettered.items()},
        dropped={reason.value: count for reason, count in account.dropped.items()},
    )


def _passed_warnings(passed: PassThroughStatistics) -> Iterator[str]:
    """Which addresses calls aren't passed through to, because they fail."""
    for url, why in passed.failing:
        yield f"calls that would be passed through to {without_credentials(url)} get 503 at once, it fails: {why}; it is probed"


def _dropped_when_full(books: Books) -> Iterator[int]:
    """Events that were dropped for want of room, an account at a time."""
    for account in (*books.accounts.values(), books.accounts.others):
        yield account.dropped.get(DropReason.DROP_NEWEST, 0) + account.dropped.get(DropReason.DROP_OLDEST, 0)


def _not_ready(state: State, used: int, limit: int, refusing: str = "") -> tuple[str, ...]:
    """Why nothing can be taken; an upstream that is down or a halted lane is no reason (architecture: Health)."""
    if state is State.STARTING:
        return ("starting",)
    if state is State.DRAINING:
        return ("draining: this process is about to end",)
    if refusing:
        return (f"the disk refuses to write: {refusing}; senders get 503",)
    return ("the buffer is full: senders get 503",) if used >= limit * FULL else ()


def _upstream_state(delivery: DeliveryStatistics) -> UpstreamState:
    if delivery.upstream.failing:
        return UpstreamState.DOWN
    return UpstreamState.UP if delivery.requests else UpstreamState.UNKNOWN


def _histogram(counts: HistogramCounts) -> Histogram:
    return Histogram(counts.bounds, counts.counts, counts.total)


def _warnings(delivery: DeliveryStatistics, nulled: int) -> tuple[str, ...]:
    """What a person should know, beside halted lanes."""
    found = [f"{count} delivered requests had an odd answer: {kind}" for kind, count in delivery.warnings.items()]
    if delivery.upstream.failing:
        found.append(f"the upstream fails: {delivery.upstream.why}; events wait in the buffer")
    if nulled:
        found.append(f"{nulled} numbers were NaN or infinite, which JSON can't say, and became null")
    return tuple(found)
