"""What can be configured: every key with its kind, its default and its meaning.

The docstring under a field is its description in the JSON Schema. A value of None means "not set". Sizes are bytes, times are
seconds. Nothing here reads a file or the environment: `forwarder.config.load` does, and hands over what it found.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from forwarder.config.addresses import check_distinct_prefixes
from forwarder.config.imports import ImportSettings
from forwarder.config.kafka import KafkaSettings
from forwarder.config.management import ManagementSettings
from forwarder.config.section import GIB, MB, MIB, Section
from forwarder.config.values import (
    AddressRange,
    Concurrency,
    Count,
    Duration,
    HostName,
    Listed,
    Listen,
    Origin,
    PathPrefix,
    ProjectKey,
    ProxyUrl,
    Size,
    UpstreamUrl,
)
from forwarder.core.ack import AckLevel
from forwarder.core.ports import Ordering, WhenFull


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
    proxy: ProxyUrl | None = Field(default=None, repr=False)
    """HTTP proxy to reach the service through, such as http://proxy.example.com:3128; may hold user and password."""
    verify_keys: bool = True
    """Whether to ask the service, off the hot path, if it knows each project key, and to hold back events of those it doesn't."""


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


class TlsSettings(Section):
    """Certificate of the listener; both files or neither."""

    cert_file: Path | None = None
    """PEM file of the certificate and the chain above it."""
    key_file: Path | None = None
    """PEM file of the certificate's private key, without passphrase."""


class HttpSettings(Section):
    """The listener that SDKs send to."""

    listen: Listen = "127.0.0.1:8320"
    """Where to listen: host:port, '[::1]:port' or unix:/path."""
    tls: TlsSettings = TlsSettings()
    max_body: Annotated[int, Size("1kB", "1GiB")] = 20 * MB
    """A request body has to be smaller than this, on the wire and decompressed."""
    max_connections: Annotated[int, Count(1, 1_000_000)] = 1024
    """Connections open at once; further ones are rejected. One address may hold 7/8 of them."""
    path_prefix: Annotated[tuple[PathPrefix, ...], Listed(), AfterValidator(check_distinct_prefixes)] = ()
    """Paths of a website under which a proxy brings requests, such as /ingest: all paths are served below them too."""
    trusted_proxies: Annotated[tuple[AddressRange, ...], Listed()] = ()
    """Addresses or networks whose X-Forwarded-For is believed."""
    stamp_ip: Literal["auto", "never"] = "auto"
    """Whether events get the sender's address as $ip where they have none (auto: senders with a globally routable address)."""
    cors_origins: Annotated[tuple[Origin, ...], Listed()] = ("*",)
    """Origins whose pages may send events from a browser."""
    api_keys: Annotated[tuple[ProjectKey, ...], Listed()] = Field(default=(), repr=False)
    """Project keys that are taken; none listed: every well-formed one."""
    api_keys_file: Path | None = None
    """File of further project keys, one a line; lines that begin with # are comments."""
    max_lanes: Annotated[int, Count(1, 1_000_000)] = 100
    """Project keys held at once (live and historical of one key are two); half of it for unknown keys, neither in api_keys nor verified."""


class SourcesSettings(Section):
    """Where events come from."""

    http: HttpSettings = HttpSettings()
    kafka: tuple[KafkaSettings, ...] = ()
    """Kafka clusters to read from, in any number; each is a list item with the keys below."""


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


class BatchSettings(Section):
    """When a batch is closed: whichever limit is reached first."""

    max_bytes: Annotated[int, Size("1kB", "1GiB")] = 5 * MB
    """Bytes of the request body before compression."""
    max_events: Annotated[int, Count(1, 1_000_000)] = 5000
    """Events in a request."""
    max_age: Annotated[float, Duration("0s", "1h")] = 1.0
    """How long an event waits for others to go with."""


class RetrySettings(Section):
    """How a failed request is sent again; waits double, with full jitter."""

    initial: Annotated[float, Duration("1ms", "1h")] = 0.5
    """Longest wait before the first retry."""
    max: Annotated[float, Duration("1ms", "1d")] = 30.0
    """Longest wait before any retry."""
    give_up_after: Annotated[float | None, Duration("1s", "365d", never=True)] = None
    """When an event that can't be delivered becomes a dead letter."""


class DeliverySettings(Section):
    """How batches are sent."""

    concurrency: Concurrency = "adaptive"
    """Requests in flight at once: found out (adaptive), or a number."""
    ordering: Ordering | None = None
    """Which events keep their order. Not set: none for live events, per_distinct_id for historical ones; set: what it says, for both."""
    clock_skew_tolerance: Annotated[float, Duration("0s", "1h")] = 1.0
    """Difference between a sender's clock and ours that is taken for the network's delay, and left alone."""
    retry: RetrySettings = RetrySettings()


class DeadLetterSettings(Section):
    """Where events are kept that can't be delivered."""

    path: Path | None = None
    """Directory of their files. Not set: `buffer.path` with a disk buffer, else the state directory of this user."""
    max_bytes: Annotated[int, Size("64KiB", "1TiB")] | None = None
    """Bytes that they may take, over all workers. Not set: 16MiB beside a memory buffer, 256MiB beside a disk buffer."""


class ShutdownSettings(Section):
    """What happens on SIGTERM and SIGINT."""

    delay: Annotated[float, Duration("0s", "1h")] = 0.0
    """How long to go on taking events, for a load balancer to notice."""
    drain_timeout: Annotated[float, Duration("0s", "1d")] = 25.0
    """How long to go on delivering after that."""


class AdminSettings(Section):
    """The listener for metrics, health and status."""

    listen: Listen = "127.0.0.1:8321"
    """Where to listen: host:port, '[::1]:port' or unix:/path."""
    hosts: Annotated[tuple[HostName, ...], Listed()] = ()
    """Further host names that it is reached by. Addresses, localhost and this machine's own name always work; others are answered 421."""


class LogSettings(Section):
    """The daemon's log, on standard error."""

    format: Literal["json", "console"] | None = None
    """How lines are written. Not set: console on a terminal, else json."""
    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least severe lines that are written."""


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
    import_: ImportSettings = Field(default=ImportSettings(), alias="import")
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
