"""`python -m tests.crash.archive`: the long form of the crash test of the archive. It prints its
seed first, which repeats it.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from tests.crash.archive.campaign import ArchiveCampaign, ArchiveOptions, ArchiveReport, as_text
from tests.crash.frame import CampaignRun, CrashFailure, Say, conduct, options


def main() -> int:
    """Run it; 0 if nothing was lost, torn or changed."""
    parser = options("tests.crash.archive")
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=10)
    given = parser.parse_args()
    chosen = ArchiveOptions(given.seed, given.events, given.kills)
    campaign = CampaignRun(
        f"seed {given.seed}, {given.kills} kills",
        partial(run, chosen),
        partial(_report, given.kills),
    )
    return conduct([campaign], keep=given.keep)


async def run(chosen: ArchiveOptions, root: Path, say: Say) -> ArchiveReport:
    """One campaign."""
    return await ArchiveCampaign(chosen, root, say).run()


def _report(kills: int, report: ArchiveReport, seconds: float) -> str:
    if len(report.kills) < kills:
        raise CrashFailure(
            f"only {len(report.kills)} lives could be killed: more --events make it last longer"
        )
    return as_text(report, seconds)


if __name__ == "__main__":
    sys.exit(main())
