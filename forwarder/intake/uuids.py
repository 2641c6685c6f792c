"""Which texts are a UUID for the service, and new ones: of version 7, or derived from a name (version 5; RFC 9562, 5.5 and 5.7)."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from hashlib import sha1
from typing import Final

_HYPHENATED_FORM: Final = rb"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_ACCEPTED: Final = re.compile(rb"(?:urn:uuid:)?%(f)b|\{%(f)b\}|[0-9a-fA-F]{32}" % {b"f": _HYPHENATED_FORM})
_VARIANTS: Final = dict(zip("0123456789abcdef", "89ab" * 4, strict=True))
"""The digit that holds the variant, by the one that stands in its place."""

_SHAPE: Final = bytes.maketrans(b"0123456789abcdefABCDEFx", b"x" * 22 + b"?")
_HYPHENATED: Final = b"xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"


def is_uuid(text: bytes) -> bool:
    """Whether the service's parser takes the text: hyphenated, simple, in braces, or as a URN."""
    return _ACCEPTED.fullmatch(text) is not None


def all_hyphenated(uuids: Sequence[str]) -> bool:
    """Whether all are UUIDs in the usual form; one pass over all of them, because it is asked of every event."""
    if [*map(len, uuids)].count(len(_HYPHENATED)) != len(uuids):
        return False  # joined, a short one and a long one could make up for each other
    joined = "".join(uuids)
    return joined.isascii() and joined.encode().translate(_SHAPE) == _HYPHENATED * len(uuids)


RECORD_NAMESPACE: Final = bytes.fromhex("6f3c7b0a2d5e4c1f9a8b5d7e1c0f4a62")
"""The namespace of events that are called by their places in a source. It never changes: a second reading would be another event."""


def derived_uuid(name: str) -> bytes:
    """The UUID, as text, that an event's place has: the same each time it is read."""
    digest = sha1(RECORD_NAMESPACE + name.encode("utf-8", "replace"), usedforsecurity=False).hexdigest()
    variant = _VARIANTS[digest[16]]
    return f"{digest[:8]}-{digest[8:12]}-5{digest[13:16]}-{variant}{digest[17:20]}-{digest[20:32]}".encode()


def new_uuid7(now: float) -> bytes:
    """A new UUID of version 7, as text."""
    random = int.from_bytes(os.urandom(10))
    value = (int(now * 1000) & 0xFFFF_FFFF_FFFF) << 80 | random
    value = value & ~(0xF << 76) & ~(0x3 << 62) | 0x7 << 76 | 0x2 << 62
    text = b"%032x" % value
    return b"%b-%b-%b-%b-%b" % (text[:8], text[8:12], text[12:16], text[16:20], text[20:])
