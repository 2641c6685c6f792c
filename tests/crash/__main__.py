"""`python -m tests.crash`: the long form of the crash test. It says its seed first: the same makes the same load and the same kills."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.crash.campaign import Campaign, CrashFailure, Options, Report

LEAST_RATE = 1000.0


def main() -> int:
    """Run it; 0 if nothing was lost, changed or miscounted."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash")
    parser.add_argument("--kills", type=int, default=220, help="half of them at random instants, half at failpoints")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 32))
    parser.add_argument("--rate", type=float, default=3000.0, help="events a second")
    parser.add_argument("--max-bytes", default="16MB", help="buffer.max_bytes")
    parser.add_argument("--at", action="append", default=[], help="only at this failpoint; may be repeated")
    given = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="forwarder-crash-"))
    print(f"seed {given.seed}, {given.kills} kills, in {root}", flush=True)
    half = given.kills // 2
    options = Options(given.seed, given.kills - half, half, tuple(given.at), given.rate, LEAST_RATE, max_bytes=given.max_bytes)
    began = time.monotonic()
    try:
        report = asyncio.run(Campaign(options, root, tell=lambda text: print(text, flush=True)).run())
    except CrashFailure as failure:
        print(f"FAILED {failure}", file=sys.stderr)
        return 1
    shutil.rmtree(root)
    show(report, time.monotonic() - began)
    return 0


def show(report: Report, seconds: float) -> None:
    """Print what was done."""
    print(f"{report.kills} kills in {seconds:.0f} s: {report.random} at random instants, {sum(report.hit.values())} at failpoints")
    for name, count in sorted(report.hit.items()):
        print(f"  {name:<26}{count:>4}")
    print(f"{report.sent} events sent, {report.promised} promised ({report.rate:.0f}/s while it listened)")
    print(f"{report.repeats} came more than once, unchanged; {report.refused} requests refused; {report.letters} dead letters")
    print(f"{report.looks} looks at the books, all of them balanced")
    for lane, account in report.books.items():
        print(f"  {'historical' if lane.historical else lane.api_key[-9:]:<12}{account}")
    print("nothing was lost, changed or miscounted")


if __name__ == "__main__":
    sys.exit(main())
