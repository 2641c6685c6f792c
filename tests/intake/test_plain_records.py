"""Which records are read the fast way: complete ones together, plain ones each; what a later
decoder could fail at never is.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from forwarder.core.nesting import MAX_NESTING
from forwarder.intake.record_reader import (
    all_plain,
    common_key,
    plain_or_none,
)
from tests.support.cases import cases
from tests.support.intakes import KEY, UUID, stamped_event


def nested(depth: int, opening: bytes = b"[", closing: bytes = b"]") -> bytes:
    """A complete event with so much in each other."""
    return (
        json.dumps(stamped_event(p="?"))
        .encode()
        .replace(b'"?"', opening * depth + b"1" + closing * depth)
    )


@pytest.mark.parametrize(
    ("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")], ids=["arrays", "objects"]
)
def test_what_may_be_nested_too_deep_isnt_plain(opening: bytes, closing: bytes) -> None:
    """A record of more levels than a body may have is left to the way that says why."""
    shallow = nested(MAX_NESTING - 2, opening, closing)
    deep = nested(MAX_NESTING, opening, closing)
    assert plain_or_none([shallow, deep], 1_000_000)[1] is None
    for ordered in (False, True):
        assert all_plain([shallow], shallow, 1_000_000, ordered=ordered) is not None
        both = b",".join([shallow, deep])
        assert all_plain([shallow, deep], both, 1_000_000, ordered=ordered) is None


def test_a_record_is_plain_or_not_alone_as_among_others() -> None:
    """Both ways of asking agree."""
    for record, plain in [
        (json.dumps(stamped_event()).encode(), True),
        (json.dumps(stamped_event(uuid=None, timestamp=None, distinct_id=None)).encode(), True),
        (json.dumps(stamped_event(uuid="0190a0a0")).encode(), False),
        (json.dumps(stamped_event(distinct_id=" ")).encode(), False),
        (json.dumps(stamped_event(event="")).encode(), False),
        (json.dumps(stamped_event(offset=1)).encode(), False),
        (b" " + json.dumps(stamped_event()).encode(), False),
        (json.dumps(stamped_event(p="?")).encode().replace(b"?", b"\xff"), False),
        (b"", False),
    ]:
        assert (plain_or_none([record], 1_000)[0] is not None) == plain
        for ordered in (False, True):
            assert (all_plain([record], record, 1_000, ordered=ordered) is not None) == plain
            assert all_plain([record], record, 10, ordered=ordered) is None


MAX_EVENT = 1_000


def record(**changes: Any) -> bytes:
    """A complete event with its project key; a change to None is a key that isn't there."""
    event = stamped_event() | {"api_key": KEY} | changes
    return json.dumps({name: value for name, value in event.items() if value is not None}).encode()


def key(*records: bytes, default: str | None = None) -> str | None:
    """That of records that are read together, because each is plain and has an id; else None."""
    joined = b",".join(records)
    keys = set()
    for ordered in (False, True):
        plain = all_plain(records, joined, MAX_EVENT, ordered=ordered)
        together = plain is not None and len(plain[0]) == len(plain[1])
        keys.add(common_key(plain[0], default) if plain is not None and together else None)
    [same] = keys
    return same


def test_records_of_one_key_are_read_together() -> None:
    """They name it themselves; a default changes nothing. They may lack a uuid and a time."""
    assert key(record(), record(properties={"a": 1}), record(uuid=UUID.upper())) == KEY
    assert (
        key(record(uuid=None), record(timestamp=None), record(uuid=None, timestamp=None), record())
        == KEY
    )
    assert key(record(), default="phc_default") == KEY


def test_records_without_a_key_are_of_the_default_one() -> None:
    """If there is one."""
    assert (
        key(record(api_key=None), record(api_key=None, properties={"a": 1}), default="phc_default")
        == "phc_default"
    )
    assert key(record(api_key=None)) is None


@cases(
    "other",
    [
        record(api_key="phc_other"),
        record(api_key=None),
        record(api_key=None, properties={"token": "phc_other"}),
        record(uuid="no uuid"),
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
