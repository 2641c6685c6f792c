"""`python -m tests.crash.restarts`: the long form. It prints a table of what senders and the port saw of the restarts."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import shutil
import sys
import tempfile
from pathlib import Path

from tests.crash.campaign import CrashFailure
from tests.crash.restarts.campaign import HEAD, Campaign, Options, Report
from tests.crash.restarts.daemon import Way


def main() -> int:
    """Run it; 0 if nothing was lost, and nobody refused where something outlives the process."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.restarts")
    parser.add_argument("--restarts", type=int, default=30, help="in an outage, and as many in quiet")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 32))
    parser.add_argument("--rate", type=float, default=200.0, help="requests a second")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--way", action="append", choices=[way.value for way in Way], help="only this one; may be repeated")
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    reports: dict[Way, Report] = {}
    for way in [Way(name) for name in given.way or [way.value for way in Way]]:
        root = Path(tempfile.mkdtemp(prefix="forwarder-restarts-"))
        options = Options(given.seed, way, given.restarts, given.rate, given.workers)
        try:
            reports[way] = asyncio.run(Campaign(options, root, tell=lambda text: print(text, flush=True)).run())
        except CrashFailure as failure:
            print(f"FAILED {failure}", file=sys.stderr)
            return 1
        shutil.rmtree(root)
    show(reports)
    refused = [way for way, report in reports.items() if way is not Way.PLAIN and any(each.failures for each in report.figures)]
    print(f"FAILED: requests failed with {', '.join(refused)}" if refused else "nothing was lost, and nobody refused who needn't be")
    return 1 if refused else 0


def show(reports: dict[Way, Report]) -> None:
    """Print what was measured."""
    print(f"\n{HEAD}")
    for way, report in reports.items():
        for figures in report.figures:
            print(figures.row(way))
    print(f"\n{sum(report.promised for report in reports.values())} events promised, all delivered;", end=" ")
    print(f"{sum(report.repeats for report in reports.values())} came more than once, unchanged")


if __name__ == "__main__":
    sys.exit(main())
