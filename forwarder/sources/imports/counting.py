"""Counts of more keys than memory should hold: exact as long as they fit, then of the frequent ones, or of a part with its scale.

Invariants: neither grows past its bound, whatever comes; both are the same in every process (no salted hash); totals are always exact.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from msgspec import Struct

LONGEST: Final = 200
"""Characters that are kept of a key; what differs only after them counts as one."""


class KeyCount(Struct, frozen=True):
    """A key, and how often it came."""

    key: str
    count: int
    missed: int = 0
    """At most so many more: it was left out once, when too many others came."""


class TopCounts:
    """How often each key came. Past `capacity` keys the rarer half of them is merged into `other`, so the frequent ones stay."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._counts: dict[str, int] = {}
        self._missed: dict[str, int] = {}
        self._left_out = 0
        self._left_out_at_most = 0

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, key: str) -> None:
        """Count a key once."""
        counts = self._counts
        if key in counts:
            counts[key] += 1
        elif len(key) > LONGEST:
            self.add(key[: LONGEST - 1] + "…")
        else:
            self._enter(key)

    def top(self, most: int) -> tuple[KeyCount, ...]:
        """The most frequent keys, the most frequent first."""
        return tuple(KeyCount(key, self._counts[key], self._missed.get(key, 0)) for key in self._ranked()[:most])

    def other(self, most: int) -> int:
        """How often any other than those came."""
        return self._left_out + sum(self._counts[key] for key in self._ranked()[most:])

    def _ranked(self) -> list[str]:
        return sorted(self._counts, key=lambda key: (-self._counts[key], key))

    def _enter(self, key: str) -> None:
        if len(self._counts) >= self._capacity:
            self._prune()
        self._counts[key] = 1
        if self._left_out_at_most:
            self._missed[key] = self._left_out_at_most

    def _prune(self) -> None:
        leaving = self._ranked()[self._capacity // 2 :]
        # Any one key may have been left out each time, with as many as the most frequent of those that left.
        self._left_out_at_most += self._counts[leaving[0]]
        for key in leaving:
            self._left_out += self._counts.pop(key)
            self._missed.pop(key, None)


class KeyEstimate(Struct, frozen=True):
    """What is known of many keys."""

    keys: int
    """How many different ones came."""
    repeats: int
    """How many came that had come before."""
    differing: int
    """How many keys came with more than one mark."""
    scale: int
    """1: exact. Otherwise one key in so many was looked at, and the figures are multiplied by it."""


class SampledKeys:
    """Which keys came again. Past `limit` keys only those count whose digest ends in a zero bit, then in two, and so on.

    A key that still counts has counted from the first: so the figures don't depend on the order in which keys come.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._mask = 0
        self._times: dict[int, int] = {}
        self._marks: dict[int, int] = {}
        self._differing: set[int] = set()

    def __len__(self) -> int:
        return len(self._times)

    def add(self, key: str, mark: int = 0) -> None:
        """Count a key; `mark` is what should be the same whenever it comes."""
        digest = int.from_bytes(blake2b(key.encode(errors="surrogatepass"), digest_size=8).digest(), "little")
        if digest & self._mask:
            return
        seen = self._times.get(digest, 0)
        self._times[digest] = seen + 1
        if not seen:
            if mark:
                self._marks[digest] = mark
            if len(self._times) > self._limit:
                self._thin_out()
        elif self._marks.get(digest, 0) != mark:
            self._differing.add(digest)

    def estimate(self) -> KeyEstimate:
        """What is known so far."""
        scale, keys = self._mask + 1, len(self._times)
        return KeyEstimate(keys * scale, (sum(self._times.values()) - keys) * scale, len(self._differing) * scale, scale)

    def _thin_out(self) -> None:
        while len(self._times) > self._limit:
            mask = self._mask = self._mask * 2 + 1
            self._times = {digest: times for digest, times in self._times.items() if not digest & mask}
        self._marks = {digest: mark for digest, mark in self._marks.items() if digest in self._times}
        self._differing &= self._times.keys()


def share(part: int, whole: int) -> float:
    """A part of a whole, from 0 to 1; 0 of nothing."""
    return part / whole if whole else 0.0
