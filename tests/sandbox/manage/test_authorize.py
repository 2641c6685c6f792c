"""Personal keys: whose, and good for what."""

from __future__ import annotations

import sqlite3

import pytest

from forwarder.contract.endpoints import KeyScope
from forwarder.sandbox.manage.authorize import authenticate, check_scope, key_digest
from forwarder.sandbox.protocol.http import ManagementError
from tests.sandbox.half import ManagementTables
from tests.support.cases import cases


def good(scopes: set[str], needed: KeyScope) -> bool:
    """Whether scopes are enough."""
    try:
        check_scope(frozenset(scopes), needed)
    except ManagementError as error:
        return (error.status, error.code, error.detail) != (
            403,
            "permission_denied",
            f"API key missing required scope '{needed}'",
        )
    return True


@cases("needed", list(KeyScope))
def test_scopes(needed: KeyScope) -> None:
    """A scope is good for itself, to write for to read as well, `*` for everything; nothing else
    is good for anything.
    """
    enough = {"*", str(needed), str(needed).replace(":read", ":write")}
    every = {
        "*",
        *(f"{scope.split(':')[0]}:{verb}" for scope in KeyScope for verb in ("read", "write")),
        "organization",
        "",
        ":write",
        "write",
    }
    assert {scope for scope in every if good({scope}, needed)} == enough
    assert good(every, needed)
    assert not good(every - enough, needed)
    assert not good(set(), needed)


def test_a_key_belongs_to_a_user(half: ManagementTables) -> None:
    """Of a key only a digest is kept, which finds whose it is and what for."""
    half.database.execute(
        "INSERT INTO personal_keys VALUES (NULL, ?, ?, '', '[\"project:read\"]', '')",
        (key_digest("phx_mine"), half.owner.user),
    )
    assert authenticate(half.database, "Bearer phx_mine") == (
        half.owner.user,
        frozenset({"project:read"}),
    )
    assert b"phx_mine" not in half.database.serialize()
    for other in (
        "Bearer phx_min",
        "Bearer PHX_MINE",
        f"Bearer {key_digest('phx_mine')}",
        "Bearer \udcff\udcfe",
        "Bearer \0",
    ):
        assert refused(half.database, other) == "authentication_failed"
    for nothing in ("", "Bearer", "phx_mine", "Token phx_mine", "Bearerphx_mine"):
        assert refused(half.database, nothing) == "not_authenticated"


def refused(database: sqlite3.Connection, authorization: str) -> str:
    """The code of the 401."""
    with pytest.raises(ManagementError) as raised:
        authenticate(database, authorization)
    assert raised.value.status == 401
    return raised.value.code
