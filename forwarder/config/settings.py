"""What can be configured: every key with its kind, its default and its meaning.

The docstring under a field is its description in documents and in the JSON Schema. A value of None
means "not set". Sizes are bytes, times are seconds. Nothing here reads a file or the environment:
`forwarder.config.load` does. What an expression of a mapping means, and whether it can be
compiled, is known to `forwarder.mapping`.

The types of the fields are no texts (`from __future__ import annotations`): each start reads all
of them, and would evaluate each text.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal

from forwarder.config.rule_settings import RouteSettings, RuleSettings
from forwarder.config.section import GIB, MB, MIB, Section
from forwarder.config.source_settings import (
    KafkaSettings,
    LogSourceSettings,
    MappingSettings,
    SourcesSettings,
)
from forwarder.config.values import (
    ArchiveUrl,
    Concurrency,
    Count,
    DestinationName,
    Duration,
    HostName,
    Id,
    Listed,
    Listen,
    ManagementUrl,
    NonEmpty,
    Pairs,
    PersonalKey,
    ProjectKey,
    ProxyUrl,
    Rate,
    Renamed,
    Size,
    UpstreamUrl,
)
from forwarder.core.ack import AckLevel
from forwarder.core.ports import Ordering, WhenFull

FORMER_PERSON_PROPERTIES: Final = {"set_once": "oldest", "set": "history"}
"""Choices of `import.person_properties` by the names that they had."""


@dataclass(frozen=True, kw_only=True)
class UpstreamSettings(Section):
    """The analytics service that events are delivered to."""

    url: UpstreamUrl = ""
    """Base address of the service, such as https://us.i.example.com; events are sent to its
    /batch/. Required by `run`.
    """
    assets_url: UpstreamUrl = ""
    """Base address to which /array/ and /static/ are passed through, such as
    https://us-assets.i.example.com. Default: `upstream.url`.
    """
    compression: Literal["gzip", "none"] = "gzip"
    """Compression of request bodies."""
    timeout: Annotated[float, Duration("100ms", "1h")] = 30.0
    """Timeout of a request, from connecting to the complete answer."""
    max_body: Annotated[int, Size("1kB", "1GiB")] = 20 * MB
    """The service's limit on a request body before compression; bodies stay strictly below it."""
    max_event: Annotated[int, Size("1kB", "1GiB")] = MB
    """The service's limit on one event; larger events become dead letters."""
    ca_file: Path | None = None
    """PEM file of certificate authorities to trust instead of the system's."""
    proxy: ProxyUrl | None = field(default=None, repr=False)
    """HTTP proxy for connections to the service, such as http://proxy.example.com:3128; may
    contain user and password.
    """
    verify_keys: bool = True
    """Whether to verify each project key with the service, off the hot path, and to hold back
    events of unknown keys.
    """


@dataclass(frozen=True, kw_only=True)
class ArchiveSettings(Section):
    """Files of JSON lines with zstd, in a folder or a bucket of your own, instead of the service
    at `url`.
    """

    short: ClassVar[str] = "url"

    url: ArchiveUrl = ""
    """Where the files go: file:///srv/events, or s3://bucket/events/ or the address of another
    object store.
    """
    partition: Literal["day", "hour"] = "day"
    """Span of time that a folder of files is for, by when events were received, in UTC."""
    max_age: Annotated[float, Duration("1s", "1d")] = 300.0
    """Age of the oldest event with which a file is made; a file's worth of events, or a quarter of
    the buffer, makes one before.
    """
    store: Annotated[Mapping[str, str], Pairs()] = field(default_factory=dict, repr=False)
    """Options of the object store, such as endpoint and region, in addition to the environment
    variables of its own tools.
    """


@dataclass(frozen=True, kw_only=True)
class DestinationSettings(UpstreamSettings):
    """One of several destinations, with the keys of `upstream` and these."""

    by_name: ClassVar[str] = "name"

    name: DestinationName = ""
    """Its name in routes, metrics, messages and directories: what it stands under in `upstreams`.
    Don't change it while events wait.
    """
    required: bool = True
    """Whether its full buffer rejects the events routed to it; otherwise it drops them, counted,
    and acknowledgements don't wait for it.
    """
    api_keys: Annotated[Mapping[str, str], Pairs()] = field(default_factory=dict, repr=False)
    """Project keys to use there, by those that senders use: {phc_us_shop: phc_eu_shop}; other keys
    stay.
    """
    archive: ArchiveSettings = ArchiveSettings()

    @property
    def address(self) -> str:
        """Where its events go: of the service or of the archive."""
        return self.archive.url or self.url


@dataclass(frozen=True, kw_only=True)
class PassThroughSettings(Section):
    """SDK calls without events: flags and their definitions, assets, replays. They are passed
    through at once, never buffered.
    """

    destination: DestinationName = ""
    """The one of `upstreams` that calls are passed through to. Default: the first."""
    enabled: bool = True
    """Whether such calls are passed through; otherwise they are answered 404."""
    connect_timeout: Annotated[float, Duration("10ms", "1m")] = 0.5
    """Timeout of connecting to the service."""
    flags_timeout: Annotated[float, Duration("10ms", "1h")] = 2.0
    """Total timeout of calls for flags and their definitions; applications wait for them."""
    timeout: Annotated[float, Duration("100ms", "1h")] = 30.0
    """Timeout of other calls until the answer begins, and for each further part of it."""
    max_body: Annotated[int, Size("1kB", "1GiB")] = 64 * MB
    """Largest body of a passed-through call, such as a recording; only a small part of it is in
    memory at a time.
    """
    definitions_max_age: Annotated[float, Duration("0s", "1d")] = 10.0
    """How long flag definitions are served from memory before they are revalidated with the
    service.
    """


@dataclass(frozen=True, kw_only=True)
class BufferSettings(Section):
    """The buffer: holds events from receipt until delivery."""

    kind: Literal["memory", "disk"] = "memory"
    """Where events are buffered: in memory, until the process ends, or on disk, where they outlive
    it.
    """
    path: Path = Path("/var/lib/forwarder")
    """Directory of the disk buffer and of the dead letters beside it; each worker has a
    subdirectory.
    """
    max_bytes: Annotated[int, Size("1MiB", "1TiB")] | None = None
    """Maximum size of the buffer in bytes, in memory or on disk, over all workers. Default: 64MiB
    in memory, 1GiB on disk.
    """
    ack: AckLevel | None = None
    """Level of acknowledgement, that is, what 200 means: events are in memory, on disk, or
    delivered. Default: `buffer.kind`.
    """
    ack_timeout: Annotated[float, Duration("100ms", "1h")] = 5.0
    """How long a sender waits for `disk` or `delivered` before it gets 503 with Retry-After."""
    when_full: WhenFull = WhenFull.REJECT
    """What happens when the buffer is full: requests are answered 503, new events are dropped, or
    the oldest events are dropped.
    """

    @property
    def limit(self) -> int:
        """`max_bytes`, or what stands for it where it isn't set."""
        return self.max_bytes or (GIB if self.kind == "disk" else 64 * MIB)

    @property
    def ack_level(self) -> AckLevel:
        """`ack`, or what stands for it where it isn't set."""
        return self.ack or AckLevel(self.kind)


@dataclass(frozen=True, kw_only=True)
class BatchSettings(Section):
    """Limits of a batch; the first one that is reached closes it."""

    max_bytes: Annotated[int, Size("1kB", "1GiB")] = 5 * MB
    """Maximum size of the request body in bytes, before compression."""
    max_events: Annotated[int, Count(1, 1_000_000)] = 5000
    """Maximum number of events in a request."""
    max_age: Annotated[float, Duration("0s", "1h")] = 1.0
    """How long an event waits for others of its batch."""


@dataclass(frozen=True, kw_only=True)
class RetrySettings(Section):
    """Retries of failed requests: exponential backoff with full jitter."""

    initial: Annotated[float, Duration("1ms", "1h")] = 0.5
    """Maximum wait before the first retry."""
    max: Annotated[float, Duration("1ms", "1d")] = 30.0
    """Maximum wait before any retry."""
    give_up_after: Annotated[float | None, Duration("1s", "365d", never=True)] = None
    """Age at which an event whose delivery fails becomes a dead letter."""


@dataclass(frozen=True, kw_only=True)
class DeliverySettings(Section):
    """Delivery of batches to the service."""

    concurrency: Concurrency = "adaptive"
    """Concurrent requests to the service: adaptive, or a fixed number."""
    ordering: Ordering | None = None
    """Order of events. Default: none for live events and per_distinct_id for historical ones; a
    value applies to both.
    """
    clock_skew_tolerance: Annotated[float, Duration("0s", "1h")] = 1.0
    """Difference between a sender's clock and ours that is attributed to network delay and not
    corrected.
    """
    retry: RetrySettings = RetrySettings()


@dataclass(frozen=True, kw_only=True)
class DeadLetterSettings(Section):
    """Storage of events that can't be delivered."""

    path: Path | None = None
    """Directory of dead letters. Default: `buffer.path` with a disk buffer, else the state
    directory of this user.
    """
    max_bytes: Annotated[int, Size("64KiB", "1TiB")] | None = None
    """Maximum size of dead letters in bytes, over all workers. Default: 16MiB with a memory
    buffer, 256MiB with a disk buffer.
    """


@dataclass(frozen=True, kw_only=True)
class LimitSettings(Section):
    """Limits of the whole daemon, all its processes together."""

    memory: Annotated[int, Size("64MiB", "1TiB")] | None = None
    """Anonymous memory that the daemon may take; at nine tenths of it new events are answered 503.
    Default: the limit of the cgroup that it runs in, if there is one.
    """


@dataclass(frozen=True, kw_only=True)
class ShutdownSettings(Section):
    """What happens on SIGTERM and SIGINT."""

    delay: Annotated[float, Duration("0s", "1h")] = 0.0
    """How long events are still accepted after the signal, so that a load balancer can notice."""
    drain_timeout: Annotated[float, Duration("0s", "1d")] = 25.0
    """How long delivery continues after that."""


@dataclass(frozen=True, kw_only=True)
class AdminSettings(Section):
    """The listener for metrics, health and status."""

    listen: Listen = "127.0.0.1:8321"
    """Address to listen on: host:port, '[::1]:port' or unix:/path."""
    hosts: Annotated[tuple[HostName, ...], Listed()] = ()
    """Further allowed host names. IP addresses, localhost and this machine's own name always work;
    others are answered 421.
    """
    tap: Literal["local", "any", "never"] = "local"
    """Who may watch events pass (`forwarder tap`): clients on this machine, any that reaches the
    address, or none.
    """


@dataclass(frozen=True, kw_only=True)
class LogSettings(Section):
    """The daemon's log, on standard error."""

    format: Literal["json", "console"] | None = None
    """Format of log lines. Default: console on a terminal, else json."""
    level: Literal["debug", "info", "warning", "error"] = "info"
    """Minimum level of log lines."""


@dataclass(frozen=True, kw_only=True)
class ManagementSettings(Section):
    """The service's management API, for `forwarder manage`. The daemon ignores this section."""

    url: ManagementUrl = ""
    """Base address of the management API, such as https://us.example.com; not the address that
    events are sent to.
    """
    api_key: PersonalKey | None = field(default=None, repr=False)
    """Personal API key, which identifies the caller and its permissions; prefer a file."""
    api_key_file: Path | None = None
    """File with the personal API key; lines that begin with # are comments."""
    organization: Id | None = None
    """Id of the default organization for commands."""
    project: Id | None = None
    """Id of the default project for commands."""
    timeout: Annotated[float, Duration("100ms", "1h")] = 30.0
    """Timeout of a call, from connecting to the complete answer."""
    ca_file: Path | None = None
    """PEM file of certificate authorities that `forwarder manage` trusts instead of the system's.
    """
    proxy: ProxyUrl | None = field(default=None, repr=False)
    """HTTP proxy for the management API, such as http://proxy.example.com:3128; may contain user
    and password.
    """


@dataclass(frozen=True, kw_only=True)
class ImportSettings(Section):
    """Defaults of `forwarder import`; options of the command override them. The daemon ignores
    this section.
    """

    api_key: ProjectKey | None = field(default=None, repr=False)
    """Project key of imported events."""
    api_key_file: Path | None = None
    """File with the project key, instead of `api_key`."""
    state: Path | None = None
    """Directory with a folder for each import. Default: `imports` in `buffer.path` with a disk
    buffer, else in this user's state.
    """
    rate: Rate = 2000
    """Maximum events per second of all imports to one project from this machine (`--shard`: of all
    shards); or unlimited.
    """
    quiet_hours: NonEmpty | None = None
    """Hours in which imports pause, such as 08:00-20:00 Europe/Berlin; the default time zone is
    this machine's.
    """
    zone: NonEmpty | None = None
    """Time zone of times without one, such as Europe/Berlin, in formats other than `mapping`."""
    encoding: NonEmpty = "utf-8"
    """Encoding of text files that are imported, such as utf-16 or cp1252: any that Python knows."""
    person_properties: (
        Annotated[Literal["history", "newest", "oldest", "none"], Renamed(FORMER_PERSON_PROPERTIES)]
        | None
    ) = None
    """Properties of persons: as of each event's time (history), the newest or the oldest value if a
    person has none, or none. Required if a source has some. set_once is now oldest, set history.
    """
    store: Annotated[Mapping[str, str], Pairs()] = field(default_factory=dict, repr=False)
    """Options of object stores, such as endpoint and region, in addition to the environment
    variables of their own tools.
    """
    mapping: MappingSettings = MappingSettings()


@dataclass(frozen=True, kw_only=True)
class Settings(Section):
    """The effective configuration of forwarder."""

    upstream: UpstreamSettings = UpstreamSettings()
    upstreams: tuple[DestinationSettings, ...] = ()
    """Several destinations instead of `upstream`, each under its name, with the keys below; the
    first is the default.
    """
    routes: tuple[RouteSettings, ...] = ()
    """Where events go: the first item that matches decides, and events that none matches go to the
    first of `upstreams`.
    """
    passthrough: PassThroughSettings = PassThroughSettings()
    sources: SourcesSettings = SourcesSettings()
    buffer: BufferSettings = BufferSettings()
    batch: BatchSettings = BatchSettings()
    delivery: DeliverySettings = DeliverySettings()
    dead_letters: DeadLetterSettings = DeadLetterSettings()
    limits: LimitSettings = LimitSettings()
    shutdown: ShutdownSettings = ShutdownSettings()
    admin: AdminSettings = AdminSettings()
    log: LogSettings = LogSettings()
    management: ManagementSettings = ManagementSettings()
    import_: ImportSettings = field(default=ImportSettings(), metadata={"key": "import"})
    rules: tuple[RuleSettings, ...] = ()
    """Rules, applied in this order to each event before it is buffered; each is a list item with
    the keys below.
    """
    workers: Annotated[int, Count(1, 64)] = 1
    """Number of worker processes, one per core. They share the listening address and the limits;
    each has its own buffer.
    """

    @property
    def destinations(self) -> tuple[str, ...]:
        """The names of all destinations, the default first; that of `upstream` alone is empty."""
        return tuple(upstream.name for upstream in self.upstreams) or ("",)

    def of_destination(self, name: str = "") -> "Settings":
        """What holds for one destination, as if it were the only one; empty: for the first."""
        if not self.upstreams:
            return self
        chosen = next(
            (upstream for upstream in self.upstreams if upstream.name == name), self.upstreams[0]
        )
        return replace(self, upstream=chosen, upstreams=(), routes=())

    def of_each(self) -> Iterator[tuple[str, "Settings"]]:
        """What holds for each destination, with the dotted name of the section that says it."""
        if not self.upstreams:
            yield "upstream", self
        for number, upstream in enumerate(self.upstreams):
            yield f"upstreams[{number}]", replace(self, upstream=upstream, upstreams=(), routes=())

    @property
    def destination(self) -> DestinationSettings:
        """The `upstream` of what holds for one destination."""
        upstream = self.upstream
        if isinstance(upstream, DestinationSettings):
            return upstream
        return DestinationSettings(
            **{field.name: getattr(upstream, field.name) for field in fields(upstream)}
        )

    @property
    def other_keys(self) -> Mapping[str, Sequence[str]]:
        """The project keys that a sender's key has at destinations, where it has others."""
        pairs = [pair for upstream in self.upstreams for pair in upstream.api_keys.items()]
        return {key: [other for mine, other in pairs if mine == key] for key, _ in pairs}

    @property
    def key_names(self) -> Mapping[str, str]:
        """The names of project keys, by the key: of senders' keys, and of those that stand for
        them at destinations, unless one stands for keys of different names.
        """
        named = self.sources.http.api_keys
        names: dict[str, str] = {}
        for key, others in self.other_keys.items():
            name = named.get(key, "")
            for other in others:
                names[other] = name if names.get(other, name) == name else ""
        names |= {key: name for key, name in named.items() if name}
        return {key: name for key, name in names.items() if name}

    @property
    def max_event(self) -> int:
        """Bytes of the largest event that any destination accepts."""
        return max(self.of_destination(name).upstream.max_event for name in self.destinations)

    @property
    def largest_fetch(self) -> int:
        """Bytes that the brokers of a Kafka source answer at most, single large batches aside; 0
        without such a source.
        """
        return max([cluster.fetch_max_bytes for cluster in self.sources.kafka], default=0)

    def max_in_flight(self, source: KafkaSettings | LogSourceSettings) -> int:
        """Bytes of the source's records that one worker may hold: `max_in_flight`, or what stands
        for it where it isn't set.
        """
        return source.max_in_flight or max(self.max_event, min(32 * MIB, self.buffer_share // 4))

    @property
    def buffer_share(self) -> int:
        """Bytes that one worker's buffer may take."""
        return self.buffer.limit // self.workers

    @property
    def dead_letter_limit(self) -> int:
        """`dead_letters.max_bytes`, or what stands for it where it isn't set."""
        return self.dead_letters.max_bytes or (256 if self.buffer.kind == "disk" else 16) * MIB

    @property
    def dead_letter_share(self) -> int:
        """Bytes that one worker's dead letters may take."""
        return self.dead_letter_limit // self.workers
