"""`python -m tests.simulation`: lives of the daemon from seeds, until a time is over or a promise
is broken; the failing life is shrunk, and told.
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial

from tests.simulation.coverage import Coverage
from tests.simulation.life import Life, live
from tests.simulation.plan import drawn
from tests.simulation.planted import DEFECTS, lived
from tests.simulation.shrinking import shrunk, story


def main() -> int:
    """0 if no promise was broken."""
    parser = argparse.ArgumentParser(prog="tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="this life alone, told whole")
    parser.add_argument("--first", type=int, default=1, help="of the seeds")
    parser.add_argument("--lives", type=int, default=sys.maxsize)
    parser.add_argument("--seconds", type=float, default=600.0)
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
    if given.planted is not None:
        return _look_for_planted(min(given.lives, 3000), given.planted)
    if given.seed is not None:
        life = live(drawn(given.seed))
        print(story(life, 200))
        return _failed(life) if life.broken else 0
    began = time.monotonic()
    coverage = Coverage()
    for seed in range(given.first, given.first + given.lives):
        if time.monotonic() - began > given.seconds:
            break
        life = live(drawn(seed))
        coverage.add(life)
        if life.broken is not None:
            return _failed(life)
        if given.digests:
            print(seed, life.trace.digest)
        if given.twice and live(drawn(seed)).trace.digest != life.trace.digest:
            print(f"seed {seed} is another life the second time")
            return 1
    if given.digests:
        return 0
    took = time.monotonic() - began
    lives = coverage.lives
    print(f"{lives:,} lives in {took:.0f} s, {lives / took:.1f} a second: no promise was broken")
    for line in coverage.report():
        print(line)
    return 0


def _look_for_planted(most: int, part: str) -> int:
    """How many lives it takes to find each planted defect whose name has this in it; the number of
    those not found.
    """
    missed = 0
    for name in (each for each in DEFECTS if part in each):
        found = next((seed for seed in range(1, most + 1) if lived(drawn(seed), name).broken), 0)
        if not found:
            missed += 1
            print(f"{name}: not found in {most} lives", flush=True)
            continue
        smaller = shrunk(lived(drawn(found), name), partial(lived, defect=name))
        acts = len(smaller.plan.acts)
        print(f"{name}: life {found}, {acts} acts: {str(smaller.broken)[:100]}", flush=True)
    return missed


def _failed(life: Life) -> int:
    print(f"seed {life.plan.seed}: {str(life.broken)[:1000]}")
    smaller = shrunk(life)
    print(f"shrunk from {len(life.plan.acts)} acts to {len(smaller.plan.acts)}:\n")
    print(story(smaller, 60))
    return 1


if __name__ == "__main__":
    sys.exit(main())
