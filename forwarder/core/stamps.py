"""Times and UUIDs as text: the one form of a time in UTC, new UUIDs, and those that are derived
from names, the same each time a name is read (RFC 9562, sections 5.5 and 5.7); which texts are a
UUID for the service; and which seconds are a time of the calendar.
"""

from __future__ import annotations

import math
import os
import re
from binascii import hexlify
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import sha1
from struct import Struct
from typing import Final, TypeGuard

from msgspec import Raw


def utc_text(time: datetime | float, timespec: str = "") -> str:
    """A time, or seconds since 1970, as ISO 8601 in UTC: `2026-03-01T10:20:30.123Z`. `timespec` is
    that of `isoformat`; without it, to the microsecond where the time has any, else to the
    millisecond.
    """
    utc = time.astimezone(UTC) if isinstance(time, datetime) else datetime.fromtimestamp(time, UTC)
    timespec = timespec or ("microseconds" if utc.microsecond % 1000 else "milliseconds")
    return f"{utc.isoformat('T', timespec)[:-6]}Z"


_LAST_MOMENT: Final = 253_402_300_799.0
"""The end of the calendar, seconds since 1970."""


def is_moment(seconds: float | None) -> TypeGuard[float]:
    """Whether these are seconds since 1970 that the calendar has."""
    return seconds is not None and 0.0 <= seconds < _LAST_MOMENT


def time_text(seconds: float) -> bytes:
    """A time of receipt, seconds since 1970, as JSON text: to the microsecond where it has any,
    else to the millisecond.
    """
    second = math.floor(seconds)
    micros = round((seconds - second) * 1e6)
    if micros == 1_000_000:
        return time_text(second + 1)
    fraction = b"%06d" % micros if micros % 1000 else b"%03d" % (micros // 1000)
    return b'"%b.%bZ"' % (_second_text(second), fraction)


@lru_cache(maxsize=16)
def _second_text(second: int) -> bytes:
    """A whole second; neighbouring events share it."""
    return utc_text(second, "seconds")[:-1].encode()


_VARIANTS: Final = dict(
    zip([b"%x" % digit for digit in range(16)], [b"8", b"9", b"a", b"b"] * 4, strict=True)
)
"""The digit that holds the variant, by the one that it replaces."""
_FORM: Final = b"xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"
_DIGITS_AT: Final = [at for at, character in enumerate(_FORM.decode()) if character == "x"]
_VERSION_AT: Final = 14
_VARIANT_AT: Final = 19
_SHA1_DIGITS: Final = 40
_TO_VARIANT: Final = bytes.maketrans(b"0123456789abcdef", b"89ab" * 4)
_split: Final = Struct("8s4sx3sc3s12s8x").unpack
"""The digits of a SHA-1 as those of a UUID, without the one that its version replaces."""


def uuid5(namespace: bytes, name: bytes) -> bytes:
    """The UUID of version 5 (RFC 9562, section 5.5) as text, in a fifth of the time of
    `uuid.uuid5`; `namespace`: the 16 bytes of one.
    """
    return as_uuid5(sha1(namespace + name, usedforsecurity=False).digest())


def as_uuid5(digest: bytes) -> bytes:
    """The UUID of version 5, as text, that the SHA-1 of a namespace and a name makes."""
    first, second, third, variant, fourth, last = _split(hexlify(digest))
    # `%` takes longer
    return b"".join(
        (first, b"-", second, b"-5", third, b"-", _VARIANTS[variant], fourth, b"-", last)
    )


def uuids5(
    namespace: bytes, names: Sequence[bytes], before: bytes = b"", after: bytes = b""
) -> list[bytes]:
    """The UUIDs of version 5 of several names, each between `before` and `after`.

    Each digit is put into all of them at once, which takes half of the time.
    """
    whole = bytes(_joined(namespace, names, before, after))
    size = len(before) + len(_FORM) + len(after)
    return [whole[at : at + size] for at in range(0, len(whole), size)]


def uuid_texts5(namespace: bytes, names: Sequence[bytes]) -> list[str]:
    """The same as text."""
    whole = _joined(namespace, names).decode()
    return [whole[at : at + len(_FORM)] for at in range(0, len(whole), len(_FORM))]


def _joined(
    namespace: bytes, names: Sequence[bytes], before: bytes = b"", after: bytes = b""
) -> bytearray:
    digits = hexlify(
        b"".join([sha1(namespace + name, usedforsecurity=False).digest() for name in names])
    )
    begin = len(before)
    size = len(before) + len(_FORM) + len(after)
    texts = bytearray((before + _FORM + after) * len(names))
    for digit, at in enumerate(_DIGITS_AT):
        texts[begin + at :: size] = digits[digit::_SHA1_DIGITS]
    texts[begin + _VERSION_AT :: size] = b"5" * len(names)
    texts[begin + _VARIANT_AT :: size] = texts[begin + _VARIANT_AT :: size].translate(_TO_VARIANT)
    return texts


_RANDOM_FORM: Final = b"-7xxx-yxxx-xxxxxxxxxxxx"
_RANDOM_AT: Final = [at for at, character in enumerate(_RANDOM_FORM.decode()) if character == "x"]
_Y_AT: Final = _RANDOM_FORM.index(b"y")
_RANDOM_BYTES: Final = 10


def new_uuid7(now: float) -> bytes:
    """A new UUID of version 7; `now` in seconds."""
    time = _milliseconds(now)
    random = hexlify(os.urandom(_RANDOM_BYTES))
    variant = _VARIANTS[random[:1]]
    return b"".join(
        (
            time[:8],
            b"-",
            time[8:],
            b"-7",
            random[1:4],
            b"-",
            variant,
            random[4:7],
            b"-",
            random[7:19],
        )
    )


def new_uuids7(now: float, count: int, before: bytes = b"", after: bytes = b"") -> list[bytes]:
    """So many new UUIDs of version 7, each between `before` and `after`; `now` in seconds. Each
    digit is put into all of them at once.
    """
    time = _milliseconds(now)
    text = b"%b%b-%b%b%b" % (before, time[:8], time[8:], _RANDOM_FORM, after)
    size = len(text)
    begin = len(text) - len(after) - len(_RANDOM_FORM)
    texts = bytearray(text) * count
    random = hexlify(os.urandom(_RANDOM_BYTES * count))
    for digit, at in enumerate(_RANDOM_AT, 1):
        texts[begin + at :: size] = random[digit :: 2 * _RANDOM_BYTES]
    texts[begin + _Y_AT :: size] = random[:: 2 * _RANDOM_BYTES].translate(_TO_VARIANT)
    whole = bytes(texts)
    return [whole[at : at + size] for at in range(0, len(whole), size)]


def _milliseconds(now: float) -> bytes:
    return b"%012x" % (int(now * 1000) & 0xFFFF_FFFF_FFFF)


_HYPHENATED_FORM: Final = rb"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_ACCEPTED: Final = re.compile(
    rb"(?:urn:uuid:)?%(f)b|\{%(f)b\}|[0-9a-fA-F]{32}" % {b"f": _HYPHENATED_FORM}
)
_SHAPE: Final = bytes.maketrans(b"0123456789abcdefABCDEFx", b"x" * 22 + b"?")
_HYPHENATED: Final = b'"xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"'


def is_uuid(text: bytes) -> bool:
    """Whether the service's parser accepts the text: hyphenated, simple, in braces, or as a URN."""
    return _ACCEPTED.fullmatch(text) is not None


def all_hyphenated(uuids: Sequence[Raw]) -> bool:
    """Whether all are texts that are UUIDs in the usual form; one pass over all of them, because
    every event needs it.
    """
    # no text has a quote within, so a short one and a long one can't make up for each other
    return b"".join(uuids).translate(_SHAPE) == _HYPHENATED * len(uuids)


RECORD_NAMESPACE: Final = bytes.fromhex("6f3c7b0a2d5e4c1f9a8b5d7e1c0f4a62")
"""The namespace of events that are named by their positions in a source. It never changes: a
second read would make another event.
"""


def derived_uuid(name: str) -> bytes:
    """The UUID, as text, of an event's position: the same each time it is read."""
    return uuid5(RECORD_NAMESPACE, name.encode("utf-8", "replace"))


def derived_uuids(names: Sequence[str], before: bytes = b"", after: bytes = b"") -> list[bytes]:
    """`derived_uuid` of each, between two texts."""
    # in half of the time that one after the other takes
    encoded = "\0".join(names).encode("utf-8", "replace").split(b"\0")
    if len(encoded) != len(names):
        # there are NULs in them, or there is none
        encoded = [name.encode("utf-8", "replace") for name in names]
    return uuids5(RECORD_NAMESPACE, encoded, before, after)
