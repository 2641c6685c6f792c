"""Secrets of a batch export's destination: kept, never shown, and preserved when a change leaves
them out.

A value of `config` is secret by its name, at any depth: known for the type of destination, or
recognizable by itself. It is not shown at all. In a URL only the password (a user without one) and
the secrets of its query are masked. A client that sends back the config as it was shown keeps
every secret, and so does one that sends a mask. In a list, elements that are equal but for their
secrets keep them. A change of the destination's type keeps nothing.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

_NAMED: Final[Mapping[str, frozenset[str]]] = {
    "bigquery": frozenset({"private_key", "private_key_id", "client_email", "token_uri"}),
    "databricks": frozenset({"client_id", "client_secret"}),
    "http": frozenset({"token"}),
    "postgres": frozenset({"user", "password"}),
    "redshift": frozenset({"user", "password"}),
    "s3": frozenset({"aws_access_key_id", "aws_secret_access_key"}),
    "snowflake": frozenset({"user", "password", "private_key", "private_key_passphrase"}),
}
"""By the type of destination, in lower case."""
_TELLING: Final = re.compile(
    r"secret|passw|passphrase|pwd|token|(private|access|account|api|shared)key|"
    r"connectionstring|credential|authorization"
).search
_PASSWORD: Final = re.compile(r"(://[^/\s@:]*:)[^/\s]+@")
_ONLY_USER: Final = re.compile(r"(://)[^/\s@:?#]+:?@")
"""A key in the place of the user."""
_QUERY: Final = re.compile(r"([?&]([^=&#\s]+)=)[^&#\s]+")
_IN_QUERIES: Final = frozenset({"key", "sig", "signature", "auth"})
"""Secrets of URLs, beside those whose names say it."""
_MASK: Final = re.compile(
    r"[*\u2022\u25cf\u2026]+|<masked>|\[?redacted\]?", re.IGNORECASE
).fullmatch


def without_secrets(destination: Mapping[str, Any]) -> dict[str, Any]:
    """A destination as it may be shown."""
    return {**destination, "config": _without_secrets(destination["type"], destination["config"])}


def change_destination(old: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """A destination after a change of it, secrets included."""
    config_before = (
        old["config"] if _normalized(old["type"]) == _normalized(change["type"]) else None
    )
    config = (
        _Merging(change["type"]).merged(config_before, change["config"])
        if "config" in change
        else config_before
    )
    return {"type": change["type"], "config": config}


class _Merging:
    """Gives a new config the secrets of an old one. Each value is looked at
    once, however deep it lies.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._numbers: dict[Hashable, int] = {}
        self._known: dict[int, int] = {}

    def merged(self, old: Any, new: Any) -> Any:
        """The new value with secrets. Both must live on meanwhile, for they
        are known by their `id`.
        """
        if isinstance(new, dict):
            return self._object(old if isinstance(old, dict) else {}, new)
        if isinstance(new, list):
            return self._list(old if isinstance(old, list) else [], new)
        return old if isinstance(old, str) and _without_secrets(self._kind, old) == new else new

    def _object(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
        secrets = {name: value for name, value in old.items() if _is_secret(self._kind, name)}
        secrets |= {
            name: value
            for name, value in new.items()
            if _is_secret(self._kind, name) and not _is_mask(value)
        }
        others = {
            name: self.merged(old.get(name), value)
            for name, value in new.items()
            if not _is_secret(self._kind, name)
        }
        return others | secrets

    def _list(self, old: Sequence[Any], new: Sequence[Any]) -> list[Any]:
        before: defaultdict[int, deque[Any]] = defaultdict(deque)
        for value in old:
            before[self._likeness(value)].append(value)
        same = (before[self._likeness(value)] for value in new)
        return [
            self.merged(values.popleft() if values else None, value)
            for value, values in zip(new, same, strict=True)
        ]

    def _likeness(self, value: Any) -> int:
        """A number that is the same for values that are shown alike."""
        if not isinstance(value, list | dict):
            return self._number((type(value), _without_secrets(self._kind, value)))
        if id(value) not in self._known:
            self._known[id(value)] = self._number((type(value), self._form(value)))
        return self._known[id(value)]

    def _form(self, value: list[Any] | dict[str, Any]) -> Hashable:
        if isinstance(value, list):
            return tuple(self._likeness(item) for item in value)
        return frozenset(
            (name, self._likeness(item))
            for name, item in value.items()
            if not _is_secret(self._kind, name)
        )

    def _number(self, form: Hashable) -> int:
        return self._numbers.setdefault(form, len(self._numbers))


@lru_cache(maxsize=1_000)
def _is_secret(kind: str, name: str) -> bool:
    telling = _TELLING(re.sub(r"[^a-z]", "", name.lower())) is not None
    return telling or name.lower() in _NAMED.get(_normalized(kind), frozenset())


def _without_secrets(kind: str, value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: _without_secrets(kind, item)
            for name, item in value.items()
            if not _is_secret(kind, name)
        }
    if isinstance(value, list):
        return [_without_secrets(kind, item) for item in value]
    return _masked(kind, value) if isinstance(value, str) and "://" in value else value


def _masked(kind: str, url: str) -> str:
    def mask(match: re.Match[str]) -> str:
        return (
            f"{match[1]}***"
            if match[2].lower() in _IN_QUERIES or _is_secret(kind, match[2])
            else match[0]
        )

    return _QUERY.sub(mask, _ONLY_USER.sub(r"\1***@", _PASSWORD.sub(r"\1***@", url)))


def _is_mask(value: object) -> bool:
    return isinstance(value, str) and _MASK(value) is not None


def _normalized(kind: str) -> str:
    return kind.strip().lower()
