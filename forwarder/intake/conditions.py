"""What holds for all sources alike, whatever they read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forwarder.core.clock import Clock
from forwarder.core.errors import Draining, MemoryShort
from forwarder.core.loop_turn import LoopTurn
from forwarder.core.shares import Headroom
from forwarder.intake.large import Decoder, LargeBodies
from forwarder.stamping.stamp_event import ReadingRules
from forwarder.wire.effort import INLINE, UNBOUNDED, Effort

if TYPE_CHECKING:
    from forwarder.rules.event_rules import EventRules


class Conditions:
    """What holds for all sources alike: the rules, how much is done at once, and whether anything
    is accepted at all.
    """

    def __init__(
        self,
        clock: Clock,
        reading: ReadingRules = ReadingRules(),  # noqa: B008 - it never changes
        *,
        rules: EventRules | None = None,
        decoder: Decoder | None = None,
        headroom: Headroom | None = None,
        effort: Effort = INLINE,
    ) -> None:
        """`reading`: limits of what is read. `decoder`: does what takes more than `effort`; None:
        it is done at once, however long it takes. `headroom`: bounds the bytes that wait for it.
        """
        self.reading = reading
        self.rules = rules
        """The rules for events; a reload sets others."""
        self.large = (
            None if decoder is None else LargeBodies(decoder, clock, headroom, self._on_change)
        )
        """The queue before the decoder process; None: everything is done at once."""
        self.effort = UNBOUNDED if decoder is None else effort
        self.turn = LoopTurn()
        """How long requests have occupied the event loop in this turn of it."""
        self.needs_check = False
        """Whether anything may have to be rejected, or wait, before it is read: `check` may raise,
        or a connection has large bodies that aren't accepted yet. One flag for the usual case.
        """
        self._draining = self._memory_short = False

    @property
    def draining(self) -> bool:
        """Whether new requests are rejected; those that were received before are still accepted."""
        return self._draining

    @draining.setter
    def draining(self, draining: bool) -> None:
        self._draining = draining
        self._on_change()

    @property
    def memory_short(self) -> bool:
        """Whether new requests and records are rejected for want of memory."""
        return self._memory_short

    @memory_short.setter
    def memory_short(self, short: bool) -> None:
        self._memory_short = short
        self._on_change()

    def check(self) -> None:
        """Raises `Draining` or `MemoryShort` while nothing new is accepted."""
        if self._draining:
            raise Draining("shutting down", retry_after=2.0)
        if self._memory_short:
            raise MemoryShort(
                "memory is short",
                retry_after=2.0,
                hint="the daemon's status says how much there is, and what limits it",
            )

    async def drain(self, seconds: float) -> bool:
        """Wait until no large body is pending, at most `seconds`; whether that is so."""
        return self.large is None or await self.large.drain(seconds)

    async def close(self) -> None:
        """Ask the senders of large bodies that are not accepted to repeat them."""
        if self.large is not None:
            await self.large.close()

    def _on_change(self) -> None:
        self.needs_check = (
            self._draining
            or self._memory_short
            or bool(self.large is not None and self.large.origins)
        )
