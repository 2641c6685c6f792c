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
from collections.abc import Callable, Collection, Iterator, Sequence
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
    DeadLetter,
    EventResults,
    Incoming,
    OtlpHead,
    Reason,
    RuleDrop,
    V1Head,
)
from forwarder.core.record_intake import RecordFacts, RejectedRecord
from forwarder.intake.content import Content, RuleBounds, apply_routes, apply_rules
from forwarder.intake.lane_registry import KnownKeys, LaneRegistry
from forwarder.intake.record_reader import RecordBatchReader
from forwarder.intake.requests import (
    USUAL,
    RequestForm,
    RequestReader,
    V1Form,
    dead_letter_at_receipt,
)
from forwarder.stamping.stamp import RejectedEvent
from forwarder.stamping.stamp_event import NOT_INGESTED, ReadingRules
from forwarder.wire.effort import UNBOUNDED
from forwarder.wire.envelope import cut_by_size
from forwarder.wire.v1_results import Results, ResultsState

if TYPE_CHECKING:
    from forwarder.rules.event_rules import EventRules
    from forwarder.rules.matching import EvaluateCondition
    from forwarder.rules.routing import EventRoutes

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
    kind.code: kind
    for kind in (InvalidRequest, InvalidToken, NoKey, UnknownKey, RequestTooLarge, UnsupportedMedia)
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
    pieces: Sequence[tuple[int, int, Sequence[int] | None]] = ()
    """Of each piece: which of `lanes`, how many events, and its destinations (`Chunk.to`)."""
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
    """Rejected events that are not returned: which of `lanes`, and how many."""
    nulled: int = 0
    filtered: int = 0
    with_results: bool = False
    ruled: bool = False
    """See `Content.ruled`."""
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

    def content(self, rules: EventRules | None, at: float, source: str) -> Content:
        """What was read, except chunks and dead letters, which are made in slices. `rules`: those
        of the job.
        """
        head = self.head
        content = Content(nulled=head.nulled, filtered=head.filtered, ruled=head.ruled)
        content.overflow = [
            (Lane(*head.lanes[lane]), source, count) for lane, count in head.overflow
        ]
        if rules is None:
            return content
        from forwarder.rules.event_rules import RuleOutcome, RuleTally  # noqa: PLC0415

        first = 2 * len(head.pieces)
        content.dropped = [
            (
                RuleDrop(f"{RULE_PREFIX}{name}"),
                Chunk(Lane(*head.lanes[lane]), data, count, NO_IDS, at, source),
            )
            for (lane, count, name), data in zip(head.dropped, self.parts[first:], strict=False)
        ]
        tally = RuleTally(rules)
        tally.errors.update(head.errors)
        for name, outcome, count in head.outcomes:
            tally.outcomes[name, RuleOutcome(outcome)] += count
        content.tallies = (tally,)
        return content

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
    evaluate = None
    if conditions is not None and (job.event_rules is not None or job.routes is not None):
        evaluate = conditions()
    try:
        content, results = (
            _read(job, body) if isinstance(job, RequestJob) else _read_record(job, body)
        )
        _cut(content)
        _limit_rejected(content, job)
        if job.event_rules is None:
            content.ruled = True
        else:
            rules, bounds = _rules_of(job.event_rules, look_up, evaluate)
            apply_rules(content, rules, bounds=bounds)
        if job.routes is not None:
            apply_routes(content, _restored_routes(job.routes.encoded, evaluate))
        if job.event_rules is not None:
            _cut(content)  # again: rules may have made the pieces larger
        _check_dead_letters(content, job)
    except ForwarderError as error:
        if error.code not in _ERRORS:
            raise
        return failed(error.code, error.message), []
    return _Parts(content, results).sealed()


def _cut(content: Content) -> None:
    """Cut the chunks into pieces."""
    pieces: list[Chunk] = []
    for chunk in content.chunks:
        for piece in cut_by_size(chunk, PIECE_BYTES, PIECE_EVENTS):
            piece.to = chunk.to
            pieces.append(piece)
    content.chunks = pieces
    content.names = ()


def _limit_rejected(content: Content, job: RequestJob | RecordJob) -> None:
    """Make dead letters of the events that a request rejects: of at most `MAX_REJECTED` that the
    service wouldn't ingest either, and the further ones are counted; and of the others, up to the
    first that is too many (`_check_dead_letters`).
    """
    source = _source_of(job)
    left = {True: MAX_REJECTED, False: MAX_REJECTED + 1}
    overflow: Counter[Lane] = Counter()
    for lane, rejection in content.rejected:
        droppable = rejection.reason in NOT_INGESTED
        if left[droppable]:
            left[droppable] -= 1
            content.dead_letters.append(dead_letter_at_receipt(lane, rejection, source, 0.0))
        elif droppable:
            overflow[lane] += 1
    content.rejected = ()
    content.overflow = [(lane, source, count) for lane, count in overflow.items()]


def _check_dead_letters(content: Content, job: RequestJob | RecordJob) -> None:
    """Raises `RequestTooLarge` for over `MAX_REJECTED` dead letters that have to be kept."""
    dead_letters = content.dead_letters
    if len(dead_letters) <= MAX_REJECTED:
        return
    if isinstance(job, RecordJob):
        raise RequestTooLarge(f"over {MAX_REJECTED} events of it are rejected")
    if sum([dead_letter.reason not in NOT_INGESTED for dead_letter in dead_letters]) > MAX_REJECTED:
        raise RequestTooLarge(
            "more of its events are rejected than one request may bring dead letters"
        )


def _source_of(job: RequestJob | RecordJob) -> str:
    """The source as rules and routes match it."""
    steps = job.event_rules or job.routes
    return "" if steps is None else steps.source


class _AskedFiles:
    """Files of ids, which another process has."""

    def __init__(self) -> None:
        self._count = 0
        self.look_up: LookUp = no_files

    def open(self, path: Path, salt_file: Path | None, key: str) -> _AskedFile:  # noqa: ARG002
        self._count += 1
        return _AskedFile(self, self._count - 1)


class _AskedFile:
    """A file of ids that the other process reads."""

    def __init__(self, files: _AskedFiles, number: int) -> None:
        self._files = files
        self._number = number

    def among(self, ids: Collection[str]) -> Collection[str]:
        return frozenset(self._files.look_up(self._number, ids))


@lru_cache(maxsize=2)
def _restored(encoded: bytes, evaluate: EvaluateCondition | None) -> tuple[EventRules, _AskedFiles]:
    from forwarder.rules.event_rules import restored_rules  # noqa: PLC0415 - few have rules

    files = _AskedFiles()
    return restored_rules(encoded, files, evaluate), files


def _rules_of(
    rules: RulesOfJob, look_up: LookUp, evaluate: EvaluateCondition | None
) -> tuple[EventRules, RuleBounds]:
    """The rules of one job, and what they may make."""
    restored, files = _restored(rules.encoded, evaluate)
    files.look_up = look_up
    return restored, RuleBounds(rules.max_bytes, MAX_REJECTED)


@lru_cache(maxsize=2)
def _restored_routes(encoded: bytes, evaluate: EvaluateCondition | None) -> EventRoutes:
    from forwarder.rules.routing import restored_routes  # noqa: PLC0415 - most have one destination

    return restored_routes(encoded, evaluate)


def _read(job: RequestJob, body: bytes) -> tuple[Content, EventResults | None]:
    """What is in a request, and what is answered of its events."""
    reader = RequestReader(
        job.rules,
        LaneRegistry(job.max_lanes, {}, KnownKeys((), (), verifiable=False), api_keys=job.api_keys),
    )
    incoming = Incoming(
        body,
        job.query,
        job.content_type,
        job.content_encoding,
        job.client,
        _source_of(job),
        event=job.event,
    )
    del body
    form = _form_of(job)
    text = form.decode(incoming, job.rules.max_body, UNBOUNDED)
    incoming.body = b""
    content = form.read(reader, text, incoming, job.received, UNBOUNDED)
    return content, form.results(content)


def _form_of(job: RequestJob) -> RequestForm:
    """How the request is read."""
    if job.otlp is None:
        return USUAL if job.v1 is None else V1Form(V1Head(*job.v1))
    from forwarder.intake.otlp import restored  # noqa: PLC0415 - most have no use for mappings

    encoded, authorization, protobuf = job.otlp
    return restored(encoded).of_request(OtlpHead(authorization, protobuf))


class _OneRecord:
    """A batch of the record of one job."""

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


def _read_record(job: RecordJob, value: bytes) -> tuple[Content, None]:
    """What is in a record."""
    lanes = LaneRegistry(1, {}, KnownKeys((), (), verifiable=False))
    reader = RecordBatchReader(
        lanes, job.rules, _source_of(job), job.max_bytes, report=lambda _name: None
    )
    content = reader.read(_OneRecord(job, value), job.received)
    content.dead_letter = None  # its letters are written where their attributes are known
    return content, None


class _Parts:
    """A content as it is sent back."""

    def __init__(self, content: Content, results: EventResults | None) -> None:
        self._lanes: dict[Lane, int] = {}
        self._kinds: dict[tuple[int, str, str, Sequence[int] | None], int] = {}
        self._groups: list[int] = []
        self._parts: list[bytes] = []
        self._head = head = DecodedHead(
            nulled=content.nulled, filtered=content.filtered, ruled=content.ruled
        )
        head.pieces = [(self._lane(chunk.lane), chunk.count, chunk.to) for chunk in content.chunks]
        for chunk in content.chunks:
            self._parts += [chunk.data, _encode(list(chunk.ids)) if chunk.ids else b""]
        self._add_ruled(content)
        for at in range(0, len(content.dead_letters), PIECE_EVENTS):
            self._add_group(content.dead_letters[at : at + PIECE_EVENTS])
        head.overflow = [(self._lane(lane), count) for lane, _, count in content.overflow]
        if results is not None:
            head.with_results = True
            self._parts += [
                results.body(),
                _encode(results.state()) if isinstance(results, Results) else b"",
            ]

    def _add_ruled(self, content: Content) -> None:
        head = self._head
        head.dropped = [
            (self._lane(chunk.lane), chunk.count, reason.removeprefix(RULE_PREFIX))
            for reason, chunk in content.dropped
        ]
        self._parts += [chunk.data for _, chunk in content.dropped]
        outcomes: Counter[tuple[str, str]] = Counter()
        errors: dict[str, str] = {}
        for tally in content.tallies:
            outcomes.update(tally.outcomes)
            errors.update(tally.errors)
        head.outcomes = [(*key, count) for key, count in outcomes.items()]
        head.errors = list(errors.items())

    def _add_group(self, dead_letters: Sequence[DeadLetter]) -> None:
        data = [dead_letter.data for dead_letter in dead_letters]
        kinds = array("I", map(self._kind, dead_letters))
        self._groups.append(len(data))
        self._parts += [b"".join(data), array("I", map(len, data)).tobytes(), kinds.tobytes()]

    def _kind(self, dead_letter: DeadLetter) -> int:
        lane = _NO_LANE if dead_letter.lane is None else self._lane(dead_letter.lane)
        key = (lane, dead_letter.reason.value, dead_letter.why, dead_letter.to)
        return self._kinds.setdefault(key, len(self._kinds))

    def _lane(self, lane: Lane) -> int:
        return self._lanes.setdefault(lane, len(self._lanes))

    def sealed(self) -> tuple[bytes, list[bytes]]:
        """The head, and the parts that follow it."""
        head = self._head
        head.lanes = [(lane.api_key, lane.historical) for lane in self._lanes]
        head.kinds = list(self._kinds)
        head.groups = self._groups
        head.sizes = [len(part) for part in self._parts]
        return _encode(head), self._parts
