"""Bodies: from bytes to the fields that an endpoint accepts, or to the error that says what is
wrong, worded as the real service does.

Accepted fields are stored in a database and sent back as JSON, so what either of them cannot carry
is rejected, at any depth of an accepted field: half a surrogate pair, NUL, a number out of range,
values nested without end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import isfinite
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from forwarder.contract.endpoints import Endpoint
from forwarder.contract.payloads import MOST_INVITES
from forwarder.contract.resources import ErrorType
from forwarder.sandbox.protocol.http import ManagementError, invalid

LARGEST_BODY: Final = 1_000_000
"""Bytes."""
DEEPEST: Final = 64
"""Objects and arrays within each other in one field."""
LARGEST_NUMBER: Final = 2**63 - 1

_SURROGATE: Final = re.compile("[\ud800-\udfff]").search
_BLANK: Final = "This field may not be blank."
_WORDS: Final[Mapping[str, tuple[str, str]]] = {
    "missing": ("required", "This field is required."),
    "string_type": ("invalid", "Not a valid string."),
    "int_type": ("invalid", "A valid integer is required."),
    "bool_type": ("invalid", "Must be a valid boolean."),
    "dict_type": ("invalid", "Expected an object."),
    "list_type": ("not_a_list", "Expected a list of items."),
    "literal_error": ("invalid_choice", "Not a valid choice; expected {expected}."),
    "string_too_long": (
        "max_length",
        "Ensure this field has no more than {max_length} characters.",
    ),
    "too_long": ("max_length", "Ensure this field has no more than {max_length} elements."),
    "greater_than_equal": ("min_value", "Ensure this value is greater than or equal to {ge}."),
    "less_than_equal": ("max_value", "Ensure this value is less than or equal to {le}."),
    "string_too_short": ("blank", _BLANK),
    "string_pattern_mismatch": ("invalid", "This value does not match the required pattern."),
}
"""Code and words for what pydantic finds; anything else is `invalid`."""


@dataclass(frozen=True, slots=True)
class SentBody:
    """What came as a body: its bytes, None if there were more than `LARGEST_BODY`, and what it
    says that they are.
    """

    content: bytes | None = b""
    content_type: str = ""
    encoding: str = ""
    cut_off: bool = False


def body_of(endpoint: Endpoint[Any, Any], sent: SentBody) -> Any:
    """The accepted fields; for several bodies a list of them, or a tuple of a single
    one. Raises `ManagementError`.
    """
    if not endpoint.takes_body:
        return None
    content = _read_json(sent)
    if not endpoint.several:
        return accepted_fields(endpoint.request, content)
    if not isinstance(content, list):
        return (accepted_fields(endpoint.request, content),)
    if len(content) > MOST_INVITES:
        raise invalid(None, f"Ensure there are no more than {MOST_INVITES} at once.", "max_length")
    return [
        accepted_fields(endpoint.request, element, f"{index}__")
        for index, element in enumerate(content)
    ]


def _read_json(sent: SentBody) -> Any:
    if sent.content is None:
        detail = f"The body is larger than {LARGEST_BODY} bytes."
        raise ManagementError(413, ErrorType.INVALID_REQUEST, "request_too_large", detail)
    if sent.cut_off:
        raise _parse_error("The body was cut off.")
    if not sent.content:
        return {}
    if sent.content_type.lower() != "application/json":
        raise ManagementError(
            415,
            ErrorType.INVALID_REQUEST,
            "unsupported_media_type",
            "Send the body as application/json.",
        )
    if sent.encoding.lower() not in ("", "identity"):
        raise ManagementError(
            415,
            ErrorType.INVALID_REQUEST,
            "unsupported_media_type",
            "Send the body without compression.",
        )
    try:
        return json.loads(sent.content.decode(), parse_constant=_reject_constant)
    except RecursionError:
        raise _parse_error("JSON parse error: nested too deep.") from None
    except UnicodeDecodeError:
        raise _parse_error("JSON parse error: the body is not UTF-8.") from None
    except ValueError as error:
        where = (
            f" in line {error.lineno}, column {error.colno}"
            if isinstance(error, json.JSONDecodeError)
            else ""
        )
        raise _parse_error(f"JSON parse error{where}.") from None


def _parse_error(detail: str) -> ManagementError:
    return ManagementError(400, ErrorType.INVALID_REQUEST, "parse_error", detail)


def _reject_constant(constant: str) -> Any:
    """NaN and infinity are not JSON."""
    raise ValueError(constant)


def accepted_fields(request: Any, content: Any, prefix: str = "") -> Any:
    """The fields of a body that a type of payload has. Raises `ManagementError`, which names a
    field with `prefix` before it.
    """
    if not isinstance(content, dict):
        raise invalid(None, "Invalid data. Expected an object.", "invalid")
    accepted = {name: value for name, value in content.items() if name in _accepted(request)}
    for name, value in accepted.items():
        if (fault := fault_of(value)) is not None:
            raise invalid(prefix + name, fault, "invalid")
    try:
        fields = _adapter(request).validate_python(accepted, strict=True)
    except ValidationError as error:
        raise _field_error(error.errors(include_url=False)[0], prefix) from None
    for name, value in fields.items():
        # pydantic accepts true for a choice of 1
        if isinstance(accepted[name], bool) and not isinstance(value, bool):
            raise invalid(prefix + name, "Not a valid choice.", "invalid_choice")
    return fields


@cache
def _adapter(request: Any) -> TypeAdapter[Any]:
    return TypeAdapter(request)


@cache
def _accepted(request: Any) -> frozenset[str]:
    names: frozenset[str] = request.__required_keys__ | request.__optional_keys__
    return names


def _field_error(error: ErrorDetails, prefix: str) -> ManagementError:
    """One thing that pydantic found, as an answer; what is wrong inside a field is said with its
    place in there.
    """
    field, *inside = error["loc"]
    code, detail = _message(error)
    place = f"{'.'.join(map(str, inside))}: " if inside else ""
    return invalid(f"{prefix}{field}", place + detail, code)


def _message(error: ErrorDetails) -> tuple[str, str]:
    kind = error["type"]
    value = error.get("input")
    if value is None and kind != "missing":
        return "null", "This field may not be null."
    if isinstance(value, str) and not value.strip() and kind == "string_pattern_mismatch":
        return "blank", _BLANK
    if kind == "value_error":
        return "invalid", error["msg"].removeprefix("Value error, ")
    code, words = _WORDS.get(kind, ("invalid", "Not a valid value."))
    return code, words.format(**error.get("ctx", {}))


def fault_of(value: Any) -> str | None:
    """Why a value can't be kept, if it can't. Level by level, since a body may hold half a million
    of values.
    """
    level: list[Any] = [value]
    for _ in range(DEEPEST + 1):
        inner = list[Any]()
        containers = False
        for item in level:
            if isinstance(item, str):
                if (fault := _fault_of_text(item)) is not None:
                    return fault
            elif isinstance(item, list | dict):
                containers = True
                inner += item
                inner += item.values() if isinstance(item, dict) else ()
            elif isinstance(item, int | float) and _out_of_range(item):
                return "This number is out of range."
        if not containers:
            return None
        level = inner
    return f"Nested deeper than {DEEPEST} levels."


def _out_of_range(number: float) -> bool:
    return (
        not -LARGEST_NUMBER <= number <= LARGEST_NUMBER
        if isinstance(number, int)
        else not isfinite(number)
    )


def _fault_of_text(text: str) -> str | None:
    if "\0" in text:
        return "Null characters are not allowed."
    if not text.isascii() and _SURROGATE(text):
        return "Half a surrogate pair is not allowed."
    return None
