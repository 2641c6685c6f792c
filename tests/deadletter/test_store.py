"""Dead letters in a file: when they are durable, that none is there twice, and that the books
outlive the process.
"""

from __future__ import annotations

import sqlite3
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from forwarder.core.event import Lane
from forwarder.core.ports import DeadLetter, DropReason, Reason
from forwarder.deadletter import schema, store
from forwarder.deadletter.room import DeadLetterTotals
from forwarder.deadletter.table import MarkedDeadLetter
from forwarder.storage import failpoints
from forwarder.storage.directory import DEAD_LETTERS
from tests.deadletter.rig import (
    LANE,
    HoldingCallback,
    StoreRig,
    event_letter,
    fill,
    letter,
    query,
    started,
)

HISTORICAL = Lane(LANE.api_key, historical=True)


def modes(directory: Path) -> dict[str, int]:
    """The permissions of the files that are there."""
    return {path.name: path.stat().st_mode & 0o777 for path in directory.iterdir()}


def accounts(directory: Path, *, logged: bool = True) -> dict[Lane | None, DeadLetterTotals]:
    """What the books would begin with if the process had died now."""
    rig = StoreRig(directory, logged=logged)
    try:
        return rig.store.accounts()
    finally:
        rig.store.close()


async def test_a_letter_is_durable_with_the_next_group(tmp_path: Path) -> None:
    """A waiting caller is notified once the commit is done, not before, and not when there is
    nothing to wait for.
    """
    async with started(tmp_path) as rig:
        early = HoldingCallback()
        late = HoldingCallback()
        assert rig.store.when_durable(early)
        rig.store.add([event_letter(b'{"event":"a"}', place=(7, 0))])
        assert not rig.store.when_durable(late)
        assert (late.reported, rig.data()) == ([], [])
        await rig.commit()
        assert (late.reported, early.reported, rig.data()) == ([None], [], [b'{"event":"a"}'])
        assert rig.store.when_durable(early)


async def test_the_fields_of_a_stored_letter(tmp_path: Path) -> None:
    """Everything that is known of it, and of the event's own words what helps to find it."""
    event = (
        b'{ "uuid":"0190a0a0-1111-7222-8333-444455556666","event":"sign '
        b'up","distinct_id":"ann","n":12345678901234567890 }'
    )
    why = "no \ud800 text"
    async with started(tmp_path) as rig:
        rig.store.add(
            [
                DeadLetter(
                    Reason.REFUSED, HISTORICAL, event, 12.5, why, "kafka", "topic/3/17", (9, 4)
                )
            ]
        )
        rig.store.add_at_receipt([DeadLetter(Reason.INVALID_EVENT, None, b"\xff not JSON", 13.0)])
        await rig.commit()
        place = "source, coordinates, sequence, idx, receipt"
        columns = (
            f"number, reason, api_key, historical, at, why, {place}, event, distinct_id, uuid, data"
        )
        first, second = rig.query(f"SELECT {columns} FROM letters ORDER BY number")
    uuid = "0190a0a0-1111-7222-8333-444455556666"
    expected = (
        LANE.api_key,
        1,
        12.5,
        "no ? text",
        "kafka",
        "topic/3/17",
        9,
        4,
        0,
        "sign up",
        "ann",
        uuid,
        event,
    )
    assert first == (1, "refused", *expected)
    assert second == (
        2,
        "invalid_event",
        None,
        0,
        13.0,
        "",
        "http",
        "",
        None,
        None,
        1,
        None,
        None,
        None,
        b"\xff not JSON",
    )


async def test_room_is_kept_free_only_while_letters_can_be_written(tmp_path: Path) -> None:
    """A source waits with its records until their letters can be durable."""
    async with started(tmp_path) as rig:
        with capture_logs():
            failpoints.arm("dead_letters.begin=eio")
            rig.store.add([letter()])
            await rig.commit()
        assert rig.store.reserve(1, 1) is None


async def test_only_its_owner_reads_the_file(tmp_path: Path) -> None:
    """It holds project keys and people's events."""
    async with started(tmp_path) as rig:
        rig.store.add([letter()])
        await rig.commit()
        assert modes(tmp_path) == {
            DEAD_LETTERS: 0o600,
            f"{DEAD_LETTERS}-wal": 0o600,
            f"{DEAD_LETTERS}-shm": 0o600,
        }


async def test_the_books_begin_with_what_is_here(tmp_path: Path) -> None:
    """With a log: letters by reason, and what was received without it; in memory: all that is here
    was received.
    """
    async with started(tmp_path) as rig:
        rig.store.add(
            [letter(place=(1, 0)), letter(place=(1, 1)), letter(lane=HISTORICAL, place=(2, 0))]
        )
        rig.store.add_at_receipt(
            [letter(reason=Reason.MISSING_EVENT), letter(reason=Reason.INVALID_EVENT, lane=None)]
        )
    logged = accounts(tmp_path)
    alone = accounts(tmp_path, logged=False)
    dead = {Reason.REFUSED: 2, Reason.MISSING_EVENT: 1}
    assert logged[LANE] == DeadLetterTotals(dead, {"http": 1}, {})
    assert logged[HISTORICAL] == DeadLetterTotals({Reason.REFUSED: 1}, {}, {})
    assert logged[None] == DeadLetterTotals({Reason.INVALID_EVENT: 1}, {"http": 1}, {})
    assert alone[LANE] == DeadLetterTotals(dead, {"http": 3}, {})
    assert alone[HISTORICAL] == DeadLetterTotals({Reason.REFUSED: 1}, {"http": 1}, {})


async def test_room_is_what_the_file_takes(tmp_path: Path) -> None:
    """After a restart the limit, and the share of what is refused at receipt, hold as before."""
    async with started(tmp_path, max_bytes=24_000) as rig:
        assert rig.store.add([letter(), letter(500)])
        assert rig.store.add_at_receipt([letter(), letter()]) == 2
        before = rig.store.statistics()
    async with started(tmp_path, max_bytes=24_000) as rig:
        assert rig.store.statistics() == before
        assert rig.store.add_at_receipt([letter()]) == 0
        assert not rig.store.add([letter(21_000)])


async def test_the_log_learns_where_each_letter_is(tmp_path: Path) -> None:
    """An event that is a letter already, and unsettled in the log, is settled by
    its place at the opening.
    """
    async with started(tmp_path) as rig:
        rig.store.add([letter(place=(9, 1)), letter(place=(3, 5)), letter(place=(9, 0)), letter()])
    rig = StoreRig(tmp_path)
    assert rig.store.places() == [(3, 5), (9, 0), (9, 1)]
    assert rig.store.places(4) == [(9, 0), (9, 1)]
    assert rig.store.last_sequence() == 9
    rig.store.close()


async def test_an_event_is_never_buried_twice(tmp_path: Path) -> None:
    """The same event at the same place is the letter that is there; the room and the books are as
    if it had not been buried again.
    """
    async with started(tmp_path) as rig:
        rig.store.add([event_letter(b"{}", place=(5, 0))])
        rig.books.dead_letter(LANE, Reason.REFUSED, 1)
        await rig.commit()
        before = rig.store.statistics()
        rig.store.add([event_letter(b"{}", place=(5, 0))])
        rig.books.dead_letter(LANE, Reason.REFUSED, 1)
        await rig.commit()
        assert rig.store.statistics() == before
        assert rig.books.accounts[LANE].dead_lettered == {Reason.REFUSED: 1}
        assert rig.data() == [b"{}"]


async def test_another_event_at_the_same_place_is_kept(tmp_path: Path) -> None:
    """A log that was begun anew uses its places again: what is buried from there is another event,
    and isn't lost.
    """
    async with started(tmp_path) as rig:
        rig.store.add([event_letter(b'{"a":1}', place=(5, 0))])
        await rig.commit()
        rig.store.add([event_letter(b'{"a":2}', place=(5, 0))])
        await rig.commit()
        assert rig.data() == [b'{"a":1}', b'{"a":2}']
        assert rig.store.statistics().dead_letters == 2
        assert rig.store.accounts()[LANE].received == {}


@pytest.mark.parametrize("where", ["dead_letters.begin", "dead_letters.committed"])
async def test_a_failed_commit_is_tried_again(tmp_path: Path, where: str) -> None:
    """Until it succeeds the upstream's refusals find no room; nothing is lost by it and nothing is
    there twice, also if only the answer of the commit was lost.
    """
    async with started(tmp_path) as rig:
        failpoints.arm(f"{where}=enospc@1")
        held = HoldingCallback()
        assert rig.store.add([event_letter(b"[1]", place=(1, 0)), event_letter(b"[2]")])
        rig.store.add_at_receipt([event_letter(b"[3]", Reason.MISSING_EVENT)])
        rig.store.when_durable(held)
        await rig.commit()
        assert "No space left" in rig.store.statistics().failing
        assert [letter.data for letter in rig.store.unwritten()] == [b"[1]", b"[2]", b"[3]"]
        assert [type(callback).__name__ for callback in held.reported] == ["Backpressure"]
        assert not rig.store.add([letter()])
        await rig.clock.advance(1)
        await rig.commit()
        assert rig.store.statistics().failing == ""
        assert rig.store.unwritten() == []
        assert rig.data() == [b"[1]", b"[2]", b"[3]"]
        assert rig.store.add([letter()])
    account = accounts(tmp_path)[LANE]
    assert (account.received, account.dead_lettered) == (
        {"http": 3},
        {Reason.REFUSED: 3, Reason.MISSING_EVENT: 1},
    )


async def test_numbers_are_never_used_again(tmp_path: Path) -> None:
    """Not those of letters that are gone, and not those that the log names: a record in the log
    may still point at them.
    """
    async with started(tmp_path) as rig:
        rig.store.add([letter(), letter()])
        await rig.commit()
        rig.store.remove([1, 2])
        await rig.commit()
    async with started(tmp_path) as rig:
        rig.store.add([letter()])
        await rig.commit()
        assert rig.query("SELECT number FROM letters") == [(3,)]
    async with started(tmp_path) as rig:
        rig.store.forget([3, 70])
        rig.store.add([letter()])
        await rig.commit()
        assert rig.query("SELECT number FROM letters") == [(71,)]


async def test_a_replayed_letter_is_removed(tmp_path: Path) -> None:
    """Its room is free with the commit; with a log, what was received stays counted here, for the
    log doesn't count it again.
    """
    async with started(tmp_path) as rig:
        rig.store.add_at_receipt([letter(), letter()])
        await rig.commit()
        rig.store.busy.add(1)
        rig.store.remove([1])
        await rig.commit()
        assert (rig.store.statistics().dead_letters, rig.store.busy) == (1, set())
    assert accounts(tmp_path)[LANE] == DeadLetterTotals({Reason.REFUSED: 1}, {"http": 2}, {})


async def test_without_a_log_a_replayed_letter_was_never_received(tmp_path: Path) -> None:
    """Its event belongs to the process alone then, like all others in memory; a log that comes
    later finds the books right.
    """
    async with started(tmp_path, logged=False) as rig:
        rig.store.add([letter(), letter()])
        await rig.commit()
        rig.store.remove([1])
    assert accounts(tmp_path, logged=False)[LANE] == DeadLetterTotals(
        {Reason.REFUSED: 1}, {"http": 1}, {}
    )
    assert accounts(tmp_path)[LANE] == DeadLetterTotals({Reason.REFUSED: 1}, {"http": 1}, {})


async def test_a_letter_that_the_log_has_is_removed(tmp_path: Path) -> None:
    """A crash between a replay's record and the removal of its letter leaves no second copy."""
    async with started(tmp_path) as rig:
        rig.store.add([letter(place=(1, 0)), letter(place=(1, 1))])
    rig = StoreRig(tmp_path)
    rig.store.forget([2, 99])
    assert rig.store.accounts()[LANE].dead_lettered == {Reason.REFUSED: 1}
    assert rig.store.statistics().dead_letters == 1
    rig.store.close()
    assert query(tmp_path, "SELECT number FROM letters") == [(1,)]


async def test_a_letter_that_cannot_be_removed_at_the_start_is_removed_later(
    tmp_path: Path,
) -> None:
    """A full disk delays that, and doesn't stop the start; until then it counts no more."""
    async with started(tmp_path) as rig:
        rig.store.add([letter(place=(1, 0)), letter(place=(1, 1))])
    rig = StoreRig(tmp_path)
    connection = rig.store._file.connection
    assert connection is not None
    connection.execute("PRAGMA query_only = ON")
    rig.store.forget([2])
    assert rig.store.accounts()[LANE].dead_lettered == {Reason.REFUSED: 1}
    connection.execute("PRAGMA query_only = OFF")
    rig.committer.start()
    await rig.commit()
    await rig.close()
    assert query(tmp_path, "SELECT number FROM letters") == [(1,)]


@pytest.mark.parametrize("logged", [True, False])
async def test_letters_that_an_operator_drops_are_counted(tmp_path: Path, *, logged: bool) -> None:
    """Marked letters are dropped by the daemon, in one transaction with their counter and one
    callback with the books; not those that are in flight back.
    """
    async with started(tmp_path, logged=logged) as rig:
        rig.store.add([letter(place=(1, 0)), letter(place=(1, 1))])
        rig.books.dead_letter(LANE, Reason.REFUSED, 2)
        await rig.commit()
        query(tmp_path, "UPDATE letters SET mark = 'drop'")
        rig.store.busy.add(2)
        rig.store.poll(1, lambda _: None)
        await rig.commit()
        assert rig.store.statistics().dead_letters == 1
        books = rig.books.accounts[LANE]
        assert (books.dead_lettered, books.dropped) == (
            {Reason.REFUSED: 1},
            {DropReason.OPERATOR: 1},
        )
        assert rig.store.statistics().marked == 1
    account = accounts(tmp_path, logged=logged)[LANE]
    assert (account.dead_lettered, account.dropped) == (
        {Reason.REFUSED: 1},
        {DropReason.OPERATOR: 1},
    )
    assert account.received == ({} if logged else {"http": 2})


async def test_letters_lost_at_the_end_are_logged(tmp_path: Path) -> None:
    """Letters that are lost with the process are an error in the log, with their number."""
    rig = StoreRig(tmp_path)
    rig.store.add_at_exit([letter(), letter()])
    rig.store.close()
    assert query(tmp_path, "SELECT count(*) FROM letters") == [(0,)]


async def test_a_commit_that_has_returned_is_on_the_disk(tmp_path: Path) -> None:
    """The connection that writes asks for a sync with each commit; SQLite's default beside a
    write-ahead log would not.
    """
    async with started(tmp_path) as rig:
        connection = rig.store._file.connection
        assert connection is not None
        assert [
            connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("journal_mode", "synchronous")
        ] == ["wal", 2]


async def test_letters_at_receipt_wait_in_bounds_while_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While commits fail they are kept in memory up to a limit; past it they are dropped, and that
    is said.
    """
    monkeypatch.setattr(store, "PENDING_AT_RECEIPT", 2500)
    async with started(tmp_path) as rig:
        failpoints.arm("dead_letters.begin=eio")
        assert [rig.store.add_at_receipt([letter()]) for _ in range(2)] == [1, 1]
        await rig.commit()
        with capture_logs() as logs:
            assert [rig.store.add_at_receipt([letter()]) for _ in range(2)] == [1, 0]
        assert "dropped" in logs[-1]["event"]
        failpoints.arm("")
        await rig.clock.advance(1)
        await rig.commit()
        assert rig.store.statistics().dead_letters == len(rig.data()) == 3
        assert rig.store.add_at_receipt([letter()]) == 1


async def test_a_full_disk(tmp_path: Path) -> None:
    """A commit that finds no room is undone as a whole, the letters wait in memory, and go to the
    file once there is room.
    """
    async with started(tmp_path) as rig:
        rig.store.add([event_letter(b"[1]", place=(1, 0))])
        await rig.commit()
        connection = rig.store._file.connection
        assert connection is not None
        connection.execute("PRAGMA max_page_count = 20")
        big = [event_letter(b'"%b"' % (b"x" * 30_000), place=(2, n)) for n in range(5)]
        assert rig.store.add([event_letter(b"[2]"), *big])
        await rig.commit()
        assert rig.store.statistics().failing == "database or disk is full"
        assert rig.data() == [b"[1]"]
        assert not rig.store.add([letter()])
        await rig.clock.advance(1)
        await rig.commit()
        assert (rig.store.statistics().failing, len(rig.data())) == ("", 7)


async def test_a_small_disk_that_fills_up(tmp_path: Path) -> None:
    """On a file system of its own, as small as that, letters wait for room, and find it when
    something else is deleted.
    """
    if subprocess.run(  # noqa: ASYNC221
        ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", tmp_path],
        check=False,
        capture_output=True,
    ).returncode:
        pytest.skip("only root may mount a file system")
    try:
        async with started(tmp_path) as rig:
            rig.store.add([event_letter(b"[1]", place=(1, 0))])
            await rig.commit()
            fill(tmp_path / "filler")
            assert rig.store.add([event_letter(b'"%b"' % (b"x" * 50_000))])
            await rig.commit()
            assert rig.store.statistics().failing
            (tmp_path / "filler").unlink()
            await rig.clock.advance(1)
            await rig.commit()
            assert (rig.store.statistics().failing, len(rig.data())) == ("", 2)
    finally:
        subprocess.run(["umount", tmp_path], check=True)  # noqa: ASYNC221


async def test_a_locked_file_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another writer's transaction delays letters; they aren't lost."""
    monkeypatch.setattr(schema, "FORMAT", replace(schema.FORMAT, busy_seconds=0.01))
    async with started(tmp_path) as rig:
        other = sqlite3.connect(tmp_path / "dead-letters.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        rig.store.add([event_letter(b"{}")])
        await rig.commit()
        assert "locked" in rig.store.statistics().failing
        other.execute("ROLLBACK")
        other.close()
        await rig.clock.advance(1)
        await rig.commit()
        assert (rig.store.statistics().failing, rig.data()) == ("", [b"{}"])


async def test_marked_letters_say_where_they_were(tmp_path: Path) -> None:
    """And how many there are of the same record: what is left of it is known when one goes."""
    first_of_two = event_letter(b"{}", place=(5, 0), coordinates="a:1", attributes='{"n":1}')
    letters = [first_of_two, event_letter(b"{}", place=(5, 7)), event_letter(b"{}")]
    heard: list[MarkedDeadLetter] = []
    async with started(tmp_path, logged=False) as rig:
        rig.store.add(letters)
        await rig.commit()
        query(tmp_path, "UPDATE letters SET mark = 'replay'")
        rig.store.poll(10, heard.extend)
        await rig.commit()
        first, _, alone = heard
        assert (first.coordinates, first.attributes, first.together, alone.together) == (
            "a:1",
            '{"n":1}',
            2,
            1,
        )
        rig.store.remove([first.number])
        rig.store.poll(10, heard.extend)
        await rig.commit()
        assert [dead_letter.together for dead_letter in heard[3:]] == [1, 1]
