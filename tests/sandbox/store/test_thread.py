"""The store's thread: order, shared commits, failures that stay alone, and an end."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from pathlib import Path

import pytest

from forwarder.core.errors import ConfigurationError
from forwarder.sandbox.store.database import Store
from forwarder.sandbox.store.stored_records import RequestRecord
from forwarder.sandbox.store.thread import StoreThread


def arrival(path: str = "/batch/") -> RequestRecord:
    """A request without events."""
    return RequestRecord("2026-01-01T00:00:00.000000Z", path, "", {}, 200, "")


def add(store: Store) -> None:
    """Keep a request."""
    store.add(arrival())


def add_and_fail(store: Store) -> None:
    """Keep a request, then fail."""
    store.add(arrival("/lost/"))
    raise ValueError("no")


async def test_a_failure_is_rolled_back_alone() -> None:
    """Of a group that shares a commit the failed piece leaves nothing and
    hears of it; the others stay.
    """
    arrivals = StoreThread(None)
    results = await asyncio.gather(
        *[arrivals.run(do) for do in (add, add_and_fail, add)], return_exceptions=True
    )
    assert [type(result) for result in results] == [type(None), ValueError, type(None)]
    assert (await arrivals.run(lambda store: store.summary())).requests == 2
    await arrivals.close()


async def test_a_commit_that_fails_fails_its_group() -> None:
    """No caller is notified that something is kept when the commit failed; the next
    group is none the worse.
    """
    arrivals = StoreThread(None)

    def break_commit(store: Store) -> None:
        store.execute("COMMIT")

    with pytest.raises(sqlite3.Error):
        await arrivals.run(break_commit)
    await arrivals.run(add)
    assert (await arrivals.run(lambda store: store.summary())).requests == 1
    await arrivals.close()


async def test_waiting_work_is_done_before_the_end() -> None:
    """What was handed over before `close` is kept, after it nothing is taken; closing twice is
    closing once; the thread is gone.
    """
    arrivals = StoreThread(None)
    waiting = [
        asyncio.ensure_future(arrivals.run(lambda store: store.summary().requests))
        for _ in range(200)
    ]
    await asyncio.sleep(0)
    await asyncio.gather(arrivals.close(), arrivals.close())
    assert await asyncio.gather(*waiting) == [0] * 200
    with pytest.raises(RuntimeError, match="closed"):
        await arrivals.run(add)
    assert "sandbox-store" not in {thread.name for thread in threading.enumerate()}


async def test_cancelled_work_is_done_all_the_same() -> None:
    """Cancelling ends the wait, not the work, and harms no one else's."""
    arrivals = StoreThread(None)
    gate = threading.Event()
    held = asyncio.ensure_future(arrivals.run(lambda _: gate.wait(20)))
    cancelled = asyncio.ensure_future(arrivals.run(add))
    await asyncio.sleep(0)
    cancelled.cancel()
    gate.set()
    assert await held
    assert (await arrivals.run(lambda store: store.summary())).requests == 1
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    await arrivals.close()


async def test_a_file_that_is_no_sandbox_database(tmp_path: Path) -> None:
    """A file with something else in it is left alone, and so is another program's database; the
    error says what to do.
    """
    text = tmp_path / "notes.txt"
    foreign = tmp_path / "foreign.db"
    text.write_text("not a database, but long enough to look at" * 50)
    connection = sqlite3.connect(foreign)
    connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    for path in (text, foreign, tmp_path / "missing" / "x.db"):
        before = path.read_bytes() if path.exists() else None
        with pytest.raises(ConfigurationError) as error:
            StoreThread(path)
        assert error.value.hint
        assert (path.read_bytes() if path.exists() else None) == before
