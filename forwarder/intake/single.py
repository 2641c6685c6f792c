"""The fast way of a body that is one event and needs no stamp: a single typed pass tells all that is to be known of it."""

from __future__ import annotations

from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec

from forwarder.core.event import NO_IDS
from forwarder.intake.heads import OneEvent, StampableProperties
from forwarder.wire.identity import ABSENT, canonical_id

NO_PROPERTIES: Final = StampableProperties()


class SingleHead(OneEvent, kw_only=True, gc=False):
    """A complete event with its project key."""

    api_key: str
    event: str
    distinct_id: str
    uuid: UUID
    timestamp: datetime


class OrderedSingleHead(SingleHead, kw_only=True, gc=False):
    """The same with the ids that it may name beside its own."""

    properties: StampableProperties = NO_PROPERTIES


_MAX_OPENINGS: Final = 500
"""A text with no more openings than this isn't nested too deep for any decoder; one needs as many bytes again to close them."""

_decode: Final = msgspec.json.Decoder(SingleHead).decode
_decode_ordered: Final = msgspec.json.Decoder(OrderedSingleHead).decode


def read_single(text: bytes, *, ordered: bool) -> tuple[str, frozenset[str]] | None:
    """The project key and the ordering keys of a text that is one complete event.

    None if it is anything else, well-formed or not, or names a second id to be ordered with.
    """
    try:
        head = _decode_ordered(text) if ordered else _decode(text)  # first, for it ends early at what makes a batch
        if not text.isascii():
            text.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    distinct_id = head.distinct_id
    if not head.event or not distinct_id.strip() or not text.endswith(b"}"):
        return None
    if len(text) > 2 * _MAX_OPENINGS and text.count(b"[") + text.count(b"{") > _MAX_OPENINGS:
        return None  # it may be nested so deep that a later decoder would fail at it: read_request makes sure
    if not isinstance(head, OrderedSingleHead):
        return head.api_key, NO_IDS
    if head.properties.alias is not ABSENT or head.properties.anonymous is not ABSENT:
        return None
    return head.api_key, frozenset((canonical_id(distinct_id),))
