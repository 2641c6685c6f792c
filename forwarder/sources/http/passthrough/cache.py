"""Answers to polls for flag definitions, kept so that they can be given again.

Invariants: an entry is for one path, query, and credentials, of which only a digest is kept; what is held is bounded in bytes and number,
and the entry that was used longest ago goes first; only whole answers with status 200 are kept. Times are monotonic seconds.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from forwarder.sources.http.passthrough.headers import Line, value_of

MAX_ENTRIES: Final = 256
MAX_BYTES: Final = 16_000_000
"""Of all entries together."""
MAX_ENTRY: Final = 8_000_000
"""Of one entry: larger answers are passed through, each for itself."""
ENTRY_OVERHEAD: Final = 1024
"""What an entry counts for beside its bytes."""


@dataclass(frozen=True, slots=True)
class Whole:
    """An answer of the upstream, all of it."""

    status: int
    reason: str | None
    lines: Sequence[Line]
    """Its headers, as they are to be passed on."""
    body: bytes

    @property
    def etag(self) -> bytes:
        """What it can be asked for by; empty for nothing."""
        return value_of(self.lines, b"etag")

    @property
    def cost(self) -> int:
        """Bytes that it counts for."""
        return len(self.body) + sum([len(name) + len(value) for name, value in self.lines]) + ENTRY_OVERHEAD


@dataclass(frozen=True, slots=True)
class Entry:
    """A kept answer, and when the upstream last said that it is right."""

    answer: Whole
    confirmed: float

    def age(self, now: float) -> int:
        """Whole seconds since then."""
        return max(0, int(now - self.confirmed))


def key_of(target: bytes, lines: Sequence[Line]) -> bytes:
    """What tells one answer from another: the path, with or without its slash, the query, and the credentials."""
    path, _, query = target.partition(b"?")
    parts = (path.rstrip(b"/"), query, value_of(lines, b"authorization"))
    return hashlib.sha256(b"".join([b"%d:%b" % (len(part), part) for part in parts])).digest()


def matches(if_none_match: bytes, etag: bytes) -> bool:
    """Whether a sender that has what `If-None-Match` names has the answer with this tag (RFC 9110, 13.1.2: weak comparison)."""
    if not etag:
        return False
    wanted = [tag.strip().removeprefix(b"W/") for tag in if_none_match.split(b",")]
    return b"*" in wanted or etag.removeprefix(b"W/") in wanted


class Cache:
    """The entries."""

    def __init__(self, max_bytes: int = MAX_BYTES, max_entries: int = MAX_ENTRIES) -> None:
        self._entries: OrderedDict[bytes, Entry] = OrderedDict()
        self._max_bytes = max_bytes
        self._max_entries = max_entries
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: bytes) -> Entry | None:
        """The entry, if there is one; it was used now."""
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
        return entry

    def put(self, key: bytes, answer: Whole, now: float) -> None:
        """Keep an answer, in place of the one before."""
        self.drop(key)
        if answer.cost > self._max_bytes:
            return
        self._entries[key] = Entry(answer, now)
        self.bytes += answer.cost
        while self.bytes > self._max_bytes or len(self._entries) > self._max_entries:
            self.drop(next(iter(self._entries)))

    def drop(self, key: bytes) -> None:
        """Forget an entry, if there is one."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.bytes -= entry.answer.cost
