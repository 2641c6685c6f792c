"""The configured log sources as one part of the pipeline. Imported only where logs are configured.

One worker reads them, whatever the number of workers. The positions of all files are in one
database, in `logs/` of the state directory that all workers share, so that they outlive a change
of `workers`; its lock keeps other forwarders away.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from forwarder.config.settings import Settings
from forwarder.config.source_settings import LogSourceSettings
from forwarder.core.ack import AckLevel
from forwarder.core.clock import Clock
from forwarder.core.errors import ConfigurationError
from forwarder.core.patterns import LinearPattern
from forwarder.core.record_intake import RecordIntake
from forwarder.daemon.mappings import log_mapping
from forwarder.sources.logs.formats import DATED, line_format
from forwarder.sources.logs.policy import LogPolicy
from forwarder.sources.logs.positions import FILE, PositionStore
from forwarder.sources.logs.source import LogSource
from forwarder.sources.logs.splitting import Splitter
from forwarder.sources.logs.stdin import StdinSource
from forwarder.storage.directory import LockedDirectory
from forwarder.telemetry.snapshot import LogSourceState

DIRECTORY = "logs"
"""Where the positions are, in the state directory."""


class LogSources:
    """All log sources, from `start` to `close`."""

    def __init__(
        self,
        settings: Settings,
        intake: RecordIntake,
        clock: Clock,
        positions: OpenPositions | None,
    ) -> None:
        """`positions`: needed where files are read."""
        self.on_input_end: Callable[[], None] = lambda: None
        """Called when standard input has ended and all of it is settled."""
        self._positions = positions
        policies = [policy_of(settings, number) for number in range(len(settings.sources.logs))]
        self._sources: Sequence[LogSource | StdinSource] = [
            LogSource(policy, intake, clock, positions.store)
            if positions is not None and not policy.stdin
            else StdinSource(policy, intake, clock, self._end_of_input)
            for policy in policies
        ]

    @classmethod
    def of(
        cls, settings: Settings, intake: RecordIntake, clock: Clock, state: Path | None
    ) -> LogSources:
        """The sources that the settings name; `state`: the state directory, None if there is none.

        Raises `ConfigurationError` for a format, a mapping or a directory that can't be used.
        """
        if all(source.stdin for source in settings.sources.logs):
            return cls(settings, intake, clock, None)
        positions = OpenPositions.open(settings, state, clock)
        try:
            return cls(settings, intake, clock, positions)
        except BaseException:
            positions.close()
            raise

    def start(self) -> None:
        """Begin to read, on the running loop; errors from now on are part
        of what `observe` returns.
        """
        for source in self._sources:
            source.start()

    def stop_reading(self) -> None:
        """Read nothing more; positions of what is settled are still stored."""
        for source in self._sources:
            source.stop_reading()

    async def close(self) -> None:
        """Store what is settled, and let go of the rest: what is in files is read again.
        Cancelled, it stores nothing more.
        """
        try:
            await asyncio.gather(*[source.close() for source in self._sources])
        finally:
            if self._positions is not None:
                self._positions.close()

    def observe(self) -> tuple[tuple[LogSourceState, ...], list[str]]:
        """The state of all sources, and warnings about them."""
        states = tuple(source.statistics() for source in self._sources)
        lost = "" if self._positions is None else self._positions.store.warning
        return states, [*log_warnings(states), *([lost] if lost else [])]

    def _end_of_input(self) -> None:
        self.on_input_end()


class OpenPositions:
    """The positions of all files, with the lock of their directory."""

    def __init__(self, lock: LockedDirectory, store: PositionStore) -> None:
        self._lock = lock
        self.store = store

    @classmethod
    def open(cls, settings: Settings, state: Path | None, clock: Clock) -> OpenPositions:
        """Open them in the state directory; a damaged file is quarantined. Raises
        `ConfigurationError`.
        """
        key = "buffer.path" if settings.buffer.kind == "disk" else "dead_letters.path"
        if state is None:
            hint = f"Set `{key}` to a directory of its own that this user may write in."
            raise ConfigurationError(
                "sources.logs: no directory could be used for the positions in files", hint=hint
            )
        lock = LockedDirectory.acquire(state / DIRECTORY, key, own=1)
        try:
            sources = [source.name for source in settings.sources.logs if not source.stdin]
            return cls(lock, PositionStore.open(lock.path / FILE, clock.now(), sources))
        except BaseException:
            lock.release()
            raise

    def close(self) -> None:
        """Close the database, and release the lock."""
        self.store.close()
        self._lock.release()


def policy_of(settings: Settings, number: int) -> LogPolicy:
    """How `sources.logs[number]` is read. Raises `ConfigurationError` for a format or a mapping
    that can't be used.
    """
    source = settings.sources.logs[number]
    key = f"sources.logs[{number}]"
    rules = source.mapping
    records = line_format(
        source.format, source.pattern, source.message_format, rules.timestamp.zone, key
    )
    return LogPolicy(
        name=source.name,
        key=key,
        paths=source.path,
        exclude=source.exclude,
        stdin=source.stdin,
        split=_split(source),
        line_format=records,
        mapping=log_mapping(source, number),
        api_key=source.api_key,
        level=AckLevel(source.commit),
        host=source.host or socket.gethostname(),
        from_end=source.read_from == "end",
        max_line=source.max_line,
        max_open_files=source.max_open_files,
        max_in_flight=settings.max_in_flight(source),
        commit_interval=source.commit_interval,
        poll_interval=source.poll_interval,
        rotate_wait=source.rotate_wait,
        stores_times=source.format not in DATED,
    )


def _split(source: LogSourceSettings) -> Callable[[int], Splitter]:
    """What finds the source's records in a file, from an offset on."""
    lines = source.multiline
    start = None if lines.start is None else LinearPattern(lines.start.encode())
    return partial(
        Splitter,
        max_record=source.max_line,
        start=start,
        max_wait=lines.max_wait,
        cri=source.format == "cri",
    )


def log_warnings(sources: Iterable[LogSourceState]) -> Iterator[str]:
    """Why a source isn't read, and other problems with it, a sentence each."""
    for source in sources:
        hint = f" ({source.hint.rstrip('.')})" if source.hint else ""
        if source.state == "down":
            yield f"logs {source.name}: {source.why}{hint}; retried continuously"
        elif source.state == "failed":
            yield (
                f"logs {source.name}: {source.why}{hint}; nothing is read from it until this "
                "process is restarted"
            )
        elif source.state in ("waiting", "reading") and source.why:
            yield f"logs {source.name}: {source.why}{hint}"
