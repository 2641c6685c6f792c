"""Ids of persons: which can be imported, and which so many share that they would make one person of strangers.

A merge of persons can't be undone, and an event can't be deleted: so an id that means "nobody" is refused, never passed on.
"""

from __future__ import annotations

import string
from collections.abc import Collection
from functools import lru_cache
from typing import Final

from forwarder.sources.imports.events import RecordRefused, RefusalReason

_REMEMBERED: Final = 40
"""Longer ids aren't remembered: they are more often those of messages, which come once, than of persons."""

_AROUND: Final = string.whitespace + "\"'`\\\x00\u00a0\u200b\ufeff"
"""What may stand around an id and changes nothing of what it means: an id that was quoted once too often still says nothing."""

ILLEGAL: Final = frozenset((
    # Nothing, as programs of many languages spell it when they write it as text.
    "", "null", "undefined", "none", "nil", "nan", "(null)", "<null>", "<nil>", "[object object]", "{}", "[]",
    # Values of another type, and counters that never counted.
    "true", "false", "0", "-0", "0.0", "00000000-0000-0000-0000-000000000000",
    # Words for everybody, and names of fields in the place of their values.
    "anonymous", "guest", "not_authenticated", "empty", "blank", "distinct_id", "distinctid", "id", "email",
))  # fmt: skip
"""In lower case, and without what may stand around them."""


def is_illegal(text: str) -> bool:
    """Whether an id means nobody in particular. Neighbouring records share their ids, so what was asked is remembered for a while."""
    return _is_illegal(text) if len(text) <= _REMEMBERED else _is_illegal.__wrapped__(text)


@lru_cache(maxsize=4096)
def _is_illegal(text: str) -> bool:
    return text.strip(_AROUND).lower() in ILLEGAL or text.isspace()


def none_illegal(texts: Collection[str]) -> bool:
    """Whether none of some ids is one that means nobody; asked of all at once."""
    return ILLEGAL.isdisjoint([text.strip(_AROUND).lower() for text in texts]) and not any(map(str.isspace, texts))


def check_id(text: str) -> str:
    """The id as it is (a number's is its JSON text: `jsonvalues.text_or_number`). Raises `RecordRefused` (`ILLEGAL_ID`)."""
    if is_illegal(text):
        raise RecordRefused(RefusalReason.ILLEGAL_ID, f"the id {text!r} is one that many share")
    return text


def is_blank(text: str | None) -> bool:
    """Whether an id is missing, or as good as missing: only white space."""
    return text is None or not text or text.isspace()
