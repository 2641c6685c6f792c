"""Takes snapshots of a pipeline: the figures of all its parts at one instant.

Invariant: a snapshot is taken in one go on the loop's thread, so that figures of different parts
belong together and the books balance. A figure `name` in a part's statistics is the snapshot's
`<part>_<name>`, where there is such a field: a new figure needs no line here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final

from forwarder import __version__
from forwarder.config.settings import Settings
from forwarder.core.clock import Clock
from forwarder.core.event import Lane
from forwarder.core.ports import DropReason, ReadingSource, WhenFull
from forwarder.core.proposals import proposed
from forwarder.daemon.configured_rules import ConfiguredRules
from forwarder.daemon.decoder import DecoderProcess
from forwarder.daemon.destinations import EventDestination
from forwarder.daemon.pressure import MemoryWatch
from forwarder.delivery.delivery import DeliveryStatistics, HistogramCounts
from forwarder.delivery.halting import HaltReport
from forwarder.intake.conditions import Conditions
from forwarder.intake.intake import Intake
from forwarder.sources.http.listener import HttpListener
from forwarder.sources.http.passthrough import PassThrough, PassThroughStatistics
from forwarder.telemetry.books import Account, Books
from forwarder.telemetry.labels import OTHER, LaneLabels, LaneNames, key_label
from forwarder.telemetry.merging import merge_figures
from forwarder.telemetry.readable import duration, plural
from forwarder.telemetry.snapshot import (
    DestinationFigures,
    DestinationSnapshot,
    Histogram,
    LaneSnapshot,
    Snapshot,
    State,
    Upstream,
    UpstreamState,
    by_label,
    without_credentials,
)

if TYPE_CHECKING:
    from forwarder.buffer.disk.buffer import DiskStatistics
    from forwarder.daemon.kafka import KafkaSources
    from forwarder.daemon.logs import LogSources
    from forwarder.deadletter.replay import Replayer

FULL: Final = 0.98
"""The share of the buffer in use from which on it counts as full: hardly a request fits any more.
"""

_WHEN_FULL: Final = (
    DropReason.DROP_NEWEST,
    DropReason.DROP_OLDEST,
    DropReason.OPTIONAL_DESTINATION,
)

MAX_NAMED: Final = 3
"""Lanes that notices name; the others are counted."""

_COMMON: Final = tuple(field.name for field in fields(DestinationFigures))

_FIGURES: Final = frozenset(field.name for field in fields(Snapshot))


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineParts:
    """The parts of a pipeline. None: what isn't configured."""

    destinations: Sequence[EventDestination]
    """The first is the default."""
    decoder: DecoderProcess
    intake: Intake
    """Of requests."""
    conditions: Conditions
    """Of all sources."""
    replayers: Sequence[Replayer]
    passthrough: PassThrough | None
    listener: HttpListener
    sources: Sequence[ReadingSource]
    """All that read by themselves; `kafka` and `logs` are among them."""
    kafka: KafkaSources | None
    logs: LogSources | None
    rules: ConfiguredRules
    memory: MemoryWatch


@dataclass(frozen=True, slots=True)
class _Observed:
    """What was observed of a destination."""

    figures: DestinationSnapshot
    warnings: Sequence[str]
    notices: Sequence[str]
    not_ready: tuple[str, ...]


class Observer:
    """Takes snapshots of one pipeline."""

    def __init__(self, settings: Settings, clock: Clock, parts: PipelineParts) -> None:
        self._parts = parts
        self._clock = clock
        self._kind = settings.buffer.kind
        self._started_at = clock.now()
        names = LaneNames(settings.key_names)
        self._destinations = [
            _DestinationObserver(destination, names) for destination in parts.destinations
        ]

    def rename(self, names: LaneNames) -> None:
        """Show these names from now on."""
        for destination in self._destinations:
            destination.names = names

    def snapshot(self, state: State) -> Snapshot:
        """The state of all parts now."""
        parts = self._parts
        now = self._clock.now()
        listener = parts.listener.statistics()
        passed = (
            PassThroughStatistics({})
            if parts.passthrough is None
            else parts.passthrough.statistics()
        )
        kafka, kafka_warnings, kafka_notices = (
            ((), [], []) if parts.kafka is None else parts.kafka.observe(now)
        )
        logs, log_warnings = ((), []) if parts.logs is None else parts.logs.observe()
        observed = [destination.observe(now) for destination in self._destinations]
        several = len(observed) > 1
        figures = (
            _together([observation.figures for observation in observed])
            if several
            else observed[0].figures
        )
        memory = parts.memory.statistics()
        not_ready = _not_ready(state, 0, 1) or (
            *(("memory is short: senders get 503",) if memory.short else ()),
            *_named(
                observed,
                lambda observation: observation.not_ready if observation.figures.required else (),
            ),
        )
        return Snapshot(
            **_figures(
                http=listener,
                passthrough=passed,
                intake=parts.intake.statistics(),
                memory=memory,
            ),
            **{name: getattr(figures, name) for name in _COMMON},
            version=__version__,
            state=state,
            started_at=self._started_at,
            now=now,
            buffer_kind=self._kind,
            rejected_requests=listener.rejected,
            rule_events=parts.rules.counts(),
            connections=listener.connections,
            addresses=tuple(parts.listener.addresses),
            kafka=kafka,
            logs=logs,
            ready=not not_ready,
            not_ready=not_ready,
            warnings=(
                *parts.memory.warnings(),
                *_named(observed, lambda observation: observation.warnings),
                *_passthrough_warnings(passed),
                *kafka_warnings,
                *log_warnings,
                *parts.rules.warnings(),
            ),
            notices=(
                *_named(observed, lambda observation: observation.notices),
                *_nulled(parts.intake.statistics().nulled_numbers),
                *kafka_notices,
            ),
            destinations=tuple(observation.figures for observation in observed) if several else (),
        )


def _together(figures: Sequence[DestinationSnapshot]) -> DestinationSnapshot:
    """The figures of all destinations; each lane says of which it is."""
    whole = merge_figures([(destination, True) for destination in figures])
    return replace(
        whole, lanes=tuple(lane for destination in figures for lane in destination.named_lanes())
    )


def _named(
    observed: Sequence[_Observed], texts: Callable[[_Observed], Iterable[str]]
) -> Iterator[str]:
    """Texts about destinations, with their names if there are several."""
    for observation in observed:
        for text in texts(observation):
            yield f"{observation.figures.name}: {text}" if len(observed) > 1 else text


class _DestinationObserver:
    """Observes one destination."""

    def __init__(self, destination: EventDestination, names: LaneNames) -> None:
        self.names = names
        self._of = destination
        self._stores = destination.stores
        self._when_full = destination.settings.buffer.when_full
        self._url = without_credentials(destination.settings.destination.address)
        self._labels = LaneLabels()
        self._key_labels = {
            key_label(key): key_label(own)
            for key, own in destination.settings.destination.api_keys.items()
        }
        self._found = sum(map(self._stores.buffer.count, self._stores.buffer.waiting_lanes()))
        self._dropped_before = sum(_dropped_when_full(destination.books))

    def observe(self, now: float) -> _Observed:
        """Its state now."""
        stores = self._stores
        delivery = self._of.delivery.statistics()
        dead_letters = stores.dead_letters.statistics()
        disk = None if stores.disk_buffer is None else stores.disk_buffer.statistics()
        buffer = disk or stores.buffer.statistics()
        refusing = disk.write_error if disk else ""
        figures = DestinationSnapshot(
            **_figures(upstream=delivery, buffer=buffer),
            name=self._of.name,
            required=self._of.required,
            key_labels=self._key_labels,
            lanes=self._lanes(delivery, now),
            buffer_refusing=bool(refusing),
            buffer_found=self._found,
            upstream=Upstream(self._url, _upstream_state(delivery), delivery.upstream.why),
            request_duration=_histogram(delivery.durations),
            batch_bytes=_histogram(delivery.batch_bytes),
            batch_events=_histogram(delivery.batch_events),
            concurrency_limit=delivery.concurrency_limit,
            in_flight=delivery.in_flight,
            dead_letters_path=str(dead_letters.path or ""),
            dead_letters_wanted=dead_letters.marked,
        )
        warnings = (*_warnings(delivery), *self._buffer_warnings(disk), *dead_letters.warnings)
        return _Observed(
            figures,
            warnings,
            tuple(self._retries(delivery, now)),
            _not_ready(
                State.RUNNING,
                buffer.bytes,
                buffer.limit_bytes,
                refusing,
                files_full=bool(disk and disk.files_full) and self._when_full is WhenFull.REJECT,
            ),
        )

    def _lanes(self, delivery: DeliveryStatistics, now: float) -> tuple[LaneSnapshot, ...]:
        halts = {halt.lane: halt for halt in delivery.halts}
        oldest = self._oldest()
        accounts = self._of.books.accounts
        lanes = [
            self._lane(lane, account, halts.get(lane) if lane else None, oldest, now)
            for lane, account in accounts.items()
        ]
        return by_label(
            [*lanes, _of_account(OTHER, accounts.others)] if accounts.others.received else lanes
        )

    def _lane(
        self,
        lane: Lane | None,
        account: Account,
        halt: HaltReport | None,
        oldest: dict[Lane, float],
        now: float,
    ) -> LaneSnapshot:
        since = oldest.get(lane) if lane else None
        label = self._labels.label(lane)
        return replace(
            _of_account(label, account),
            name=self.names.name(label),
            buffered=self._stores.buffer.count(lane) if lane else 0,
            oldest_age=None if since is None else max(0.0, now - since),
            halted=halt.reason.value if halt else None,
            halted_since=halt.since if halt else None,
            next_probe=halt.next_probe if halt else None,
            why=halt.why if halt else "",
            hint=halt.hint if halt else "",
        )

    def _retries(self, delivery: DeliveryStatistics, now: float) -> Iterator[str]:
        """Lanes whose last request failed; the first few by name."""
        for retry in delivery.retries[:MAX_NAMED]:
            wait = duration(max(0.0, retry.next_attempt_at - now))
            lane = self.names.show(self._labels.label(retry.lane))
            yield (
                f"lane {lane} is sent again in {wait}: {retry.why}; its events stay in the buffer"
            )
        if len(delivery.retries) > MAX_NAMED:
            yield (
                f"{plural(len(delivery.retries) - MAX_NAMED, 'more lane')} will be sent again later"
            )

    def _buffer_warnings(self, disk: DiskStatistics | None) -> Iterator[str]:
        """Damage of the buffer's files, and events that were dropped because it was full."""
        if disk and disk.quarantined:
            what = plural(disk.quarantined, "quarantined file")
            yield (
                f"what couldn't be read of the buffer is in {what}; `{proposed('buffer ls')}` "
                "lists what is there"
            )
        dropped = sum(_dropped_when_full(self._of.books)) - self._dropped_before
        if dropped and (self._when_full is not WhenFull.REJECT or not self._of.required):
            what = plural(dropped, "event")
            why = (
                f"buffer.when_full: {self._when_full.value}"
                if self._of.required
                else "the destination isn't required"
            )
            yield f"{what} dropped since the start because the buffer was full ({why})"

    def _oldest(self) -> dict[Lane, float]:
        """When each lane's oldest event was received, waiting or in flight."""
        oldest = self._of.delivery.oldest()
        for lane in self._stores.buffer.waiting_lanes():
            waiting = self._stores.buffer.oldest(lane)
            if waiting is not None:
                oldest[lane] = min(waiting, oldest.get(lane, waiting))
        return oldest


def _figures(**parts: object) -> Mapping[str, Any]:
    """The figures of the parts' statistics, by the names of their fields in a snapshot."""
    named = (
        (f"{part}_{field.name}", statistics, field.name)
        for part, statistics in parts.items()
        for field in fields(statistics)  # type: ignore[arg-type]
    )
    return {
        figure: getattr(statistics, name)
        for figure, statistics, name in named
        if figure in _FIGURES
    }


def _of_account(label: str, account: Account) -> LaneSnapshot:
    return LaneSnapshot(
        label=label,
        received=dict(account.received),
        delivered=account.delivered,
        dead_lettered={reason.value: count for reason, count in account.dead_lettered.items()},
        dropped={reason.value: count for reason, count in account.dropped.items()},
    )


def _passthrough_warnings(passed: PassThroughStatistics) -> Iterator[str]:
    """Addresses to which calls aren't passed through, because they fail."""
    for url, why in passed.failing:
        yield (
            f"calls to pass through to {without_credentials(url)} get 503 at once, because it "
            f"fails: {why}; it is probed"
        )


def _dropped_when_full(books: Books) -> Iterator[int]:
    """Events that were dropped because the buffer was full, for each account."""
    for account in (*books.accounts.values(), books.accounts.others):
        yield sum([account.dropped.get(reason, 0) for reason in _WHEN_FULL])


def _not_ready(
    state: State, used: int, limit: int, refusing: str = "", *, files_full: bool = False
) -> tuple[str, ...]:
    """Why nothing can be accepted; an upstream that is down or a halted lane is no reason
    (docs/explanation/what-happens-when.md, `/readyz` fails).
    """
    if state is State.STARTING:
        return ("starting",)
    if state is State.DRAINING:
        return ("draining: this process is about to end",)
    if refusing:
        return (f"the disk refuses to write: {refusing}; senders get 503",)
    if files_full:
        return ("the buffer's files are full: senders get 503",)
    return ("the buffer is full: senders get 503",) if used >= limit * FULL else ()


def _upstream_state(delivery: DeliveryStatistics) -> UpstreamState:
    if delivery.upstream.failing:
        return UpstreamState.DOWN
    return UpstreamState.UP if delivery.requests else UpstreamState.UNKNOWN


def _histogram(counts: HistogramCounts) -> Histogram:
    return Histogram(counts.bounds, counts.counts, counts.total)


def _warnings(delivery: DeliveryStatistics) -> Iterator[str]:
    """Warnings about the upstream."""
    for kind, count in delivery.warnings.items():
        yield f"{plural(count, 'delivered request')} with an unusual answer: {kind}"
    if delivery.upstream.failing:
        yield f"the upstream fails: {delivery.upstream.why}; events stay in the buffer"


def _nulled(count: int) -> Iterator[str]:
    if count:
        yield f"{plural(count, 'number')} became null: JSON can't represent NaN and infinite ones"
