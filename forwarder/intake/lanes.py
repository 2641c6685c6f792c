"""How many lanes there may be, and which keys may open one.

A lane exists while the buffer holds events of it; idle lanes are forgotten. Unknown keys may have half of `max_lanes`, so that
made-up ones can't lock out a good one: it is checked with the upstream, and accepted when it comes again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from forwarder.core.errors import RequestTooLarge, TooManyLanes, UnknownKey
from forwarder.core.event import Chunk, Lane
from forwarder.intake.known_keys import KnownKeys
from forwarder.intake.quotas import Holding
from forwarder.wire.token import check_token

MAX_REMEMBERED: Final = 4096
"""Keys that were found well-formed and allowed, and aren't looked at again."""


class LaneRegistry:
    """Says which lanes may take events now."""

    def __init__(
        self,
        max_lanes: int,
        held: Mapping[Lane, Holding],
        known: KnownKeys,
        *,
        api_keys: Collection[str] = (),
        ask: Callable[[str], object] = lambda _key: None,
    ) -> None:
        """`api_keys`: the only ones that HTTP senders may use, if there are any; `ask`: called with an unknown key that found no place."""
        self._held = held
        self._known = known
        self._ask = ask
        self.configure(max_lanes, api_keys)

    def configure(self, max_lanes: int, api_keys: Collection[str]) -> None:
        """Use other limits from now on; lanes that are there stay."""
        self.max_lanes = max_lanes
        self._api_keys = frozenset(api_keys)
        self._live: dict[str, Lane] = {}
        self._recorded: dict[str, Lane] = {}

    @property
    def api_keys(self) -> Collection[str]:
        """The only project keys that HTTP senders may use; empty if they may use any."""
        return self._api_keys

    def check_key(self, api_key: str) -> None:
        """Raises `InvalidToken` for a key that isn't in the configured list, if there is one."""
        if self._api_keys and api_key not in self._api_keys:
            raise UnknownKey("this project key isn't in sources.http.api_keys")

    def check(self, lanes: Collection[Lane]) -> None:
        """Raises `RequestTooLarge` for more lanes in one request than there may ever be, and what `check_key` raises for each."""
        if len(lanes) > self.max_lanes:
            raise RequestTooLarge(f"the request has more project keys than can be held ({self.max_lanes})")
        for lane in lanes:
            self.check_key(lane.api_key)

    def live(self, api_key: str) -> Lane:
        """The live lane of a key. Raises `InvalidToken` if it can't be a key, or isn't in the configured list."""
        lane = self._live.get(api_key)
        if lane is None:
            self.check_key(check_token(api_key))
            if len(self._live) >= MAX_REMEMBERED:
                self._live.clear()
            lane = self._live[api_key] = Lane(api_key)
        return lane

    def of_record(self, api_key: str) -> Lane:
        """The live lane of a key that a source's record names: any that can be one. Raises `InvalidToken` if it can't."""
        lane = self._recorded.get(api_key)
        if lane is None:
            check_token(api_key)
            if len(self._recorded) >= MAX_REMEMBERED:
                self._recorded.clear()
            lane = self._recorded[api_key] = Lane(api_key)
        return lane

    def admit(self, chunks: Sequence[Chunk]) -> None:
        """Raises `TooManyLanes` if one of the chunks opens a lane and there is no place for it."""
        for chunk in chunks:
            if chunk.lane not in self._held:
                self._admit_new(list({chunk.lane: None for chunk in chunks if chunk.lane not in self._held}))
                return

    def _admit_new(self, new: Sequence[Lane]) -> None:
        if len(self._held) + len(new) > self.max_lanes:
            raise TooManyLanes(f"events of {self.max_lanes} project keys are waiting already", retry_after=5.0)
        unknown = [lane for lane in new if lane.api_key not in self._known]
        most = self.max_lanes // 2 if self._known.verifiable or self._known.protects else self.max_lanes
        if unknown and self._known.unknown.lanes + len(unknown) > max(most, 1):
            for lane in unknown:
                self._ask(lane.api_key)
            raise TooManyLanes("too many unknown project keys are waiting; this one is being checked", retry_after=5.0)
