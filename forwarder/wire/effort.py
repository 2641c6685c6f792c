"""How much work is done on one text while other requests wait for it to end; what takes more is
for the decoder process.

Usual requests stay far below these bounds: they are checked only where a slow way begins, so that
the fast ways pay nothing for them.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import ClassVar, Final, NamedTuple

import msgspec
from msgspec import Raw, Struct

from forwarder.core.errors import RequestTooLarge


class TooMuchWork(Exception):
    """The text needs more work than its `Effort` allows. Nothing was decided about it: it has to
    be read again by another process.
    """


class Effort(NamedTuple):
    """Bounds of what is done in one go."""

    text: int
    """Bytes of JSON that are read at all."""
    encoded: int
    """Bytes on the wire of a form, of base64 or of compressed data."""
    repaired: int
    """Bytes of JSON that are searched for NaN and lone surrogates."""
    events: int
    """Events that are rewritten one by one."""
    ruled: float
    """Microseconds that rules may take, by their own estimate (`rules/costs.py`)."""

    def without(self, events: int) -> Effort:
        """What is left when so many events were rewritten."""
        return self._replace(events=max(0, self.events - events))

    def shortened(self) -> Effort:
        """A quarter of it, for one of many at once; but usual texts are read as ever."""
        return self._replace(
            repaired=self.repaired // 4, events=self.events // 4, ruled=self.ruled / 4
        )


UNBOUNDED: Final = Effort(sys.maxsize, sys.maxsize, sys.maxsize, sys.maxsize, math.inf)

INLINE: Final = Effort(
    text=1 << 20, encoded=256 * 1024, repaired=256 * 1024, events=1200, ruled=20_000.0
)
"""About 20 ms at most, whatever the text is (docs/decisions/0022-large-bodies-have-a-process.md).
"""


class Allowance:
    """What is left of a bound while work is done."""

    __slots__ = ("left",)

    def __init__(self, allowed: float) -> None:
        self.left = allowed

    def spend(self, cost: float) -> None:
        """Called before work that costs so much. Raises `TooMuchWork` if that is not left."""
        self.left -= cost
        if self.left < 0:
            raise TooMuchWork


def decoded_within(decode: Callable[[int], bytes], limit: int, effort: Effort) -> bytes:
    """What `decode` makes within a number of bytes. Raises `RequestTooLarge` over `limit`,
    `TooMuchWork` if it would take more than `effort`.
    """
    try:
        return decode(min(limit, effort.text))
    except RequestTooLarge:
        if effort.text < limit:
            raise TooMuchWork from None
        raise


def check_effort(events: bytes | Raw, limit: int) -> None:
    """Raises `TooMuchWork` for a JSON array of more than `limit` elements. One with so many commas
    has to hold objects only, or else it raises that, too.
    """
    try:
        longer = is_longer(events, limit)
    except msgspec.ValidationError:
        raise TooMuchWork from None
    if longer:
        raise TooMuchWork


def is_longer(events: bytes | Raw, limit: int) -> bool:
    """Whether a JSON array has more than `limit` objects; it is read no further than the one that
    is too many, because an array of 200,000 `{}` takes 15 ms to its end.

    Raises `msgspec.ValidationError` if it has so many commas, and another element before that.
    """
    if len(memoryview(events)) <= 2 * limit or bytes(events).count(b",") < limit:
        return False
    _Counted.left = limit
    try:
        _decode_counted(events)
    except _TooMany:
        return True
    return False


class _TooMany(Exception):
    """There is one more."""


class _Counted(Struct, gc=False):
    """Any event; making the one that is too many ends the decoding."""

    left: ClassVar[int] = 0

    def __post_init__(self) -> None:
        _Counted.left -= 1
        if _Counted.left < 0:
            raise _TooMany


_decode_counted = msgspec.json.Decoder(list[_Counted]).decode
