"""What lives have reached, and what none has, by name: faults, pairs of them in one life, outcomes
of deliveries, reasons, fates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import combinations
from typing import Final

from forwarder.core.ports import DropReason, Reason
from tests.simulation.life import Life
from tests.simulation.log_acts import LOG_FAULTS, LOGS, ROTATIONS, LogRemoval, LogRotation
from tests.simulation.plan import (
    ARCHIVE_FAULTS,
    DISK,
    DISK_FAULTS,
    FAULTS,
    KAFKA,
    KAFKA_FAULTS,
    SECOND,
    ClockJump,
    Marks,
    Plan,
    Rebalance,
    Reload,
    Restart,
    Trouble,
)

WANTED: Final = 10
"""Lives in which two faults should have met."""

PLANNED: Final = (
    *(f"service: {what}" for what in FAULTS),
    *(f"disk: {what}" for what in DISK_FAULTS),
    *(f"kafka: {what}" for what in KAFKA_FAULTS),
    *(f"logs: {what}" for what in (*LOG_FAULTS, *ROTATIONS)),
    "logs: a file is removed",
    *(f"archive: {what}" for what in ARCHIVE_FAULTS),
    "ends: stop",
    "ends: kill",
    "ends: power",
    "a start is killed",
    "reload",
    "clock",
    "rebalance",
    "letters: replay",
    "letters: drop",
)

REACHABLE: Final = (
    *(f"dead letter: {reason.value}" for reason in Reason),
    *(f"dropped: {reason.value}" for reason in DropReason),
    *(f"outcome: {name}" for name in ("Delivered", "Retry", "Split", "Bisect", "Halt")),
    *(f"answer {status}" for status in (0, 200, 400, 413, 503)),
    "log: lane halted",
    "log: lane resumed",
    "log: upstream fails, deliveries wait",
    "log: upstream is back",
    "log: requests are rejected",
    "log: kafka: reading",
    "log: kafka: can't read",
    "log: kafka: reading again",
    "a position was stored",
    "logs: between two calls",
    "logs: a line was cut",
    "logs: an inode is used again",
    "log: logs: a file can't be read",
    "log: logs: positions can't be stored",
    "log: logs: positions are stored again",
    "log: the archive fails; its events stay in the buffer",
    "log: the archive works again",
    "files of an archive",
)


class Coverage:
    """Of some lives."""

    def __init__(self) -> None:
        self.lives = 0
        self.met: Counter[str] = Counter()
        self._faults: Counter[str] = Counter()
        self._pairs: Counter[tuple[str, str]] = Counter()

    def add(self, life: Life) -> None:
        """One more."""
        self.lives += 1
        self.met += life.met
        faults = sorted(faults_of(life.plan))
        self._faults.update(faults)
        self._pairs.update(combinations(faults, 2))

    def report(self) -> Iterator[str]:
        """Lines for people."""
        for what, count in sorted(self.met.items()):
            yield f"  {what}: {count:,}"
        yield "lives with each fault:"
        for what in PLANNED:
            yield f"  {what}: {self._faults[what]:,}"
        pairs = list(combinations(sorted(PLANNED), 2))
        rare = [(pair, self._pairs[pair]) for pair in pairs if self._pairs[pair] < WANTED]
        yield f"{len(pairs) - len(rare)} of {len(pairs)} pairs of faults met in {WANTED} lives"
        for (one, other), count in rare[:20]:
            yield f"  {one} and {other}: {count}"
        if never := [each for each in REACHABLE if not self.met[each]]:
            yield f"never reached: {', '.join(never)}"


def faults_of(plan: Plan) -> set[str]:
    """What goes wrong in a life, and what an operator does, by `PLANNED`."""
    found = set()
    for act in plan.acts:
        if isinstance(act, Trouble):
            kind = act.where if act.where in (DISK, KAFKA, LOGS) else "service"
            if plan.archive is not None and act.where == SECOND:
                kind = "archive"
            found.add(f"{kind}: {act.what}")
        elif isinstance(act, Restart):
            found.add(f"ends: {act.how}")
            if act.again:
                found.add("a start is killed")
        elif isinstance(act, LogRotation):
            found.add(f"logs: {act.how}")
        elif isinstance(act, LogRemoval):
            found.add("logs: a file is removed")
        elif isinstance(act, Reload):
            found.add("reload")
        elif isinstance(act, ClockJump):
            found.add("clock")
        elif isinstance(act, Rebalance):
            found.add("rebalance")
        elif isinstance(act, Marks):
            found.add(f"letters: {act.what}")
    return found
