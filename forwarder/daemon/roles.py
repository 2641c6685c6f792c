"""Which of a daemon's workers a pipeline belongs to, beside the configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Role:
    """One worker's role; by default, that of a daemon's only process."""

    number: int = 0
    """Its directory is `worker-<number>`."""
    workers: int = 1
    """How many accept events: each has that share of `buffer.max_bytes` and
    `dead_letters.max_bytes`.
    """
    listens: bool = True
    """Whether it accepts events; else it only delivers those that its directory holds."""
    descriptors: tuple[int, ...] = ()
    """Bound sockets that it has inherited, to listen on instead of the configured address; the
    listener closes them.
    """
    loads: int | None = None
    """The descriptor of the workers' `ConnectionLoads`, if others accept from the same sockets."""
    removes_socket: bool = False
    """Whether an inherited Unix socket is its own, whose file it removes at its end."""
    locks: tuple[tuple[str, int], ...] = ()
    """Directories whose locks it has inherited, each with the lock's descriptor."""
    instance: str = ""
    """The id that its daemon has in the paths of requests; empty: one of its own."""

    @property
    def inherited(self) -> tuple[int, ...]:
        """The descriptors that its process needs, beside locks."""
        return self.descriptors if self.loads is None else (*self.descriptors, self.loads)


ALONE: Final = Role()
"""The role of a daemon's only process."""
