"""A connection as far as it is not about HTTP: how it waits, how it is slowed down, and how it ends.

Invariants: a connection is among `Shared.connections` from `connection_made` to `connection_lost`, and what it adds to
`Headroom` it takes away again. No connection has a timer: one sweep looks at all of them, and a connection says that its
wait began anew by `_since = NEW`, which costs nothing on the way of a request. Nothing more is read from a sender that doesn't
read its answers. A connection that ends with something unread lingers: the answer would be lost in a reset otherwise.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, cast

from forwarder.core.path import ForwarderPath
from forwarder.core.ports import Intake
from forwarder.core.shares import Headroom, Pool
from forwarder.sources.http import answers
from forwarder.sources.http.addresses import NOBODY, ClientAddresses, Peer
from forwarder.sources.http.answers import Answer, Rejection
from forwarder.sources.http.cors import Cors
from forwarder.sources.http.known import Heads
from forwarder.sources.http.limits import LINGER_BYTES, RECEIVING_RETRY_AFTER, REFUSED_CONNECTIONS, BodyPace, HttpPolicy
from forwarder.sources.http.passthrough.service import PassThrough
from forwarder.sources.http.pending import Pending
from forwarder.sources.http.routes import Routes

IDLE: Final = 0
"""Between requests."""
HEAD: Final = 1
"""A request's header is coming in."""
BODY: Final = 2
"""A request's body is coming in."""
ENDING: Final = 3
"""The last answer waits, for its turn or for the intake; what still comes is thrown away."""
LINGERING: Final = 4
"""The last answer is written; what still comes is thrown away until the sender closes."""
CLOSING: Final = 5
"""The transport is told to close once the last answer is out."""

NEW: Final = -1.0
"""In place of the time at which a wait began: at the next sweep."""

TOO_MANY_CONNECTIONS: Final = answers.unavailable("There are too many connections.", RECEIVING_RETRY_AFTER, Rejection.TOO_MANY_CONNECTIONS)


class Shared:
    """What all connections of a listener have in common."""

    def __init__(
        self,
        policy: HttpPolicy,
        intake: Intake,
        headroom: Headroom | None = None,
        passthrough: PassThrough | None = None,
        *,
        path: ForwarderPath | None = None,
    ) -> None:
        self.policy = policy
        self.path = path
        """What recognizes a loop, and is added to what is passed through; None: nothing is checked or added."""
        self.passthrough = passthrough
        """What takes requests that bring no events; None: they are refused."""
        self.headroom = headroom or Headroom(policy.max_receiving)
        self.take = intake.take
        self.routes = Routes(policy.path_prefixes)
        self.cors = Cors(policy.cors_origins)
        self.addresses = ClientAddresses(policy.trusted_proxies, stamp=policy.stamp_ip)
        self.heads: tuple[Heads, Heads] = ({}, {})
        """What was decided on heads, of untrusted peers and of trusted ones."""
        self.connections: set[Connection] = set()
        self.places = Pool(policy.max_connections)
        """Of the connections that aren't rejected; by the peer's address: a proxy's connections are its own."""
        self.rejected = 0
        """Connections that found no place, since the start."""
        self.turned_away = 0
        """Connections over the limit that are still reading so."""
        self.ending = False
        """Whether each answer is its connection's last."""
        self.draining = False
        """Whether new requests are rejected, too."""
        self.empty = asyncio.Event()
        """Set while there is no connection."""
        self.empty.set()

    def drain(self, *, draining: bool) -> None:
        """From now on each answer is its connection's last, and new requests are refused; or no longer."""
        self.draining = draining
        self.end_connections(ending=draining)

    def end_connections(self, *, ending: bool = True) -> None:
        """From now on each answer is its connection's last; or no longer."""
        self.ending = ending
        for connection in self.connections:
            connection.end_with_next_answer(last=ending)

    def sweep(self, now: float) -> None:
        """End what has waited for too long."""
        for connection in list(self.connections):
            connection.check(now)


class Connection(asyncio.Protocol):
    """One sender's connection."""

    __slots__ = (
        "_ahead",
        "_counted",
        "_discarded",
        "_eof",
        "_full",
        "_last",
        "_pace",
        "_peer",
        "_phase",
        "_sender",
        "_shared",
        "_since",
        "_transport",
        "_turned_away",
        "_unread",
        "_waiting",
        "_write",
    )

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._phase = IDLE
        self._since = NEW
        self._pace: BodyPace | None = None
        self._counted = 0
        self._discarded = 0
        self._turned_away = False
        self._last = shared.ending
        """Whether the next answer is the last."""
        self._peer: Peer = NOBODY
        self._sender = ""
        """To whose account in the headroom `_counted` was added."""
        self._waiting: deque[Pending] = deque()
        """The answers that are not given yet, in the order of the requests."""
        self._full = False
        """Whether so many answers wait that nothing more is read."""
        self._unread = False
        """Whether the sender doesn't read its answers."""
        self._ahead = 0
        """How many bodies the sender brings faster than they are passed on: one, but for what a single read brought."""
        self._eof = False
        """Whether the sender sends no more."""

    # What the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Join the others, unless there are too many, of all senders or of this one."""
        shared = self._shared
        self._transport = cast("asyncio.Transport", transport)
        self._write = self._transport.write
        shared.connections.add(self)
        shared.empty.clear()
        self._peer = shared.addresses.peer(transport.get_extra_info("peername"))
        if not shared.places.acquire(self._peer.sender):
            self._turn_away()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 — how it was lost makes no difference
        """Leave nothing behind."""
        shared = self._shared
        self._phase = CLOSING
        self._release()
        self._forget_waiting()
        shared.connections.discard(self)
        if self._turned_away:
            shared.turned_away -= 1
        else:
            shared.places.release(self._peer.sender)
        if not shared.connections:
            shared.empty.set()

    def pause_writing(self) -> None:
        """The sender doesn't read its answers: read nothing more from it."""
        self._unread, self._since = True, NEW
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        """It reads again."""
        self._unread, self._since = False, NEW
        self._read_on()
        if self._waiting:
            self._waiting[0].resumed()

    def _read_on(self) -> None:
        """Read again, if there is no reason left not to."""
        if not (self._unread or self._full or self._ahead) and self._phase < CLOSING:
            self._transport.resume_reading()

    def eof_received(self) -> bool:
        """The sender sends no more. What waits for an answer still gets it; but over TLS, and if nothing waits, this is the end."""
        if not self._waiting or self._phase > ENDING or not self._transport.can_write_eof():
            return False
        self._eof, self._phase = True, ENDING
        self._release()
        return True

    # Time

    def check(self, now: float) -> None:
        """Called by the sweep: end the connection if its time is over."""
        if self._ahead:
            self._since = NEW  # nothing is read from it; a wait that no sweep has seen is too short to count
        elif self._since == NEW:
            self._since, self._pace = now, None
        elif self._is_late(now):
            self._expire()

    def _is_late(self, now: float) -> bool:
        policy = self._shared.policy
        if self._waiting and self._phase in (IDLE, ENDING):
            return False  # it isn't the sender who is late
        if self._unread and self._phase in (HEAD, BODY):
            return now - self._since >= policy.idle_timeout  # it can't bring the rest before it reads
        if self._phase == BODY:
            if self._pace is None:
                self._pace = BodyPace(self._since, policy.body_timeout, 0)
            return self._pace.late(now, self._received())
        limit = {IDLE: policy.idle_timeout, HEAD: policy.header_timeout}.get(self._phase, policy.linger_timeout)
        return now - self._since >= limit

    def _expire(self) -> None:
        if self._phase == IDLE:
            self._shut()
        elif self._phase == HEAD:
            self._refuse(answers.HEADER_TIMEOUT)
        elif self._phase == BODY:
            self._refuse(answers.BODY_TIMEOUT)
        else:
            self._transport.abort()

    # Ends

    @property
    def is_busy(self) -> bool:
        """Whether a request is in progress, or waits for its answer."""
        return self._phase in (HEAD, BODY) or bool(self._waiting)

    def close_if_idle(self) -> None:
        """Close it if no request is in progress, and none waits for its answer."""
        if self._phase == IDLE and not self._waiting:
            self._shut()

    def end_with_next_answer(self, *, last: bool) -> None:
        """The next answer is the connection's last, or need not be."""
        self._last = last

    def abort(self) -> None:
        """Drop it."""
        self._forget_waiting()
        self._transport.abort()

    def _forget_waiting(self) -> None:
        """Nobody is there any more for the answers that wait."""
        while self._waiting:
            self._waiting.popleft().forget()

    def _linger(self) -> None:
        self._phase, self._since = LINGERING, NEW
        self._release()
        self._transport.resume_reading()
        if self._transport.can_write_eof():
            self._transport.write_eof()

    def _finish(self) -> None:
        """End it after the last answer to a request that was read completely."""
        if self._transport.can_write_eof():
            self._linger()
        else:
            self._shut()

    def _shut(self) -> None:
        self._phase, self._since = CLOSING, NEW
        self._release()
        self._forget_waiting()
        self._transport.close()

    def _discard(self, size: int) -> None:
        self._discarded += size
        if self._discarded > LINGER_BYTES:
            self._shut()

    def _turn_away(self) -> None:
        self._turned_away = True
        self._shared.rejected += 1
        self._shared.turned_away += 1
        if self._shared.turned_away > REFUSED_CONNECTIONS:
            self._phase = CLOSING
            self._transport.abort()
        else:
            self._refuse(TOO_MANY_CONNECTIONS)

    def _release(self) -> None:
        if self._counted:
            self._shared.headroom.add(self._sender, -self._counted)
            self._counted = 0

    # What the protocol above knows

    def _received(self) -> int:
        """Bytes of the body in progress that have arrived."""
        raise NotImplementedError

    def _refuse(self, answer: Answer) -> None:
        """Give the last answer, before the request in progress is complete."""
        raise NotImplementedError
