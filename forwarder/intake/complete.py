"""The fastest way of records: each is complete, and all are of one project key, so that their bytes go on as one piece.

What is read of a record is what `plain.py` reads of it, but for what only others need: the ids that it may name beside its own, and what
may stand in the place of something that is missing. So this is for live lanes that keep no order by id.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec
from msgspec import Struct

from forwarder.intake.heads import OneEvent
from forwarder.intake.plain import MALFORMED, are_texts
from forwarder.intake.uuids import all_hyphenated


class _Complete(OneEvent, kw_only=True, gc=False):
    """An event to which nothing is to be added."""

    event: str
    distinct_id: str
    uuid: str
    timestamp: datetime


class _Keyed(_Complete, kw_only=True, gc=False):
    """One that names its project key."""

    api_key: str


class _NoToken(Struct, frozen=True, gc=False):
    token: None = None


_NO_TOKEN: Final = _NoToken()


class _Keyless(_Complete, kw_only=True, gc=False):
    """One that names none, in any place where it might stand."""

    api_key: None = None
    properties: _NoToken = _NO_TOKEN


_decode_keyed: Final = msgspec.json.Decoder(_Keyed).decode
_decode_keyless: Final = msgspec.json.Decoder(_Keyless).decode


def key_of_complete(values: Sequence[bytes], joined: bytes, default: str | None, max_event: int) -> str | None:
    """The project key of records (`joined`: by commas) if all are complete and of the same; else None. `default`: of those without one."""
    heads: Sequence[_Complete]
    try:
        heads = keyed = [*map(_decode_keyed, values)]
    except MALFORMED:
        if default is None:
            return None
    else:
        keys = [head.api_key for head in keyed]
        return keys[0] if keys.count(keys[0]) == len(keys) and _are_good(heads, values, joined, max_event) else None
    try:
        heads = [*map(_decode_keyless, values)]
    except MALFORMED:
        return None
    return default if _are_good(heads, values, joined, max_event) else None


def _are_good(heads: Sequence[_Complete], values: Sequence[bytes], joined: bytes, max_event: int) -> bool:
    """Whether names, ids and uuids are some, and the texts such as can go on."""
    if "" in [head.event for head in heads] or not all(map(str.strip, [head.distinct_id for head in heads])):
        return False
    return all_hyphenated([head.uuid for head in heads]) and are_texts(values, joined, max_event)
