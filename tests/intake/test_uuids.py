"""Which texts are UUIDs, and new ones of version 7."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forwarder.intake.uuids import all_hyphenated, is_uuid, new_uuid7
from tests.support.clock import MIDNIGHT

GOOD = "0190a0a0-1111-7222-8333-444455556666"


@given(st.uuids(), st.booleans())
def test_every_form_of_every_uuid(value: uuid.UUID, upper: bool) -> None:
    """Hyphenated, simple, in braces and as a URN, in either case."""
    for text in (str(value), value.hex, f"{{{value}}}"):
        assert is_uuid((text.upper() if upper else text).encode())
    assert is_uuid(value.urn.encode())
    assert all_hyphenated([str(value).upper() if upper else str(value)])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        GOOD[:-1],
        GOOD + "0",
        GOOD + "\n",
        " " + GOOD,
        GOOD.replace("-", "_"),
        GOOD.replace("0190", "019g"),
        "{" + GOOD,
        GOOD + "}",
        "urn:" + GOOD,
        "{urn:uuid:" + GOOD + "}",
        "{" + GOOD.replace("-", "") + "}",
        GOOD.replace("0", "\u0660"),
        GOOD.replace("-", "", 1),
        "-" * 36,
        "x" * 36,
    ],
)
def test_texts_that_are_none(text: str) -> None:
    """Anything else, and so in a list of good ones."""
    assert not is_uuid(text.encode())
    assert not all_hyphenated([GOOD, text, GOOD])


@pytest.mark.parametrize(
    "uuids", [["", GOOD + GOOD], [GOOD[:8], GOOD[8:]], [GOOD + GOOD, ""], [GOOD[:20], GOOD[20:] + GOOD[:10], GOOD[10:]]]
)
def test_bad_ones_do_not_make_up_for_each_other(uuids: list[str]) -> None:
    """Several texts that joined look like as many UUIDs are still no UUIDs: one of them would fail a whole upstream request."""
    assert not all_hyphenated(uuids)


@given(st.lists(st.sampled_from([GOOD, GOOD.upper(), GOOD.replace("-", ""), "", GOOD * 2, GOOD[:18], GOOD[18:]]), max_size=5))
def test_all_means_each(uuids: list[str]) -> None:
    """One look at all of them says what a look at each would."""
    assert all_hyphenated(uuids) == all(len(each) == 36 and is_uuid(each.encode()) for each in uuids)


@given(st.floats(0, 2.8e11))
def test_new_ones(now: float) -> None:
    """Version 7, RFC variant, the time in its first 48 bits."""
    found = uuid.UUID(new_uuid7(now).decode())
    assert found.version == 7
    assert found.variant == uuid.RFC_4122
    assert found.int >> 80 == int(now * 1000)
    assert is_uuid(str(found).encode())


def test_new_ones_are_unique_and_in_order_of_time() -> None:
    """Many of one instant differ; those of a later millisecond sort behind."""
    first = [new_uuid7(MIDNIGHT) for _ in range(5000)]
    later = [new_uuid7(MIDNIGHT + 0.001) for _ in range(5000)]
    assert len({*first, *later}) == 10_000
    assert max(first) < min(later)
