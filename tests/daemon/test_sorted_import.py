"""A sorted import with its pipeline: nothing leaves before all is sorted, and then the oldest
first, wherever it is stopped or killed.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from threading import Event

import msgspec
import pytest

from forwarder.core.event import Batch
from forwarder.core.outcome import Reply
from forwarder.delivery.batching import BatchPolicy
from forwarder.sources.files.source import FileSource
from forwarder.sources.imports.blocks import ChunkLimits, ImportBlock
from forwarder.sources.imports.checkpoint import ImportCheckpoint
from forwarder.sources.imports.conversion import Conversion
from forwarder.sources.imports.import_books import RecordBooks, digest_hex, uuid_hashes
from forwarder.sources.imports.sorting import FILE, EventSorter, EventSpool, sorted_blocks
from forwarder.sources.imports.times import date_of
from tests.daemon.imports import (
    FIRST_DAY,
    JOB,
    OK,
    ScriptedSink,
    Setting,
    events_in,
    line,
    uuid_of,
    write,
)
from tests.support.waiting import LIMIT

REFUSED = Reply(400, "text/plain", body=b"no")


class SortedSetting(Setting):
    """An import with `--sort`."""

    goes_on: Event | None = None
    """Everything is read and nothing is in order yet until this is set."""

    def blocks(
        self,
        source: FileSource,
        conversion: Conversion,
        checkpoint: ImportCheckpoint,
        limits: ChunkLimits,
    ) -> Generator[ImportBlock]:
        spool = EventSpool(self.state, JOB)
        sorter = EventSorter(self.state, memory=20_000, runs=2)
        return sorted_blocks(
            source,
            conversion,
            spool,
            checkpoint.settled,
            checkpoint.spool,
            limits,
            doing=self.does,
            sorter=sorter,
        )

    def does(self, what: str) -> None:
        """It does this before it sends."""
        self.doing = what
        if self.goes_on is not None and "in order" in what:
            assert self.goes_on.wait(LIMIT)


def shuffled(folder: Path, count: int = 60, seed: int = 1) -> Path:
    """A file with events of six days in no order, and a record that is none among them."""
    numbers = list(range(count))
    random.Random(seed).shuffle(numbers)
    lines = [
        line(number, number * 6 // count, f"p{number % 7}", pad="x" * 400) for number in numbers
    ]
    return write(folder / "a.jsonl", [*lines[: count // 2], b"no json", *lines[count // 2 :]])


async def test_all_is_sorted_before_the_first_event_leaves(tmp_path: Path) -> None:
    """Meanwhile the progress says so; then the days go one after the other."""
    setting = SortedSetting([shuffled(tmp_path)], tmp_path / "state", concurrency=1)
    await setting.run()
    assert setting.service.uuids == [uuid_of(number) for number in range(60)]
    assert setting.saved is not None
    assert setting.saved.complete
    assert setting.saved.books == RecordBooks(61, 60, refused={"undecodable": 1})
    assert setting.letters == [(f"{tmp_path}/a.jsonl:31", "undecodable")]
    waited = {
        progress.waiting.split(":")[0] for progress in setting.reported if not progress.events
    }
    assert "it sorts before it sends" in waited
    assert setting.reported[-1].waiting == ""


@pytest.mark.parametrize("events", [4, 60])
async def test_dead_letters_that_cant_be_kept_hold_up_the_sorting(
    tmp_path: Path, events: int
) -> None:
    """A run that finds sorted events reads no source: so nothing is sorted before each record that
    is refused is kept.
    """
    setting = SortedSetting([shuffled(tmp_path, events)], tmp_path / "state")
    setting.fill_disk()
    looks = iter(range(100))

    async def mended(it: Setting) -> None:
        assert it.letters or not (it.state / FILE).exists()
        if next(looks, None) is None:
            it.make_room()

    await setting.run(mended)
    assert "No space left" in setting.reported[50].waiting
    assert len(setting.letters) == 1
    assert len(setting.service.uuids) == events


async def test_stopped_while_it_sorts_it_ends_soon_and_begins_again(tmp_path: Path) -> None:
    """Nothing was sent, nothing counts yet, and nothing of it is left but what was refused."""
    setting = SortedSetting([shuffled(tmp_path, 400)], tmp_path / "state")
    goes_on = setting.goes_on = Event()

    async def stop(it: Setting) -> None:
        if it.letters:
            it.pipeline.stop()
            goes_on.set()

    await setting.run(stop)
    assert setting.saved is not None
    assert (setting.saved.books, setting.saved.spool, setting.service.sent) == (
        RecordBooks(),
        None,
        [],
    )
    assert not list(setting.state.glob("sort*"))
    await setting.run()
    assert setting.saved.complete or setting.saved.books.read == 401
    assert sorted(setting.service.uuids) == sorted(uuid_of(number) for number in range(400))


async def test_an_event_that_never_arrives_holds_up_only_what_memory_may_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What overtakes it can't be counted: then no more is read than the block of some 300 events
    that was begun.
    """
    monkeypatch.setattr("forwarder.sources.imports.source.MAX_PENDING", 20)
    stuck = uuid_of(2)

    def answer(batch: Batch) -> Reply | None:
        return None if any(event["uuid"] == stuck for event in events_in(batch)) else OK

    path = write(
        tmp_path / "a.jsonl", [line(number, number // 100) for number in reversed(range(2_000))]
    )
    service = ScriptedSink(answer)
    setting = SortedSetting(
        [path],
        tmp_path / "state",
        service=service,
        batches=BatchPolicy(100_000, 50, 1.0, by_day=True),
    )
    quiet: Counter[int] = Counter()

    async def stop(it: Setting) -> None:
        quiet[len(it.service.sent)] += bool(it.service.sent)
        if quiet[len(it.service.sent)] == 100:
            it.pipeline.stop()

    await setting.run(stop)
    assert setting.saved is not None
    assert setting.saved.spool is not None
    assert setting.saved.spool.settled == 0
    assert 0 < len(setting.service.uuids) < 600
    assert setting.pipeline._source._watermark.window < 600


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
async def test_killed_again_and_again_under_a_service_in_a_bad_mood_all_arrives(
    tmp_path: Path, seed: int
) -> None:
    """It fails, slows down, and refuses some events for good: in the end each event has arrived,
    or is a dead letter, and the books say so. First arrivals of a person come in the order of time.
    """
    mood = random.Random(seed)
    refused = {uuid_of(number) for number in mood.sample(range(120), 6)}

    def answer(batch: Batch) -> Reply:
        if mood.random() < 0.2:
            return Reply(mood.choice([500, 503, 429]), "text/plain", body=b"later")
        return REFUSED if any(event["uuid"] in refused for event in events_in(batch)) else OK

    setting = SortedSetting(
        [shuffled(tmp_path, 120, seed)], tmp_path / "state", service=ScriptedSink(answer)
    )

    async def kill(it: Setting) -> None:
        if mood.random() < 0.06:
            it.kill()

    for _ in range(4):
        await setting.run(kill)
    await setting.run()
    saved = setting.saved
    assert saved is not None
    assert saved.complete
    assert saved.books.difference == 0
    assert (saved.books.read, saved.books.delivered, sum(saved.books.refused.values())) == (
        121,
        114,
        7,
    )
    assert set(setting.service.uuids) == {uuid_of(number) for number in range(120)} - refused
    assert len(setting.letters) == 7
    assert sum(day.delivered for day in saved.totals.days.values()) == 114
    assert sum(day.source for day in saved.totals.days.values()) == 120
    for day in range(6):
        arrived = [
            uuid_of(number)
            for number in range(20 * day, 20 * day + 20)
            if uuid_of(number) not in refused
        ]
        assert saved.totals.days[date_of(FIRST_DAY + day)].uuids == digest_hex(uuid_hashes(arrived))
    check_order(setting.service)


def check_order(service: ScriptedSink) -> None:
    """The first arrivals of each person are in the order of time."""
    seen: Counter[str] = Counter()
    last: dict[str, str] = {}
    for data in service.taken:
        event = msgspec.json.decode(data)
        seen[event["uuid"]] += 1
        if seen[event["uuid"]] == 1:
            assert last.get(event["distinct_id"], "") <= event["timestamp"]
            last[event["distinct_id"]] = event["timestamp"]
