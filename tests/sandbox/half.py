"""A management half in memory, whose handlers are called as the dispatcher calls them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import uuid4

import pytest
from pydantic import TypeAdapter

from forwarder.contract.endpoints import Endpoint
from forwarder.contract.resources import OWNER
from forwarder.sandbox.app import HANDLERS
from forwarder.sandbox.manage.call import (
    CallingMember,
    Handler,
    Listing,
    ManagementCall,
    PageBounds,
    Result,
)
from forwarder.sandbox.protocol.http import ManagementError
from forwarder.sandbox.protocol.times import format_time
from forwarder.sandbox.store.schema import prepare
from tests.support.clock import MIDNIGHT

FIRST: Final = PageBounds(100, 0)
"""The page that is answered unless another is asked for."""
_USER: Final = "INSERT INTO users VALUES (NULL, ?, ?, '', '', ?, 0, '{}', '', 1, 0, NULL)"
_EXPORT: Final = (
    "INSERT INTO batch_exports VALUES (NULL, ?, ?, 'All', 'events', ?, 'hour', 0, ?, ?, NULL, "
    "NULL, NULL, '', 'null', 'null')"
)
_REQUEST: Final = """
    INSERT INTO requests (
        received_at, path, query, headers, api_key, historical_migration, size, status, answer,
        events, duplicates, conflicts, not_ingested
    ) VALUES (?, '/batch/', '', '{}', ?, 0, 0, 200, '', 1, 0, 0, 0)
"""
_EVENT: Final = """
    INSERT INTO events (
        request, position, kind, api_key, historical, uuid, event, distinct_id, timestamp,
        properties, raw
    ) SELECT max(id), 0, 'new', ?, 0, ?, 'seen', 'ann', ?, '{}', x'' FROM requests
"""
_PROJECT: Final = "INSERT INTO projects VALUES (NULL, ?, ?, ?, '', '', '', '{}')"


@dataclass(frozen=True, slots=True)
class MemberOfHome:
    """A user in an organization."""

    user: int
    uuid: str
    organization: str


class ManagementTables:
    """The tables, and what puts things into them that no endpoint makes."""

    def __init__(self) -> None:
        self.database = sqlite3.connect(":memory:", isolation_level=None)
        prepare(self.database, None)
        self.now = datetime.fromtimestamp(MIDNIGHT, UTC)
        self.home = self.organization()
        self.owner = self.member("owner@example.com")

    def organization(self) -> str:
        """One more organization."""
        identity = str(uuid4())
        self.database.execute(
            "INSERT INTO organizations VALUES (NULL, ?, 'Example', '')", (identity,)
        )
        return identity

    def member(
        self, email: str, level: int = OWNER, organization: str | None = None
    ) -> MemberOfHome:
        """A new user in an organization, `home` by default."""
        place = organization or self.home
        uuid = str(uuid4())
        user = self.database.execute(_USER, (uuid, uuid, email)).lastrowid
        assert user is not None
        now = format_time(self.now)
        self.database.execute(
            "INSERT INTO members VALUES (NULL, ?, ?, ?, ?, ?, ?)",
            (str(uuid4()), place, user, level, now, now),
        )
        return MemberOfHome(user, uuid, place)

    def project(self, organization: str | None = None) -> int:
        """A new project."""
        number = self.database.execute(
            _PROJECT, (str(uuid4()), organization or self.home, str(uuid4()))
        ).lastrowid
        assert number is not None
        return number

    def export(self, project: int, destination: str = '{"type": "NoOp", "config": null}') -> str:
        """A new batch export."""
        identity = str(uuid4())
        now = format_time(self.now)
        self.database.execute(_EXPORT, (identity, project, destination, now, now))
        return identity

    def event(self, project: int, time: str) -> None:
        """An event of a project at a time."""
        ((api_key,),) = self.database.execute(
            "SELECT api_token FROM projects WHERE id = ?", (project,)
        )
        self.database.execute(_REQUEST, (format_time(self.now), api_key))
        self.database.execute(_EVENT, (api_key, str(uuid4()), time))

    def later(self, **by: float) -> None:
        """Turn the clock."""
        self.now += timedelta(**by)

    def call(
        self,
        endpoint: Endpoint[Any, Any],
        body: Any = None,
        *,
        by: MemberOfHome | None = None,
        project: int | None = None,
        page: PageBounds = FIRST,
        strict: bool = False,
        handler: Handler | None = None,
        **ids: str,
    ) -> Result:
        """What an endpoint answers to someone (the owner), in a transaction of its own. The body
        must be one that is accepted.
        """
        somebody = by or self.owner
        (level,) = self.database.execute(
            "SELECT level FROM members WHERE user = ? AND organization = ?",
            (somebody.user, somebody.organization),
        ).fetchone()
        caller = CallingMember(somebody.user, somebody.uuid, level)
        fields = _accepted(endpoint, {} if body is None else body)
        made = ManagementCall(
            endpoint,
            self.database,
            self.now,
            caller,
            somebody.organization,
            project,
            ids,
            fields,
            page,
            strict,
        )
        with self._transaction():
            return (handler or HANDLERS[endpoint])(made)

    def answer(self, endpoint: Endpoint[Any, Any], body: Any = None, **rest: Any) -> dict[str, Any]:
        """An answer that is a resource of the endpoint's type."""
        result = self.call(endpoint, body, **rest)
        TypeAdapter(endpoint.response).validate_python(result, strict=True)
        assert isinstance(result, dict)
        return result

    def items(self, endpoint: Endpoint[Any, Any], **rest: Any) -> list[dict[str, Any]]:
        """The items of a page, each of the endpoint's type."""
        result = self.call(endpoint, **rest)
        assert isinstance(result, Listing)
        # The endpoint's response is a type that only exists at run time.
        adapter = TypeAdapter(list[endpoint.response])  # type: ignore[name-defined]
        adapter.validate_python(result.items, strict=True)
        return [dict(item) for item in result.items]

    def error(
        self, endpoint: Endpoint[Any, Any], body: Any = None, **rest: Any
    ) -> tuple[int, str, str | None]:
        """Status, code and field of the error that is answered."""
        before = self.database.serialize()
        with pytest.raises(ManagementError) as raised:
            self.call(endpoint, body, **rest)
        assert self.database.serialize() == before
        return raised.value.status, raised.value.code, raised.value.attr

    def outcome(self, endpoint: Endpoint[Any, Any], body: Any = None, **rest: Any) -> Any:
        """An answer, or the error instead."""
        try:
            return self.call(endpoint, body, **rest)
        except ManagementError as error:
            return error

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self.database.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self.database.execute("ROLLBACK")
            raise
        self.database.execute("COMMIT")


@contextmanager
def opened() -> Iterator[ManagementTables]:
    """A half of its own, closed at the end."""
    half = ManagementTables()
    try:
        yield half
    finally:
        half.database.close()


def _accepted(endpoint: Endpoint[Any, Any], body: Any) -> Any:
    if not endpoint.takes_body:
        return None
    adapter: TypeAdapter[Any] = TypeAdapter(endpoint.request)
    if endpoint.several:
        alone = not isinstance(body, list)
        fields = [
            adapter.validate_python(entry, strict=True) for entry in ([body] if alone else body)
        ]
        return tuple(fields) if alone else fields
    return adapter.validate_python(body, strict=True)
