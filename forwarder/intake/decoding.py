"""What is given to the decoder process and what comes back: frames of a head in MessagePack, and bytes as they are.

A large body becomes pieces of at most `PIECE_BYTES` and `PIECE_EVENTS` (or one event), each a chunk by itself, so that nothing which is
done with one of them later takes long. Of rejected events at most `MAX_REJECTED` come back; the others are counted.

Invariant: what comes back is what reading the same body on the loop gives, but for where it is cut.
"""

from __future__ import annotations

import struct
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from forwarder.core.errors import ForwarderError, InvalidRequest, InvalidToken, NoKey, RequestTooLarge, UnknownKey, UnsupportedMedia
from forwarder.core.event import NO_IDS, Chunk, Lane
from forwarder.core.ports import Incoming, Ordering, Reason, V1Head
from forwarder.core.records import RecordFacts, RefusedRecord
from forwarder.intake.admission import NOT_INGESTED
from forwarder.intake.awkward import RecordRules
from forwarder.intake.known_keys import KnownKeys
from forwarder.intake.lanes import LaneRegistry
from forwarder.intake.request_reader import ReadingRules, RequestReader
from forwarder.intake.stamping import Rejected, Stamped
from forwarder.intake.unit_reader import UnitReader
from forwarder.wire.chunks import cut_by_size
from forwarder.wire.encodings import decode_body
from forwarder.wire.shapes import read_request
from forwarder.wire.v1 import read_v1
from forwarder.wire.v1_head import decode_v1_body
from forwarder.wire.v1_results import Results, ResultsState

FRAME: Final = struct.Struct("!IQ")
"""Before each frame: the lengths of its head and of what follows the head."""

CPU_SECONDS: Final = 10
"""CPU time that one body may take; the process is ended by a signal when it is used up, also within a call of C."""

PIECE_BYTES: Final = 256 * 1024
PIECE_EVENTS: Final = 1000
MAX_REJECTED: Final = 5000
"""Of events that the service wouldn't ingest either, and again of others."""

_ERRORS: Final[dict[str, type[ForwarderError]]] = {
    each.code: each for each in (InvalidRequest, InvalidToken, NoKey, UnknownKey, RequestTooLarge, UnsupportedMedia)
}
_NO_LANE: Final = -1


class RequestJob(Struct, tag="request", array_like=True):
    """A request that is to be read; its body follows."""

    rules: ReadingRules
    ordered: tuple[bool, bool]
    """Whether live lanes, and historical ones, keep order by id."""
    max_lanes: int
    api_keys: Sequence[str]
    received: float
    query: bytes
    content_type: bytes
    content_encoding: bytes
    client: str | None
    event: bytes
    v1: tuple[bytes, bytes, bytes] | None
    """Authorization, SDK and time of a v1 request."""


class RecordJob(Struct, tag="record", array_like=True):
    """A source's record that is to be read; its value follows."""

    rules: ReadingRules
    ordered: tuple[bool, bool]
    max_bytes: int
    received: float
    facts: RecordFacts
    api_key: str | None
    foreign: bool


class Outcome(Struct, array_like=True):
    """What was read. The bytes follow: data and ids of each piece; data, lengths and kinds of each group of rejected events; and, for a
    sender that gets a result for each event, those results, as the answer and as `ResultsState`.
    """

    error: str = ""
    message: str = ""
    lanes: Sequence[tuple[str, bool]] = ()
    pieces: Sequence[tuple[int, int]] = ()
    """Of each piece: which of `lanes`, and how many events."""
    kinds: Sequence[tuple[int, str, str]] = ()
    """Of rejected events: which of `lanes` (-1: none), the reason, and more about it."""
    groups: Sequence[int] = ()
    """How many rejected events there are in each group."""
    overflow: Sequence[tuple[int, int]] = ()
    """Rejected events that don't come back: which of `kinds`, and how many."""
    nulled: int = 0
    with_results: bool = False
    sizes: Sequence[int] = ()
    """Bytes of each part that follows."""


class Decoded(NamedTuple):
    """An outcome and the parts that followed it."""

    outcome: Outcome
    parts: Sequence[bytes]

    def chunks(self, received: float, source: str) -> Iterator[Chunk]:
        """The events, a piece at a time."""
        lanes = [Lane(*lane) for lane in self.outcome.lanes]
        for index, (lane, count) in enumerate(self.outcome.pieces):
            ids = self.parts[2 * index + 1]
            keys = frozenset(_decode_ids(ids)) if ids else NO_IDS
            yield Chunk(lanes[lane], self.parts[2 * index], count, keys, received, source)

    def rejected(self) -> Iterator[list[tuple[Lane | None, Rejected]]]:
        """The rejected events, a group at a time."""
        kinds = [(self._lane(lane), Reason(reason), why) for lane, reason, why in self.outcome.kinds]
        first = 2 * len(self.outcome.pieces)
        for at in range(first, first + 3 * len(self.outcome.groups), 3):
            data, lengths, indexes = self.parts[at], array("I", self.parts[at + 1]), array("I", self.parts[at + 2])
            group: list[tuple[Lane | None, Rejected]] = []
            start = 0
            for length, kind in zip(lengths, indexes, strict=True):
                lane, reason, why = kinds[kind]
                group.append((lane, Rejected(reason, data[start : start + length], why=why)))
                start += length
            yield group

    def results(self) -> tuple[bytes, Callable[[], Results]] | None:
        """The answer with a result for each event, and what makes those results as they can change; None if the sender gets none."""
        if not self.outcome.with_results:
            return None
        answer, state = self.parts[-2:]
        return answer, lambda: Results.restored(_decode_results(state))

    def overflow(self) -> list[tuple[Lane | None, Reason, int]]:
        """Rejected events that did not come back."""
        kinds = self.outcome.kinds
        return [(self._lane(kinds[kind][0]), Reason(kinds[kind][1]), count) for kind, count in self.outcome.overflow]

    def _lane(self, index: int) -> Lane | None:
        return None if index == _NO_LANE else Lane(*self.outcome.lanes[index])

    def error(self) -> Exception | None:
        """Why nothing was read; None if something was."""
        outcome = self.outcome
        if not outcome.error:
            return None
        known = _ERRORS.get(outcome.error)
        return RuntimeError(outcome.message) if known is None else known(outcome.message)


_decode_job: Final = msgspec.msgpack.Decoder(RequestJob | RecordJob).decode
_decode_results: Final = msgspec.msgpack.Decoder(ResultsState).decode
_decode_ids: Final = msgspec.msgpack.Decoder(list[str]).decode
decode_outcome: Final = msgspec.msgpack.Decoder(Outcome).decode
_encode: Final = msgspec.msgpack.Encoder().encode


def encode_job(job: RequestJob | RecordJob) -> bytes:
    """The head of a job."""
    return _encode(job)


def failed(code: str, message: str) -> bytes:
    """The head of an outcome without anything."""
    return _encode(Outcome(code, message))


def work(head: bytes, body: bytes) -> tuple[bytes, list[bytes]]:
    """Do a job: the head of its outcome, and the parts that follow it. Raises only what is a mistake of ours."""
    job = _decode_job(head)
    try:
        parcel = _read(job, body) if isinstance(job, RequestJob) else _read_record(job, body)
    except ForwarderError as error:
        if error.code not in _ERRORS:
            raise
        return failed(error.code, error.message), []
    return parcel.sealed()


class _AnyRoom(LaneRegistry):
    """The gate where nothing is known of the buffer: whoever has it checks that there is room."""

    def check_room(self, lane: Lane, size: int) -> None:
        """See `request_reader.Gate`."""


def _ordering(ordered: tuple[bool, bool]) -> Callable[[Lane], Ordering]:
    return lambda lane: Ordering.PER_DISTINCT_ID if ordered[lane.historical] else Ordering.NONE


def _read(job: RequestJob, body: bytes) -> _Parcel:
    gate = _AnyRoom(job.max_lanes, {}, KnownKeys((), (), verifiable=False), api_keys=job.api_keys)
    reader = RequestReader(job.rules, gate, lambda lane: job.ordered[lane.historical])
    incoming = Incoming(body, job.query, job.content_type, job.content_encoding, job.client, event=job.event)
    del body
    if job.v1 is None:
        text = decode_body(incoming, job.rules.max_body)
        incoming.body = b""
        request = read_request(text, job.rules.max_events)
    else:
        head = V1Head(*job.v1)
        text = decode_v1_body(incoming, job.rules.max_body)
        incoming.body = b""
        request = read_v1(text, head, job.rules.max_events)
    content = reader.read(request, incoming, job.received)
    del request, text
    parcel = _Parcel(content.nulled)
    for lane, stamped in content.stamped:
        parcel.add(lane, stamped)
    parcel.reject(content.rejected)
    if content.results is not None:
        parcel.add_results(content.results)
    return parcel


class _OneRecord:
    """See `core.records.Records`."""

    def __init__(self, job: RecordJob, value: bytes) -> None:
        self.values: Sequence[bytes] = (value,)
        self.api_key = job.api_key
        self.foreign = job.foreign
        self.refused: Sequence[RefusedRecord] = ()
        self._facts = job.facts

    def facts(self, index: int) -> RecordFacts:  # noqa: ARG002 - there is one
        return self._facts

    def attributes(self, index: int) -> str:  # noqa: ARG002 - the dead letters are written where they are known
        return ""


def _read_record(job: RecordJob, value: bytes) -> _Parcel:
    rules = job.rules
    ordering_of = _ordering(job.ordered)
    record_rules = RecordRules(rules.max_body, rules.max_event, rules.max_events, rules.clock_skew_tolerance, ordering_of)
    reader = UnitReader(LaneRegistry(1, {}, KnownKeys((), (), verifiable=False)), record_rules, "", job.max_bytes, lambda _name: None)
    content = reader.read(_OneRecord(job, value), job.received)
    if len(content.letters) > MAX_REJECTED:
        raise RequestTooLarge(f"over {MAX_REJECTED} events of it are rejected")
    parcel = _Parcel(content.nulled)
    for lane, stamped in content.events:
        parcel.add(lane, stamped)
    parcel.reject((letter.lane, Rejected(letter.reason, letter.data, why=letter.why)) for letter in content.letters)
    return parcel


class _Parcel:
    """Gathers what was read."""

    def __init__(self, nulled: int) -> None:
        self._outcome = Outcome(nulled=nulled)
        self._lanes: dict[Lane, int] = {}
        self._kinds: dict[tuple[int, str, str], int] = {}
        self._pieces: list[tuple[int, int]] = []
        self._groups: list[int] = []
        self._parts: list[bytes] = []

    def add(self, lane: Lane, stamped: Stamped) -> None:
        """Events of a lane."""
        whole = Chunk(lane, stamped.data, stamped.count, stamped.ids, 0.0)
        for piece in cut_by_size(whole, PIECE_BYTES, PIECE_EVENTS):
            self._pieces.append((self._lane(lane), piece.count))
            self._parts += [piece.data, _encode(list(piece.ids)) if piece.ids else b""]

    def reject(self, rejected: Iterable[tuple[Lane | None, Rejected]]) -> None:
        """Events that were rejected. To be called once, after all pieces."""
        overflow: Counter[int] = Counter()
        data: list[bytes] = []
        kinds = array("I")
        kept: Counter[bool] = Counter()  # those that have to be kept never give way to those that may be dropped
        for lane, each in rejected:
            key = (_NO_LANE if lane is None else self._lane(lane), each.reason.value, each.why)
            kind = self._kinds.setdefault(key, len(self._kinds))
            droppable = each.reason in NOT_INGESTED
            if kept[droppable] >= MAX_REJECTED:
                overflow[kind] += 1
                continue
            kept[droppable] += 1
            data.append(each.data)
            kinds.append(kind)
            if len(data) >= PIECE_EVENTS:
                self._group(data, kinds)
                data, kinds = [], array("I")
        if data:
            self._group(data, kinds)
        self._outcome.overflow = list(overflow.items())

    def add_results(self, results: Results) -> None:
        """The results of all events. To be called last."""
        self._outcome.with_results = True
        self._parts += [results.body(), _encode(results.state())]

    def _group(self, data: list[bytes], kinds: array[int]) -> None:
        self._groups.append(len(data))
        self._parts += [b"".join(data), array("I", map(len, data)).tobytes(), kinds.tobytes()]

    def _lane(self, lane: Lane) -> int:
        return self._lanes.setdefault(lane, len(self._lanes))

    def sealed(self) -> tuple[bytes, list[bytes]]:
        """The head, and the parts that follow it."""
        outcome = self._outcome
        outcome.lanes = [(lane.api_key, lane.historical) for lane in self._lanes]
        outcome.kinds, outcome.pieces, outcome.groups = list(self._kinds), self._pieces, self._groups
        outcome.sizes = [len(part) for part in self._parts]
        return _encode(outcome), self._parts
