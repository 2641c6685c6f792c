"""When a reader of files is killed: once in each equal part of what it has to read, at a share
that follows from a seed; and shortly after a start, the first one and a later one.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

READING: Final = 2
"""Kills before the first event of a life, beside those that were asked for."""
SPREAD: Final = 0.8
"""Of each part, so much can be the place of its kill: what follows is time to do it in."""


@dataclass(frozen=True, slots=True)
class KillAtShare:
    """One kill: `after` seconds after so large a `share` of the events has arrived; without one,
    after its start.
    """

    share: float | None
    after: float

    def __str__(self) -> str:
        if self.share is None:
            return f"{self.after:.2f} s after its start"
        return f"{self.after:.2f} s after {self.share:.1%}"


def schedule(seed: int, kills: int, *, reading: float, patience: float) -> list[KillAtShare]:
    """So many kills in the midst of it, at most `patience` seconds after their share, and
    `READING` within `reading` seconds of a start.
    """
    chance = random.Random(~seed)
    planned_kills = [
        KillAtShare((place + chance.random() * SPREAD) / kills, chance.uniform(0, patience))
        for place in range(kills)
    ]
    later = chance.randrange(1, kills) if kills > 1 else kills
    for place in (later, 0):  # the later one first, so that it stays there
        planned_kills.insert(place, KillAtShare(None, chance.uniform(0, reading)))
    return planned_kills
