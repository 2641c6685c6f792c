"""`forwarder import --sort` of files in no order, killed while it sorts and while it sends."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Final

from forwarder.sources.imports.checkpoint import ImportCheckpoint, read_checkpoint
from forwarder.sources.imports.sorting import FILE, SPOOL
from tests.crash.imports.judge import ImportArrival, arrivals
from tests.crash.process import Killable
from tests.daemon.imports import line, write
from tests.end_to_end.importing import KEY, RunningSandbox, manifest_of, sandbox
from tests.support.commands import invoked
from tests.support.waiting import eventually

EVENTS: Final = 6_000
DAYS: Final = 10
PERSONS: Final = 100
ONE_BY_ONE: Final = "delivery: {concurrency: 1}\nbatch: {max_events: 100}\n"
"""Small requests, one at a time: so the order in which they arrive is that in which they left."""


async def test_killed_while_it_sorts_and_while_it_sends_all_arrives_once_and_in_order(
    tmp_path: Path,
) -> None:
    """Each event is there once, the days came one after the other and each person's events in the
    order of time; what came twice was in flight. Killed while it sorts nothing was sent, and it
    begins again; then it continues where it stood.
    """
    paths = shuffled(tmp_path)
    state = tmp_path / "state"
    with sandbox("--database", str(tmp_path / "sandbox.db")) as service:
        await killed_when(service, paths, state, (state / "checkpoint.json").exists)
        assert not (state / FILE).exists()
        assert (seen(state).books.read, service.ask("summary")["arrivals"]) == (0, 0)

        in_flight = 0
        for records in (EVENTS // 5, EVENTS // 2):
            await killed_when(service, paths, state, partial(is_settled, state, records))
            saved = seen(state)
            assert records <= saved.books.read < EVENTS
            in_flight += service.counts(saved.job.id)[0] - saved.books.read

        async with Killable.living(command(service, paths, state), tmp_path / "log") as importer:
            assert await importer.code() == 0, (tmp_path / "log").read_text()
        manifest = manifest_of(state)
        events, repeats, conflicts = service.counts(manifest.job.id)
        verified = await invoked(
            "import", "verify", "--state", str(state), "--sandbox", service.url
        )
        assert (verified.code, f"All {EVENTS:,} events" in verified.out) == (0, True), (
            verified.out + verified.err
        )
    assert (manifest.complete, manifest.books.read, manifest.books.delivered) == (
        True,
        EVENTS,
        EVENTS,
    )
    assert (events, conflicts) == (EVENTS, 0)
    assert repeats <= in_flight
    assert not [
        path
        for path in state.iterdir()
        if path.name in {FILE, SPOOL} or path.suffix in {".part", ".run"}
    ]
    check_order([arrival for arrival in arrivals(tmp_path / "sandbox.db") if arrival.kind == "new"])


def check_order(arrived: list[ImportArrival]) -> None:
    """Requests came in the order of their days, one day each, and the events of each person in the
    order of time.
    """
    days = [
        {arrival.timestamp[:10] for arrival in request}
        for _, request in groupby(arrived, key=lambda arrival: arrival.request)
    ]
    assert {len(request_days) for request_days in days} == {1}
    ordered = [day for request_days in days for day in request_days]
    assert ordered == sorted(ordered)
    assert len(set(ordered)) == DAYS
    times: dict[str, list[str]] = defaultdict(list)
    for arrival in arrived:
        times[arrival.distinct_id].append(arrival.timestamp)
    assert all(of_person == sorted(of_person) for of_person in times.values())
    assert len(times) == PERSONS


def shuffled(folder: Path) -> list[Path]:
    """Two files with events of the same days, in no order."""
    numbers = list(range(EVENTS))
    random.Random(8).shuffle(numbers)
    half = EVENTS // 2
    lines = [
        line(number, number * DAYS // EVENTS, f"person {number % PERSONS}", pad="x" * 200)
        for number in numbers
    ]
    return [write(folder / "a.jsonl", lines[:half]), write(folder / "b.jsonl", lines[half:])]


def command(service: RunningSandbox, paths: list[Path], state: Path) -> list[str]:
    """The same command each time: slow enough to be killed."""
    config = state.parent / "forwarder.yaml"
    config.write_text(ONE_BY_ONE)
    target = [
        "--config",
        str(config),
        "--upstream",
        service.url,
        "--api-key",
        KEY,
        "--state",
        str(state),
        "--rate",
        "2000",
        "--yes",
    ]
    return ["import", "native", *map(str, paths), "--sort", *target]


async def killed_when(
    service: RunningSandbox, paths: list[Path], state: Path, condition: Callable[[], bool]
) -> None:
    """A life of it until the condition holds."""
    async with Killable.living(command(service, paths, state), state.parent / "log") as importer:
        await eventually(
            lambda: importer.ended or condition(), explain=(state.parent / "log").read_text
        )
        assert await importer.killed() == -9, (state.parent / "log").read_text()


def is_settled(state: Path, records: int) -> bool:
    """Whether a checkpoint says that so many are."""
    saved = read_checkpoint(state)
    return saved is not None and saved.books.read >= records


def seen(state: Path) -> ImportCheckpoint:
    """The last checkpoint."""
    saved = read_checkpoint(state)
    assert saved is not None
    return saved
