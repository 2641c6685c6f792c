"""What a lane's upstream did with odd events: which oddities it refuses, so that not each of a hundred poison events must be refused alone.

An event that is suspected, in a batch that was refused, is refused *by precedent* if `REFUSED_ALONE` events of its kind, none of them odder
than it, were refused alone in the last minutes, and none of its kind was accepted since. Kinds of which an event was accepted
are not suspected for as long. Pure.
"""

from __future__ import annotations

from typing import Final

from forwarder.wire.strict import Kind, Suspicion

REFUSED_ALONE: Final = 3
"""Events of a kind that must have been refused alone before others follow."""

VALID_SECONDS: Final = 300.0
"""How long a precedent is valid after the last one of its kind."""

_KEPT: Final = 16
"""Precedents of one kind that are kept: the least odd ones, for they cover most."""


class Precedents:
    """The precedents of one lane. Times are monotonic seconds."""

    __slots__ = ("_accepted", "_refused")

    def __init__(self) -> None:
        self._refused: dict[Kind, tuple[float, list[Suspicion]]] = {}
        self._accepted: dict[Kind, float] = {}

    def refuse(self, suspicion: Suspicion, now: float) -> None:
        """The upstream refused an event alone, and accepted others."""
        known = [*self._of(suspicion.oddities, now), suspicion]
        self._refused[suspicion.oddities] = now + VALID_SECONDS, sorted(known)[:_KEPT]

    def accept(self, kind: Kind, now: float) -> None:
        """The upstream accepted an event of this kind."""
        self._refused.pop(kind, None)
        self._accepted[kind] = now + VALID_SECONDS

    def covers(self, suspicion: Suspicion, now: float) -> bool:
        """Whether events like this one were refused alone, often enough."""
        return sum([suspicion.is_as_odd_as(known) for known in self._of(suspicion.oddities, now)]) >= REFUSED_ALONE

    def clears(self, suspicion: Suspicion, now: float) -> bool:
        """Whether the upstream accepted an event of its kind lately."""
        return now < self._accepted.get(suspicion.oddities, 0.0)

    def valid(self, now: float) -> bool:
        """Whether there is anything to remember."""
        ends = [*self._accepted.values(), *[end for end, _ in self._refused.values()]]
        return any(now < end for end in ends)

    def _of(self, kind: Kind, now: float) -> list[Suspicion]:
        end, known = self._refused.get(kind, (0.0, []))
        return known if now < end else []
