"""Which records go the fastest way, and with which project key."""

from __future__ import annotations

import json
from typing import Any

import pytest

from forwarder.intake.complete import key_of_complete
from tests.support.intakes import KEY, UUID, stamped_event

MAX_EVENT = 1_000


def record(**changes: Any) -> bytes:
    """A complete event with its project key; a change to None is a key that isn't there."""
    event = stamped_event() | {"api_key": KEY} | changes
    return json.dumps({name: value for name, value in event.items() if value is not None}).encode()


def key(*records: bytes, default: str | None = None) -> str | None:
    """What is told of these."""
    return key_of_complete(records, b",".join(records), default, MAX_EVENT)


def test_records_of_one_key_are_complete() -> None:
    """They name it themselves; a default changes nothing."""
    assert key(record(), record(properties={"a": 1}), record(uuid=UUID.upper())) == KEY
    assert key(record(), default="phc_default") == KEY


def test_records_without_a_key_are_of_the_default_one() -> None:
    """If there is one."""
    assert key(record(api_key=None), record(api_key=None, properties={"a": 1}), default="phc_default") == "phc_default"
    assert key(record(api_key=None)) is None


@pytest.mark.parametrize(
    "other",
    [
        record(api_key="phc_other"),
        record(api_key=None),
        record(api_key=None, properties={"token": "phc_other"}),
        record(uuid=None),
        record(uuid="no uuid"),
        record(timestamp=None),
        record(timestamp="yesterday"),
        record(distinct_id=None),
        record(distinct_id=" "),
        record(event=""),
        record(sent_at="2026-01-01T00:00:00Z"),
        record(historical_migration=True),
        record(token="phc_other"),
        record(batch=[]),
        record(offset=1),
        record(p="x" * MAX_EVENT),
        b" " + record(),
        record() + b"," + record(),
        record(p="?").replace(b"?", b"\xff"),
        b"[" + record() + b"]",
        b"",
    ],
)
def test_one_that_is_not_so_sends_all_another_way(other: bytes) -> None:
    """Whether it comes first or last."""
    assert key(record(), other, default="phc_default") is None
    assert key(other, record(), default="phc_default") is None
