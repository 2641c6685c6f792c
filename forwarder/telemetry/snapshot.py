"""The state of the daemon at one instant, as numbers: what metrics, `/status`, health and `audit`
read, and nothing else.

Invariants: a snapshot is taken on the loop's thread between two callbacks, so that its figures
belong together; it holds lane labels, never project keys; nothing in it changes afterwards. Times
are wall-clock seconds since 1970, durations seconds, sizes bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import reduce
from heapq import nsmallest
from itertools import accumulate, chain
from typing import Annotated, Final, get_type_hints
from urllib.parse import urlsplit, urlunsplit

from forwarder.telemetry.merging import (
    ANY,
    COMMON_PATH,
    FIRST,
    FIRST_TEXT,
    MAXIMUM,
    MINIMUM,
    OF_THE_WHOLE,
    SUM,
    SUM_BY_KEY,
    UNION,
    MergeRule,
    merge_figures,
    running,
    worst,
)


@dataclass(frozen=True, slots=True)
class KeyNames:
    """What the parts of a mapping's keys are called in JSON, where the
    mapping is a list of objects.
    """

    names: tuple[str, ...]


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

    @property
    def words(self) -> str:
        """After `upstream` or `is`, for people: `unknown` reads as if the host were."""
        return "not used yet" if self is UpstreamState.UNKNOWN else str(self)


@dataclass(frozen=True, slots=True)
class Histogram:
    """Observations in buckets: `counts[i]` of them are at most `bounds[i]` and above the bound
    before; the last count is above all.
    """

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

    def plus(self, other: Histogram) -> Histogram:
        """The two together. Buckets that differ can't be added (one has none yet, or is of another
        version): the fuller one stays.
        """
        if self.bounds != other.bounds:
            return max(self, other, key=lambda histogram: histogram.count)
        return Histogram(
            self.bounds,
            tuple(map(sum, zip(self.counts, other.counts, strict=True))),
            self.sum + other.sum,
        )


BUCKETS: Final = MergeRule(lambda values: reduce(Histogram.plus, values))


@dataclass(frozen=True, slots=True)
class LaneSnapshot:
    """One lane's books, in events, and how it is."""

    label: Annotated[str, FIRST]
    received: Annotated[Mapping[str, int], SUM_BY_KEY] = field(default_factory=dict)
    """By source."""
    delivered: Annotated[int, SUM] = 0
    buffered: Annotated[int, SUM] = 0
    """The buffer's own count, waiting and in flight: not derived from the books, so that the two
    can disagree.
    """
    dead_lettered: Annotated[Mapping[str, int], SUM_BY_KEY] = field(default_factory=dict)
    """By reason."""
    dropped: Annotated[Mapping[str, int], SUM_BY_KEY] = field(default_factory=dict)
    """By reason."""
    oldest_age: Annotated[float | None, MAXIMUM] = None
    """Seconds since its oldest waiting event was received."""
    halted: Annotated[str | None, FIRST] = None
    """The reason (`HaltReason`) while it takes part in no delivery."""
    halted_since: Annotated[float | None, FIRST] = None
    next_probe: Annotated[float | None, FIRST] = None
    why: Annotated[str, FIRST] = ""
    """What the upstream said."""
    hint: Annotated[str, FIRST] = ""
    """What a person can do about it."""
    name: Annotated[str, FIRST] = ""
    """What an operator calls it; empty if its key has no name."""

    @property
    def shown(self) -> str:
        """What a person sees: its name, or else its label."""
        return self.name or self.label

    def at_destination(self, destination: str) -> LaneSnapshot:
        """The same, as it is called beside the lanes of other destinations."""
        return replace(
            self,
            label=f"{self.label}@{destination}",
            name=f"{self.name}@{destination}" if self.name else "",
        )

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
        """Received minus all that is accounted for: 0 when the books balance, positive when events
        are missing.
        """
        return (
            self.total_received
            - self.delivered
            - self.buffered
            - self.total_dead
            - self.total_dropped
        )


def by_label(lanes: Iterable[LaneSnapshot]) -> tuple[LaneSnapshot, ...]:
    """The lanes with those that share a label put together, in order of first appearance. One that
    is halted says how they are.
    """
    groups: dict[str, list[LaneSnapshot]] = {}
    for lane in lanes:
        groups.setdefault(lane.label, []).append(lane)
    return tuple(_lane(group) for group in groups.values())


def _lane(group: Sequence[LaneSnapshot]) -> LaneSnapshot:
    if len(group) == 1:
        return group[0]
    return merge_figures([(lane, True) for lane in sorted(group, key=lambda lane: not lane.halted)])


LANES: Final = MergeRule(lambda values: by_label([lane for value in values for lane in value]))


@dataclass(frozen=True, slots=True)
class Upstream:
    """Where events go. `url` holds no credentials (`without_credentials`)."""

    url: str = ""
    state: UpstreamState = UpstreamState.UNKNOWN
    last_error: str = ""


UPSTREAM: Final = worst(
    [UpstreamState.DOWN, UpstreamState.UP, UpstreamState.UNKNOWN], lambda upstream: upstream.state
)
"""One that fails for a process fails; else what any of them knows."""


@dataclass(frozen=True, slots=True)
class Worker:
    """One of the processes that share a daemon's work."""

    name: str
    """Its directory's: `worker-<n>`."""
    state: str
    """`starting`, `running`, `draining`, `away` (it died, and comes back), or `done` (a directory
    that was left, and is empty now).
    """
    process: int | None = None
    restarts: int = 0
    why: str = ""
    """Why it is away."""
    received: int = 0
    """Events that it took: how they are spread over the workers."""
    silent_since: float | None = None
    """When it was first asked without answering, seconds since 1970; None if it responds."""

    @property
    def condition(self) -> str:
        """Its state as operators see it."""
        return self.state if self.silent_since is None else "not responding"


@dataclass(frozen=True, slots=True)
class KafkaPartition:
    """A partition that is assigned to this daemon."""

    topic: str
    partition: int
    position: int | None = None
    """What is committed or could be: everything before it is settled. None if it isn't known yet.
    """
    lag: int | None = None
    """Records from there to the partition's end; None if it isn't known yet."""
    paused: str = ""
    """Why it isn't read now; empty if it is."""


def _furthest(values: Sequence[tuple[KafkaPartition, ...]]) -> tuple[KafkaPartition, ...]:
    partitions: dict[tuple[str, int], KafkaPartition] = {}
    for seen in chain.from_iterable(values):
        other = partitions.setdefault((seen.topic, seen.partition), seen)
        if (seen.position or 0) > (other.position or 0):
            partitions[seen.topic, seen.partition] = seen
    return tuple(partitions[key] for key in sorted(partitions))


FURTHEST: Final = MergeRule(_furthest)
"""Each partition once, by the process that has come furthest in it: what is known of one may be of
before another took it over.
"""


@dataclass(frozen=True, slots=True)
class KafkaCluster:
    """A Kafka cluster that is read, and this daemon's part of its consumer group."""

    name: Annotated[str, FIRST]
    group: Annotated[str, FIRST] = ""
    state: Annotated[str, FIRST] = "connecting"
    """`connecting`, `waiting` (for topics), `joining`, `reading`, `down`, `failed` (it isn't tried
    again) or `stopping`.
    """
    why: Annotated[str, FIRST] = ""
    """Why it is `waiting`, `down` or `failed`."""
    hint: Annotated[str, FIRST] = ""
    """What a person can do about it."""
    note: Annotated[str, running(FIRST_TEXT)] = ""
    """What else a person should know."""
    partitions: Annotated[tuple[KafkaPartition, ...], running(FURTHEST)] = ()
    in_flight_bytes: Annotated[int, running(SUM)] = 0
    """Of records that were read and aren't settled."""
    records: Annotated[Mapping[str, int], SUM_BY_KEY] = field(default_factory=dict)
    """By what became of them: `taken`, `tombstone`, `filtered`, `refused`."""
    commits: Annotated[Mapping[str, int], SUM_BY_KEY] = field(default_factory=dict)
    """By result: `ok`, `failed`."""
    rebalances: Annotated[int, SUM] = 0
    expired: Annotated[int, SUM] = 0
    """Records that were gone before they could be read."""
    last_commit: Annotated[float | None, MAXIMUM] = None
    next_try: Annotated[float | None, running(MINIMUM)] = None
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


LOG_FILES: Final = 200
"""Files that a log source's state lists at most, those with the most unread bytes first, then
those that were read last.
"""


@dataclass(frozen=True, slots=True)
class LogFile:
    """A file that is followed, or standard input. `path` and `last_line` hold nothing that a
    terminal obeys, and no secrets.
    """

    path: str
    identity: str = ""
    """What the file is recognized by when it is renamed; empty as long as it has no complete line.
    """
    position: int = 0
    """All bytes before it are settled; for a compressed file in its decompressed content."""
    size: int = 0
    lag: int = 0
    """Bytes from there to the end, as far as the end is known."""
    last_line: str = ""
    """The last line that was read: at most 200 bytes of it (`readable.line_excerpt`)."""
    last_read: float | None = None
    open: bool = False


def _most_behind(values: Sequence[tuple[LogFile, ...]]) -> tuple[LogFile, ...]:
    files = {(file.path, file.identity): file for value in values for file in value}
    return most_behind(files.values())


def most_behind(files: Iterable[LogFile]) -> tuple[LogFile, ...]:
    """The files that a state lists: at most `LOG_FILES`, the largest lag
    first, then the latest read.
    """
    return tuple(
        nsmallest(
            LOG_FILES, files, key=lambda file: (-file.lag, -(file.last_read or 0.0), file.path)
        )
    )


MOST_BEHIND: Final = MergeRule(_most_behind)


@dataclass(frozen=True, slots=True)
class LogSourceState:
    """A log source: the files that it follows, or standard input."""

    name: Annotated[str, FIRST]
    state: Annotated[str, FIRST] = "starting"
    """`starting`, `waiting` (no file matches), `reading`, `down` (nothing can be read or no
    position stored; it is tried again), `failed` (it isn't tried again), `ended` (standard input's
    end was read) or `stopping`; `stopped` where no daemon runs.
    """
    why: Annotated[str, FIRST] = ""
    """Why it is `waiting`, `down` or `failed`; of one that reads, what else a person should know,
    such as a file that can't be opened.
    """
    hint: Annotated[str, FIRST] = ""
    """What a person can do about it."""
    files: Annotated[tuple[LogFile, ...], running(MOST_BEHIND)] = ()
    """At most `LOG_FILES`; the totals below count all."""
    followed: Annotated[int, running(SUM)] = 0
    """Files that are followed."""
    open: Annotated[int, running(SUM)] = 0
    """Files that are open now."""
    unreadable: Annotated[int, running(SUM)] = 0
    """Files and folders that can't be read now."""
    lag: Annotated[int, running(SUM)] = 0
    """Bytes that aren't settled, of all files."""
    in_flight_bytes: Annotated[int, running(SUM)] = 0
    """Of lines that were read and aren't settled."""
    lines: Annotated[Mapping[str, int], SUM_BY_KEY] = field(default_factory=dict)
    """By what became of them: `taken`, `filtered`, `unmatched` (not of the format), `refused` (a
    dead letter), `overlong` (one, too).
    """
    bytes: Annotated[int, SUM] = 0
    """Bytes read."""
    replaced: Annotated[int, SUM] = 0
    """Lines with bytes that aren't UTF-8, which were replaced."""
    rotations: Annotated[Mapping[str, int], SUM_BY_KEY] = field(default_factory=dict)
    """By kind: `rename`, `truncate`."""
    commits: Annotated[Mapping[str, int], SUM_BY_KEY] = field(default_factory=dict)
    """Attempts to store positions, by result: `ok`, `failed`."""
    last_commit: Annotated[float | None, MAXIMUM] = None
    """When positions were last stored."""

    @property
    def reads(self) -> bool:
        """Whether its lines are read and their positions stored, as far as there are any."""
        return self.state in ("reading", "waiting", "ended")


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinationFigures:
    """The figures that each destination has, and the daemon as the sum of them."""

    lanes: Annotated[tuple[LaneSnapshot, ...], LANES] = ()
    buffer_bytes: Annotated[int, SUM] = 0
    buffer_limit_bytes: Annotated[int, SUM] = 0
    buffer_disk_bytes: Annotated[int, SUM] = 0
    """What a disk buffer's files take."""
    buffer_refusing: Annotated[bool, running(ANY)] = False
    """Whether the disk refuses to write: senders get 503 meanwhile."""
    upstream: Annotated[Upstream, UPSTREAM] = field(default_factory=Upstream)
    upstream_requests: Annotated[Mapping[str, int], SUM_BY_KEY] = field(default_factory=dict)
    """By status code, or by kind of failure where no whole answer came."""
    request_duration: Annotated[Histogram, BUCKETS] = field(default_factory=Histogram)
    batch_bytes: Annotated[Histogram, BUCKETS] = field(default_factory=Histogram)
    batch_events: Annotated[Histogram, BUCKETS] = field(default_factory=Histogram)
    concurrency_limit: Annotated[float, running(SUM)] = 0.0
    in_flight: Annotated[int, running(SUM)] = 0
    """Requests to the upstream without an answer yet."""
    buffer_found: Annotated[int, SUM] = 0
    """Events that were in the buffer's files when it was opened."""
    dead_letters_path: Annotated[str, COMMON_PATH] = ""
    """Where dead letters are kept; empty if they are in memory only."""
    dead_letters_wanted: Annotated[int, SUM] = 0
    """Dead letters that are marked to be replayed or dropped, and weren't yet."""

    @property
    def buffered(self) -> int:
        """Events in the buffer over all lanes, waiting or in flight."""
        return sum(lane.buffered for lane in self.lanes)


@dataclass(frozen=True, slots=True)
class DestinationSnapshot(DestinationFigures):
    """One of several destinations; lanes have their plain labels."""

    name: Annotated[str, FIRST]
    required: Annotated[bool, FIRST] = True
    key_labels: Annotated[Mapping[str, str], FIRST] = field(default_factory=dict)
    """Its `api_keys`: the label of a sender's key, and that of the key that stands for it here."""

    def named_lanes(self) -> Iterator[LaneSnapshot]:
        """Its lanes as they are shown beside those of other destinations."""
        return (lane.at_destination(self.name) for lane in self.lanes)


def merge_destinations(
    values: Iterable[Sequence[DestinationSnapshot]],
) -> tuple[DestinationSnapshot, ...]:
    """Each destination once, by name, in order of first appearance."""
    by_name: dict[str, list[tuple[DestinationSnapshot, bool]]] = {}
    for destination in chain.from_iterable(values):
        by_name.setdefault(destination.name, []).append((destination, True))
    return tuple(merge_figures(parts) for parts in by_name.values())


DESTINATIONS: Final = MergeRule(merge_destinations)


@dataclass(frozen=True, slots=True)
class Snapshot(DestinationFigures):
    """The whole daemon at the instant `now`. Of several destinations its figures
    are those of all together.
    """

    version: Annotated[str, FIRST]
    state: Annotated[State, OF_THE_WHOLE]
    started_at: Annotated[float, MINIMUM]
    now: Annotated[float, MAXIMUM]
    buffer_kind: Annotated[str, FIRST] = "memory"
    http_requests: Annotated[
        Mapping[tuple[str, int], int], SUM_BY_KEY, KeyNames(("path", "code"))
    ] = field(default_factory=dict)
    """By route and status code."""
    passthrough_requests: Annotated[
        Mapping[tuple[str, int], int], SUM_BY_KEY, KeyNames(("path", "code"))
    ] = field(default_factory=dict)
    """Requests that were passed through, by route and status code."""
    http_rejected_connections: Annotated[int, SUM] = 0
    """Connections that found no place: there were too many, of all senders or of one."""
    rejected_requests: Annotated[
        Mapping[tuple[str, str], int], SUM_BY_KEY, KeyNames(("path", "reason"))
    ] = field(default_factory=dict)
    """Requests of senders that were rejected by the daemon itself, by route and reason."""
    memory_bytes: Annotated[int, running(SUM)] = 0
    """Anonymous memory that counts against the limit: of the daemon's processes, or of the cgroup
    that they are in; 0 where it can't be measured.
    """
    memory_limit_bytes: Annotated[int, running(SUM)] = 0
    """What it is limited to; 0 without a limit."""
    memory_short: Annotated[bool, running(ANY)] = False
    """Whether new events are rejected because memory is short."""
    rule_events: Annotated[
        Mapping[tuple[str, str], int], SUM_BY_KEY, KeyNames(("rule", "outcome"))
    ] = field(default_factory=dict)
    """Events that rules have changed, dropped or failed on, by the rule's name and what it did."""
    addresses: Annotated[tuple[str, ...], running(UNION)] = ()
    """Where senders are listened to: `host:port` or `unix:/path`."""
    connections: Annotated[int, running(SUM)] = 0
    """Open connections of senders."""
    intake_filtered_records: Annotated[int, SUM] = 0
    """Log records over OTLP that the mapping's `where` excludes."""
    warnings: Annotated[tuple[str, ...], OF_THE_WHOLE] = ()
    """What a person should look at, a sentence each."""
    notices: Annotated[tuple[str, ...], OF_THE_WHOLE] = ()
    """What is unusual and needs no operator: it ends by itself, or has no remedy here."""
    ready: Annotated[bool, OF_THE_WHOLE] = False
    not_ready: Annotated[tuple[str, ...], OF_THE_WHOLE] = ()
    """Why nothing can be accepted now; empty when ready."""
    kafka: Annotated[tuple[KafkaCluster, ...], OF_THE_WHOLE] = ()
    """The clusters that are read, in the order in which they are configured."""
    logs: Annotated[tuple[LogSourceState, ...], OF_THE_WHOLE] = ()
    """The log sources, in the order in which they are configured; one worker reads them."""
    workers: Annotated[tuple[Worker, ...], OF_THE_WHOLE] = ()
    """The processes that this is the sum of; none if the daemon is one process."""
    destinations: Annotated[tuple[DestinationSnapshot, ...], DESTINATIONS] = ()
    """Where events go, the default first; none if there is only one."""


KEYED_COUNTS: Final[Mapping[str, tuple[str, ...]]] = {
    name: marker.names
    for name, kind in get_type_hints(Snapshot, include_extras=True).items()
    for marker in kind.__metadata__
    if isinstance(marker, KeyNames)
}
"""The fields of a snapshot that are counts by a key of several parts, with
what the parts are called.
"""


def balanced(snapshot: Snapshot) -> bool:
    """Whether every lane's books balance: received = delivered + buffered +
    dead-lettered + dropped.
    """
    return not unbalanced(snapshot)


def unbalanced(snapshot: Snapshot) -> list[LaneSnapshot]:
    """The lanes whose books don't balance."""
    return [lane for lane in snapshot.lanes if lane.difference]


def without_credentials(url: str) -> str:
    """The URL without user name, password, query and fragment: fit to be shown."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
