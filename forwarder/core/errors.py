"""The errors that a caller is expected to handle. Each says what happened and what to
do about it.
"""

from __future__ import annotations

from collections.abc import Callable


def _never(_callback: Callable[[], None]) -> None:
    """For errors that are not followed by a call."""


def drop_frames(error: BaseException) -> None:
    """Drop the tracebacks of an error and of those that it came from, once it is settled.

    Their frames hold what was in progress, such as bodies. An error that is kept would keep those;
    one that they lead back to would keep them until garbage is collected.
    """
    seen: BaseException | None = error
    while seen is not None and seen.__traceback__ is not None:
        seen.__traceback__ = None
        seen = seen.__cause__ or seen.__context__


class ForwarderError(Exception):
    """Base of forwarder's own errors. `code` is stable, for machines; `hint` says what
    to do next.
    """

    code = "error"

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class Backpressure(ForwarderError):
    """Not now: the sender should keep what it has and retry. Nothing of the request
    was accepted.
    """

    code = "backpressure"

    def __init__(self, message: str, *, retry_after: float = 1.0, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.retry_after = retry_after


BUFFER_FULL_HINT = (
    "the upstream is slower than the senders, or down: the daemon's status says which"
)


class BufferFull(Backpressure):
    """The buffer has no room."""

    code = "buffer_full"


class DiskRefuses(BufferFull):
    """The disk can't take more now: it is full, fails, or is too slow. Dropping events wouldn't
    help.
    """

    code = "disk_refuses"


class LaneFull(Backpressure):
    """The lane, or its kind (halted, historical), has used its share of the buffer."""

    code = "lane_full"


class MemoryShort(Backpressure):
    """The process, or the cgroup that it is in, is near its limit of memory."""

    code = "memory_short"


class TooManyLanes(Backpressure):
    """No further project key can be held now."""

    code = "too_many_lanes"


class DeadLettersFull(Backpressure):
    """There is no room among the dead letters for rejected events."""

    code = "dead_letters_full"


class TogetherTooLarge(Backpressure):
    """Several records that together would never fit: their source repeats them in smaller parts.
    Never raised for one record alone.
    """

    code = "together_too_large"


class StillDecoding(Backpressure):
    """A source's record takes long to decode: another process does it, and the source repeats it
    when that is done.
    """

    code = "still_decoding"

    def __init__(
        self,
        message: str,
        *,
        retry_after: float = 1.0,
        hint: str = "",
        when_done: Callable[[Callable[[], None]], None] = _never,
    ) -> None:
        super().__init__(message, retry_after=retry_after, hint=hint)
        self.when_done = when_done
        """Has its argument called, once, on the loop, when it is over."""


class Draining(Backpressure):
    """The daemon is shutting down."""

    code = "draining"


class NotAcknowledged(Backpressure):
    """The level of acknowledgement that is due wasn't reached in time. What had not been sent is
    dropped; the rest may arrive twice.
    """

    code = "not_acknowledged"


class InvalidRequest(ForwarderError):
    """The request can't be understood; sending it again won't help. HTTP 400."""

    code = "invalid_request"


class InvalidAck(InvalidRequest):
    """A level of acknowledgement that doesn't exist, or that can't be had here."""

    code = "invalid_ack"


class InvalidToken(ForwarderError):
    """No project key, or one that can't be one. HTTP 401."""

    code = "invalid_token"


class NoKey(InvalidToken):
    """No project key at all."""

    code = "no_key"


class UnknownKey(InvalidToken):
    """A project key that is not among the configured ones."""

    code = "unknown_key"


class RequestTooLarge(ForwarderError):
    """Over a size limit, on the wire or decompressed, or it could not fit an empty
    lane. HTTP 413.
    """

    code = "too_large"


class UnsupportedMedia(ForwarderError):
    """The body is of a type, or compressed in a way, that its protocol doesn't have. HTTP 415."""

    code = "unsupported_media"


class ConfigurationError(ForwarderError):
    """The configuration can't be used."""

    code = "configuration"
