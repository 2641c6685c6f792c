"""`python -m tests.differential --before CHECKOUT`: both versions read the same mutants of recorded
requests, records and lines; answers, chunks, dead letters and books are compared.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.differential.campaign import ROOT, DifferentialOptions, run
from tests.differential.inputs import KINDS


def main() -> int:
    """Compare; 0 if there is no difference."""
    parser = argparse.ArgumentParser(prog="tests.differential", description=__doc__)
    parser.add_argument("--before", type=Path, required=True, help="checkout of one version")
    parser.add_argument("--after", type=Path, default=ROOT, help="of the other; default: this one")
    parser.add_argument("--mutants", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=KINDS, nargs="+", default=KINDS)
    given = parser.parse_args()
    print(f"seed {given.seed}, {given.mutants:,} mutants", flush=True)
    options = DifferentialOptions(
        given.before.resolve(), given.after.resolve(), given.mutants, given.seed, given.only
    )
    report = run(options, lambda text: print(text, flush=True))
    print(report.as_text())
    return int(report.differences.total() > 0)


if __name__ == "__main__":
    sys.exit(main())
