"""What became of each event of a v1 request: `{"results": {uuid: {"result": …, "details": …}}}`.

`ok`: as safe as the level of acknowledgement promises. `warning`: that too, but it isn't quite
what was sent. `drop`: it will not be delivered, and coming again wouldn't help. `retry`: it has to
come again, it alone.

Invariant: each event has one result, and it gets no better: `retry` and `drop` are final. Where
several events have one uuid, the answer has the worst of their results. An event without a uuid
has no key, and so no result in the answer.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from forwarder.core.ports import Fate

OK: Final = "ok"
WARNING: Final = "warning"
DROP: Final = "drop"
RETRY: Final = "retry"
_RANKS: Final = {OK: 0, WARNING: 1, DROP: 2, RETRY: 3}

UUID_REPLACED: Final = "uuid_replaced"
TIMESTAMP_REPLACED: Final = "timestamp_replaced"
DUPLICATE_UUID: Final = "duplicate_uuid"
NUMBERS_NULLED: Final = "non_finite_numbers_nulled"
DISTINCT_ID_CUT: Final = "distinct_id_cut"
DEAD_LETTER: Final = "dead_letter"
BUFFER_FULL: Final = "buffer_full"
NOT_DELIVERED: Final = "not_delivered"
NOT_CONFIRMED: Final = "not_confirmed"


class _Stamped(Struct, gc=False):
    uuid: str


_decode_stamped = msgspec.json.Decoder(list[_Stamped]).decode
_decode_any = msgspec.json.Decoder().decode


class ResultsState(NamedTuple):
    """What `Results` consist of."""

    keys: list[bytes]
    verdicts: dict[int, tuple[str, str]]
    uuids: dict[int, str]
    settled: list[int]


class Results:
    """One request's results. `keys` are the uuids as they were sent, as JSON texts; empty where an
    event has none that is a string.
    """

    __slots__ = ("_keys", "_settled", "_uuids", "_verdicts", "_waiting_for")

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys = keys
        self._verdicts: dict[int, tuple[str, str]] = {}
        self._uuids: dict[int, str] = {}
        """Those that replaced others, or none."""
        self._settled: set[int] = set()
        """The events that have come to an end: their senders need them no more."""
        self._waiting_for: dict[str, deque[int]] = {}
        """The events that nothing was heard of, by their uuids as they are delivered; made when it
        is first needed.
        """

    def state(self) -> ResultsState:
        """All of it, as another process can be given it."""
        return ResultsState(list(self._keys), self._verdicts, self._uuids, list(self._settled))

    @classmethod
    def restored(cls, state: ResultsState) -> Results:
        """From what `state` has returned, in this process or another."""
        results = cls(state.keys)
        results._verdicts = state.verdicts
        results._uuids = state.uuids
        results._settled = set(state.settled)
        return results

    def warn(self, at: int, details: str) -> None:
        """An event is accepted, but not exactly as it was sent."""
        verdict, before = self._verdicts.get(at, (WARNING, ""))
        if verdict == WARNING:
            self._verdicts[at] = _warning(f"{before},{details}" if before else details)

    def drop(self, at: int, details: str) -> None:
        """An event will not be delivered, and need not come again."""
        self._settled.add(at)
        self._verdicts[at] = (DROP, details)

    def drop_rest(self, details: str) -> None:
        """All events that aren't dropped already are."""
        for at in range(len(self._keys)):
            if at not in self._settled:
                self.drop(at, details)

    def replaced(self, at: int, uuid: str) -> None:
        """An event has another uuid than was sent."""
        self._uuids[at] = uuid
        self.warn(at, UUID_REPLACED)

    def settled(self, data: bytes, fate: str) -> None:
        """Events, joined by commas as they stand in their chunk, have come to an end upstream."""
        if fate in (Fate.DELIVERED, Fate.DEAD_LETTERED):
            for at in self._places(data):
                if fate == Fate.DEAD_LETTERED:
                    self.drop(at, DEAD_LETTER)
                self._settled.add(at)

    def retry_rest(self, withdrawn: Sequence[bytes]) -> bool:
        """All events that aren't settled have to be sent again; whether the response can say so
        event by event.

        It can't if none had come to an end, or if one has no key. `withdrawn`:
        chunks that weren't sent.
        """
        rest = [at for at in range(len(self._keys)) if at not in self._settled]
        if not self._settled or not all(self._keys[at] for at in rest):
            return False
        unsent = {at for data in withdrawn for at in self._places(data)}
        for at in rest:
            self._verdicts[at] = (RETRY, NOT_DELIVERED if at in unsent else NOT_CONFIRMED)
        return True

    def _places(self, data: bytes) -> list[int]:
        """Which events these are. Each is found once: of several with one uuid no more may come to
        an end than did.
        """
        if not self._waiting_for:
            self._waiting_for = self._by_uuid()
        places = [self._waiting_for.get(event.uuid) for event in _decode_stamped(b"[%b]" % data)]
        return [waiting.popleft() for waiting in places if waiting]

    def _by_uuid(self) -> dict[str, deque[int]]:
        places: defaultdict[str, deque[int]] = defaultdict(deque)
        for at, key in enumerate(self._keys):
            # what was refused at receipt may have a key that is no text
            if at not in self._settled:
                places[self._uuids.get(at) or str(_decode_any(key)).strip()].append(at)
        return places

    @property
    def retries(self) -> bool:
        return any(verdict == RETRY for verdict, _ in self._verdicts.values())

    def body(self) -> bytes:
        keys = self._keys
        if self._verdicts or len(set(keys)) != len(keys) or b"" in keys:
            return b'{"results":{%b}}' % b",".join(self._members())
        return (
            b'{"results":{%b:{"result":"ok"}}}' % b':{"result":"ok"},'.join(keys)
            if keys
            else b'{"results":{}}'
        )

    def _members(self) -> list[bytes]:
        worst: dict[bytes, tuple[str, str]] = {}
        for at, key in enumerate(self._keys):
            if key:
                verdict = self._verdicts.get(at, (OK, ""))
                before = worst.get(key)
                if before is not None:
                    verdict = max(
                        before, verdict, (WARNING, DUPLICATE_UUID), key=lambda code: _RANKS[code[0]]
                    )
                worst[key] = verdict
        return [
            b'%b:{"result":"%b"%b}' % (key, verdict.encode(), _details(details))
            for key, (verdict, details) in worst.items()
        ]


@lru_cache(maxsize=256)
def _warning(details: str) -> tuple[str, str]:
    """One for all events that have it: a request may have very many."""
    return WARNING, details


def _details(details: str) -> bytes:
    return b',"details":"%b"' % details.encode() if details else b""
