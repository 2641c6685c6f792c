"""A request as it comes in: its head, the rules for everything that is not usual about it, and its
body.

Only the headers in `_HANDLERS` are looked at, each by its handler; the others are counted, and
kept until the request is complete, for one that is passed through. What llhttp (the parser)
rejects by itself (signs and spaces in lengths, two lengths, a length beside chunks, bare LF,
folded lines, …) is not repeated here; what it accepts and should not is rejected here.
docs/maintainers/wire.md has the list, and the tests hold every line of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from io import BytesIO
from typing import Final, TypeAlias

from forwarder.core.ack import AckLevel
from forwarder.core.errors import InvalidAck
from forwarder.core.headers import HeaderLine
from forwarder.core.path import HEADER, RequestPath, parse_path
from forwarder.sources.http.protocol import answers
from forwarder.sources.http.protocol.answers import HttpAnswer
from forwarder.sources.http.protocol.limits import HttpPolicy

_HEADER_OVERHEAD: Final = 4
"""A colon, a space and the end of the line."""


class RequestHead:
    """The head that is coming in, or came in last. Its callbacks are the parser's."""

    __slots__ = (
        "_handlers",
        "_handlers_of_head",
        "ack",
        "begun",
        "content_encoding",
        "content_length",
        "content_type",
        "forwarded",
        "forwarded_for",
        "hosts",
        "lines",
        "origin",
        "rare",
        "size",
        "url",
    )

    def __init__(self, *, behind_proxy: bool) -> None:
        self._handlers_of_head = self._handlers = (
            _HANDLERS_BEHIND_PROXY if behind_proxy else _HANDLERS
        )
        self.lines: list[HeaderLine] = []
        """All headers, of a trailer too, until the request is complete."""
        self.rare: dict[bytes, bytes] = {}
        """The headers that make a request unusual, by lower-case name."""
        self.on_message_begin()
        self.begun = False
        """Whether a request has begun and is not complete."""

    def on_message_begin(self) -> None:
        """Forget the request before."""
        self.begun = True
        self.size = self.hosts = 0
        self.content_length = -1
        self.ack: bytes | None = None
        self.url = self.content_type = self.content_encoding = self.origin = self.forwarded_for = (
            self.forwarded
        ) = b""
        self.lines.clear()
        if self.rare:
            self.rare = {}
            self._handlers = self._handlers_of_head

    def on_url(self, url: bytes) -> None:
        """The target, or a part of it."""
        self.url = self.url + url if self.url else url

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header of the head, or of a trailer."""
        self.lines.append((name, value))
        self.size += len(name) + len(value) + _HEADER_OVERHEAD
        handler = self._handlers.get(name.lower())
        if handler is not None:
            handler(self, value)

    def ignore_trailer(self) -> None:
        """The headers that follow are a trailer's: nothing in them counts (RFC 9110, 6.5.1)."""
        self._handlers = {}

    @property
    def has_body(self) -> bool:
        """Whether a body follows."""
        return self.content_length > 0 or b"transfer-encoding" in self.rare

    @property
    def path(self) -> RequestPath | None:
        """The forwarders that it has passed, if a header names them."""
        value = self.rare.get(PATH) if self.rare else None
        return None if value is None else parse_path(value)

    def exceeds(self, policy: HttpPolicy) -> bool:
        """Whether there are too many headers, or too large ones."""
        return len(self.lines) > policy.max_headers or self.size > policy.max_header_bytes

    def without_upgrade(self, method: bytes, *, keep_alive: bool) -> bytes:
        """The same head without the offer of another protocol."""
        lines = [b"%b %b HTTP/1.1" % (method, self.url)]
        lines += [
            b"%b: %b" % line
            for line in self.lines
            if line[0].lower() not in (b"upgrade", b"connection")
        ]
        named = [token.strip() for token in self.rare.get(b"connection", b"").split(b",")]
        others = [
            token
            for token in named
            if token and token.lower() not in (b"upgrade", b"keep-alive", b"close")
        ]
        lines.append(
            b"Connection: " + b", ".join([b"keep-alive" if keep_alive else b"close", *others])
        )
        return b"\r\n".join(lines) + b"\r\n\r\n"


_Handler: TypeAlias = Callable[[RequestHead, bytes], None]


# All hosts are served alike, so only their number counts.
def _keep_host(head: RequestHead, value: bytes) -> None:  # noqa: ARG001
    head.hosts += 1


def _keep_content_length(head: RequestHead, value: bytes) -> None:
    head.content_length = int(value)  # digits alone: the parser rejects anything else


def _keep_content_type(head: RequestHead, value: bytes) -> None:
    head.content_type = value


def _keep_content_encoding(head: RequestHead, value: bytes) -> None:
    head.content_encoding = _joined(head.content_encoding, value)


def _keep_origin(head: RequestHead, value: bytes) -> None:
    head.origin = value


def _keep_ack(head: RequestHead, value: bytes) -> None:
    head.ack = value if head.ack is None else _joined(head.ack, value)


def _keep_forwarded_for(head: RequestHead, value: bytes) -> None:
    head.forwarded_for = _joined(head.forwarded_for, value)


def _keep_forwarded(head: RequestHead, value: bytes) -> None:
    head.forwarded = _joined(head.forwarded, value)


def _keep_rare(name: bytes) -> _Handler:
    def keep(head: RequestHead, value: bytes) -> None:
        head.rare[name] = _joined(head.rare.get(name, b""), value)

    return keep


def _joined(before: bytes, value: bytes) -> bytes:
    return before + b", " + value if before else value


PATH: Final = HEADER.lower().encode()

_RARE: Final = (
    b"access-control-request-headers",
    b"access-control-request-method",
    b"connection",
    b"expect",
    PATH,
    b"transfer-encoding",
    b"upgrade",
)
_HANDLERS: Final[Mapping[bytes, _Handler]] = {
    b"host": _keep_host,
    b"content-length": _keep_content_length,
    b"content-type": _keep_content_type,
    b"content-encoding": _keep_content_encoding,
    b"origin": _keep_origin,
    b"forwarder-ack": _keep_ack,
    **{name: _keep_rare(name) for name in _RARE},
}
_HANDLERS_BEHIND_PROXY: Final[Mapping[bytes, _Handler]] = {
    **_HANDLERS,
    b"x-forwarded-for": _keep_forwarded_for,
    b"forwarded": _keep_forwarded,
}


def rejection(head: RequestHead, version: str, policy: HttpPolicy) -> HttpAnswer | None:
    """The answer that ends the connection because of this head: where the next request begins is
    in doubt, or too far away.
    """
    if version not in ("1.1", "1.0"):
        return answers.VERSION_NOT_SUPPORTED
    if head.exceeds(policy):
        return answers.HEADER_TOO_LARGE
    if head.hosts > 1 or (head.hosts == 0 and version == "1.1"):
        return answers.HOST_NEEDED
    coding = head.rare.get(b"transfer-encoding")
    if coding is not None and (version == "1.0" or coding.rstrip().lower() != b"chunked"):
        return answers.BAD_TRANSFER_ENCODING
    return answers.URL_TOO_LONG if len(head.url) > policy.max_url else None


def answer_if_no_events(method: bytes, url: bytes, *, known: bool) -> HttpAnswer | None:
    """The answer to a request that brings no events, whatever its body is; None for one that does.
    `known`: its path accepts events.
    """
    if method == b"CONNECT":
        return answers.METHOD_NOT_ALLOWED
    if method == b"OPTIONS" and (known or url == b"*"):
        return answers.OPTIONS
    if not known:
        return answers.NOT_FOUND
    return None if method == b"POST" else answers.METHOD_NOT_ALLOWED


def answer_if_not_passed(method: bytes, *, reads: bool = False) -> HttpAnswer | None:
    """The answer to a request on a path that is passed through, if it is not for the upstream to
    give; `reads`: see `PassedRoute`.
    """
    if method == b"OPTIONS":
        return answers.READ_OPTIONS if reads else answers.PASSED_OPTIONS
    if method in (b"GET", b"HEAD") or (method == b"POST" and not reads):
        return None
    return answers.READ_METHOD_NOT_ALLOWED if reads else answers.PASSED_METHOD_NOT_ALLOWED


_LEVELS: Final[Mapping[bytes, AckLevel]] = {level.value.encode(): level for level in AckLevel}


def parse_ack_level(value: bytes) -> AckLevel:
    """The level of acknowledgement that a `Forwarder-Ack` header asks for. Raises `InvalidAck` for
    anything else.
    """
    level = _LEVELS.get(value.strip().lower())
    if level is None:
        raise InvalidAck("Forwarder-Ack is one of memory, disk, delivered.")
    return level


_LARGE: Final = 4096
_LARGE_BODY: Final = 1 << 20
"""Below this, pieces are kept and joined at the end: twice so many bytes for a moment are nothing,
and a growing buffer is slower.
"""


class BodyBuffer:
    """A body that arrives in pieces. One that is not kept is measured only, for a request that is
    rejected when it is complete.

    Invariant: what it needs in memory is its bytes and a small fraction of them, however small the
    pieces are, and also while it is put together: small pieces are gathered; past `_LARGE_BODY`
    all of them grow into one buffer, which is handed on as it is, not copied.
    """

    __slots__ = ("_keep", "_pieces", "_whole", "length")

    def __init__(self, *, keep: bool) -> None:
        self._keep = keep
        self._pieces: list[bytes | bytearray] = []
        self._whole: BytesIO | None = None
        self.length = 0

    def add(self, piece: bytes) -> None:
        """The next piece arrived."""
        self.length += len(piece)
        if not self._keep:
            return
        if self._whole is not None:
            self._whole.write(piece)
        elif self._pieces and self.length > _LARGE_BODY:
            self._whole = self._pour()
            self._whole.write(piece)
        elif len(piece) >= _LARGE:
            self._pieces.append(piece)
        elif self._pieces and isinstance(last := self._pieces[-1], bytearray):
            last += piece
        else:
            self._pieces.append(bytearray(piece))

    def _pour(self) -> BytesIO:
        """The pieces in one buffer that can grow."""
        whole = BytesIO()
        for piece in self._pieces:
            whole.write(piece)
        self._pieces.clear()
        return whole

    def joined(self) -> bytes:
        """The body so far."""
        return b"".join(self._pieces) if self._whole is None else self._whole.getvalue()
