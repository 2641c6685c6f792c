"""Which records are plain: what a later decoder could fail at never is."""

from __future__ import annotations

import json

import pytest

from forwarder.intake.plain import all_plain, plain_or_none
from tests.support.intakes import stamped_event


def nested(depth: int, opening: bytes = b"[", closing: bytes = b"]") -> bytes:
    """A complete event with so much in each other."""
    return json.dumps(stamped_event(p="?")).encode().replace(b'"?"', opening * depth + b"1" + closing * depth)


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")], ids=["arrays", "objects"])
def test_what_may_be_nested_too_deep_isnt_plain(opening: bytes, closing: bytes) -> None:
    """It is told by what opens, without a look at how: each decoder after this one has less of the stack."""
    shallow, deep = nested(400, opening, closing), nested(600, opening, closing)
    assert plain_or_none([shallow, deep], 1_000_000)[1] is None
    assert all_plain([shallow], shallow, 1_000_000) is not None
    assert all_plain([shallow, deep], b",".join([shallow, deep]), 1_000_000) is None


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
        assert (all_plain([record], record, 1_000) is not None) == plain
        assert all_plain([record], record, 10) is None
