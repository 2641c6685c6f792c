"""Cross-field validation: whether values fit together, and whether the files that they name can be
used.
"""

from __future__ import annotations

from collections.abc import Iterator

from forwarder.config.addresses import parse_address
from forwarder.config.conflicts import (
    Conflict,
    one_alone,
    too_large,
    unusable_authorities,
    unusable_pair,
)
from forwarder.config.destination_checks import destination_conflicts
from forwarder.config.kafka_checks import kafka_conflicts
from forwarder.config.log_checks import log_conflicts, otlp_conflicts
from forwarder.config.section import MIB
from forwarder.config.settings import Settings
from forwarder.config.source_checks import project_key_conflicts
from forwarder.config.units import format_duration, format_size
from forwarder.core.ack import AckLevel
from forwarder.core.ports import Ordering
from forwarder.core.segments import largest_event, limit_for


def conflicts(settings: Settings) -> list[Conflict]:
    """Everything that doesn't fit together. Reads the files that are named."""
    own = (_sizes, _segments, _acknowledgement, _workers, _retry, _listeners, _tls, _authorities)
    sources = (project_key_conflicts, kafka_conflicts, log_conflicts, otlp_conflicts)
    return [
        conflict
        for check in (*own, destination_conflicts, *sources)
        for conflict in check(settings)
    ]


def advice(settings: Settings) -> list[Conflict]:
    """What can be used as it is, and holds a risk that a person should know of."""
    return [*_unruled(settings), *_unprotected(settings)]


def _unruled(settings: Settings) -> Iterator[Conflict]:
    if settings.rules and settings.passthrough.enabled:
        message = "don't touch calls that are passed through: recordings, AI events and flags"
        yield Conflict(
            "rules",
            message,
            "redact those in the SDK, or set passthrough.enabled to false if nothing needs them",
        )


def _unprotected(settings: Settings) -> list[Conflict]:
    if settings.sources.http.api_keys:
        return []
    if all(own.upstream.verify_keys for _, own in settings.of_each()):
        message = (
            "is empty: in an outage at the first start, before a key was verified, made-up "
            "keys can fill the buffer"
        )
    else:
        message = (
            "is empty and upstream.verify_keys is off: made-up keys can fill the buffer in an "
            "outage"
        )
    return [Conflict("sources.http.api_keys", message, "list the project keys that senders use")]


def _sizes(settings: Settings) -> Iterator[Conflict]:
    batch = settings.batch
    for section, own in settings.of_each():
        upstream = own.upstream
        max_body = f"{section}.max_body"
        max_event = f"{section}.max_event"
        if batch.max_bytes >= upstream.max_body:
            yield too_large(
                "batch.max_bytes",
                batch.max_bytes,
                f"must be smaller than {max_body}",
                upstream.max_body,
                max_body,
            )
        if upstream.max_event > batch.max_bytes:
            yield too_large(
                max_event,
                upstream.max_event,
                "must fit into batch.max_bytes",
                batch.max_bytes,
                "batch.max_bytes",
            )
        if upstream.max_event > settings.dead_letter_share:
            limit = f"must fit into {_share(settings)}dead_letters.max_bytes"
            yield too_large(
                max_event,
                upstream.max_event,
                limit,
                settings.dead_letter_share,
                "dead_letters.max_bytes",
            )
    if batch.max_bytes > settings.buffer_share // 2:
        limit = (
            f"may be at most half of {_share(settings)}buffer.max_bytes, all that historical "
            "events of a key may hold"
        )
        yield too_large(
            "batch.max_bytes", batch.max_bytes, limit, settings.buffer_share, "buffer.max_bytes"
        )


def _share(settings: Settings) -> str:
    return "one worker's share of " if settings.workers > 1 else ""


def _segments(settings: Settings) -> Iterator[Conflict]:
    largest = largest_event(settings.buffer_share)
    for section, own in settings.of_each() if settings.buffer.kind == "disk" else ():
        event = own.upstream.max_event
        if event > largest:
            least = limit_for(event)
            message = (
                f"{format_size(event)} must fit into one file of the disk buffer, which takes "
                f"events of {format_size(largest)}"
            )
            enough = (
                f", or raise buffer.max_bytes to {_rounded_up(least * settings.workers)}"
                if least
                else ""
            )
            yield Conflict(f"{section}.max_event", message, f"lower {section}.max_event{enough}")


def _rounded_up(size: int) -> str:
    return f"{-(-size // MIB)}MiB"


def _acknowledgement(settings: Settings) -> Iterator[Conflict]:
    if settings.buffer.ack is AckLevel.DISK and settings.buffer.kind != "disk":
        yield Conflict(
            "buffer.ack",
            "disk needs buffer.kind: disk",
            "set buffer.kind to disk, or buffer.ack to memory or delivered",
        )


def _workers(settings: Settings) -> Iterator[Conflict]:
    ordering = settings.delivery.ordering
    if settings.workers > 1 and ordering not in (None, Ordering.NONE):
        message = (
            f"{ordering} can't be kept by {settings.workers} workers: events of one id come "
            "to any of them"
        )
        yield Conflict(
            "delivery.ordering", message, "set workers to 1, or delivery.ordering to none"
        )


def _retry(settings: Settings) -> Iterator[Conflict]:
    retry = settings.delivery.retry
    if retry.initial > retry.max:
        message = (
            f"{format_duration(retry.initial)} is more than delivery.retry.max "
            f"({format_duration(retry.max)})"
        )
        yield Conflict(
            "delivery.retry.initial",
            message,
            "lower delivery.retry.initial, or raise delivery.retry.max",
        )


def _listeners(settings: Settings) -> Iterator[Conflict]:
    http = settings.sources.http.listen
    admin = settings.admin.listen
    if parse_address(http).overlaps(parse_address(admin)):
        message = f"{admin} and sources.http.listen ({http}) can't both be listened on"
        yield Conflict("admin.listen", message, "give one of them another port")


def _tls(settings: Settings) -> Iterator[Conflict]:
    tls = settings.sources.http.tls
    named = {"sources.http.tls.cert_file": tls.cert_file, "sources.http.tls.key_file": tls.key_file}
    yield from one_alone(named)
    yield from unusable_pair(named)


def _authorities(settings: Settings) -> Iterator[Conflict]:
    for section, own in settings.of_each():
        yield from unusable_authorities(f"{section}.ca_file", own.upstream.ca_file)
