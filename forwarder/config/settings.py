"""What can be configured: every key with its kind, its default and its meaning.

The docstring under a field is its description in documents and in the JSON Schema. A value of None means "not set". Sizes are bytes, times
are seconds. Nothing here reads a file or the environment: `forwarder.config.load` does. What an expression of a mapping means, and whether
it can be compiled, is known to `forwarder.mapping`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from forwarder.config.addresses import check_distinct_prefixes
from forwarder.config.section import GIB, MB, MIB, Section
from forwarder.config.values import (
    AddressRange,
    AnyCase,
    BrokerAddress,
    ClusterName,
    Concurrency,
    Count,
    Duration,
    Expressions,
    HostName,
    Id,
    Listed,
    Listen,
    ManagementUrl,
    NonEmpty,
    Origin,
    Pairs,
    PathPrefix,
    Pattern,
    PersonalKey,
    ProjectKey,
    ProxyUrl,
    Rate,
    Size,
    TokenUrl,
    Topic,
    UpstreamUrl,
)
from forwarder.core.ack import AckLevel
from forwarder.core.ports import Ordering, WhenFull

Protocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "AWS_MSK_IAM"]


@dataclass(frozen=True, kw_only=True)
class UpstreamSettings(Section):
    """The analytics service that events are delivered to."""

    url: UpstreamUrl = ""
    """Base address of the service, such as https://us.i.example.com; events go to its /batch/. Needed by `run`."""
    assets_url: UpstreamUrl = ""
    """Where /array/ and /static/ are passed through to, such as https://us-assets.i.example.com. Not set: `upstream.url`."""
    compression: Literal["gzip", "none"] = "gzip"
    """How request bodies are compressed."""
    timeout: Annotated[float, Duration("100ms", "1h")] = 30.0
    """How long one request may take, from connecting to the whole answer."""
    max_body: Annotated[int, Size("1kB", "1GiB")] = 20 * MB
    """The service's limit on a request body before compression; bodies stay strictly below it."""
    max_event: Annotated[int, Size("1kB", "1GiB")] = MB
    """The service's limit on one event; larger ones become dead letters."""
    ca_file: Path | None = None
    """PEM file of the authorities to trust instead of the system's."""
    proxy: ProxyUrl | None = field(default=None, repr=False)
    """HTTP proxy to reach the service through, such as http://proxy.example.com:3128; may hold user and password."""
    verify_keys: bool = True
    """Whether to ask the service, off the hot path, if it knows each project key, and to hold back events of those it doesn't."""


@dataclass(frozen=True, kw_only=True)
class PassThroughSettings(Section):
    """Calls of SDKs that bring no events: flags and their definitions, assets, replays. They are passed on at once, never buffered."""

    enabled: bool = True
    """Whether they are passed on; else they are 404."""
    connect_timeout: Annotated[float, Duration("10ms", "1m")] = 0.5
    """How long connecting to the service may take."""
    flags_timeout: Annotated[float, Duration("10ms", "1h")] = 2.0
    """How long flags and their definitions may take in all: apps wait for them."""
    timeout: Annotated[float, Duration("100ms", "1h")] = 30.0
    """How long others may take until their answer begins, and for each next piece of it."""
    max_body: Annotated[int, Size("1kB", "1GiB")] = 64 * MB
    """Largest body of a call that is passed on, such as a recording; only a small part of it is held at a time."""
    definitions_max_age: Annotated[float, Duration("0s", "1d")] = 10.0
    """How long definitions of flags are served from memory before the service is asked whether they changed."""


@dataclass(frozen=True, kw_only=True)
class TlsSettings(Section):
    """Certificate of the listener; both files or neither."""

    cert_file: Path | None = None
    """PEM file of the certificate and the chain above it."""
    key_file: Path | None = None
    """PEM file of the certificate's private key, without passphrase."""


@dataclass(frozen=True, kw_only=True)
class HttpSettings(Section):
    """The listener that SDKs send to."""

    listen: Listen = "127.0.0.1:8320"
    """Where to listen: host:port, '[::1]:port' or unix:/path."""
    tls: TlsSettings = TlsSettings()
    max_body: Annotated[int, Size("1kB", "1GiB")] = 20 * MB
    """A request body has to be smaller than this, on the wire and decompressed."""
    max_connections: Annotated[int, Count(1, 1_000_000)] = 1024
    """Connections open at once; further ones are rejected. One address may hold 7/8 of them."""
    path_prefix: Annotated[tuple[PathPrefix, ...], Listed(check_distinct_prefixes)] = ()
    """Paths of a website under which a proxy brings requests, such as /ingest: all paths are served below them too."""
    trusted_proxies: Annotated[tuple[AddressRange, ...], Listed()] = ()
    """Addresses or networks whose X-Forwarded-For is believed."""
    stamp_ip: Literal["auto", "never"] = "auto"
    """Whether events get the sender's address as $ip where they have none (auto: senders with a globally routable address)."""
    cors_origins: Annotated[tuple[Origin, ...], Listed()] = ("*",)
    """Origins whose pages may send events from a browser."""
    api_keys: Annotated[tuple[ProjectKey, ...], Listed()] = field(default=(), repr=False)
    """Project keys that are taken; none listed: every well-formed one."""
    api_keys_file: Path | None = None
    """File of further project keys, one a line; lines that begin with # are comments."""
    max_lanes: Annotated[int, Count(1, 1_000_000)] = 100
    """Project keys held at once (live and historical of one key are two); half of it for unknown keys, neither in api_keys nor verified."""


@dataclass(frozen=True, kw_only=True)
class TimestampSettings(Section):
    """When the event happened; without it, when the record says that it was made. Text in place of the section is its `from`."""

    short: ClassVar[str] = "from"

    source: NonEmpty | None = field(default=None, metadata={"key": "from"})
    """Expression of the time."""
    format: NonEmpty | None = None
    """How it is written: iso, unix, unix_ms, unix_us, unix_ns, or as strptime has it: %d/%b/%Y:%H:%M:%S %z. Not set: iso."""
    zone: NonEmpty | None = None
    """Zone of times that name none, such as Europe/Berlin or +02:00. Not set: UTC."""


@dataclass(frozen=True, kw_only=True)
class HashSettings(Section):
    """Fields of the record whose values are replaced by a keyed hash, before any expression sees them: told apart, not read."""

    field: Annotated[tuple[NonEmpty, ...], Listed()] = ()
    """Path of the field, such as .user.email, or a list of them."""
    salt_file: Path | None = None
    """File that holds the key of the hash."""


@dataclass(frozen=True, kw_only=True)
class MappingSettings(Section):
    """How foreign records become events (docs/mapping.md). Expressions are jq; plain paths such as .user.id are the quickest."""

    where: NonEmpty | None = None
    """Condition: a record for which it is false or null is no event. Not set: every record is one."""
    event: NonEmpty | None = None
    """Expression of the event's name."""
    distinct_id: NonEmpty | None = None
    """Expression of who did it."""
    timestamp: TimestampSettings = TimestampSettings()
    uuid: NonEmpty | None = None
    """Expression of the event's own id: a UUID, or a key that one is derived from. Not set: one is derived from the record's place."""
    properties: Expressions = None
    """Expression of the object of properties, or names with an expression each. Not set: the whole record."""
    set: Expressions = None
    """What is set on the person ($set); written as `properties`."""
    set_once: Expressions = None
    """What is set on the person where it isn't yet ($set_once); written as `properties`."""
    groups: Expressions = None
    """Groups that the event belongs to ($groups); written as `properties`."""
    drop: Annotated[tuple[NonEmpty, ...], Listed()] = ()
    """Paths of fields that are taken out of the record before any expression sees it, such as .user.password."""
    hash: HashSettings = HashSettings()

    @property
    def given(self) -> bool:
        """Whether anything is set."""
        return self != MappingSettings()


@dataclass(frozen=True, kw_only=True)
class KafkaSecuritySettings(Section):
    """How the cluster is connected to. Files are read again at each connection."""

    protocol: Annotated[Protocol, AnyCase()] = "PLAINTEXT"
    """Whether connections are encrypted (SSL) and who reads signs in (SASL); SASL_PLAINTEXT lets the network see what is sent."""
    mechanism: Annotated[Mechanism, AnyCase()] | None = None
    """How to sign in, with SASL_SSL and SASL_PLAINTEXT."""
    username: NonEmpty | None = None
    """Who signs in, with PLAIN and SCRAM."""
    password: NonEmpty | None = field(default=None, repr=False)
    """Password of `username`; better in a file."""
    password_file: Path | None = None
    """File that holds the password."""
    ca_file: Path | None = None
    """PEM file of the authorities to trust instead of the system's."""
    cert_file: Path | None = None
    """PEM file of our certificate and the chain above it, where the cluster asks for one."""
    key_file: Path | None = None
    """PEM file of that certificate's private key, without passphrase."""
    token_file: Path | None = None
    """File that holds the current token, with OAUTHBEARER; whoever renews the token replaces the file."""
    token_url: TokenUrl | None = None
    """Address that gives tokens for `client_id` and its secret, with OAUTHBEARER."""
    client_id: NonEmpty | None = None
    """Who asks `token_url` for a token."""
    client_secret: NonEmpty | None = field(default=None, repr=False)
    """Secret of `client_id`; better in a file."""
    client_secret_file: Path | None = None
    """File that holds the secret of `client_id`."""
    scope: NonEmpty | None = None
    """Scope that is asked of `token_url`, if it needs one."""
    aws_region: NonEmpty | None = None
    """Region of the cluster, such as eu-central-1, with AWS_MSK_IAM; who signs in is found as Amazon's own tools find it."""


@dataclass(frozen=True, kw_only=True)
class KafkaSettings(Section):
    """A cluster whose topics are read, by all forwarders of a consumer group together."""

    name: ClusterName = "kafka"
    """Its name in metrics, messages and the uuids of events that bring none: once chosen it stays. Each cluster has its own."""
    bootstrap_servers: Annotated[tuple[BrokerAddress, ...], Listed()] = ()
    """Some of its brokers, each host:port; the others are found through them. Needed."""
    topics: Annotated[tuple[Topic, ...], Listed()] = ()
    """Topics to read. Needed, or `topics_pattern`."""
    topics_pattern: Pattern | None = None
    """Regular expression, instead of `topics`: topics whose names it matches from their beginning, new ones too."""
    group_id: NonEmpty = "forwarder"
    """Consumer group; forwarders in one group share the partitions."""
    group_instance_id: Topic | None = None
    """This forwarder's own name in the group, for a restart without rebalance; with `workers` above 1 the worker's number is appended."""
    client_id: NonEmpty = "forwarder"
    """What the brokers' logs and quotas call this client."""
    auto_offset_reset: Literal["earliest", "latest"] = "earliest"
    """Where a group begins that has committed nothing yet."""
    format: Literal["events", "json"] = "events"
    """What records are: whatever the HTTP listener takes as a body, or foreign JSON, which needs `mapping`."""
    mapping: MappingSettings = MappingSettings()
    api_key: ProjectKey | None = field(default=None, repr=False)
    """Project key of events that bring none."""
    api_key_file: Path | None = None
    """File that holds the project key, instead of `api_key`."""
    api_key_header: NonEmpty | None = None
    """Header of records whose value is the project key of events that bring none; it goes before `api_key`."""
    key_is_distinct_id: bool = False
    """Whether the record's key is the distinct_id of events that have none."""
    commit: Literal["delivered", "disk"] = "delivered"
    """When offsets are committed: when events are delivered (or dead letters), or when they are in the disk buffer."""
    commit_interval: Annotated[float, Duration("100ms", "1h")] = 1.0
    """How often offsets are committed."""
    max_in_flight: Annotated[int, Size("1kB", "1TiB")] | None = None
    """Bytes of records that each worker has read and not settled, at most. Not set: 32MiB, or less with a small `buffer.max_bytes`."""
    max_uncommitted: Annotated[int, Count(1, 100_000_000)] = 100_000
    """Records of a partition that may be read past the first one that isn't settled."""
    fetch_max_bytes: Annotated[int, Size("1kB", "1GiB")] = 8 * MIB
    """Bytes that a broker sends at once, at most."""
    max_partition_fetch_bytes: Annotated[int, Size("1kB", "1GiB")] = MIB
    """Bytes of one partition that a broker sends at once, at most; a larger batch of records comes whole."""
    fetch_min_bytes: Annotated[int, Size("1", "1GiB")] = 1
    """Bytes that a broker waits for before it answers."""
    fetch_max_wait: Annotated[float, Duration("1ms", "30s")] = 0.5
    """How long a broker waits for `fetch_min_bytes`."""
    session_timeout: Annotated[float, Duration("1s", "30m")] = 30.0
    """How long the group waits for a sign of life before others get this member's partitions; brokers take 6s to 30m."""
    max_poll_interval: Annotated[float, Duration("1s", "1d")] = 300.0
    """How long this member may be stuck before it leaves the group by itself; an upstream that is down is no reason."""
    revocation_timeout: Annotated[float, Duration("0s", "5m")] = 5.0
    """How long partitions that go to others are held until what is in flight of them is settled; the rest is read again there."""
    halt_after: Annotated[float | None, Duration("1s", "365d", never=True)] = 3600.0
    """When events of a lane that stands still become dead letters, so that they don't hold up their partitions for ever."""
    missing_topics: Literal["wait", "fail"] = "wait"
    """What happens if topics aren't there at the start: read the others and wait for them, or fail: then the cluster isn't read at all."""
    isolation_level: Literal["read_committed", "read_uncommitted"] = "read_committed"
    """Whether records of transactions that aren't committed are left out."""
    security: KafkaSecuritySettings = KafkaSecuritySettings()


@dataclass(frozen=True, kw_only=True)
class SourcesSettings(Section):
    """Where events come from."""

    http: HttpSettings = HttpSettings()
    kafka: tuple[KafkaSettings, ...] = ()
    """Kafka clusters to read from, in any number; each is a list item with the keys below."""


@dataclass(frozen=True, kw_only=True)
class BufferSettings(Section):
    """Where events wait for delivery."""

    kind: Literal["memory", "disk"] = "memory"
    """What holds them: memory, whose events end with the process, or files, whose events outlive it."""
    path: Path = Path("/var/lib/forwarder")
    """Directory of the disk buffer's files, and of the dead letters beside them; each worker has its own directory in it."""
    max_bytes: Annotated[int, Size("1MiB", "1TiB")] | None = None
    """Bytes that waiting events may take, in memory or on disk, over all workers. Not set: 64MiB in memory, 1GiB on disk."""
    ack: AckLevel | None = None
    """What an answer of 200 promises: events are in memory, on disk, or delivered. Not set: what `buffer.kind` is."""
    ack_timeout: Annotated[float, Duration("100ms", "1h")] = 5.0
    """How long a sender waits for `disk` or `delivered`; then it is asked to come back."""
    when_full: WhenFull = WhenFull.REJECT
    """What happens when there is no room: senders are asked to come back, new events are dropped, or the oldest ones are."""

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
    """When a batch is closed: whichever limit is reached first."""

    max_bytes: Annotated[int, Size("1kB", "1GiB")] = 5 * MB
    """Bytes of the request body before compression."""
    max_events: Annotated[int, Count(1, 1_000_000)] = 5000
    """Events in a request."""
    max_age: Annotated[float, Duration("0s", "1h")] = 1.0
    """How long an event waits for others to go with."""


@dataclass(frozen=True, kw_only=True)
class RetrySettings(Section):
    """How a failed request is sent again; waits double, with full jitter."""

    initial: Annotated[float, Duration("1ms", "1h")] = 0.5
    """Longest wait before the first retry."""
    max: Annotated[float, Duration("1ms", "1d")] = 30.0
    """Longest wait before any retry."""
    give_up_after: Annotated[float | None, Duration("1s", "365d", never=True)] = None
    """When an event that can't be delivered becomes a dead letter."""


@dataclass(frozen=True, kw_only=True)
class DeliverySettings(Section):
    """How batches are sent."""

    concurrency: Concurrency = "adaptive"
    """Requests in flight at once: found out (adaptive), or a number."""
    ordering: Ordering | None = None
    """Which events keep their order. Not set: none for live events, per_distinct_id for historical ones; set: what it says, for both."""
    clock_skew_tolerance: Annotated[float, Duration("0s", "1h")] = 1.0
    """Difference between a sender's clock and ours that is taken for the network's delay, and left alone."""
    retry: RetrySettings = RetrySettings()


@dataclass(frozen=True, kw_only=True)
class DeadLetterSettings(Section):
    """Where events are kept that can't be delivered."""

    path: Path | None = None
    """Directory of their files. Not set: `buffer.path` with a disk buffer, else the state directory of this user."""
    max_bytes: Annotated[int, Size("64KiB", "1TiB")] | None = None
    """Bytes that they may take, over all workers. Not set: 16MiB beside a memory buffer, 256MiB beside a disk buffer."""


@dataclass(frozen=True, kw_only=True)
class ShutdownSettings(Section):
    """What happens on SIGTERM and SIGINT."""

    delay: Annotated[float, Duration("0s", "1h")] = 0.0
    """How long to go on taking events, for a load balancer to notice."""
    drain_timeout: Annotated[float, Duration("0s", "1d")] = 25.0
    """How long to go on delivering after that."""


@dataclass(frozen=True, kw_only=True)
class AdminSettings(Section):
    """The listener for metrics, health and status."""

    listen: Listen = "127.0.0.1:8321"
    """Where to listen: host:port, '[::1]:port' or unix:/path."""
    hosts: Annotated[tuple[HostName, ...], Listed()] = ()
    """Further host names that it is reached by. Addresses, localhost and this machine's own name always work; others are answered 421."""


@dataclass(frozen=True, kw_only=True)
class LogSettings(Section):
    """The daemon's log, on standard error."""

    format: Literal["json", "console"] | None = None
    """How lines are written. Not set: console on a terminal, else json."""
    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least severe lines that are written."""


@dataclass(frozen=True, kw_only=True)
class ManagementSettings(Section):
    """The service's management API, for `forwarder manage`. The daemon neither needs nor reads any of it."""

    url: ManagementUrl = ""
    """Base address of the management API, such as https://us.example.com; it isn't the one that events go to."""
    api_key: PersonalKey | None = field(default=None, repr=False)
    """Personal API key, which says who calls and what that person's key may do; better in a file."""
    api_key_file: Path | None = None
    """File that holds the personal API key; lines that begin with # are comments."""
    organization: Id | None = None
    """Id of the organization that is meant where a command names none."""
    project: Id | None = None
    """Id of the project that is meant where a command names none."""
    timeout: Annotated[float, Duration("100ms", "1h")] = 30.0
    """How long one call may take, from connecting to the whole answer."""
    ca_file: Path | None = None
    """PEM file of the authorities to trust instead of the system's, by `forwarder manage`."""
    proxy: ProxyUrl | None = field(default=None, repr=False)
    """HTTP proxy to reach the management API through, such as http://proxy.example.com:3128; may hold user and password."""


@dataclass(frozen=True, kw_only=True)
class ImportSettings(Section):
    """What holds for every `forwarder import` that doesn't say otherwise. The daemon neither needs nor reads any of it."""

    api_key: ProjectKey | None = field(default=None, repr=False)
    """Key of the project that imported events go to."""
    api_key_file: Path | None = None
    """File that holds the project key, instead of `api_key`."""
    state: Path | None = None
    """Directory with a folder for each import. Not set: `imports` in `buffer.path` with a disk buffer, else in this user's state."""
    rate: Rate = 2000
    """Events a second, at most, of all imports to one project from this machine; or unlimited."""
    quiet_hours: NonEmpty | None = None
    """Hours in which nothing is sent, such as 08:00-20:00 Europe/Berlin; without a zone it is this machine's."""
    person_properties: Literal["set_once", "none", "set"] = "set_once"
    """What becomes of `$set`: only what a person doesn't have yet, nothing, or old values over today's, which has to be accepted."""
    store: Annotated[Mapping[str, str], Pairs()] = field(default_factory=dict, repr=False)
    """Options of object stores, such as endpoint and region, beside the environment variables that their own tools know."""
    mapping: MappingSettings = MappingSettings()


@dataclass(frozen=True, kw_only=True)
class Settings(Section):
    """The effective configuration of forwarder."""

    upstream: UpstreamSettings = UpstreamSettings()
    passthrough: PassThroughSettings = PassThroughSettings()
    sources: SourcesSettings = SourcesSettings()
    buffer: BufferSettings = BufferSettings()
    batch: BatchSettings = BatchSettings()
    delivery: DeliverySettings = DeliverySettings()
    dead_letters: DeadLetterSettings = DeadLetterSettings()
    shutdown: ShutdownSettings = ShutdownSettings()
    admin: AdminSettings = AdminSettings()
    log: LogSettings = LogSettings()
    management: ManagementSettings = ManagementSettings()
    import_: ImportSettings = field(default=ImportSettings(), metadata={"key": "import"})
    workers: Annotated[int, Count(1, 64)] = 1
    """Processes that share the listening address and the limits, one a core; each has a buffer of its own."""

    def max_in_flight(self, cluster: KafkaSettings) -> int:
        """Bytes of the cluster's records that one worker may hold: `max_in_flight`, or what stands for it where it isn't set."""
        return cluster.max_in_flight or max(self.upstream.max_event, min(32 * MIB, self.buffer_share // 4))

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
