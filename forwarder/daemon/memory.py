"""How much memory the daemon may take, and takes now: the limit and the figures that the kernel
has of it.

Only anonymous memory counts: what a process has written into its heap and its stacks, and in a
cgroup files in memory (tmpfs). The page cache, where a disk buffer's files are, is given back when
memory is short, and never counts.

Two kinds of limits are known. `limits.memory` is for the daemon's own processes. Without it those
of the cgroup count that the daemon runs in, and of those above it: that which is nearest to its
limit. The kernel kills by the total of all processes in there, whoever takes it.

Each of several workers has an equal share of the limit, as it has of the buffer, and compares its
share of what is used with it: of a cgroup's total a part as large as the others', of the processes
its own, its decoder process and a part of the supervisor. So the sum over the workers is the whole.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from forwarder.config.conflicts import Conflict
from forwarder.config.section import MB, MIB
from forwarder.config.settings import Settings
from forwarder.config.units import format_size
from forwarder.daemon.roles import Role

KEY: Final = "limits.memory"

PROCESS: Final = 100 * MB
"""What a process takes beside its buffer, at most (docs/how-to/operations.md)."""

KAFKA: Final = 15 * MB
"""What a process takes for a Kafka source, beside what its brokers answer."""

SUPERVISOR: Final = 50 * MB
"""What the supervisor of several workers takes."""

BROKERS: Final = 3
"""Brokers of a Kafka cluster: each may have one fetch in memory."""

ROOT: Final = Path("/")

_UNLIMITED: Final = 1 << 60
"""From here on a limit of a cgroup of version 1 is none."""


class MemorySource(Protocol):
    """What memory is limited to, and how much is used."""

    @property
    def limit(self) -> int:
        """Bytes that this process, as one of the workers, may take; 0: without a limit."""

    @property
    def origin(self) -> str:
        """What the limit comes from, for a person."""

    def used(self) -> int:
        """Bytes that count against the limit now. Raises `OSError` or `ValueError`."""


@dataclass(frozen=True, slots=True)
class CgroupLimit:
    """The limit of a cgroup, and where its figures are."""

    limit: int
    folder: Path
    keys: tuple[bytes, bytes]
    """Which lines of `memory.stat` are anonymous memory, and files in memory (tmpfs), which can't
    be given back either.
    """

    def used(self) -> int:
        """Anonymous memory of all processes in it, and their files in memory."""
        lines = (self.folder / "memory.stat").read_bytes().splitlines()
        figures = dict(line.split(b" ", 1) for line in lines if b" " in line)
        anonymous, shared = self.keys
        if anonymous not in figures:
            raise ValueError(f"{self.folder}/memory.stat has no line {anonymous.decode()}")
        return int(figures[anonymous]) + int(figures.get(shared, 0))


class CgroupMemory:
    """A worker's share of the cgroup that is nearest to its limit, of at least one."""

    def __init__(self, cgroups: Sequence[CgroupLimit], workers: int = 1) -> None:
        self._cgroups = cgroups
        self._workers = workers
        self._nearest = min(cgroups, key=_limit)

    @property
    def limit(self) -> int:
        """Of what was measured last."""
        return self._nearest.limit // self._workers

    @property
    def origin(self) -> str:
        """Of what was measured last."""
        return f"the limit of the cgroup {self._nearest.folder}"

    def used(self) -> int:
        """Measures all of them."""
        figures = [(cgroup.used(), cgroup) for cgroup in self._cgroups]
        used, self._nearest = max(figures, key=lambda figure: figure[0] / max(1, figure[1].limit))
        return used // self._workers


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """A worker's share of `limits.memory`, or of no limit."""

    whole: int
    """The limit of all workers together; 0: none."""
    decoder: Callable[[], int | None]
    """The id of the decoder process, if there is one."""
    workers: int = 1
    root: Path = ROOT

    @property
    def limit(self) -> int:
        return self.whole // self.workers

    @property
    def origin(self) -> str:
        return KEY

    def used(self) -> int:
        used = anonymous_memory("self", self.root)
        decoder = self.decoder()
        if decoder is not None:
            used += _of_another(decoder, self.root)
        if self.workers > 1:
            used += _of_another(os.getppid(), self.root) // self.workers
        return used


def anonymous_memory(process: int | str, root: Path = ROOT) -> int:
    """Bytes of anonymous memory of a process, shared memory included. Raises `OSError` if there is
    no such process, or `ValueError` if the system has no such figure.
    """
    lines = (root / f"proc/{process}/status").read_bytes().splitlines()
    found = [line.split()[1] for line in lines if line.startswith((b"RssAnon:", b"RssShmem:"))]
    if not found:
        raise ValueError("/proc has no figure of anonymous memory")
    return sum(map(int, found)) * 1024


def _of_another(process: int, root: Path) -> int:
    """Anonymous memory of a process that may have ended."""
    try:
        return anonymous_memory(process, root)
    except (OSError, ValueError):
        return 0


def find_memory(
    settings: Settings, role: Role, decoder: Callable[[], int | None], root: Path = ROOT
) -> MemorySource | None:
    """What the memory of one worker is measured by; None if this system has no such figures."""
    processes = ProcessMemory(settings.limits.memory or 0, decoder, role.workers, root)
    cgroups = [] if settings.limits.memory else cgroup_limits(root)
    source = CgroupMemory(cgroups, role.workers) if cgroups else processes
    try:
        source.used()
    except (OSError, ValueError):
        return None
    return source


def cgroup_limit(root: Path = ROOT) -> CgroupLimit | None:
    """The tightest of `cgroup_limits`; None if there is none."""
    return min(cgroup_limits(root), key=_limit, default=None)


def cgroup_limits(root: Path = ROOT) -> Sequence[CgroupLimit]:
    """The limits of the cgroup that this process is in and of those above it, in version 2 or 1,
    the innermost first.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except (OSError, ValueError):
        return ()
    found: list[CgroupLimit] = []
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if not controllers:
            found += _limits(root / "sys/fs/cgroup", path, "memory.max", (b"anon", b"shmem"))
        elif "memory" in controllers.split(","):
            top = root / "sys/fs/cgroup/memory"
            found += _limits(top, path, "memory.limit_in_bytes", (b"total_rss", b"total_shmem"))
    return found


def _limit(cgroup: CgroupLimit) -> int:
    return cgroup.limit


def _limits(top: Path, path: str, name: str, keys: tuple[bytes, bytes]) -> Iterator[CgroupLimit]:
    """The limits of a cgroup and of those above it. In a container its path may be that of the
    host, and its own folder the top.
    """
    parts = [part for part in path.split("/") if part not in ("", "..")]
    for length in range(len(parts), -1, -1):
        folder = top.joinpath(*parts[:length])
        try:
            text = (folder / name).read_text().strip()
        except OSError:
            continue
        if text.isdecimal() and int(text) < _UNLIMITED:
            yield CgroupLimit(int(text), folder, keys)


def buffered_memory(settings: Settings) -> int:
    """Bytes of the events in full buffers: of all of them, or of a disk buffer's part in memory."""
    held = settings.buffer_share
    if settings.buffer.kind == "disk":
        from forwarder.buffer.disk.backlog import WINDOW  # noqa: PLC0415 - most have no use for it

        held = min(WINDOW, held)
    return settings.workers * len(settings.destinations) * held


def memory_beside(settings: Settings) -> int:
    """Resident bytes that all processes take beside the events in their buffers, at most."""
    fetched = sum(KAFKA + BROKERS * source.fetch_max_bytes for source in settings.sources.kafka)
    supervisor = SUPERVISOR if settings.workers > 1 else 0
    return settings.workers * (PROCESS + fetched) + supervisor


def memory_risks(
    settings: Settings, root: Path = ROOT, *, elsewhere: bool = False
) -> Iterator[Conflict]:
    """Limits that can't be watched here, that another one is below, or that full buffers don't fit
    into. `elsewhere`: nothing of this machine is looked at.
    """
    limit = settings.limits.memory
    cgroup = None if elsewhere else cgroup_limit(root)
    if limit and not elsewhere and find_memory(settings, Role(), lambda: None, root) is None:
        yield Conflict(
            KEY,
            "can't be watched on this system, which doesn't say how much memory a process takes",
            "limit buffer.max_bytes instead: it holds everywhere",
        )
        return
    if limit and cgroup is not None and cgroup.limit < limit:
        yield Conflict(
            KEY,
            f"is {format_size(limit)}, more than the cgroup {cgroup.folder} may take "
            f"({format_size(cgroup.limit)}): the kernel kills forwarder before it rejects events",
            f"lower {KEY}, or leave it out: the cgroup's limit counts then",
        )
    if limit is None and cgroup is not None:
        limit = cgroup.limit
    if limit is not None:
        yield from _unfit(settings, limit, None if settings.limits.memory else cgroup)


def _unfit(settings: Settings, limit: int, cgroup: CgroupLimit | None) -> Iterator[Conflict]:
    """Full buffers that don't fit below the point where events are rejected."""
    held = buffered_memory(settings)
    beside = memory_beside(settings)
    usable = begins_at(limit)
    if held + beside <= usable:
        return
    raised = KEY if cgroup is None else "the cgroup's limit (a container's memory limit)"
    hint = f"raise {raised} to {_in_mib(-(-(held + beside) * 10 // 9))}"
    fitting = (usable - beside) * settings.buffer.limit // held // MIB
    if settings.buffer.kind == "memory" and fitting >= settings.workers:
        hint += f", or lower buffer.max_bytes to {fitting}MiB"
    elif settings.workers > 1:
        hint += ", or lower workers"
    origin = KEY if cgroup is None else f"the limit of the cgroup {cgroup.folder}"
    yield Conflict(
        "buffer.max_bytes",
        f"doesn't fit: full buffers take {_in_mib(held)} of memory, forwarder up to "
        f"{_in_mib(beside)} beside them, and from {usable // MIB}MiB on, nine tenths of {origin}, "
        "new events get 503",
        hint,
    )


def begins_at(limit: int) -> int:
    """Bytes from which on memory is short."""
    return limit * 9 // 10


def ends_at(limit: int) -> int:
    """Bytes below which memory that was short is so no longer."""
    return limit * 8 // 10


def _in_mib(size: int) -> str:
    return f"{-(-size // MIB)}MiB"
