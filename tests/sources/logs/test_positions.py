"""The store of positions: what it keeps, and what it does with files that aren't its own."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from forwarder.core.errors import ConfigurationError
from forwarder.sources.logs.positions import (
    GONE,
    REPLACED,
    PositionStore,
    ReadTime,
    StoredPosition,
    read_positions,
)


def row(
    identity: str = "a", *, state: int = 0, inode: int = 2, position: int = 10, seen: float = 1.0
) -> StoredPosition:
    """A row."""
    return StoredPosition(
        identity,
        0,
        "f",
        1,
        inode,
        "/var/log/\udcff.log",
        position,
        b"t",
        20,
        b"u",
        30,
        40,
        state,
        seen,
    )


def test_rows_are_kept(tmp_path: Path) -> None:
    """By source, file and first line; with names and inodes of any kind."""
    store = PositionStore(tmp_path / "logs.db")
    assert store.is_new("logs")
    large = row(inode=2**64 - 1)
    store.save("logs", [large, row("b", state=REPLACED, inode=3), row("c", state=GONE, inode=4)])
    store.close()
    store = PositionStore(tmp_path / "logs.db")
    assert not store.is_new("logs")
    assert store.is_new("others")
    assert store.in_file("logs", 1, 2**64 - 1) == large
    assert store.in_file("logs", 1, 3) is None
    assert store.in_file("others", 1, 2**64 - 1) is None
    assert {position.identity for position in store.alike("logs", "f")} == {"a", "b", "c"}
    assert [position.identity for position in store.present("logs")] == ["a"]
    store.close()


def test_the_latest_content_of_a_file(tmp_path: Path) -> None:
    """Of several that had the same inode, the one that was seen last."""
    store = PositionStore(tmp_path / "logs.db")
    store.save(
        "logs",
        [
            row("old", state=GONE, seen=1.0),
            row("new", seen=2.0),
            row("older", state=GONE, seen=0.5),
        ],
    )
    position = store.in_file("logs", 1, 2)
    assert position is not None
    assert position.identity == "new"
    store.close()


def test_times_go_with_their_rows(tmp_path: Path) -> None:
    """Those before a position, and those of rows that are forgotten."""
    store = PositionStore(tmp_path / "logs.db")
    times = [
        ("a", 0, ReadTime(0, 10, 1.0)),
        ("a", 0, ReadTime(10, 20, 2.0)),
        ("b", 0, ReadTime(0, 5, 3.0)),
    ]
    store.save("logs", [row(position=0), row("b", position=0, seen=9.0)], times)
    store.save("logs", [row(position=10)])
    assert store.times("logs", "a", 0) == [ReadTime(10, 20, 2.0)]
    store.forget("logs", 5.0)
    assert store.times("logs", "a", 0) == []
    assert store.times("logs", "b", 0) == [ReadTime(0, 5, 3.0)]
    assert [position.identity for position in store.present("logs")] == ["b"]
    store.close()


def test_all_or_nothing(tmp_path: Path) -> None:
    """Where a row can't be stored, none is."""
    store = PositionStore(tmp_path / "logs.db")
    with pytest.raises(sqlite3.Error):
        store.save("logs", [row(), row("b")._replace(tail=None)])  # type: ignore[arg-type]
    assert store.present("logs") == []
    store.save("logs", [row()])
    assert len(store.present("logs")) == 1
    store.close()


def test_other_versions_and_places(tmp_path: Path) -> None:
    """They are errors that say what to do."""
    path = tmp_path / "logs.db"
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(ConfigurationError, match="version 99"):
        PositionStore(path)
    with pytest.raises(ConfigurationError, match="can't be used: No such file") as raised:
        PositionStore(tmp_path / "absent" / "logs.db")
    assert raised.value.hint


@pytest.mark.parametrize("seed", range(4))
def test_a_damaged_file_is_quarantined_and_what_can_be_read_of_it_is_kept(
    tmp_path: Path, seed: int
) -> None:
    """Each row of the new file was in the old one, which stays; a source that had been started
    isn't started anew, which would skip what its files hold.
    """
    path = tmp_path / "logs.db"
    store = PositionStore(path)
    rows = [row(f"identity-{number:04}", inode=number) for number in range(2000)]
    store.save("logs", rows, [("identity-0000", 0, ReadTime(10, 20, 1.0))], now=5.0)
    store.close()
    data = bytearray(path.read_bytes())
    at = random.Random(seed).randrange(1, len(data) // 4096) * 4096
    data[at : at + 4096] = b"\xff" * 4096
    path.write_bytes(data)
    with capture_logs() as logs:
        store = PositionStore.open(path, 7.0, ["logs", "others"])
    (line,) = logs
    assert (line["log_level"], 0 < line["positions_saved"] <= 2000) == ("error", True)
    (moved,) = (tmp_path / "aside").glob("*.db")
    assert moved.read_bytes() == data
    assert str(moved) == line["moved_to"]
    assert str(moved) in store.warning
    saved_rows = read_positions(path).get("logs", [])
    assert len(saved_rows) == line["positions_saved"]
    assert set(saved_rows) <= set(rows)
    assert not store.is_new("logs")
    assert not store.is_new("others")
    assert store.is_new("added later")
    store.close()
    with closing(PositionStore.open(path, 8.0, ["logs"])) as store:
        assert store.warning == ""


def test_an_emptied_file_is_reported(tmp_path: Path) -> None:
    """Nothing of it can be kept, but it is known that there was one."""
    path = tmp_path / "logs.db"
    path.touch()
    with capture_logs() as logs:
        store = PositionStore.open(path, 7.0, ["logs"])
    assert [line["event"] for line in logs] == ["logs: positions are gone: their file is empty"]
    assert "was empty" in store.warning
    assert not store.is_new("logs")
    store.close()


def test_an_unreadable_positions_file_is_an_error(tmp_path: Path) -> None:
    """Without its positions nothing is followed."""
    path = tmp_path / "logs.db"
    path.write_bytes(b"rubbish" * 1000)
    (tmp_path / "aside").touch()
    with pytest.raises(ConfigurationError, match="can't be quarantined"):
        PositionStore.open(path, 7.0, [])
