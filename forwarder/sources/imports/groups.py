"""The states of groups in a source whose events each say how their groups are: a group ends in its
last state, also in one that it had before.

A state that is older than one that came before changes nothing of it, and only adds properties
that the group doesn't have yet. Memory is bounded: a group that was forgotten says all of its
state again, which changes nothing.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw

from forwarder.sources.imports.format import natural_key

_BYTES: Final = 10 << 20
_OVERHEAD: Final = 300
"""Bytes of a group in memory beside its name and its state."""
_decode: Final = msgspec.json.Decoder(dict[str, Raw]).decode
_encode: Final = msgspec.json.Encoder().encode


class GroupStates:
    """Remembers the groups that were seen last, in `memory` bytes at least, and twice that at
    most.
    """

    def __init__(self, memory: int = _BYTES) -> None:
        self._memory = memory
        self._size = 0
        self._recent: dict[bytes, tuple[int, bytes]] = {}
        self._older: dict[bytes, tuple[int, bytes]] = {}

    def change(self, kind: str, name: str, time: int, said: Raw | None) -> Raw | None:
        """What an event of that time (microseconds) changes of a group, by what it says of it; an
        empty `Raw`: that there is such a group. None: nothing.
        """
        key = natural_key(kind, name)
        known = self._recent.get(key) or self._older.get(key)
        state = b"" if said is None else bytes(said)
        if known is None:
            self._keep(key, time, state)
            return Raw(state)
        last, before = known
        if state in {b"", before}:
            if time > last or key not in self._recent:
                self._keep(key, max(time, last), before)
            return None
        if time >= last or not before:
            self._keep(key, max(time, last), state)
            return Raw(state)
        newer = _decode(before)
        missing = {name: value for name, value in _decode(state).items() if name not in newer}
        self._keep(key, last, _encode({**newer, **missing}))
        return Raw(_encode(missing)) if missing else None

    def forget(self, kind: str, name: str) -> None:
        """An event removes properties of a group: its next state is said whole."""
        key = natural_key(kind, name)
        self._recent.pop(key, None)
        self._older.pop(key, None)

    def _keep(self, key: bytes, time: int, state: bytes) -> None:
        self._recent[key] = time, state
        self._size += len(key) + len(state) + _OVERHEAD
        if self._size > self._memory:
            self._older = self._recent
            self._recent = {}
            self._size = 0
