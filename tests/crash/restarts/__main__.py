"""`python -m tests.crash.restarts`: the long form. It prints a table of what senders and the port
saw of the restarts.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from tests.crash.frame import CampaignRun, CrashFailure, Say, conduct, options
from tests.crash.restarts.campaign import HEAD, RestartCampaign, RestartOptions, RestartReport
from tests.crash.restarts.daemon import Way


def main() -> int:
    """Run it, once for each way to restart; 0 if nothing was lost, and no request failed where
    something outlives the process.
    """
    parser = options("tests.crash.restarts")
    parser.add_argument(
        "--restarts", type=int, default=30, help="in an outage, and as many in quiet"
    )
    parser.add_argument("--rate", type=float, default=200.0, help="requests a second")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument(
        "--way",
        action="append",
        choices=[way.value for way in Way],
        help="only this one; may be repeated",
    )
    given = parser.parse_args()
    runs = []
    for way in [Way(name) for name in given.way or [way.value for way in Way]]:
        campaign = partial(
            run, RestartOptions(given.seed, way, given.restarts, given.rate, given.workers)
        )
        runs.append(CampaignRun(f"seed {given.seed}, {way.value}", campaign, partial(_report, way)))
    return conduct(runs, keep=given.keep)


async def run(chosen: RestartOptions, root: Path, say: Say) -> RestartReport:
    """One campaign."""
    return await RestartCampaign(chosen, root, say).run()


def _report(way: Way, report: RestartReport, seconds: float) -> str:
    if way is not Way.PLAIN and any(run.failures for run in report.figures):
        raise CrashFailure(
            f"requests failed with {way.value}: {[dict(run.failures) for run in report.figures]}"
        )
    rows = [run.row(way) for run in report.figures]
    promised = (
        f"{report.promised} events promised in {seconds:.0f} s, all delivered; "
        f"{report.repeats} came more than once, unchanged"
    )
    return "\n".join([HEAD, *rows, promised])


if __name__ == "__main__":
    sys.exit(main())
