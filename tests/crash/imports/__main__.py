"""`python -m tests.crash.imports`: the long form of the crash test of imports. It says its seed first: the same makes the same records
and the same kills."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.crash.imports.campaign import Campaign, CrashFailure, Options, as_text
from tests.crash.imports.plan import OPENERS
from tests.crash.imports.schedule import READING


def main() -> int:
    """Run it, once for each way of packing; 0 if nothing was lost, doubled, changed or miscounted."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.imports")
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=10, help="while events arrive; two more come before the first of a life")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 32))
    parser.add_argument("--packed", action="append", choices=sorted(OPENERS), help="only so; may be repeated")
    parser.add_argument("--keep", action="store_true", help="leave the files where they are")
    given = parser.parse_args()
    for suffix in given.packed or sorted(OPENERS):
        root = Path(tempfile.mkdtemp(prefix="forwarder-import-"))
        print(f"seed {given.seed}, {given.kills} kills, in {root}", flush=True)
        began = time.monotonic()
        try:
            report = asyncio.run(Campaign(Options(given.seed, given.events, given.kills, suffix), root, _say).run())
        except CrashFailure as failure:
            print(f"FAILED {failure}", file=sys.stderr)
            return 1
        if not given.keep:
            shutil.rmtree(root)
        print(as_text(report, time.monotonic() - began), flush=True)
        if len(report.lives) < given.kills + READING:
            print(f"FAILED only {len(report.lives)} lives could be killed: more --events make it last longer", file=sys.stderr)
            return 1
    return 0


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
