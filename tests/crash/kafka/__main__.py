"""`python -m tests.crash.kafka`: the long form of the Kafka crash test. It says its seed first: the same makes the same records."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import shutil
import sys
import tempfile
import time
from pathlib import Path

from forwarder.demo.broker import Broker
from tests.crash.kafka.campaign import Campaign, CrashFailure, Options, Report
from tests.crash.kafka.hostile import HostileHour


def main() -> int:
    """Run it; 0 if nothing was lost, changed, sent out of order or miscounted."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.kafka")
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 32))
    parser.add_argument("--times", type=int, default=1, help="how often, each with the next seed")
    parser.add_argument("--hostile", type=int, metavar="DEEDS", help="so often one joins, leaves, stalls or dies; else each disaster once")
    parser.add_argument("--disk", action="store_true", help="commit: disk, without order; else commit: delivered, in order for each id")
    given = parser.parse_args()
    for seed in range(given.seed, given.seed + given.times):
        root = Path(tempfile.mkdtemp(prefix="forwarder-kafka-"))
        print(f"seed {seed}, {given.records} records in {given.partitions} partitions, in {root}", flush=True)
        began = time.monotonic()
        try:
            report = run(Options(seed, given.records, given.partitions, disk=given.disk), root, given.hostile)
        except CrashFailure as failure:
            print(f"FAILED {failure}", file=sys.stderr)
            return 1
        shutil.rmtree(root)
        show(report, given.records, time.monotonic() - began)
    return 0


def run(options: Options, root: Path, deeds: int | None) -> Report:
    """One campaign on a broker of its own."""
    with Broker() as broker:
        campaign = Campaign(options, root, broker, _say) if deeds is None else HostileHour(options, root, broker, deeds, _say)
        return asyncio.run(campaign.run())


def _say(text: str) -> None:
    print(text, flush=True)


def show(report: Report, records: int, seconds: float) -> None:
    """Print what was done."""
    print(f"{records} records with {report.events} events in {seconds:.0f} s; {report.looks} looks at the books, all of them balanced")
    print(f"{report.distinct} distinct events are at the sandbox, no conflict")
    print(f"{report.repeats} came more than once, the same bytes; {report.repeated_bare} of them had neither uuid nor timestamp")
    print(f"{report.returned} events were given back to the broker by those that ended in good order")
    print("nothing was lost, changed, miscounted, or sent out of the order that was asked for")


if __name__ == "__main__":
    sys.exit(main())
