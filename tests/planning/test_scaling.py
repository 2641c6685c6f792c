"""docs/how-to/scaling.md: its tables and the figures in its sentences are those of the formulas."""

from __future__ import annotations

import re

import pytest

from forwarder.config.settings import Settings
from forwarder.config.units import format_duration, format_size
from forwarder.core.event import EVENT_OVERHEAD
from forwarder.planning.capacity import (
    RESERVE,
    Load,
    MigrationLoad,
    capacity_of,
    full_batch,
    most_requests,
    upstream_rate,
)
from forwarder.planning.plan import about, plan_import, plan_load, rounded_size
from forwarder.sources.http.protocol.limits import HttpPolicy
from tests.support.documents import text_of
from tests.support.scaling_tables import (
    DISK,
    FILE,
    HOUR,
    MEMORY,
    TABLES,
    WORKERS,
    current,
)

TEXT = text_of(FILE)


def test_its_tables_are_current() -> None:
    """Each is what the formulas give now: `python -m
    tests.support.scaling_tables` writes them again.
    """
    assert set(re.findall(r"<!-- table: (\w+) -->", TEXT)) == set(TABLES)
    assert current(TEXT) == TEXT


def test_what_its_sentences_say() -> None:
    """Numbers in the text are those of the settings, of the code and of the plans."""
    settings = Settings()
    megabytes = format_size(settings.batch.max_bytes).replace("MB", " MB")
    load = Load(rate=1.0)
    said = [
        f"**{'half' if RESERVE == 2 else '?'} of what one core was measured to do**",
        f"`workers: {WORKERS}`",
        f"Events have {load.event_bytes} bytes",
        f"An event counts {EVENT_OVERHEAD} bytes beside its JSON",
        f"A batch is closed by {settings.batch.max_events} events, {megabytes} or one second",
        f"at most {most_requests(settings)} requests in flight",
        (
            f"{most_requests(settings)} for each worker: "
            f"{about(upstream_rate(load, settings, 1))} events/s in full batches"
        ),
        f"`sources.http.max_connections`, {settings.sources.http.max_connections} for each worker",
        f"`sources.http.max_lanes`, {settings.sources.http.max_lanes}",
        f"`import.rate`, {settings.import_.rate:,} events/s",
        f"idle for {HttpPolicy().idle_timeout:g} s",
        f"dead letters ({format_size(DISK.dead_letter_limit)})",
    ]
    assert [phrase for phrase in said if phrase not in TEXT] == []
    assert format_duration(settings.batch.max_age) == "1s"


def test_buffers_in_memory_need_little_more() -> None:
    """The table has those on disk; beside it stands how much more memory it takes."""
    load = Load(rate=50_000, outage=8 * HOUR, cores=2)
    disk, memory = (capacity_of(load, settings) for settings in (DISK, MEMORY))
    more = memory.max_bytes * memory.carrying / (disk.max_bytes * disk.carrying) - 1
    assert f"Buffers in memory need {more:.0%} more".replace("%", " %") in TEXT


def test_the_first_example() -> None:
    """What is said beside its table."""
    hour = capacity_of(Load(rate=50_000, outage=HOUR), DISK)
    assert (
        f"For one hour, {format_size(rounded_size(hour.max_bytes))} on each of "
        f"{'two' if hour.machines == 2 else '?'} machines do."
    ) in TEXT
    assert hour.busy < 1
    assert (hour.requests, full_batch(Load(rate=1.0), DISK) * 600) == (10, 3_000_000)
    singles = capacity_of(Load(rate=50_000, outage=HOUR, request_events=1), DISK)
    assert (singles.processes, "(`--events-per-request 1`) need six workers" in TEXT) == (6, True)


@pytest.mark.parametrize(("rate", "days"), [(2000, 58), (20_000, 6)])
def test_the_second_example(rate: int, days: int) -> None:
    """Two months, or six days."""
    plan = plan_import(MigrationLoad(events=10**10, form="amplitude", rate=rate), DISK)
    assert round(plan.figures[0].value / 86_400) == days  # type: ignore[operator]  # it has an end
    assert (
        "it takes two months, whatever runs it; at 20,000, if the service agrees, six days" in TEXT
    )


def test_its_commands_make_its_tables() -> None:
    """The two that are quoted are those whose figures are shown."""
    quoted = re.findall(r"`forwarder plan (--[^`]*)`", TEXT)
    assert quoted == [
        "--rate 50000 --outage 8h",
        "--source import --events 10e9 --format amplitude",
    ]
    plan = plan_load(Load(rate=50_000, outage=8 * HOUR), DISK, configured=False)
    assert f"| {' | '.join(figure.text for figure in plan.figures)} |" in TEXT
