"""The one way into the buffer, for every source: `Gate.enter`.

A reader decodes and stamps what came (requests: `intake.py`, records: `records.py`), here or in
the decoder process; the steps after that are the same for all, and stand here in their order:
rules, routes, admission.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from forwarder.core.ack import AckCallback, AckLevel
from forwarder.core.clock import Clock
from forwarder.core.errors import Draining, MemoryShort, RequestTooLarge
from forwarder.core.event import Chunk, Lane
from forwarder.core.loop_turn import LoopTurn
from forwarder.core.shares import Headroom
from forwarder.intake.admission import Admitter, SubmissionPart
from forwarder.intake.content import Content
from forwarder.intake.decoder_jobs import RoutesOfJob, RulesOfJob
from forwarder.intake.large import Decoder, LargeBodies
from forwarder.intake.requests import ReadingRules
from forwarder.intake.steps import take_steps
from forwarder.wire.effort import INLINE, UNBOUNDED, Effort

if TYPE_CHECKING:
    from forwarder.rules.rules import EventRules


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
        self.attentive = False
        """Whether each request needs a closer look before it is read."""
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
        self.attentive = (
            self._draining
            or self._memory_short
            or bool(self.large is not None and self.large.origins)
        )


class Gate:
    """What lets contents into the buffer."""

    def __init__(self, admitter: Admitter, conditions: Conditions) -> None:
        self.admitter = admitter
        self.conditions = conditions
        self._routes = admitter.routes
        self._admit_one = admitter.admit_one

    def enter(
        self,
        content: Content,
        level: AckLevel,
        callback: AckCallback,
        *,
        effort: Effort = UNBOUNDED,
        source_waits: bool = False,
        given_up: Collection[Lane] = (),
    ) -> Sequence[SubmissionPart] | None:
        """Accept the content whole, or raise with nothing accepted and nothing counted; None if
        `level` is reached, else what is pending (`Admitter.admit`).

        Raises what rules, routes and the admission raise; `TooMuchWork` if rules or routes would
        take more than `effort`.
        """
        rules = self.conditions.rules
        take_steps(content, rules, self._routes, microseconds=effort.ruled)
        if source_waits:
            self._check_keys(content)
        elif content.is_one_chunk:
            return None if self._admit_one(content.chunks[0], level, callback) else ()
        return self.admitter.admit(
            content, level, callback, source_waits=source_waits, given_up=given_up
        )

    def _check_keys(self, content: Content) -> None:
        """Raises `RequestTooLarge` for a source's events, as rules leave them, of so many project
        keys that they might never find room together.
        """
        keys = len({chunk.lane for chunk in content.chunks})
        if keys > max(self.admitter.lanes.max_lanes // 2, 1):
            raise RequestTooLarge(
                f"events of {keys} project keys are more than can be accepted at once"
            )

    def steps_of_job(self, source: str) -> tuple[RulesOfJob | None, RoutesOfJob | None]:
        """The rules and routes that the decoder process applies to what it reads."""
        rules = self.conditions.rules
        encoded = None if self._routes is None else self._routes.encoded
        return (
            None
            if rules is None
            else RulesOfJob(rules.encoded, source, self.admitter.quotas.max_lane_bytes),
            None if encoded is None else RoutesOfJob(encoded, source),
        )

    def enter_one(
        self, chunk: Chunk, level: AckLevel, callback: AckCallback, effort: Effort
    ) -> bool:
        """`enter` for one chunk that has nothing beside it, without an object for it if nothing is
        done to it on the way; whether `level` is reached.
        """
        if self.conditions.rules is None:
            routes = self._routes
            if routes is None or routes.whole(chunk.lane, chunk.source) is not None:
                return self._admit_one(chunk, level, callback)
        try:
            return self.enter(Content([chunk]), level, callback, effort=effort) is None
        finally:
            self.conditions.turn.spend(self.admitter.clock.now() - chunk.received_at)
