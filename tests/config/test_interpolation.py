"""References to the environment inside values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forwarder.config.document import interpolate

ENVIRON = {"HOST": "h.example.com", "EMPTY": "", "TRICK": "${HOST}"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("https://${HOST}/x", "https://h.example.com/x"),
        ("${HOST}${HOST}", "h.example.comh.example.com"),
        ("${NONE:-fallback}", "fallback"),
        ("${EMPTY:-fallback}", "fallback"),
        ("${NONE:-}", ""),
        ("${EMPTY}", ""),
        ("$${HOST}", "${HOST}"),
        ("$HOST $5 }", "$HOST $5 }"),
        ("${TRICK}", "${HOST}"),
    ],
)
def test_replaces_references(text: str, value: str) -> None:
    """Names become values, defaults stand in, and what a variable holds isn't looked into."""
    assert interpolate(text, ENVIRON) == value


@pytest.mark.parametrize("text", ["${}", "${HOST", "${1X}", "${A:-${HOST}}", "${HOST:x}", "${ HOST }"])
def test_refuses_references_that_cannot_be_read(text: str) -> None:
    """A broken reference is an error, never passed on as text."""
    with pytest.raises(ValueError, match=r"\$\{VAR\}"):
        interpolate(text, ENVIRON)


def test_names_the_variable_that_is_missing() -> None:
    """Without a default, a variable that isn't there is an error."""
    with pytest.raises(ValueError, match="no MISSING: set it"):
        interpolate("${MISSING}", ENVIRON)


@given(st.text().filter(lambda text: "${" not in text))
def test_leaves_everything_else_alone(text: str) -> None:
    """Text without a reference is kept as it is."""
    assert interpolate(text, {}) == text
