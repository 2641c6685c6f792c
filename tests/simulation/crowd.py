"""A crowd behind one address: it opens many connections and sends bodies slowly, so that what the
daemon may receive at a time is used up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tests.simulation.http import read_message
from tests.simulation.network import passing
from tests.simulation.plan import Hold

if TYPE_CHECKING:
    from tests.simulation.loop import SimulatedLoop
    from tests.simulation.network import Network, SimulatedTransport

ADDRESS: Final = "10.0.2.1"
PIECE: Final = 1000
"""Bytes of a body that are sent at a time, every `PAUSE` seconds."""
PAUSE: Final = 0.2


class Crowd:
    """All of it: to the daemon it is one sender."""

    def __init__(
        self,
        loop: SimulatedLoop,
        network: Network,
        to: tuple[str, int],
        say: Callable[[str, str], None],
    ) -> None:
        self._loop = loop
        self._network = network
        self._to = to
        self._say = say
        self._sent: dict[SimulatedTransport, int] = {}
        """Bytes of the bodies that are on their way, by their connections."""

    @property
    def connections(self) -> int:
        """Those that the daemon has accepted, and not rejected."""
        return sum(map(_is_served, self._sent))

    @property
    def received(self) -> int:
        """Bytes of bodies that the daemon has received, and not rejected."""
        return sum(
            max(0, sent - end.get_write_buffer_size())
            for end, sent in self._sent.items()
            if _is_served(end)
        )

    async def hold(self, act: Hold) -> None:
        """Send so many bodies at once, slowly."""
        statuses = await asyncio.gather(*(self._send(act) for _ in range(act.connections)))
        told = ", ".join(f"{statuses.count(status)} x {status}" for status in sorted({*statuses}))
        self._say("the crowd", f"was answered {told}")

    async def _send(self, act: Hold) -> int:
        """One of them; its answer's status, 0 without one."""
        try:
            reader, transport = await self._network.dial(*self._to, peer=ADDRESS)
        except OSError:
            return 0
        self._sent[transport] = 0
        answer = self._loop.create_task(read_message(reader), name="an answer for the crowd")
        try:
            transport.write(
                b"POST /batch/ HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % act.size
            )
            while self._sent[transport] < act.size and not answer.done():
                piece = min(PIECE, act.size - self._sent[transport])
                transport.write(b"x" * piece)
                self._sent[transport] += piece
                await passing(PAUSE)
            message = await answer
            return int(message.first.split()[1]) if message else 0
        except (OSError, asyncio.IncompleteReadError):
            return 0
        finally:
            answer.cancel()
            transport.close()
            del self._sent[transport]


def _is_served(end: SimulatedTransport) -> bool:
    """Whether the daemon has begun a connection, and has neither answered nor closed it."""
    there = end.peer
    return there.begun and not there.written and not there.is_closing()
