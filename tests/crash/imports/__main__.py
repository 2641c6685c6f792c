"""`python -m tests.crash.imports`: the long form of the crash test of imports. It prints its seed first: the same makes the same records
and the same kills."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from tests.crash.frame import CrashFailure, Run, Say, conduct, options
from tests.crash.imports.campaign import Campaign, Options, Report, as_text
from tests.crash.imports.plan import OPENERS
from tests.crash.kills import READING


def main() -> int:
    """Run it, once for each compression; 0 if nothing was lost, doubled, changed or miscounted."""
    parser = options("tests.crash.imports")
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=10, help="while events arrive; two more come before the first of a life")
    parser.add_argument("--packed", action="append", choices=sorted(OPENERS), help="only this compression; may be repeated")
    given = parser.parse_args()
    runs = []
    for suffix in given.packed or sorted(OPENERS):
        campaign = partial(run, Options(given.seed, given.events, given.kills, suffix))
        runs.append(Run(f"seed {given.seed}, {given.kills} kills, {suffix}", campaign, partial(_report, given.kills)))
    return conduct(runs, keep=given.keep)


async def run(chosen: Options, root: Path, say: Say) -> Report:
    """One campaign."""
    return await Campaign(chosen, root, say).run()


def _report(kills: int, report: Report, seconds: float) -> str:
    if len(report.lives) < kills + READING:
        raise CrashFailure(f"only {len(report.lives)} lives could be killed: more --events make it last longer")
    return as_text(report, seconds)


if __name__ == "__main__":
    sys.exit(main())
