"""Events as a format makes them of records: complete, but for what every imported event has (`finishing`).

No clock and no random value gets into one: the same record gives the same events, byte for byte, whenever and however often it is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from hashlib import sha1
from typing import Any, Final, Protocol
from uuid import UUID

from msgspec import Struct

from forwarder.sources.files.records import RecordBlock

NAMESPACE: Final = UUID("6f1c1d5e-6f0e-5f8f-9f0a-7b1d7f7d6b02")
"""Of the uuids that follow from natural keys; it never changes, or a second run would double what the first brought."""


class RefusalReason(StrEnum):
    """Why a record is refused."""

    NOT_JSON = "not_json"
    """Cut off, not UTF-8, or something else than an object."""
    WRONG_TYPE = "wrong_type"
    """A field that is needed has a value of another type."""
    NO_EVENT = "no_event"
    NO_ID = "no_id"
    NO_TIME = "no_time"
    """There is no time, or it can't be read."""
    ILLEGAL_ID = "illegal_id"
    """`null`, `undefined`, `anonymous` …: an id that many share."""
    TOO_LARGE = "too_large"
    UNMAPPABLE = "unmappable"
    """The mapping says no."""


class RecordRefused(Exception):
    """A record can't become an event. Nothing of it is sent."""

    def __init__(self, why: RefusalReason, detail: str) -> None:
        super().__init__(detail)
        self.why, self.detail = why, detail


class ImportedEvent(Struct, gc=False):
    """One event of a record."""

    event: str
    distinct_id: str
    time: int
    """Microseconds since 1970, UTC."""
    uuid: str
    """The record's own, or derived: never random."""
    properties: dict[str, Any]
    """Values are JSON values, or `msgspec.Raw` where the record's bytes are kept."""
    natural_key: str | None = None
    """What tells this event from others in its vendor's system; repeats of it within a day are sent once. None: nothing does."""


class Converter(Protocol):
    """A format at work on one source.

    All that it puts into events was decoded from JSON, or is text, and is UTF-8: whoever keeps bytes of a record as `Raw` checks them.
    """

    def convert(self, block: RecordBlock, index: int) -> Sequence[ImportedEvent]:
        """The events of one record; none if the vendor's record stands for no event (a session's start).

        Raises `RecordRefused`.
        """


_OF_NAMESPACE: Final = sha1(NAMESPACE.bytes, usedforsecurity=False)
_VARIANT: Final = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}


def derived_uuid(natural_key: str) -> str:
    """The uuid that follows from a natural key: `uuid5` (RFC 9562, section 5.5), made without an object: a quarter of the time."""
    digest = _OF_NAMESPACE.copy()
    digest.update(natural_key.encode())
    text = digest.hexdigest()
    return f"{text[:8]}-{text[8:12]}-5{text[13:16]}-{_VARIANT[text[16]]}{text[17:20]}-{text[20:32]}"
