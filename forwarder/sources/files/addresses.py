"""Addresses of object stores as they are typed: what isn't one is rejected, and credentials in it are never repeated.

A secret in an address would stand in messages, checkpoints, reports and dead letters, so an address that holds one is never used.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Final

from forwarder.core.errors import ConfigurationError

SCHEMES: Final = ("s3://", "s3a://", "gs://", "az://", "azure://", "abfs://", "abfss://")
_WITH_CONTAINER: Final = ("abfs://", "abfss://")
"""`abfss://container@account…`: what stands before the @ is no secret."""

_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_PAIR: Final = re.compile(r"(.*?)[^/\s]*:.*@", re.DOTALL)
"""Text, then `user:password@`; passwords may have slashes in them."""

_USER: Final = re.compile(r"()[^/\s]*@")
"""Behind `://` a user alone is hidden, too."""

_HINT: Final = (
    "Write s3://bucket/path, gs://bucket/path or az://container/path. Credentials come from the environment or the store's own tools "
    "(AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY …)."
)


def redact(path: str) -> str:
    """A path or an address as it may be shown: without what looks like user and password."""
    if "@" not in path or path.startswith(_WITH_CONTAINER):
        return path
    scheme, separator, rest = path.partition("://")
    return f"{scheme}://{_hidden(rest)}" if separator else _PAIR.sub(r"\1…@", path, count=1)


def _hidden(rest: str) -> str:
    found = _PAIR.match(rest) or _USER.match(rest)
    return rest if found is None else f"{found[1]}…@{rest[found.end() :]}"


def check_addresses(paths: Iterable[str]) -> None:
    """Raises `ConfigurationError` for an address that holds credentials, or that is none of a store and no file either."""
    for path in paths:
        if path.startswith(SCHEMES):
            _check_bucket(path)
        elif _URL.match(path) and not os.path.lexists(path.partition("/")[0]):
            raise ConfigurationError(f"{redact(path)}: it is not the address of an object store that can be read", hint=_HINT)


def _check_bucket(url: str) -> None:
    scheme, _, rest = url.partition("://")
    bucket = rest.partition("/")[0]
    if ":" in bucket or ("@" in bucket and f"{scheme}://" not in _WITH_CONTAINER):
        shown = f"{scheme}://{_hidden(rest)}" if "@" in rest else f"{scheme}://…"
        raise ConfigurationError(f"{shown}: the address holds credentials, or a port", hint=_HINT)
