"""What lives have reached, and what none has, by name: faults, pairs of them in one life, outcomes
of deliveries, reasons, fates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Final

from forwarder.core.outcome import HaltReason
from forwarder.core.ports import DropReason, Reason
from tests.simulation.entrances import odd_request
from tests.simulation.log_acts import CUT_LINE, LOG_FAULTS, LOGS, ROTATIONS, LogRemoval, LogRotation
from tests.simulation.plan import (
    ARCHIVE_FAULTS,
    CALLS,
    DISK,
    DISK_FAULTS,
    FAULTS,
    KAFKA,
    KAFKA_FAULTS,
    MEMORY,
    ODDITIES,
    SECOND,
    SHORT,
    Call,
    ClockJump,
    Hold,
    Marks,
    OddAct,
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
    f"{MEMORY}: {SHORT}",
    "ends: stop",
    "ends: drain",
    "ends: replace",
    "ends: kill",
    "ends: power",
    "a start is killed",
    "reload",
    "clock",
    "rebalance",
    "letters: replay",
    "letters: drop",
    "a crowd",
    "odd requests",
    "calls",
)

REACHABLE: Final = (
    *(f"dead letter: {reason.value}" for reason in Reason),
    *(f"dropped: {reason.value}" for reason in DropReason),
    *(f"halted: {reason.value}" for reason in HaltReason),
    *(
        f"odd: {what}: {status}"
        for what in ODDITIES
        for status in odd_request(OddAct(0.0, 0, what), 30_000).statuses
    ),
    *(
        f"accepted, {fate}"
        for fate in (
            "delivered",
            "dead letter",
            "left out",
            "dropped by a rule",
            "dropped by the operator",
            "dropped for want of room",
            "lost with the memory that it, or its count, was in",
        )
    ),
    *(f"call: {what}: {status}" for what in sorted({*CALLS}) for status in (0, 200, 429, 503)),
    "call: definitions: 304",
    "call: a recording: 413",
    "explained",
    "drained",
    "killed while it drained",
    "killed while it started",
    *(f"tap: {outcome}" for outcome in ("delivered", "received", "dead-lettered", "dropped")),
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
    CUT_LINE,
    "logs: an inode is used again",
    "log: logs: a file can't be read",
    "log: logs: positions can't be stored",
    "log: logs: positions are stored again",
    "log: the archive fails; its events stay in the buffer",
    "log: the archive works again",
    "files of an archive",
    "log: nothing is passed through for now",
    "log: calls are passed through again",
    "log: memory is short: new events get 503",
    "log: memory is no longer short: events are accepted again",
)


class Coverage:
    """Of some lives."""

    def __init__(self) -> None:
        self.lives = 0
        self.met: Counter[str] = Counter()
        self._faults: Counter[str] = Counter()
        self._pairs: Counter[tuple[str, str]] = Counter()

    def add(self, planned: set[str], met: Counter[str]) -> None:
        """One more: the faults of its plan, and what it has reached."""
        self.lives += 1
        self.met += met
        faults = sorted(planned)
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
        if never := [name for name in REACHABLE if not self.met[name]]:
            yield f"never reached: {', '.join(never)}"


def faults_of(plan: Plan) -> set[str]:
    """What goes wrong in a life, and what an operator does, by `PLANNED`."""
    faults = set()
    for act in plan.acts:
        if isinstance(act, Trouble):
            kind = act.where if act.where in (DISK, KAFKA, LOGS, MEMORY) else "service"
            if plan.archive is not None and act.where == SECOND:
                kind = "archive"
            faults.add(f"{kind}: {act.what}")
        elif isinstance(act, Restart):
            faults.add(f"ends: {act.how}")
            if act.again:
                faults.add("a start is killed")
        elif isinstance(act, LogRotation):
            faults.add(f"logs: {act.how}")
        elif isinstance(act, Marks):
            faults.add(f"letters: {act.what}")
        else:
            faults.update(name for kind, name in _ALIKE.items() if isinstance(act, kind))
    return faults


_ALIKE: Final[Mapping[type, str]] = {
    LogRemoval: "logs: a file is removed",
    Reload: "reload",
    ClockJump: "clock",
    Rebalance: "rebalance",
    Hold: "a crowd",
    OddAct: "odd requests",
    Call: "calls",
}
