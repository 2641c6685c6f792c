"""One address that requests are passed to: its connections, its circuit breaker, its time limits,
and the meaning of its failures.

Its connections are those of `connections.py`. The target goes on byte for byte; a redirect is
passed on, not followed.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final

import structlog

from forwarder.core.clock import Backoff, Clock, Timer
from forwarder.core.error_text import error_text
from forwarder.sources.http.protocol import answers
from forwarder.sources.http.protocol.answers import HttpAnswer, Rejection
from forwarder.upstream.connection import ArrivingAnswer, BrokenAnswer, OutgoingRequest
from forwarder.upstream.connections import UpstreamConnections

log = structlog.get_logger(__name__)

RETRY_AFTER: Final = 2
"""Seconds after which a sender may retry when too much is in flight."""

GATEWAY: Final = frozenset({502, 503, 504})
"""Answers of a gateway whose upstream isn't there."""

_BROKEN: Final = re.compile(rb"[\r\n\0]")
"""In a header's value: an answer could be read as two."""

_OUT_OF_TIME: Final = answers.unavailable(
    "The upstream did not answer in time.", RETRY_AFTER, Rejection.UPSTREAM
)
_FAILED: Final = answers.unavailable(
    "The upstream could not be reached, or broke off.", RETRY_AFTER, Rejection.UPSTREAM
)
"""Not 502 and 504: SDKs repeat a call for flags on just these, and their application waits for
longer (docs/reference/sdks.md).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassThroughPolicy:
    """Where to pass what to, and how long to wait. Times in seconds; `assets_url` is for `/array/`
    and `/static/`.
    """

    url: str
    assets_url: str
    connect_timeout: float = 0.5
    flags_timeout: float = 2.0
    """For the whole of what an app waits for: flags, and their definitions."""
    timeout: float = 30.0
    """For the others: until the answer begins, and for each next piece of it."""
    max_body: int = 64_000_000
    """Bytes of one request's body, which is never held whole."""
    definitions_max_age: float = 10.0
    """How long definitions are served without asking the upstream whether they are still the same.
    """
    tls: ssl.SSLContext | None = None
    proxy: str | None = None
    api_keys: Mapping[str, str] = field(default_factory=dict)
    """Project keys to use there, by those that senders use; other keys stay."""


class PassThroughUpstream:
    """One address. Its first connection opens with the first request; `close` drops them all."""

    def __init__(self, url: str, policy: PassThroughPolicy, clock: Clock) -> None:
        self.url = url
        self.breaker = CircuitBreaker()
        self._clock = clock
        self._connections = UpstreamConnections(
            url, tls=policy.tls, proxy=policy.proxy, connect_timeout=policy.connect_timeout
        )

    def begin(self) -> BreakerPermit | HttpAnswer:
        """The permit to ask, or the answer while the circuit breaker is open."""
        now = self._clock.monotonic()
        permit = self.breaker.begin(now)
        if permit is not None:
            return permit
        return answers.unavailable(
            "The upstream fails; it will be asked again soon.",
            self.breaker.retry_after(now),
            Rejection.UPSTREAM,
        )

    async def ask(self, permit: BreakerPermit, request: OutgoingRequest) -> ArrivingAnswer:
        """The response, of which the head has come in; the caller releases it. Raises `OSError`,
        for `failed`.

        Cancellation drops the connection; the caller reports it to the circuit
        breaker, by `abandoned`.
        """
        response = await self._connections.ask(request)
        if response.status < 200 or _BROKEN.search(
            b"".join([value for _, value in response.lines])
        ):
            response.release()
            raise BrokenAnswer(f"an answer that can't be passed on, HTTP {response.status}")
        if response.status in GATEWAY:
            self._report_failure(permit, f"HTTP {response.status}")
        else:
            self._report_answer()
        return response

    def failed(self, permit: BreakerPermit, error: Exception) -> HttpAnswer:
        """What an error of `ask`, of reading its answer, or `TimeoutError` means for the sender."""
        if isinstance(error, TimeoutError):
            self._report_failure(permit, "no answer in time")
            return _OUT_OF_TIME
        self._report_failure(permit, error_text(error))
        return _FAILED

    def completed(self, status: int) -> None:
        """An answer is complete."""
        if status not in GATEWAY:
            self.breaker.succeeded()

    def close(self) -> None:
        """Drop all connections."""
        self._connections.close()

    def _report_failure(self, permit: BreakerPermit, why: str) -> None:
        before = self.breaker.open
        self.breaker.failed(permit, self._clock.monotonic(), why)
        if before is None and self.breaker.open is not None:
            log.warning("nothing is passed through for now", upstream=self.url, why=why)

    def _report_answer(self) -> None:
        before = self.breaker.open
        self.breaker.answered()
        if before is not None:
            log.info(
                "calls are passed through again",
                upstream=self.url,
                after=round(self._clock.monotonic() - before.since, 1),
            )


FAILURES: Final = 5
"""Failures in a row that open a circuit breaker."""

PROBES: Final = Backoff(1.0, 5.0)
"""Waits between probes: one caller in so many seconds waits in vain, and flags are back so soon
after an outage.
"""

PROBE_SECONDS: Final = 5.0
"""For so long there is no permit for others while one probes: its sender may take minutes to bring
its body, and the upstream be back.
"""


class BreakerPermit:
    """The permit to ask once. Its outcome is reported to the breaker: `answered`, `succeeded`,
    `failed` or `abandoned`.
    """

    __slots__ = ("failed",)

    def __init__(self) -> None:
        self.failed = False
        """Whether its failure was reported: an answer that is a gateway's error and breaks off too
        is one failure.
        """


@dataclass(frozen=True, slots=True)
class OpenBreaker:
    """Why and since when (monotonic seconds) it is open."""

    since: float
    why: str


class CircuitBreaker:
    """Whether an upstream is asked at all: after some failures in a row only probes wait for it.
    Times are monotonic seconds.

    Invariants: while it is open there is at most one permit each `PROBE_SECONDS`, however slowly
    its sender brings its request; when that one has failed, the next comes no sooner than an
    interval later, which grows from `initial` to `maximum` seconds. Anything that answers closes
    it, a straggler from before too. Failures of stragglers don't count once it is open; a probe
    that was overtaken is one.
    """

    def __init__(self, failures: int = FAILURES, probes: Backoff = PROBES) -> None:
        self._limit = failures
        self._probes = probes
        self._failures = 0
        self._failed_probes = 0
        self._next_probe = 0.0
        self._probe: BreakerPermit | None = None
        self._probe_until = 0.0
        """When another may probe although that one hasn't ended."""
        self.open: OpenBreaker | None = None
        """Set while it is open."""

    def begin(self, now: float) -> BreakerPermit | None:
        """The permit to ask; None if the upstream isn't asked now."""
        if self.open is None:
            return BreakerPermit()
        if now < (self._next_probe if self._probe is None else self._probe_until):
            return None
        self._probe = BreakerPermit()
        self._probe_until = now + PROBE_SECONDS
        return self._probe

    def answered(self) -> None:
        """An answer has begun that isn't a gateway's error: the upstream is there."""
        if self.open is not None:
            self.open = None
            self._probe = None
            self._failures = 0

    def succeeded(self) -> None:
        """The answer is complete."""
        self.answered()
        self._failures = 0

    def failed(self, permit: BreakerPermit, now: float, why: str) -> None:
        """There is no answer, or a gateway's error."""
        if permit.failed:
            return
        permit.failed = True
        if self.open is None:
            self._failures += 1
            if self._failures >= self._limit:
                self._failed_probes = 0
                self._open(now, OpenBreaker(now, why))
        elif permit is self._probe:
            self._failed_probes += 1
            self._open(now, OpenBreaker(self.open.since, why))

    def abandoned(self, permit: BreakerPermit) -> None:
        """Nobody waits for the answer any more: it says nothing, and the next
        one may probe in its place.
        """
        if permit is self._probe:
            self._probe = None

    def retry_after(self, now: float) -> float:
        """Seconds until the next probe is due."""
        return max(0.0, (self._next_probe if self._probe is None else self._probe_until) - now)

    def _open(self, now: float, state: OpenBreaker) -> None:
        self.open = state
        self._probe = None
        self._next_probe = now + self._probes.equal_jitter(self._failed_probes + 1)


class PausableTimeout:
    """The time limit of an upstream, which runs only while something is expected of it: a context
    manager around the exchange with it.

    Invariants: it doesn't run while the sender is waited for (to bring more of its request, to
    read its answer, or for its turn among its own requests), so that a slow sender doesn't count
    as a slow upstream; when it has run out, the task inside is ended by `TimeoutError`.
    """

    def __init__(self, clock: Clock, seconds: float, *, total: bool) -> None:
        """`seconds` for all of it (`total`), or until there is progress each time."""
        self._clock = clock
        self._seconds = self._left = seconds
        self._total = total
        self._timer: Timer | None = None
        self._since = 0.0
        self._timeout = asyncio.timeout(None)
        self._reading = True
        self._sending = True
        self._inside = False

    async def __aenter__(self) -> PausableTimeout:
        await self._timeout.__aenter__()
        self._inside = True
        self._change()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()
        self._inside = False
        try:
            await self._timeout.__aexit__(kind, error, trace)
        finally:
            del self._timeout  # it refers to its task, which keeps why it was cancelled

    def reading(self, *, expected: bool) -> None:
        """Whether the upstream is expected to bring more of the answer."""
        self._reading = expected
        self._change()

    def sending(self, *, expected: bool) -> None:
        """Whether the upstream is expected to read the request; false: the sender is to bring more
        of it.
        """
        self._sending = expected
        self._change()

    def progressed(self) -> None:
        """The upstream read or brought something."""
        if not self._total:
            self._stop()
            self._left = self._seconds
            self._change()

    def _change(self) -> None:
        if not (self._reading and self._sending):
            self._stop()
        elif self._timer is None and self._inside:
            self._since = self._clock.monotonic()
            self._timer = self._clock.call_later(self._left, self._over)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._left = max(0.0, self._left - (self._clock.monotonic() - self._since))

    def _over(self) -> None:
        self._timer = None
        self._inside = False
        self._timeout.reschedule(asyncio.get_running_loop().time())
