"""What dead letters promise, in memory and in a file alike: their bounds,
and what is logged of them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TypeAlias

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from forwarder.core.event import Lane
from forwarder.core.ports import DeadLetter, Reason
from forwarder.deadletter.memory import MemoryDeadLetters
from forwarder.deadletter.room import DEAD_LETTER_OVERHEAD, RECEIPT_SHARE
from forwarder.deadletter.store import DeadLetterStore
from forwarder.telemetry.labels import lane_label
from tests.deadletter.rig import COST, LANE, letter, started

Store: TypeAlias = MemoryDeadLetters | DeadLetterStore


@pytest_asyncio.fixture(params=["memory", "disk"])
async def stack(request: pytest.FixtureRequest) -> AsyncIterator[tuple[str, AsyncExitStack]]:
    """What kind of store, and what closes it."""
    async with AsyncExitStack() as closing:
        yield request.param, closing


async def make(
    stack: tuple[str, AsyncExitStack], directory: Path, max_bytes: int, largest: int = 0
) -> Store:
    """A store with so much room."""
    kind, closing = stack
    if kind == "memory":
        return MemoryDeadLetters(max_bytes, largest)
    answer = await closing.enter_async_context(
        started(directory, max_bytes=max_bytes, largest=largest)
    )
    return answer.store


async def test_it_keeps_original_bytes(stack: tuple[str, AsyncExitStack], tmp_path: Path) -> None:
    """A letter is kept as it was handed in."""
    store = await make(stack, tmp_path, 10 * COST)
    buried = [letter(), letter()]
    assert store.add(buried)
    now = store.statistics()
    assert (now.dead_letters, now.bytes, now.limit_bytes, now.failing) == (
        2,
        2 * COST,
        10 * COST,
        "",
    )


async def test_all_or_none(stack: tuple[str, AsyncExitStack], tmp_path: Path) -> None:
    """Letters that don't all fit change nothing, so that their events stay where they are."""
    store = await make(stack, tmp_path, 3 * COST)
    assert store.add([letter(), letter()])
    assert not store.add([letter(), letter()])
    assert store.statistics().dead_letters == 2
    assert store.add([letter()])
    assert not store.add([letter(DEAD_LETTER_OVERHEAD)])


async def test_room_can_be_kept_free(stack: tuple[str, AsyncExitStack], tmp_path: Path) -> None:
    """No one else gets it; what its letters don't need of it, and all of it if
    none come, is free again.
    """
    store = await make(stack, tmp_path, 3 * COST)
    reserved = store.reserve(2 * (COST - DEAD_LETTER_OVERHEAD), 2)
    assert reserved == 2 * COST
    assert store.reserve(2 * COST, 1) is None
    assert store.could_hold(COST, 1)
    assert not store.could_hold(3 * COST, 1), "not even if it were empty"
    assert not store.add([letter(), letter()])
    store.add_reserved([letter()], reserved)
    assert (store.statistics().bytes, store.statistics().dead_letters) == (COST, 1)
    again = store.reserve(2 * (COST - DEAD_LETTER_OVERHEAD), 2)
    assert again is not None
    store.release(again)
    assert store.add([letter(), letter()])


async def test_the_key_and_headers_of_a_record_count(
    stack: tuple[str, AsyncExitStack], tmp_path: Path
) -> None:
    """Key and headers of a record may be larger than it."""
    store = await make(stack, tmp_path, 10 * COST)
    assert store.add([DeadLetter(Reason.UNDECODABLE, None, b"x", 0.0, attributes="y" * 600)])
    assert store.statistics().bytes == 601 + DEAD_LETTER_OVERHEAD


async def test_words_count_too(stack: tuple[str, AsyncExitStack], tmp_path: Path) -> None:
    """What the upstream said is kept with the event, and costs."""
    store = await make(stack, tmp_path, 10 * COST)
    store.add([DeadLetter(Reason.REFUSED, LANE, b"{}", 0.0, why="w" * 50)])
    assert store.statistics().bytes == 2 + 50 + DEAD_LETTER_OVERHEAD


async def test_rubbish_has_a_tenth_at_most(
    stack: tuple[str, AsyncExitStack], tmp_path: Path
) -> None:
    """Of what is refused at receipt the first letters are kept that fit the share; the upstream's
    refusals have the rest.
    """
    store = await make(stack, tmp_path, RECEIPT_SHARE * 8 * COST)
    assert store.add_at_receipt([letter() for _ in range(6)]) == 6
    assert store.add_at_receipt([letter(), letter()]) == 1
    assert store.add_at_receipt([letter()]) == 0
    assert store.add([letter() for _ in range(73)])
    assert not store.add([letter()])


def of_key(name: str, size: int = COST) -> DeadLetter:
    """A letter of another key."""
    return DeadLetter(
        Reason.TOO_LARGE, Lane(f"phc_{name}"), b"x" * (size - DEAD_LETTER_OVERHEAD), 0.0
    )


async def test_required_dead_letters_are_kept_or_rejected_together(
    stack: tuple[str, AsyncExitStack], tmp_path: Path
) -> None:
    """All of it or none; room that was taken and isn't needed is free again,
    and nothing counts twice.
    """
    store = await make(stack, tmp_path, RECEIPT_SHARE * 8 * COST)
    assert store.reserve_at_receipt([of_key("a")] * 4)
    assert not store.reserve_at_receipt([of_key("a")] * 4)
    store.add_reserved_at_receipt([of_key("a")] * 3)
    store.release_at_receipt([of_key("a")])
    assert (store.statistics().bytes, store.statistics().dead_letters) == (3 * COST, 3)
    assert store.reserve_at_receipt([of_key("a")] * 4)
    assert store.could_hold_at_receipt([of_key("a")] * 7)
    assert not store.could_hold_at_receipt([of_key("a")] * 8)


async def test_one_key_leaves_room_to_others(
    stack: tuple[str, AsyncExitStack], tmp_path: Path
) -> None:
    """A key alone may have seven eighths of the share; the next one finds as much of the rest,
    whatever the first one sends.
    """
    store = await make(stack, tmp_path, RECEIPT_SHARE * 64 * COST)
    store.add_at_receipt([letter() for _ in range(100)])
    assert store.statistics().dead_letters == 56
    assert store.reserve_at_receipt([of_key("b")] * 7)
    assert not store.reserve_at_receipt([letter()])


class Keys:
    """Known keys, as a test wishes."""

    def __init__(self, *known: str) -> None:
        self.known = known

    @property
    def protects(self) -> bool:
        """Whether there is one."""
        return bool(self.known)

    def __contains__(self, api_key: str) -> bool:
        return api_key in self.known


async def test_unknown_keys_have_an_eighth_together(
    stack: tuple[str, AsyncExitStack], tmp_path: Path
) -> None:
    """Once one is known; one that becomes known leaves them, with what it has."""
    store = await make(stack, tmp_path, RECEIPT_SHARE * 64 * COST)
    store.distinguish(Keys())
    assert store.add_at_receipt([of_key("x"), of_key("y")] * 5) == 10
    store.distinguish(Keys("phc_good"))
    assert store.add_at_receipt([of_key("z")]) == 0
    assert store.reserve_at_receipt([of_key("good")] * 40)
    store.release_at_receipt([of_key("good")] * 40)
    store.distinguish(Keys("phc_good", "phc_x"))
    assert store.add_at_receipt([of_key("z")] * 5) == 2


async def test_the_share_holds_the_largest_event(
    stack: tuple[str, AsyncExitStack], tmp_path: Path
) -> None:
    """However small a tenth is; what may be dropped has the tenth only, and all of it is never
    more than the limit.
    """
    store = await make(stack, tmp_path, RECEIPT_SHARE * 8 * COST, largest=20 * COST)
    largest = [of_key("a", 20 * COST + DEAD_LETTER_OVERHEAD)]
    assert store.could_hold_at_receipt(largest)
    assert store.add_at_receipt(largest) == 0
    assert store.reserve_at_receipt(largest)
    assert store.add_at_receipt([letter()]) == 0
    assert not store.could_hold_at_receipt([of_key("a", 30 * COST)])
    small = await make(stack, tmp_path / "small", 8 * COST, largest=20 * COST)
    assert small.could_hold_at_receipt([of_key("a", 7 * COST)])
    assert not small.could_hold_at_receipt([of_key("a", 7 * COST + 1)])


async def test_rubbish_takes_no_room_that_is_not_there(
    stack: tuple[str, AsyncExitStack], tmp_path: Path
) -> None:
    """When all is used by the upstream's refusals, nothing is kept at receipt."""
    store = await make(stack, tmp_path, 10 * COST)
    assert store.add([letter() for _ in range(10)])
    assert store.add_at_receipt([letter(DEAD_LETTER_OVERHEAD)]) == 0


async def test_the_end_knows_no_limit(stack: tuple[str, AsyncExitStack], tmp_path: Path) -> None:
    """What is left at exit is kept whatever the limit: what it takes is the buffer's, which is
    free with it.
    """
    store = await make(stack, tmp_path, COST)
    store.add_at_exit([letter() for _ in range(5)])
    assert store.statistics().dead_letters == 5


async def test_receipt_is_logged_once_a_lane_and_reason(
    stack: tuple[str, AsyncExitStack], tmp_path: Path
) -> None:
    """A request of a thousand bad events is a line, not a thousand; it names the lane by its label
    and never shows the event.
    """
    store = await make(stack, tmp_path, 1000 * COST)
    bad = [letter(reason=Reason.MISSING_EVENT) for _ in range(3)]
    with capture_logs() as logs:
        store.add_at_receipt(
            [*bad, letter(reason=Reason.TOO_LARGE), letter(reason=Reason.INVALID_EVENT, lane=None)]
        )
    assert [(line["lane"], line["reason"], line["events"]) for line in logs] == [
        (lane_label(LANE), "missing_event", 3),
        (lane_label(LANE), "too_large", 1),
        ("none", "invalid_event", 1),
    ]
    assert LANE.api_key not in str(logs)
    assert "xxx" not in str(logs)


async def test_dropped_dead_letters_are_logged(
    stack: tuple[str, AsyncExitStack], tmp_path: Path
) -> None:
    """Past the share there is a line with how many events are gone."""
    store = await make(stack, tmp_path, RECEIPT_SHARE * (COST * 8 // 7 + 1))
    with capture_logs() as logs:
        assert store.add_at_receipt([letter(), letter(), letter()]) == 1
    assert logs[-1]["events"] == 2
    assert "dropped" in logs[-1]["event"]


def test_sqlite_can_be_used_by_two_threads() -> None:
    """The library is built so that a connection may be opened on one thread and used on another."""
    assert sqlite3.threadsafety == 3
