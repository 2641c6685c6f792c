"""`Forwarder-Ack` through the whole pipeline: what 200 and 503 mean to a sender, with books that
balance after every callback.
"""

from __future__ import annotations

import asyncio
from typing import Any

from forwarder.core.ports import DropReason
from tests.support.clock import FakeClock
from tests.support.listening import post
from tests.support.upstream import OK, Answer, Upstream, plain
from tests.support.waiting import eventually
from tests.support.whole import Whole, accepted, always_balanced, batch, event, events

DELIVERED = "Forwarder-Ack: delivered"


async def test_delivered_means_delivered() -> None:
    """The answer comes after the upstream's own, for a request of several lanes too."""
    async with Upstream() as upstream, Whole(upstream.url) as whole:
        with always_balanced(whole.pipeline):
            sent = events(40)
            reply = await whole.send(post("/batch/", batch(sent), DELIVERED))
        assert reply.status == 200
        assert set(accepted(upstream)) == set(sent)


async def test_a_poison_event_is_acknowledged_too() -> None:
    """What the upstream refuses for good is a dead letter: its sender isn't
    made to repeat it indefinitely.
    """
    refused: Answer = plain(400)
    async with (
        Upstream(lambda request: refused if b"poison" in request.body else OK) as upstream,
        Whole(upstream.url) as whole,
    ):
        with always_balanced(whole.pipeline):
            reply = await whole.send(
                post("/batch/", batch([*events(5), event("poison")]), DELIVERED)
            )
            await whole.emptied()
        assert reply.status == 200
        assert whole.total(lambda lane: sum(lane.dead_lettered.values())) == 1


async def test_too_late_is_withdrawn() -> None:
    """While the upstream is down senders get 503 after the time limit: what waits is dropped and
    counted, nothing else is.
    """
    down: Answer = plain(500)
    clock = FakeClock()
    one_by_one: dict[str, Any] = {"delivery": {"concurrency": 1}, "batch": {"max_events": 3}}
    async with (
        Upstream(lambda _request: down) as upstream,
        Whole(upstream.url, clock, **one_by_one) as whole,
    ):
        with always_balanced(whole.pipeline):
            await whole.take(events(3, "kept"))
            connections = [await whole.connect() for _ in range(4)]
            asked = [
                asyncio.ensure_future(
                    client.ask(post("/batch/", batch(events(2, f"n{number}-")), DELIVERED))
                )
                for number, client in enumerate(connections)
            ]
            await eventually(lambda: whole.total(lambda lane: lane.buffered) == 11)
            await whole.until(lambda: all(future.done() for future in asked))
        assert [future.result().status for future in asked] == [503] * 4
        assert {future.result().headers["retry-after"] for future in asked} == {"1"}
        for client in connections:
            await client.close()
        dropped = whole.total(lambda lane: lane.dropped.get(DropReason.WITHDRAWN, 0))
        assert (dropped, whole.total(lambda lane: lane.buffered)) == (8, 3)


async def test_disk_needs_a_disk() -> None:
    """A sender that wants its events on disk isn't answered 200 by a buffer in memory."""
    async with Upstream() as upstream, Whole(upstream.url) as whole:
        reply = await whole.send(post("/batch/", batch(events(1)), "Forwarder-Ack: disk"))
        assert (reply.status, b"in memory" in reply.body) == (400, True)
        answer = await whole.send(post("/batch/", batch(events(1)), "Forwarder-Ack: memory"))
        assert answer.status == 200
