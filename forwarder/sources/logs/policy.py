"""How one log is read. Times in seconds, sizes in bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from forwarder.core.ack import AckLevel
from forwarder.mapping import Mapping
from forwarder.sources.logs.formats import LineFormat
from forwarder.sources.logs.splitting import Splitter


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPolicy:
    """One source: what to read, how lines become events, when positions are stored,
    when to wait.
    """

    name: str
    key: str = "sources.logs[0]"
    """Its settings, as they are called in the configuration."""
    paths: tuple[str, ...] = ()
    """Paths and globs of files; empty for standard input."""
    exclude: tuple[str, ...] = ()
    stdin: bool = False
    split: Callable[[int], Splitter]
    """Makes what finds the records of one open file, from an offset on."""
    line_format: LineFormat
    mapping: Mapping
    api_key: str | None = field(default=None, repr=False)
    level: AckLevel = AckLevel.DELIVERED
    """When a record's position may be stored."""
    host: str = ""
    """What the uuids of this host's records begin with."""
    from_end: bool = False
    """Whether files that exist when the source is started for the first time
    are begun at their ends.
    """
    max_line: int = 1_000_000
    max_open_files: int = 256
    max_in_flight: int = 32 * 1024 * 1024
    commit_interval: float = 1.0
    poll_interval: float = 1.0
    rotate_wait: float = 30.0
    stores_times: bool = False
    """Whether the time of reading a line first is stored before it is handed over: lines may have
    none, nor the mapping for them; then it is the event's, which has to stay the same.
    """
