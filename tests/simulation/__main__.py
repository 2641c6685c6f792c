"""`python -m tests.simulation`: lives of the daemon from seeds, until a time is over or a promise
is broken; the failing life is shrunk, and told.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter, deque
from dataclasses import dataclass
from functools import partial
from itertools import islice
from multiprocessing.pool import AsyncResult, Pool
from typing import Final

from tests.simulation.coverage import Coverage, faults_of
from tests.simulation.life import Life, live
from tests.simulation.plan import drawn
from tests.simulation.planted import DEFECTS, lived
from tests.simulation.shrinking import shrunk, story

AHEAD: Final = 4
"""Lives that are begun or waiting, for each process."""


@dataclass(frozen=True, slots=True)
class Lived:
    """What is known of a life in another process."""

    seed: int
    broken: str
    digest: str
    differs: bool
    """Whether it was another one the second time."""
    faults: set[str]
    met: Counter[str]


def main() -> int:
    """0 if no promise was broken."""
    parser = argparse.ArgumentParser(prog="tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="this life alone, told whole")
    parser.add_argument("--first", type=int, default=1, help="of the seeds")
    parser.add_argument("--lives", type=int, default=sys.maxsize)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument(
        "--processes", type=int, default=len(os.sched_getaffinity(0)), help="that live at a time"
    )
    parser.add_argument("--twice", action="store_true", help="and compare the traces")
    parser.add_argument("--digests", action="store_true", help="of each life's trace")
    parser.add_argument(
        "--planted",
        nargs="?",
        const="",
        metavar="NAME",
        help="look for planted defects; NAME: those whose names have this in them",
    )
    given = parser.parse_args()
    if given.seed is not None:
        life = live(drawn(given.seed))
        print(story(life, 200))
        return _failed(life) if life.broken else 0
    with Pool(given.processes) as pool:
        if given.planted is None:
            return _live_until(given, pool)
        names = [name for name in DEFECTS if given.planted in name]
        missed = 0
        for broken_seed, line in pool.imap(partial(_look_for, most=min(given.lives, 3000)), names):
            print(line, flush=True)
            missed += not broken_seed
        return missed


def _live_until(given: argparse.Namespace, pool: Pool) -> int:
    """Live until the time is over, or a promise is broken."""
    began = time.monotonic()
    coverage = Coverage()
    seeds = iter(range(given.first, given.first + given.lives))
    pending: deque[AsyncResult[Lived]] = deque()
    while True:
        if time.monotonic() - began <= given.seconds:
            pending += [
                pool.apply_async(_lived, (seed, given.twice))
                for seed in islice(seeds, AHEAD * given.processes - len(pending))
            ]
        if not pending:
            break
        life = pending.popleft().get()
        if life.broken:
            pool.terminate()
            return _failed(live(drawn(life.seed)))
        if given.digests:
            print(life.seed, life.digest)
        if life.differs:
            print(f"seed {life.seed} is another life the second time")
            return 1
        coverage.add(life.faults, life.met)
    if given.digests:
        return 0
    took = time.monotonic() - began
    lives = coverage.lives
    print(f"{lives:,} lives in {took:.0f} s, {lives / took:.1f} a second: no promise was broken")
    for line in coverage.report():
        print(line)
    return 0


def _lived(seed: int, twice: bool) -> Lived:
    """A life, once or twice."""
    plan = drawn(seed)
    life = live(plan)
    digest = life.trace.digest
    differs = twice and live(plan).trace.digest != digest
    return Lived(seed, str(life.broken or ""), digest, differs, faults_of(plan), life.met)


def _look_for(name: str, most: int) -> tuple[int, str]:
    """The life that finds a planted defect, and a line that says so; 0 if none of so many does."""
    broken_seed = next((seed for seed in range(1, most + 1) if lived(drawn(seed), name).broken), 0)
    if not broken_seed:
        return 0, f"{name}: not found in {most} lives"
    smaller = shrunk(lived(drawn(broken_seed), name), partial(lived, defect=name))
    acts = len(smaller.plan.acts)
    return broken_seed, f"{name}: life {broken_seed}, {acts} acts: {str(smaller.broken)[:100]}"


def _failed(life: Life) -> int:
    print(f"seed {life.plan.seed}: {str(life.broken)[:1000]}")
    smaller = shrunk(life)
    print(f"shrunk from {len(life.plan.acts)} acts to {len(smaller.plan.acts)}:\n")
    print(story(smaller, 60))
    return 1


if __name__ == "__main__":
    sys.exit(main())
