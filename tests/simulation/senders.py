"""Senders: each sends its requests in order on a connection that it keeps, and repeats what was not
accepted, as SDKs do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from tests.simulation.entrances import body_of, odd_request, request_of, to_repeat
from tests.simulation.http import Message, read_message
from tests.simulation.network import passing
from tests.simulation.plan import Event, OddAct, Send

if TYPE_CHECKING:
    from tests.simulation.loop import SimulatedLoop
    from tests.simulation.network import Network, SimulatedTransport

ADDRESSES: Final = "10.0.1."
"""What the addresses of all senders begin with."""
CALLERS: Final = "10.0.3."
"""And those of all who make calls."""
PATIENCE: Final = 60.0
"""Seconds that a sender waits for an answer: longer than any answer takes."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """A try that was rejected."""

    status: int
    why: str
    """What the answer says."""
    size: int
    """Bytes of the body as it was sent."""
    unpacked: int
    """Bytes of it before it was encoded."""
    connections: int
    """That senders and callers had at that moment."""


@dataclass(slots=True)
class Answered:
    """What became of a request: the statuses of its tries, 0 for none."""

    send: Send
    began: float
    """When its first try began."""
    statuses: list[int] = field(default_factory=list)
    at: float = 0.0
    """When the last answer came."""
    rejections: list[Rejection] = field(default_factory=list)
    part: str = ""
    """What it is a part of, in order; else it is a whole by itself."""
    events: list[Event] = field(default_factory=list)
    """Those that were accepted."""

    @property
    def whole(self) -> object:
        """What has an order of its own: a request, or a partition."""
        return self.part or self.send.events

    @property
    def is_in_one(self) -> bool:
        """Whether all of its events were accepted at once, if they were."""
        return self.statuses.count(200) <= 1

    @property
    def maybe(self) -> int:
        """Tries that were accepted, perhaps."""
        return sum(status in (0, 200, 503) for status in self.statuses)


@dataclass(frozen=True, slots=True)
class OddAnswer:
    """What became of an odd request; no status: there was no answer, or no connection."""

    odd: OddAct
    began: float
    at: float
    status: int
    wanted: Sequence[int]


class Sender:
    """One of them."""

    def __init__(
        self,
        number: int,
        loop: SimulatedLoop,
        network: Network,
        to: Callable[[], tuple[str, int]],
        say: Callable[[str, str], None],
    ) -> None:
        self._name = f"sender {number}"
        self._peer = f"{ADDRESSES}{number + 1}"
        self._loop = loop
        self._network = network
        self._to = to
        self._say = say
        self._queue: asyncio.Queue[Send | None] = asyncio.Queue()
        self._transport: SimulatedTransport | None = None
        self._reader: asyncio.StreamReader | None = None
        self.answers: list[Answered] = []
        self.odd: list[OddAnswer] = []
        self.refused: list[float] = []
        """When a connection was."""
        self.starved: list[tuple[float, float]] = []
        """When a try began that got no answer in all the time, and when that was over."""
        self.on_accepted: Callable[[Send], None] = lambda _: None
        """Called at the moment of a 200."""

    def send(self, request: Send | None) -> None:
        """Send a request after those before it; None: it was the last."""
        self._queue.put_nowait(request)

    async def run(self) -> None:
        """Until the last request has its answer."""
        try:
            while (request := await self._queue.get()) is not None:
                await self._ask(request)
        finally:
            self._hang_up()

    async def ask_oddly(self, odd: OddAct, max_body: int) -> None:
        """Send something odd, on a connection of its own, and read the answer."""
        began = self._loop.time()
        text, wanted = odd_request(odd, max_body)
        status = 0
        transport = None
        try:
            async with asyncio.timeout(2 * PATIENCE):
                reader, transport = await self._connect()
                transport.write(text)
                if message := await read_message(reader):
                    status = _status(message)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            if transport is not None:
                transport.close()
        self.odd.append(OddAnswer(odd, began, self._loop.time(), status, wanted))
        self._say(self._name, f"something odd, {odd.what}: {status or 'no answer'}")

    async def _ask(self, request: Send) -> None:
        answered = Answered(request, self._loop.time())
        self.answers.append(answered)
        left = list(request.events)
        for number in range(request.tries):
            if number:
                await passing(0.5 * 2**number)
            text = request_of(request, left)
            message = await self._try(text, breaks_off=request.breaks_off and not number)
            status = 0 if message is None else _status(message)
            answered.statuses.append(status)
            answered.at = self._loop.time()
            first = left[0].number
            self._say(self._name, f"event {first} and what is with it: {status or 'no answer'}")
            if status >= 400 and message is not None:
                why = message.body.decode(errors="replace").strip()
                size = len(text) - text.index(b"\r\n\r\n") - 4
                there = self._network.accepted(ADDRESSES, CALLERS)
                unpacked = len(body_of(request, left))
                answered.rejections.append(Rejection(status, why, size, unpacked, there))
            if status == 200 and message is not None:
                again = to_repeat(request, left, message.body)
                accepted = [event for event in left if event not in again]
                answered.events += accepted
                self.on_accepted(replace(request, events=tuple(accepted)))
                left = again
            if not left or (status not in (0, 200, 429) and status < 500):
                return

    async def _try(self, text: bytes, *, breaks_off: bool) -> Message | None:
        """The answer, if there is one."""
        began = self._loop.time()
        try:
            async with asyncio.timeout(PATIENCE):
                if self._transport is None or self._transport.is_closing() or self._reader is None:
                    self._reader, self._transport = await self._connect()
                reader, transport = self._reader, self._transport
                if breaks_off:
                    transport.write(text[: len(text) * 2 // 3])
                    self._hang_up()
                    return None
                transport.write(text)
                message = await read_message(reader)
        except (OSError, asyncio.IncompleteReadError) as error:
            if isinstance(error, TimeoutError):
                self.starved.append((began, self._loop.time()))
            self._hang_up()
            return None
        if message is None or message.headers.get("connection") == "close":
            self._hang_up()
        return message

    async def _connect(self) -> tuple[asyncio.StreamReader, SimulatedTransport]:
        try:
            return await self._network.dial(*self._to(), peer=self._peer)
        except ConnectionRefusedError:
            self.refused.append(self._loop.time())
            raise

    def _hang_up(self) -> None:
        if self._transport is not None:
            self._transport.close()
        self._transport = self._reader = None


def _status(message: Message) -> int:
    """That of an answer; a beacon's 204 says the same as 200."""
    status = int(message.first.split()[1])
    return 200 if status == 204 else status
