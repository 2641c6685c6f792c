"""Defects that are put into the product, one at a time, to see whether the simulation finds them:
`python -m tests.simulation --planted`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Final
from unittest.mock import patch

from forwarder.archive import folders
from forwarder.archive.folders import LocalFolder, PublishFailed
from forwarder.buffer.disk import reading, segment
from forwarder.buffer.disk.log import LogGroup
from forwarder.core.ack import AckLevel
from forwarder.core.event import Chunk
from forwarder.core.outcome import Delivered, Retry, Scope
from forwarder.core.ports import Ordering
from forwarder.core.shares import Headroom, Pool
from forwarder.core.stamps import new_uuid7
from forwarder.daemon import pipeline
from forwarder.daemon.configured_rules import ConfiguredRules
from forwarder.deadletter.replay import Replayer
from forwarder.deadletter.store import DeadLetterStore
from forwarder.delivery import outcomes
from forwarder.delivery.delivery import Delivery
from forwarder.inspect import drain
from forwarder.intake import otlp
from forwarder.intake.admission import Admission, Gate, Submission
from forwarder.intake.fan_out import FanOut
from forwarder.intake.source_intake import SourceIntake
from forwarder.sources.hand_over import Watermark
from forwarder.sources.http.listener import HttpListener
from forwarder.sources.http.passthrough import definitions
from forwarder.sources.http.passthrough.exchange import PassedBody
from forwarder.sources.http.protocol.limits import BodyPace
from forwarder.sources.logs.followed import FollowedFile
from forwarder.sources.logs.following import Follower
from forwarder.storage.committer import Committer
from forwarder.telemetry.books import Books
from forwarder.telemetry.taps import EventTap
from forwarder.wire.v1_results import Results
from tests.simulation.life import Life, live
from tests.simulation.plan import Plan

Change = tuple[Any, str, Callable[[Any], Any]]


def _every(number: int, broken: Callable[[Any], Callable[..., Any]]) -> Callable[[Any], Any]:
    """Broken each so many calls."""

    def change(right: Any) -> Any:
        calls = 0
        wrong = broken(right)

        def mixed(*args: Any, **more: Any) -> Any:
            nonlocal calls
            calls += 1
            return (wrong if calls % number == 0 else right)(*args, **more)

        return mixed

    return change


def _first_alone(right: Any) -> Any:
    def numbers(self: Any, of: Any) -> Any:
        return right(self, of)[:1]

    return numbers


def _too_early(right: Any) -> Any:
    def admit(self: Any, submission: Any, level: AckLevel) -> Any:
        return right(self, submission, AckLevel.MEMORY)

    return admit


def _twice(right: Any) -> Any:
    def deliver(self: Any, lane: Any, count: int) -> None:
        right(self, lane, 2 * count)

    return deliver


def _taken_for_delivered(right: Any) -> Any:
    def apply(self: Any, state: Any, attempt: Any, outcome: Any, *more: Any) -> Any:
        if isinstance(outcome, Retry) and outcome.scope is Scope.LANE:
            outcome = Delivered()
        return right(self, state, attempt, outcome, *more)

    return apply


def _skips_rules(gate: Gate, chunk: Chunk, level: AckLevel, callback: Any, _: object) -> bool:
    if gate.admitter.routes is not None:
        chunk.to = (0,)
    return gate.admitter.admit_one(chunk, level, callback)


def _unsynced(right: Any) -> Any:
    def run(group: LogGroup, *, alone: bool) -> None:
        group._log.sync = lambda _: None
        right(group, alone=alone)

    return run


def _unchecked(right: Any) -> Any:
    def checked(view: memoryview, at: int, header: Any, base: int) -> Any:
        result = right(view, at, header, base)
        if isinstance(result, reading.Damage):
            begin = at + header.length - header.size
            body = view[begin : begin + header.size]
            return reading.FoundRecord(base + at, header, result.meta, body)
        return result

    return checked


def _one_too_far(right: Any) -> Any:
    def settle(self: Watermark, span: Any) -> Any:
        passed = right(self, span)
        if self._spans:
            self.position = self._spans[0].end
        return passed

    return settle


def _unruled(right: Any) -> Any:
    def accept(self: SourceIntake, *args: Any) -> Any:
        conditions = self._gate.conditions
        rules = conditions.rules
        conditions.rules = None
        try:
            return right(self, *args)
        finally:
            conditions.rules = rules

    return accept


def _stored_too_far(right: Any) -> Any:
    def row(self: FollowedFile, now: float) -> Any:
        return right(self, now)._replace(position=self.boundary, tail=self.check)

    return row


def _without_times(right: Any) -> Any:
    def store(self: Any) -> Any:
        self._unstored_times.clear()
        return right(self)

    return store


class _NeverSyncs:
    """The module `os`, whose `fsync` does nothing."""

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def fsync(self, descriptor: int) -> None:
        """Nothing becomes durable."""


def _loses_first_kilobyte(right: Any) -> Any:
    async def read(self: PassedBody) -> bytes:
        piece: bytes = await right(self)
        return piece[1000:] if len(piece) > 20_000 else piece

    return read


def _given_up(right: Any) -> Any:
    async def publish(self: LocalFolder, name: str, content: Any) -> None:
        with suppress(PublishFailed):
            await right(self, name, content)

    return publish


def _removes_first(right: Any) -> Any:
    def replay(self: Any, marked: Any) -> Any:
        self._store.remove([marked.number])
        return right(self, marked)

    return replay


def _opens_twice(right: Any) -> Any:
    def open_books(self: Any, *figures: Any) -> None:
        right(self, *figures)
        right(self, *figures)

    return open_books


def _buries_nothing(admission: Admission, submission: Submission) -> None:
    admission._count_dead_lettered(submission.droppable)


def _hastens(right: Any) -> Any:
    def apply(handler: Any, state: Any, attempt: Any, outcome: Any, *more: Any) -> None:
        if isinstance(outcome, Retry):
            outcome = replace(outcome, not_before=0.0)
        right(handler, state, attempt, outcome, *more)

    return apply


def _cut_letters(right: Any) -> Any:
    def made(*args: Any) -> list[Any]:
        return [
            replace(letter, data=letter.data.replace(b'"n": ', b'"more": 1, "n": '))
            for letter in right(*args)
        ]

    return made


def _hides_rest(right: Any) -> Any:
    return lambda *args: replace(right(*args), left=())


def _without_shares(pool: Pool, sender: Any) -> bool:
    if pool.held >= pool.size:
        return False
    pool._shares.add(sender, 1)
    return True


async def _closes_nothing(listener: HttpListener, _: float) -> None:
    await listener.stop_listening()


DEFECTS: Final[Mapping[str, Change]] = {
    "rules are skipped on the single event's way": (Gate, "enter_one", lambda _: _skips_rules),
    "the second destination is forgotten": (FanOut, "_numbers", _first_alone),
    "an acknowledgement at the level delivered comes early": (
        Admission,
        "admit_prepared",
        _too_early,
    ),
    "each seventh batch counts twice": (Books, "deliver", _every(7, _twice)),
    "an answer 500 counts as delivered": (
        outcomes.OutcomeHandler,
        "apply",
        _taken_for_delivered,
    ),
    "what a Retry-After says is forgotten": (outcomes.OutcomeHandler, "apply", _hastens),
    "a dead letter isn't what was refused": (outcomes, "dead_letters_of", _cut_letters),
    "one wake-up in five is lost": (Delivery, "wake", _every(5, lambda _: lambda _self: None)),
    "the listener's connections outlive it": (
        HttpListener,
        "close",
        lambda _: _closes_nothing,
    ),
    "events that make room aren't counted": (Books, "drop", lambda _: lambda *_args: None),
    "a reload keeps the rules": (ConfiguredRules, "reload", lambda _: lambda *_args: None),
    "what isn't delivered in time is answered 200": (
        Submission,
        "expire",
        lambda _: lambda submission: submission.answer(None),
    ),
    "a dropped event isn't counted": (
        Books,
        "drop_at_receipt",
        _every(2, lambda _: lambda *_args: None),
    ),
    "two requests of a person are sent at once": (
        pipeline,
        "lane_ordering",
        lambda _: lambda _settings: lambda _lane: Ordering.NONE,
    ),
    "what is written to the log isn't synced": (LogGroup, "run", _unsynced),
    "the name of a new file of the log isn't synced": (
        segment,
        "sync_directory",
        lambda _: lambda _directory: None,
    ),
    "a torn record is read as a whole one": (reading, "_checked", _unchecked),
    "dead letters become durable after the marks of their events": (
        Committer,
        "add",
        lambda _: lambda committer, participant: committer._participants.insert(0, participant),
    ),
    "a dead letter is removed before the buffer holds it again": (
        Replayer,
        "_replay",
        _removes_first,
    ),
    "a dead letter that was sent again stays": (
        DeadLetterStore,
        "remove",
        _every(3, lambda _: lambda *_args: None),
    ),
    "a start counts twice what the files say": (Books, "open", _opens_twice),
    "an event that is rejected at receipt isn't kept": (
        Admission,
        "_dead_letter_droppable",
        lambda _: _buries_nothing,
    ),
    "the answer says ok of an event that is rejected": (
        Results,
        "drop",
        lambda _: lambda *_args: None,
    ),
    "a log record is another event when it is repeated": (
        otlp,
        "derived_uuid",
        lambda _: lambda _name: new_uuid7(0.0),
    ),
    "a body that never ends is waited for": (
        BodyPace,
        "late",
        lambda _: lambda *_args: False,
    ),
    "an event in flight is said to be nowhere": (
        Delivery,
        "undelivered",
        lambda _: lambda _delivery: [],
    ),
    "a drain hides what it leaves": (drain, "_result", _hides_rest),
    "a restart in place closes its socket": (
        HttpListener,
        "duplicate_sockets",
        lambda _: lambda _listener: (),
    ),
    "a tap forgets one event in five": (
        EventTap,
        "_choose",
        _every(5, lambda _: lambda *_args: None),
    ),
    "what is being received has no bound": (
        Headroom,
        "exceeded",
        lambda _: lambda *_args: False,
    ),
    "one address may have all connections": (Pool, "acquire", lambda _: _without_shares),
    "an offset is committed one batch too far": (Watermark, "settle", _one_too_far),
    "rules are skipped for records": (SourceIntake, "accept", _unruled),
    "a log's position is stored before what is behind it is settled": (
        FollowedFile,
        "row",
        _stored_too_far,
    ),
    "a file of the archive isn't synced before it has its name": (
        folders,
        "os",
        lambda _: _NeverSyncs(),
    ),
    "a file of the archive that couldn't be written counts": (LocalFolder, "publish", _given_up),
    "definitions are given to other credentials": (
        definitions,
        "cache_key",
        lambda _: lambda target, _lines: target.partition(b"?")[0],
    ),
    "definitions are kept although their key is refused": (
        definitions.ResponseCache,
        "drop",
        lambda _: lambda *_args: None,
    ),
    "a passed body loses what waits": (PassedBody, "read", _loses_first_kilobyte),
    "the time of reading a line isn't stored": (
        Follower,
        "_store_changes",
        _without_times,
    ),
}


def lived(plan: Plan, defect: str) -> Life:
    """A life with a defect."""
    with planted(defect):
        return live(plan)


@contextmanager
def planted(name: str) -> Iterator[None]:
    """The product has this defect."""
    owner, attribute, change = DEFECTS[name]
    with patch.object(owner, attribute, change(getattr(owner, attribute))):
        yield
