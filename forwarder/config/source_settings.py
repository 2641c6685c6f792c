"""What can be configured of where events come from: the HTTP listener, Kafka clusters, logs; and
how foreign records are mapped.

Written as `settings.py`, whose section `sources` this is.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal, TypeAlias

from forwarder.config.addresses import check_distinct_prefixes
from forwarder.config.section import MB, MIB, Section
from forwarder.config.values import (
    AddressRange,
    AnyCase,
    BrokerAddress,
    BytesPattern,
    Count,
    Duration,
    Expressions,
    KeyList,
    Listed,
    Listen,
    NonEmpty,
    Origin,
    PathLists,
    PathPrefix,
    Pattern,
    ProjectKey,
    Size,
    SourceName,
    TokenUrl,
    Topic,
)

Protocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "AWS_MSK_IAM"]
LineFormatName = Literal["json", "logfmt", "combined", "common", "syslog", "cri", "regex"]
MessageFormatName = Literal["text", "json", "logfmt", "combined", "common", "regex"]


@dataclass(frozen=True, kw_only=True)
class TimestampSettings(Section):
    """Time of the event; by default the record's own timestamp. A plain string instead of the
    section is its `from`.
    """

    short: ClassVar[str] = "from"

    source: NonEmpty | None = field(default=None, metadata={"key": "from"})
    """Expression for the time."""
    format: NonEmpty | None = None
    """Format of the time: iso, unix, unix_ms, unix_us, unix_ns, or a strptime format such as
    %d/%b/%Y:%H:%M:%S %z. Default: iso.
    """
    zone: NonEmpty | None = None
    """Time zone of times without one, such as Europe/Berlin or +02:00. Default: UTC."""


@dataclass(frozen=True, kw_only=True)
class HashSettings(Section):
    """Fields whose values are replaced by a keyed hash before any expression is evaluated:
    distinguishable, but not readable.
    """

    field: Annotated[tuple[NonEmpty, ...], Listed()] = ()
    """Path of the field, such as .user.email, or a list of them."""
    combine: PathLists = None
    """Fields to add, each with one hash over the values at several paths, such as {visitor:
    [.remote_addr, .user_agent]}.
    """
    daily: bool = False
    """Whether the hashes of a value differ from day to day (UTC) of the record's time, so that no
    one can be followed for longer.
    """
    salt_file: Path | None = None
    """File with the key of the hash."""


@dataclass(frozen=True, kw_only=True)
class MappingSettings(Section):
    """How foreign records are converted to events (`forwarder help mapping`). Expressions are jq;
    plain paths (.user.id) are fastest.
    """

    where: NonEmpty | None = None
    """Condition: records for which it is false or null are filtered out. Default: every record is
    an event.
    """
    event: NonEmpty | None = None
    """Expression for the event's name."""
    distinct_id: NonEmpty | None = None
    """Expression for the distinct_id."""
    timestamp: TimestampSettings = TimestampSettings()
    uuid: NonEmpty | None = None
    """Expression for the uuid: a UUID, or a key to derive one from. Default: derived from the
    record's position in its source.
    """
    properties: Expressions = None
    """Expression for the object of properties, or a mapping of names to expressions. Default: the
    whole record.
    """
    set: Expressions = None
    """Person properties to set ($set); written like `properties`."""
    set_once: Expressions = None
    """Person properties to set if they have no value yet ($set_once); written like `properties`."""
    groups: Expressions = None
    """Groups of the event ($groups); written like `properties`."""
    drop: Annotated[tuple[NonEmpty, ...], Listed()] = ()
    """Paths of fields that are removed from the record before any expression is evaluated, such as
    .user.password.
    """
    hash: HashSettings = HashSettings()

    @property
    def given(self) -> bool:
        """Whether anything is set."""
        return self != MappingSettings()


@dataclass(frozen=True, kw_only=True)
class OtlpSettings(Section):
    """Log records of OpenTelemetry that are posted to /v1/logs, and how they become events.
    Without `mapping` the path is not served.
    """

    mapping: MappingSettings = MappingSettings()
    api_key: ProjectKey | None = field(default=None, repr=False)
    """Project key of the events. Required with a mapping, here or in a file."""
    api_key_file: Path | None = None
    """File with the project key, instead of `api_key`."""


@dataclass(frozen=True, kw_only=True)
class TlsSettings(Section):
    """Certificate of the listener; set both files or neither."""

    cert_file: Path | None = None
    """PEM file of the certificate and its chain."""
    key_file: Path | None = None
    """PEM file of the certificate's private key, without a passphrase."""


@dataclass(frozen=True, kw_only=True)
class HttpSettings(Section):
    """The listener that SDKs send to."""

    listen: Listen = "127.0.0.1:8320"
    """Address to listen on: host:port, '[::1]:port' or unix:/path."""
    tls: TlsSettings = TlsSettings()
    max_body: Annotated[int, Size("1kB", "1GiB")] = 20 * MB
    """Limit on a request body, on the wire and decompressed; bodies must be smaller."""
    max_connections: Annotated[int, Count(1, 1_000_000)] = 1024
    """Maximum number of open connections; further ones are rejected. One address may hold 7/8 of
    them.
    """
    path_prefix: Annotated[tuple[PathPrefix, ...], Listed(check_distinct_prefixes)] = ()
    """Path prefixes under which a website's proxy forwards requests, such as /ingest: all paths
    are also served below them.
    """
    trusted_proxies: Annotated[tuple[AddressRange, ...], Listed()] = ()
    """Addresses or networks whose X-Forwarded-For is trusted."""
    stamp_ip: Literal["auto", "never"] = "auto"
    """Whether events without $ip get the sender's address as $ip (auto: if it is globally
    routable).
    """
    cors_origins: Annotated[tuple[Origin, ...], Listed()] = ("*",)
    """Origins that CORS allows: browser pages that may read the answers."""
    api_keys: Annotated[Mapping[str, str], KeyList()] = field(default_factory=dict, repr=False)
    """Accepted project keys, as a list or with names that are shown for their lanes: {shop: phc_…}.
    An empty list accepts every well-formed key.
    """
    api_keys_file: Path | None = None
    """File with further accepted project keys, one per line, as KEY or NAME=KEY; lines that begin
    with # are comments.
    """
    max_lanes: Annotated[int, Count(1, 1_000_000)] = 100
    """Maximum number of lanes (live and historical of one key are two); half of it for unknown
    keys, neither in api_keys nor verified.
    """
    otlp: OtlpSettings = OtlpSettings()


@dataclass(frozen=True, kw_only=True)
class KafkaSecuritySettings(Section):
    """Security of the connections to the cluster. Files are reread for each connection."""

    protocol: Annotated[Protocol, AnyCase()] = "PLAINTEXT"
    """Whether connections are encrypted (SSL) and authenticated (SASL); with SASL_PLAINTEXT
    nothing is encrypted.
    """
    mechanism: Annotated[Mechanism, AnyCase()] | None = None
    """SASL mechanism, for SASL_SSL and SASL_PLAINTEXT."""
    username: NonEmpty | None = None
    """User name, for PLAIN and SCRAM."""
    password: NonEmpty | None = field(default=None, repr=False)
    """Password of `username`; prefer a file."""
    password_file: Path | None = None
    """File with the password."""
    ca_file: Path | None = None
    """PEM file of certificate authorities to trust instead of the system's."""
    cert_file: Path | None = None
    """PEM file of the client certificate and its chain, if the cluster requires one."""
    key_file: Path | None = None
    """PEM file of the client certificate's private key, without a passphrase."""
    token_file: Path | None = None
    """File with the current token, for OAUTHBEARER; replace the file to renew the token."""
    token_url: TokenUrl | None = None
    """Token endpoint for `client_id` and its secret, for OAUTHBEARER."""
    client_id: NonEmpty | None = None
    """Client id for `token_url`."""
    client_secret: NonEmpty | None = field(default=None, repr=False)
    """Secret of `client_id`; prefer a file."""
    client_secret_file: Path | None = None
    """File with the secret of `client_id`."""
    scope: NonEmpty | None = None
    """Scope to request from `token_url`, if it requires one."""
    aws_region: NonEmpty | None = None
    """Region of the cluster, such as eu-central-1, for AWS_MSK_IAM; credentials are found as
    Amazon's own tools find them.
    """


@dataclass(frozen=True, kw_only=True)
class KafkaSettings(Section):
    """A cluster whose topics are read, by all forwarders of a consumer group together."""

    name: SourceName = "kafka"
    """Unique name of the cluster in metrics, messages and derived uuids. Don't change it later:
    the derived uuids would change.
    """
    bootstrap_servers: Annotated[tuple[BrokerAddress, ...], Listed()] = ()
    """Some of its brokers, each host:port; the others are discovered through them. Required."""
    topics: Annotated[tuple[Topic, ...], Listed()] = ()
    """Topics to read. Required, unless `topics_pattern` is set."""
    topics_pattern: Pattern | None = None
    """Regular expression instead of `topics`: matched from the beginning of topic names, new
    topics included.
    """
    group_id: NonEmpty = "forwarder"
    """Consumer group; forwarders in one group share the partitions."""
    group_instance_id: Topic | None = None
    """Static member id of this forwarder, for restarts without rebalance; with `workers` above 1
    the worker's number is appended.
    """
    client_id: NonEmpty = "forwarder"
    """Name of this client in the brokers' logs and quotas."""
    auto_offset_reset: Literal["earliest", "latest"] = "earliest"
    """Where a group starts that has no committed offset."""
    format: Literal["events", "json"] = "events"
    """Format of records: any body that the HTTP listener accepts, or foreign JSON, which needs
    `mapping`.
    """
    mapping: MappingSettings = MappingSettings()
    api_key: ProjectKey | None = field(default=None, repr=False)
    """Project key of events that have none."""
    api_key_file: Path | None = None
    """File with the project key, instead of `api_key`."""
    api_key_header: NonEmpty | None = None
    """Record header with the project key of events that have none; takes precedence over `api_key`.
    """
    key_is_distinct_id: bool = False
    """Whether the record's key becomes the distinct_id of events that have none."""
    commit: Literal["delivered", "disk"] = "delivered"
    """When offsets are committed: when events are delivered or dead-lettered, or when they are in
    the disk buffer.
    """
    commit_interval: Annotated[float, Duration("100ms", "1h")] = 1.0
    """Interval between commits of offsets."""
    max_in_flight: Annotated[int, Size("1kB", "1TiB")] | None = None
    """Maximum bytes of unsettled records in each worker. Default: 32MiB, or less with a small
    `buffer.max_bytes`.
    """
    max_uncommitted: Annotated[int, Count(1, 100_000_000)] = 100_000
    """Maximum number of records that a partition may be read ahead of its first unsettled record.
    """
    fetch_max_bytes: Annotated[int, Size("1kB", "1GiB")] = 8 * MIB
    """Maximum bytes of one fetch response."""
    max_partition_fetch_bytes: Annotated[int, Size("1kB", "1GiB")] = MIB
    """Maximum bytes per partition of one fetch response; a larger record batch is still returned
    whole.
    """
    fetch_min_bytes: Annotated[int, Size("1", "1GiB")] = 1
    """Minimum bytes that a broker collects before it answers a fetch."""
    fetch_max_wait: Annotated[float, Duration("1ms", "30s")] = 0.5
    """Maximum time that a broker waits for `fetch_min_bytes`."""
    session_timeout: Annotated[float, Duration("1s", "30m")] = 30.0
    """Time without a heartbeat after which the group reassigns this member's partitions; brokers
    allow 6s to 30m.
    """
    max_poll_interval: Annotated[float, Duration("1s", "1d")] = 300.0
    """Time without progress of this process after which it leaves the group; an upstream that is
    down doesn't count.
    """
    revocation_timeout: Annotated[float, Duration("0s", "5m")] = 5.0
    """How long revoked partitions are kept to settle records in flight; the next consumer rereads
    the rest.
    """
    halt_after: Annotated[float | None, Duration("1s", "365d", never=True)] = 3600.0
    """Time after which events of a halted lane become dead letters, so that they don't block their
    partitions.
    """
    missing_topics: Literal["wait", "fail"] = "wait"
    """If topics are missing at the start: read the others and wait for the missing ones, or fail
    and not read the cluster at all.
    """
    isolation_level: Literal["read_committed", "read_uncommitted"] = "read_committed"
    """Whether records of uncommitted transactions are skipped (read_committed) or read."""
    security: KafkaSecuritySettings = KafkaSecuritySettings()


@dataclass(frozen=True, kw_only=True)
class MultilineSettings(Section):
    """Records of several lines, such as stack traces: a line that doesn't match `start` continues
    the record before it.
    """

    start: BytesPattern | None = None
    """Regular expression that is searched in each line: one in which it is found begins a record.
    Default: each line is a record.
    """
    max_wait: Annotated[float, Duration("10ms", "1h")] = 5.0
    """How long a record at the end of a file waits for further lines."""


@dataclass(frozen=True, kw_only=True)
class LogSourceSettings(Section):
    """Log files that are followed, or standard input; each line that matters becomes an event."""

    name: SourceName = "logs"
    """Unique name of the source in metrics, messages and derived uuids. Don't change it later: the
    derived uuids would change.
    """
    path: Annotated[tuple[NonEmpty, ...], Listed()] = ()
    """Files to follow: paths or globs such as /var/log/nginx/*.log, where ** stands for any
    folders. Required, unless `stdin` is set.
    """
    exclude: Annotated[tuple[NonEmpty, ...], Listed()] = ()
    """Globs of files that are not followed although `path` names them."""
    stdin: bool = False
    """Whether standard input is read instead of files; the daemon ends when it ends. What was
    piped can't be read again after a crash.
    """
    format: LineFormatName = "json"
    """Format of lines: json, logfmt, combined or common (access logs), syslog, cri (Kubernetes),
    or regex, which needs `pattern`.
    """
    pattern: Pattern | None = None
    """Regular expression of a line, for format or message_format regex; its named groups become
    the record's fields.
    """
    message_format: MessageFormatName | None = None
    """Format of the message in lines of format cri or syslog; the message's fields are below
    .message. Default: text.
    """
    multiline: MultilineSettings = MultilineSettings()
    read_from: Literal["beginning", "end"] = "beginning"
    """Where files are begun that exist when the source is started for the first time; later files
    are read from the beginning.
    """
    mapping: MappingSettings = MappingSettings()
    api_key: ProjectKey | None = field(default=None, repr=False)
    """Project key of the events. Required, here or in a file."""
    api_key_file: Path | None = None
    """File with the project key, instead of `api_key`."""
    commit: Literal["delivered", "disk"] = "delivered"
    """When positions are stored: when events are delivered or dead-lettered, or when they are in
    the disk buffer.
    """
    commit_interval: Annotated[float, Duration("100ms", "1h")] = 1.0
    """Interval at which positions are stored."""
    host: NonEmpty | None = None
    """Name of this host in derived uuids; it must stay the same over restarts. Default: the host's
    name.
    """
    max_line: Annotated[int, Size("1kB", "64MiB")] = MB
    """Maximum size of a record; longer ones become dead letters, of which the beginning is kept."""
    max_open_files: Annotated[int, Count(1, 1_000_000)] = 256
    """Maximum number of files that are open at once; any number is followed, in turn."""
    max_in_flight: Annotated[int, Size("1kB", "1TiB")] | None = None
    """Maximum bytes of unsettled lines. Default: 32MiB, or less with a small `buffer.max_bytes`."""
    poll_interval: Annotated[float, Duration("10ms", "1h")] = 1.0
    """Interval at which all files are looked at, whether changes were reported or not; network
    file systems report none.
    """
    rotate_wait: Annotated[float, Duration("0s", "1d")] = 30.0
    """How long a file that was renamed away or deleted is kept open after its last line."""


KeyedSource: TypeAlias = OtlpSettings | KafkaSettings | LogSourceSettings
"""A source that is configured with the project key of its events."""


@dataclass(frozen=True, kw_only=True)
class SourcesSettings(Section):
    """Where events come from."""

    http: HttpSettings = HttpSettings()
    kafka: tuple[KafkaSettings, ...] = ()
    """Kafka clusters to read from; each is a list item with the keys below."""
    logs: tuple[LogSourceSettings, ...] = ()
    """Logs to follow; each is a list item with the keys below."""

    def keyed(self) -> Iterator[tuple[str, KeyedSource]]:
        """All that have a project key of their own, each with the dotted name of its section."""
        yield "sources.http.otlp", self.http.otlp
        for number, cluster in enumerate(self.kafka):
            yield f"sources.kafka[{number}]", cluster
        for number, source in enumerate(self.logs):
            yield f"sources.logs[{number}]", source

    @property
    def source_keys(self) -> Sequence[str]:
        """The project keys that sources are configured with: all but those of HTTP senders."""
        return [source.api_key for _, source in self.keyed() if source.api_key]
