"""What became of one upstream request: a reply, and the closed set of outcomes that a reply can
mean (docs/explanation/delivery.md, Outcomes).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back from the upstream. `status` is None where no whole answer came; `error` then
    says why, in a few words.
    """

    status: int | None
    content_type: str = ""
    retry_after: float | None = None
    """Seconds, already resolved from either form of the header."""
    body: bytes = b""
    """The beginning of the body, enough to quote."""
    error: str = ""
    loop: bool = False
    """Whether a forwarder on the way reports that the request leads back to it."""
    location: str = ""
    """Where a redirect leads, which is never followed."""
    asks_login: bool = False
    """Whether a login is asked for, as HTTP proxies and websites do."""
    date: str = ""
    """The server's time, as its header says it."""
    is_late: bool = False
    """Whether no whole answer came in the time that there is for it."""


class Scope(StrEnum):
    """How much waits before a retry."""

    LANE = "lane"
    UPSTREAM = "upstream"


@dataclass(frozen=True, slots=True)
class Delivered:
    """The upstream took the batch. `warning` says what was odd about its answer."""

    warning: str = ""


@dataclass(frozen=True, slots=True)
class Retry:
    """Send the same bytes again, never before `not_before` seconds from now."""

    why: str
    scope: Scope
    not_before: float = 0.0
    overload: bool = True
    """Whether the concurrency limit should give way."""


@dataclass(frozen=True, slots=True)
class Split:
    """The body was too large: send it in halves."""

    why: str


@dataclass(frozen=True, slots=True)
class Bisect:
    """Something in the batch was refused: find it. `why` quotes the upstream."""

    why: str


class HaltReason(StrEnum):
    """Why a lane takes part in no delivery for now (closed set; documented in
    docs/reference/reasons.md).
    """

    UNKNOWN_KEY = "unknown_key"
    """The upstream doesn't know the project key (401 from it, or from the key check)."""
    FORBIDDEN = "forbidden"
    """403."""
    REFUSES_ALL = "refuses_all"
    """400 or 413 to everything so far, even to single events: more likely a proxy than the events.
    """
    WRONG_ADDRESS = "wrong_address"
    """404, 405, 3xx: something answers that is not the service."""
    REJECTED = "rejected"
    """415 and any other 4xx."""
    CAPTIVE_PROXY = "captive_proxy"
    """200 with an HTML page, twice."""
    LOOP = "loop"
    """The request leads back to a forwarder that it has passed, or has passed too
    many (508 from a forwarder).
    """
    DEAD_LETTERS_FULL = "dead_letters_full"
    """A refused event has no place to go."""
    ARCHIVE_UNWRITABLE = "archive_unwritable"
    """The archive's folder or bucket is missing, full or forbidden, or so is the disk where its
    files are made.
    """


@dataclass(frozen=True, slots=True)
class Halt:
    """The lane stops until a probe succeeds; its events are kept."""

    reason: HaltReason
    why: str


Outcome: TypeAlias = Delivered | Retry | Split | Bisect | Halt
