"""What single values can't tell: whether they fit together, and whether the files they name can be used."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from forwarder.config.addresses import parse_address
from forwarder.config.settings import MIB, Settings
from forwarder.config.units import format_duration, format_size
from forwarder.core.ack import AckLevel
from forwarder.core.ports import Ordering
from forwarder.core.segments import largest_event, limit_for


@dataclass(frozen=True, slots=True)
class Conflict:
    """A key whose value doesn't fit: which, why, and how to mend it."""

    key: str
    message: str
    hint: str


def conflicts(settings: Settings) -> list[Conflict]:
    """Everything that doesn't fit together. Reads the files that are named."""
    checks = (_sizes, _segments, _acknowledgement, _workers, _retry, _listeners, _tls, _authorities)
    return [conflict for check in checks for conflict in check(settings)]


def _sizes(settings: Settings) -> Iterator[Conflict]:
    upstream, batch = settings.upstream, settings.batch
    if batch.max_bytes >= upstream.max_body:
        limit = "must be smaller than upstream.max_body"
        yield _too_large("batch.max_bytes", batch.max_bytes, limit, upstream.max_body, "upstream.max_body")
    if batch.max_bytes > settings.buffer_share // 2:
        limit = f"may be at most half of {_share(settings)}buffer.max_bytes, all that one lane may hold"
        yield _too_large("batch.max_bytes", batch.max_bytes, limit, settings.buffer_share, "buffer.max_bytes")
    if upstream.max_event > batch.max_bytes:
        yield _too_large("upstream.max_event", upstream.max_event, "must fit into batch.max_bytes", batch.max_bytes, "batch.max_bytes")
    if upstream.max_event > settings.dead_letter_share:
        limit = f"must fit into {_share(settings)}dead_letters.max_bytes"
        yield _too_large("upstream.max_event", upstream.max_event, limit, settings.dead_letter_share, "dead_letters.max_bytes")


def _share(settings: Settings) -> str:
    return "one worker's share of " if settings.workers > 1 else ""


def _too_large(key: str, size: int, limit: str, bound: int, other: str) -> Conflict:
    """`other` is the key to raise."""
    return Conflict(key, f"{format_size(size)} {limit} ({format_size(bound)})", f"lower {key}, or raise {other}")


def _segments(settings: Settings) -> Iterator[Conflict]:
    event, largest = settings.upstream.max_event, largest_event(settings.buffer_share)
    if settings.buffer.kind != "disk" or event <= largest:
        return
    least = limit_for(event)
    message = f"{format_size(event)} must fit into one file of the disk buffer, which takes events of {format_size(largest)}"
    enough = f", or raise buffer.max_bytes to {_rounded_up(least * settings.workers)}" if least else ""
    yield Conflict("upstream.max_event", message, f"lower upstream.max_event{enough}")


def _rounded_up(size: int) -> str:
    return f"{-(-size // MIB)}MiB"


def _acknowledgement(settings: Settings) -> Iterator[Conflict]:
    if settings.buffer.ack is AckLevel.DISK and settings.buffer.kind != "disk":
        yield Conflict("buffer.ack", "disk needs buffer.kind: disk", "set buffer.kind to disk, or buffer.ack to memory or delivered")


def _workers(settings: Settings) -> Iterator[Conflict]:
    ordering = settings.delivery.ordering
    if settings.workers > 1 and ordering not in (None, Ordering.NONE):
        message = f"{ordering} can't be kept by {settings.workers} workers: events of one id come to any of them"
        yield Conflict("delivery.ordering", message, "set workers to 1, or delivery.ordering to none")


def _retry(settings: Settings) -> Iterator[Conflict]:
    retry = settings.delivery.retry
    if retry.initial > retry.max:
        message = f"{format_duration(retry.initial)} is more than delivery.retry.max ({format_duration(retry.max)})"
        yield Conflict("delivery.retry.initial", message, "lower delivery.retry.initial, or raise delivery.retry.max")


def _listeners(settings: Settings) -> Iterator[Conflict]:
    http, admin = settings.sources.http.listen, settings.admin.listen
    if parse_address(http).overlaps(parse_address(admin)):
        message = f"{admin} and sources.http.listen ({http}) can't both be listened on"
        yield Conflict("admin.listen", message, "give one of them another port")


def _tls(settings: Settings) -> Iterator[Conflict]:
    tls = settings.sources.http.tls
    named = {"sources.http.tls.cert_file": tls.cert_file, "sources.http.tls.key_file": tls.key_file}
    missing = [key for key, file in named.items() if file is None]
    if len(missing) == 1:
        yield Conflict(missing[0], "is missing", "name both files, sources.http.tls.cert_file and sources.http.tls.key_file, or neither")
    unreadable = [conflict for key, file in named.items() if file for conflict in _unreadable(key, file)]
    yield from unreadable
    if tls.cert_file and tls.key_file and not unreadable:
        cert, key = tls.cert_file, tls.key_file
        hint = "give a PEM certificate and its own key, without passphrase"
        yield from _refused("sources.http.tls.cert_file", lambda: _load_pair(cert, key), hint)


def _authorities(settings: Settings) -> Iterator[Conflict]:
    file = settings.upstream.ca_file
    if file is None:
        return
    unreadable = list(_unreadable("upstream.ca_file", file))
    yield from unreadable or _refused("upstream.ca_file", lambda: _load_authorities(file), "give certificates in PEM form")


def _unreadable(key: str, file: Path) -> Iterator[Conflict]:
    try:
        file.open("rb").close()
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL in it
        yield Conflict(key, f"{file} can't be read: {getattr(error, 'strerror', None) or error}", "name a file that this user may read")


def _refused(key: str, load: Callable[[], None], hint: str) -> Iterator[Conflict]:
    try:
        load()
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        yield Conflict(key, f"can't be used: {getattr(error, 'reason', None) or error}", hint)


def _load_pair(cert: Path, key: Path) -> None:
    ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(cert, key, password=lambda: "")


def _load_authorities(file: Path) -> None:
    ssl.create_default_context(cafile=str(file))
