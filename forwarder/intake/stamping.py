"""Stamps events: the hot path of forwarder.

Every event leaves here with a uuid and a timestamp that will not change, so that each later delivery is the same event, and with the
sender's address where the service would have seen it. All other bytes stay as they were received.

Three ways, fastest first; a request takes the first that fits all its events:
- *complete*: nothing to stamp. One typed pass over all events validates them; their bytes go on as one piece, never split.
- *located*: complete, but `$ip` goes into the properties. One typed pass, then one insertion an event into the same text.
- *loose* (`loose.py`): anything else, event by event.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import islice
from typing import Final, NamedTuple, Protocol

import msgspec
from msgspec import Raw

from forwarder.core.event import NO_IDS, split_events
from forwarder.core.ports import Reason
from forwarder.intake.heads import CompleteHead, decode_complete, decode_located, decode_ordered
from forwarder.intake.loose import Receipt, stamp_one
from forwarder.intake.uuids import all_hyphenated
from forwarder.wire.effort import check_effort
from forwarder.wire.identity import ABSENT, MAX_ID_CHARACTERS, canonical_id, id_text
from forwarder.wire.shapes import check_count
from forwarder.wire.splice import Locator

_JOINED_AT_ONCE: Final = 1000
"""Events that are kept one by one until they are joined."""
_QUOTE: Final = ord('"')
_FALSY: Final = (b"false", b"null")
_IP_MEMBER_BYTES: Final = len(b'"$ip":,')


@dataclass(frozen=True, slots=True)
class Rejected:
    """An event that can't go on, as it was received."""

    reason: Reason
    data: bytes
    at: int = 0
    """Its index among the events of its array."""
    why: str = ""
    """What its dead letter says, if it is more than the reason."""


class Replaced(NamedTuple):
    """An event, by its index, whose uuid or timestamp isn't the one that was sent."""

    at: int
    new_uuid: bytes
    """Empty if it is the sender's."""
    new_timestamp: bool


class NamesSecondIds(Protocol):
    """An event's properties, as far as they name ids beside its own."""

    @property
    def alias(self) -> Raw:
        """The second id of `$create_alias`."""

    @property
    def anonymous(self) -> Raw:
        """That of `$identify`."""


@dataclass(slots=True)
class Stamped:
    """Events as they will stand in a batch, joined by commas, and those that can't go on."""

    data: bytes
    count: int
    ids: frozenset[str]
    rejected: Sequence[Rejected] = ()
    replaced: Sequence[Replaced] = ()
    one_by_one: bool = False
    """Whether each event was stamped by itself, which takes far longer."""


def stamp(events: bytes | Raw, receipt: Receipt) -> Stamped:
    """Validate and stamp a JSON array of events. Raises `msgspec.DecodeError` only if it isn't one.

    Where each would have to be looked at: raises `RequestTooLarge` for more events than `receipt.max_events`, and `TooMuchWork` for more
    than `receipt.effort`.
    """
    fast = None
    added = 0 if receipt.ip is None else len(receipt.ip) + _IP_MEMBER_BYTES
    if len(memoryview(events)) + added <= receipt.max_event and not receipt.skew:
        fast = _stamp_complete(events, receipt) if receipt.ip is None else _stamp_located(events, receipt, receipt.ip)
    return fast or _stamp_loose(events, receipt)


def _stamp_complete(events: bytes | Raw, receipt: Receipt) -> Stamped | None:
    try:
        if receipt.ordered:
            ordered = decode_ordered(events)
            ids = _valid_ids(ordered)
            keys = NO_IDS if ids is None else order_keys(ids, [head.properties for head in ordered])
        else:
            ids, keys = _valid_ids(decode_complete(events)), NO_IDS
    except msgspec.ValidationError:
        return None
    return None if ids is None else Stamped(memoryview(events)[1:-1].tobytes(), len(ids), keys)


def _stamp_located(events: bytes | Raw, receipt: Receipt, ip: bytes) -> Stamped | None:
    try:
        heads = decode_ordered(events)
        located = decode_located(events)
    except msgspec.ValidationError:
        return None
    ids = _valid_ids(heads)
    if ids is None:
        return None
    text = bytes(events)
    braces = Locator(events).offsets([head.properties for head in located])
    pieces: list[bytes] = []
    start = 1
    for head, brace in zip(heads, braces, strict=True):
        properties = head.properties
        if properties.ip is ABSENT and (properties.geoip_disable is ABSENT or bytes(properties.geoip_disable) in _FALSY):
            if text[brace + 1] != _QUOTE:
                return None  # no member follows at once: perhaps none at all
            pieces.append(text[start : brace + 1])
            start = brace + 1
    pieces.append(text[start:-1])
    keys = order_keys(ids, [head.properties for head in heads]) if receipt.ordered else NO_IDS
    return Stamped((b'"$ip":%b,' % ip).join(pieces), len(ids), keys)


def _valid_ids(heads: Sequence[CompleteHead]) -> list[str] | None:
    """The heads' distinct_ids, if each has a name, an id and a uuid in its usual form."""
    ids = [head.distinct_id for head in heads]
    if "" in [head.event for head in heads] or not all(map(str.strip, ids)):
        return None
    return ids if all_hyphenated([head.uuid for head in heads]) else None


def order_keys(ids: list[str], properties: Sequence[NamesSecondIds]) -> frozenset[str]:
    """The ids that order is kept by: each event's own, and those that some name beside it."""
    if max(map(len, ids), default=0) > MAX_ID_CHARACTERS or "\0" in "".join(ids):
        ids = [canonical_id(text) for text in ids]
    second = [id_text(raw) for found in properties for raw in (found.alias, found.anonymous) if raw is not ABSENT]
    return frozenset(ids).union(filter(None, second)) if second else frozenset(ids)


def _stamp_loose(events: bytes | Raw, receipt: Receipt) -> Stamped:
    count = 0
    keys: set[str] = set()
    rejected: list[Rejected] = []
    replaced: list[Replaced] = []
    check_count(events, receipt.max_events)
    check_effort(events, receipt.effort)

    def kept() -> Iterator[bytes]:
        nonlocal count
        for at, raw in enumerate(split_events(events)):
            data = bytes(raw)
            stamped = stamp_one(data, receipt, at)
            if isinstance(stamped, Reason):
                rejected.append(Rejected(stamped, data, at))
                continue
            count += 1
            if receipt.tells and (stamped.new_uuid or stamped.new_timestamp):
                replaced.append(Replaced(at, stamped.new_uuid, stamped.new_timestamp))
            if receipt.ordered:
                keys.update(stamped.ids)
            yield stamped.data

    joined = _joined(kept())
    return Stamped(joined, count, frozenset(keys), rejected, replaced, one_by_one=True)


def _joined(events: Iterator[bytes]) -> bytes:
    """The events joined by commas. Those of a large request are never there both one by one and joined."""
    group = list(islice(events, _JOINED_AT_ONCE))
    if len(group) < _JOINED_AT_ONCE:
        return b",".join(group)
    whole = BytesIO()
    whole.write(b",".join(group))
    while group := list(islice(events, _JOINED_AT_ONCE)):
        whole.write(b",")
        whole.write(b",".join(group))
    return whole.getvalue()
