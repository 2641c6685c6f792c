"""What must have become of the events of a promise: each raises `AssertionError` if it hasn't."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from tests.promises.agreed import (
    AT,
    FOUND,
    MAX_EVENT,
    SECRET,
    SHARE,
    TOO_BIG,
    VERBATIM,
    hashed,
    moment,
    share_of,
)

if TYPE_CHECKING:
    from tests.promises.seen import CellEvidence

NO_ID: Final = ("missing_distinct_id", "unmappable")
"""Reasons of an event without an id: of a request or record, of a mapping."""


def is_dropped(seen: CellEvidence) -> None:
    assert seen.arrivals() == [], "it was delivered"
    seen.check_dropped(seen.count_of(seen.sent[0].data["event"]))


def has_property(**expected: Any) -> Callable[[CellEvidence], None]:
    def check(seen: CellEvidence) -> None:
        properties = seen.only().properties
        assert {name: properties.get(name) for name in expected} == expected, properties

    return check


def by_source(seen: CellEvidence) -> None:
    properties = seen.only().properties
    source_properties = {name for name in properties if name.startswith("from_")}
    expected = seen.entrance.sources_of_rules
    assert source_properties == {f"from_{source}" for source in expected}, properties


def sample_has_people_whole(seen: CellEvidence) -> None:
    expected = {
        event.data["distinct_id"]
        for event in seen.sent
        if share_of(event.data["distinct_id"]) < SHARE
    }
    assert {arrival.event["distinct_id"] for arrival in seen.arrivals()} == expected
    assert 0 < len(expected) < len(seen.sent)


def renamed(seen: CellEvidence) -> None:
    assert seen.only().event["event"] == "user signed up"


def is_removed(seen: CellEvidence) -> None:
    arrival = seen.only()
    assert "password" not in arrival.properties, arrival.properties
    assert [sorted(item) for item in arrival.properties["items"]] == [["n"], ["n"]]
    assert "kept" in arrival.properties
    assert SECRET not in arrival.raw


def is_hashed(seen: CellEvidence) -> None:
    properties = seen.only().properties
    assert properties["email"] == hashed("ann@example.com"), properties


def failed_closed(seen: CellEvidence) -> None:
    assert seen.arrivals() == [], "it was delivered with what should have been removed"
    letters = seen.letters("guarded")
    assert len(letters) == seen.count_of("guarded")
    for letter in letters:
        assert seen.entrance.says_why(letter, "rule_failed", "startswith"), letter


def stays_as_it_is(seen: CellEvidence) -> None:
    """A rule that doesn't redact has failed on it."""
    assert seen.only().properties["env"] == "text"


def is_a_letter_of_a_rule(seen: CellEvidence) -> None:
    """A rule has failed on it that says so."""
    assert seen.arrivals() == []
    (letter,) = seen.letters("strict")
    assert seen.entrance.says_why(letter, "rule_failed", "strictly"), letter


def is_rejected_alone(seen: CellEvidence) -> None:
    """It has no id, and the other one has."""
    assert [arrival.event["event"] for arrival in seen.arrivals()] == ["with an id"]
    assert sum(seen.reasons[reason] for reason in NO_ID) == 1, seen.reasons


def is_unchanged(seen: CellEvidence) -> None:
    arrival = seen.only()
    assert VERBATIM in arrival.raw, arrival.raw


def goes_where_its_route_says(seen: CellEvidence) -> None:
    for event in seen.sent:
        at = {arrival.destination for arrival in seen.everywhere() if arrival.is_of(event)}
        assert at == event.to, f"{event.data['event']} is at {sorted(at)}, not {sorted(event.to)}"


def sample_of_a_route(seen: CellEvidence) -> None:
    for event in seen.sent:
        person = event.data["distinct_id"]
        at = {arrival.destination for arrival in seen.everywhere() if arrival.is_of(event)}
        expected = {"us", "eu"} if share_of(person) < SHARE else {"us"}
        assert at == expected, f"{person} is at {sorted(at)}"


def keys_are_translated(seen: CellEvidence) -> None:
    for arrival in seen.everywhere():
        expected = seen.entrance.key_at(arrival.destination)
        assert arrival.key == expected, f"{arrival.destination} has it with another key"
    assert {arrival.destination for arrival in seen.everywhere()} >= seen.sent[0].to


def no_key_is_shown(seen: CellEvidence) -> None:
    assert len(seen.arrivals()) == 1
    for what, text in seen.shown().items():
        assert text, f"{what} is empty"
        for key in seen.entrance.keys:
            assert key not in text, f"{what} shows {key}"


def is_too_large(seen: CellEvidence) -> None:
    assert seen.arrived("small enough"), "the other one wasn't delivered"
    assert not seen.arrived("larger than an event"), "it was delivered"
    (letter,) = seen.letters("larger than an event")
    assert seen.entrance.says_why(letter, "too_large", "max_event"), letter


def exceeding_is_rejected(seen: CellEvidence) -> None:
    what, expected = seen.exceeded
    assert what == expected


def books_balance(seen: CellEvidence) -> None:
    seen.check_books()


def drops_are_counted(seen: CellEvidence) -> None:
    assert seen.arrivals() == []
    seen.check_dropped(2)


def keeps_its_uuid(seen: CellEvidence) -> None:
    (sent,) = seen.sent
    assert seen.only().event["uuid"] == sent.data["uuid"]


def gets_a_uuid(seen: CellEvidence) -> None:
    uuids = [UUID(arrival.event["uuid"]) for arrival in seen.arrivals()]
    assert len(set(uuids)) == len(seen.sent) == 2, uuids


def keeps_its_time(seen: CellEvidence) -> None:
    arrival = seen.only()
    (sent,) = seen.sent
    assert moment(arrival.event["timestamp"]) == moment(sent.data["timestamp"])


def gets_the_time_of_receipt(seen: CellEvidence) -> None:
    timestamp = moment(seen.only().event["timestamp"])
    margin = timedelta(seconds=1)
    assert seen.began - margin <= timestamp <= seen.sent_by + margin, timestamp


def keeps_the_text_of_its_time(seen: CellEvidence) -> None:
    (sent,) = seen.sent
    assert seen.only().event["timestamp"] == sent.data["timestamp"]


def is_acknowledged(seen: CellEvidence) -> None:
    during, after = seen.acknowledged
    expected = seen.entrance.acknowledges_at_once
    assert during is expected, f"while the service is down it is acknowledged: {during}"
    assert after, "it is never acknowledged"
    assert seen.arrivals(), "it was acknowledged, and isn't there"


def is_replayed(seen: CellEvidence) -> None:
    arrival = seen.only()
    (sent,) = seen.sent
    assert seen.letters_before(TOO_BIG)
    assert seen.letters(TOO_BIG) == []
    assert "big" not in arrival.properties
    if seen.entrance.carries_uuids:
        assert arrival.event["uuid"] == sent.data["uuid"]
        assert moment(arrival.event["timestamp"]) == moment(AT)


def replayed_letters_follow_rules(seen: CellEvidence) -> None:
    arrival = seen.only()
    assert "password" not in arrival.properties
    assert arrival.properties["email"] == hashed("ann@example.com"), arrival.properties


def says_where_it_came_from(seen: CellEvidence) -> None:
    (letter,) = seen.letters("of no use")
    assert letter["source"] == seen.entrance.source_of_letters, letter
    assert bool(letter["coordinates"]) is seen.entrance.has_coordinates, letter
    assert letter["bytes"] > MAX_EVENT


def failure_says_where_it_came_from(seen: CellEvidence) -> None:
    letters = seen.letters("guarded")
    assert letters
    for letter in letters:
        assert bool(letter["coordinates"]) is seen.entrance.has_coordinates, letter


def is_tapped(seen: CellEvidence) -> None:
    for outcome in seen.entrance.tapped_as:
        tap_lines = [line for line in seen.taps(outcome) if line["event"] == "tap seen"]
        assert tap_lines, f"not as {outcome}"
        assert {line["source"] for line in tap_lines} <= {seen.entrance.tapped_source, ""}, (
            tap_lines
        )
        assert tap_lines[0]["data"]["properties"]["n"] == 1


def drop_is_tapped(seen: CellEvidence) -> None:
    reasons = [line["reason"] for line in seen.taps("dropped")]
    assert reasons == ["rule:tap-noise"], reasons


def letter_is_tapped(seen: CellEvidence) -> None:
    reasons = {line["reason"] for line in seen.taps("dead-lettered")}
    assert reasons == {"too_large"}, reasons


def secrets_are_hidden(seen: CellEvidence) -> None:
    tap_lines = [
        line for line in seen.taps(seen.entrance.tapped_as[0]) if line["event"] == "tap secret"
    ]
    assert tap_lines, "not tapped"
    assert {line["data"]["properties"]["client_secret"] for line in tap_lines} == {"…"}
    assert SECRET not in json.dumps(tap_lines)


def is_found_while_it_is_buffered(seen: CellEvidence) -> None:
    assert FOUND in seen.explained_while_buffered, seen.explained_while_buffered


def letter_is_explained(seen: CellEvidence) -> None:
    assert "dead letter" in seen.explained_letter, seen.explained_letter


def is_forgotten(seen: CellEvidence) -> None:
    assert seen.arrivals() == [], "it was delivered"
    seen.check_dropped(1)


def each_once(seen: CellEvidence) -> None:
    assert len(seen.arrivals()) == len(seen.sent)
    assert seen.conflicts == []
