"""`python -m tests.crash.logs`: the long form of the crash test of logs. The seed that it prints
makes the same lines and kills again.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from tests.crash.frame import CampaignRun, Say, conduct, options
from tests.crash.logs.campaign import LogCampaign, LogOptions, LogReport, as_text


def main() -> int:
    """Run it, once for each level at which positions are stored; 0 if each line arrived, unchanged
    and with one uuid.
    """
    parser = options("tests.crash.logs")
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--rotations", type=int, default=50)
    parser.add_argument(
        "--kills", type=int, default=8, help="while lines arrive; two more come at a start"
    )
    parser.add_argument("--rate", type=int, default=6000, help="lines a second")
    parser.add_argument(
        "--commit",
        action="append",
        choices=["delivered", "disk"],
        help="only this level; may be repeated",
    )
    parser.add_argument(
        "--timed",
        action="store_true",
        help="events have their lines' times, else those at which the lines were read first",
    )
    given = parser.parse_args()
    runs = []
    for commit in given.commit or ["delivered", "disk"]:
        campaign = partial(
            run,
            LogOptions(
                given.seed,
                given.lines,
                given.rotations,
                given.kills,
                given.rate,
                commit,
                given.timed,
            ),
        )
        runs.append(
            CampaignRun(
                (
                    f"seed {given.seed}, {given.lines:,} lines, {given.rotations} rotations, "
                    f"commit: {commit}"
                ),
                campaign,
                as_text,
            )
        )
    return conduct(runs, keep=given.keep)


async def run(chosen: LogOptions, root: Path, say: Say) -> LogReport:
    """One campaign."""
    return await LogCampaign(chosen, root, say).run()


if __name__ == "__main__":
    sys.exit(main())
