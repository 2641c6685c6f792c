"""What is tried again, and when."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forwarder.contract.endpoints import Method
from forwarder.core.clock import Backoff
from forwarder.management.replies import BROKEN, UNTRUSTED, Failure, Reply
from forwarder.management.retrying import ATTEMPTS, wait_before_next

LONGEST = Backoff(0.5, 8.0, lambda _, bound: bound)
WRITES = [Method.POST, Method.PATCH, Method.DELETE]
LOST = Failure(BROKEN, "lost", "", sent=True)
REFUSED = Failure(BROKEN, "not there", "", sent=False)


def wait(method: Method, outcome: Reply | Failure, attempt: int = 1, left: float = 30.0) -> float | None:
    """The wait, if it is the longest possible."""
    return wait_before_next(method, outcome, attempt, left, LONGEST)


@pytest.mark.parametrize("outcome", [LOST, REFUSED, Reply(408), Reply(429), Reply(500), Reply(502), Reply(503), Reply(504)])
def test_reading_is_tried_again(outcome: Reply | Failure) -> None:
    """A GET that failed for a reason that may pass is made again, after waits that double, four times in all."""
    assert [wait(Method.GET, outcome, attempt) for attempt in range(1, ATTEMPTS + 1)] == [0.5, 1.0, 2.0, None]


@pytest.mark.parametrize("outcome", [Reply(200), Reply(302), Reply(400), Reply(401), Reply(403), Reply(404), Reply(409)])
def test_an_answer_is_an_answer(outcome: Reply) -> None:
    """What another attempt wouldn't change isn't tried again."""
    assert wait(Method.GET, outcome) is None


def test_a_certificate_that_is_not_trusted_will_not_be() -> None:
    """Failures that don't pass end the call at once."""
    assert wait(Method.GET, Failure(UNTRUSTED, "", "", sent=False, again=False)) is None


@pytest.mark.parametrize("method", WRITES)
@pytest.mark.parametrize("outcome", [LOST, REFUSED, Reply(408), Reply(429), Reply(500), Reply(503, retry_after=1.0)])
def test_writing_is_not_tried_again(method: Method, outcome: Reply | Failure) -> None:
    """What may have been done isn't done again."""
    assert wait(method, outcome) is None


@pytest.mark.parametrize("method", WRITES)
def test_writing_is_tried_again_when_the_service_says_when(method: Method) -> None:
    """429 with Retry-After means that it wasn't done."""
    assert wait(method, Reply(429, retry_after=3.0)) == 3.0


def test_the_service_is_not_asked_before_it_wants_to_be() -> None:
    """A wait that the service asks for is kept to; one that is longer than the time that is left ends the call."""
    assert wait(Method.GET, Reply(503, retry_after=12.0), left=13.0) == 12.0
    assert wait(Method.GET, Reply(503, retry_after=12.0), left=12.0) is None


@settings(deadline=None)
@given(
    st.sampled_from(list(Method)),
    st.builds(Reply, st.integers(100, 599), retry_after=st.none() | st.floats(0, 1e6)) | st.just(LOST),
    st.integers(1, 10),
    st.floats(-1, 100),
)
def test_a_wait_always_fits(method: Method, outcome: Reply | Failure, attempt: int, left: float) -> None:
    """No wait is negative, or takes all the time that is left; and there are never more than four attempts."""
    seconds = wait_before_next(method, outcome, attempt, left, Backoff(0.5, 8.0))
    assert seconds is None or (0 <= seconds < left and attempt < ATTEMPTS)
