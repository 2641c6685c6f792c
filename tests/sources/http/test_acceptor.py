"""Several listeners on the same sockets, as workers have them: who accepts, and what happens when
one of them doesn't.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
from collections.abc import AsyncIterator

import pytest

from forwarder.core.connection_loads import TURNS, WorkerLoad, create_loads
from forwarder.sources.http.acceptor import PAUSE, RETRY
from forwarder.sources.http.sockets import TcpAddress, bind_tcp
from tests.support.listening import LIMIT, ListenerRig, listening, post, turns

SENDERS = 64


class SharedListeners:
    """Listeners that share an address; one beyond them is among the loads, too, but
    doesn't accept.
    """

    def __init__(self, listeners: list[ListenerRig], bound: socket.socket) -> None:
        self.listeners = listeners
        self.bound = bound
        self.senders: list[socket.socket] = []

    def open(self, count: int) -> None:
        """So many senders connect."""
        self.senders += [socket.create_connection(self.bound.getsockname()) for _ in range(count)]

    def close(self) -> None:
        """The senders close their connections."""
        while self.senders:
            self.senders.pop().close()

    @property
    def shares(self) -> list[int]:
        """How many connections each has."""
        return [worker.listener.statistics().connections for worker in self.listeners]

    async def accepted(self, count: int) -> int:
        """Wait until so many connections are accepted, and turn the clock; how often it took
        longer than a turn.
        """
        pauses = 0
        async with asyncio.timeout(LIMIT):
            while True:
                for _ in range(300):
                    await turns(1)
                    if sum(self.shares) == count:
                        return pauses
                pauses += 1
                for worker in self.listeners:
                    await worker.clock.advance(PAUSE)


@contextlib.asynccontextmanager
async def workers(count: int, absent: int = 0) -> AsyncIterator[SharedListeners]:
    """So many listeners on one address, and so many that were there, and are stopped."""
    known = count + absent
    loads = create_loads(known)
    (bound,) = bind_tcp(TcpAddress("127.0.0.1", 0))
    for number in range(known):
        loads.write(number, 0, 0)
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(loads.close)
        stack.callback(bound.close)
        started = [
            await stack.enter_async_context(
                listening(
                    inherited=[bound.dup()],
                    load=WorkerLoad(os.dup(loads.descriptor), known, number),
                )
            )
            for number in range(count)
        ]
        shared = SharedListeners(started, bound)
        stack.callback(shared.close)
        yield shared


async def test_short_connections_are_spread_evenly() -> None:
    """Senders that come one after the other, and have gone before the next,
    reach all workers alike.
    """
    async with workers(3) as them:
        answered = [0, 0, 0]
        for _ in range(SENDERS):
            them.open(1)
            await them.accepted(1)
            answered = [count + share for count, share in zip(answered, them.shares, strict=True)]
            them.close()
            await them.listeners[0].until(lambda: sum(them.shares) == 0)
        assert max(answered) - min(answered) <= TURNS + 1, answered


@pytest.mark.parametrize("count", [2, 4])
async def test_connections_are_spread_evenly(count: int) -> None:
    """Senders that connect all at once, and those that come one by one, are spread so that no
    worker has a quarter more than its part.
    """
    async with workers(count) as them:
        them.open(SENDERS)
        await them.accepted(SENDERS)
        assert max(them.shares) <= SENDERS / count * 1.25, them.shares
        for number in range(SENDERS):
            them.open(1)
            await them.accepted(SENDERS + number + 1)
        assert max(them.shares) <= 2 * SENDERS / count * 1.25, them.shares


async def test_a_worker_that_has_lost_its_connections_gets_the_next_ones() -> None:
    """What counts is the connections that there are now."""
    async with workers(2) as them:
        them.open(20)
        await them.accepted(20)
        them.close()
        await them.listeners[0].until(lambda: them.shares == [0, 0])
        one = await them.listeners[0].connect()
        assert (await one.ask(post())).status == 200
        them.open(9)
        await them.accepted(10)
        assert max(them.shares) <= 6, them.shares


async def test_a_stopped_worker_delays_no_client() -> None:
    """One that has fewest connections and doesn't accept is waited for a few times, each time for
    more connections than before.
    """
    async with workers(1, absent=1) as them:
        them.open(SENDERS)
        assert 1 <= await them.accepted(SENDERS) <= 7


async def test_a_sender_waits_for_a_file_to_open() -> None:
    """A connection that can't be accepted stays in the queue, and is answered as soon as it can."""
    async with listening() as to:
        host, _, port = to.listener.addresses[0].rpartition(":")
        with socket.create_connection((host, int(port))) as sender:
            sender.sendall(post())
            limits = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
            try:
                await turns()
                await to.clock.advance(RETRY)
                await turns()
                assert to.listener.statistics().connections == 0
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            await to.clock.advance(RETRY)
            await to.until(lambda: len(to.intake.accepted) == 1)


async def test_connections_in_the_queue_are_answered_at_shutdown() -> None:
    """Connections that have arrived when the listener stops are accepted,
    although it left them to others.
    """
    async with workers(1, absent=1) as them:
        to = them.listeners[0]
        them.open(SENDERS)
        for sender in them.senders:
            sender.sendall(post())
        await turns()
        assert sum(them.shares) < SENDERS
        await to.listener.stop_listening()
        await to.until(lambda: len(to.intake.accepted) == SENDERS)
