"""When the daemon is killed: a schedule that follows from a seed, half at random
instants, half at failpoints.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from forwarder.storage.failpoints import NAMES

POINTS: Final = frozenset(name for name in NAMES if not name.startswith("archive."))
"""All failpoints but those of an archive, which has a campaign of its own (`archive/`)."""

STARTING_SHARE: Final = 0.15
"""Of the kills at random instants, those that may come before the daemon listens."""
STARTS_WITHIN: Final = 0.9
"""Seconds from the start in which such a kill comes."""
LIVES: Final = (0.02, 1.5)
"""Seconds from listening to the kill, at random instants."""
TRIES: Final = 8
"""How often in a row a failpoint may not be passed until it has to be given up."""

_PASSINGS: Final = {
    "opening.read": 1,
    "opening.written": 1,
    "checkpoint.written": 2,
    "compaction.read": 2,
    "compaction.moved": 2,
    "bisect.cut": 12,
    "dead_letters.begin": 4,
    "dead_letters.committed": 4,
    "replay.held": 3,
}
"""At which passing a process is killed at the latest."""
_OFTEN: Final = 60
"""The same, for places that are passed with each group."""


@dataclass(frozen=True, slots=True)
class ScheduledKill:
    """One kill. `failpoint` None: at a random instant, `after` seconds from the start (`starting`)
    or from listening.
    """

    failpoint: str | None = None
    passing: int = 1
    after: float = 0.0
    starting: bool = False

    def __str__(self) -> str:
        instant = f"{self.after:.2f} s after {'the start' if self.starting else 'listening'}"
        return f"{self.failpoint}@{self.passing}" if self.failpoint else instant

    @property
    def armed(self) -> str:
        """What the environment has to say."""
        return f"{self.failpoint}=kill@{self.passing}" if self.failpoint else ""


class Schedule:
    """The kills that are still to come. One whose failpoint isn't passed is tried again, and
    counts as random.
    """

    def __init__(
        self, seed: int, at_random: int, at_failpoints: int, names: Sequence[str] = ()
    ) -> None:
        self._random = random.Random(seed)
        self._names = sorted(names or POINTS)
        chosen: list[str | None] = [
            self._names[index % len(self._names)] for index in range(at_failpoints)
        ]
        kills = [*chosen, *[None] * at_random]
        self._random.shuffle(kills)
        self._waiting = deque(kills)
        self._at_random = at_random
        self._missed: Counter[str] = Counter()
        self.hit: Counter[str] = Counter()
        self.random = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def next(self) -> ScheduledKill:
        """The next kill."""
        name = self._waiting.popleft()
        if name is None:
            starting = self._random.random() < STARTING_SHARE
            return ScheduledKill(
                after=self._random.uniform(0.0, STARTS_WITHIN)
                if starting
                else self._random.uniform(*LIVES),
                starting=starting,
            )
        latest = max(1, _PASSINGS.get(name, _OFTEN) >> self._missed[name])
        return ScheduledKill(name, self._random.randint(1, latest))

    def done(self, kill: ScheduledKill, *, hit: bool) -> None:
        """A kill was done, at its failpoint or not."""
        if kill.failpoint is None:
            self.random += 1
        elif hit:
            self.hit[kill.failpoint] += 1
            self._missed[kill.failpoint] = 0
        else:
            self._miss(kill.failpoint)

    def _miss(self, name: str) -> None:
        """Try it again later; in exchange there is one kill less at a random instant."""
        self.random += 1
        self._missed[name] += 1
        if None in self._waiting and self.random + self._waiting.count(None) > self._at_random:
            self._waiting.remove(None)
        if self._missed[name] < TRIES:
            self._waiting.append(name)

    def never_hit(self) -> list[str]:
        """The failpoints that were wanted and not hit once."""
        return [name for name in self._names if not self.hit[name]]
