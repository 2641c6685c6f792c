"""A request's head: what is kept of it, and the rules for everything that is not usual about it.

Only the headers in `_HANDLERS` are looked at, each by its handler; the others are counted, and kept until the request is complete, for one
that is passed through. What llhttp (the parser) refuses by itself
(signs and spaces in lengths, two lengths, a length beside chunks, bare LF, folded lines, …) is not repeated here; what it lets pass
and should not is refused here. docs/http.md has the list, and the tests hold every line of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from forwarder.core.ack import AckLevel
from forwarder.core.errors import InvalidAck
from forwarder.core.path import HEADER, RequestPath, parse_path
from forwarder.sources.http import answers
from forwarder.sources.http.answers import Answer
from forwarder.sources.http.limits import HttpPolicy

_HEADER_OVERHEAD: Final = 4
"""A colon, a space and the end of the line."""


class Head:
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
        self._handlers_of_head = self._handlers = _HANDLERS_BEHIND_PROXY if behind_proxy else _HANDLERS
        self.lines: list[tuple[bytes, bytes]] = []
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
        self.url = self.content_type = self.content_encoding = self.origin = self.forwarded_for = self.forwarded = b""
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
        """The forwarders that it has passed, if it says so."""
        value = self.rare.get(PATH) if self.rare else None
        return None if value is None else parse_path(value)

    def exceeds(self, policy: HttpPolicy) -> bool:
        """Whether there are too many headers, or too large ones."""
        return len(self.lines) > policy.max_headers or self.size > policy.max_header_bytes

    def without_upgrade(self, method: bytes, *, keep_alive: bool) -> bytes:
        """The same head without the wish to speak another protocol."""
        lines = [b"%b %b HTTP/1.1" % (method, self.url)]
        lines += [b"%b: %b" % line for line in self.lines if line[0].lower() not in (b"upgrade", b"connection")]
        named = [token.strip() for token in self.rare.get(b"connection", b"").split(b",")]
        others = [token for token in named if token and token.lower() not in (b"upgrade", b"keep-alive", b"close")]
        lines.append(b"Connection: " + b", ".join([b"keep-alive" if keep_alive else b"close", *others]))
        return b"\r\n".join(lines) + b"\r\n\r\n"


_Handler: TypeAlias = Callable[[Head, bytes], None]


def _keep_host(head: Head, value: bytes) -> None:  # noqa: ARG001 — which host is asked for makes no difference
    head.hosts += 1


def _keep_content_length(head: Head, value: bytes) -> None:
    head.content_length = int(value)  # digits alone: the parser saw to that


def _keep_content_type(head: Head, value: bytes) -> None:
    head.content_type = value


def _keep_content_encoding(head: Head, value: bytes) -> None:
    head.content_encoding = _joined(head.content_encoding, value)


def _keep_origin(head: Head, value: bytes) -> None:
    head.origin = value


def _keep_ack(head: Head, value: bytes) -> None:
    head.ack = value if head.ack is None else _joined(head.ack, value)


def _keep_forwarded_for(head: Head, value: bytes) -> None:
    head.forwarded_for = _joined(head.forwarded_for, value)


def _keep_forwarded(head: Head, value: bytes) -> None:
    head.forwarded = _joined(head.forwarded, value)


def _keep_rare(name: bytes) -> _Handler:
    def keep(head: Head, value: bytes) -> None:
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


def refusal(head: Head, version: str, policy: HttpPolicy) -> Answer | None:
    """The answer that ends the connection because of this head: where the next request begins is in doubt, or too far away."""
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


def other_than_take(method: bytes, url: bytes, *, known: bool) -> Answer | None:
    """The answer to a request that brings no events, whatever its body is; None for one that does. `known`: its path is taken."""
    if method == b"CONNECT":
        return answers.METHOD_NOT_ALLOWED
    if method == b"OPTIONS" and (known or url == b"*"):
        return answers.OPTIONS
    if not known:
        return answers.NOT_FOUND
    return None if method == b"POST" else answers.METHOD_NOT_ALLOWED


def other_than_pass(method: bytes, *, reads: bool = False) -> Answer | None:
    """The answer to a request on a path that is passed through, if it is not for the upstream to give; `reads`: see `PassedRoute`."""
    if method == b"OPTIONS":
        return answers.READ_OPTIONS if reads else answers.PASSED_OPTIONS
    if method in (b"GET", b"HEAD") or (method == b"POST" and not reads):
        return None
    return answers.READ_METHOD_NOT_ALLOWED if reads else answers.PASSED_METHOD_NOT_ALLOWED


_LEVELS: Final[Mapping[bytes, AckLevel]] = {level.value.encode(): level for level in AckLevel}


def asked_level(value: bytes) -> AckLevel:
    """The level of acknowledgement that a `Forwarder-Ack` header asks for. Raises `InvalidRequest` for anything else."""
    level = _LEVELS.get(value.strip().lower())
    if level is None:
        raise InvalidAck("Forwarder-Ack is one of memory, disk, delivered.")
    return level
