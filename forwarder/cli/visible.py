"""Text of others, made fit for a terminal: what would move the cursor, ring, or turn the writing round is written as an escape."""

from __future__ import annotations

import json
import re
from typing import Any, Final

_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""C0 and C1, marks of direction, breaks of line, and halves of characters, which can't be encoded."""


def visible(text: str) -> str:
    """`text` with control characters as `\\u001b`."""
    return _CONTROL.sub(_escaped, text)


def visible_lines(text: str) -> str:
    """The same, with the breaks between lines as they are."""
    return "\n".join(map(visible, text.split("\n")))


def as_json(value: Any, *, indent: int | None = None) -> str:
    """A value as JSON; inside of texts, which JSON lets hold most of them, control characters are escapes too."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return visible_lines(text)


def _escaped(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"
