"""The tables of docs/how-to/scaling.md, made by the formulas of `forwarder plan`.

.venv/bin/python -m tests.support.scaling_tables      writes them into the document again
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from forwarder.config.section import GIB
from forwarder.config.settings import BufferSettings, Settings
from forwarder.config.units import format_size
from forwarder.planning.capacity import (
    Load,
    LoadSource,
    MigrationLoad,
    capacity_of,
    core_rate,
    import_capacity,
)
from forwarder.planning.plan import CapacityPlan, about, plan_import, plan_load, rounded_size
from tests.support.documents import page

FILE: Final = page("scaling")
DISK: Final = Settings(buffer=BufferSettings(kind="disk"))
MEMORY: Final = Settings()
WORKERS: Final = 3
"""Of a machine: four cores, one of which is left to the system."""
HOUR: Final = 3600.0
_MARKED: Final = re.compile(r"(<!-- table: (\w+) -->\n\n)(?:\|.*\n)*\n?")


def carried() -> str:
    """What a core and a machine carry."""
    http = Load(rate=1.0)
    kafka = replace(http, source=LoadSource.KAFKA, event_bytes=510)
    rows = [
        ("HTTP, single events", core_rate(replace(http, request_events=1), DISK)),
        ("HTTP, 50 events in a request", core_rate(http, DISK)),
        ("the same, without uuid and timestamp", core_rate(replace(http, unstamped=True), DISK)),
        ("HTTP, 1000 events in a request", core_rate(replace(http, request_events=1000), DISK)),
        ("Kafka", core_rate(kafka, MEMORY)),
        ("Kafka, without them", core_rate(replace(kafka, unstamped=True), MEMORY)),
        ("import, `native`", import_capacity(MigrationLoad(events=1), DISK).shard_rate),
        (
            "import, `mixpanel`",
            import_capacity(MigrationLoad(events=1, form="mixpanel"), DISK).shard_rate,
        ),
    ]
    cells = [[name, *[about(rate * cores) for cores in (1, WORKERS)]] for name, rate in rows]
    return table(["events a second", "one core", "one machine"], cells)


def outage() -> str:
    """What a buffer needs for an outage, by rate."""
    times = {"1 h": HOUR, "8 h": 8 * HOUR, "3 d": 72 * HOUR}
    rows = [[f"{rate:,}", *[_held(rate, DISK, time) for time in times.values()]] for rate in RATES]
    return table(["events a second", *times], rows)


RATES: Final = (1_000, 10_000, 50_000, 200_000)


def _held(rate: int, settings: Settings, time: float) -> str:
    capacity = capacity_of(Load(rate=rate, outage=time, cores=2), settings)
    size = capacity.max_bytes * capacity.carrying
    return (
        f"{size / (1024 * GIB):.3g} TiB"
        if size >= 1024 * GIB
        else f"{format_size(rounded_size(size)).replace('GiB', ' GiB').replace('MiB', ' MiB')}"
    )


def requests() -> str:
    """What the service gets."""
    rows = []
    for rate in RATES[:-1]:
        for keys in (1, 100):
            capacity = capacity_of(Load(rate=rate, keys=keys, outage=0.0), DISK)
            rows.append(
                [
                    f"{rate:,}",
                    str(keys),
                    about(capacity.batch),
                    about(capacity.requests),
                    about(capacity.in_flight),
                ]
            )
    return table(
        [
            "events a second",
            "project keys",
            "events in a request",
            "requests a second",
            "in flight",
        ],
        rows,
    )


def balancer() -> str:
    """The first example."""
    return figures(plan_load(Load(rate=50_000, outage=8 * HOUR), DISK, configured=False))


def migration() -> str:
    """The second example."""
    return figures(plan_import(MigrationLoad(events=10**10, form="amplitude"), Settings()))


def figures(plan: CapacityPlan) -> str:
    """A plan's figures as a table."""
    return table(
        [figure.name for figure in plan.figures], [[figure.text for figure in plan.figures]]
    )


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


TABLES: Final[dict[str, Callable[[], str]]] = {
    builder.__name__: builder for builder in (carried, outage, requests, balancer, migration)
}


def current(text: str) -> str:
    """The document with its tables as they are now."""
    return _MARKED.sub(lambda match: f"{match[1]}{TABLES[match[2]]()}\n", text)


if __name__ == "__main__":
    FILE.write_text(current(FILE.read_text()))
