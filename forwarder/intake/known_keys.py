"""Which project keys are known: configured ones, and those that the key check verified, now or before the last restart.

Keys of earlier runs are known by their hashes alone (`storage.key_file`). Invariants: at most `MAX_KEYS` verified keys are remembered, and
the one verified longest ago is forgotten first; a key that the upstream refuses later stays known, for its lane is halted then, and an
upstream that refuses everybody for an hour would make all keys unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from forwarder.core.event import Lane
from forwarder.core.lanes import LanePool
from forwarder.storage.key_file import MAX_KEYS, KeyHashes

NO_HASHES: Final = KeyHashes(b"", ())


class KnownKeys:
    """`key in known` is cheap: the buffer asks it for each lane that it begins to hold."""

    def __init__(self, api_keys: Collection[str] = (), source_keys: Collection[str] = (), *, verifiable: bool = True) -> None:
        """`api_keys`: the only ones that HTTP senders may use, if there are any; `source_keys`: those that sources are configured with.

        `verifiable`: whether the key check is on, so that other keys can become known.
        """
        self.verifiable = verifiable
        self.unknown = LanePool()
        """The lanes of all keys that aren't known."""
        self.on_change: Callable[[], None] = _nothing
        """Called when keys became known, or unknown."""
        self.on_verified: Callable[[], None] = _nothing
        """Called when a key was verified that wasn't remembered."""
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
        """Whether there are known keys whose room is to be kept from unknown ones.

        Without the key check only `api_keys` makes a sender's key known: keys of sources alone then don't make all senders unknown.
        """
        return bool(self._api_keys) or (self.verifiable and bool(self._source_keys or self._verified or self._hashes.count))

    def pool_of(self, lane: Lane) -> LanePool | None:
        """The pool of unknown keys' lanes, if the lane's is unknown."""
        return None if lane.api_key in self else self.unknown

    def verify(self, api_key: str) -> None:
        """The upstream says that the key is good."""
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
        """What the file has, from now on."""
        changed = (hashes.salt, hashes.hashes) != (self._hashes.salt, self._hashes.hashes)
        self._hashes = hashes
        if changed:
            self.on_change()


def _nothing() -> None:
    """What is called until something else is to be."""
