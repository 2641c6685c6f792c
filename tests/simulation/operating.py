"""What an operator asks and does with commands: `explain`, `tap`, `buffer drain`; and whether what
they say is so.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from forwarder.admin.event_lookup import WantedUuid
from forwarder.config.settings import Settings
from forwarder.core.clock import Clock
from forwarder.core.taps import TapOutcome
from forwarder.inspect.buffer_contents import unsettled
from forwarder.inspect.drain import drain_directory, of_directory
from forwarder.inspect.explain import search_files
from forwarder.inspect.state_files import buffers_at, files_at
from forwarder.telemetry.taps import MAX_RATE, TapBatch, TapFilter, TapRequest
from tests.simulation.log_acts import REFUSED
from tests.simulation.network import passing
from tests.simulation.oracle import Evidence, Letter, Promise, books_of, number_of
from tests.simulation.plan import LINE, Event, Plan, Tap
from tests.simulation.senders import Answered

if TYPE_CHECKING:
    from forwarder.daemon.pipeline import Pipeline
    from tests.simulation.loop import SimulatedLoop
    from tests.simulation.process import SimulatedProcess

ASKED: Final = 8
"""Events that `explain` is asked for at once; and as many that are accepted and not delivered."""
POLLED: Final = 1.0
"""Seconds between two looks at what a tap has collected."""


class Seen(NamedTuple):
    """A copy of an event, as `explain` says: where, and why it is a dead letter, if it is one."""

    destination: str
    reason: str


def explained(evidence: Evidence, event: Event) -> list[Seen]:
    """What `forwarder explain` says of an event, of the daemon's memory if it runs, and of the
    files.
    """
    assert event.uuid is not None
    wanted = WantedUuid.parse(event.uuid)
    first = evidence.plan.destinations[0]
    copies = [] if evidence.pipeline is None else evidence.pipeline.explain(wanted)
    seen = [Seen(copy.destination or first, copy.reason) for copy in copies]
    return seen + [
        Seen(copy.destination or first, copy.reason)
        for copy in search_files(wanted, files_at(evidence.disk))
    ]


def judge_explanations(evidence: Evidence, loop: SimulatedLoop, *, at_the_end: bool) -> int:
    """Ask for some events, and raise `Promise` if what is said isn't so; how many were asked for.
    `at_the_end`: all that isn't a dead letter is delivered.
    """
    answers = {
        event.number: answered
        for sender in evidence.senders
        for answered in sender.answers
        for event in answered.events
    }
    askable = [event for event in evidence.events if _has_own_uuid(event)]
    there = {
        stored.event["properties"].get("n")
        for service in evidence.services.values()
        for stored in service.stored
    }
    pending = [event for event in askable if event.number in answers and event.number not in there]
    asked = [
        event
        for events in (pending, askable)
        for event in loop.chance.sample(events, min(ASKED, len(events)))
    ]
    for event in asked:
        seen = explained(evidence, event)
        _judge_letters(evidence, event, seen)
        buffered = {copy.destination for copy in seen if not copy.reason}
        if buffered and (at_the_end or event.number not in evidence.began):
            raise Promise(f"event {event.number} is said to be buffered, at {sorted(buffered)}")
        answered = answers.get(event.number)
        if answered is not None and evidence.is_sure(answered):
            _judge_accepted(evidence, event, answered, seen)
    return len(asked)


def _has_own_uuid(event: Event) -> bool:
    """Whether the event has its uuid in it, also as a dead letter."""
    unread = event.flaw in ("no object", "no JSON")
    return bool(event.uuid) and event.shape != LINE and not unread


def _judge_letters(evidence: Evidence, event: Event, seen: list[Seen]) -> None:
    """A dead letter is said to be one, for its reason, and nothing else is."""
    for name in evidence.services:
        reasons = [
            letter.reason
            for letter in evidence.letters(name)
            if number_of(letter.data) == event.number and not _is_torn_line(event, letter)
        ]
        said = [copy.reason for copy in seen if copy.destination == name and copy.reason]
        # beside a buffer in memory, those that aren't written yet are known to the daemon alone
        unwritten = not evidence.plan.durable and evidence.pipeline is not None
        more = Counter(said) - Counter(reasons)
        if Counter(reasons) - Counter(said) or (more and not unwritten):
            raise Promise(
                f"event {event.number} is said to be a dead letter of {name} for {said}, and is "
                f"one for {reasons}"
            )


def _is_torn_line(event: Event, letter: Letter) -> bool:
    """Whether a dead letter only seems to be of the event: torn in its number, 22 becomes 2."""
    return letter.reason == REFUSED["broken"] and not event.flaw


def _judge_accepted(evidence: Evidence, event: Event, answered: Answered, seen: list[Seen]) -> None:
    """An accepted event is somewhere: delivered, or where it is said to be."""
    drops = evidence.plan.settings["buffer"]["when_full"] != "reject"
    if drops or event.flaw or evidence.may_drop(event):
        return
    for name in evidence.required(event):
        delivered = any(
            stored.event["properties"].get("n") == event.number
            for stored in evidence.services[name].stored
        )
        dropped = event.number in evidence.marked[name, "drop"]
        if not delivered and not dropped and name not in {copy.destination for copy in seen}:
            raise Promise(
                f"event {event.number} was accepted at {answered.at:.3f} s, isn't at {name}, and "
                "is said to be nowhere"
            )


async def watch(
    act: Tap, evidence: Evidence, process: SimulatedProcess, loop: SimulatedLoop
) -> int:
    """Look at what passes, as `forwarder tap` does, until the daemon ends or the time is over; how
    many events were shown. Raises `Promise` if one is shown that had no such outcome, or one is
    neither shown nor counted as left out.
    """
    pipeline = evidence.pipeline
    if pipeline is None:
        return 0
    wanted = TapFilter(outcomes=(TapOutcome(act.outcome),), rate=MAX_RATE)
    name = f"tap of {act.at}"
    process.call(pipeline.tap, TapRequest(name, wanted))
    before = _delivered(pipeline, evidence.plan)
    shown = left_out = 0
    end = loop.time() + act.seconds
    while loop.time() < end:
        await passing(POLLED)
        if evidence.pipeline is not pipeline or process.killed:
            return shown
        batch: TapBatch = process.call(pipeline.tap, TapRequest(name, wanted))
        shown += len(batch.events)
        left_out += batch.skipped + batch.lost
        for line in batch.events:
            _judge_shown(evidence, act.outcome, json.loads(bytes(line)))
        passed = _delivered(pipeline, evidence.plan) - before
        if act.outcome == TapOutcome.DELIVERED and shown + left_out != passed:
            raise Promise(
                f"{passed} events were delivered, a tap has shown {shown}, and left out {left_out}"
            )
    process.call(pipeline.tap, TapRequest(name))
    return shown


def _delivered(pipeline: Pipeline, plan: Plan) -> int:
    """Events that were sent: a tap doesn't show what an archive stores."""
    books = books_of(pipeline)[: 1 if plan.archive is not None else None]
    return sum(lane.delivered for figures in books for lane in figures.lanes)


def _judge_shown(evidence: Evidence, outcome: str, line: dict[str, Any]) -> None:
    data = line["data"]
    if isinstance(data, str):  # an excerpt of what can't be read
        return
    number = number_of(json.dumps(data).encode())
    name = line.get("destination") or evidence.plan.destinations[0]
    if line["outcome"] != outcome or number not in evidence.began:
        raise Promise(f"a tap for {outcome} shows {line}")
    if outcome == TapOutcome.DELIVERED and not any(
        stored.event["properties"].get("n") == number for stored in evidence.services[name].stored
    ):
        raise Promise(f"a tap shows event {number} as delivered, and it isn't at {name}")


def drainable(root: Path) -> Iterator[Path]:
    """The directories that `forwarder buffer drain` delivers, one after the other."""
    return iter(sorted(buffers_at(root)))


async def drain(
    settings: Settings,
    directory: Path,
    clock: Clock,
    say: Callable[[str, str], None],
    refuses: Callable[[], bool],
) -> None:
    """Deliver what a directory holds. Raises `Promise` if something else is left than is said;
    `refuses`: whether the disk can't be written, so that what was delivered is there still. (The
    command looks at the files afterwards, too.)
    """
    alone = of_directory(settings, directory)
    result = await drain_directory(alone, directory, clock, lambda _: None)
    left = sum(len(record.events) for record in unsettled(directory))
    say("drain", f"{result.delivered} events delivered, {result.left_events} left")
    if left < result.left_events or (left > result.left_events and not refuses()):
        raise Promise(f"a drain says that {result.left_events} events are left, and {left} are")
