"""What one sender, and all of them together, may use of the listener: sizes, counts and time.

Invariant: every wait has an end and everything that grows has a bound, whatever the senders do.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network
from typing import Final, TypeAlias

Network: TypeAlias = IPv4Network | IPv6Network

BODY_RATE: Final = 16 * 1024
"""Bytes a second that a body has to bring to be waited for past `body_timeout`."""

BODY_WINDOW: Final = 10.0
"""Seconds over which rates are measured."""

BODY_GRACE: Final = 20.0
"""Seconds from the end of a request's header for which a body may come at any rate."""

LEAST_BODY_RATE: Final = 1024
"""Bytes a second that a body has to bring after `BODY_GRACE`, the grace included, or its request
is answered 408.
"""

SMALL_BODY: Final = 16 * 1024
"""A body of no more than this is received however much others are bringing, so that uploads can't
lock out small requests.
"""

LINGER_BYTES: Final = 32 * 1024 * 1024
"""How much of a rejected body is read and discarded, so that its sender comes to read why."""

RECEIVING_RETRY_AFTER: Final = 2
"""Seconds after which a sender may retry when too much is being received, there are too many
connections, or the forwarder ends.
"""

REJECTED_CONNECTIONS: Final = 128
"""Connections over the limit that get an answer at a time; further ones are dropped without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpPolicy:
    """The limits of a listener. Sizes in bytes, times in seconds."""

    max_body: int = 20_000_000
    """Of one body on the wire, after chunks are joined, before decompression. Bodies that are
    passed through have their own limit.
    """
    max_connections: int = 1024
    max_headers: int = 100
    max_header_bytes: int = 32 * 1024
    max_url: int = 16 * 1024
    max_receiving: int = 24_000_000
    """Of all bodies together that have begun and are not complete."""
    idle_timeout: float = 75.0
    """Between requests; then the connection is closed silently."""
    header_timeout: float = 10.0
    """From the first byte of a request to the end of its header; then 408."""
    body_timeout: float = 60.0
    """From the end of the header to the end of the body, longer while at least `BODY_RATE` comes
    in; then 408.

    Sooner if less than `LEAST_BODY_RATE` comes in.
    """
    answer_timeout: float = 30.0
    """For the intake to acknowledge a complete request; then 503. Longer than its own limits: it
    is for a disk that hangs.
    """
    linger_timeout: float = 5.0
    """For a sender to read the last answer and close."""
    stamp_ip: bool = True
    trusted_proxies: tuple[Network, ...] = ()
    cors_origins: tuple[str, ...] = ("*",)
    path_prefixes: tuple[str, ...] = ()
    """Paths below which all others are served too, each with a slash first and none at its end."""
    otlp: bool = False
    """Whether log records of OpenTelemetry are accepted."""

    @property
    def sweep_interval(self) -> float:
        """Seconds between two looks at all connections: time limits hold to within this."""
        return min(
            1.0,
            min(self.idle_timeout, self.header_timeout, self.body_timeout, self.linger_timeout) / 4,
        )


class BodyPace:
    """Whether a body comes in fast enough.

    Over the grace, and over each window after it, it has to come at `LEAST_BODY_RATE`; from
    `timeout` on at `BODY_RATE`.
    """

    __slots__ = ("_deadline", "_window", "_window_bytes", "_window_start")

    def __init__(self, started: float, timeout: float, received: int) -> None:
        self._deadline = started + timeout
        self._window = BODY_GRACE
        self._window_start = started
        self._window_bytes = received

    def late(self, now: float, received: int) -> bool:
        """Whether to stop waiting, when `received` bytes of the body are there at `now`."""
        elapsed = now - self._window_start
        if elapsed >= self._window:
            came = received - self._window_bytes
            if came < LEAST_BODY_RATE * elapsed:
                return True
            if came >= BODY_RATE * elapsed:
                self._deadline = max(self._deadline, now + BODY_WINDOW + 1.0)
            self._window = BODY_WINDOW
            self._window_start = now
            self._window_bytes = received
        return now >= self._deadline
