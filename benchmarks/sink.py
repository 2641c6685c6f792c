"""The counting sink: an upstream that answers 200 to everything and counts the events it was sent, by their marker.

`/decide` gets a decision without flags, so that key checks pass. `GET /count` answers `{"events", "requests", "bytes"}`.
Like any server it may be run beside others: it keeps nothing between runs.
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
        self._parts, self._gzip = [], False

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
        if self._path.startswith(b"/count"):
            self.answer(_json(asdict(self._count)))
        elif self._path.startswith((b"/decide", b"/flags")):
            self.answer(_json({"featureFlags": {}, "featureFlagPayloads": {}, "errorsWhileComputingFlags": False}))
        else:
            self._take(b"".join(self._parts))
            self.answer(OK)

    def _take(self, body: bytes) -> None:
        self._count.requests += 1
        self._count.bytes += len(body)
        self._count.events += (_gunzip(body) if self._gzip else body).count(MARKER)


def _gunzip(body: bytes) -> bytes:
    decompress: Callable[[bytes], bytes] = igzip.decompress
    return decompress(body)


def _json(value: object) -> bytes:
    body = json.dumps(value).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


if __name__ == "__main__":
    shared = Count()
    serve(lambda: Sink(shared), int(sys.argv[1]))
