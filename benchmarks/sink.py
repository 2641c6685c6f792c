"""The counting sink: an upstream that answers 200 to everything and counts the events it was sent,
by their marker.

`/decide` gets a decision without flags, so that key checks pass. `GET /count` answers
`{"events", "requests", "bytes"}`. Like any server it may be run beside others: it keeps nothing
between runs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass

from isal import igzip

from benchmarks.events import MARKER
from benchmarks.server import OK, Exchange, serve


@dataclass(slots=True)
class Count:
    """What has arrived."""

    events: int = 0
    requests: int = 0
    bytes: int = 0


class Sink(Exchange):
    """One connection to the sink."""

    def __init__(self, count: Count) -> None:
        super().__init__()
        self._count = count
        self._path = b""
        self._gzip = False
        self._parts: list[bytes] = []

    def on_message_begin(self) -> None:
        """Called by httptools."""
        self._parts = []
        self._gzip = False

    def on_url(self, url: bytes) -> None:
        """Called by httptools."""
        self._path = url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by httptools."""
        if name.lower() == b"content-encoding":
            self._gzip = value == b"gzip"

    def on_body(self, part: bytes) -> None:
        """Called by httptools."""
        self._parts.append(part)

    def on_message_complete(self) -> None:
        """Called by httptools."""
        answer = self.asked(self._path)
        if answer is None:
            body = b"".join(self._parts)
            self.take(_gunzip(body) if self._gzip else body)
        self.answer(OK if answer is None else answer)

    def asked(self, path: bytes) -> bytes | None:
        """The answer to a question; None if events were sent."""
        if path.startswith(b"/count"):
            return json_answer(asdict(self._count))
        if path.startswith((b"/decide", b"/flags")):
            return json_answer(
                {"featureFlags": {}, "featureFlagPayloads": {}, "errorsWhileComputingFlags": False}
            )
        return None

    def take(self, body: bytes) -> None:
        """Count what is in a body, which isn't compressed any more."""
        self._count.requests += 1
        self._count.bytes += sum(map(len, self._parts))
        self._count.events += body.count(MARKER)


def _gunzip(body: bytes) -> bytes:
    decompress: Callable[[bytes], bytes] = igzip.decompress
    return decompress(body)


def json_answer(value: object) -> bytes:
    """An answer of JSON."""
    body = json.dumps(value).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
        len(body),
        body,
    )


if __name__ == "__main__":
    shared = Count()
    serve(lambda: Sink(shared), int(sys.argv[1]))
