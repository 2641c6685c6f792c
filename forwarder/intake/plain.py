"""The fast way of records: one typed pass each tells all that is to be known of a record that is one event in its usual form.

A record is plain if it is one event, with nothing that would have to be resolved, in valid UTF-8, not nested too deep, and with a
uuid, a time and a distinct_id that are good or not there at all. Everything else is for `awkward.py`. Each record is decoded by itself:
several broken ones could be good together.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from operator import itemgetter
from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field

from forwarder.intake.heads import OneEvent
from forwarder.intake.uuids import all_hyphenated
from forwarder.wire.identity import ABSENT
from forwarder.wire.shapes import is_utf8


class PlainProperties(Struct, frozen=True, gc=False):
    """What may stand in the place of something that the event has not, and the second ids."""

    token: Raw = ABSENT
    distinct_id: Raw = ABSENT
    alias: Raw = ABSENT
    anonymous: Raw = field(name="$anon_distinct_id", default=ABSENT)


class PlainHead(OneEvent, kw_only=True, gc=False):
    """One event, whatever it has of what it needs."""

    event: str
    distinct_id: str | UnsetType = UNSET
    uuid: str | UnsetType = UNSET
    timestamp: datetime | UnsetType = UNSET
    properties: PlainProperties = PlainProperties()
    api_key: str | None = None
    dollar_distinct_id: Raw = field(name="$distinct_id", default=ABSENT)


_MAX_OPENINGS: Final = 500
"""A text with no more openings than this isn't nested too deep for any decoder; one needs as many bytes again to close them."""

MALFORMED: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding raises for a record that isn't of the form that is looked for."""

_BEGIN: Final = ord("{")
_first: Final = itemgetter(0)

decode_plain: Final = msgspec.json.Decoder(PlainHead).decode


def all_plain(values: Sequence[bytes], joined: bytes, max_event: int) -> list[PlainHead] | None:
    """The heads of records (`joined`: by commas) if all are plain; else None."""
    try:
        heads = [*map(decode_plain, values)]
    except MALFORMED:
        return None
    return heads if are_texts(values, joined, max_event) and _are_named(heads) else None


def plain_or_none(values: Sequence[bytes], max_event: int) -> list[PlainHead | None]:
    """The head of each record that is plain by itself."""
    return [_plain(value, max_event) for value in values]


def _plain(value: bytes, max_event: int) -> PlainHead | None:
    try:
        head = decode_plain(value)
    except MALFORMED:
        return None
    return head if are_texts((value,), value, max_event) and _are_named((head,)) else None


def _are_named(heads: Sequence[PlainHead]) -> bool:
    """Whether all have a name, and no id or uuid that is none."""
    uuids, ids = [head.uuid for head in heads], [head.distinct_id for head in heads]
    if UNSET in uuids:
        uuids = [uuid for uuid in uuids if uuid is not UNSET]
    if UNSET in ids:
        ids = [text for text in ids if text is not UNSET]
    if "" in [head.event for head in heads]:
        return False
    return all(map(str.strip, ids)) and all_hyphenated(uuids)  # type: ignore[arg-type]  # none is UNSET


def are_texts(values: Sequence[bytes], joined: bytes, max_event: int) -> bool:
    """Whether all are UTF-8, no larger than an event may be, begin with their braces, and are nowhere nested too deep."""
    if [*map(_first, values)].count(_BEGIN) < len(values):
        return False  # white space comes first, or nothing at all
    longest = max(map(len, values))
    if longest > max_event or not (joined.isascii() or is_utf8(joined)):
        return False
    return longest <= 2 * _MAX_OPENINGS or not any(map(_may_be_deep, values))


def _may_be_deep(value: bytes) -> bool:
    return value.count(b"[") + value.count(b"{") > _MAX_OPENINGS


def complete_ids(heads: Sequence[PlainHead]) -> list[str] | None:
    """The distinct_ids of plain records if each has an id, a uuid and a time, so that nothing is to be stamped."""
    ids = [head.distinct_id for head in heads]
    if UNSET in ids or UNSET in [head.uuid for head in heads] or UNSET in [head.timestamp for head in heads]:
        return None
    return ids  # type: ignore[return-value]  # none is UNSET


def common_key(heads: Sequence[PlainHead], default: str | None) -> str | None:
    """The project key of all these records; None if there isn't one that is the same for all, or it isn't told by their tops."""
    keys = [head.api_key for head in heads]
    if keys.count(keys[0]) < len(keys):
        return None
    if keys[0] is not None:
        return keys[0]
    return default if [head.properties.token for head in heads].count(ABSENT) == len(heads) else None
