"""Raw events as the preflight takes them: what it asks of an event is read from the event's bytes.

Each event counts as a record here, also where several came in one body: each is taken or refused by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Raw, Struct, field

from forwarder.sources.files.records import RecordBlock, RecordLocation
from forwarder.sources.imports.events import ImportedEvent, RecordRefused
from forwarder.sources.imports.raw_events import RawEvents
from forwarder.wire.identity import ABSENT


class PreflightItem(NamedTuple):
    """What `Preflight.add` is given."""

    place: RecordLocation
    record: bytes
    """The event as it stood in its record."""
    outcome: Sequence[ImportedEvent] | RecordRefused
    finished: Sequence[bytes] = ()


class _EventFields(Struct, gc=False):
    """An event's properties, and what about persons may stand beside them."""

    properties: Raw = ABSENT
    set: Raw = field(name="$set", default=ABSENT)
    set_once: Raw = field(name="$set_once", default=ABSENT)
    unset: Raw = field(name="$unset", default=ABSENT)


_decode_head: Final = msgspec.json.Decoder(_EventFields).decode
_decode_members: Final = msgspec.json.Decoder(dict[str, Raw]).decode


def preflight_items(block: RecordBlock, events: RawEvents, finished: Sequence[bytes | RecordRefused]) -> Iterator[PreflightItem]:
    """Each event of a block with its finished form, in the block's order; then what was refused of it."""
    events.apart()
    for number, (index, text, body) in enumerate(zip(events.records, events.texts, finished, strict=True)):
        place, record = block.place(index), events.as_found.get(number, text)
        if isinstance(body, RecordRefused):
            yield PreflightItem(place, record, body)
        else:
            yield PreflightItem(place, record, (_event(events, number, text),), (body,))
    for part in events.refused:
        yield PreflightItem(block.place(part.record), part.text, part.why)


def _event(events: RawEvents, number: int, text: bytes) -> ImportedEvent:
    head = _decode_head(text)
    beside = {"$set": head.set, "$set_once": head.set_once, "$unset": head.unset}
    properties: dict[str, Any] = {key: value for key, value in beside.items() if value is not ABSENT}
    if bytes(head.properties)[:1] == b"{":
        properties.update(_decode_members(head.properties))
    return ImportedEvent(events.names[number], events.distinct_ids[number], events.times[number], events.uuids[number], properties)
