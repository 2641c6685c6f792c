"""The details in the body of an error, in any shape: the service's own, other servers' forms,
plain text, a web page, nothing.

Details are for people and logs: short, on one line, without control characters, and without
anything that looks like a key.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from html import unescape
from http import HTTPStatus
from typing import Any, Final

from forwarder.contract.resources import ErrorType
from forwarder.core.secrets import mask_secrets
from forwarder.management.transport import HttpReply

LONGEST: Final = 500
"""Characters of the service's text that are repeated."""
LARGEST_HEAD: Final = 16 * 1024
"""Bytes of an unexpected body that are searched for text."""
_MESSAGE_FIELDS: Final = ("detail", "message", "error_description", "error", "title", "errors")
_NOT_FIELDS: Final = frozenset({"non_field_errors", "__all__", "detail", "error", "errors"})
_DEEPEST: Final = 5
_LEAST_SECRET: Final = 6
"""Characters: a shorter text is part of many words."""
_TITLE: Final = re.compile(r"<title[^>]*>([^<]*)", re.IGNORECASE)
_PAGE: Final = re.compile(
    rb"\s*(?:<!--.*?-->\s*)*<(?:!doctype\s+html|html|head|body)\b", re.IGNORECASE | re.DOTALL
)
_TYPES: Final = {
    400: ErrorType.VALIDATION,
    401: ErrorType.AUTHENTICATION,
    403: ErrorType.AUTHENTICATION,
    422: ErrorType.VALIDATION,
    429: ErrorType.THROTTLED,
}


@dataclass(frozen=True, slots=True)
class ErrorDetails:
    """The details of an error."""

    type: str
    code: str
    detail: str
    field: str | None = None


def read_error_body(reply: HttpReply, secret: str) -> ErrorDetails:
    """The details in the body of an error; `secret` is the key, which is not repeated."""
    body = _json(reply.body)
    if isinstance(body, dict) and body:
        found = _details_of(body)
    elif isinstance(body, list | str) and _first_text(body):
        found = ErrorDetails("", "", _first_text(body))
    else:
        found = ErrorDetails("", "", _text_details(reply))
    detail = presentable(found.detail, secret) or _phrase(reply.status)
    usual = ErrorType.SERVER if reply.status >= 500 else ErrorType.INVALID_REQUEST
    kind = presentable(found.type, secret) or _TYPES.get(reply.status, usual)
    code = presentable(found.code, secret) or _phrase(reply.status).lower().replace(" ", "_")
    return ErrorDetails(
        str(kind), code, detail, None if found.field is None else presentable(found.field, secret)
    )


def presentable(text: str, secret: str) -> str:
    """The text on one line, truncated, without secrets and control characters."""
    shown = mask_secrets(text.replace(secret, "…") if len(secret) >= _LEAST_SECRET else text)
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in shown).split())
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}…"


def is_web_page(reply: HttpReply) -> bool:
    """Whether the body is a web page."""
    return bool(reply.body.strip()) and (
        reply.content_type.lower().startswith("text/html") or _PAGE.match(reply.body) is not None
    )


def web_page_title(reply: HttpReply) -> str:
    """The title of a web page; empty without one."""
    found = _TITLE.search(reply.body[:LARGEST_HEAD].decode(errors="replace"))
    return unescape(found[1]).strip() if found else ""


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _details_of(body: dict[str, Any], deep: int = 0) -> ErrorDetails:
    kind, code, field = (_plain_text(body.get(name)) for name in ("type", "code", "attr"))
    for name in _MESSAGE_FIELDS:
        if isinstance(body.get(name), str | dict) and (words := _first_text(body[name])):
            if isinstance(body[name], dict) and deep < _DEEPEST:
                inner = _details_of(body[name], deep + 1)
                return ErrorDetails(
                    kind or inner.type, code or inner.code, words, field or inner.field
                )
            return ErrorDetails(kind, code, words, field or None)
    for name, value in body.items():
        if name not in {"type", "code", "attr", "status"} and (words := _first_text(value)):
            return ErrorDetails(kind, code, words, field or (None if name in _NOT_FIELDS else name))
    return ErrorDetails(kind, code, "", field or None)


def _plain_text(value: Any) -> str:
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""


def _first_text(value: Any, deep: int = 0) -> str:
    """The first text in a value; of an object, the usual fields of messages come first."""
    if isinstance(value, str):
        return value.strip()
    if deep >= _DEEPEST:
        return ""
    inner: list[Any] = []
    if isinstance(value, list):
        inner = value
    elif isinstance(value, dict):
        inner = [*(value[name] for name in _MESSAGE_FIELDS if name in value), *value.values()]
    return next((words for item in inner[:20] if (words := _first_text(item, deep + 1))), "")


def _text_details(reply: HttpReply) -> str:
    if is_web_page(reply):
        title = web_page_title(reply)
        return f"a web page, {title!r}" if title else "a web page"
    # far more than is shown: a truncated key would not be masked
    text = reply.body[:LARGEST_HEAD].decode(errors="replace")
    return "" if text.strip() in {"", "{}", "[]", "null", '""'} else text


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return f"status {status}"
