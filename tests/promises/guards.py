"""`python -m tests.promises.guards`: does the table notice when a guard is missing?

One guard after the other is taken out of every process that is started (`removals.py`), the table
is filled again, and at each entrance a row about that guard must be broken: caught, or else
missed. Outside CI: it fills the table once for each guard.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final
from unittest.mock import patch

from tests.promises.__main__ import filled
from tests.promises.entrances import ENTRANCES
from tests.promises.removals import GUARDS, Guard
from tests.promises.table import Cell, CellState
from tests.support.repository import ROOT

FOLDER: Final = ROOT / "tests" / "promises" / "without"
CAUGHT: Final = "caught"
MISSED: Final = "MISSED"
ALL: Final = "all"


def without(name: str) -> dict[str, str]:
    """The environment of processes without a guard."""
    path = os.pathsep.join((str(FOLDER), str(ROOT)))
    return {"PROMISES_WITHOUT": name, "PYTHONPATH": path}


def verdicts(guard: Guard, cells: Sequence[Cell]) -> dict[str, str]:
    """By entrance: caught, missed, or `-` where no row about the guard applies; `all` where
    nothing works without it, so that no row by itself could show it.
    """
    states: dict[str, dict[str, CellState]] = defaultdict(dict)
    for cell in cells:
        states[cell.entrance][cell.promise] = cell.state
    return {name: _verdict(guard, name, rows) for name, rows in states.items()}


def _verdict(guard: Guard, entrance: str, rows: Mapping[str, CellState]) -> str:
    about = {state for name, state in rows.items() if name in guard.rows}
    if entrance in guard.spares or not about & {CellState.OK, CellState.BROKEN}:
        return "-"
    if CellState.OK not in rows.values():
        return ALL
    return CAUGHT if CellState.BROKEN in about else MISSED


def main() -> int:
    """Print the table of guards and entrances; 0 if none was missed."""
    parser = argparse.ArgumentParser(prog="tests.promises.guards", description=__doc__)
    names = [column.name for column in ENTRANCES]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="ENTRANCE")
    parser.add_argument(
        "--guard", nargs="+", choices=list(GUARDS), default=list(GUARDS), metavar="GUARD"
    )
    given = parser.parse_args()
    columns = [column for column in ENTRANCES if column.name in given.only]
    width = max(map(len, GUARDS))
    print(" " * width, *(f"{column.name:>{_wide(column.name)}}" for column in columns), flush=True)
    missed = False
    for name in given.guard:
        with patch.dict(os.environ, without(name)):
            outcomes = verdicts(GUARDS[name], filled(columns))
        row = (f"{outcomes[column.name]:>{_wide(column.name)}}" for column in columns)
        print(name.ljust(width), *row, flush=True)
        missed = missed or MISSED in outcomes.values()
    for name in given.guard:
        for entrance, why in GUARDS[name].spares.items():
            print(f"  {name} at {entrance}: {why}")
    return int(missed)


def _wide(name: str) -> int:
    return max(len(name), len(MISSED))


if __name__ == "__main__":
    sys.exit(main())
