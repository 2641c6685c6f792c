"""How an answer that is passed on tells where it ends: by its length, in chunks, or by the end of the connection."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

_BODILESS: Final = frozenset({204, 304})


class Plain:
    """The body as it is: its length was told, or the connection ends with it, or there is none."""

    end = b""

    def wrap(self, piece: bytes) -> bytes:
        """The piece."""
        return piece


class Chunked:
    """Chunks."""

    end = b"0\r\n\r\n"

    def wrap(self, piece: bytes) -> bytes:
        """The piece as a chunk."""
        return b"%x\r\n%b\r\n" % (len(piece), piece)


def has_body(method: bytes, status: int) -> bool:
    """Whether an answer with this status to this method has a body."""
    return method != b"HEAD" and status not in _BODILESS


def framed(*, bodiless: bool, status: int, length: bytes | None, modern: bool) -> tuple[bytes, Plain | Chunked]:
    """The header line that tells it, and how pieces are written. `length`: what the upstream said; `modern`: chunks are understood.

    Where there is no body, a length tells that of the body that there would be; a 204 has none (RFC 9110, 8.6).
    """
    if length is not None and status != 204:
        return b"Content-Length: %b\r\n" % length, Plain()
    if bodiless or not modern:
        return b"", Plain()
    return b"Transfer-Encoding: chunked\r\n", Chunked()


def status_line(status: int, reason: str | None) -> bytes:
    """The first line of an answer, with the upstream's words if they can be said again."""
    if reason is None or not (reason.isascii() and reason.isprintable()):
        reason = HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else ""
    return b"HTTP/1.1 %d %b\r\n" % (status, reason.encode())
