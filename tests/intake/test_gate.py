"""Nothing reaches the buffer beside rules and routes, wherever it comes from."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable
from typing import Any, Final

import pytest

from forwarder.core.ack import AckLevel
from forwarder.core.event import Chunk, Lane
from forwarder.core.ports import Incoming, Reason, ReplayedDeadLetter, V1Head
from forwarder.intake import admission, content, decoder_jobs
from forwarder.intake.admission import Gate
from forwarder.intake.fan_out import Branch, FanOut
from forwarder.intake.intake import Intake, IntakePolicy
from forwarder.intake.lane_registry import LaneRegistry
from forwarder.intake.source_intake import SourceIntake
from tests.intake.test_fan_out import Fixed
from tests.support.decoders import NO_EFFORT, InProcessDecoder
from tests.support.intakes import KEY, AllKnown, batch, stamped_event
from tests.support.records import IdleDelivery, RecordsRig, record_list
from tests.support.waiters import IntakeCallback

EVENT: Final = stamped_event(event="b", api_key=KEY)
V1: Final = {"batch": [{**stamped_event(event="b"), "options": {}}], "created_at": "2026-01-01"}


def body(content: Any) -> bytes:
    """It as JSON."""
    return json.dumps(content).encode()


def request(content: Any, **hints: Any) -> Callable[[RecordsRig], object]:
    """A request with this body."""
    return lambda rig: rig.intake.accept(Incoming(body(content), **hints), IntakeCallback())


def records(rig: RecordsRig) -> object:
    """A batch of records."""
    return rig.records.accept(record_list(body(EVENT)), IntakeCallback(), AckLevel.DELIVERED)


def made(rig: RecordsRig) -> object:
    """Events that their source has made."""
    chunk = Chunk(Lane(KEY), body(EVENT), 1, frozenset(), 0.0)
    return rig.records.accept_events([chunk], (), IntakeCallback())


SOURCES: Final = {
    "one event": request(EVENT),
    "a batch": request(batch(EVENT, EVENT)),
    "v1": request(V1, head=V1Head(b"Bearer " + KEY.encode())),
    "a replayed letter": request(EVENT, replayed=ReplayedDeadLetter(7, Reason.REFUSED)),
    "records": records,
    "made events": made,
}


def routed(rig: RecordsRig) -> RecordsRig:
    """The same with two destinations, and routes that depend on the event."""
    idle = IdleDelivery()
    branches = [Branch(rig.admission, idle, idle) for _ in range(2)]
    fan = FanOut(branches, Fixed((0, 1), apart=True), LaneRegistry(10, {}, AllKnown()))
    rig.gate = Gate(fan, rig.conditions)
    rig.intake = Intake(rig.gate, IntakePolicy())
    rig.records = SourceIntake(rig.gate, branches, source="kafka")
    return rig


@pytest.mark.parametrize("source", SOURCES)
def test_nothing_is_admitted_that_passed_no_rules(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the step the admission refuses, and counts nothing; with it the rule holds."""
    rule = {"name": "no-b", "match": {"event": "b"}, "drop": True}
    rig = RecordsRig(rules=[rule])
    if source == "a replayed letter":
        with pytest.raises(Exception, match="drops it"):
            SOURCES[source](rig)
    else:
        SOURCES[source](rig)
    assert rig.chunks() == []
    monkeypatch.setattr(admission, "apply_rules", lambda *_, **__: None)
    bare = RecordsRig(rules=[rule])
    with pytest.raises(RuntimeError, match="rules"):
        SOURCES[source](bare)
    assert (bare.chunks(), bare.books.accounts) == ([], {})


@pytest.mark.parametrize("source", [name for name in SOURCES if name != "a replayed letter"])
def test_nothing_is_admitted_that_passed_no_routes(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where they depend on the event. A replayed letter goes back to where it was."""
    rig = routed(RecordsRig())
    SOURCES[source](rig)
    assert rig.chunks()
    for module in (admission, content):
        monkeypatch.setattr(module, "note_route", lambda *_: None)
    bare = routed(RecordsRig())
    with pytest.raises(RuntimeError, match="routes"):
        SOURCES[source](bare)
    assert (bare.chunks(), bare.books.accounts) == ([], {})


async def test_rules_are_applied_after_the_decoder_process_if_it_did_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It says whether it did."""
    monkeypatch.setattr(decoder_jobs, "apply_rules", lambda *_, **__: None)
    rule = {"name": "no-b", "match": {"event": "b"}, "drop": True}
    rig = RecordsRig(rules=[rule], decoder=InProcessDecoder(), effort=NO_EFFORT)
    rig.offer(batch(EVENT, stamped_event(event="c")), IntakeCallback())
    await rig.conditions.drain(10.0)
    assert [json.loads(event)["event"] for event in rig.events()] == ["c"]
    await rig.conditions.close()


@pytest.mark.parametrize("rules", [[], [{"name": "no-b", "match": {"event": "b"}, "drop": True}]])
def test_what_was_read_isnt_held_until_its_events_are_settled(rules: list[Any]) -> None:
    """Rules that fail on an event need its record, but only they do."""
    rig = RecordsRig(rules=rules)
    batch_of_records = record_list(stamped_event(event="c"))
    record = weakref.ref(batch_of_records)
    accepted = rig.records.accept(batch_of_records, IntakeCallback(), AckLevel.DELIVERED)
    del batch_of_records
    assert accepted is not None
    assert record() is None
