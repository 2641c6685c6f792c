"""Whether the keys of a mapping fit together. What its expressions mean is not looked at: `forwarder.mapping` compiles them."""

from __future__ import annotations

from collections.abc import Iterator

from forwarder.config.conflicts import Conflict, unreadable
from forwarder.config.mapping import MappingSettings, TimestampSettings


def mapping_conflicts(key: str, mapping: MappingSettings) -> Iterator[Conflict]:
    """Everything that doesn't fit in the mapping that stands at `key`. Looks whether the file of the salt can be read."""
    if mapping.timestamp.source is None and mapping.timestamp != TimestampSettings():
        hint = "write the expression of the time, or leave the section out"
        yield Conflict(f"{key}.timestamp.from", "is missing: format and zone say how it is written", hint)
    yield from _hash(f"{key}.hash", mapping)


def _hash(key: str, mapping: MappingSettings) -> Iterator[Conflict]:
    hashed = mapping.hash
    if hashed.field and hashed.salt_file is None:
        hint = "name a file with a secret of some length, such as `openssl rand -hex 32` writes"
        yield Conflict(f"{key}.salt_file", "is missing: a hash without a key can be guessed", hint)
    if hashed.salt_file and not hashed.field:
        yield Conflict(f"{key}.field", "is missing: what to hash", f"name paths such as .user.email, or leave out {key}.salt_file")
    yield from unreadable(f"{key}.salt_file", hashed.salt_file)
