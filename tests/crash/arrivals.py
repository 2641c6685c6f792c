"""What came to the upstream, by the events' numbers: a digest of each event's bytes, and whether
it was answered 200.

An event that comes again must have the same bytes: else it is a conflict. The digest of the first
arrival stays.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_GROW: Final = 1 << 16


def digest(event: bytes) -> int:
    """64 bits, never all zero, that stand for an event's bytes."""
    return int.from_bytes(hashlib.blake2b(event, digest_size=8).digest(), "little") or 1


@dataclass
class Arrivals:
    """All that came."""

    digests: array[int] = field(default_factory=lambda: array("Q"))
    """0: it never came."""
    answered: bytearray = field(default_factory=bytearray)
    """1: an answer of 200 was written for it."""
    conflicts: list[str] = field(default_factory=list)
    strangers: list[str] = field(default_factory=list)
    """What came and is no event of this run."""
    repeats: int = 0
    """Events that came again."""

    def note(self, number: int, event: bytes, *, answered: bool) -> None:
        """An event came."""
        if number >= len(self.digests):
            more = number + _GROW - len(self.digests)
            self.digests.frombytes(bytes(8 * more))
            self.answered.extend(bytes(more))
        new_digest = digest(event)
        known = self.digests[number]
        if known and known != new_digest:
            self.conflicts.append(f"event {number} came with other bytes: {event[:300]!r}")
        if known:
            self.repeats += 1
        else:
            self.digests[number] = new_digest
        if answered:
            self.answered[number] = 1

    def digest_of(self, number: int) -> int:
        """The digest of an event's bytes; 0 if it never came."""
        return self.digests[number] if number < len(self.digests) else 0

    def was_answered(self, number: int) -> bool:
        """Whether an event was answered 200."""
        return number < len(self.answered) and bool(self.answered[number])

    def save(self, path: Path) -> None:
        """Write it all to a file."""
        words = {
            "size": len(self.digests),
            "conflicts": self.conflicts[:50],
            "strangers": self.strangers[:50],
            "repeats": self.repeats,
        }
        with path.open("wb") as file:
            file.write(json.dumps(words).encode() + b"\n")
            file.write(self.digests.tobytes())
            file.write(self.answered)

    @classmethod
    def load(cls, path: Path) -> Arrivals:
        """What `save` wrote."""
        with path.open("rb") as file:
            words = json.loads(file.readline())
            digests = array("Q")
            digests.frombytes(file.read(8 * words["size"]))
            return cls(
                digests,
                bytearray(file.read()),
                words["conflicts"],
                words["strangers"],
                words["repeats"],
            )
