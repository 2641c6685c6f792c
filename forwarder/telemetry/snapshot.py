"""The state of the daemon at one instant, as numbers: what metrics, `/status`, health and `audit` read, and nothing else.

Invariants: a snapshot is taken on the loop's thread between two callbacks, so that its figures belong together; it holds lane
labels, never project keys; nothing in it changes afterwards. Times are wall-clock seconds since 1970, durations seconds, sizes bytes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate
from urllib.parse import urlsplit, urlunsplit


class State(StrEnum):
    """Where the daemon is in its life."""

    STARTING = "starting"
    RUNNING = "running"
    DRAINING = "draining"


class UpstreamState(StrEnum):
    """How the last attempts at the upstream went."""

    UNKNOWN = "unknown"
    """Nothing was sent yet."""
    UP = "up"
    DOWN = "down"
    """Attempts fail for a reason that isn't one lane's; events wait."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """Observations in buckets: `counts[i]` of them are at most `bounds[i]` and above the bound before; the last count is above all."""

    bounds: tuple[float, ...] = ()
    counts: tuple[int, ...] = (0,)
    sum: float = 0.0

    @property
    def count(self) -> int:
        """How many observations there were."""
        return sum(self.counts)

    def cumulative(self) -> list[tuple[str, float]]:
        """Prometheus' buckets: (`le`, observations up to there), ending with `+Inf`."""
        edges = [*(repr(float(bound)) for bound in self.bounds), "+Inf"]
        return list(zip(edges, map(float, accumulate(self.counts)), strict=True))


@dataclass(frozen=True, slots=True)
class LaneSnapshot:
    """One lane's books, in events, and how it is."""

    label: str
    received: Mapping[str, int] = field(default_factory=dict)
    """By source."""
    delivered: int = 0
    buffered: int = 0
    """The buffer's own count, waiting and in flight: not derived from the books, so that the two can disagree."""
    dead_lettered: Mapping[str, int] = field(default_factory=dict)
    """By reason."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """By reason."""
    oldest_age: float | None = None
    """Seconds since its oldest waiting event was received."""
    halted: str | None = None
    """The reason (`HaltReason`) while it takes part in no delivery."""
    halted_since: float | None = None
    next_probe: float | None = None
    why: str = ""
    """What the upstream said."""
    hint: str = ""
    """What a person can do about it."""

    @property
    def total_received(self) -> int:
        """Events from all sources."""
        return sum(self.received.values())

    @property
    def total_dead(self) -> int:
        """Dead letters for all reasons."""
        return sum(self.dead_lettered.values())

    @property
    def total_dropped(self) -> int:
        """Dropped events for all reasons."""
        return sum(self.dropped.values())

    @property
    def difference(self) -> int:
        """Received minus all that is accounted for: 0 when the books balance, positive when events are missing."""
        return self.total_received - self.delivered - self.buffered - self.total_dead - self.total_dropped


@dataclass(frozen=True, slots=True)
class Upstream:
    """Where events go. `url` holds no credentials (`without_credentials`)."""

    url: str = ""
    state: UpstreamState = UpstreamState.UNKNOWN
    last_error: str = ""


@dataclass(frozen=True, slots=True)
class Worker:
    """One of the processes that share a daemon's work."""

    name: str
    """Its directory's: `worker-<n>`."""
    state: str
    """`starting`, `running`, `draining`, `away` (it died, and comes back), or `done` (a directory that was left, and is empty now)."""
    process: int | None = None
    restarts: int = 0
    why: str = ""
    """Why it is away."""
    received: int = 0
    """Events that it took: how they are spread over the workers."""


@dataclass(frozen=True, slots=True)
class KafkaPartition:
    """A partition that is assigned to this daemon."""

    topic: str
    partition: int
    position: int | None = None
    """What is committed or could be: everything before it is settled. None if it isn't known yet."""
    lag: int | None = None
    """Records from there to the partition's end; None if it isn't known yet."""
    paused: str = ""
    """Why it isn't read now; empty if it is."""


@dataclass(frozen=True, slots=True)
class KafkaCluster:
    """A Kafka cluster that is read, and this daemon's part of its consumer group."""

    name: str
    group: str = ""
    state: str = "connecting"
    """`connecting`, `waiting` (for topics), `joining`, `reading`, `down`, `failed` (it isn't tried again) or `stopping`."""
    why: str = ""
    """Why it is `waiting`, `down` or `failed`."""
    hint: str = ""
    """What a person can do about it."""
    note: str = ""
    """What else a person should know."""
    partitions: tuple[KafkaPartition, ...] = ()
    in_flight_bytes: int = 0
    """Of records that were read and aren't settled."""
    records: Mapping[str, int] = field(default_factory=dict)
    """By what became of them: `taken`, `tombstone`, `filtered`, `refused`."""
    commits: Mapping[str, int] = field(default_factory=dict)
    """By result: `ok`, `failed`."""
    rebalances: int = 0
    expired: int = 0
    """Records that were gone before they could be read."""
    last_commit: float | None = None
    next_try: float | None = None
    """When it is connected to again."""

    @property
    def reads(self) -> bool:
        """Whether it is a member of its group, and the brokers answer."""
        return self.state == "reading"

    @property
    def lag(self) -> int:
        """Records of all partitions, as far as that is known."""
        return sum(partition.lag or 0 for partition in self.partitions)

    @property
    def paused(self) -> int:
        """Partitions that aren't read now."""
        return sum(1 for partition in self.partitions if partition.paused)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole daemon at the instant `now`."""

    version: str
    state: State
    started_at: float
    now: float
    lanes: tuple[LaneSnapshot, ...] = ()
    buffer_kind: str = "memory"
    buffer_bytes: int = 0
    buffer_limit_bytes: int = 0
    buffer_disk_bytes: int = 0
    """What a disk buffer's files take."""
    buffer_refusing: bool = False
    """Whether the disk refuses to write: senders get 503 meanwhile."""
    upstream: Upstream = field(default_factory=Upstream)
    upstream_requests: Mapping[str, int] = field(default_factory=dict)
    """By status code, or by kind of failure where no whole answer came."""
    request_duration: Histogram = field(default_factory=Histogram)
    batch_bytes: Histogram = field(default_factory=Histogram)
    batch_events: Histogram = field(default_factory=Histogram)
    concurrency_limit: float = 0.0
    in_flight: int = 0
    """Requests to the upstream without an answer yet."""
    http_requests: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """By route and status code."""
    passthrough_requests: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """Requests that were passed through, by route and status code."""
    http_rejected_connections: int = 0
    rejected_requests: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Requests of senders that were rejected by the daemon itself, by route and reason."""
    """Connections that found no place: there were too many, of all senders or of one."""
    addresses: tuple[str, ...] = ()
    """Where senders are listened to: `host:port` or `unix:/path`."""
    connections: int = 0
    """Open connections of senders."""
    warnings: tuple[str, ...] = ()
    ready: bool = False
    not_ready: tuple[str, ...] = ()
    """Why nothing can be taken now; empty when ready."""
    buffer_found: int = 0
    """Events that were in the buffer's files when it was opened."""
    dead_letters_path: str = ""
    """Where dead letters are kept; empty if they are in memory only."""
    dead_letters_wanted: int = 0
    """Dead letters that somebody has marked to be replayed or dropped, and that weren't yet."""
    kafka: tuple[KafkaCluster, ...] = ()
    """The clusters that are read, in the order in which they are configured."""
    workers: tuple[Worker, ...] = ()
    """The processes that this is the sum of; none if the daemon is one process."""

    @property
    def buffered(self) -> int:
        """Events in the buffer over all lanes, waiting or in flight."""
        return sum(lane.buffered for lane in self.lanes)


def balanced(snapshot: Snapshot) -> bool:
    """Whether every lane's books balance: received = delivered + buffered + dead-lettered + dropped."""
    return not unbalanced(snapshot)


def unbalanced(snapshot: Snapshot) -> list[LaneSnapshot]:
    """The lanes whose books don't balance."""
    return [lane for lane in snapshot.lanes if lane.difference]


def by_label(lanes: Iterable[LaneSnapshot]) -> tuple[LaneSnapshot, ...]:
    """The lanes with those that share a label (`other`) put together, in order of first appearance."""
    groups: dict[str, list[LaneSnapshot]] = {}
    for lane in lanes:
        groups.setdefault(lane.label, []).append(lane)
    return tuple(group[0] if len(group) == 1 else _merge(group) for group in groups.values())


def _merge(group: list[LaneSnapshot]) -> LaneSnapshot:
    halted = next((lane for lane in group if lane.halted), group[0])
    return LaneSnapshot(
        label=halted.label,
        received=_add(lane.received for lane in group),
        delivered=sum(lane.delivered for lane in group),
        buffered=sum(lane.buffered for lane in group),
        dead_lettered=_add(lane.dead_lettered for lane in group),
        dropped=_add(lane.dropped for lane in group),
        oldest_age=max((lane.oldest_age for lane in group if lane.oldest_age is not None), default=None),
        halted=halted.halted,
        halted_since=halted.halted_since,
        next_probe=halted.next_probe,
        why=halted.why,
        hint=halted.hint,
    )


def _add(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: defaultdict[str, int] = defaultdict(int)
    for part in parts:
        for key, value in part.items():
            total[key] += value
    return dict(total)


def without_credentials(url: str) -> str:
    """The URL without user name, password, query and fragment: fit to be shown."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
