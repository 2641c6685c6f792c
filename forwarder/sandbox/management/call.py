"""One call of an endpoint, and what comes of it: what the dispatcher hands to the module of a resource, and gets back."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol, TypeAlias

from forwarder.contract.endpoints import Endpoint
from forwarder.contract.errors import ErrorType


class ManagementError(Exception):
    """The answer is an error: its status and its body."""

    def __init__(self, status: int, kind: ErrorType, code: str, detail: str, attr: str | None = None) -> None:
        super().__init__(detail)
        self.status, self.kind, self.code, self.detail, self.attr = status, kind, code, detail, attr


def not_authenticated() -> ManagementError:
    """There is no key."""
    return ManagementError(401, ErrorType.AUTHENTICATION, "not_authenticated", "Authentication credentials were not provided.")


def authentication_failed() -> ManagementError:
    """The key is nobody's."""
    return ManagementError(401, ErrorType.AUTHENTICATION, "authentication_failed", "Incorrect authentication credentials.")


def not_found() -> ManagementError:
    """There is no such thing, or not for this caller."""
    return ManagementError(404, ErrorType.INVALID_REQUEST, "not_found", "Not found.")


def forbidden(detail: str) -> ManagementError:
    """The caller may not."""
    return ManagementError(403, ErrorType.AUTHENTICATION, "permission_denied", detail)


def invalid(attr: str | None, detail: str, code: str = "invalid_input") -> ManagementError:
    """A field of the body, or the state that it meets, doesn't allow it."""
    return ManagementError(400, ErrorType.VALIDATION, code, detail, attr)


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose key it is, in the organization that is called."""

    user: int
    uuid: str
    level: int


@dataclass(frozen=True, slots=True)
class Bounds:
    """Which page of a list is asked for."""

    limit: int
    offset: int


@dataclass(frozen=True, slots=True)
class Listing:
    """A page of a list: how many items there are in all, and those of this page as they are answered."""

    count: int
    items: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Call:
    """A call that has been let in: key, scope, membership, level and body are checked.

    For an endpoint of an environment the project exists, and `organization` is its. Other ids are only well-formed: whether
    there is such a thing in this organization or project is for the resource's module to say.
    """

    endpoint: Endpoint[Any, Any]
    database: sqlite3.Connection
    now: datetime
    caller: Caller
    organization: str
    project: int | None = None
    ids: Mapping[str, str] = field(default_factory=dict)
    """The ids of the path by their names, as text: UUIDs in lower case with hyphens, numbers without leading zeros."""
    body: Any = None
    """The accepted fields that were sent, as `endpoint.request` has them; where `endpoint.several`, a list of such, or
    of one that came by itself a tuple."""
    page: Bounds = Bounds(100, 0)
    strict: bool = False


Result: TypeAlias = Mapping[str, Any] | Listing | None
Handler: TypeAlias = Callable[[Call], Result]
"""Does its work in the transaction of the store's thread; raises `ManagementError`, which undoes it. A mapping is answered as the body, and
None as no body; so what only the real service answers is returned only if `call.strict`."""

Run: TypeAlias = Callable[[Handler], Awaitable[Any]]
"""Lets a handler run on the store's thread, with everything about the call checked again, and returns what it returns."""
AsyncHandler: TypeAlias = Callable[[Run], Awaitable[Result]]


class Resolver(Protocol):
    """Looks up what the DNS says about a domain."""

    async def texts(self, name: str) -> Sequence[str]:
        """The TXT records of a name; none if there are none or they can't be had. Cancellation ends the look-up."""
