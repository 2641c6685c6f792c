"""What is settled of an import, in the order of the source and in that of time."""

from __future__ import annotations

import gzip
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forwarder.sources.files.record_blocks import BrokenSource, SourceFile
from forwarder.sources.imports.blocks import ChunkLimits, ImportBlock
from forwarder.sources.imports.checkpoint import ImportCheckpoint, SourceChanged, read_checkpoint
from forwarder.sources.imports.columns import EventColumns, EventKey, FinishedEvent
from forwarder.sources.imports.conversion import ConvertedRecords
from forwarder.sources.imports.import_books import (
    DayTally,
    FateKind,
    RecordBooks,
    RecordFate,
    RefusalExample,
    digest_hex,
    uuid_hashes,
)
from forwarder.sources.imports.sorting import SPOOL
from forwarder.sources.imports.source import ImportLedger
from forwarder.sources.imports.times import DAY, day_of
from tests.sources.imports.lives import (
    JOB,
    REJECTED,
    ImportLife,
    body,
    life,
    line,
    nameless,
    uuid_of,
    write,
)

LIMITS = ChunkLimits(100_000, 4)
FILES = {0: SourceFile("a", "aa"), 1: SourceFile("b", "bb")}
NO_TIME = RecordFate(
    FateKind.REFUSED, "missing_timestamp", RefusalExample("a", 2, "there is no time")
)
EITHER = pytest.mark.parametrize("sort", [False, True])


def event(number: int, day: int = 0, *, file: int = 0, part: int = 0) -> FinishedEvent:
    """An event with a uuid and a time of its own."""
    uuid = str(UUID(int=1_000 * file + 10 * number + part))
    return FinishedEvent(
        day * DAY + number,
        "someone",
        "seen",
        uuid,
        b'{"n":%d}' % number,
        file,
        number + 1,
        number,
        part,
    )


def block(
    first: int,
    *events: FinishedEvent,
    file: int = 0,
    digest: str = "",
    counts: Sequence[int] = (),
    fates: dict[int, RecordFate] | None = None,
    partly: dict[int, RecordFate] | None = None,
) -> ImportBlock:
    """Neighbouring records of a file; by default each is one event."""
    made = ConvertedRecords(
        list(counts) or [1] * len(events),
        fates or {},
        partly or {},
        events=EventColumns.of(events),
        first=first,
    )
    import_block = ImportBlock(FILES, file=file)
    import_block.take(made, LIMITS)
    import_block.digest = digest
    return import_block


def ledger(saved: ImportCheckpoint | None = None) -> ImportLedger:
    """A new one, or one that resumes from what was written."""
    if saved is None:
        return ImportLedger(ImportCheckpoint(JOB, 1.0, 1.0, []))
    return ImportLedger(msgspec.json.decode(msgspec.json.encode(saved), type=ImportCheckpoint))


def refuse(block: ImportBlock, *keys: EventKey) -> ImportBlock:
    """The service refused some of its events."""
    block.refuse(
        {
            key: RecordFate(
                FateKind.REFUSED, REJECTED, RefusalExample("a", 1, "the service said no")
            )
            for key in keys
        }
    )
    return block


def test_a_block_is_counted_once_it_is_passed() -> None:
    """In the books of its file and of all, by day, by name and by time; the position is what the
    file's books have read.
    """
    it = ledger()
    it.add(block(0, event(0), event(1), event(2, day=1)))
    it.add(block(0, event(0, file=1), file=1))
    [first, second] = it.checkpoint.files
    assert (first.name, first.identity, first.books, first.read) == (
        "a",
        "aa",
        RecordBooks(read=3, delivered=3),
        3,
    )
    assert second.books == RecordBooks(read=1, delivered=1)
    assert it.books == it.checkpoint.books == RecordBooks(read=4, delivered=4)
    assert {day: (tally.source, tally.delivered) for day, tally in it.totals.days.items()} == {
        "1970-01-01": (3, 3),
        "1970-01-02": (1, 1),
    }
    assert (it.totals.first, it.totals.last, it.totals.names, it.delivered) == (
        0,
        DAY + 2,
        {"seen": 4},
        4,
    )


def test_records_that_send_nothing_are_counted_by_their_reason() -> None:
    """Refused, left out, or a repeat; examples say where they stand."""
    fates = {
        1: NO_TIME,
        2: RecordFate(FateKind.LEFT_OUT, "--since"),
        3: RecordFate(FateKind.REPEAT),
    }
    it = ledger()
    it.add(block(0, event(0), counts=[1, 0, 0, 0], fates=fates))
    assert it.books == RecordBooks(
        read=4, delivered=1, refused={"missing_timestamp": 1}, left_out={"--since": 1}, repeats=1
    )
    assert it.totals.examples == {"missing_timestamp": [NO_TIME.example]}


def test_what_the_service_refuses_is_refused() -> None:
    """The source has it, and it isn't delivered; a record with one such event is a refused record,
    however many there are.
    """
    it = ledger()
    it.add(
        refuse(block(0, event(0), event(0, part=1), event(1), counts=[2, 1]), (0, 0, 0), (0, 0, 1))
    )
    assert it.books == RecordBooks(read=2, delivered=1, refused={REJECTED: 1})
    day = it.totals.days["1970-01-01"]
    assert (day.source, day.delivered, it.delivered) == (3, 1, 1)
    assert it.totals.examples == {REJECTED: [RefusalExample("a", 1, "the service said no")]}
    assert (it.totals.first, it.totals.names) == (1, {"seen": 1})


def test_a_record_of_which_the_format_refused_an_event_is_refused_once() -> None:
    """Its other events are delivered; that the service refuses one of them
    changes nothing of its reason.
    """
    for refused in ((), ((0, 0, 0),)):
        it = ledger()
        it.add(
            refuse(block(0, event(0), event(0, part=1), counts=[2], partly={0: NO_TIME}), *refused)
        )
        assert it.books == RecordBooks(read=1, refused={"missing_timestamp": 1})
        assert it.delivered == 2 - len(refused)


def test_a_block_of_which_nothing_arrives_leaves_no_trace_of_its_events() -> None:
    """Neither a name nor a time; the day has what the source has."""
    it = ledger()
    it.add(refuse(block(0, event(0)), (0, 0, 0)))
    assert (it.totals.names, it.totals.first, it.totals.last) == ({}, None, None)
    assert it.totals.days == {"1970-01-01": DayTally(source=1)}


def test_the_running_digest_is_that_at_the_position() -> None:
    """So a run that resumes can see that it resumes in the same file."""
    it = ledger()
    it.add(block(0, event(0), event(1), digest="digest of 2"))
    it.add(block(2, event(2), digest="digest of 3"))
    [file] = it.checkpoint.files
    assert (file.digested, file.digest) == (3, "digest of 3")


def test_a_file_is_complete_at_its_end() -> None:
    """Not before; when it is read again, not before its end; and not if it can't be read to it."""
    it = ledger()
    steps = [ImportBlock(FILES, file=0), block(0, event(0)), ImportBlock(FILES, file=0, ended=True)]
    known = []
    for step in (
        *steps,
        ImportBlock(FILES, file=0),
        block(1, event(1)),
        ImportBlock(FILES, file=0, broken=BrokenSource("a", 1, "cut off")),
    ):
        it.add(step)
        known.append(it.checkpoint.files[0].complete)
    assert known == [False, False, True, False, False, False]
    assert [failure.reason for failure in it.broken] == ["cut off"]


def test_no_more_is_repaired_than_was_refused() -> None:
    """Books that don't balance would make a checkpoint that can't be resumed; of a file and of all
    files it is the same record.
    """
    it = ledger()
    it.add(block(0, counts=[0], fates={0: NO_TIME}))
    it.add(block(0, counts=[0, 0], fates={0: NO_TIME, 1: NO_TIME}, file=1))
    for _ in range(2):
        it.count_repaired("a", 2)
    books, others = (file.books for file in it.checkpoint.files)
    assert (books.repaired, others.repaired, it.books.repaired) == (1, 0, 1)
    assert (books.unrepaired, books.difference, books.refused) == (0, 0, {"missing_timestamp": 1})


def test_a_checkpoint_has_files_in_their_order_and_resumes() -> None:
    """Those that ended, those that didn't, and those of earlier runs that haven't begun again.
    Nothing is counted twice.
    """
    it = ledger()
    for step in (
        block(0, event(0)),
        ImportBlock(FILES, file=0, ended=True),
        block(0, event(0, file=1), event(1, file=1), file=1),
    ):
        it.add(step)
    again = ledger(it.checkpoint)
    again.add(ImportBlock(FILES, file=0))
    assert [(file.name, file.books.read) for file in again.checkpoint.files] == [("a", 1), ("b", 2)]
    again.add(block(2, event(2, file=1), file=1))
    assert (again.checkpoint.files[1].books, again.books) == (RecordBooks(3, 3), RecordBooks(4, 4))
    assert (again.totals.days["1970-01-01"].delivered, again.delivered) == (4, 1)


def some_files(folder: Path, seed: int) -> list[Path]:
    """Two files in no order: single events, bodies of several of several days, repeats, and
    records that are refused whole or in part.
    """
    rng = random.Random(seed)
    numbers = iter(range(10_000))
    paths = []
    for name in ("a.jsonl", "b.jsonl"):
        records: list[bytes] = []
        for _ in range(rng.randrange(2, 25)):
            kind = rng.randrange(8)
            if kind == 0:
                records.append(
                    body(
                        *[
                            line(next(numbers), rng.randrange(4), "one of few")
                            for _ in range(rng.randrange(1, 4))
                        ]
                    )
                )
            elif kind == 1:
                good = [line(next(numbers), rng.randrange(4)) for _ in range(rng.randrange(1, 3))]
                records.append(body(nameless(next(numbers)), *good))
            elif kind == 2:
                records.append(
                    rng.choice([b"no json", nameless(next(numbers)), body(nameless(next(numbers)))])
                )
            elif kind == 3 and records:
                records.append(rng.choice(records))
            else:
                records.append(line(next(numbers), rng.randrange(4)))
        paths.append(write(folder / name, records))
    return paths


def counts(checkpoint: ImportCheckpoint) -> object:
    """What is to be the same in the end, in whatever order: not the choice of examples."""
    totals = checkpoint.totals
    files = [(state.name, state.books, state.complete, state.digest) for state in checkpoint.files]
    return (
        files,
        totals.days,
        Counter(totals.names),
        totals.first,
        totals.last,
        totals.examples.keys(),
        checkpoint.complete,
    )


def check_against(checkpoint: ImportCheckpoint, arrived: Sequence[FinishedEvent]) -> None:
    """What was counted by day, name and time is what has arrived, each once."""
    events = list({event.uuid: event for event in arrived}.values())
    assert checkpoint.totals.names == Counter(event.event for event in events)
    times = [event.time for event in events]
    assert (checkpoint.totals.first, checkpoint.totals.last) == (
        min(times, default=None),
        max(times, default=None),
    )
    days: dict[str, list[str]] = {}
    for event in events:
        days.setdefault(day_of(event.time), []).append(event.uuid)
    counted = {
        day: (tally.delivered, tally.uuids)
        for day, tally in checkpoint.totals.days.items()
        if tally.delivered
    }
    assert counted == {
        day: (len(uuids), digest_hex(uuid_hashes(uuids))) for day, uuids in days.items()
    }


@pytest.mark.slow
@EITHER
@settings(deadline=None, max_examples=30)
@given(
    st.integers(0, 10_000),
    st.lists(st.integers(1, 60), max_size=4),
    st.sets(st.integers(0, 40), max_size=12),
    st.randoms(),
)
def test_killed_anywhere_it_counts_what_one_run_counts(
    sort: bool, seed: int, lives: list[int], refused: set[int], chance: random.Random
) -> None:
    """Whatever is settled in whatever order, and after how many steps it is killed: each
    checkpoint balances, nothing is lost or counted twice, and what comes twice was in flight when
    it was killed, or settled behind such.
    """
    no = frozenset(map(uuid_of, refused))
    with TemporaryDirectory() as name:
        folder = Path(name)
        paths = some_files(folder, seed)
        with life(*paths, state=folder / "model", sort=False, refused=no) as model:
            expected = model.finish()
        arrived: list[FinishedEvent] = []
        letters: set[EventKey] = set()
        for steps in [*lives, 0]:
            with life(*paths, state=folder / "state", sort=sort, refused=no) as run:
                checkpoint = live(run, chance, steps)
            if sort:
                places = [(event.time, event.file, event.number, event.part) for event in run.left]
                assert places == sorted(places)
            arrived += run.arrived
            letters |= run.letters
        assert checkpoint is not None
        assert counts(checkpoint) == counts(expected)
        assert letters == model.letters
        assert {event.uuid for event in arrived} == {event.uuid for event in model.arrived}
        check_against(checkpoint, arrived)


def live(run: ImportLife, chance: random.Random, steps: int) -> ImportCheckpoint | None:
    """Read, settle and save in any order, so many steps long, or to the end if that is 0; the last
    checkpoint that was written.
    """
    saved = None
    at_end = False
    while not (at_end and not run.flying):
        choice = chance.randrange(12)
        if run.flying and (at_end or choice < 3):
            run.settle(chance.randrange(len(run.flying)))
        elif choice == 3:
            saved = run.save()
        else:
            at_end = run.read() is None
        steps -= 1
        if not steps:
            return saved
    return run.save()


def half_done(*paths: Path, state: Path, refused: frozenset[str] = frozenset()) -> ImportLife:
    """A sorted run that is killed when half of its blocks are settled, and that is saved."""
    with life(*paths, state=state, sort=True, refused=refused) as run:
        run.read_all()
        for _ in range(len(run.flying) // 2):
            run.settle()
        spool = run.save().spool
        assert spool is not None
        assert 0 < spool.settled < spool.entries
    return run


def test_a_checkpoint_while_it_sorts_counts_nothing(tmp_path: Path) -> None:
    """What is refused while it is read counts when the events are sorted: else a run that sorts
    again would count it twice.
    """
    path = write(tmp_path / "a.jsonl", [b"no json", *map(line, range(30))])
    with life(path, state=tmp_path / "state", sort=True) as run:
        while (read_block := run.read()) is not None:
            run.settle()
            saved = run.save()
            if read_block.sorted is not None:
                break
            assert (saved.files, saved.spool, saved.books) == ([], None, RecordBooks())
    assert saved.books == RecordBooks(1, refused={"undecodable": 1})
    assert saved.totals.examples["undecodable"][0].line == 1


def test_other_events_never_pass_for_sorted_ones(tmp_path: Path) -> None:
    """If sorting again gives others, the numbers of a checkpoint mean nothing: it is refused, and
    the checkpoint stays.
    """
    path = write(tmp_path / "a.jsonl", [line(number, number * 7 % 4) for number in range(900)])
    state = tmp_path / "state"
    half_done(path, state=state)
    (state / SPOOL).unlink()
    write(path, [line(number, number * 5 % 4) for number in range(900)])
    before = read_checkpoint(state)
    assert before is not None
    with life(path, state=state, sort=True) as run:
        with pytest.raises(SourceChanged, match="sorted again, and its events aren't those"):
            run.finish()
        assert run.save() == before


def test_a_file_that_is_broken_is_settled_as_far_as_it_goes_and_the_rest_later(
    tmp_path: Path,
) -> None:
    """The next run sorts what it can read beyond that, and nothing a second time; each run says
    what is broken.
    """
    pads = [random.Random(number).randbytes(200).hex() for number in range(40)]
    content = gzip.compress(
        b"".join(line(number, number * 7 % 4, pad=pad) + b"\n" for number, pad in enumerate(pads))
    )
    path = tmp_path / "a.jsonl.gz"
    other = write(tmp_path / "b.jsonl", [line(100), line(101)])
    path.write_bytes(content[: len(content) // 2])
    arrived: list[FinishedEvent] = []
    for turn in range(3):
        with life(path, other, state=tmp_path / "state", sort=True) as run:
            saved = run.finish()
        arrived += run.arrived
        assert ([failure.file for failure in run.ledger.broken], saved.complete) == (
            ([str(path)], False) if turn < 2 else ([], True)
        )
        assert [file.complete for file in saved.files] == [turn == 2, True]
        assert saved.books == RecordBooks(len(arrived), len(arrived))
        assert (2 < len(arrived) < 42) if turn < 2 else (len(arrived) == 42)
        if turn == 1:
            path.write_bytes(content)
    assert len({event.uuid for event in arrived}) == 42


def test_a_run_that_resumes_says_what_is_broken_too(tmp_path: Path) -> None:
    """It doesn't read the file, but knows that it couldn't be read to its end:
    the import isn't complete.
    """
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(
        gzip.compress(b"".join(line(number, number % 4) + b"\n" for number in range(900)))[:-8]
    )
    half_done(path, state=tmp_path / "state")
    with life(path, state=tmp_path / "state", sort=True) as run:
        assert not run.finish().complete
        assert [failure.file for failure in run.ledger.broken] == [str(path)]


def test_a_record_is_refused_if_one_of_its_events_was_also_in_an_earlier_run(
    tmp_path: Path,
) -> None:
    """The service refused the first of them; the last arrives after a kill."""
    path = write(
        tmp_path / "a.jsonl",
        [body(line(1, 0), line(2, 3)), *[line(number, 1) for number in range(10, 900)]],
    )
    run = half_done(path, state=tmp_path / "state", refused=frozenset({uuid_of(1)}))
    assert run.ledger.checkpoint.spool is not None
    assert run.ledger.checkpoint.spool.refused == [(0, 0, REJECTED)]
    assert run.ledger.books.refused == {}
    with life(path, state=tmp_path / "state", sort=True) as again:
        checkpoint = again.finish()
    assert checkpoint.books == RecordBooks(891, 890, refused={REJECTED: 1})
    assert checkpoint.totals.examples[REJECTED] == [RefusalExample(str(path), 1, "no")]
    assert checkpoint.spool is not None
    assert checkpoint.spool.refused == []


def test_of_events_of_one_time_the_one_that_stands_last_settles_the_record(tmp_path: Path) -> None:
    """It leaves last; so a record of which just that one is refused is refused, and
    not delivered.
    """
    path = write(
        tmp_path / "a.jsonl",
        [body(line(1), line(1).replace(uuid_of(1).encode(), uuid_of(2).encode()))],
    )
    with life(path, state=tmp_path / "state", sort=True, refused=frozenset({uuid_of(2)})) as run:
        checkpoint = run.finish()
    assert checkpoint.books == RecordBooks(1, refused={REJECTED: 1})
    assert checkpoint.spool is not None
    assert checkpoint.spool.refused == []


@EITHER
def test_very_many_files_cost_nothing_but_their_checkpoint(tmp_path: Path, sort: bool) -> None:
    """What is asked twice a second doesn't look at each of them."""
    paths = [write(tmp_path / f"{number}.jsonl", [line(number)]) for number in range(200)]
    with life(*paths, state=tmp_path / "state", sort=sort) as run:
        books = run.ledger.books
        saved = run.finish()
        assert run.ledger.books is books
    assert books == RecordBooks(200, 200)
    assert len(saved.files) == 200
    assert len(msgspec.json.encode(saved)) < 200 * 600
