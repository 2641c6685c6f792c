"""Which of a daemon's workers a pipeline is for, beside what the configuration says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Role:
    """One worker's part; by itself, the only one of a daemon."""

    number: int = 0
    """Its directory is `worker-<number>`."""
    workers: int = 1
    """How many take events: each has that part of `buffer.max_bytes` and `dead_letters.max_bytes`."""
    listens: bool = True
    """Whether it takes events; else it only brings to their place those that its directory holds."""
    reuse_port: bool = False
    """Whether it shares its address with the others by SO_REUSEPORT."""
    descriptor: int | None = None
    """A bound socket that it has inherited, to listen on in place of the configured address; the listener closes it."""
    instance: str = ""
    """The id that its daemon has in the paths of requests; empty: one of its own."""


ALONE: Final = Role()
"""The part of a daemon's only process."""
