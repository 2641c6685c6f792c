"""Halted lanes: why the upstream refuses them, when each is probed next, and with which event.

Invariants: a lane is halted exactly while `Halts` has it; no other part keeps that state. Events
of a halted lane are kept. The waits between probes double from one second to a minute (with
jitter: between half of it and the whole), and any 200 to a probe ends the halt. A halt found by
the key check is ended by the key check alone, for a `/batch/` probe would get 200 and lose its
events.

A probe is usually the pending work, as it is. A lane to which everything was answered 400 or 413
(`refuses_all`) is probed with single events in turn, for each may be the bad one: the first events
of the remaining parts (halves, quarters, … of a batch, so that bad neighbours are soon left
behind), then one of the fresh queue. No probe overtakes an earlier event that shares an ordering
key with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import structlog

from forwarder.core.clock import Backoff
from forwarder.core.event import Lane
from forwarder.core.outcome import HaltReason
from forwarder.delivery.lane_state import LaneState
from forwarder.delivery.ordering import may_overtake
from forwarder.delivery.splitting import BatchPart, PartGroup, ReplaceChunk, cut
from forwarder.telemetry.labels import lane_label

HINTS: Final = {
    HaltReason.UNKNOWN_KEY: (
        "check the project key in the sender's settings, and that upstream.url is the region "
        "of that project"
    ),
    HaltReason.FORBIDDEN: (
        "ask the operator of the upstream, or of a proxy before it, why this address is forbidden"
    ),
    HaltReason.REFUSES_ALL: (
        "look for a proxy or firewall before the upstream; the upstream's words are quoted "
        "beside this"
    ),
    HaltReason.WRONG_ADDRESS: (
        "check upstream.url: something answers there, but not the ingestion service"
    ),
    HaltReason.REJECTED: (
        "read the upstream's words, quoted beside this; a proxy may be changing requests"
    ),
    HaltReason.CAPTIVE_PROXY: (
        "a web page answers in place of the service: see upstream.url, upstream.proxy and the "
        "network's log-in page"
    ),
    HaltReason.LOOP: (
        "check upstream.url of this forwarder and of those behind it, and where proxies send "
        "them: one leads back here"
    ),
    HaltReason.DEAD_LETTERS_FULL: "raise dead_letters.max_bytes, and see why events are refused",
    HaltReason.ARCHIVE_UNWRITABLE: (
        "make the folder or bucket exist, with room, and let this process write there; or "
        "correct its address"
    ),
}

_log = structlog.get_logger()


@dataclass(slots=True)
class Halted:
    """One lane's halt. `since` is wall-clock, `next_probe` monotonic seconds; `probes` counts
    failed ones.
    """

    reason: HaltReason
    why: str
    since: float
    next_probe: float
    by_key_check: bool = False
    probes: int = 0


@dataclass(frozen=True, slots=True)
class HaltReport:
    """A halted lane as operators see it; times are wall-clock seconds."""

    lane: Lane
    reason: HaltReason
    since: float
    why: str
    hint: str
    next_probe: float


class Halts:
    """The halted lanes. `lane in halts` is cheap, for the intake asks it per request."""

    def __init__(self, backoff: Backoff | None = None) -> None:
        self._backoff = backoff or Backoff(1.0, 60.0)
        self._halted: dict[Lane, Halted] = {}

    def __contains__(self, lane: object) -> bool:
        return lane in self._halted

    def __iter__(self) -> Iterator[Lane]:
        return iter(list(self._halted))

    def __len__(self) -> int:
        return len(self._halted)

    def get(self, lane: Lane) -> Halted | None:
        """The lane's halt, if it is halted."""
        return self._halted.get(lane)

    def halt(
        self,
        lane: Lane,
        reason: HaltReason,
        why: str,
        *,
        now: float,
        wall: float,
        by_key_check: bool = False,
    ) -> None:
        """Halt the lane until a probe succeeds. A halted lane keeps its first reason, unless the
        key check finds another.
        """
        known = self._halted.get(lane)
        if known is not None and (known.by_key_check or not by_key_check):
            return
        self._halted[lane] = Halted(
            reason, why, wall, now + self._backoff.equal_jitter(1), by_key_check
        )
        _log.warning(
            "lane halted",
            lane=lane_label(lane),
            reason=reason.value,
            upstream_said=why,
            hint=HINTS[reason],
        )

    def probe_failed(
        self, lane: Lane, now: float, reason: HaltReason | None = None, why: str = ""
    ) -> None:
        """A probe wasn't answered 200: wait longer. `reason`: the reason to halt that it showed,
        if any.
        """
        halted = self._halted[lane]
        halted.probes += 1
        halted.next_probe = now + self._backoff.equal_jitter(halted.probes + 1)
        if reason is not None and reason is not halted.reason:
            _log.warning(
                "lane still halted",
                lane=lane_label(lane),
                reason=reason.value,
                upstream_said=why,
                hint=HINTS[reason],
            )
        if reason is not None:
            halted.reason = reason
            halted.why = why

    def resume(self, lane: Lane) -> None:
        """End the lane's halt."""
        halted = self._halted.pop(lane)
        _log.info(
            "lane resumed",
            lane=lane_label(lane),
            reason=halted.reason.value,
            failed_probes=halted.probes,
        )

    def probe_at(self, lane: Lane, when: float) -> None:
        """Let the lane's next probe be due at `when`, monotonic seconds."""
        self._halted[lane].next_probe = when

    def halted_since(self) -> dict[Lane, float]:
        """When each lane was halted, wall-clock seconds."""
        return {lane: halted.since for lane, halted in self._halted.items()}

    def report(self, now: float, wall: float) -> list[HaltReport]:
        """All halts, for operators; `now` is the monotonic time at wall-clock time `wall`."""
        return [
            HaltReport(
                lane,
                halted.reason,
                halted.since,
                halted.why,
                HINTS[halted.reason],
                wall + max(0.0, halted.next_probe - now),
            )
            for lane, halted in self._halted.items()
        ]


class ProbeCandidate(NamedTuple):
    """An event that a probe may send: the one at index `at` of its part."""

    group: PartGroup
    part: BatchPart
    at: int

    @property
    def rank(self) -> tuple[bool, int]:
        """The lowest is next."""
        return self.part.refused_without_proof, self.part.probed


def probe_candidate(state: LaneState, *, before_fresh: bool) -> ProbeCandidate | None:
    """The next event to probe with: first one that was never refused alone, then the one probed
    longest ago.

    `before_fresh`: None if a fresh event is next; otherwise no fresh event is available.
    """
    pending = [
        ProbeCandidate(group, part, at)
        for group, part, at in may_overtake(state.ordering, state.groups)
        if group.in_flight is None and part.deferred_dead_letter is None
    ]
    chosen = min(pending, key=lambda one: one.rank, default=None)
    if before_fresh and chosen is not None and chosen.rank > (False, state.fresh_probed):
        return None
    return chosen


def carve(chosen: ProbeCandidate, replace: ReplaceChunk) -> BatchPart:
    """Split the candidate's event off, as a part of its own at its position."""
    group, part, at = chosen
    if at > 0:
        part = group.divide(part, *cut(part.batch, at, replace))[1]
    if part.batch.count > 1:
        part = group.divide(part, *cut(part.batch, 1, replace))[0]
    return part
