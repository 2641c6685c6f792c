"""Write the golden files anew, by the code as it is: `python -m tests.golden_imports --write`;
without it, say which differ.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.golden_imports.recording import CASES, GOLDEN, load, run_case, save


def run() -> int:
    """Go through all cases; how many differ."""
    GOLDEN.mkdir(exist_ok=True)
    differ = 0
    for case in CASES:
        with tempfile.TemporaryDirectory(prefix="golden-") as folder:
            recorded = run_case(case, Path(folder))
        if "--write" in sys.argv:
            save(case, recorded)
        elif recorded != load(case):
            differ += 1
            sys.stdout.write(f"{case.name} differs\n")
    return differ


if __name__ == "__main__":
    sys.exit(min(run(), 1))
