"""`forwarder audit`."""

from __future__ import annotations

from dataclasses import replace

from tests.cli.conftest import Answering
from tests.support.commands import forwarder
from tests.support.snapshots import FULL, GOOD, HALTED


async def test_books_that_balance(daemon: Answering) -> None:
    """The books are printed per lane; exit code 0."""
    done = await forwarder("audit", "--admin", daemon.address)
    assert (done.code, done.err) == (0, "")
    assert GOOD.label in done.out
    assert "The books balance" in done.out


async def test_books_that_are_off(daemon: Answering) -> None:
    """Books that don't balance name the lane and by how much; exit code 1."""
    daemon.snapshot = replace(FULL, lanes=(replace(GOOD, delivered=1148), HALTED))
    done = await forwarder("audit", "--admin", daemon.address)
    assert done.code == 1
    assert "2 missing" in done.out
    assert f"don't balance for {GOOD.label}\n" in done.err


async def test_an_event_too_many(daemon: Answering) -> None:
    """Events that were never received are as wrong as missing ones."""
    daemon.snapshot = replace(FULL, lanes=(replace(GOOD, delivered=1151),))
    done = await forwarder("audit", "--admin", daemon.address)
    assert done.code == 1
    assert "1 too many" in done.out


async def test_no_daemon() -> None:
    """Nobody there to ask is exit code 3, not a verdict on the books."""
    assert (await forwarder("audit", "--admin", "127.0.0.1:1")).code == 3
