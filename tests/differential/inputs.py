"""What is sent to both versions: plain values, which the parent makes and pickles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

REQUESTS: Final = "requests"
RECORDS: Final = "records"
LINES: Final = "lines"
KINDS: Final = (REQUESTS, RECORDS, LINES)

DELIVER: Final = "deliver"
"""The upstream accepts what was buffered."""
BURY: Final = "bury"
"""The upstream refuses it: it becomes dead letters."""
EXPIRE: Final = "expire"
"""Nothing is delivered for longer than a sender waits; then it is."""
GIVE_BACK: Final = "give back"
"""A source releases its batches, which are read again."""
KEEP: Final = "keep"
"""A source releases its batches, which can't be read again."""
BURY_LANE: Final = "bury a lane"
"""A source gives up on one lane of its batches."""
FATES: Final = {
    REQUESTS: (DELIVER, DELIVER, DELIVER, BURY, EXPIRE),
    RECORDS: (DELIVER, DELIVER, BURY, GIVE_BACK, KEEP, BURY_LANE),
    LINES: (DELIVER, DELIVER, BURY, GIVE_BACK, KEEP, BURY_LANE),
}


class RequestInput(NamedTuple):
    """One request: the fields of `core.ports.Incoming`, with plain values."""

    body: bytes
    query: bytes = b""
    content_type: bytes = b""
    content_encoding: bytes = b""
    client: str | None = None
    ack: str | None = None
    event: bytes = b""
    v1: tuple[bytes, bytes, bytes] | None = None
    """The fields of a `V1Head`."""
    otlp: tuple[bytes, bool] | None = None
    """The fields of an `OtlpHead`."""
    replayed: tuple[int, str, float | None, str, bool, str | None, str] | None = None
    """The fields of a `ReplayedDeadLetter`."""


class RecordInput(NamedTuple):
    """One record of a partition."""

    offset: int
    timestamp: int | None
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


class Mutant(NamedTuple):
    """What one comparison is about: some requests of one connection, records of one partition, or
    a piece of one log file.
    """

    kind: str
    configuration: str
    fate: str
    requests: Sequence[RequestInput] = ()
    records: Sequence[RecordInput] = ()
    lines: bytes = b""
    policy: int = 0
    """Which of the configured clusters or logs it is of."""
    given_up: bool = False
    """Whether the source has given up the halted lanes."""
