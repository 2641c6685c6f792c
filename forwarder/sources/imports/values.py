"""Values of vendors' records: JSON fields, read with their type or kept as bytes, and the ids of
persons.

`msgspec.Raw` holds bytes that are syntactically JSON, but msgspec doesn't check their UTF-8: so a
record's text is checked as a whole. An id that many share is one person's to the service, which
never merges the usual ones; a merge by another such id can't be undone, and is refused.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Raw

from forwarder.core.error_text import error_text
from forwarder.core.nesting import check_nesting, has_brackets
from forwarder.core.ports import Reason
from forwarder.core.unmerged_ids import AS_WRITTEN, IN_ANY_CASE, is_never_merged
from forwarder.sources.files.transcoding import not_utf8
from forwarder.sources.imports.format import RecordRefused

ELEMENTS: Final = "$elements_chain"
"""The property of an autocaptured event's elements, as ingestion takes them from it."""
EXPORTED_ELEMENTS: Final = "elements_chain"
"""What the service's exports call them, beside the properties."""
EXPORT_MARKS: Final = frozenset(
    (
        EXPORTED_ELEMENTS,
        "person_id",
        "person_properties",
        "team_id",
        "_inserted_at",
        "inserted_at",
        "bq_ingested_timestamp",
    )
)
"""Columns that only the service's exports have beside an event's name and id."""
_KINDS: Final = {
    b'"': "a text",
    b"{": "an object",
    b"[": "a list",
    b"t": "a yes or no",
    b"f": "a yes or no",
}
MAX_DEPTH: Final = 120
"""Levels that a record or an event may have: common parsers accept 128, two of which are the
request's own.
"""
_COUNTED: Final = 16
"""Objects whose brackets are counted together: few enough that those of all but one seldom exceed
what one may have.
"""
_BRACKET_OR_STRING: Final = re.compile(rb'([][{}])|"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_decode_object = msgspec.json.Decoder(dict[str, Raw] | None).decode
_decode_list = msgspec.json.Decoder(list[Raw] | None).decode
_decode_text: Final[Callable[[Raw], str | None]] = msgspec.json.Decoder(str | None).decode
Decoded = TypeVar("Decoded")
_REMEMBERED: Final = 40
"""Longer ids aren't remembered: they are more often those of messages, which
come once, than of persons.
"""
_AROUND: Final = string.whitespace + "\"'`\\\x00\u00a0\u200b\ufeff"
"""What may stand around an id and changes nothing of what it means: an id that was quoted once too
often still says nothing.
"""
SHARED: Final = frozenset(
    map(
        str.lower,
        (
            *IN_ANY_CASE,
            *AS_WRITTEN,
            # The same as programs of other languages write it, which the service doesn't know.
            *("", "nil", "(null)", "<null>", "<nil>", "{}", "[]", "empty", "blank"),
            *("-0", "0.0", "00000000-0000-0000-0000-000000000000"),
        ),
    )
)
"""Ids that many share, in lower case and without what may stand around them."""


def decode_record(record: bytes, decode: Callable[[bytes], Decoded], wrong: str = "") -> Decoded:
    """A record, which is to be a JSON object; of a name that comes twice, the last counts. Raises
    `RecordRefused`: `INVALID_EVENT` if a field is of another type (`wrong`: how the refusal
    begins), `UNDECODABLE` for anything else.
    """
    try:
        if not record.isascii():
            check_utf8(record)
        check_nesting(record)
        return decode(record)
    except msgspec.ValidationError as error:
        if record.lstrip()[:1] == b"{":
            raise RecordRefused(Reason.INVALID_EVENT, f"{wrong}{error_text(error)}") from error
        raise RecordRefused(
            Reason.UNDECODABLE,
            f"{wrong}{error_text(error)}" if wrong else "the record isn't a JSON object",
        ) from error
    except (ValueError, RecursionError) as error:  # of msgspec and of UTF-8
        raise RecordRefused(
            Reason.UNDECODABLE, f"the record isn't a JSON object: {error_text(error)}"
        ) from error


def check_utf8(record: bytes) -> None:
    """Raises `RecordRefused` (`UNDECODABLE`) if a record isn't UTF-8, with the byte that isn't and
    the encoding that it may have.
    """
    try:
        record.decode()
    except UnicodeDecodeError as error:
        raise RecordRefused(Reason.UNDECODABLE, not_utf8(record, error)) from error


def text_or_number(raw: Raw | None, name: str) -> str | None:
    """A text, or a number as it is written in JSON (ids); None if there is none, or null. Raises
    `RecordRefused` (`INVALID_EVENT`).
    """
    if not raw:
        return None
    try:
        return _decode_text(raw)  # most are
    except msgspec.ValidationError:
        value = bytes(raw)
    if value[:1] in b"-0123456789":
        return value.decode()
    raise wrong_type(raw, name, "a text or a number")


def optional_text(raw: Raw | None) -> str | None:
    """The same of a field that its record doesn't need: of another type, it is as good
    as missing.
    """
    try:
        return text_or_number(raw, "") if raw else None
    except RecordRefused:
        return None


def nested(raw: Raw | None, name: str) -> dict[str, Raw]:
    """The fields of an object; of none, or null, no fields. Raises `RecordRefused`
    (`INVALID_EVENT`) if it is anything else.
    """
    try:
        return (_decode_object(raw) if raw else None) or {}
    except msgspec.ValidationError:
        raise wrong_type(raw, name, "an object") from None


def first_time(*fields: tuple[str, Any]) -> str | int | float | None:
    """The first of some fields with a time that says something, as JSON values; those after it
    aren't needed. None if none does.

    Raises `RecordRefused` (`INVALID_EVENT`) if it is neither a text nor a number.
    """
    for name, value in fields:
        if value is not None and value != "":
            if isinstance(value, bool) or not isinstance(value, str | int | float):
                raise wrong_type(value, name, "a text or a number")
            return value
    return None


def items(raw: Raw | None, name: str) -> list[Raw]:
    """The values of a list; of none, or null, no values. Raises `RecordRefused`
    (`INVALID_EVENT`) if it is anything else.
    """
    try:
        return (_decode_list(raw) if raw else None) or []
    except msgspec.ValidationError:
        raise wrong_type(raw, name, "a list") from None


def wrong_type(value: object, name: str, wanted: str) -> RecordRefused:
    """The refusal of a field's value, which isn't what it has to be."""
    kind = _KINDS.get(msgspec.json.encode(value)[:1], "a number")
    return RecordRefused(Reason.INVALID_EVENT, f"{name} is {kind}, not {wanted}")


def is_deep(text: bytes) -> bool:
    """Whether a text is nested so deep that a decoder somewhere fails at it."""
    return text.count(b"[") + text.count(b"{") > MAX_DEPTH and _depth(text) > MAX_DEPTH


def may_be_deep(texts: Sequence[bytes]) -> bool:
    """Whether one of some objects with an object in each may be; counts the
    brackets of several at once.
    """
    return any(
        has_brackets(b"".join(few), MAX_DEPTH + 2 * (len(few) - 1))
        for few in (texts[start : start + _COUNTED] for start in range(0, len(texts), _COUNTED))
    )


def are_deep(texts: Sequence[bytes]) -> bool:
    """Whether one of such objects is."""
    return may_be_deep(texts) and any(map(is_deep, texts))


def _depth(text: bytes) -> int:
    """How deep a text is nested; of one that isn't JSON, at most so deep."""
    depth = deepest = 0
    for match in _BRACKET_OR_STRING.finditer(text):
        bracket = match[1]
        if bracket is not None:
            depth += 1 if bracket in b"[{" else -1
            deepest = max(deepest, depth)
    return deepest


def is_shared(text: str) -> bool:
    """Whether an id stands for no particular person. Neighbouring records share their ids, so
    answers are cached.
    """
    return _is_shared(text) if len(text) <= _REMEMBERED else _is_shared.__wrapped__(text)


def is_shared_key(text: str) -> bool:
    """The same of the id of a message, which comes once: remembering it costs more than looking."""
    return _is_shared.__wrapped__(text)


@lru_cache(maxsize=4096)
def _is_shared(text: str) -> bool:
    return text.strip(_AROUND).lower() in SHARED or text.isspace()


def refused_merge(own: str, seconds: Iterable[str]) -> RecordRefused | None:
    """Why an event must not merge these ids into its own: one of them is shared by many, and the
    service would merge it nevertheless. None if it may.
    """
    for second in seconds:
        if second == own:
            continue
        shared = next((identifier for identifier in (own, second) if is_shared(identifier)), None)
        if shared is not None and not (is_never_merged(own) or is_never_merged(second)):
            return RecordRefused(
                Reason.ILLEGAL_DISTINCT_ID,
                f"the id {shared!r} is one that many share: a merge by it can't be undone",
            )
    return None


def optional_id(raw: Raw | None, name: str) -> str:
    """The id that a value is (`text_or_number`); empty if it is blank or there is
    none. Raises `RecordRefused`.
    """
    text = text_or_number(raw, name) if raw else None
    return "" if not text or text.isspace() else text


def is_blank(text: str | None) -> bool:
    """Whether an id is missing, or as good as missing: only white space."""
    return text is None or not text or text.isspace()
