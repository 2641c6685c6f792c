"""`python -m tests.crash.imports`: the long form of the crash test of imports, in one process and
in shards. It prints its seed first: the same makes the same records and the same kills.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

from tests.crash.frame import CampaignRun, CrashFailure, Say, conduct, options
from tests.crash.imports import shards
from tests.crash.imports.campaign import ImportCampaign, ImportOptions, ImportReport, as_text
from tests.crash.imports.plan import OPENERS
from tests.crash.kills import READING


def main() -> int:
    """Run it, once for each compression, and once in shards; 0 if nothing was lost, doubled,
    changed or miscounted.
    """
    parser = options("tests.crash.imports")
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument(
        "--kills",
        type=int,
        default=10,
        help="while events arrive; two more come before the first of a life",
    )
    parser.add_argument(
        "--packed",
        action="append",
        choices=sorted(OPENERS),
        help="only one process, and this compression; repeatable",
    )
    parser.add_argument("--sharded", action="store_true", help="only in shards")
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--at-a-time", type=int, default=3, help="shards that run at the same time")
    parser.add_argument("--killed", type=int, default=2, help="shards that are killed")
    given = parser.parse_args()
    runs: list[CampaignRun[Any]] = []
    for suffix in () if given.sharded else given.packed or sorted(OPENERS):
        campaign = partial(run, ImportOptions(given.seed, given.events, given.kills, suffix))
        runs.append(
            CampaignRun(
                f"seed {given.seed}, {given.kills} kills, {suffix}",
                campaign,
                partial(_report, given.kills),
            )
        )
    if not given.packed:
        divided = shards.ShardOptions(
            given.seed, given.events, given.shards, at_a_time=given.at_a_time, kills=given.killed
        )
        title = (
            f"seed {given.seed}, {given.shards} shards, {given.at_a_time} at a time, "
            f"{given.killed} of them killed"
        )
        runs.append(
            CampaignRun(
                title,
                lambda root, say: shards.ShardCampaign(divided, root, say).run(),
                shards.as_text,
            )
        )
    return conduct(runs, keep=given.keep)


async def run(chosen: ImportOptions, root: Path, say: Say) -> ImportReport:
    """One campaign."""
    return await ImportCampaign(chosen, root, say).run()


def _report(kills: int, report: ImportReport, seconds: float) -> str:
    if len(report.lives) < kills + READING:
        raise CrashFailure(
            f"only {len(report.lives)} lives could be killed: more --events make it last longer"
        )
    return as_text(report, seconds)


if __name__ == "__main__":
    sys.exit(main())
