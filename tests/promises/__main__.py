"""`python -m tests.promises` prints the table: what is promised, and at which entrance it holds."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from forwarder.demo.broker import Broker, BrokerUnavailable
from tests.promises.entrance import Entrance
from tests.promises.entrances import ENTRANCES
from tests.promises.table import (
    Cell,
    CellState,
    as_text,
    cells_of,
    running_services,
    untested,
    worlds,
)


def main() -> int:
    """Print the table; 0 if no cell is broken."""
    parser = argparse.ArgumentParser(prog="tests.promises", description=__doc__)
    names = [entrance.name for entrance in ENTRANCES]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="ENTRANCE")
    given = parser.parse_args()
    cells = filled(entrance for entrance in ENTRANCES if entrance.name in given.only)
    print(as_text(cells))
    return int(any(cell.state is CellState.BROKEN for cell in cells))


def filled(columns: Iterable[type[Entrance]]) -> list[Cell]:
    """The cells of these columns, world by world."""
    cells: list[Cell] = []
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="promises-")))
        services = stack.enter_context(running_services())
        for name, entrances in worlds(columns).items():
            folder = root / name.replace(" ", "-")
            folder.mkdir()
            kafka = ""
            if any(entrance.needs_kafka for entrance in entrances):
                try:
                    kafka = stack.enter_context(Broker()).bootstrap
                except BrokerUnavailable as error:
                    cells += untested(
                        (entrance.name for entrance in entrances), f"no broker: {error}"
                    )
                    continue
            began = time.monotonic(), sum(os.times()[:4])
            cells += asyncio.run(cells_of(entrances, folder, services, kafka))
            took = time.monotonic() - began[0], sum(os.times()[:4]) - began[1]
            names = ", ".join(entrance.name for entrance in entrances)
            print(f"{took[0]:.0f} s, {took[1]:.0f} s of CPU: {names}", file=sys.stderr)
    return cells


if __name__ == "__main__":
    sys.exit(main())
