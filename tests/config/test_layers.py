"""Problems of a configuration, and the error that lists them."""

from __future__ import annotations

from forwarder.config.layers import InvalidConfiguration, Problem, what_and_hint
from forwarder.core.errors import ConfigurationError


def test_a_problem_says_where_what_and_how_to_fix_it() -> None:
    """Place, key and trouble on the first line, the remedy on the second."""
    assert (
        str(Problem("f.yaml:3", "log.level", "is wrong", "write info"))
        == "f.yaml:3: log.level: is wrong\n    write info"
    )
    assert str(Problem("", "upstream.url", "is missing")) == "upstream.url: is missing"


def test_a_problem_never_shows_a_secret() -> None:
    """A key in the wrong place is masked, wherever it stands."""
    text = str(
        Problem(
            "f.yaml:3", "phc_hunter2hunter2", "'phx_hunter2hunter2' is wrong", "http://u:hunter2@h"
        )
    )
    assert "hunter2hunter2" not in text
    assert "u:hunter2" not in text


def test_the_error_lists_every_problem() -> None:
    """One error for the whole configuration."""
    problems = [Problem("a", "b", "c"), Problem("d", "e", "f", "g")]
    error = InvalidConfiguration(problems)
    assert isinstance(error, ConfigurationError)
    assert error.problems == tuple(problems)
    assert str(error) == "the configuration has 2 things to fix\na: b: c\nd: e: f\n    g"
    assert "config check" in error.hint


def test_an_error_has_two_parts() -> None:
    """What is wrong stands before the last colon, the remedy behind it."""
    assert what_and_hint("'a: b' is wrong: write c") == ("'a: b' is wrong", "write c")
    assert what_and_hint(ValueError("is wrong")) == ("is wrong", "")
