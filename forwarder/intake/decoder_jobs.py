"""The jobs of the decoder process and their results: frames of a head in MessagePack, and bytes as
they are.

A large body becomes pieces of at most `PIECE_BYTES` and `PIECE_EVENTS` (or one event), each a
chunk by itself, so that nothing which is done with one of them later takes long. Rules are applied
to it here, piece by piece. Of rejected events at most `MAX_REJECTED` are returned; the others are
counted.

Invariant: the result is that of reading the same body on the loop, but for where it is cut.
"""

from __future__ import annotations

import struct
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from msgspec import Struct

from forwarder.core.errors import (
    ForwarderError,
    InvalidRequest,
    InvalidToken,
    NoKey,
    RequestTooLarge,
    UnknownKey,
    UnsupportedMedia,
)
from forwarder.core.event import NO_IDS, Chunk, Lane
from forwarder.core.ports import (
    RULE_PREFIX,
    EventResults,
    Incoming,
    OtlpHead,
    Reason,
    RuleDrop,
    V1Head,
)
from forwarder.core.records import RecordFacts, RejectedRecord
from forwarder.intake.lanes import KnownKeys, LaneRegistry
from forwarder.intake.record_reader import RecordBatchReader
from forwarder.intake.requests import ReadingRules, RequestReader
from forwarder.intake.result_protocols import ResultProtocol, V1Protocol
from forwarder.intake.routed import routed_parts
from forwarder.intake.ruling import Ruling
from forwarder.intake.stamp_event import NOT_INGESTED
from forwarder.intake.stamping import RejectedEvent, StampedEvents
from forwarder.wire.effort import UNBOUNDED
from forwarder.wire.encodings import decode_body
from forwarder.wire.envelope import cut_by_size
from forwarder.wire.shapes import read_request
from forwarder.wire.v1_results import Results, ResultsState

if TYPE_CHECKING:
    from forwarder.rules.matching import EvaluateCondition
    from forwarder.rules.routing import EventRoutes
    from forwarder.rules.rules import EventRules

FRAME: Final = struct.Struct("!IQ")
"""Before each frame: the lengths of its head and of what follows the head."""

QUESTION: Final = 2**64 - 1
"""In place of the length of what follows: the head isn't the outcome of the job, but a question
that has to be answered first (`IdQuestion`).
"""

CPU_SECONDS: Final = 10
"""CPU time that one body may take; the process is ended by a signal when it is used up, also
within a call of C.
"""

PIECE_BYTES: Final = 256 * 1024
PIECE_EVENTS: Final = 1000
MAX_REJECTED: Final = 5000
"""Of events that the service wouldn't ingest either, and again of others."""

_ERRORS: Final[dict[str, type[ForwarderError]]] = {
    each.code: each
    for each in (InvalidRequest, InvalidToken, NoKey, UnknownKey, RequestTooLarge, UnsupportedMedia)
}
_NO_LANE: Final = -1


class RulesOfJob(Struct, array_like=True):
    """The rules that are applied to what is read."""

    encoded: bytes
    """The same bytes as long as the rules are the same."""
    source: str
    max_bytes: int
    """Of what the rules leave: more than an empty lane could hold is not made."""


class RoutesOfJob(Struct, array_like=True):
    """The routes by which what is read is divided among destinations."""

    encoded: bytes
    """The same bytes as long as the routes are the same."""
    source: str


class RequestJob(Struct, tag="request", array_like=True):
    """A request that is to be read; its body follows."""

    rules: ReadingRules
    max_lanes: int
    api_keys: Sequence[str]
    received: float
    query: bytes
    content_type: bytes
    content_encoding: bytes
    client: str | None
    event: bytes
    v1: tuple[bytes, bytes, bytes] | None = None
    """Authorization, SDK and time of a v1 request."""
    otlp: tuple[bytes, bytes, bool] | None = None
    """What is configured, authorization and encoding of an OTLP request."""
    event_rules: RulesOfJob | None = None
    routes: RoutesOfJob | None = None


class RecordJob(Struct, tag="record", array_like=True):
    """A source's record that is to be read; its value follows."""

    rules: ReadingRules
    max_bytes: int
    received: float
    facts: RecordFacts
    api_key: str | None
    foreign: bool
    event_rules: RulesOfJob | None = None
    routes: RoutesOfJob | None = None


class IdQuestion(NamedTuple):
    """Which of some ids are in a file of ids."""

    file: int
    ids: Sequence[str]


class DecodedHead(Struct, array_like=True):
    """What was read. The bytes follow: data and ids of each piece; the events of each group that a
    rule drops; data, lengths and kinds of each
    group of rejected events; and, for a sender whose answer says what became of its events, that
    answer, and the results as `ResultsState` where they can change.
    """

    error: str = ""
    message: str = ""
    lanes: Sequence[tuple[str, bool]] = ()
    pieces: Sequence[tuple[int, int, int | None]] = ()
    """Of each piece: which of `lanes`, how many events, and its destination (`Chunk.to`)."""
    kinds: Sequence[tuple[int, str, str, Sequence[int] | None]] = ()
    """Of rejected events: which of `lanes` (-1: none), the reason, more about it, and their
    destinations (`DeadLetter.to`).
    """
    dropped: Sequence[tuple[int, int, str]] = ()
    """Of each group of events that a rule drops: which of `lanes`, how many, and the rule."""
    outcomes: Sequence[tuple[str, str, int]] = ()
    """How many events each rule has changed, dropped or failed on."""
    errors: Sequence[tuple[str, str]] = ()
    """Why rules failed, by their names."""
    groups: Sequence[int] = ()
    """How many rejected events there are in each group."""
    overflow: Sequence[tuple[int, int]] = ()
    """Rejected events that are not returned: which of `kinds`, and how many."""
    nulled: int = 0
    filtered: int = 0
    with_results: bool = False
    sizes: Sequence[int] = ()
    """Bytes of each part that follows."""


class DecoderReply(NamedTuple):
    """A decoded body: its head, and the parts that followed it."""

    head: DecodedHead
    parts: Sequence[bytes]

    def chunks(self, received: float, source: str) -> Iterator[Chunk]:
        """The events, a piece at a time."""
        lanes = [Lane(*lane) for lane in self.head.lanes]
        for index, (lane, count, to) in enumerate(self.head.pieces):
            ids = self.parts[2 * index + 1]
            keys = frozenset(_decode_ids(ids)) if ids else NO_IDS
            chunk = Chunk(lanes[lane], self.parts[2 * index], count, keys, received, source)
            chunk.to = to
            yield chunk

    def ruling(self, rules: EventRules | None, received: float, source: str) -> Ruling | None:
        """What rules made of it, but for the events that are left and those that are rejected;
        None if none were applied.
        """
        head = self.head
        if rules is None:
            return None
        from forwarder.rules.rules import RuleOutcome, RuleTally  # noqa: PLC0415

        ruling = Ruling()
        first = 2 * len(head.pieces)
        for (lane, count, name), data in zip(head.dropped, self.parts[first:], strict=False):
            chunk = Chunk(Lane(*head.lanes[lane]), data, count, NO_IDS, received, source)
            ruling.dropped.append((RuleDrop(f"{RULE_PREFIX}{name}"), chunk))
        tally = RuleTally(rules)
        tally.errors.update(head.errors)
        for name, outcome, count in head.outcomes:
            tally.outcomes[name, RuleOutcome(outcome)] += count
        ruling.ruled.append(tally)
        return ruling

    def rejected(self) -> Iterator[tuple[Lane | None, RejectedEvent]]:
        """The rejected events, and their lanes."""
        kinds = [
            (self._lane(lane), Reason(reason), why, to) for lane, reason, why, to in self.head.kinds
        ]
        first = 2 * len(self.head.pieces) + len(self.head.dropped)
        for at in range(first, first + 3 * len(self.head.groups), 3):
            data = self.parts[at]
            lengths = array("I", self.parts[at + 1])
            indexes = array("I", self.parts[at + 2])
            start = 0
            for length, kind in zip(lengths, indexes, strict=True):
                lane, reason, why, to = kinds[kind]
                event = data[start : start + length]
                yield lane, RejectedEvent(reason, event, why=why, to=to)
                start += length

    def results(self) -> tuple[bytes, Callable[[], Results] | None] | None:
        """The answer, and what makes the results of each event where they can change; None if the
        sender gets the usual answer.
        """
        if not self.head.with_results:
            return None
        answer, state = self.parts[-2:]
        return answer, (lambda: Results.restored(_decode_results(state))) if state else None

    def overflow(self) -> list[tuple[Lane | None, Reason, int]]:
        """Rejected events that were not returned."""
        kinds = self.head.kinds
        return [
            (self._lane(kinds[kind][0]), Reason(kinds[kind][1]), count)
            for kind, count in self.head.overflow
        ]

    def _lane(self, index: int) -> Lane | None:
        return None if index == _NO_LANE else Lane(*self.head.lanes[index])

    def check(self) -> None:
        """Raises why nothing was read, unless something was."""
        head = self.head
        if head.error:
            raise _ERRORS.get(head.error, RuntimeError)(head.message)


_decode_job: Final = msgspec.msgpack.Decoder(RequestJob | RecordJob).decode
_decode_results: Final = msgspec.msgpack.Decoder(ResultsState).decode
_decode_ids: Final = msgspec.msgpack.Decoder(list[str]).decode
decode_head: Final = msgspec.msgpack.Decoder(DecodedHead).decode
_encode: Final = msgspec.msgpack.Encoder().encode


decode_question: Final = msgspec.msgpack.Decoder(IdQuestion).decode
decode_answer: Final = msgspec.msgpack.Decoder(list[str]).decode
"""The ids that are in the file."""


def encode_question(file: int, ids: Collection[str]) -> bytes:
    """The head of a question."""
    return _encode(IdQuestion(file, list(ids)))


def encode_answer(ids: Collection[str]) -> bytes:
    """The head of its answer."""
    return _encode(list(ids))


def encode_job(job: RequestJob | RecordJob) -> bytes:
    """The head of a job."""
    return _encode(job)


def failed(code: str, message: str) -> bytes:
    """The head of a body that can't be read."""
    return _encode(DecodedHead(code, message))


LookUp = Callable[[int, Collection[str]], Collection[str]]
"""Which of some ids are in a file of ids, which is named by its number (`EventRules.known`)."""


def no_files(file: int, ids: Collection[str]) -> Collection[str]:  # noqa: ARG001
    """Looks ids up where there are no rules."""
    return ()


def work(
    head: bytes,
    body: bytes,
    look_up: LookUp,
    conditions: Callable[[], EvaluateCondition] | None = None,
) -> tuple[bytes, list[bytes]]:
    """Do a job; the head of what was read, and the parts that follow it. Raises only
    what is a bug.

    `conditions`: how those of rules and routes are evaluated, called if there are such; None: at
    once.
    """
    job = _decode_job(head)
    rules = routes = evaluate = None
    if conditions is not None and (job.event_rules is not None or job.routes is not None):
        evaluate = conditions()
    if job.event_rules is not None:
        rules = _AppliedRules(job.event_rules, look_up, evaluate)
    if job.routes is not None:
        routes = _AppliedRoutes(job.routes, evaluate)
    try:
        parts = (
            _read(job, body, rules, routes)
            if isinstance(job, RequestJob)
            else _read_record(job, body, rules, routes)
        )
    except ForwarderError as error:
        if error.code not in _ERRORS:
            raise
        return failed(error.code, error.message), []
    return parts.sealed()


class _AskedFiles:
    """Files of ids, which another process has."""

    def __init__(self) -> None:
        self._count = 0
        self.look_up: LookUp = no_files

    def open(self, path: Path, salt_file: Path | None, key: str) -> _AskedFile:  # noqa: ARG002
        """See `rules.matching.OpenIdFiles`."""
        self._count += 1
        return _AskedFile(self, self._count - 1)


class _AskedFile:
    """See `rules.matching.KnownIds`."""

    def __init__(self, files: _AskedFiles, number: int) -> None:
        self._files = files
        self._number = number

    def among(self, ids: Collection[str]) -> Collection[str]:
        """See `rules.matching.KnownIds`."""
        return frozenset(self._files.look_up(self._number, ids))


@lru_cache(maxsize=2)
def _restored(encoded: bytes, evaluate: EvaluateCondition | None) -> tuple[EventRules, _AskedFiles]:
    from forwarder.rules.rules import restored_rules  # noqa: PLC0415 - most have no use for rules

    files = _AskedFiles()
    return restored_rules(encoded, files, evaluate), files


class _AppliedRules:
    """The rules of one job."""

    def __init__(
        self, rules: RulesOfJob, look_up: LookUp, evaluate: EvaluateCondition | None
    ) -> None:
        self._rules, files = _restored(rules.encoded, evaluate)
        files.look_up = look_up
        self._source = rules.source
        self._max_bytes = rules.max_bytes

    def ruling(self, stamped: Iterable[tuple[Lane, StampedEvents]]) -> Ruling:
        """What they make of stamped events. Raises `RequestTooLarge` as soon as that is more than
        may be returned.
        """
        ruling = Ruling()
        size = 0
        for lane, events in stamped:
            whole = Chunk(lane, events.data, events.count, events.ids, 0.0, self._source)
            for piece in cut_by_size(whole, PIECE_BYTES, PIECE_EVENTS):
                left = len(ruling.chunks)
                ruling.add(self._rules, piece)
                size += sum([chunk.cost for chunk in ruling.chunks[left:]])
                if size > self._max_bytes:
                    raise RequestTooLarge(
                        "the rules make more of the request than an empty lane could hold"
                    )
                if len(ruling.failed) > MAX_REJECTED:
                    raise RequestTooLarge(
                        f"rules fail on over {MAX_REJECTED} events of the request, and would make "
                        f"dead letters of them ({ruling.failed[0].why})"
                    )
        return ruling


@lru_cache(maxsize=2)
def _restored_routes(encoded: bytes, evaluate: EvaluateCondition | None) -> EventRoutes:
    from forwarder.rules.routing import restored_routes  # noqa: PLC0415 - most have one destination

    return restored_routes(encoded, evaluate)


class _AppliedRoutes:
    """The routes of one job."""

    def __init__(self, routes: RoutesOfJob, evaluate: EvaluateCondition | None) -> None:
        self._routes = _restored_routes(routes.encoded, evaluate)
        self._source = routes.source

    def of(self, chunk: Chunk) -> Iterable[tuple[int | None, Chunk]]:
        """The chunk's events by destination; None: those of its lane."""
        if self._routes.whole(chunk.lane, self._source) is not None:
            return ((None, chunk),)
        chunk.source = self._source
        return routed_parts(self._routes, chunk)

    def of_rejected(self, lane: Lane, event: bytes) -> tuple[int, ...] | None:
        """The destinations of an event that becomes a dead letter; None: those of its lane."""
        if self._routes.whole(lane, self._source) is not None:
            return None
        return tuple(self._routes.of_events(lane, self._source, event, 1)[0])


def _read(
    job: RequestJob, body: bytes, rules: _AppliedRules | None, routes: _AppliedRoutes | None
) -> _Parts:
    reader = RequestReader(
        job.rules,
        LaneRegistry(job.max_lanes, {}, KnownKeys((), (), verifiable=False), api_keys=job.api_keys),
    )
    incoming = Incoming(
        body, job.query, job.content_type, job.content_encoding, job.client, event=job.event
    )
    del body
    protocol = _protocol_of(job)
    if protocol is None:
        text = decode_body(incoming, job.rules.max_body)
        incoming.body = b""
        request = read_request(text, job.rules.max_events)
    else:
        text = protocol.decode(incoming, job.rules.max_body)
        incoming.body = b""
        request = protocol.read(text, job.rules.max_events, UNBOUNDED)
    content = reader.read(request, incoming, job.received)
    del request, text
    results = None if protocol is None else protocol.results(content)
    parts = _Parts(content.nulled, content.filtered, routes=routes)
    if rules is None:
        parts.add(content.stamped)
        parts.reject(content.rejected)
    else:
        ruling = rules.ruling(content.stamped)
        ruling.note(content.results)
        parts.add_ruling(ruling)
        parts.reject([*content.rejected, *_failed(ruling)])
    if results is not None:
        parts.add_results(results)
    return parts


def _failed(ruling: Ruling) -> list[tuple[Lane | None, RejectedEvent]]:
    """The events that rules make dead letters of."""
    return [
        (letter.lane, RejectedEvent(letter.reason, letter.data, why=letter.why))
        for letter in ruling.failed
    ]


def _protocol_of(job: RequestJob) -> ResultProtocol | None:
    """How the request is read, if its answer has results."""
    if job.otlp is None:
        return None if job.v1 is None else V1Protocol(V1Head(*job.v1))
    from forwarder.intake.otlp import restored  # noqa: PLC0415 - most have no use for mappings

    encoded, authorization, protobuf = job.otlp
    return restored(encoded).of_request(OtlpHead(authorization, protobuf))


class _OneRecord:
    """See `core.records.RecordBatch`."""

    def __init__(self, job: RecordJob, value: bytes) -> None:
        self.values: Sequence[bytes] = (value,)
        self.api_key = job.api_key
        self.foreign = job.foreign
        self.rejected: Sequence[RejectedRecord] = ()
        self._facts = job.facts

    def facts(self, index: int) -> RecordFacts:  # noqa: ARG002 - there is one
        return self._facts

    def names(self, indexes: Sequence[int]) -> list[str]:
        return [self._facts.identity or self._facts.name for _ in indexes]

    def times(self, indexes: Sequence[int]) -> list[float | None]:
        return [self._facts.at for _ in indexes]

    # Dead letters are written where their attributes are known, not here.
    def attributes(self, index: int) -> str:  # noqa: ARG002
        return ""


def _read_record(
    job: RecordJob, value: bytes, rules: _AppliedRules | None, routes: _AppliedRoutes | None
) -> _Parts:
    lanes = LaneRegistry(1, {}, KnownKeys((), (), verifiable=False))
    reader = RecordBatchReader(lanes, job.rules, "", job.max_bytes, report=lambda _name: None)
    content = reader.read(_OneRecord(job, value), job.received)
    parts = _Parts(content.nulled, routes=routes)
    rejected = [
        (letter.lane, RejectedEvent(letter.reason, letter.data, why=letter.why))
        for letter in content.letters
    ]
    if rules is None:
        parts.add(content.events)
    else:
        ruling = rules.ruling(content.events)
        parts.add_ruling(ruling)
        rejected += _failed(ruling)
    if len(rejected) > MAX_REJECTED:  # none of them may be dropped
        raise RequestTooLarge(f"over {MAX_REJECTED} events of it are rejected")
    parts.reject(rejected)
    return parts


class _Parts:
    """Gathers what was read."""

    def __init__(
        self, nulled: int, filtered: int = 0, *, routes: _AppliedRoutes | None = None
    ) -> None:
        self._head = DecodedHead(nulled=nulled, filtered=filtered)
        self._routes = routes
        self._lanes: dict[Lane, int] = {}
        self._kinds: dict[tuple[int, str, str, tuple[int, ...] | None], int] = {}
        self._pieces: list[tuple[int, int, int | None]] = []
        self._groups: list[int] = []
        self._parts: list[bytes] = []

    def add(self, stamped: Iterable[tuple[Lane, StampedEvents]]) -> None:
        """Events by lane."""
        for lane, events in stamped:
            self._add(Chunk(lane, events.data, events.count, events.ids, 0.0))

    def _add(self, chunk: Chunk) -> None:
        for whole in cut_by_size(chunk, PIECE_BYTES, PIECE_EVENTS):
            for to, piece in ((None, whole),) if self._routes is None else self._routes.of(whole):
                self._pieces.append((self._lane(chunk.lane), piece.count, to))
                self._parts += [piece.data, _encode(list(piece.ids)) if piece.ids else b""]

    def add_ruling(self, ruling: Ruling) -> None:
        """Events that rules were applied to, in place of `add`."""
        for chunk in ruling.chunks:
            self._add(chunk)
        dropped: list[tuple[int, int, str]] = []
        for reason, chunk in ruling.dropped:
            dropped.append((self._lane(chunk.lane), chunk.count, reason.removeprefix(RULE_PREFIX)))
            self._parts.append(chunk.data)
        outcomes: Counter[tuple[str, str]] = Counter()
        errors: dict[str, str] = {}
        for tally in ruling.ruled:
            outcomes.update(tally.outcomes)
            errors.update(tally.errors)
        self._head.dropped = dropped
        self._head.outcomes = [(*key, count) for key, count in outcomes.items()]
        self._head.errors = list(errors.items())

    def reject(self, rejected: Iterable[tuple[Lane | None, RejectedEvent]]) -> None:
        """Events that were rejected. To be called once, after all pieces."""
        overflow: Counter[int] = Counter()
        data: list[bytes] = []
        kinds = array("I")
        # those that have to be kept never give way to those that may be dropped
        kept: Counter[bool] = Counter()
        for lane, each in rejected:
            number = _NO_LANE if lane is None else self._lane(lane)
            droppable = each.reason in NOT_INGESTED
            if kept[droppable] >= MAX_REJECTED:
                overflow[self._kind(number, each, None)] += 1
                continue
            kept[droppable] += 1
            data.append(each.data)
            kinds.append(
                self._kind(
                    number,
                    each,
                    None
                    if self._routes is None or lane is None
                    else self._routes.of_rejected(lane, each.data),
                )
            )
            if len(data) >= PIECE_EVENTS:
                self._group(data, kinds)
                data = []
                kinds = array("I")
        if data:
            self._group(data, kinds)
        self._head.overflow = list(overflow.items())

    def _kind(self, lane: int, rejected: RejectedEvent, to: tuple[int, ...] | None) -> int:
        key = (lane, rejected.reason.value, rejected.why, to)
        return self._kinds.setdefault(key, len(self._kinds))

    def add_results(self, results: EventResults) -> None:
        """The results of all events. To be called last."""
        self._head.with_results = True
        self._parts += [
            results.body(),
            _encode(results.state()) if isinstance(results, Results) else b"",
        ]

    def _group(self, data: list[bytes], kinds: array[int]) -> None:
        self._groups.append(len(data))
        self._parts += [b"".join(data), array("I", map(len, data)).tobytes(), kinds.tobytes()]

    def _lane(self, lane: Lane) -> int:
        return self._lanes.setdefault(lane, len(self._lanes))

    def sealed(self) -> tuple[bytes, list[bytes]]:
        """The head, and the parts that follow it."""
        head = self._head
        head.lanes = [(lane.api_key, lane.historical) for lane in self._lanes]
        head.kinds = list(self._kinds)
        head.pieces = self._pieces
        head.groups = self._groups
        head.sizes = [len(part) for part in self._parts]
        return _encode(head), self._parts
