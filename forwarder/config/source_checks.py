"""Cross-field validation that sources have in common: names, project keys, positions, limits,
mappings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from forwarder.config.conflicts import Conflict, too_large, unreadable
from forwarder.config.settings import Settings
from forwarder.config.source_settings import MappingSettings
from forwarder.config.units import format_size


def same_names(key: str, what: str, names: Sequence[str]) -> Iterator[Conflict]:
    """Several items of the list at `key` have one name: metrics and derived uuids distinguish them
    by it.
    """
    for number, name in enumerate(names):
        if name in names[:number]:
            message = f"{name} is the name of {key}[{names.index(name)}] too"
            yield Conflict(f"{key}[{number}].name", message, f"give each {what} a name of its own")


def project_key_conflicts(settings: Settings) -> Iterator[Conflict]:
    """The project key of a source is given twice."""
    for key, source in settings.sources.keyed():
        if source.api_key and source.api_key_file:
            yield Conflict(
                f"{key}.api_key_file", f"can't be beside {key}.api_key", "keep one of the two"
            )


def event_conflicts(
    key: str, mapping: MappingSettings, api_key: str | None, file: Path | None
) -> Iterator[Conflict]:
    """The source at `key` has records that are no events, and something that makes an event isn't
    given: its name, its id, its project.
    """
    if mapping.event is None:
        hint = "for example: .type, or '\"signed up\"'"
        yield Conflict(
            f"{key}.mapping.event", "is missing: the expression of the event's name", hint
        )
    if mapping.distinct_id is None:
        hint = "for example: .user.id"
        yield Conflict(
            f"{key}.mapping.distinct_id", "is missing: the expression of the distinct_id", hint
        )
    if not api_key and file is None:
        yield Conflict(
            f"{key}.api_key",
            "is missing: the project that the events belong to",
            f"set it, or {key}.api_key_file",
        )


def commit_conflicts(key: str, commit: str, settings: Settings) -> Iterator[Conflict]:
    """Positions of the source at `key` are stored when events are on disk, where they never are."""
    if commit == "disk" and settings.buffer.kind != "disk":
        yield Conflict(
            f"{key}.commit",
            "disk needs buffer.kind: disk",
            f"set buffer.kind to disk, or {key}.commit to delivered",
        )


def in_flight_conflicts(key: str, size: int | None, settings: Settings) -> Iterator[Conflict]:
    """`max_in_flight` of the source at `key` can't hold an event, or is more than the buffer has
    room for.
    """
    name = f"{key}.max_in_flight"
    event = settings.max_event
    if size is None:
        return
    if size < event:
        message = (
            f"{format_size(size)} must hold the largest event, upstream.max_event "
            f"({format_size(event)})"
        )
        yield Conflict(name, message, f"raise {name}, or lower upstream.max_event")
    if settings.buffer.kind == "memory" and size > settings.buffer_share // 2:
        share = "one worker's share of " if settings.workers > 1 else ""
        yield too_large(
            name,
            size,
            f"may be at most half of {share}buffer.max_bytes",
            settings.buffer_share,
            "buffer.max_bytes",
        )


def mapping_conflicts(
    key: str, mapping: MappingSettings, *, own_times: bool = False
) -> Iterator[Conflict]:
    """Everything that doesn't fit in the mapping that stands at `key`. Looks whether the file of
    the salt can be read.

    `own_times`: records have a time of their own, whose zone the mapping may give alone.
    """
    timestamp = mapping.timestamp
    if timestamp.source is None and (timestamp.format or (timestamp.zone and not own_times)):
        hint = "write the expression of the time, or leave the section out"
        yield Conflict(
            f"{key}.timestamp.from", "is missing: format and zone say how it is written", hint
        )
    yield from _hash(f"{key}.hash", mapping)


def _hash(key: str, mapping: MappingSettings) -> Iterator[Conflict]:
    hashed = mapping.hash
    if (hashed.field or hashed.combine) and hashed.salt_file is None:
        hint = "name a file with a secret of some length, such as `openssl rand -hex 32` writes"
        yield Conflict(f"{key}.salt_file", "is missing: a hash without a key can be guessed", hint)
    if (hashed.salt_file or hashed.daily) and not hashed.field and not hashed.combine:
        yield Conflict(
            f"{key}.field",
            "is missing: what to hash",
            f"name paths such as .user.email, or leave out {key}",
        )
    yield from unreadable(f"{key}.salt_file", hashed.salt_file)
