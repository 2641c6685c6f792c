"""The drill's result: checks, steps, and the verdict at the end. Pure.

Invariants: a claim is good only on figures that were read, never for lack of them; the verdict is
good only if every check succeeded, every event that was sent is in the sandbox once and unchanged,
nothing else is there, and the books balance.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from forwarder.telemetry.readable import plural
from forwarder.telemetry.snapshot import LaneSnapshot, Snapshot, unbalanced

NAMED: Final = 5
"""How many missing events are listed by their uuid."""

EVENT_ROUTES: Final = ("/batch", "/i/v1/analytics/events")
"""Where the SDK sends events, by its mode."""


@dataclass(frozen=True, slots=True)
class Check:
    """A claim, and what was observed."""

    claim: str
    good: bool
    seen: str


@dataclass(frozen=True, slots=True)
class Step:
    """A part of the drill: what was done, its checks, and the books after it."""

    title: str
    did: str
    checks: tuple[Check, ...]
    lanes: tuple[LaneSnapshot, ...] = ()
    seconds: float = 0.0

    @property
    def good(self) -> bool:
        """Whether all checks succeeded and the books balance."""
        return all(check.good for check in self.checks) and not self.off

    @property
    def off(self) -> list[str]:
        """The lanes whose books don't balance."""
        return [lane.label for lane in self.lanes if lane.difference]


@dataclass(frozen=True, slots=True)
class FlagCall:
    """An answer to a request for flags; `status` is None if there was none. `seconds` is how long
    the caller waited.
    """

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
        return not self.problems()

    def problems(self) -> list[str]:
        """The failures, a line each; empty if there are none."""
        problems = [
            f"{step.title}: {check.claim} ({check.seen})"
            for step in self.steps
            for check in step.checks
            if not check.good
        ]
        problems += [
            f"{step.title}: the books of {label} don't balance"
            for step in self.steps
            for label in step.off
        ]
        if self.missing:
            problems.append(
                f"{len(self.missing):,} of {plural(len(self.sent), 'event')} are missing: "
                f"{_named(self.missing)}"
            )
        if self.foreign:
            problems.append(
                f"{plural(self.foreign, 'event')} in the sandbox that the drill didn't send"
            )
        if self.conflicts:
            problems.append(f"{plural(self.conflicts, 'event')} arrived changed")
        problems += [f"the books of {label} don't balance" for label in self.off]
        return problems


@dataclass(slots=True)
class AnswerCounts:
    """Answers to event requests up to one instant, by status code."""

    answers: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, snapshot: Snapshot) -> AnswerCounts:
        """The answers to event requests so far."""
        counts: dict[int, int] = {}
        for (path, code), count in snapshot.http_requests.items():
            if path in EVENT_ROUTES:
                counts[code] = counts.get(code, 0) + count
        return cls(counts)

    def since(self, before: AnswerCounts) -> dict[int, int]:
        """The answers since `before`."""
        return {
            code: more
            for code, count in self.answers.items()
            if (more := count - before.answers.get(code, 0))
        }


def answered_200(answers: Mapping[int, int]) -> Check:
    """Every request of the SDK was answered 200."""
    others = "".join(
        f", {code}: {count:,}" for code, count in sorted(answers.items()) if code != 200
    )
    seen = f"{answers.get(200, 0):,} of {sum(answers.values()):,}{others}"
    return Check("every request of the SDK was answered 200", set(answers) == {200}, seen)


def flags_answered(call: FlagCall) -> Check:
    """Flags work while the upstream does."""
    return Check("a flag call is passed on to the upstream", call.status == 200, _call(call))


def flags_fail_fast(calls: Collection[FlagCall], limit: float) -> Check:
    """Flag calls fail within `limit` seconds each while the upstream is down."""
    slowest = max(calls, key=lambda call: call.seconds)
    failed = all(call.status is not None and call.status >= 500 for call in calls)
    seen = f"{len(calls)} calls, the slowest: {_call(slowest)}"
    return Check(
        f"flag calls fail at once, where an SDK would wait {limit:g} s",
        failed and slowest.seconds < limit,
        seen,
    )


def counted(claim: str, seen: int, expected: int) -> Check:
    """A figure has the expected value."""
    return Check(claim, seen == expected, f"{seen:,} of {expected:,}")


def balanced_books(snapshot: Snapshot) -> Check:
    """The books balance at this instant."""
    off = [lane.label for lane in unbalanced(snapshot)]
    return Check(
        "the books balance",
        bool(snapshot.lanes) and not off,
        f"off: {', '.join(off)}" if off else plural(len(snapshot.lanes), "lane"),
    )


def lane_of(snapshot: Snapshot, label: str) -> LaneSnapshot:
    """The lane of that label; an empty one if there is none yet."""
    return next((lane for lane in snapshot.lanes if lane.label == label), LaneSnapshot(label))


def _call(call: FlagCall) -> str:
    return f"{call.status or 'no answer'} after {call.seconds * 1000:,.0f} ms"


def _named(uuids: list[str]) -> str:
    more = len(uuids) - NAMED
    return ", ".join(uuids[:NAMED]) + (f" and {more:,} more" if more > 0 else "")
