"""Errors and pages as the management API answers them (wire facts: "Management API, where the contract says not shown")."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Generic, TypeVar

from typing_extensions import TypedDict

T = TypeVar("T")

PAGE_SIZE: Final = 100
"""Items of a page unless `limit` says otherwise."""
LARGEST_PAGE: Final = 10_000
"""What `limit` can ask for at most (gap `page-size`)."""


class ErrorType(StrEnum):
    """`type` of an error."""

    AUTHENTICATION = "authentication_error"
    VALIDATION = "validation_error"
    INVALID_REQUEST = "invalid_request"
    THROTTLED = "throttled_error"
    SERVER = "server_error"


class ErrorBody(TypedDict):
    """The body of every answer from 400 on; `attr` names the field, if it is about one."""

    type: str
    code: str
    detail: str
    attr: str | None


class Envelope(TypedDict, Generic[T]):
    """One page of a list; `next` and `previous` are absolute URLs."""

    count: int
    next: str | None
    previous: str | None
    results: list[T]
