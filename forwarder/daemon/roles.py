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
    descriptors: tuple[int, ...] = ()
    """Bound sockets that it has inherited, to listen on in place of the configured address; the listener closes them."""
    removes_socket: bool = False
    """Whether an inherited Unix socket is its own, whose file it removes at its end."""
    locks: tuple[tuple[str, int], ...] = ()
    """Directories whose locks it has inherited, each with the lock's descriptor."""
    instance: str = ""
    """The id that its daemon has in the paths of requests; empty: one of its own."""


ALONE: Final = Role()
"""The part of a daemon's only process."""
