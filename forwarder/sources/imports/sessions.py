"""Sessions of vendors that know a session by its start: under ids by which the service groups
events.

The service groups events by a `$session_id` that is a UUID of version 7, and reads the session's
start in it (posthog.com/docs/data/sessions; PostHog/posthog#48172 and #85739 ask the same of its
own importer). Such an id follows from what the vendor's session has in common: its device and its
start. So it is the same in every run.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

_REMEMBERED: Final = 4096
_END: Final = 1 << 48
"""The first time in milliseconds that a UUID of version 7 has no room for."""
_DIGEST_BYTES: Final = 12
_VARIANT: Final = {f"{digit:x}": "89ab"[digit & 3] for digit in range(16)}
"""Of a digit of a digest, the one that has the UUID's variant in its upper bits."""


def session_uuid(device: str, start: int) -> str:
    """A session's UUID of version 7 (RFC 9562, section 5.7): its start in milliseconds, below
    2 to the 48th, and in place of random bits a digest of its device and its start.
    """
    key = f"{start} {device}".encode(errors="surrogatepass")
    digest = blake2b(key, digest_size=_DIGEST_BYTES).hexdigest()
    time = f"{start:012x}"
    variant = _VARIANT[digest[4]]
    return f"{time[:8]}-{time[8:]}-7{digest[1:4]}-{variant}{digest[5:8]}-{digest[8:20]}"


def session_id(device: str, start: int) -> str | None:
    """The id of a session; None if its start, in milliseconds, is none, such as Amplitude's -1
    outside of sessions.
    """
    return session_uuid(device, start) if 0 < start < _END else None


class SessionIds:
    """The ids of sessions, of which the last ones are remembered: an export has several events of
    each.
    """

    def __init__(self) -> None:
        self._known = dict[tuple[str, int], str]()
        self._last: tuple[str, int] = "", 0
        self._last_id = ""

    def of(self, device: str, start: int) -> str | None:
        """The id of a session (`session_id`)."""
        key = device, start
        if key == self._last:  # as neighbouring records often have
            return self._last_id
        known = self._known.get(key)
        if known is None:
            known = session_id(device, start)
            if known is None:
                return None
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[key] = known
        self._last = key
        self._last_id = known
        return known
