"""Finds one event by its uuid: the pattern that recognizes it in raw bytes, and the search of a
running pipeline's memory.

A uuid has several spellings (with or without hyphens, in braces, as a URN, in either case). The
search first looks for any of them as bytes, and decodes only events that match, to see whether the
match is their own `uuid`. Events of a disk buffer that aren't in memory are found in its files
instead (`forwarder.inspect.explain`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import msgspec

from forwarder.core.errors import ForwarderError
from forwarder.core.event import Chunk
from forwarder.core.ports import Buffer, DeadLetter
from forwarder.core.secrets import mask_secrets
from forwarder.telemetry.labels import UNDECODABLE, lane_label

WAITING = "waiting"
SENDING = "sending"
DEAD_LETTER = "dead letter"


class NotAUuid(ForwarderError):
    """The value to search for isn't a UUID."""

    code = "not_a_uuid"


class _OnlyUuid(msgspec.Struct):
    uuid: Any = None


_decode = msgspec.json.Decoder(_OnlyUuid).decode


class Sighting(msgspec.Struct, frozen=True):
    """Where a running daemon has an event in memory."""

    lane: str
    """Its label."""
    where: str
    """`waiting`; `sending`: in a batch that is in flight or will be sent again; `dead letter`: one
    that is in memory only.
    """
    since: float
    """When it was received, or became a dead letter, wall-clock seconds."""
    reason: str = ""
    why: str = ""
    destination: str = ""
    """The name of the destination whose copy it is; empty if there is only one."""


@dataclass(frozen=True, slots=True)
class WantedUuid:
    """The uuid to search for. `text` is its usual spelling, `pattern` matches every spelling."""

    text: str
    pattern: re.Pattern[bytes]

    @classmethod
    def parse(cls, given: str) -> WantedUuid:
        """The uuid that `given` spells. Raises `NotAUuid`."""
        try:
            value = UUID(given.strip())
        except ValueError as error:
            hint = "Give the event's uuid, such as 01890a5d-ac96-774b-bcce-b302099a8057."
            raise NotAUuid(f"{given!r} is not a UUID", hint=hint) from error
        groups = str(value).encode().split(b"-")
        return cls(str(value), re.compile(b"-?".join(groups), re.IGNORECASE))

    def may_be_in(self, data: bytes) -> bool:
        """Whether it occurs anywhere in the bytes of one or more events."""
        return self.pattern.search(data) is not None

    def is_of(self, event: bytes) -> bool:
        """Whether it is the event's own uuid."""
        if not self.may_be_in(event):
            return False
        try:
            return UUID(_decode(event).uuid) == UUID(self.text)
        except (msgspec.DecodeError, ValueError, TypeError, AttributeError):
            return False  # not an object, or its own uuid is invalid: the match is elsewhere in it

    def is_of_letter(self, data: bytes) -> bool:
        """Whether it is a dead letter's own uuid, or occurs anywhere in one whose own uuid can't be
        read: one that isn't an event as it stands.
        """
        if not self.may_be_in(data):
            return False
        try:
            readable = isinstance(_decode(data).uuid, str)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            readable = False
        return not readable or self.is_of(data)

    def count_in(self, chunk: Chunk) -> int:
        """How many of a chunk's events have it."""
        return sum(map(self.is_of, chunk.events())) if self.may_be_in(chunk.data) else 0


def find_in_memory(
    wanted: WantedUuid,
    buffer: Buffer,
    sending: Sequence[Chunk],
    dead_letters: Sequence[DeadLetter],
    destination: str = "",
) -> list[Sighting]:
    """Every copy in `buffer`, in delivery (`sending`), or among dead letters that are in memory
    only, all of them of `destination`.

    Looks at every event in memory, on the loop: some hundredths of a second for a full buffer.
    """
    waiting = [chunk for lane in buffer.waiting_lanes() for chunk in buffer.queue(lane)]
    copies = [*_copies(wanted, waiting, WAITING), *_copies(wanted, sending, SENDING)]
    copies += [
        _dead_letter(dead_letter)
        for dead_letter in dead_letters
        if wanted.is_of_letter(dead_letter.data)
    ]
    return (
        [msgspec.structs.replace(copy, destination=destination) for copy in copies]
        if destination
        else copies
    )


def _copies(wanted: WantedUuid, chunks: Sequence[Chunk], where: str) -> Iterator[Sighting]:
    for chunk in chunks:
        for _ in range(wanted.count_in(chunk)):
            yield Sighting(lane_label(chunk.lane), where, chunk.received_at)


def _dead_letter(dead_letter: DeadLetter) -> Sighting:
    lane = lane_label(dead_letter.lane) if dead_letter.lane else UNDECODABLE
    why = mask_secrets(dead_letter.why, dead_letter.lane.api_key if dead_letter.lane else "")
    return Sighting(lane, DEAD_LETTER, dead_letter.at, dead_letter.reason.value, why)
