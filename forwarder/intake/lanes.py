"""Which project keys may open a lane, and which of them are known.

A lane exists while the buffer holds events of it; idle lanes are forgotten. Unknown keys may have
half of `max_lanes`, so that made-up ones can't lock out a valid one: it is checked with the
upstream, and accepted when its sender repeats the request.

A key is known if it is configured, or if the key check verified it, now or before the last
restart. Keys of earlier runs are known by their hashes alone (`storage.key_file`). Invariants: at
most `MAX_KEYS` verified keys are remembered, and the one verified longest ago is forgotten first;
a key that the upstream refuses later stays known, for its lane is halted then, and an upstream
that refuses every key for an hour would make all of them unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, Protocol

from forwarder.core.errors import RequestTooLarge, TooManyLanes, UnknownKey
from forwarder.core.event import Chunk, Lane
from forwarder.core.lanes import LanePool
from forwarder.storage.key_file import MAX_KEYS, KeyHashes
from forwarder.wire.identity import check_token

MAX_REMEMBERED: Final = 4096
"""Keys that were found well-formed and allowed, and are not checked again."""

NO_HASHES: Final = KeyHashes(b"", ())


class LaneUsage(Protocol):
    """What the buffer holds of a lane."""

    bytes: int

    @property
    def pool(self) -> LanePool | None:
        """The pool that the lane is in."""


class LaneRegistry:
    """Decides which lanes may accept events now."""

    def __init__(
        self,
        max_lanes: int,
        held: Mapping[Lane, LaneUsage],
        known: KnownKeys,
        *,
        api_keys: Collection[str] = (),
        ask: Callable[[str], object] = lambda _key: None,
    ) -> None:
        """`api_keys`: the only ones that HTTP senders may use, if there are any; `ask`: called
        with an unknown key that found no room.
        """
        self._held = held
        self._known = known
        self._ask = ask
        self.configure(max_lanes, api_keys)

    def configure(self, max_lanes: int, api_keys: Collection[str]) -> None:
        """Use other limits from now on; existing lanes stay."""
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
        """Raises `RequestTooLarge` for more lanes in one request than there may ever be, and what
        `check_key` raises for each.
        """
        if len(lanes) > self.max_lanes:
            raise RequestTooLarge(
                f"the request has more project keys than can be held ({self.max_lanes})"
            )
        for lane in lanes:
            self.check_key(lane.api_key)

    def live(self, api_key: str) -> Lane:
        """The live lane of a key. Raises `InvalidToken` if it can't be a key, or isn't in the
        configured list.
        """
        lane = self._live.get(api_key)
        if lane is None:
            self.check_key(check_token(api_key))
            if len(self._live) >= MAX_REMEMBERED:
                self._live.clear()
            lane = self._live[api_key] = Lane(api_key)
        return lane

    def of_record(self, api_key: str) -> Lane:
        """The live lane of a key that a source's record names: any valid one. Raises
        `InvalidToken` if it can't.
        """
        lane = self._recorded.get(api_key)
        if lane is None:
            check_token(api_key)
            if len(self._recorded) >= MAX_REMEMBERED:
                self._recorded.clear()
            lane = self._recorded[api_key] = Lane(api_key)
        return lane

    def admit(self, chunks: Sequence[Chunk]) -> None:
        """Raises `TooManyLanes` if one of the chunks opens a lane and there is no room for it."""
        for chunk in chunks:
            if chunk.lane not in self._held:
                self._admit_new(
                    list({chunk.lane: None for chunk in chunks if chunk.lane not in self._held})
                )
                return

    def _admit_new(self, new: Sequence[Lane]) -> None:
        if len(self._held) + len(new) > self.max_lanes:
            raise TooManyLanes(
                f"events of {self.max_lanes} project keys are buffered already", retry_after=5.0
            )
        unknown = [lane for lane in new if lane.api_key not in self._known]
        most = (
            self.max_lanes // 2
            if self._known.verifiable or self._known.protects
            else self.max_lanes
        )
        if unknown and self._known.unknown.lanes + len(unknown) > max(most, 1):
            for lane in unknown:
                self._ask(lane.api_key)
            raise TooManyLanes(
                "too many unknown project keys have buffered events; this one is being checked",
                retry_after=5.0,
            )


class KnownKeys:
    """`key in known` is cheap: the buffer uses it for each lane that it begins to hold."""

    def __init__(
        self,
        api_keys: Collection[str] = (),
        source_keys: Collection[str] = (),
        *,
        verifiable: bool = True,
    ) -> None:
        """`api_keys`: the only ones that HTTP senders may use, if there are any; `source_keys`:
        those that sources are configured with.

        `verifiable`: whether the key check is on, so that other keys can become known.
        """
        self.verifiable = verifiable
        self.unknown = LanePool()
        """The lanes of all unknown keys."""
        self.on_change: Callable[[], None] = _nothing
        """Called when keys became known, or unknown."""
        self.on_verified: Callable[[], None] = _nothing
        """Called when a key was verified that was not remembered."""
        self._source_keys = frozenset(source_keys)
        self._api_keys = frozenset(api_keys)
        self._configured = self._api_keys | self._source_keys
        self._verified: dict[str, None] = {}
        self._hashes = NO_HASHES

    def configure(self, api_keys: Collection[str]) -> None:
        """Use another list of keys from now on."""
        self._api_keys = frozenset(api_keys)
        self._configured = self._api_keys | self._source_keys
        self.on_change()

    def __contains__(self, api_key: str) -> bool:
        return api_key in self._configured or api_key in self._verified or api_key in self._hashes

    @property
    def protects(self) -> bool:
        """Whether there are known keys whose room is protected from unknown ones.

        Without the key check only `api_keys` makes a sender's key known: keys of sources alone
        then don't make all senders unknown.
        """
        return bool(self._api_keys) or (
            self.verifiable and bool(self._source_keys or self._verified or self._hashes.count)
        )

    def pool_of(self, lane: Lane) -> LanePool | None:
        """The pool of unknown keys' lanes, if the lane's is unknown."""
        return None if lane.api_key in self else self.unknown

    def verify(self, api_key: str) -> None:
        """The upstream accepts the key."""
        if api_key in self._verified:
            return
        changed = api_key not in self
        self._verified[api_key] = None
        if len(self._verified) > MAX_KEYS:
            del self._verified[next(iter(self._verified))]
            changed = True
        if changed:
            self.on_change()
        self.on_verified()

    def verified(self) -> list[str]:
        """The keys that this process knows to be verified, oldest first."""
        return list(self._verified)

    def remember(self, hashes: KeyHashes) -> None:
        """Use the file's content from now on."""
        changed = (hashes.salt, hashes.hashes) != (self._hashes.salt, self._hashes.hashes)
        self._hashes = hashes
        if changed:
            self.on_change()


def _nothing() -> None:
    """The callback until another is set."""
