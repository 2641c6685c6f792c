"""How calls are passed through: where to, how long an upstream is waited for, and how much may be under way."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Final

FLAG_PERMITS: Final = 128
"""Requests for flags and definitions that are in flight at once; further ones get 503, and so do those of a sender that has its share."""

OTHER_PERMITS: Final = 128
"""The same for recordings, assets and everything else: however slow they are, they keep no permit from flags."""

WINDOW: Final = 64 * 1024
"""Bytes of one request's body that may wait for the upstream to take them; past it no more is read from its sender."""

STALLED: Final = 75.0
"""Seconds for which a sender may leave an answer unread before its connection is dropped."""

RETRY_AFTER: Final = 2
"""Seconds after which a sender may try again when too much is under way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassThroughPolicy:
    """Where to pass what to, and how long to wait. Times in seconds; `assets_url` is for `/array/` and `/static/`."""

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
    """How long definitions are served without asking whether they are still the same."""
    tls: ssl.SSLContext | None = None
    proxy: str | None = None
