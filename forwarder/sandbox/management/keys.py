"""Personal API keys: who calls, and what the key is good for. Only a key's digest is kept, so that no file of the sandbox tells a key."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from typing import Final

from forwarder.contract.endpoints import Scope
from forwarder.sandbox.management.call import authentication_failed, forbidden, not_authenticated

EVERYTHING: Final = "*"
"""The scope that is every scope."""
_WRITE: Final = ":write"


def digest(key: str) -> str:
    """What is kept of a key. A key that isn't even text of characters has one too, nobody's."""
    return hashlib.sha256(key.encode(errors="surrogateescape")).hexdigest()


def authenticated(database: sqlite3.Connection, authorization: str) -> tuple[int, frozenset[str]]:
    """The user whose key an Authorization header carries, and the key's scopes. Raises `ManagementError` (401)."""
    scheme, _, key = authorization.strip().partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        raise not_authenticated()
    row = database.execute("SELECT user, scopes FROM personal_keys WHERE digest = ?", (digest(key.strip()),)).fetchone()
    if row is None:
        raise authentication_failed()
    return int(row[0]), frozenset(json.loads(row[1]))


def check_scope(scopes: frozenset[str], needed: Scope) -> None:
    """Raise `ManagementError` (403) unless one of the scopes is the needed one or implies it: to write implies to read."""
    name = str(needed)
    implied_by = name.removesuffix(":read") + _WRITE
    if scopes.isdisjoint({EVERYTHING, name, implied_by}):
        raise forbidden(f"API key missing required scope '{name}'")
