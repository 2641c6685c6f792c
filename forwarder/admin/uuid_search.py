"""Finding one event by its uuid among raw ones, without decoding those that can't be it.

A uuid may be spelled in several ways (with or without hyphens, in braces, as a URN, in either case); an event is first searched for any of
them as bytes, and then decoded to see whether it is its own `uuid` that was found.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import msgspec

from forwarder.core.errors import ForwarderError
from forwarder.core.event import Chunk


class NotAUuid(ForwarderError):
    """What was to be found is no uuid."""

    code = "not_a_uuid"


class _Head(msgspec.Struct):
    uuid: Any = None


_decode = msgspec.json.Decoder(_Head).decode


class Sighting(msgspec.Struct, frozen=True):
    """Where an event is, as a running daemon tells it."""

    lane: str
    """Its label."""
    where: str
    """`waiting`; `sending`: in a batch that is in flight or will be sent again; `dead letter`: one that is in memory only."""
    since: float
    """When it was received, or became a dead letter, wall-clock seconds."""
    reason: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class WantedUuid:
    """The uuid that is looked for. `text` is how it is usually spelled, `pattern` finds every spelling."""

    text: str
    pattern: re.Pattern[bytes]

    @classmethod
    def parse(cls, given: str) -> WantedUuid:
        """The uuid that `given` spells. Raises `NotAUuid`."""
        try:
            value = UUID(given.strip())
        except ValueError as error:
            hint = "Give the event's uuid, such as 01890a5d-ac96-774b-bcce-b302099a8057."
            raise NotAUuid(f"{given!r} is no uuid", hint=hint) from error
        groups = str(value).encode().split(b"-")
        return cls(str(value), re.compile(b"-?".join(groups), re.IGNORECASE))

    def maybe_in(self, data: bytes) -> bool:
        """Whether it stands anywhere in the bytes of one or more events."""
        return self.pattern.search(data) is not None

    def is_of(self, event: bytes) -> bool:
        """Whether it is the event's own."""
        if not self.maybe_in(event):
            return False
        try:
            return UUID(_decode(event).uuid) == UUID(self.text)
        except (msgspec.DecodeError, ValueError, TypeError, AttributeError):
            return False  # not an object, or its uuid is none: it stood elsewhere in it

    def count_in(self, chunk: Chunk) -> int:
        """How many of a chunk's events have it."""
        return sum(map(self.is_of, chunk.events())) if self.maybe_in(chunk.data) else 0
