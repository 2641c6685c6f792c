"""The typed views of an event that stamping decodes: no more than routing needs, and no more than one pass each.

The strict ones fit events that need nothing or little; an event that doesn't fit one (a type that differs, a key that is absent) makes
its whole request go to the next view, down to `LooseHead`, which fits every JSON object.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

import msgspec
from msgspec import Raw, Struct, field

from forwarder.wire.identity import ABSENT


class StampableProperties(Struct, frozen=True, gc=False):
    """What decides about `$ip`, and the second ids."""

    ip: Raw = field(name="$ip", default=ABSENT)
    geoip_disable: Raw = field(name="$geoip_disable", default=ABSENT)
    alias: Raw = ABSENT
    anonymous: Raw = field(name="$anon_distinct_id", default=ABSENT)


class CompleteHead(Struct, gc=False):
    """An event that needs no stamp; `offset` would have to be resolved."""

    event: str
    distinct_id: str
    uuid: str
    timestamp: datetime
    offset: None = None


class OrderedHead(CompleteHead, kw_only=True, gc=False):
    """A complete event with all its ids."""

    properties: StampableProperties = StampableProperties()


class OneEvent(Struct, kw_only=True, gc=False):
    """A text that is one event with nothing to resolve: what would make it a batch, or need resolving, has to be absent or null."""

    batch: None = None
    token: None = None
    dollar_token: None = field(name="$token", default=None)
    sent_at: None = None
    historical_migration: None = None
    offset: None = None


class LocatedProperties(Struct, gc=False):
    """Where an event's properties stand."""

    properties: Raw


class LooseHead(Struct, gc=False):
    """Any JSON object."""

    event: Raw = ABSENT
    distinct_id: Raw = ABSENT
    dollar_distinct_id: Raw = field(name="$distinct_id", default=ABSENT)
    uuid: Raw = ABSENT
    timestamp: Raw = ABSENT
    offset: Raw = ABSENT
    properties: Raw = ABSENT


class LooseProperties(Struct, gc=False):
    """What is read of any event's properties."""

    distinct_id: Raw = ABSENT
    ip: Raw = field(name="$ip", default=ABSENT)
    geoip_disable: Raw = field(name="$geoip_disable", default=ABSENT)
    ignore_sent_at: Raw = field(name="$ignore_sent_at", default=ABSENT)
    alias: Raw = ABSENT
    anonymous: Raw = field(name="$anon_distinct_id", default=ABSENT)


decode_complete: Final = msgspec.json.Decoder(list[CompleteHead]).decode
decode_ordered: Final = msgspec.json.Decoder(list[OrderedHead]).decode
decode_located: Final = msgspec.json.Decoder(list[LocatedProperties]).decode
decode_loose: Final = msgspec.json.Decoder(LooseHead).decode
decode_loose_properties: Final = msgspec.json.Decoder(LooseProperties).decode
