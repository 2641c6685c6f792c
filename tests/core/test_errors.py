"""The errors that callers handle: stable codes, hints, and how long to stay away."""

from __future__ import annotations

from forwarder.core import errors
from forwarder.core.errors import Backpressure, ForwarderError, InvalidRequest
from tests.support.cases import cases


def kinds(kind: type[ForwarderError]) -> list[type[ForwarderError]]:
    """The class and everything below it, of this module."""
    below = [
        subclass
        for sub in kind.__subclasses__()
        if sub.__module__ == errors.__name__
        for subclass in kinds(sub)
    ]
    return [kind, *below]


def test_codes_tell_the_kinds_apart() -> None:
    """A machine that reads them never takes one for another."""
    codes = [kind.code for kind in kinds(ForwarderError)]
    assert len(codes) == len(set(codes))


@cases("kind", kinds(ForwarderError), ids=lambda kind: kind.code)
def test_an_error_says_what_and_what_next(kind: type[ForwarderError]) -> None:
    """The message is its text; the hint is optional."""
    error = kind("it is full", hint="come back later")
    assert (str(error), error.message, error.hint, kind("so").hint) == (
        "it is full",
        "it is full",
        "come back later",
        "",
    )


@cases("kind", kinds(Backpressure), ids=lambda kind: kind.code)
def test_backpressure_says_when_to_come_back(kind: type[Backpressure]) -> None:
    """In a second, unless it knows better."""
    assert (kind("now").retry_after, kind("now", retry_after=5.0).retry_after) == (1.0, 5.0)


def test_a_refusal_is_no_backpressure() -> None:
    """What can't be understood won't be understood later."""
    assert not isinstance(InvalidRequest("no"), Backpressure)
