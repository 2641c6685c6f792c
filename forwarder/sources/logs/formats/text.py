"""What all formats need: what a parser is, and escapes in quoted text."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, TypeAlias

from msgspec import Raw

ParsedLine: TypeAlias = tuple[bytes, bytes, float]
"""A record as a JSON object; its own time as JSON text (ISO 8601, UTC), empty if it has none; the
same in whole seconds since 1970.

Where it has none, the seconds are the `reference`: they are what `Mapping.map` needs as the
record's time.
"""
LineParser: TypeAlias = Callable[[bytes, float], ParsedLine | None]
"""See `LineFormat.parse`."""
MessageParser: TypeAlias = Callable[[str], str | Raw | None]
"""What the message of a line is as a JSON value; None: it isn't of its format."""

_ESCAPE: Final = re.compile(
    rb"(?:\\x[0-9a-fA-F]{2})++"
    rb"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\U[0-9a-fA-F"
    rb"]{8}"
    rb"|\\[^xuU]",
    re.DOTALL,
)
_PLAIN: Final = {
    b"n": b"\n",
    b"t": b"\t",
    b"r": b"\r",
    b"b": b"\b",
    b"f": b"\f",
    b"v": b"\v",
    b"a": b"\a",
}
_QUOTED: Final = frozenset({b'"', b"\\", b"/", b"]", b"'"})


def unescape(text: str) -> str:
    r"""Text without escapes: `\"`, `\\`, `\n` and the like, `\x22` (bytes of UTF-8), `\u0022`,
    `\U00000022`. Unknown ones stay.
    """
    return (
        _ESCAPE.sub(_unescaped, text.encode()).decode("utf-8", "replace") if "\\" in text else text
    )


def _unescaped(match: re.Match[bytes]) -> bytes:
    escape = match[0]
    kind = escape[1:2]
    if kind == b"x":
        return bytes.fromhex(escape.replace(b"\\x", b"").decode())
    if kind in b"uU":
        codes = [int(code, 16) for code in re.split(rb"\\[uU]", escape)[1:]]
        if codes[-1] > 0x10FFFF:
            return "\ufffd".encode()
        return (
            "".join(map(chr, codes))
            .encode("utf-16", "surrogatepass")
            .decode("utf-16", "replace")
            .encode()
        )
    if escape[1:] in _QUOTED:
        return escape[1:]
    return _PLAIN.get(escape[1:], escape)
