"""From settings to the policies of the pipeline's parts; and which keys a reload changes in a
running pipeline.

Pure, except for `http_policy`, which raises the limit on open files, and `open_sink`, which reads
the CA file.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Collection, Sequence
from typing import Final

from forwarder.config.keys import dotted, is_number, leaves
from forwarder.config.settings import Settings, UpstreamSettings
from forwarder.core.clock import Clock
from forwarder.core.error_text import error_text
from forwarder.core.errors import ConfigurationError
from forwarder.core.event import Lane
from forwarder.core.path import ForwarderPath
from forwarder.core.ports import Ordering
from forwarder.core.shares import LEAST, size_for
from forwarder.daemon.descriptors import files_beside_connections, reserve_descriptors
from forwarder.daemon.roles import Role
from forwarder.delivery.batching import BatchPolicy
from forwarder.delivery.lane_state import RetryPolicy
from forwarder.delivery.sink import HttpSink, UpstreamPolicy
from forwarder.intake.intake import IntakePolicy
from forwarder.sources.http.passthrough import PassThroughPolicy
from forwarder.sources.http.protocol.limits import HttpPolicy
from forwarder.stamping.stamp_event import ReadingRules

LIVE_KEYS: Final = frozenset(
    {
        "sources.http.api_keys",
        "sources.http.api_keys_file",
        "sources.http.max_lanes",
        "batch.max_bytes",
        "batch.max_events",
        "batch.max_age",
        "rules",
    }
)
"""The keys that take effect on a reload; a certificate is read again in any case."""

LIVE_SECTIONS: Final = ("log.", "shutdown.")
"""Sections that take effect on a reload without the pipeline: loading applies the first, the
shutdown reads the second.
"""


def keys_needing_restart(old: Settings, new: Settings) -> list[str]:
    """The keys whose values differ, and that a reload can't change."""
    return [
        key
        for key in changed_keys(old, new)
        if key not in LIVE_KEYS and not key.startswith(LIVE_SECTIONS)
    ]


def changed_keys(old: Settings, new: Settings) -> list[str]:
    """The dotted names of the keys whose values differ; a list of sections is one key."""
    before = dict(leaves(old.as_document()))
    after = [
        (path, value) for path, value in leaves(new.as_document()) if not any(map(is_number, path))
    ]
    return [dotted(path) for path, value in after if before[path] != value]


def lane_ordering(settings: Settings) -> Callable[[Lane], Ordering]:
    """The order that a lane keeps: the configured one; by default none for live events, and per
    distinct_id for historical ones.

    Several workers can't keep an order between them: events of one id come to any of them.
    """
    configured = settings.delivery.ordering
    live = configured or Ordering.NONE
    historical = configured or (
        Ordering.PER_DISTINCT_ID if settings.workers == 1 else Ordering.NONE
    )
    return lambda lane: historical if lane.historical else live


def batch_policy(settings: Settings) -> BatchPolicy:
    """When batches are closed; their bodies stay below the service's limit."""
    batch = settings.batch
    return BatchPolicy(
        min(batch.max_bytes, settings.upstream.max_body), batch.max_events, batch.max_age
    )


def retry_policy(settings: Settings) -> RetryPolicy:
    """When a batch is sent again, and when it is given up."""
    retry = settings.delivery.retry
    return RetryPolicy(retry.initial, retry.max, retry.give_up_after)


def open_sink(
    upstream: UpstreamSettings,
    clock: Clock,
    path: ForwarderPath | None = None,
    headers: Sequence[tuple[str, str]] = (),
) -> HttpSink:
    """The way to the upstream; `path` is the daemon's, `headers` are sent with each batch.

    Raises `ConfigurationError` for a `ca_file` that can't be used.
    """
    ca_file = str(upstream.ca_file) if upstream.ca_file else None
    try:
        policy = UpstreamPolicy(
            upstream.url,
            upstream.compression == "gzip",
            upstream.timeout,
            ca_file,
            upstream.proxy,
            tuple(headers),
        )
        return HttpSink(policy, clock, path)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(
            f"upstream.ca_file {ca_file} can't be used: {error_text(error)}",
            hint="Give a readable PEM file.",
        ) from error


def intake_policy(settings: Settings) -> IntakePolicy:
    """When requests are acknowledged."""
    buffer = settings.buffer
    return IntakePolicy(ack=buffer.ack_level, durable=buffer.kind == "disk")


def reading_rules(settings: Settings, max_events: int) -> ReadingRules:
    """What is read of requests and records; `max_events`: of one of them."""
    ordering_of = lane_ordering(settings)
    live, historical = (
        ordering_of(Lane("", historical)) is Ordering.PER_DISTINCT_ID
        for historical in (False, True)
    )
    return ReadingRules(
        _largest_body(settings),
        settings.max_event,
        max_events,
        settings.delivery.clock_skew_tolerance,
        (live, historical),
    )


def http_policy(settings: Settings, role: Role) -> HttpPolicy:
    """How the listener treats connections; for a pipeline that listens it raises
    the limit on open files.
    """
    http = settings.sources.http
    connections = http.max_connections
    if role.listens:
        connections = reserve_descriptors(connections, files_beside_connections(settings))
    return HttpPolicy(
        max_body=_largest_body(settings),
        max_connections=connections,
        # the intake answers an acknowledgement that is late a little sooner
        answer_timeout=settings.buffer.ack_timeout + 1.0,
        max_receiving=size_for(http.max_body) + LEAST,
        stamp_ip=http.stamp_ip == "auto",
        trusted_proxies=http.trusted_proxies,
        cors_origins=http.cors_origins,
        path_prefixes=http.path_prefix,
        otlp=http.otlp.mapping.given,
    )


def allowed_keys(api_keys: Collection[str], running: Settings) -> Collection[str]:
    """The only project keys that HTTP senders may use; empty if they may use any. That of OTLP is
    one of them: it is configured.
    """
    otlp = running.sources.http.otlp.api_key
    return [*api_keys, otlp] if api_keys and otlp else api_keys


def pass_through_policy(settings: Settings, sink: HttpSink) -> PassThroughPolicy:
    """Where calls are passed through to, with the certificates of `sink`."""
    upstream = settings.upstream
    passed = settings.passthrough
    return PassThroughPolicy(
        url=upstream.url,
        assets_url=upstream.assets_url or upstream.url,
        connect_timeout=passed.connect_timeout,
        flags_timeout=passed.flags_timeout,
        timeout=passed.timeout,
        max_body=passed.max_body,
        definitions_max_age=passed.definitions_max_age,
        tls=sink.tls,
        proxy=upstream.proxy,
        api_keys=settings.destination.api_keys,
    )


def _largest_body(settings: Settings) -> int:
    """Bytes of the largest body that is accepted: "the whole request body must be smaller than 20
    MB" (interface document, Limits 1).
    """
    return settings.sources.http.max_body - 1
