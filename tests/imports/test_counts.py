"""The counts of a running import, in the order of the source and in that of time."""

from __future__ import annotations

import gzip
import random
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import count, groupby
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forwarder.core.errors import ConfigurationError
from forwarder.imports.counts import SourceOrderCounts, TimeOrderCounts
from forwarder.imports.job import contents_of
from forwarder.sources.files.records import BrokenSource, ReadOptions, SourceChanged, SourceFile
from forwarder.sources.files.source import FileSource, open_source
from forwarder.sources.imports.books import FateKind, ImportTotals, RecordBooks, RecordFate, RefusalExample
from forwarder.sources.imports.checkpoint import ImportCheckpoint, SourceContent, StateFolder, read_checkpoint
from forwarder.sources.imports.columns import FinishedEvent
from forwarder.sources.imports.conversion import EventFilters, EventSelection, ImportDeadLetter, open_conversion
from forwarder.sources.imports.day_batches import BatchLimits
from forwarder.sources.imports.finishing import FinishPolicy
from forwarder.sources.imports.formats.native import NativeConverter
from forwarder.sources.imports.ledger import NamedBooks, SortedLedger
from forwarder.sources.imports.planning import (
    BatchReady,
    FileEnded,
    FileStarted,
    PlanStep,
    RecordsRead,
    SortedEventsRead,
    SortedPlan,
    SortFinished,
    SortProgress,
    least_room,
    plan_steps,
)
from forwarder.sources.imports.repeats import Repeats
from forwarder.sources.imports.sorting import FILE, SPOOL, EventSpool, SortLimits, SpoolDamaged
from tests.imports.imports import JOB, line, uuid_of, write

CONTENTS = [SourceContent("a", 1, "aa"), SourceContent("b", 1, "bb")]
SAID_NO = RecordFate(FateKind.REFUSED, "refused", RefusalExample("a", 1, "no"))


def source_counts(saved: ImportCheckpoint | None = None) -> SourceOrderCounts:
    """Of a job of two files."""
    return SourceOrderCounts(JOB, 5.0, CONTENTS, saved)


def read(file: int, counts: list[int], digest: str = "") -> RecordsRead:
    """Records that send so many events each; those that send none are repeats."""
    return RecordsRead(file, counts, {at: RecordFate(FateKind.REPEAT) for at, count in enumerate(counts) if not count}, {}, (), digest)


def event(file: int, number: int) -> FinishedEvent:
    """An event of a record."""
    return FinishedEvent(number, "ann", "seen", uuid_of(100 * file + number), b"", file, number + 1, number)


def begun(it: SourceOrderCounts, files: str = "ab") -> None:
    """Files that are read."""
    for number, name in enumerate(files):
        it.take(FileStarted(number, SourceFile(name, name * 2)))


def test_a_batch_over_several_files_settles_each_of_its_records() -> None:
    """In whatever order its events are, and batches are settled."""
    it = source_counts()
    begun(it)
    it.take(read(0, [1, 1, 0]))
    it.take(read(1, [1, 1]))
    it.settle([event(0, 1), event(1, 0)])
    assert (it.settled, it.in_flight, it.delivered, it.pending) == (1, 2, 2, 3 + 1 + 1)
    it.settle([event(1, 1), event(0, 0)])
    assert it.books == RecordBooks(read=5, delivered=4, repeats=1)
    assert (it.in_flight, it.delivered, it.pending) == (0, 4, 0)


def test_what_the_service_refuses_is_counted_so() -> None:
    """It isn't delivered, and isn't in flight any more."""
    it = source_counts()
    begun(it, "a")
    it.take(read(0, [1, 1]))
    it.settle([event(0, 0)], SAID_NO)
    it.settle([event(0, 1)])
    assert it.books == RecordBooks(read=2, delivered=1, refused={"refused": 1})
    assert (it.in_flight, it.delivered) == (0, 1)
    assert it.totals.examples["refused"][0].detail == "no"


def test_a_checkpoint_has_files_in_their_order(tmp_path: Path) -> None:
    """Those that are done, those that aren't, and those of earlier runs that haven't begun again."""
    it = source_counts()
    begun(it)
    it.take(read(0, [1], "digest of a"))
    it.take(read(1, [1], "digest of b"))
    it.take(FileEnded(1))
    it.settle([event(1, 0)])
    folder = StateFolder(tmp_path)
    folder.save(it.checkpoint(6.0))
    folder.close()
    saved = read_checkpoint(tmp_path)
    assert saved is not None
    assert [(file.name, file.books.read, file.read, file.complete, file.digest) for file in saved.files] == [
        ("a", 0, 1, False, ""),
        ("b", 1, 1, True, "digest of b"),
    ]
    assert not saved.complete
    again = source_counts(saved)
    assert {name: each.records for name, each in again.saved().items()} == {"a": 0, "b": 1}
    again.take(FileStarted(0, SourceFile("a", "aa")))
    assert [(file.name, file.books.read) for file in again.checkpoint(7.0).files] == [("a", 0), ("b", 1)]
    assert again.books == RecordBooks(read=1, delivered=1)
    assert again.checkpoint(7.0).started_at == 5.0


def test_a_run_goes_on_counting_where_the_last_one_ended() -> None:
    """In the books of the file, in those of all, and by day; nothing is counted twice."""
    first = source_counts()
    begun(first, "a")
    first.take(read(0, [1, 1]))
    first.settle([event(0, 0)])
    second = source_counts(first.checkpoint(6.0))
    begun(second, "a")
    second.take(read(0, [1]))
    second.settle([event(0, 1)])
    second.take(FileEnded(0))
    second.exhausted = True
    saved = second.checkpoint(7.0)
    assert saved.complete
    assert saved.books == second.books == RecordBooks(read=2, delivered=2)
    assert saved.totals.days["1970-01-01"].delivered == 2
    assert second.delivered == 1


def test_a_file_that_is_read_again_isn_t_done_before_its_end() -> None:
    """It may be broken now; and what it has more than it had is taken too."""
    first = source_counts()
    begun(first, "a")
    first.take(read(0, [1]))
    first.take(FileEnded(0))
    first.settle([event(0, 0)])
    saved = first.checkpoint(6.0)
    assert saved.files[0].complete
    second = source_counts(saved)
    begun(second, "a")
    second.take(read(0, [1, 1]))
    second.settle([event(0, 1)])
    second.settle([event(0, 2)])
    assert not second.checkpoint(7.0).files[0].complete
    second.take(FileEnded(0, BrokenSource("a", 1, "cut off")))
    assert not second.checkpoint(7.0).files[0].complete


def test_what_isn_t_open_can_t_be_settled() -> None:
    """A mistake that must not go unseen."""
    it = source_counts()
    begun(it, "a")
    it.take(read(0, [1]))
    with pytest.raises(ValueError, match="aren't open"):
        it.settle([event(0, 1)])


def test_very_many_files_cost_nothing_but_their_checkpoint() -> None:
    """What is asked twice a second doesn't look at each of them."""
    it = source_counts()
    for number in range(2000):
        it.take(FileStarted(number, SourceFile(f"f{number}", "aa")))
        it.take(read(number, [1]))
        it.take(FileEnded(number))
        it.settle([event(number, 0)])
    assert it.books is it.books
    assert it.settled == 2000
    assert not it._open
    assert len(it.checkpoint(6.0).files) == 2000


READING = ReadOptions(block_bytes=900)
"""Some six records a block."""
SORT = SortLimits(memory=8_000, runs=2)
"""Some ten events a run."""
LIMITS = BatchLimits(100_000, 4)
REJECTED = "rejected_400"
Key = tuple[int, int, int]
"""Of a dead letter."""


def keys(refused: Sequence[ImportDeadLetter]) -> set[Key]:
    """What tells dead letters apart."""
    return {(each.file_number, each.number, each.part) for each in refused}


class Service:
    """Settles what it is given by the order that a test wants, and refuses some events for good."""

    def __init__(self, refused: frozenset[str] = frozenset()) -> None:
        self.refused = refused
        self.arrived: list[FinishedEvent] = []

    def take(self, counts: SourceOrderCounts | TimeOrderCounts, events: Sequence[FinishedEvent]) -> None:
        """Settle a batch, what is refused of it by itself."""
        for refused, part in groupby(events, key=lambda event: event.uuid in self.refused):
            of_part = list(part)
            first = of_part[0]
            fate = RecordFate(FateKind.REFUSED, REJECTED, RefusalExample(counts.name_of(first.file), first.line, "no")) if refused else None
            if not refused:
                self.arrived += of_part
            counts.settle(of_part, fate)


class Run:
    """One run of a sorted import in a state folder, from its last checkpoint on."""

    def __init__(self, source: FileSource, folder: Path, filters: EventFilters | None = None) -> None:
        self.source = source
        self.folder = folder
        self.filters = filters or EventFilters()
        self.room = 0
        self.counts = TimeOrderCounts(JOB, 1.0, contents_of(source), read_checkpoint(folder))
        self.refused: list[ImportDeadLetter] = []
        self.broken: list[BrokenSource] = []
        self.flying: list[Sequence[FinishedEvent]] = []
        """Batches that aren't settled."""
        self.left: list[FinishedEvent] = []
        """Events in the order in which they left."""
        self.days: list[int] = []
        """Of the batches, in that order."""

    def steps(self, repeats: Repeats) -> Generator[PlanStep]:
        """The plan."""
        conversion = open_conversion(
            NativeConverter("set_once"), FinishPolicy("set_once", False, JOB.id), 1_000_000, EventSelection(self.filters, repeats)
        )
        spool = EventSpool(self.folder, JOB)
        saved, at = self.counts.saved(), self.counts.spool
        return SortedPlan(self.source, conversion, spool, saved, at, limits=LIMITS, sort=SORT, room=self.room).steps()

    def take(self, step: PlanStep) -> None:
        """What the engine does with a step."""
        match step:
            case BatchReady(batch=batch):
                self.flying.append(batch.events)
                self.left += batch.events
                self.days.append(batch.day)
                return
            case RecordsRead(refused=refused):
                self.refused += refused
            case FileEnded(broken=BrokenSource() as broken):
                self.broken.append(broken)
        self.counts.take(step)

    def save(self) -> ImportCheckpoint:
        """Write a checkpoint, and read it back, which checks its books."""
        folder = StateFolder(self.folder)
        try:
            folder.save(self.counts.checkpoint(2.0))
        finally:
            folder.close()
        saved = read_checkpoint(self.folder)
        assert saved is not None
        return saved

    def finish(self, service: Service) -> ImportCheckpoint:
        """All of it at once, batch by batch."""
        with Repeats(self.folder) as repeats:
            for step in self.steps(repeats):
                self.take(step)
                while self.flying:
                    service.take(self.counts, self.flying.pop(0))
        self.counts.exhausted = not self.broken
        return self.save()


@contextmanager
def opened(*paths: Path) -> Iterator[FileSource]:
    """The source of these files."""
    with open_source([str(path) for path in paths], READING) as source:
        yield source


def unsorted(source: FileSource, folder: Path, service: Service) -> tuple[ImportCheckpoint, set[Key]]:
    """What an import that isn't sorted counts, and its dead letters: the model."""
    folder.mkdir()
    letters: set[Key] = set()
    counts = SourceOrderCounts(JOB, 1.0, contents_of(source), None)
    with Repeats(folder) as repeats:
        conversion = open_conversion(
            NativeConverter("set_once"), FinishPolicy("set_once", False, JOB.id), 1_000_000, EventSelection(EventFilters(), repeats)
        )
        for step in plan_steps(source, conversion, {}, LIMITS):
            if isinstance(step, BatchReady):
                service.take(counts, step.batch.events)
                continue
            if isinstance(step, RecordsRead):
                letters |= keys(step.refused)
            counts.take(step)
    counts.exhausted = True
    return counts.checkpoint(2.0), letters


def body(*events: bytes) -> bytes:
    """A record with several events."""
    return b'{"batch":[' + b",".join(events) + b"]}"


def nameless(number: int) -> bytes:
    """An event that the format refuses."""
    return msgspec.json.encode({"distinct_id": f"p{number}", "uuid": uuid_of(number), "timestamp": "2024-01-01T00:00:00Z"})


def some_files(folder: Path, seed: int) -> list[Path]:
    """Two files in no order: single events, bodies of several of several days, repeats, and records that are refused whole or in part."""
    rng = random.Random(seed)
    numbers = iter(range(10_000))
    paths = []
    for name in ("a.jsonl", "b.jsonl"):
        records: list[bytes] = []
        for _ in range(rng.randrange(2, 25)):
            kind = rng.randrange(8)
            if kind == 0:
                records.append(body(*[line(next(numbers), rng.randrange(4), "one of few") for _ in range(rng.randrange(1, 4))]))
            elif kind == 1:
                good = [line(next(numbers), rng.randrange(4)) for _ in range(rng.randrange(1, 3))]
                records.append(body(nameless(next(numbers)), *good))
            elif kind == 2:
                records.append(rng.choice([b"no json", nameless(next(numbers)), body(nameless(next(numbers)))]))
            elif kind == 3 and records:
                records.append(rng.choice(records))
            else:
                records.append(line(next(numbers), rng.randrange(4)))
        paths.append(write(folder / name, records))
    return paths


def books(checkpoint: ImportCheckpoint) -> list[tuple[str, RecordBooks, bool, str]]:
    """What is to be the same of files however they are imported."""
    return [(state.name, state.books, state.complete, state.digest) for state in checkpoint.files]


def counts(totals: ImportTotals) -> ImportTotals:
    """What is to be the same of the totals: not the choice of examples."""
    return msgspec.structs.replace(totals, examples={}, names=dict(sorted(totals.names.items())), days=dict(sorted(totals.days.items())))


def check_is_as_unsorted(found: ImportCheckpoint, model: ImportCheckpoint) -> None:
    """All that is counted in the end is what an import counts that isn't sorted."""
    assert books(found) == books(model)
    assert counts(found.totals) == counts(model.totals)
    assert found.totals.examples.keys() == model.totals.examples.keys()
    assert found.complete


def check_order(events: Sequence[FinishedEvent]) -> None:
    """From the oldest to the newest, and of one time as the source has them."""
    places = [(event.time, event.file, event.number, event.part) for event in events]
    assert places == sorted(places)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10_000), st.lists(st.integers(1, 100), max_size=4), st.sets(st.integers(0, 40), max_size=12), st.randoms())
def test_killed_anywhere_it_counts_what_an_unsorted_import_counts(
    seed: int, lives: list[int], refused: set[int], chance: random.Random
) -> None:
    """Whatever is settled in whatever order, and after how many steps it is killed: each checkpoint balances, nothing is lost or counted
    twice, and what comes twice was in flight when it was killed.
    """
    with TemporaryDirectory() as name:
        place, state = Path(name), Path(name) / "state"
        state.mkdir()
        service, model = Service(frozenset(map(uuid_of, refused))), Service(frozenset(map(uuid_of, refused)))
        letters: set[Key] = set()
        may_come_again: Counter[str] = Counter()
        with opened(*some_files(place, seed)) as source:
            expected, expected_letters = unsorted(source, place / "model", model)
            for life in [*lives, 0]:
                run = Run(source, state)
                came = len(service.arrived)
                found = live(run, service, chance, life)
                letters |= keys(run.refused)
                settled = 0 if found is None or found.spool is None else found.spool.settled
                may_come_again.update(event.uuid for event in service.arrived[came:] if event.turn >= settled)
        assert found is not None
        check_is_as_unsorted(found, expected)
        assert letters == expected_letters
        arrived = Counter(event.uuid for event in service.arrived)
        assert arrived.keys() == {event.uuid for event in model.arrived}
        assert all(count <= 1 + may_come_again[uuid] for uuid, count in arrived.items())


def live(run: Run, service: Service, chance: random.Random, life: int) -> ImportCheckpoint | None:
    """A run that reads, settles and saves in any order, and is killed after so many steps, unless that is 0; its last checkpoint."""
    with Repeats(run.folder) as repeats, closing(run.steps(repeats)) as plan:
        done = at_end = False
        for turn in count(1):
            done = at_end and not run.flying
            if done or turn == life:
                break
            choice = chance.randrange(4)
            if run.flying and (at_end or choice == 0):
                service.take(run.counts, run.flying.pop(chance.randrange(len(run.flying))))
            elif choice == 1:
                run.save()
            else:
                step = next(plan, None)
                at_end = step is None
                if step is not None:
                    run.take(step)
    check_order(run.left)
    assert run.days == sorted(run.days)
    if done:
        run.counts.exhausted = True
        assert not run.counts.in_flight
        assert not run.counts.pending
        run.save()
    return read_checkpoint(run.folder)


def test_nothing_is_sorted_before_what_was_refused_is_kept(tmp_path: Path) -> None:
    """A run that finds sorted events doesn't read the source: whoever takes the steps has kept all that is refused by then."""
    with opened(write(tmp_path / "a.jsonl", [b"no json", line(1)])) as source, Repeats(tmp_path) as repeats:
        run = Run(source, tmp_path)
        seen: list[type[PlanStep]] = []
        for step in run.steps(repeats):
            seen.append(type(step))
            run.take(step)
            assert SortFinished in seen or not (tmp_path / FILE).exists()
        assert seen == [FileStarted, RecordsRead, FileEnded, SortProgress, SortProgress, SortFinished, SortedEventsRead, BatchReady]


def test_a_checkpoint_while_it_sorts_counts_nothing(tmp_path: Path) -> None:
    """What is refused while it is read counts when the events are sorted: else a run that sorts again would count it twice."""
    with opened(write(tmp_path / "a.jsonl", [b"no json", *map(line, range(30))])) as source, Repeats(tmp_path) as repeats:
        run = Run(source, tmp_path)
        for step in run.steps(repeats):
            run.take(step)
            saved = run.save()
            if isinstance(step, SortFinished):
                break
            assert (saved.files, saved.spool, saved.books) == ([], None, RecordBooks())
            assert isinstance(step, FileStarted) or run.counts.doing.startswith("it sorts before it sends: ")
        assert saved.books == RecordBooks(1, refused={"not_json": 1})
        assert run.counts.doing == ""


def test_a_run_that_goes_on_reads_nothing_of_the_source(tmp_path: Path) -> None:
    """It goes on in the sorted events, at the first that isn't settled."""
    path = write(tmp_path / "a.jsonl", [line(number, number * 7 % 4) for number in range(30)])
    service = Service()
    with opened(path) as source, Repeats(tmp_path) as repeats:
        run = Run(source, tmp_path)
        for step in run.steps(repeats):
            run.take(step)
            if len(run.flying) == 2:
                break
        service.take(run.counts, run.flying[0])
        run.save()
        path.unlink()
        found = Run(source, tmp_path).finish(service)
    assert found.books == RecordBooks(30, 30)
    assert len(service.arrived) == 30
    check_order(service.arrived)


def test_sorted_events_that_are_lost_are_sorted_again(tmp_path: Path) -> None:
    """And it goes on where it stands; also after the disk has changed them."""
    paths = some_files(tmp_path, 3)
    with opened(*paths) as source:
        expected, _ = unsorted(source, tmp_path / "model", Service())
        for is_lost in (True, False):
            state = tmp_path / f"lost {is_lost}"
            state.mkdir()
            service = Service()
            half_done(Run(source, state), service)
            if is_lost:
                (state / SPOOL).unlink()
            else:
                (state / SPOOL).write_bytes((state / SPOOL).read_bytes()[:-9])
                with pytest.raises(SpoolDamaged):
                    Run(source, state).finish(Service())
            check_is_as_unsorted(Run(source, state).finish(service), expected)
            assert len(service.arrived) == len({event.uuid for event in service.arrived})


def test_other_events_are_never_taken_for_those_that_were_sorted(tmp_path: Path) -> None:
    """If sorting again gives others, the numbers of a checkpoint mean nothing: it is refused, and the checkpoint stays."""
    path = write(tmp_path / "a.jsonl", [line(number, number * 7 % 4) for number in range(30)])
    with opened(path) as source:
        half_done(Run(source, tmp_path), Service())
    (tmp_path / SPOOL).unlink()
    write(path, [line(number, number * 5 % 4) for number in range(30)])
    before = read_checkpoint(tmp_path)
    assert before is not None
    with opened(path) as source:
        run = Run(source, tmp_path)
        with pytest.raises(SourceChanged, match="sorted again, and its events aren't those"):
            run.finish(Service())
        assert msgspec.structs.replace(run.save(), contents=before.contents) == before


def test_a_file_that_is_broken_is_settled_as_far_as_it_goes_and_the_rest_later(tmp_path: Path) -> None:
    """The next run sorts what it can read beyond that, and nothing a second time; each run says what is broken."""
    pads = [random.Random(number).randbytes(200).hex() for number in range(40)]
    content = gzip.compress(b"".join(line(number, number * 7 % 4, pad=pad) + b"\n" for number, pad in enumerate(pads)))
    path, other = tmp_path / "a.jsonl.gz", write(tmp_path / "b.jsonl", [line(100), line(101)])
    path.write_bytes(content[: len(content) // 2])
    service = Service()
    for life in range(3):
        with opened(path, other) as source:
            run = Run(source, tmp_path)
            saved = run.finish(service)
            assert ([each.file for each in run.broken], saved.complete) == (([str(path)], False) if life < 2 else ([], True))
            assert [file.complete for file in saved.files] == [life == 2, True]
            assert saved.books == RecordBooks(len(service.arrived), len(service.arrived))
            assert (2 < len(service.arrived) < 42) if life < 2 else (len(service.arrived) == 42)
        if life == 1:
            path.write_bytes(content)
    assert len({event.uuid for event in service.arrived}) == 42


def test_a_run_that_goes_on_says_what_is_broken_too(tmp_path: Path) -> None:
    """It doesn't read the file, but knows that it couldn't be read to its end: the import isn't complete."""
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b"".join(line(number, number % 4) + b"\n" for number in range(40)))[:-8])
    with opened(path) as source:
        half_done(Run(source, tmp_path), Service())
        run = Run(source, tmp_path)
        assert not run.finish(Service()).complete
        assert [each.file for each in run.broken] == [str(path)]


def test_a_limit_counts_events_in_the_order_of_the_source(tmp_path: Path) -> None:
    """It is taken while the source is read, so what is left are the first events of the files, not the oldest of all."""
    paths = [write(tmp_path / "a.jsonl", [line(number, 9 - number) for number in range(10)]), write(tmp_path / "b.jsonl", [line(50, 0)])]
    service = Service()
    with opened(*paths) as source:
        found = Run(source, tmp_path, EventFilters(limit=4)).finish(service)
    assert [event.uuid for event in service.arrived] == [uuid_of(number) for number in (3, 2, 1, 0)]
    assert found.complete


def test_the_room_that_it_takes_is_known_from_the_files(tmp_path: Path) -> None:
    """What is compressed counts as it is, text by a tenth of it: no more than it will take, for an import that has room isn't refused."""
    for name in ("a.jsonl", "b.JSONL.gz"):
        (tmp_path / name).write_bytes(bytes(1_000))
    with opened(tmp_path / "a.jsonl", tmp_path / "b.JSONL.gz") as source, Repeats(tmp_path) as repeats:
        assert least_room(source) == 1_100
        run = Run(source, tmp_path)
        run.room = 1 << 50
        with pytest.raises(ConfigurationError, match="at least"):
            list(run.steps(repeats))


def test_a_record_is_refused_if_one_of_its_events_was_also_in_an_earlier_run(tmp_path: Path) -> None:
    """The service refused the first of them; the last arrives after a kill."""
    path = write(tmp_path / "a.jsonl", [body(line(1, 0), line(2, 1)), line(3, 1)])
    service = Service(frozenset({uuid_of(1)}))
    with opened(path) as source:
        half_done(Run(source, tmp_path), service)
        found = Run(source, tmp_path).finish(service)
    assert found.books == RecordBooks(2, 1, refused={REJECTED: 1})
    assert [event.uuid for event in service.arrived] == [uuid_of(2), uuid_of(3)]


def test_of_events_of_one_time_the_one_that_stands_last_settles_the_record(tmp_path: Path) -> None:
    """It leaves last; so a record of which just that one is refused is refused, and not delivered."""
    path = write(tmp_path / "a.jsonl", [body(line(1), line(1).replace(uuid_of(1).encode(), uuid_of(2).encode()))])
    with opened(path) as source:
        found = Run(source, tmp_path).finish(Service(frozenset({uuid_of(2)})))
    assert found.books == RecordBooks(1, refused={REJECTED: 1})
    assert found.spool is not None
    assert found.spool.refused == []


def test_an_event_that_isnt_open_cant_be_settled() -> None:
    """Not one that wasn't read, and none twice: that would be an error in counting, which nobody must miss."""
    position = SortedLedger([NamedBooks("a.jsonl", RecordBooks())], ImportTotals(), RecordBooks())
    position.opened(3, {})
    events = [FinishedEvent(turn, "someone", "seen", uuid_of(turn), b"", 0, turn, turn, 0, turn) for turn in range(4)]
    position.settle(events[1:2])
    for wrong in (events[1:2], events[3:4]):
        with pytest.raises(ValueError, match="aren't open"):
            position.settle(wrong)
    position.settle([events[0], events[2]])
    assert (position.settled, position.pending) == (3, 0)
    with pytest.raises(ValueError, match="aren't open"):
        position.settle(events[:1])


def half_done(run: Run, service: Service) -> None:
    """A run that is killed when half of its batches are settled, and that is saved."""
    with Repeats(run.folder) as repeats:
        for step in run.steps(repeats):
            run.take(step)
    for events in run.flying[: len(run.flying) // 2]:
        service.take(run.counts, events)
    saved = run.save()
    assert saved.spool is not None
    assert 0 < saved.spool.settled < saved.spool.entries
