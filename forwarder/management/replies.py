"""What comes of one request: an answer, or a failure. Plain data, in which nothing of the request is left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

TIMEOUT: Final = "timeout"
UNREACHABLE: Final = "unreachable"
UNTRUSTED: Final = "untrusted"
PROXY: Final = "proxy"
BROKEN: Final = "broken"
TOO_LARGE: Final = "too_large"


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer, as far as it was read."""

    status: int
    body: bytes = b""
    content_type: str = ""
    retry_after: float | None = None
    """Seconds."""
    location: str = ""
    """Where it redirects to, absolute."""


@dataclass(frozen=True, slots=True)
class Failure:
    """No answer, or none that is whole."""

    code: str
    """One of this module's."""
    words: str
    hint: str
    sent: bool
    """Whether the request, or a part of it, may have reached the service."""
    again: bool = True
    """Whether trying again may help."""
    status: int | None = None
    """Of the answer that broke off."""
