"""The service's times: by a table of what its own parsers say."""

from __future__ import annotations

from datetime import UTC

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forwarder.wire.service_times import service_time
from tests.support.cases import cases
from tests.support.service_times import NOW, TABLE, expected, is_near


@cases("text", list(TABLE))
def test_as_the_service_reads_it(text: str) -> None:
    """Each text of the table: what `parse_from_rfc3339`, `dateparser` 0.2.1 and `jiff` 0.2 said."""
    parsed = service_time(text, NOW)
    wanted = expected(text)
    assert (parsed is None) == (wanted is None), parsed
    if parsed is not None and wanted is not None:
        assert is_near(parsed.time, wanted)


@cases("text", [text for text in TABLE if (time := expected(text)) and time.date() == NOW.date()])
def test_a_partial_time_needs_the_current_one(text: str) -> None:
    """A time of day, say."""
    assert service_time(text) is None


@pytest.mark.parametrize(
    ("text", "has_zone"),
    [
        ("2023/03/16 20:53:20", False),
        ("May 27, 2023 10:00 pm", False),
        ("2023-05-27 22:00 CEST", True),
        ("Thu, 16 Mar 2023 20:53:20 +0200", True),
        ("2023-03-16 20:53:20+02", True),
        ("1679000000", True),
    ],
)
def test_whether_a_zone_is_named(text: str, *, has_zone: bool) -> None:
    """Where it isn't, an import may know it."""
    parsed = service_time(text)
    assert parsed is not None
    assert parsed.has_zone is has_zone


@given(st.text(max_size=80) | st.from_regex(r"[0-9A-Za-z:/., +-]{0,60}"))
def test_no_text_makes_an_error(text: str) -> None:
    """A text is a time in UTC, or none."""
    parsed = service_time(text, NOW)
    assert parsed is None or parsed.time.tzinfo is UTC


def test_long_texts_are_none() -> None:
    """They take no time, either."""
    assert service_time("2025-03-01 " + " " * 10_000_000 + "12:00:00", NOW) is None
