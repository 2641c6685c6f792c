"""Where one event is, as far as a running pipeline has it at hand: what of a disk buffer isn't in memory its files say.

It looks at every event in memory, on the loop: some hundredths of a second for a full buffer, when somebody asks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from forwarder.admin.uuid_search import Sighting, WantedUuid
from forwarder.core.event import Chunk
from forwarder.core.ports import Buffer, DeadLetter
from forwarder.telemetry.labels import UNDECODABLE, lane_label

WAITING = "waiting"
SENDING = "sending"
DEAD_LETTER = "dead letter"


def at_hand(wanted: WantedUuid, buffer: Buffer, sending: Sequence[Chunk], letters: Sequence[DeadLetter]) -> list[Sighting]:
    """Every copy that waits in `buffer`, is among what delivery has taken, or among dead letters that are in memory only."""
    waiting = [chunk for lane in buffer.waiting_lanes() for chunk in buffer.queue(lane)]
    return [*_in(wanted, waiting, WAITING), *_in(wanted, sending, SENDING), *(_told(each) for each in letters if wanted.is_of(each.data))]


def _in(wanted: WantedUuid, chunks: Sequence[Chunk], where: str) -> Iterator[Sighting]:
    for chunk in chunks:
        for _ in range(wanted.count_in(chunk)):
            yield Sighting(lane_label(chunk.lane), where, chunk.received_at)


def _told(letter: DeadLetter) -> Sighting:
    lane = lane_label(letter.lane) if letter.lane else UNDECODABLE
    return Sighting(lane, DEAD_LETTER, letter.at, letter.reason.value, letter.why)
