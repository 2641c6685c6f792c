"""Exports a disk buffer: one line for each event, in a form that can be sent to forwarder again.

A line is `{"api_key":…,"historical_migration":…,"batch":[EVENT]}` with the event's original bytes;
only line breaks between its tokens become blanks. The lines contain project keys.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Final

import msgspec

from forwarder.buffer.disk.recovery import UnsettledRecord
from forwarder.core.errors import ForwarderError
from forwarder.core.event import Lane
from forwarder.inspect.buffer_contents import BufferContent, unsettled
from forwarder.telemetry.labels import LaneNames, lane_label

_BREAKS: Final = bytes.maketrans(b"\r\n", b"  ")


class NoSuchLane(ForwarderError):
    """No lane of the buffer has the label that was asked for."""

    code = "no_such_lane"


def labels_of(lane: str, contents: Iterable[BufferContent], names: LaneNames) -> tuple[str, ...]:
    """The labels of a lane that is given by its name or label. Raises `NoSuchLane`, naming the
    existing lanes, if it has no events.
    """
    labels = names.labels(lane)
    there = sorted({lane.label for content in contents for lane in content.lanes})
    if not set(labels) & set(there):
        shown = ", ".join(map(names.show, there))
        hint = f"Lanes with events: {shown}." if there else "The buffer is empty."
        raise NoSuchLane(f"no lane {lane} has events here", hint=hint)
    return labels


def export(
    directory: Path,
    labels: Collection[str] | None,
    write: Callable[[bytes], object],
    report: Callable[[int], None],
) -> int:
    """Write a line for each event of a worker's buffer, or of those lanes in it; return how many.

    `report` is called with the number of events of each record. Raises `ConfigurationError` if the
    files can't be read, and what `write` raises.
    """
    count = 0
    for record in unsettled(directory):
        if labels is None or lane_label(record.lane) in labels:
            write(b"".join(lines(record)))
            count += len(record.events)
            report(len(record.events))
    return count


def lines(record: UnsettledRecord) -> Iterator[bytes]:
    """A line for each event of a record."""
    head = _head(record.lane)
    for event in record.events:
        yield b"%b%b]}\n" % (head, event.translate(_BREAKS))


@lru_cache(maxsize=256)
def _head(lane: Lane) -> bytes:
    historical = b"true" if lane.historical else b"false"
    return b'{"api_key":%b,"historical_migration":%b,"batch":[' % (
        msgspec.json.encode(lane.api_key),
        historical,
    )
