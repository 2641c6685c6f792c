"""Which project keys may open a lane, which of them are known, and how much of the buffer a lane
may hold.

A lane exists while the buffer holds events of it; idle lanes are forgotten. Unknown keys may have
half of `max_lanes`, so that made-up ones can't lock out a valid one: it is checked with the
upstream, and accepted when its sender repeats the request.

A key is known if it is configured, or if the key check verified it, now or before the last
restart. Keys of earlier runs are known by their hashes alone (`storage.key_file`). Invariants: at
most `MAX_KEYS` verified keys are remembered, and the one verified longest ago is forgotten first;
a key that the upstream refuses later stays known, for its lane is halted then, and an upstream
that refuses every key for an hour would make all of them unknown.

How much a lane may hold is one rule over the bytes that are free, so that one lane's trouble does
not affect the others. With `free` the bytes that no lane holds, those that are offered counted as
held already, a lane may hold at most

    7 x free      a live lane: alone it may fill seven eighths of the buffer
    free          a historical lane: half of it
    free / 3      a halted lane that holds something: a quarter of it
    free / 7      the lanes of all unknown project keys together: an eighth of it

and the least of what applies. The fuller the buffer is the less a lane may hold that fills it, so
a lane that comes late finds room. While no key is known (`KnownKeys.protects`) unknown ones may
hold 7 x free together: all but the reserve of the one that is verified first. Nothing that is held
is evicted for it. Past its share only that lane's senders have to wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, Protocol

from forwarder.core.errors import (
    BUFFER_FULL_HINT,
    BufferFull,
    LaneFull,
    RequestTooLarge,
    TooManyLanes,
    UnknownKey,
)
from forwarder.core.event import EVENT_OVERHEAD, Chunk, Lane
from forwarder.core.lane_queue import LanePool
from forwarder.storage.key_file import MAX_KEYS, KeyHashes
from forwarder.wire.identity import check_token

MAX_REMEMBERED: Final = 4096
"""Keys that were found well-formed and allowed, and are not checked again."""

NO_HASHES: Final = KeyHashes(b"", ())

LIVE: Final = 7
HISTORICAL: Final = 1
HALTED_DIVISOR: Final = 3
UNKNOWN_DIVISOR: Final = 7
UNHINDERED: Final = 1 + UNKNOWN_DIVISOR
"""While all lanes together hold no more than this part of the buffer, none holds too much: the
usual case, decided by one comparison.
"""

_UNKNOWN_SHARE_IS_FULL: Final = (
    "the buffer's share for unknown project keys is full; this one is being checked with the "
    "upstream"
)


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


class SharedBuffer(Protocol):
    """What quotas need of the buffer."""

    used: int
    max_bytes: int

    @property
    def holdings(self) -> Mapping[Lane, LaneUsage]:
        """What it holds of each lane."""

    def cost(self, chunk: Chunk) -> int:
        """What a chunk counts for against the limit, in bytes."""


class Quotas:
    """Rejects before the buffer is asked. Holds no state of its own: what is held is the buffer's,
    `halted` is delivery's.
    """

    def __init__(
        self,
        buffer: SharedBuffer,
        halted: Collection[Lane],
        known: KnownKeys,
        ask: Callable[[str], object] = lambda _key: None,
    ) -> None:
        """`ask`: called with an unknown key that found no room, so that it is checked."""
        self._buffer = buffer
        self._held = buffer.holdings
        self._cost = buffer.cost
        self._halted = halted
        self._known = known
        self._unknown = known.unknown
        self._ask = ask

    def check(self, chunks: Sequence[Chunk]) -> None:
        """Raises `LaneFull` if a lane's share has no room for its chunk now, `RequestTooLarge` if
        in an empty buffer it had none.

        `BufferFull`, as the buffer does, where all of it is used up; but not for a lane that may
        hold little: `when_full` drops nothing of others for that.
        """
        if len(chunks) == 1:
            chunk = chunks[0]
            cost = self._cost(chunk)
            if UNHINDERED * (self._buffer.used + cost) <= self._buffer.max_bytes:
                return
            why = self._why_not(chunk.lane, cost, cost)
            if why:
                raise self._rejection({chunk.lane: cost}, chunk.lane, why)
        else:
            costs: Counter[Lane] = Counter()
            for chunk in chunks:  # those of a large body are several of one lane
                costs[chunk.lane] += self._cost(chunk)
            self._check_together(costs)

    def check_room(self, lane: Lane, size: int) -> None:
        """Raises `LaneFull` or `BufferFull` if the lane has no room now for `size` bytes of
        events: checked before work on them.

        What fits no empty buffer is left to `check`, which knows what the events count for.
        """
        if UNHINDERED * (self._buffer.used + size) <= self._buffer.max_bytes:
            return
        why = self._why_not(lane, size, size)
        if why and not self._why_never({lane: size}):
            raise self._rejection({lane: size}, lane, why)

    def _check_together(self, costs: Mapping[Lane, int]) -> None:
        """What several lanes of one request share."""
        total = sum(costs.values())
        for lane, cost in costs.items():
            why = self._why_not(lane, cost, total)
            if why:
                raise self._rejection(costs, lane, why)
        unknown = self._unknown_among(costs)
        if len(unknown) > 1 and self._unknown.bytes + sum(unknown.values()) > self._unknown_limit(
            self._free(total)
        ):
            raise self._rejection(costs, next(iter(unknown)), _UNKNOWN_SHARE_IS_FULL)

    def _why_not(self, lane: Lane, cost: int, total: int) -> str:
        """Why a lane's chunk has no room now, if it has none. `total`: of all that are offered
        with it.
        """
        buffer = self._buffer
        free = buffer.max_bytes - buffer.used - total
        holding = self._held.get(lane)
        held = cost if holding is None else holding.bytes + cost
        if held > free * LIVE:
            return "this project key's share of the buffer is full"
        if lane.historical and held > free * HISTORICAL:
            return "the buffer's share for historical events is full"
        # one that holds nothing has nothing to be probed with: it would never resume
        if (
            self._halted
            and holding is not None
            and held > free // HALTED_DIVISOR
            and lane in self._halted
        ):
            return "deliveries for this project key are halted, and its share of the buffer is full"
        unknown = self._unknown.bytes + cost
        if (
            unknown > free // UNKNOWN_DIVISOR
            and self._is_unknown(lane)
            and unknown > self._unknown_limit(free)
        ):
            return _UNKNOWN_SHARE_IS_FULL
        return ""

    def _rejection(
        self, costs: Mapping[Lane, int], lane: Lane, why: str
    ) -> LaneFull | BufferFull | RequestTooLarge:
        """What to raise for chunks that have no room, for want of it in `lane`. Unknown keys among
        them are asked about.
        """
        never = self._why_never(costs)
        if never:
            return RequestTooLarge(never)
        unknown = self._unknown_among(costs)
        for unverified in unknown:
            self._ask(unverified.api_key)
        if self._free(sum(costs.values())) < 0 and not (
            lane.historical or lane in self._halted or lane in unknown
        ):
            return BufferFull("the buffer is full", hint=BUFFER_FULL_HINT)
        return LaneFull(why)

    def _why_never(self, costs: Mapping[Lane, int]) -> str:
        """Why chunks would have no room in an empty buffer either, if that is so."""
        empty = self._buffer.max_bytes - sum(costs.values())
        size = self._buffer.max_bytes
        for lane, cost in costs.items():
            # a halted lane may resume, and an unknown key may be verified: their shares are no
            # reason to say that it is never enough
            if cost > empty * (HISTORICAL if lane.historical else LIVE):
                share = "half" if lane.historical else "seven eighths"
                return (
                    f"with these events one lane would take over {share} of the buffer ({size} "
                    "bytes)"
                )
        unknown = self._unknown_among(costs)
        if not self._known.verifiable and sum(unknown.values()) > self._unknown_limit(empty):
            return (
                f"these events would take over an eighth of the buffer ({size} bytes), and their "
                "keys are unknown"
            )
        return ""

    def _unknown_among(self, costs: Mapping[Lane, int]) -> dict[Lane, int]:
        return {lane: cost for lane, cost in costs.items() if self._is_unknown(lane)}

    def is_halted(self, lane: Lane) -> bool:
        """Whether deliveries of the lane are halted."""
        return lane in self._halted

    def ask_if_unknown(self, api_key: str) -> None:
        """Have an unknown key checked that found no room elsewhere."""
        if api_key not in self._known:
            self._ask(api_key)

    def _free(self, total: int) -> int:
        return self._buffer.max_bytes - self._buffer.used - total

    def _unknown_limit(self, free: int) -> int:
        return free // UNKNOWN_DIVISOR if self._known.protects else free * LIVE

    def _is_unknown(self, lane: Lane) -> bool:
        holding = self._held.get(lane)
        return (lane.api_key not in self._known) if holding is None else holding.pool is not None

    def lanes_to_shorten(self, chunks: Sequence[Chunk]) -> Sequence[Lane | None]:
        """Where the oldest chunk may be dropped to make room for these, after `check` said that
        there is none; None: anywhere.

        First the lanes of the chunks without room. An unknown key shortens unknown ones only, and
        no lane that may hold little another.
        """
        lanes: list[Lane | None] = [chunk.lane for chunk in chunks if not self._fits(chunk)] or [
            chunk.lane for chunk in chunks
        ]
        for lane in list(lanes):
            if lane is not None and self._is_unknown(lane):
                return [
                    *lanes,
                    *(other for other, holding in self._held.items() if holding.pool is not None),
                ]
        return (
            lanes
            if any(lane and (lane.historical or lane in self._halted) for lane in lanes)
            else [*lanes, None]
        )

    def _fits(self, chunk: Chunk) -> bool:
        try:
            self.check((chunk,))
        except (BufferFull, LaneFull):
            return False
        return True

    @property
    def max_lane_bytes(self) -> int:
        """What an empty lane in an empty buffer could hold at most."""
        return self._buffer.max_bytes * LIVE // (LIVE + 1)

    @property
    def max_events(self) -> int:
        """No empty lane could hold more events than these, however small."""
        return self.max_lane_bytes // EVENT_OVERHEAD


class UnsharedBuffer(Quotas):
    """Where one lane has the buffer to itself: only the buffer's own limit counts, whether its key
    is verified or not.
    """

    def check(self, chunks: Sequence[Chunk]) -> None:
        """Raises nothing."""
