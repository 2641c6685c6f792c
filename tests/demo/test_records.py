"""What the Kafka demo produces."""

from __future__ import annotations

import json
from itertools import islice

from forwarder.demo.records import EVENTS_TOPIC, PAYMENTS_TOPIC, SampleRecord, records


def told(visitors: int) -> list[SampleRecord]:
    """The story of so many visitors."""
    return list(records(visitors))


def test_it_holds_what_topics_hold() -> None:
    """Events with and without uuid and timestamp, a tombstone, a record that can't be read, and JSON of somebody else's."""
    story = told(60)
    events = [json.loads(each.value) for each in story if each.topic == EVENTS_TOPIC and each.value is not None and not each.broken]
    stamped = [event for event in events if "uuid" in event]
    assert len(stamped) > 50
    assert len(events) - len(stamped) > 50
    assert {("uuid" in event) == ("timestamp" in event) for event in events} == {True}
    assert [each.number for each in story if each.value is None or each.broken] == [None, None]
    payments = [json.loads(each.value or b"") for each in story if each.topic == PAYMENTS_TOPIC]
    assert {payment["state"] for payment in payments} == {"done", "pending"}
    assert not any("event" in payment for payment in payments)


def test_every_event_has_a_number_of_its_own() -> None:
    """It is in the event's properties, or in the payment, and nothing else has one."""
    numbered = {each.number: json.loads(each.value or b"") for each in told(20) if each.number is not None}
    assert list(numbered) == list(range(len(numbered)))
    assert all(value.get("number", value.get("properties", {}).get("record")) == number for number, value in numbered.items())


def test_a_persons_records_have_one_key() -> None:
    """The key is the distinct_id: a person's events come from one partition."""
    for each in told(10):
        if each.topic == EVENTS_TOPIC and each.number is not None:
            assert json.loads(each.value or b"")["distinct_id"] == each.key


def test_it_has_no_end() -> None:
    """The live form goes on for as long as it is listened to."""
    assert len(list(islice(records(None), 5000))) == 5000
