"""Every SDK, unchanged, in every way that it can send: of a thousand events through forwarder none
is missing, doubled or changed.
"""

from __future__ import annotations

from collections import Counter

from forwarder.telemetry.snapshot import balanced
from tests.sdks.outcomes import COUNT, SdkOutcome, held_as, identity
from tests.sdks.variants import V1, VARIANTS, Variant, for_each

every_variant = for_each(VARIANTS)


@every_variant
def test_every_event_arrives_once(outcome: SdkOutcome) -> None:
    """The sandbox holds what the program says that it sent, event by event, and nothing else."""
    reported = Counter(map(identity, outcome.journal))
    held = held_as(outcome.journal, outcome.events)
    assert len(outcome.journal) >= COUNT
    assert reported - held == Counter(), "missing"
    assert held - reported == Counter(), "came from nowhere"


@every_variant
def test_no_event_contradicts_another(outcome: SdkOutcome) -> None:
    """No uuid came twice with other bytes, and no event was rejected."""
    assert (outcome.summary.conflicts, outcome.summary.not_ingested) == (0, 0)
    assert [
        request
        for request in outcome.requests
        if request.path.startswith("/batch") and request.status != 200
    ] == []


@every_variant
def test_the_books_balance(outcome: SdkOutcome) -> None:
    """Forwarder received as many events as it delivered; none is among the dead letters, none was
    dropped, and its end is a good one.
    """
    lanes = outcome.snapshot.lanes
    assert balanced(outcome.snapshot)
    assert sum(lane.total_received for lane in lanes) == sum(lane.delivered for lane in lanes)
    assert sum(lane.delivered for lane in lanes) + outcome.passed_on == outcome.summary.arrivals
    assert [
        (lane.dead_lettered, lane.dropped)
        for lane in lanes
        if lane.total_dead or lane.total_dropped
    ] == []
    assert outcome.exit_code == 0


@every_variant
def test_migrations_stay_apart(variant: Variant, outcome: SdkOutcome) -> None:
    """Events of a migration are delivered as such, and no others."""
    assert {event.historical for event in outcome.events} == {variant.historical}


@for_each(V1)
def test_the_newer_protocol_is_spoken(outcome: SdkOutcome) -> None:
    """An SDK that is asked to speak v1 does so with forwarder, which takes all of it; upstream its
    events go by `/batch/`.
    """
    assert outcome.received("/i/v1/analytics/events")[200] > 0
    assert {request.path for request in outcome.requests if request.arrivals} <= {
        "/batch/",
        "/i/v0/ai/batch/",
    }
