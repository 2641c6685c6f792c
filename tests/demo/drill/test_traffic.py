"""The drill's traffic, with an SDK that only remembers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from forwarder.demo.drill.traffic import Traffic
from tests.support.sdk import RecordingSdk
from tests.support.waiting import eventually

LIMIT = 10.0
MANY = 10_000_000


class Sdks:
    """Makes SDKs, and remembers them with what they were made of."""

    def __init__(self, after: Callable[[int], object] = lambda _: None) -> None:
        self.made: list[tuple[str, str, RecordingSdk]] = []
        self._after = after

    def connect(self, host: str, api_key: str) -> RecordingSdk:
        """A new one."""
        self.made.append((host, api_key, RecordingSdk(self._after)))
        return self.made[-1][2]


async def test_a_portion_has_so_many_events_and_the_next_goes_on() -> None:
    """Each portion is sent by an SDK of its own under its key; every event is remembered by its uuid, and none comes twice."""
    sdks = Sdks()
    traffic = Traffic("http://h", sdks.connect)
    await traffic.send("phc_one", 30)
    await traffic.send("phc_two", 20)
    await traffic.send("phc_one", 10)
    assert [(host, key, len(sdk.events)) for host, key, sdk in sdks.made] == [
        ("http://h", "phc_one", 30),
        ("http://h", "phc_two", 20),
        ("http://h", "phc_one", 10),
    ]
    assert {key: len(uuids) for key, uuids in traffic.sent.items()} == {"phc_one": 40, "phc_two": 20}
    assert traffic.everything == {event["uuid"] for _, _, sdk in sdks.made for event in sdk.events}


async def test_before_anything_is_sent_there_is_nothing() -> None:
    """No portion, no events."""
    assert Traffic("http://h", Sdks().connect).everything == frozenset()


async def test_cancelled_it_ends_at_the_next_event() -> None:
    """What was sent by then is remembered; the rest of the portion isn't sent, and no thread is left."""
    begun, go_on = threading.Event(), threading.Event()

    def hold(_: int) -> None:
        begun.set()
        assert go_on.wait(LIMIT)

    sdks = Sdks(hold)
    traffic = Traffic("http://h", sdks.connect)
    task = asyncio.create_task(traffic.send("phc_one", MANY))
    await eventually(begun.is_set)
    task.cancel()
    asyncio.get_running_loop().call_soon(go_on.set)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(traffic.everything) == len(sdks.made[0][2].events) < MANY
