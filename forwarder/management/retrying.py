"""When a request is made again: only where it can't be done twice by that.

Reading changes nothing, so whatever looks temporary is tried again. Anything else is repeated only if the service said that it was too
early, and when to come back: it can't have been done then.
"""

from __future__ import annotations

from typing import Final

from forwarder.contract.endpoints import Method
from forwarder.core.clock import Backoff
from forwarder.management.replies import Failure, Reply

ATTEMPTS: Final = 4
INITIAL: Final = 0.5
MAXIMUM: Final = 8.0
"""Seconds: bounds of the first wait and of any."""
_TEMPORARY: Final = frozenset({408, 429})


def wait_before_next(method: Method, outcome: Reply | Failure, attempt: int, left: float, backoff: Backoff) -> float | None:
    """Seconds to wait after attempt `attempt` (from 1), or None if it was the last: there is nothing to gain, or no time.

    `left` are the seconds that the whole call has left. A wait that the service asks for isn't cut short: to come too early is no use.
    """
    if attempt >= ATTEMPTS or not _repeatable(method, outcome):
        return None
    asked = outcome.retry_after if isinstance(outcome, Reply) else None
    wait = max(asked or 0.0, backoff.full_jitter(attempt))
    return wait if wait < left else None


def _repeatable(method: Method, outcome: Reply | Failure) -> bool:
    if method is not Method.GET:
        return isinstance(outcome, Reply) and outcome.status == 429 and outcome.retry_after is not None
    if isinstance(outcome, Failure):
        return outcome.again
    return outcome.status in _TEMPORARY or outcome.status >= 500
