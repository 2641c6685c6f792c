"""Senders that would exhaust a receiver: many connections, each with a large body that arrives bit
by bit.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections import Counter
from typing import Final

from benchmarks.answers import AnswerReader
from benchmarks.bodies import Request

PIECE: Final = 65536
PERIOD: Final = 0.25
"""Seconds between the pieces of a connection: 256 KiB/s each, faster than any limit for slow
senders cuts off.
"""


class Dribbler:
    """Sends `request` over `connections` connections at once, a piece of each at a time, over and
    over, in a thread of its own.
    """

    def __init__(self, request: Request, connections: int, port: int) -> None:
        self._request = request
        self._port = port
        self._places: list[tuple[socket.socket, int] | None] = [None] * connections
        self._reader = AnswerReader()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dribbler")
        self.statuses: Counter[int] = Counter()
        self.accepted = 0
        self.unanswered = 0
        """Events of bodies that were sent whole and never answered: taken or not, nobody knows."""

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, dropping the bodies that are under way."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.is_set():
            began = time.monotonic()
            for number, place in enumerate(self._places):
                self._places[number] = self._step(place)
            self._stopped.wait(max(0.0, PERIOD - (time.monotonic() - began)))
        for place in self._places:
            self._drop(place)

    def _step(self, place: tuple[socket.socket, int] | None) -> tuple[socket.socket, int] | None:
        """Send the next piece, or read the answer; None where the connection has ended and a new
        one is due in the next round.
        """
        try:
            sock, sent = place or (
                socket.create_connection(("127.0.0.1", self._port), timeout=5),
                0,
            )
            sock.setblocking(False)
            if _readable(sock):
                self._answered(sock, sent)
                return None
            with contextlib.suppress(BlockingIOError):
                sent += sock.send(memoryview(self._request.data)[sent : sent + PIECE])
        except OSError:
            self._drop(place)
            return None
        return sock, sent

    def _answered(self, sock: socket.socket, sent: int) -> None:
        answer = self._reader.read(sock.recv(PIECE))
        sock.close()
        if answer is None:
            self._uncertain(sent)
            return
        self.statuses[answer.status] += 1
        if answer.status == 200:
            self.accepted += self._request.events

    def _drop(self, place: tuple[socket.socket, int] | None) -> None:
        if place is not None:
            place[0].close()
            self._uncertain(place[1])

    def _uncertain(self, sent: int) -> None:
        if sent == len(self._request.data):
            self.unanswered += self._request.events


def _readable(sock: socket.socket) -> bool:
    return bool(select.select([sock], [], [], 0)[0])
