"""The client's one exception, and how each kind of failure becomes one: what happened, and what to
do.

An error has what a program distinguishes and a person reads, and nothing that is secret.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from forwarder.contract.endpoints import Endpoint, Method
from forwarder.contract.resources import LEVELS
from forwarder.core.errors import ForwarderError
from forwarder.core.host_port import join_host_port
from forwarder.management.error_body import (
    LARGEST_HEAD,
    ErrorDetails,
    is_web_page,
    presentable,
    read_error_body,
    web_page_title,
)
from forwarder.management.transport import TIMEOUT, ConnectionFailure, HttpReply

CONNECTION: Final = "connection_error"
ANSWER: Final = "answer_error"
LOOK_FIRST: Final = "It may have been done: check before you repeat it."
_SHOWN_ID: Final = 60


class ApiError(ForwarderError):
    """A call that failed. `hint` says what to do."""

    code = "management"

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        status: int | None = None,
        type: str = "",  # noqa: A002 - named as in the service's errors
        code: str = "",
        detail: str = "",
        field: str | None = None,
        retry_after: float | None = None,
        unsure: bool = False,
    ) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        """Of the answer; None if there is none, or nothing was sent."""
        self.type = type
        """As the service names it; `connection_error`, `answer_error` and `usage_error` are the
        client's own.
        """
        self.code = code
        self.detail = detail
        self.field = field
        """The field that is invalid, if the error is about one."""
        self.retry_after = retry_after
        """Seconds after which the service permits a retry, if it says so."""
        self.unsure = unsure
        """Whether the service may have done it."""


class InvalidCall(ApiError, ValueError):
    """The call is invalid: nothing was sent."""

    def __init__(self, message: str, *, hint: str = "", field: str | None = None) -> None:
        super().__init__(
            message, hint=hint, type="usage_error", code="invalid_call", detail=message, field=field
        )


@dataclass(frozen=True, slots=True)
class CallContext:
    """The call that an error is about."""

    endpoint: Endpoint[Any, Any]
    ids: Mapping[str, object]
    base: str
    secret: str = field(repr=False)

    @property
    def changes(self) -> bool:
        """Whether doing it changes something."""
        return self.endpoint.method is not Method.GET


def connection_error(
    context: CallContext, failure: ConnectionFailure, attempts: int = 1
) -> ApiError:
    """No response."""
    status = failure.status
    sent = failure.sent
    return _error(
        context,
        failure.words,
        failure.hint,
        CONNECTION,
        failure.code,
        attempts=attempts,
        status=status,
        unsure=sent,
    )


def timeout_error(context: CallContext, seconds: float, attempts: int, last: str) -> ApiError:
    """The time limit is exceeded. `last`: the result of the previous attempt."""
    words = f"no whole answer within {seconds:g} s" + (f" (before that: {last})" if last else "")
    hint = "Raise `timeout`, or check the service."
    return _error(context, words, hint, CONNECTION, TIMEOUT, attempts=attempts, unsure=True)


def status_error(context: CallContext, reply: HttpReply, attempts: int = 1) -> ApiError:
    """The service, or a proxy before it, answered with a status other than 2xx."""
    if 300 <= reply.status < 400:
        return _redirected(context, reply)
    details = read_error_body(reply, context.secret)
    where = f"{details.field}: " if details.field else ""
    unsure = context.changes and (reply.status >= 500 or reply.status == 408)
    hint = _hint(context, details, reply).strip()
    return ApiError(
        (
            f"{context.endpoint.name}: HTTP {reply.status} {details.code}: "
            f"{where}{details.detail}{_tries(attempts)}"
        ),
        hint=f"{LOOK_FIRST} {hint}" if unsure else hint,
        status=reply.status,
        type=details.type,
        code=details.code,
        detail=details.detail,
        field=details.field,
        retry_after=reply.retry_after,
        unsure=unsure,
    )


def unreadable_error(context: CallContext, reply: HttpReply, wanted: str) -> ApiError:
    """The service answered 2xx with an unexpected body."""
    if is_web_page(reply):
        title = presentable(web_page_title(reply), context.secret)
        words = f"a web page{f' ({title})' if title else ''} was answered, not {wanted}"
        hint = (
            "Check `url`: something else than the service answers there, such as a login page "
            "of the network or of a proxy."
        )
    elif not reply.body.strip():
        words = f"the answer is empty, where {wanted} is due"
        hint = "Check that `url` is the service's."
    else:
        head = reply.body[:LARGEST_HEAD].decode(errors="replace")
        start = presentable(head, context.secret)[:120]
        words = f"the answer isn't {wanted}: it begins {start!r}"
        hint = "Check that `url` is the service's, and its version."
    return _error(
        context,
        f"HTTP {reply.status}, but {words}",
        hint,
        ANSWER,
        "unreadable",
        status=reply.status,
        unsure=True,
    )


def _error(
    context: CallContext,
    words: str,
    hint: str,
    kind: str,
    code: str,
    *,
    unsure: bool,
    attempts: int = 1,
    status: int | None = None,
) -> ApiError:
    unsure = unsure and context.changes
    message = f"{context.endpoint.name}: {words}{_tries(attempts)}"
    full_hint = f"{LOOK_FIRST} {hint}" if unsure else hint
    return ApiError(
        message, hint=full_hint, status=status, type=kind, code=code, detail=words, unsure=unsure
    )


def _redirected(context: CallContext, reply: HttpReply) -> ApiError:
    place = _origin(reply.location)
    own = _origin(context.base)
    if not place:
        words = "the service redirects, and doesn't say where to"
        hint = "Check `url`."
    elif place == own:
        words = f"{place} redirects to another page of its own"
        hint = "Check `url`: the management API isn't there, or something wants a login before it."
    else:
        words = f"the service redirects to {place}"
        hint = f"Set `url` to {place} if you trust it: no key is sent after a redirect."
    return _error(
        context,
        f"HTTP {reply.status}, {words}",
        hint,
        ANSWER,
        "redirect",
        status=reply.status,
        unsure=False,
    )


def _origin(url: str) -> str:
    """Scheme, host and port of an address: the rest may be secret."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        port = parts.port
    except ValueError:
        return ""
    if parts.scheme not in {"http", "https"} or not host or not host.isprintable():
        return ""
    return f"{parts.scheme}://{join_host_port(host, port) if port else host}"


def _hint(context: CallContext, details: ErrorDetails, reply: HttpReply) -> str:
    """What to check after this status."""
    match reply.status:
        case 401:
            return (
                "Check the key: it must be a personal API key (phx_…) that this service "
                "knows, and that is still valid."
            )
        case 403:
            return _forbidden_hint(context, details)
        case 404:
            return _not_found_hint(context)
        case 407:
            return "The proxy wants a login: name user and password in `proxy`."
        case 429:
            return _retry_hint(reply) or "Send fewer requests."
        case 400 | 422 if details.field:
            return f"Correct `{details.field}`."
        case status if status >= 500 or status == 408:
            return f"{_retry_hint(reply)}If it persists, check the service."
    return ""


def _retry_hint(reply: HttpReply) -> str:
    return "" if reply.retry_after is None else f"Retry in {math.ceil(reply.retry_after)} s. "


def _forbidden_hint(context: CallContext, details: ErrorDetails) -> str:
    scope = context.endpoint.scope
    level = LEVELS.get(context.endpoint.level, str(context.endpoint.level))
    if "scope" in details.detail.lower():
        return f"Give the key the scope {scope}."
    above = (
        "; members can't invite or change members above their level"
        if context.endpoint.resource in {"members", "invites"}
        else ""
    )
    return f"It takes the scope {scope}, and membership of at least the level {level!r}{above}."


def _not_found_hint(context: CallContext) -> str:
    ids = ", ".join(f"{name} {_short_text(value)}" for name, value in context.ids.items())
    return f"Check {ids}: what is in another organization or project isn't found either."


def _short_text(value: object) -> str:
    text = str(value)
    return text if len(text) <= _SHOWN_ID else f"{text[:_SHOWN_ID]}…"


def _tries(attempts: int) -> str:
    return f" ({attempts} attempts)" if attempts > 1 else ""
