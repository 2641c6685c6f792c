"""Delivers what a disk buffer holds while its daemon is down: the pipeline without a listener,
until nothing is left.

It ends early when the rest can't be delivered: when only halted lanes are left and a
last probe failed, or when the upstream fails as a whole and nothing was delivered
for `UPSTREAM_PATIENCE` seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

from forwarder.config.settings import ArchiveSettings, Settings
from forwarder.core.clock import Clock
from forwarder.core.errors import ConfigurationError
from forwarder.core.ports import DeadLetter
from forwarder.daemon.pipeline import build
from forwarder.daemon.roles import Role
from forwarder.storage.directory import destination_of, worker_number
from forwarder.telemetry.snapshot import LaneSnapshot, Snapshot, UpstreamState

UPSTREAM_PATIENCE: Final = 60.0
"""Seconds that the upstream may fail."""

REPORT_EVERY: Final = 0.5
"""Seconds between two reports of progress."""


_CHECK_SECONDS: Final = 0.2


class Drainable(Protocol):
    """What draining needs of a pipeline."""

    async def start(self) -> None:
        """Deliver."""

    def snapshot(self) -> Snapshot:
        """The state now."""

    async def drain(self, seconds: float) -> bool:
        """Deliver what is buffered, for at most `seconds`; whether all of it was delivered."""

    async def close(self) -> list[DeadLetter]:
        """Stop everything."""


@dataclass(frozen=True, slots=True)
class DrainResult:
    """The result, in events; `left` are the lanes that still have some, `unreachable` is why the
    upstream could not be used.
    """

    delivered: int
    dead_lettered: int
    left: tuple[LaneSnapshot, ...]
    unreachable: str = ""

    @property
    def left_events(self) -> int:
        """Events that are still in the buffer."""
        return sum(lane.buffered for lane in self.left)


async def drain_directory(
    settings: Settings, directory: Path, clock: Clock, report: Callable[[int], None]
) -> DrainResult:
    """Deliver what a worker's directory holds, by the settings of `of_directory`; `report` is
    called with the number of events that were settled since its last call.

    Raises `Locked` if a process has the directory, `ConfigurationError` if it can't be used.
    Cancelled, it closes what it opened; undelivered events stay.
    """
    alone, role = _alone(settings, directory)
    return await drain_pipeline(build(alone, clock, role), clock, report)


async def drain_pipeline(
    pipeline: Drainable, clock: Clock, report: Callable[[int], None]
) -> DrainResult:
    """Deliver what a pipeline that isn't started holds, and close it."""
    reporter: asyncio.Task[None] | None = None
    try:
        await pipeline.start()
        before = pipeline.snapshot()
        progress = _Progress(report, before)
        reporter = asyncio.create_task(
            _report_regularly(pipeline, clock, progress), name="report progress"
        )
        unreachable = await _drain(pipeline, clock)
        after = pipeline.snapshot()
        progress.update(after)
        return _result(before, after, unreachable)
    finally:
        if reporter is not None:
            reporter.cancel()
            await asyncio.gather(reporter, return_exceptions=True)
        await pipeline.close()


def of_directory(settings: Settings, directory: Path, url: str = "") -> Settings:
    """The settings of the destination that a worker's directory belongs to, with the service at
    `url` in its place if that is given. Raises `ConfigurationError` if neither is known.
    """
    name = destination_of(directory)
    if name and name not in settings.destinations and not url:
        raise ConfigurationError(
            f"{directory} holds events for the destination {name}, which isn't configured",
            hint=(
                f"Name a configuration with upstreams.{name} (--config FILE), or the service "
                "that gets them (--upstream URL)."
            ),
        )
    own = settings.of_destination(name)
    destination = replace(own.destination, name=name)
    if url:
        destination = replace(destination, url=url, archive=ArchiveSettings())
    return replace(own, upstream=destination)


def _alone(settings: Settings, directory: Path) -> tuple[Settings, Role]:
    """The settings and the role of a process for this directory alone."""
    number = worker_number(directory)
    if number is None:
        raise ConfigurationError(
            f"{directory} isn't named worker-<n>", hint="Rename it, for example to worker-0."
        )
    buffer = replace(settings.buffer, kind="disk", path=directory.resolve().parent)
    return replace(settings, buffer=buffer, workers=1), Role(number, listens=False)


async def _drain(pipeline: Drainable, clock: Clock) -> str:
    """Deliver until nothing more can be delivered; the reason if that is a failing upstream."""
    while True:
        done = _delivered(pipeline.snapshot().lanes)
        began = clock.monotonic()
        if await pipeline.drain(UPSTREAM_PATIENCE) or clock.monotonic() - began < UPSTREAM_PATIENCE:
            if await _replayed(pipeline, clock):
                continue
            return ""
        now = pipeline.snapshot()
        if now.upstream.state is UpstreamState.DOWN and _delivered(now.lanes) == done:
            return now.upstream.last_error or "it fails"


async def _replayed(pipeline: Drainable, clock: Clock) -> bool:
    """Whether marked dead letters have moved into the buffer; waits as long
    as there are marked ones.
    """
    wanted = pipeline.snapshot().dead_letters_wanted
    began = clock.monotonic()
    while (
        wanted
        and pipeline.snapshot().dead_letters_wanted >= wanted
        and clock.monotonic() - began < UPSTREAM_PATIENCE
    ):
        await clock.sleep(_CHECK_SECONDS)
    return pipeline.snapshot().dead_letters_wanted < wanted


class _Progress:
    """Reports how many events were settled since its last report."""

    def __init__(self, report: Callable[[int], None], before: Snapshot) -> None:
        self._report = report
        self._settled = _settled(before)

    def update(self, snapshot: Snapshot) -> None:
        """Report the events that were settled by now."""
        settled = _settled(snapshot)
        self._report(settled - self._settled)
        self._settled = settled


async def _report_regularly(pipeline: Drainable, clock: Clock, progress: _Progress) -> None:
    while True:
        await clock.sleep(REPORT_EVERY)
        progress.update(pipeline.snapshot())


def _settled(snapshot: Snapshot) -> int:
    return _delivered(snapshot.lanes) + _dead_lettered(snapshot.lanes)


def _delivered(lanes: Sequence[LaneSnapshot]) -> int:
    return sum(lane.delivered for lane in lanes)


def _dead_lettered(lanes: Sequence[LaneSnapshot]) -> int:
    return sum(lane.total_dead for lane in lanes)


def _result(before: Snapshot, after: Snapshot, unreachable: str) -> DrainResult:
    left = tuple(lane for lane in after.lanes if lane.buffered)
    delivered = _delivered(after.lanes) - _delivered(before.lanes)
    return DrainResult(
        delivered, _dead_lettered(after.lanes) - _dead_lettered(before.lanes), left, unreachable
    )
