"""Heads that were parsed before.

A sender's requests differ in their bodies, seldom in more of their heads than the length. A head is parsed once; when the same bytes
come again, but for the digits of the length, with a body of exactly that length, the request is complete and what was decided stands.

Invariants: a head is remembered only if its request was of the kind that is taken, had a length, and leaves the connection open; it
is looked up only between two requests, where what the parser makes of bytes depends on the bytes alone. The digits that are left out
are those of the one Content-Length header: in a head that the strict parser took, a line begins nowhere but after CRLF, and a
second length would have been refused. Heads from behind trusted proxies and others are kept apart, because they are read differently.
Remembering is bounded in number and size.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from forwarder.core.ports import Incoming
from forwarder.sources.http.routes import Route

MAX_HEADS: Final = 512
MAX_HEAD: Final = 2048
MAX_DIGITS: Final = 9

_LENGTH: Final = b"\r\nContent-Length: "
_LENGTH_IN_SMALL_LETTERS: Final = b"\r\ncontent-length: "
_LENGTH_SIZE: Final = len(_LENGTH)


class KnownHead:
    """What was decided on a head."""

    __slots__ = ("forwarded", "forwarded_for", "headers", "incoming", "prefix", "prefix_size", "route", "suffix", "suffix_size", "taken")

    def __init__(self, route: Route, incoming: Incoming, *, forwarded_for: bytes, forwarded: bytes, headers: bytes, taken: bytes) -> None:
        """`headers`: lines that every answer to it has; `taken`: the whole answer when it is taken."""
        self.route = route
        self.incoming = incoming
        """What is handed to the intake, which keeps none of it: filled in anew for each request."""
        self.forwarded_for = forwarded_for
        self.forwarded = forwarded
        self.headers = headers
        self.taken = taken
        self.prefix = self.suffix = b""
        self.prefix_size = self.suffix_size = 0

    def keyed(self, prefix: bytes, suffix: bytes) -> None:
        """The head's bytes before and after the digits of its length."""
        self.prefix, self.suffix = prefix, suffix
        self.prefix_size, self.suffix_size = len(prefix), len(suffix)

    def body_start(self, data: bytes) -> int:
        """Where the body begins in `data`, if it is this head with a body of just the length that it declares; else -1."""
        start = self.prefix_size
        if not data.startswith(self.prefix):
            return -1
        stop = data.find(b"\r", start, start + MAX_DIGITS + 1)
        if stop < 0 or not data.startswith(self.suffix, stop):
            return -1
        digits = data[start:stop]
        end = stop + self.suffix_size
        return end if digits.isdigit() and len(data) - end == int(digits) else -1


Heads: TypeAlias = dict[tuple[bytes, bytes], KnownHead]
"""Known heads by their bytes before and after the digits of the length."""


def split_head(data: bytes, end: int) -> tuple[bytes, bytes] | None:
    """The head `data[:end]` before and after the digits of its length; None if it has none that can be left out."""
    start = data.find(_LENGTH, 0, end)
    if start < 0:
        start = data.find(_LENGTH_IN_SMALL_LETTERS, 0, end)
        if start < 0:
            return None
    start += _LENGTH_SIZE
    stop = data.find(b"\r", start, end)
    if stop - start > MAX_DIGITS or not data[start:stop].isdigit():
        return None
    return data[:start], data[stop:end]


def remember(heads: Heads, key: tuple[bytes, bytes], known: KnownHead) -> None:
    """Keep what was decided on a head; forget everything when there is too much of it."""
    prefix, suffix = key
    if len(prefix) + len(suffix) > MAX_HEAD:
        return
    if len(heads) >= MAX_HEADS:
        heads.clear()
    known.keyed(prefix, suffix)
    heads[key] = known
