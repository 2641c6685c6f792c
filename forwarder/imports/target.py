"""Where an import's batches go: to the service, or through a running daemon; and what has to be known of it before the first."""

from __future__ import annotations

from forwarder.config.settings import UpstreamSettings
from forwarder.core.clock import Clock
from forwarder.core.errors import ConfigurationError, ForwarderError
from forwarder.core.event import Batch
from forwarder.core.outcome import Reply
from forwarder.core.secrets import mask_key, mask_secrets
from forwarder.daemon.policies import open_sink
from forwarder.delivery.sink import HttpSink, UpstreamPolicy
from forwarder.sources.imports.pacing import ImportPace

THROUGH = (("Forwarder-Ack", "delivered"),)
"""A daemon answers once the service has the events."""
_OK, _UNKNOWN, _TOO_MANY = 200, 401, 429


class UpstreamRefuses(ForwarderError):
    """The service isn't there, or doesn't know the key."""

    code = "upstream_refuses"


def open_target(upstream: UpstreamSettings, via: str, clock: Clock) -> HttpSink:
    """The way to the service, or with `via` to a daemon, uncompressed: it is near. Raises `ConfigurationError`."""
    if not via:
        return open_sink(upstream, clock)
    ca_file = str(upstream.ca_file) if upstream.ca_file else None
    try:
        return HttpSink(UpstreamPolicy(via, False, upstream.timeout, ca_file, None, THROUGH), clock)
    except OSError as error:  # SSLError is one
        raise ConfigurationError(f"upstream.ca_file {ca_file} can't be used: {error}", hint="Give a readable PEM file.") from error


async def check_key(sink: HttpSink, api_key: str, url: str) -> None:
    """Ask whether the service knows the key: `/batch/` answers 200 to any (wire facts: What the service does not tell).

    Raises `UpstreamRefuses`, also for an inconclusive answer: events sent in vain can't be detected later.
    """
    reply = await sink.decide(api_key)
    if reply.status is None:
        raise UpstreamRefuses(f"{url} can't be reached: {mask_secrets(reply.error)}", hint="Check the address, proxy and certificates.")
    if reply.status == _UNKNOWN:
        raise UpstreamRefuses(
            f"{url} doesn't know the project key {mask_key(api_key)}: it would accept the events and drop them",
            hint="Check the key in the project's settings, and that the address is of the region that the project is in.",
        )
    if reply.status != _OK:
        raise UpstreamRefuses(
            f"{url} was asked whether it knows the project key, and answered HTTP {reply.status}",
            hint="Check the address. `upstream.verify_keys: false` leaves the question out.",
        )


class PacedSink:
    """A sink that sends nothing while the job rests, also nothing that is sent again; and slows the job down after a 429."""

    def __init__(self, sink: HttpSink, pace: ImportPace, clock: Clock) -> None:
        self._sink = sink
        self._pace = pace
        self._clock = clock

    async def send(self, batch: Batch) -> Reply:
        """See `core.ports.Sink`."""
        while (rest := self._pace.resting_until(self._clock.monotonic(), self._clock.now()) - self._clock.monotonic()) > 0:
            await self._clock.sleep(rest)
        reply = await self._sink.send(batch)
        if reply.status == _TOO_MANY:
            self._pace.slowdown.refused(self._clock.monotonic(), reply.retry_after or 0.0)
        return reply
