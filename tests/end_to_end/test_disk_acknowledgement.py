"""`Forwarder-Ack` with a buffer on disk, and dead letters in a file: 200 never means more than
what is durable.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from typing import Any, Final
from unittest.mock import patch

import pytest

from forwarder.core.ports import DropReason
from forwarder.deadletter.table import DeadLetterCommit
from tests.support.clock import FakeClock
from tests.support.listening import post
from tests.support.upstream import OK, Answer, Request, Upstream, plain
from tests.support.waiting import eventually, tick
from tests.support.whole import Whole, accepted, always_balanced, batch, event, events

DISK: Final[dict[str, Any]] = {"kind": "disk", "max_bytes": "8MiB"}
DELIVERED: Final = "Forwarder-Ack: delivered"
KINDS: Final = [DISK, {"kind": "memory"}]


def poisoned(request: Request) -> Answer:
    """An upstream that refuses what has poison in it."""
    return plain(400, "bad event") if b"poison" in request.body else OK


async def test_delivered_waits_for_the_upstream() -> None:
    """On disk is not enough for who asks for more: the answer comes after the upstream's own, for
    a request of several lanes too.
    """
    go_on = asyncio.Event()
    async with (
        Upstream(lambda _: Answer(when=go_on)) as upstream,
        Whole(upstream.url, buffer={**DISK, "ack_timeout": "1h"}) as whole,
    ):
        with always_balanced(whole):
            sent = events(40)
            await whole.take(sent[:20])
            asked = asyncio.ensure_future(whole.send(post("/batch/", batch(sent[20:]), DELIVERED)))
            await eventually(lambda: whole.total(lambda lane: lane.buffered) == 40)
            await eventually(lambda: upstream.in_flight > 0)
            assert not asked.done()
            go_on.set()
            assert (await asked).status == 200
        assert set(accepted(upstream)) == set(sent)


@pytest.mark.parametrize("buffer", KINDS, ids=["disk", "memory"])
async def test_a_dead_letter_is_acknowledged_once_it_is_durable(buffer: dict[str, Any]) -> None:
    """A sender whose event is refused for good gets 200 only after the letter is in its file."""
    write = DeadLetterCommit._commit
    go_on = threading.Event()
    at_it = threading.Event()

    def waiting(job: DeadLetterCommit, connection: sqlite3.Connection, *, drops: bool) -> None:
        """Write letters only when the test says so."""
        if job.dead_letters:
            at_it.set()
            assert go_on.wait(20)
        write(job, connection, drops=drops)

    with patch.object(DeadLetterCommit, "_commit", waiting):
        async with (
            Upstream(poisoned) as upstream,
            Whole(upstream.url, buffer={**buffer, "ack_timeout": "1h"}) as whole,
        ):
            with always_balanced(whole):
                asked = asyncio.ensure_future(
                    whole.send(post("/batch/", batch([*events(5), event("poison")]), DELIVERED))
                )
                await eventually(at_it.is_set)
                await eventually(lambda: whole.total(lambda lane: lane.total_dead) == 1)
                await eventually(lambda: len(accepted(upstream)) == 5)
                for _ in range(20):
                    await tick()
                assert not asked.done()
                go_on.set()
                assert (await asked).status == 200
            await whole.restart(crash=True)
            assert [data for data, _ in await whole.letters()] == [event("poison")]
            assert whole.total(lambda lane: lane.buffered) == 0


@pytest.mark.parametrize("buffer", KINDS, ids=["disk", "memory"])
async def test_a_letter_that_cant_be_written_is_no_200(buffer: dict[str, Any]) -> None:
    """Its sender is asked to come back; the lane waits until letters can be written, and then it
    is one, once.
    """
    write = DeadLetterCommit._commit
    broken = True

    def failing(job: DeadLetterCommit, connection: sqlite3.Connection, *, drops: bool) -> None:
        """A file that takes nothing, or does."""
        if broken:
            raise sqlite3.OperationalError("disk I/O error")
        write(job, connection, drops=drops)

    with patch.object(DeadLetterCommit, "_commit", failing):
        async with (
            Upstream(poisoned) as upstream,
            Whole(upstream.url, buffer={**buffer, "ack_timeout": "1h"}) as whole,
        ):
            with always_balanced(whole):
                reply = await whole.send(
                    post("/batch/", batch([*events(5), event("poison")]), DELIVERED)
                )
                assert (reply.status, "retry-after" in reply.headers) == (503, True)
                assert any(
                    "dead letters can't be written" in warning
                    for warning in whole.snapshot.warnings
                )
                assert whole.snapshot.ready
                broken = False
                await eventually(
                    lambda: (
                        not any("dead letters" in warning for warning in whole.snapshot.warnings)
                    )
                )
            assert [data for data, _ in await whole.letters()] == [event("poison")]


@pytest.mark.parametrize("crash", [False, True])
async def test_too_late_is_withdrawn_for_good(*, crash: bool) -> None:
    """Not delivered in time: 503, and what waits is dropped and counted, also in the books of the
    next start.
    """
    clock = FakeClock()
    one_by_one: dict[str, Any] = {"delivery": {"concurrency": 1}, "batch": {"max_events": 3}}
    async with (
        Upstream(lambda _: plain(500)) as upstream,
        Whole(upstream.url, clock, buffer=DISK, **one_by_one) as whole,
    ):
        with always_balanced(whole):
            await whole.take(events(3, "kept"))
            clients = [await whole.connect() for _ in range(4)]
            asked = [
                asyncio.ensure_future(
                    client.ask(post("/batch/", batch(events(2, f"n{number}-")), DELIVERED))
                )
                for number, client in enumerate(clients)
            ]
            await eventually(lambda: whole.total(lambda lane: lane.buffered) == 11)
            await whole.until(lambda: all(future.done() for future in asked))
            assert [future.result().status for future in asked] == [503] * 4
            for client in clients:
                await client.close()
            await whole.written()
            await whole.restart(crash=crash)
        assert whole.total(lambda lane: lane.dropped[DropReason.WITHDRAWN]) == 8
        assert whole.total(lambda lane: lane.buffered) == 3
        upstream.answer = lambda _: OK
        await whole.emptied()
        assert set(accepted(upstream)) == set(events(3, "kept"))


async def test_a_sender_may_ask_for_the_disk() -> None:
    """With `ack: memory` configured, the request that asks for `disk` alone waits for the fsync;
    less than configured can't be had.
    """
    async with (
        Upstream(lambda _: plain(500)) as upstream,
        Whole(upstream.url, buffer={**DISK, "ack": "memory"}) as whole,
    ):
        await whole.take(events(5, "memory"))
        reply = await whole.send(post("/batch/", batch(events(5, "disk")), "Forwarder-Ack: disk"))
        assert reply.status == 200
        await whole.restart(crash=True)
        # what came before is in the log before it
        assert whole.total(lambda lane: lane.buffered) == 10
