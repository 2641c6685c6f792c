"""A Kafka cluster to read from, as it is written: an item of `sources.kafka`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from forwarder.config.mapping import MappingSettings
from forwarder.config.section import MIB, Section
from forwarder.config.values import (
    BrokerAddress,
    Choice,
    ClusterName,
    Count,
    Duration,
    Listed,
    Password,
    Pattern,
    ProjectKey,
    Size,
    Text,
    TokenUrl,
    Topic,
)

Protocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "AWS_MSK_IAM"]


class KafkaSecuritySettings(Section):
    """How the cluster is connected to. Files are read again at each connection."""

    protocol: Annotated[Protocol, Choice(Protocol)] = "PLAINTEXT"
    """Whether connections are encrypted (SSL) and who reads signs in (SASL); SASL_PLAINTEXT lets the network see what is sent."""
    mechanism: Annotated[Mechanism | None, Choice(Mechanism)] = None
    """How to sign in, with SASL_SSL and SASL_PLAINTEXT."""
    username: Text | None = None
    """Who signs in, with PLAIN and SCRAM."""
    password: Password | None = Field(default=None, repr=False)
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
    client_id: Text | None = None
    """Who asks `token_url` for a token."""
    client_secret: Password | None = Field(default=None, repr=False)
    """Secret of `client_id`; better in a file."""
    client_secret_file: Path | None = None
    """File that holds the secret of `client_id`."""
    scope: Text | None = None
    """Scope that is asked of `token_url`, if it needs one."""
    aws_region: Text | None = None
    """Region of the cluster, such as eu-central-1, with AWS_MSK_IAM; who signs in is found as Amazon's own tools find it."""


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
    group_id: Text = "forwarder"
    """Consumer group; forwarders in one group share the partitions."""
    group_instance_id: Topic | None = None
    """This forwarder's own name in the group, for a restart without rebalance; with `workers` above 1 the worker's number is appended."""
    client_id: Text = "forwarder"
    """What the brokers' logs and quotas call this client."""
    auto_offset_reset: Literal["earliest", "latest"] = "earliest"
    """Where a group begins that has committed nothing yet."""
    format: Literal["events", "json"] = "events"
    """What records are: whatever the HTTP listener takes as a body, or foreign JSON, which needs `mapping`."""
    mapping: MappingSettings = MappingSettings()
    api_key: ProjectKey | None = Field(default=None, repr=False)
    """Project key of events that bring none."""
    api_key_file: Path | None = None
    """File that holds the project key, instead of `api_key`."""
    api_key_header: Text | None = None
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
