"""Reading HTTP answers quickly. A server's answers repeat byte for byte, so each is parsed once
and looked up from then on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

KNOWN_LIMIT: Final = 1000


@dataclass(frozen=True, slots=True)
class Answer:
    """What matters of an answer."""

    status: int
    close: bool = False
    """Whether the connection ends with it."""
    retry_after: float = 1.0
    """Seconds, for a 503."""


class AnswerReader:
    """Tells one connection's received bytes apart into answers. Shared by connections: it keeps
    nothing of theirs.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, Answer] = {}

    def read(self, received: bytes) -> Answer | None:
        """The answer that `received` is, exactly; None while it is incomplete. Raises ValueError
        for anything but HTTP.
        """
        answer = self._known.get(received)
        if answer is None:
            answer = _parse(received)
            if answer is not None and len(self._known) < KNOWN_LIMIT:
                self._known[received] = answer
        return answer


def _parse(received: bytes) -> Answer | None:
    head, blank, body = received.partition(b"\r\n\r\n")
    if not blank:
        return None
    first, *lines = head.split(b"\r\n")
    if not first.startswith(b"HTTP/1."):
        raise ValueError(f"not an HTTP answer: {first[:60]!r}")
    headers = {
        name.strip().lower(): value.strip()
        for name, _, value in (line.partition(b":") for line in lines)
    }
    if not _complete(headers, body):
        return None
    retry_after = headers.get(b"retry-after", b"1")
    close = headers.get(b"connection", b"").lower() == b"close" or first.startswith(b"HTTP/1.0")
    return Answer(int(first[9:12]), close, float(retry_after) if retry_after.isdigit() else 1.0)


def _complete(headers: dict[bytes, bytes], body: bytes) -> bool:
    if headers.get(b"transfer-encoding", b"").lower() == b"chunked":
        return body.endswith(b"0\r\n\r\n")
    return len(body) >= int(headers.get(b"content-length", b"0"))
