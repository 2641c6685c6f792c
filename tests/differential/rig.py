"""A version's pipelines in this process, and what they make of mutants.

Only seams are used that outlive a change of the intake's inside: `daemon.pipeline.build` with
settings, the protocols of `core/ports.py` and `core/record_intake.py`, the sources' own batches,
buffers, books and dead letters. `entrances` is the one place that knows how an intake is reached.

A pipeline is never started: nothing is delivered but by the rig. Time stands still, new UUIDs are
numbered, the decoder process does its work here, and its bounds are small, so that its way is used
often.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from types import MethodType
from typing import Any, Final, NamedTuple

import forwarder.storage.directory
import forwarder.wire.effort
from forwarder.wire.effort import Effort

SMALL_EFFORT: Final = Effort(text=6000, encoded=65536, repaired=2000, events=12, ruled=3000.0)
"""What is done without the decoder process. It has to be set before anything copies the usual one.
"""
forwarder.wire.effort.INLINE = SMALL_EFFORT  # type: ignore[misc]
# dead letters stay in memory
forwarder.storage.directory.state_directories = lambda *_, **__: ()  # type: ignore[assignment]

# ruff: noqa: E402 - these copy what is set above
from forwarder.core.ack import AckLevel
from forwarder.core.errors import Backpressure, StillDecoding, TogetherTooLarge
from forwarder.core.event import Chunk, Lane
from forwarder.core.outcome import HaltReason
from forwarder.core.ports import (
    Buffer,
    Fate,
    Incoming,
    OtlpHead,
    Reason,
    ReplayedDeadLetter,
    V1Head,
)
from forwarder.daemon import decoder, decoder_process
from forwarder.daemon.kafka import policy_of as kafka_policy
from forwarder.daemon.logs import policy_of as log_policy
from forwarder.daemon.pipeline import Pipeline, build
from forwarder.daemon.roles import ALONE
from forwarder.deadletter.memory import MemoryDeadLetters
from forwarder.delivery.halting import Halts
from forwarder.sources.http.protocol.answers import of_error, of_results
from forwarder.sources.kafka import batches as kafka_batches
from forwarder.sources.logs import batches as log_batches
from forwarder.sources.logs import followed
from forwarder.sources.logs.followed import Block, FollowedFile
from forwarder.telemetry.books import Books
from tests.differential.configurations import (
    DRAINING,
    HALTED,
    KAFKA_KEY,
    KEY,
    LOG_KEY,
    Configuration,
    configurations,
    source_settings,
)
from tests.differential.inputs import (
    BURY,
    BURY_LANE,
    EXPIRE,
    GIVE_BACK,
    KEEP,
    LINES,
    REQUESTS,
    Mutant,
    RecordInput,
    RequestInput,
)
from tests.support.clock import MIDNIGHT, FakeClock

OFFSET: Final = 1000
"""Where records and lines begin."""
EXPIRED: Final = 2.5
"""Seconds after which a sender that waits for delivery is answered."""
COUNTED: Final = ("intake_", "rule_", "buffer_bytes")
"""How the figures of a snapshot begin that are compared."""
REBUILT: Final = 64
"""Batches after which pipelines that keep nothing are built anew."""
TURNS: Final = 30
"""Turns of the loop in which the decoder's work ends."""
_NEW_UUID: Final = re.compile(r"7fac-8eca-\d{12}")


_work: Final[Any] = vars(decoder_process)["work"]
"""What the decoder process does, wherever it comes from."""
_Watermark: Final[Any] = vars(followed)["Watermark"]
"""The watermark of a file, wherever it comes from."""


class Entrances(NamedTuple):
    """The intakes of a pipeline: `RequestIntake` for requests and replays, `RecordIntake` for
    records and lines.
    """

    requests: Any
    replays: Any
    records: Any
    lines: Any


def entrances(pipeline: Pipeline) -> Entrances:
    """How the sources of a pipeline reach its intakes: the one place that knows its parts."""
    parts = pipeline._parts
    requests = _find(parts.listener, lambda kind: "incoming" in _parameters(kind))
    return Entrances(
        requests,
        _replays(parts, requests),
        _find(parts.kafka, lambda kind: "given_up" in _parameters(kind)),
        _find(parts.logs, lambda kind: "given_up" in _parameters(kind)),
    )


def _replays(parts: Any, requests: Any) -> Any:
    """The intake of replays to the first destination."""
    if hasattr(parts, "intakes"):  # before 2026-11-28
        return parts.intakes[min(1, len(parts.intakes) - 1)]
    if len(parts.destinations) == 1:
        return requests
    from forwarder.intake.intake import IntakePolicy  # noqa: PLC0415

    gate = type(requests.gate)(parts.destinations[0].admission, parts.conditions)
    return type(requests)(gate, IntakePolicy(requests._level, requests._durable))


class DestinationStores(NamedTuple):
    """What one destination keeps."""

    name: str
    buffer: Buffer
    books: Books
    dead_letters: MemoryDeadLetters
    halts: Halts


def stores(pipeline: Pipeline) -> Sequence[DestinationStores]:
    """What each destination of a pipeline keeps."""
    destinations: Sequence[Any] = pipeline._parts.destinations
    return [
        DestinationStores(
            destination.name,
            destination.stores.buffer,
            destination.books,
            destination.stores.dead_letters,
            destination.delivery.halts,
        )
        for destination in destinations
    ]


def _parameters(kind: type) -> Collection[str]:
    accept = getattr(kind, "accept", None)
    code = getattr(accept, "__code__", None)
    return code.co_varnames[: code.co_argcount] if code is not None else ()


def _find(root: object, wanted: Callable[[type], bool]) -> Any:
    """The first object that is required among those that `root` leads to, breadth first."""
    seen = {id(root)}
    queue = deque([root])
    while queue:
        candidate = queue.popleft()
        if wanted(type(candidate)):
            return candidate
        for child in _children(candidate):
            if id(child) not in seen:
                seen.add(id(child))
                queue.append(child)
    raise LookupError(f"no intake can be reached from {root!r}")


def _children(parent: object) -> Iterator[object]:
    if isinstance(parent, list | tuple):
        yield from parent
    elif isinstance(parent, dict):
        yield from parent.values()
    elif isinstance(parent, MethodType):
        yield parent.__self__
    elif isinstance(parent, partial):
        yield from (parent.func, *parent.args)
    elif type(parent).__module__.startswith("forwarder."):
        yield from getattr(parent, "__dict__", {}).values()
        for kind in type(parent).__mro__:
            for slot in getattr(kind, "__slots__", ()):
                yield getattr(parent, slot, None)


class _Numbered:
    """The process's source of randomness: new UUIDs are recognized, and numbered."""

    count = 0

    @classmethod
    def urandom(cls, size: int) -> bytes:
        """The digits of as many new UUIDs as there are bytes for, else zeros."""
        if size % 10:
            return bytes(size)
        first = cls.count
        cls.count += size // 10
        digits = "".join([f"0faceca{number:012}0" for number in range(first, cls.count)])
        return bytes.fromhex(digits)


class _Decoded:
    """Bodies that the decoder process was given."""

    count = 0

    @classmethod
    async def decode(
        cls, _process: object, head: bytes, body: bytes, accept: Any, look_up: Any
    ) -> tuple[bytes, list[bytes]]:
        cls.count += 1
        outcome, parts = _work(head, body, look_up)
        accept(sum(map(len, parts)))
        return outcome, parts


def take_over() -> None:
    """Replace what differs from run to run in this process."""
    os.urandom = _Numbered.urandom

    async def decode(process: object, *arguments: Any) -> Any:
        return await _Decoded.decode(process, *arguments)

    setattr(decoder.DecoderProcess, "decode", decode)  # noqa: B010 - types don't let methods be set


class Waiter:
    """Waits for the answer to a request, on a connection (`core.ports.PatientWaiter`)."""

    def __init__(self, origin: object) -> None:
        self.sender = "sender"
        self.origin: object | None = origin
        self.head: V1Head | OtlpHead | None = None
        self.seen: list[object] = []
        """What it got, in order."""
        self.label = ""
        """How it was answered; empty if it wasn't."""

    def __call__(self, error: Backpressure | None) -> None:
        self.answer("called", error)

    def failed(self, error: Exception) -> None:
        self.answer("failed", error)

    def postpone(self, seconds: float) -> None:
        self.seen.append(("postponed", seconds))

    def answer(self, how: str, error: Exception | None) -> None:
        """The request is answered."""
        if error is None:
            results = None if self.head is None else self.head.results
            answer = b"accepted" if results is None else of_results(results).plain
            self.label += "200"
        else:
            label, answer = _rejected(error)
            self.label += label
        self.seen.append((how, answer))


def _rejected(error: Exception) -> tuple[str, bytes]:
    answer = of_error(error)
    if answer is None:
        return f"crash {type(error).__name__}", str(error).encode("utf-8", "backslashreplace")
    code = str(getattr(error, "code", ""))
    hint = str(getattr(error, "hint", ""))
    return f"{answer.status} {code}", answer.plain + hint.encode()


class MutantOutcome(NamedTuple):
    """What became of a mutant."""

    labels: Sequence[str]
    """Its classes, for the table."""
    answers: object
    chunks: object
    letters: object
    books: object
    after: object
    """Answers, letters and books once what was buffered is settled."""

    def digest(self) -> bytes:
        """The same for the same outcome."""
        return hashlib.blake2b(self.text(), digest_size=8).digest()

    def text(self) -> bytes:
        """All of it, with new UUIDs numbered in the order in which they occur."""
        text = repr(tuple(self))
        if "7fac-8eca-" in text:
            numbers: dict[str, str] = {}
            text = _NEW_UUID.sub(
                lambda match: numbers.setdefault(match[0], f"7new-{len(numbers):017}"), text
            )
        return text.encode("utf-8", "surrogatepass")


class _Record:
    """A record as librdkafka hands it over (`sources.kafka.batches.KafkaRecord`)."""

    __slots__ = ("headers", "key", "offset", "timestamp", "value")

    def __init__(self, given: RecordInput) -> None:
        self.offset, self.timestamp, self.key, self.value, self.headers = given


class PipelineRig:
    """One pipeline, and what is asked of it."""

    def __init__(self, configuration: Configuration) -> None:
        self.clock = FakeClock(MIDNIGHT + 0.25, turns=2)
        self._keeps = configuration.keeps
        self._held: dict[int, Chunk] = {}
        self.pipeline = build(configuration.settings, self.clock)
        self.intakes = entrances(self.pipeline)
        self._destinations = stores(self.pipeline)
        if configuration.name == DRAINING:
            self.pipeline.stop_accepting()
        self._given_up: Collection[Lane] = ()
        if configuration.name == HALTED:
            self._given_up = [Lane(KAFKA_KEY), Lane(LOG_KEY)]
            for key in (KEY, KAFKA_KEY, LOG_KEY):
                self._destinations[0].halts.halt(
                    Lane(key), HaltReason.UNKNOWN_KEY, "no such key", now=0.0, wall=MIDNIGHT - 60
                )

    async def run(self, mutant: Mutant, policies: SourcePolicies) -> MutantOutcome:
        """What becomes of a mutant."""
        _Numbered.count = _Decoded.count = 0
        if mutant.kind == REQUESTS:
            return await self._requests(mutant)
        if mutant.kind == LINES:
            batches: Sequence[Any] = list(policies.lines(mutant))
            return await self._records(mutant, self.intakes.lines, batches)
        return await self._records(mutant, self.intakes.records, policies.records(mutant))

    def figures(self) -> str:
        """What metrics count of the intake and the rules since the pipeline was built."""
        snapshot = self.pipeline.snapshot()
        parts: list[Any] = [snapshot, *snapshot.destinations]
        figures: list[object] = []
        for counted in parts:
            figures += [
                (field.name, getattr(counted, field.name))
                for field in fields(counted)
                if field.name.startswith(COUNTED)
            ]
        return repr(figures)

    async def _requests(self, mutant: Mutant) -> MutantOutcome:
        origin = object()
        waiters = []
        for request in mutant.requests:
            waiter = Waiter(origin)
            waiters.append(waiter)
            intake = self.intakes.requests if request.replayed is None else self.intakes.replays
            try:
                incoming = _incoming(request)
                waiter.head = incoming.head
                if intake.accept(incoming, waiter):
                    waiter.answer("at once", None)
            except Exception as error:
                waiter.answer("raised", error)
        await self._decode(waiters)
        answers = [tuple(waiter.seen) for waiter in waiters]
        chunks, letters, books = self._look()
        for waiter in waiters:
            waiter.seen.clear()
        await self._settle(mutant.fate)
        if not all(waiter.label for waiter in waiters):
            await self._decode(waiters)
        after = [waiter.seen for waiter in waiters], *self._look()
        labels = [waiter.label or "unanswered" for waiter in waiters]
        return self._outcome(labels, answers, (chunks, letters, books), after)

    async def _decode(self, waiters: Sequence[Waiter]) -> None:
        """Let the loop run until the decoder's work is done, if it has any."""
        if all(waiter.label for waiter in waiters):
            return
        before = _Decoded.count
        for turn in range(TURNS):
            await asyncio.sleep(0)
            if all(waiter.label for waiter in waiters) or (turn > 3 and _Decoded.count == before):
                return

    async def _records(self, mutant: Mutant, intake: Any, batches: Sequence[Any]) -> MutantOutcome:
        given_up = self._given_up if mutant.given_up else ()
        handed = _HandOver(intake, given_up)
        for batch in batches:
            if not await handed.accept(batch):
                break
        chunks, letters, books = self._look()
        answers = list(handed.seen)
        handed.seen.clear()
        if mutant.fate == GIVE_BACK:
            handed.seen.append(("given back", intake.give_back(handed.accepted)))
        elif mutant.fate == KEEP:
            intake.keep(handed.accepted)
        elif mutant.fate == BURY_LANE and handed.accepted:
            lane = min(handed.accepted[0].lanes, default=Lane(KEY))
            buried = intake.dead_letter(handed.accepted, lane, "its lane was halted")
            handed.seen.append(("buried", lane, buried))
        await self._settle(mutant.fate)
        await asyncio.sleep(0)
        after = list(handed.seen), *self._look()
        if self._keeps:
            intake.keep(handed.accepted)
        return self._outcome(handed.labels or ["nothing"], answers, (chunks, letters, books), after)

    def _outcome(
        self, labels: list[str], answers: object, first: tuple[Any, Any, Any], after: Any
    ) -> MutantOutcome:
        _, letters, books = first
        reasons = {
            f"letter {letter[1]}" for dead_letters in (letters, after[2]) for letter in dead_letters
        }
        drops = {
            f"dropped {cause}"
            for accounts in (books, after[3])
            for account in accounts
            for cause, _ in account[5]
        }
        ways = ["by the decoder process"] if _Decoded.count else []
        return MutantOutcome(
            [*labels, *ways, *sorted(reasons), *sorted(drops)], answers, *first, after
        )

    def _look(self) -> tuple[list[Any], list[Any], list[Any]]:
        """What is new in buffers, dead letters and books since the last look."""
        chunks = []
        letters = []
        accounts = []
        for name, buffer, books, dead_letters, _ in self._destinations:
            for lane in sorted(buffer.waiting_lanes()):
                for chunk in buffer.queue(lane):
                    if id(chunk) not in self._held:
                        self._held[id(chunk)] = chunk
                        chunks.append(_chunk(name, chunk))
            if dead_letters.dead_letters:
                letters += [_letter(name, letter) for letter in dead_letters.dead_letters]
                dead_letters.dead_letters.clear()
            if books.accounts:
                accounts += _accounts(name, books.accounts)
                books.accounts.clear()
        return chunks, letters, accounts

    async def _settle(self, fate: str) -> None:
        """What is buffered has its fate, unless the buffer keeps it."""
        if fate == EXPIRE:
            await self.clock.advance(EXPIRED)
        if self._keeps and fate != BURY:
            return
        for _, buffer, books, _, _ in self._destinations:
            for lane in sorted(buffer.waiting_lanes()):
                queue = buffer.queue(lane)
                chunks = [queue.popleft() for _ in range(len(queue))]
                count = sum([chunk.count for chunk in chunks])
                if fate == BURY:
                    books.dead_letter(lane, Reason.REFUSED, count)
                    buffer.settle(chunks, Fate.DEAD_LETTERED)
                else:
                    books.deliver(lane, count)
                    buffer.settle(chunks, Fate.DELIVERED)
        self._held.clear()


class _HandOver:
    """Hands batches of records to an intake as sources do."""

    def __init__(self, intake: Any, given_up: Collection[Lane]) -> None:
        self._intake = intake
        self._given_up = given_up
        self.accepted: list[Any] = []
        self.seen: list[object] = []
        """What the intake returned, raised and called, in order."""
        self.labels: list[str] = []

    async def accept(self, batch: Any) -> bool:
        """Whether the batch was accepted, in parts if need be."""
        if not (batch.values or batch.rejected):
            self.seen.append("skipped")
            return True
        number = len(self.labels)
        self.labels.append("")
        for _ in range(3):
            try:
                accepted = self._intake.accept(
                    batch, partial(self._called, number), AckLevel.DELIVERED, self._given_up
                )
            except StillDecoding as error:
                self.seen.append(("decoding", str(error)))
                for _ in range(TURNS):
                    await asyncio.sleep(0)
            except TogetherTooLarge as error:
                self._reject(number, error)
                if batch.count < 2:
                    return False
                first, second = batch.halves()
                return await self.accept(first) and await self.accept(second)
            except Exception as error:
                self._reject(number, error)
                return False
            else:
                self._accepted(number, accepted)
                if hasattr(batch, "forget"):
                    batch.forget()
                return True
        self.labels[number] = "never decoded"
        return False

    def _accepted(self, number: int, accepted: Any) -> None:
        if accepted is None:
            self.labels[number] = "settled"
            self.seen.append((number, "settled"))
        else:
            self.labels[number] = "accepted"
            self.seen.append((number, accepted.at, sorted(accepted.lanes)))
            self.accepted.append(accepted)

    def _reject(self, number: int, error: Exception) -> None:
        label, answer = _rejected(error)
        self.labels[number] = label
        self.seen.append((number, label, answer))

    def _called(self, number: int, error: Backpressure | None) -> None:
        self.seen.append((number, "called", None if error is None else _rejected(error)))


def _incoming(request: RequestInput) -> Incoming:
    head: V1Head | OtlpHead | None = None
    if request.v1 is not None:
        head = V1Head(*request.v1)
    elif request.otlp is not None:
        head = OtlpHead(*request.otlp)
    replayed = None
    if request.replayed is not None:
        number, reason, at, uuid, ruled, sender_key, source = request.replayed
        replayed = ReplayedDeadLetter(number, Reason(reason), at, uuid, ruled, sender_key, source)
    return Incoming(
        request.body,
        request.query,
        request.content_type,
        request.content_encoding,
        request.client,
        "http" if replayed is None else "replay",
        None if request.ack is None else AckLevel(request.ack),
        replayed,
        head,
        None,
        request.event,
    )


def _chunk(name: str, chunk: Chunk) -> tuple[object, ...]:
    return (
        name,
        tuple(chunk.lane),
        chunk.data,
        chunk.count,
        sorted(chunk.ids),
        chunk.source,
        chunk.origin,
        chunk.received_at,
    )


def _letter(name: str, letter: Any) -> tuple[object, ...]:
    return (
        name,
        str(letter.reason),
        letter.why,
        letter.data,
        letter.lane and tuple(letter.lane),
        letter.source,
        letter.coordinates,
        letter.at,
        letter.attributes,
        letter.ruled,
        letter.sender_key,
        letter.new_uuid,
    )


def _accounts(name: str, accounts: Any) -> list[tuple[object, ...]]:
    return sorted(
        [
            (
                name,
                "" if lane is None else repr(tuple(lane)),
                _counts(account.received),
                account.delivered,
                _counts(account.dead_lettered),
                _counts(account.dropped),
            )
            for lane, account in accounts.items()
        ]
    )


def _counts(figures: Any) -> list[tuple[str, int]]:
    return sorted([(str(name), count) for name, count in figures.items() if count])


class SourcePolicies:
    """How records and lines become batches, by the policies of the configured sources."""

    def __init__(self) -> None:
        settings = source_settings()
        self._clusters = [
            kafka_policy(settings, number, ALONE) for number in range(len(settings.sources.kafka))
        ]
        self._logs = [log_policy(settings, number) for number in range(len(settings.sources.logs))]

    def records(self, mutant: Mutant) -> Sequence[Any]:
        """The batches of some records of one partition."""
        records = [_Record(record) for record in mutant.records]
        return kafka_batches.cut(self._clusters[mutant.policy], ("events", 3), records)

    def lines(self, mutant: Mutant) -> Iterator[Any]:
        """The batches of a piece of a file."""
        policy = self._logs[mutant.policy]
        splitter = policy.split(OFFSET)
        mark = _Watermark(OFFSET)
        file = FollowedFile((1, 1), policy.paths[0])
        file.identity = "f1"
        for records in (splitter.feed(mutant.lines, 0.0), splitter.overdue(60.0)):
            first = mark.read
            if records.end == first:
                continue
            span = mark.open(first, records.end, records.lines)
            size = records.end - first
            block = Block(file, "f1", 0, first, records, MIDNIGHT, MIDNIGHT - 5, span, mark, size)
            yield from log_batches.cut(policy, block)


class VersionRig:
    """All pipelines of a version, built when they are needed."""

    def __init__(self, folder: Path) -> None:
        self._configurations = configurations(folder)
        self._policies = SourcePolicies()
        self._rigs: dict[str, PipelineRig] = {}

    def begin(self, number: int) -> None:
        """A batch of mutants begins: pipelines that keep what they got are built anew, the others
        now and then.
        """
        for name in list(self._rigs):
            if self._configurations[name].keeps or number % REBUILT == 0:
                del self._rigs[name]

    def figures(self) -> dict[str, str]:
        """The figures of each pipeline, by its configuration."""
        return {name: rig.figures() for name, rig in self._rigs.items()}

    async def run(self, mutant: Mutant) -> MutantOutcome:
        """What becomes of a mutant."""
        rig = self._rigs.get(mutant.configuration)
        if rig is None:
            rig = PipelineRig(self._configurations[mutant.configuration])
            self._rigs[mutant.configuration] = rig
        return await rig.run(mutant, self._policies)
