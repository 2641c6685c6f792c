"""What the drill found: checks, steps, and the verdict at the end. Pure.

Invariants: a claim is good only if its figures were seen, never because nothing was looked at; the verdict is good only if every check
held, every event that was sent is in the sandbox once and unchanged, nothing else is, and the books balance.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from forwarder.telemetry.snapshot import LaneSnapshot, Snapshot, unbalanced

NAMED: Final = 5
"""How many missing events are named by their uuid."""

EVENT_ROUTES: Final = ("/batch", "/i/v1/analytics/events")
"""Where the SDK sends events, by its mode."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that should be so, and what was seen."""

    claim: str
    good: bool
    seen: str


@dataclass(frozen=True, slots=True)
class Step:
    """A part of the drill: what was done, what that shows, and the books after it."""

    title: str
    did: str
    checks: tuple[Check, ...]
    lanes: tuple[LaneSnapshot, ...] = ()
    seconds: float = 0.0

    @property
    def good(self) -> bool:
        """Whether all of it is as it should be, the books too."""
        return all(check.good for check in self.checks) and not self.off

    @property
    def off(self) -> list[str]:
        """The lanes whose books don't balance."""
        return [lane.label for lane in self.lanes if lane.difference]


@dataclass(frozen=True, slots=True)
class FlagCall:
    """An answer to a request for flags; `status` is None where none came. `seconds` is how long the caller waited."""

    status: int | None
    seconds: float


@dataclass(frozen=True, slots=True)
class DrillVerdict:
    """The drill as a whole."""

    steps: tuple[Step, ...]
    sent: frozenset[str]
    """The uuids of the events that were handed to the SDK."""
    stored: frozenset[str]
    """The uuids in the sandbox at the end."""
    conflicts: int = 0
    off: tuple[str, ...] = ()
    """The lanes whose books don't balance."""

    @property
    def missing(self) -> list[str]:
        """Sent, and not there."""
        return sorted(self.sent - self.stored)

    @property
    def foreign(self) -> int:
        """There, and not sent."""
        return len(self.stored - self.sent)

    @property
    def good(self) -> bool:
        """Whether nothing is wrong."""
        return not self.wrong()

    def wrong(self) -> list[str]:
        """What is wrong, a line each; empty if nothing is."""
        found = [f"{step.title}: {check.claim} ({check.seen})" for step in self.steps for check in step.checks if not check.good]
        found += [f"{step.title}: the books of {label} don't balance" for step in self.steps for label in step.off]
        if self.missing:
            found.append(f"{len(self.missing):,} of {len(self.sent):,} events are missing: {_named(self.missing)}")
        if self.foreign:
            found.append(f"{self.foreign:,} events are in the sandbox that nobody sent")
        if self.conflicts:
            found.append(f"{self.conflicts:,} events arrived changed")
        found += [f"the books of {label} don't balance" for label in self.off]
        return found


@dataclass(slots=True)
class AnswerCounts:
    """The requests of senders at one instant, by status code, to be compared with a later one."""

    answers: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, snapshot: Snapshot) -> AnswerCounts:
        """The answers to events so far."""
        found: dict[int, int] = {}
        for (path, code), count in snapshot.http_requests.items():
            if path in EVENT_ROUTES:
                found[code] = found.get(code, 0) + count
        return cls(found)

    def since(self, before: AnswerCounts) -> dict[int, int]:
        """What came after `before`."""
        return {code: more for code, count in self.answers.items() if (more := count - before.answers.get(code, 0))}


def answered_200(answers: Mapping[int, int]) -> Check:
    """That the SDK was answered 200, and nothing else."""
    others = "".join(f", {code}: {count:,}" for code, count in sorted(answers.items()) if code != 200)
    seen = f"{answers.get(200, 0):,} of {sum(answers.values()):,}{others}"
    return Check("every request of the SDK was answered 200", set(answers) == {200}, seen)


def flags_answered(call: FlagCall) -> Check:
    """That flags work while the upstream does."""
    return Check("a flag call is passed on to the upstream", call.status == 200, _call(call))


def flags_fail_fast(calls: Collection[FlagCall], limit: float) -> Check:
    """That flag calls fail, each within `limit` seconds, while the upstream is down."""
    slowest = max(calls, key=lambda call: call.seconds)
    failed = all(call.status is not None and call.status >= 500 for call in calls)
    seen = f"{len(calls)} calls, the slowest: {_call(slowest)}"
    return Check(f"flag calls fail at once, where an SDK would wait {limit:g} s", failed and slowest.seconds < limit, seen)


def counted(claim: str, seen: int, wanted: int) -> Check:
    """That a figure is what it should be."""
    return Check(claim, seen == wanted, f"{seen:,} of {wanted:,}")


def balanced_books(snapshot: Snapshot) -> Check:
    """That the books balance at this instant."""
    off = [lane.label for lane in unbalanced(snapshot)]
    return Check("the books balance", bool(snapshot.lanes) and not off, f"off: {', '.join(off)}" if off else f"{len(snapshot.lanes)} lanes")


def lane_of(snapshot: Snapshot, label: str) -> LaneSnapshot:
    """The lane of that label; an empty one if there is none yet."""
    return next((lane for lane in snapshot.lanes if lane.label == label), LaneSnapshot(label))


def _call(call: FlagCall) -> str:
    return f"{call.status or 'no answer'} after {call.seconds * 1000:,.0f} ms"


def _named(uuids: list[str]) -> str:
    more = len(uuids) - NAMED
    return ", ".join(uuids[:NAMED]) + (f" and {more:,} more" if more > 0 else "")
