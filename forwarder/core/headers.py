"""Header lines of a message, as they are on the wire."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

HeaderLine: TypeAlias = tuple[bytes, bytes]
"""A header's name and value."""


def value_of(lines: Iterable[HeaderLine], name: bytes) -> bytes:
    """The value of a header, several lines joined by commas; empty if there is none."""
    size = len(name)  # most names are another's by their length: a third of the time
    return b", ".join(
        [value for header, value in lines if len(header) == size and header.lower() == name]
    )
