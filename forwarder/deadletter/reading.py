"""What is read of the dead letters' file at the opening: the room that is used, and what the books begin with."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from forwarder.core.event import Lane
from forwarder.core.ports import DropReason, Reason
from forwarder.deadletter.records import LetterAccount
from forwarder.deadletter.writing import lane_of

K = TypeVar("K")


class Stored(NamedTuple):
    """What there is in a file."""

    letters: int = 0
    cost: int = 0
    costs_at_receipt: Sequence[tuple[str, int]] = ()
    """By project key."""
    last_number: int = 0
    """The highest number that was ever given."""
    last_sequence: int = 0
    marked: int = 0


def read_stored(connection: sqlite3.Connection) -> Stored:
    """What there is in the file."""
    letters, cost, last, sequence, marked = connection.execute(
        "SELECT count(*), coalesce(sum(cost), 0), coalesce(max(number), 0), coalesce(max(sequence), 0), count(mark)"
        " FROM letters"
    ).fetchone()
    given = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'letters'").fetchone()
    at_receipt = connection.execute("SELECT coalesce(api_key, ''), sum(cost) FROM letters WHERE receipt GROUP BY 1").fetchall()
    return Stored(letters, cost, at_receipt, max(last, given[0] if given else 0), sequence, marked)


def read_places(connection: sqlite3.Connection, at_least: int) -> list[tuple[int, int]]:
    """The places of the letters that have one, from sequence `at_least` on, in order."""
    return connection.execute("SELECT sequence, idx FROM letters WHERE sequence >= ? ORDER BY sequence, idx", (at_least,)).fetchall()


def read_accounts(connection: sqlite3.Connection, *, logged: bool, without: Sequence[int] = ()) -> dict[Lane | None, LetterAccount]:
    """The figures of all lanes. `logged`: whether a log counts what is received; `without`: letters that are as good as removed."""
    accounts: dict[Lane | None, LetterAccount] = {}
    _add_letters(connection, accounts, logged=logged, without=without)
    for api_key, historical, kind, name, count in connection.execute("SELECT api_key, historical, kind, name, count FROM counters"):
        account = accounts.setdefault(lane_of(api_key or None, historical), LetterAccount())
        if kind == "dropped":
            reason, _, source = name.partition("/")
            _add(account.dropped, DropReason(reason), count)
            if not logged:
                _add(account.received, source, count)
        elif logged:
            _add(account.received, name, count)
    return accounts


def _add_letters(
    connection: sqlite3.Connection, accounts: dict[Lane | None, LetterAccount], *, logged: bool, without: Sequence[int]
) -> None:
    rows = connection.execute("SELECT api_key, historical, reason, source, count(*) FROM letters GROUP BY 1, 2, 3, 4")
    taken = [
        (*row, -1)
        for number in without
        for row in connection.execute("SELECT api_key, historical, reason, source FROM letters WHERE number = ?", (number,))
    ]
    for api_key, historical, reason, source, count in [*rows, *taken]:
        account = accounts.setdefault(lane_of(api_key, historical), LetterAccount())
        _add(account.dead_lettered, Reason(reason), count)
        if not logged:
            _add(account.received, source, count)


def _add(mine: dict[K, int], key: K, count: int) -> None:
    mine[key] = mine.get(key, 0) + count
