"""How a connection waits, is slowed down and ends: what its answers and what is passed through on
it have to agree on.

Invariants: nothing more is read from a sender while it doesn't read its answers, while too many of
its answers are pending, while an upstream takes a body more slowly than it comes, or while others
have their turn in the middle of a large body; reading resumes when the last of these reasons is
gone. No connection has a timer: one sweep looks at all
of them, and a wait begins anew by `since = NEW`, which costs nothing on the way of a request. A
connection that ends with something unread lingers: the answer would be lost in a reset otherwise.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Final

from forwarder.sources.http.protocol.limits import LINGER_BYTES, BodyPace, HttpPolicy

IDLE: Final = 0
"""Between requests."""
HEAD: Final = 1
"""A request's header is coming in."""
BODY: Final = 2
"""A request's body is coming in."""
ENDING: Final = 3
"""The last answer is pending, for its turn or for the intake; what still comes is discarded."""
LINGERING: Final = 4
"""The last answer is written; what still comes is discarded until the sender closes."""
CLOSING: Final = 5
"""The transport closes once the last answer is out."""

TURN_BYTES: Final = 1 << 20
"""Bytes of a body that are read before others have their turn. The event loop reads 2 MiB of each
connection in one go, and new memory is slow: six bodies of 18 MB kept everyone waiting for 110 to
150 ms.
"""

NEW: Final = -1.0
"""In place of the time at which a wait began: at the next sweep."""

_RESET: Final = struct.pack("ii", 1, 0)
"""Of SO_LINGER: on, for no time."""


class Lifecycle:
    """The phase of one connection, what keeps it from being read, and its end."""

    __slots__ = (
        "_discarded",
        "_full",
        "_pace",
        "_resting",
        "_transport",
        "_unsent_bodies",
        "eof",
        "last",
        "phase",
        "since",
        "unread",
        "write",
    )

    def __init__(self, transport: asyncio.Transport, *, last: bool) -> None:
        self._transport = transport
        self.write = transport.write
        self.phase = IDLE
        self.since = NEW
        """When the wait of this phase began, in monotonic seconds."""
        self.last = last
        """Whether the next answer is the last."""
        self.eof = False
        """Whether the sender sends no more."""
        self.unread = False
        """Whether the sender doesn't read its answers."""
        self._full = False
        """Whether too many answers are pending."""
        self._unsent_bodies = 0
        """How many bodies the sender brings faster than they are passed on: one, but for what a
        single read brought.
        """
        self._resting = False
        """Whether others have their turn in the middle of a body."""
        self._pace: BodyPace | None = None
        self._discarded = 0

    # Reading

    def stop_writing(self) -> None:
        """The sender doesn't read its answers."""
        self.unread = True
        self.since = NEW
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        """The sender reads again."""
        self.unread = False
        self.since = NEW
        self._resume_reading()

    def limit_answers(self, *, full: bool) -> None:
        """Too many answers are pending; or no longer."""
        if full != self._full:
            self._full = full
            if full:
                self._transport.pause_reading()
            else:
                self._resume_reading()

    def hold_body(self) -> None:
        """A body comes faster than it is passed on. `release_body` has to follow."""
        self._unsent_bodies += 1
        self._transport.pause_reading()

    def release_body(self) -> None:
        """The body is passed on, or discarded."""
        self._unsent_bodies -= 1
        self._resume_reading()

    def let_others(self) -> None:
        """Read on when the event loop has looked at everything else once."""
        if not self._resting:
            self._resting = True
            self._transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self._resting = False
        self._resume_reading()

    def _resume_reading(self) -> None:
        held = self.unread or self._full or self._unsent_bodies or self._resting
        if not held and self.phase < CLOSING and not self._transport.is_closing():
            self._transport.resume_reading()

    def discard(self, size: int) -> bool:
        """So many bytes came after the last request; whether these are too many to read on."""
        self._discarded += size
        return self._discarded > LINGER_BYTES

    # Time

    def is_late(self, now: float, policy: HttpPolicy, received: int, *, pending: bool) -> bool:
        """Whether its time is over. `received`: bytes of the body that is coming in; `pending`:
        whether it waits for answers.
        """
        if self._unsent_bodies:
            # nothing is read from it; a wait that no sweep has seen is too short to count
            self.since = NEW
            return False
        if self.since == NEW:
            self.since = now
            self._pace = None
            return False
        if pending and self.phase in (IDLE, ENDING):
            return False  # the sender isn't late
        if self.unread and self.phase in (HEAD, BODY):
            # it can't bring the rest before it reads
            return now - self.since >= policy.idle_timeout
        if self.phase == BODY:
            if self._pace is None:
                self._pace = BodyPace(self.since, policy.body_timeout, 0)
            return self._pace.late(now, received)
        limit = {IDLE: policy.idle_timeout, HEAD: policy.header_timeout}.get(
            self.phase, policy.linger_timeout
        )
        return now - self.since >= limit

    # Ends

    def end(self, *, read: bool) -> None:
        """End the connection after the last answer, which is written; `read`: to a request that
        was read completely.
        """
        if self.eof or (read and not self._transport.can_write_eof()):
            self.close()
            return
        self.phase = LINGERING
        self.since = NEW
        self._transport.resume_reading()
        if self._transport.can_write_eof():
            self._transport.write_eof()

    def half_close(self) -> bool:
        """The sender sends no more: whether answers can still be written to
        it. Over TLS they can't.
        """
        if self.phase > ENDING or not self._transport.can_write_eof():
            return False
        self.eof = True
        self.phase = ENDING
        return True

    def close(self) -> None:
        """Close the transport once everything is written."""
        self.phase = CLOSING
        self.since = NEW
        self._transport.close()

    def abort(self) -> None:
        """Drop the connection."""
        self._transport.abort()

    def reset(self) -> None:
        """Drop the connection with a reset: where its end is that of a body, an ordinary end would
        pass for one.
        """
        bound = self._transport.get_extra_info("socket")
        if bound is not None:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._transport.abort()
