"""The file of verified project keys, `known-keys.json` in a state directory: keys stay known after
a restart during an outage.

It holds no key: a random salt, and a keyed hash of each key under it, the one verified longest ago
first. All workers of a daemon share it. A change reads, merges and replaces the whole file, under
a lock of the directory, so that no worker loses another's keys, and a crash leaves the old file or
the new one.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Final

import msgspec
import structlog

from forwarder.core.error_text import error_text
from forwarder.storage.private import open_file

KNOWN_KEYS: Final = "known-keys.json"
_OF_DESTINATION: Final = "known-keys-{}.json"
MAX_KEYS: Final = 10_000
"""Most keys that are remembered."""

_VERSION: Final = 1
_SALT_BYTES: Final = 32
_HASH_BYTES: Final = 16

_log = structlog.get_logger()


def key_file(directory: Path, destination: str = "") -> Path:
    """The file of the keys that a destination has verified; empty: of the one without a name."""
    return directory / (_OF_DESTINATION.format(destination) if destination else KNOWN_KEYS)


def name_key_file(directory: Path, destination: str) -> None:
    """Make the file without a name that of a destination, unless that has one. What can't be
    renamed is left: keys are verified again.
    """
    old = key_file(directory)
    new = key_file(directory, destination)
    with suppress(OSError):
        if not new.exists():
            old.rename(new)


@dataclass(frozen=True)
class KeyHashes:
    """A salt, and the hashes of keys under it."""

    salt: bytes
    hashes: Sequence[bytes]
    _set: frozenset[bytes] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_set", frozenset(self.hashes))

    @property
    def count(self) -> int:
        """How many keys there are."""
        return len(self._set)

    def __contains__(self, api_key: str) -> bool:
        return bool(self._set) and _hash(self.salt, api_key) in self._set

    def with_keys(self, api_keys: Iterable[str]) -> KeyHashes:
        """These and the hashes of other keys; past `MAX_KEYS` the oldest are left out."""
        merged = dict.fromkeys(self.hashes)
        for api_key in api_keys:
            merged.setdefault(_hash(self.salt, api_key))
        return KeyHashes(self.salt, list(merged)[-MAX_KEYS:])


class _KeyFileContent(msgspec.Struct):
    version: int
    salt: str
    keys: list[str]


def read_keys(path: Path) -> KeyHashes | None:
    """The file's content; None if it is missing or damaged. Raises `OSError`."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        content = msgspec.json.decode(text, type=_KeyFileContent)
        if content.version == _VERSION:
            return KeyHashes(
                bytes.fromhex(content.salt),
                [bytes.fromhex(key) for key in content.keys[-MAX_KEYS:]],
            )
        why = f"it is of version {content.version}"
    except ValueError as error:
        why = error_text(error)
    _log.warning(
        (
            "the file of known project keys can't be read; it will be replaced, and keys are "
            "verified again"
        ),
        path=str(path),
        why=why,
    )
    return None


def merge_keys(path: Path, api_keys: Iterable[str]) -> KeyHashes:
    """Add keys to the file; return its new content. Blocks, so call it on a thread. Raises
    `OSError`, and then the file is unchanged.
    """
    with _locked(path.parent):
        before = read_keys(path)
        merged = (before or KeyHashes(secrets.token_bytes(_SALT_BYTES), ())).with_keys(api_keys)
        if before is None or merged.hashes != before.hashes:
            _replace(path, merged)
    return merged


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _replace(path: Path, hashes: KeyHashes) -> None:
    content = _KeyFileContent(
        _VERSION, hashes.salt.hex(), [key_hash.hex() for key_hash in hashes.hashes]
    )
    new = path.with_name(f".{path.name}.new")
    try:
        with os.fdopen(open_file(new, os.O_WRONLY | os.O_TRUNC), "wb") as file:
            file.write(msgspec.json.encode(content))
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def _hash(salt: bytes, api_key: str) -> bytes:
    text = api_key.encode("utf-8", "surrogatepass")
    return blake2b(text, key=salt, digest_size=_HASH_BYTES).digest()
