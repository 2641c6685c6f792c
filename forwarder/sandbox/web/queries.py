"""What the sandbox holds, for tests and people: `/sandbox/events`, `requests`, `conflicts`,
`persons`, `groups`, `warnings`, `imports` and `summary`; and of the management API
`/sandbox/organizations` and so on (`management_view`).

Listings are `{count, results}` in the order of arrival, or the newest first with `order=newest`,
with `limit` (default 100, at most 10,000) and `offset`; a value that is not a number is ignored.
Project keys are shown masked and filtered in full. An event's properties are shown with the text
that was sent.

A page of another site cannot delete what the sandbox holds through a browser that has the sandbox
open (`forwarder.pages.hosts`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, fields
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeAlias

from aiohttp import web

from forwarder.core.secrets import mask_secrets
from forwarder.pages.hosts import reject_other_sites
from forwarder.sandbox.ingest.parsing import parse_uuid
from forwarder.sandbox.protocol.http import masked_key
from forwarder.sandbox.protocol.times import format_time, parse_time
from forwarder.sandbox.store.aggregates import (
    FlagUse,
    ImportedEventKey,
    StoredImport,
    SurveyUse,
    flag_calls,
    imported,
    imports,
    surveys,
)
from forwarder.sandbox.store.effects import StoredGroup
from forwarder.sandbox.store.persons import StoredPerson, StoredWarning
from forwarder.sandbox.store.stored_records import (
    LIMIT,
    MAXIMUM_LIMIT,
    EventFilter,
    GroupFilter,
    ImportFilter,
    ListingPage,
    PersonFilter,
    RequestFilter,
    StoredConflict,
    StoredEvent,
    StoredRequest,
    WarningFilter,
)
from forwarder.sandbox.store.thread import StoreThread
from forwarder.sandbox.web.management_view import MANAGEMENT_LISTINGS, list_management


class QueryEndpoints:
    """The endpoints that show what is kept. `now` is wall-clock time in seconds."""

    def __init__(self, thread: StoreThread, now: Callable[[], float] = time.time) -> None:
        self._thread = thread
        self._now = now

    def routes(self) -> list[web.AbstractRouteDef]:
        """The endpoints, for an application."""
        listings: dict[str, Callable[[web.Request], Awaitable[web.StreamResponse]]] = {
            "events": self.events,
            "requests": self.requests,
            "conflicts": self.conflicts,
            "persons": self.persons,
            "persons/{person}": self.person,
            "groups": self.groups,
            "warnings": self.warnings,
            "surveys": self.surveys,
            "flag-calls": self.flag_calls,
            "imports": self.imports,
            "import-events": self.import_events,
            "summary": self.summary,
            **{name: partial(self.managed, name) for name in MANAGEMENT_LISTINGS},
        }
        shown: list[web.AbstractRouteDef] = [
            web.get(f"/sandbox/{name}", list_management)
            for name, list_management in listings.items()
        ]
        return [*shown, web.delete("/sandbox/events", self.clear)]

    async def events(self, request: web.Request) -> web.Response:
        """GET /sandbox/events: distinct events, or with `arrivals=true` each arrival."""
        wanted = event_filter(request)
        page = listing_page(request)
        count, stored_events = await self._thread.ask(lambda store: store.events(wanted, page))
        return listing(count, [show_event(event) for event in stored_events])

    async def requests(self, request: web.Request) -> web.Response:
        """GET /sandbox/requests: every request of the ingestion endpoints with its answer, and
        what of it was not ingested.
        """
        query = request.query
        wanted = RequestFilter(query.get("path"), _integer(request, "status"), query.get("api_key"))
        page = listing_page(request)
        count, stored_requests = await self._thread.run(lambda store: store.requests(wanted, page))
        return listing(count, [show_request(stored) for stored in stored_requests])

    async def conflicts(self, request: web.Request) -> web.Response:
        """GET /sandbox/conflicts: uuids that came again with other bytes."""
        page = listing_page(request)
        count, stored_conflicts = await self._thread.ask(lambda store: store.conflicts(page))
        return listing(count, [_show_conflict(conflict) for conflict in stored_conflicts])

    async def persons(self, request: web.Request) -> web.Response:
        """GET /sandbox/persons: who the events made, with what they set."""
        wanted = PersonFilter(*_texts(request, "api_key", "distinct_id", "person"))
        page = listing_page(request)
        count, stored_persons = await self._thread.ask(lambda store: store.persons(wanted, page))
        return listing(count, [_show(person) for person in stored_persons])

    async def person(self, request: web.Request) -> web.Response:
        """GET /sandbox/persons/{person}: one, with where each property comes from, its merges, its
        groups and the warnings about its events; 404 if there is none of that id.
        """
        uuid = request.match_info["person"]
        stored_person = await self._thread.ask(lambda store: store.person(uuid))
        if stored_person is None:
            raise web.HTTPNotFound(text="no person has this id\n")
        shown = {
            **_fields(stored_person),
            "warnings": [_masked(one) for one in stored_person.warnings],
        }
        shown["person"] = _masked(stored_person.person)
        return web.json_response(text=json.dumps(shown, default=_fields))

    async def groups(self, request: web.Request) -> web.Response:
        """GET /sandbox/groups: the groups that `$groupidentify` made, with what it set."""
        wanted = GroupFilter(*_texts(request, "api_key", "group_type", "group_key"))
        page = listing_page(request)
        count, stored_groups = await self._thread.ask(lambda store: store.groups(wanted, page))
        return listing(count, [_show(group) for group in stored_groups])

    async def warnings(self, request: web.Request) -> web.Response:
        """GET /sandbox/warnings: what the service warns about, of events that it accepted."""
        names = ("type", "person", "distinct_id", "uuid", "api_key")
        wanted = WarningFilter(*_texts(request, *names))
        page = listing_page(request)
        count, stored_warnings = await self._thread.ask(lambda store: store.warnings(wanted, page))
        return listing(count, [_show(warning) for warning in stored_warnings])

    async def surveys(self, request: web.Request) -> web.Response:
        """GET /sandbox/surveys: how often each was shown, dismissed and answered, and how."""
        uses = await self._thread.ask(lambda store: surveys(store, request.query.get("api_key")))
        return listing(len(uses), [_show(use) for use in listing_page(request).slice_of(uses)])

    async def flag_calls(self, request: web.Request) -> web.Response:
        """GET /sandbox/flag-calls: how often each flag was checked, and with which response."""
        uses = await self._thread.ask(lambda store: flag_calls(store, request.query.get("api_key")))
        return listing(len(uses), [_show(use) for use in listing_page(request).slice_of(uses)])

    async def imports(self, request: web.Request) -> web.Response:
        """GET /sandbox/imports: what came of each import, by UTC day."""
        wanted = _import_filter(request)
        page = listing_page(request)
        count, stored_imports = await self._thread.run(lambda store: imports(store, wanted, page))
        return listing(count, [_show(one) for one in stored_imports])

    async def import_events(self, request: web.Request) -> web.Response:
        """GET /sandbox/import-events: times and uuids of an import's events; `next` is what the
        next page is `after`.
        """
        wanted = _import_filter(request)
        limit = listing_page(request).limit or 0
        time, _, uuid = request.query.get("after", "").partition("_")
        import_rows = await self._thread.run(
            lambda store: imported(store, wanted, ImportedEventKey(time, uuid), limit)
        )
        following = (
            f"{import_rows[-1].timestamp}_{import_rows[-1].uuid}"
            if import_rows and len(import_rows) == limit
            else None
        )
        return web.json_response(
            {"next": following, "results": [_fields(one) for one in import_rows]}
        )

    async def managed(self, name: str, request: web.Request) -> web.Response:
        """GET /sandbox/organizations and the other listings of the management half."""
        page = listing_page(request)
        now = datetime.fromtimestamp(self._now(), UTC)
        count, rows = await self._thread.run(
            lambda store: list_management(store.connection, name, request.query, page, now)
        )
        return listing(count, [json.dumps(row) for row in rows])

    async def summary(self, _request: web.Request) -> web.Response:
        """GET /sandbox/summary: the figures."""
        return web.json_response(asdict(await self._thread.ask(lambda store: store.summary())))

    async def clear(self, request: web.Request) -> web.Response:
        """DELETE /sandbox/events: forget everything. Not for pages of other sites."""
        reject_other_sites(request)
        await self._thread.run(lambda store: store.clear())
        return web.Response(status=204)


def show_event(event: StoredEvent) -> str:
    """An event as JSON. Its properties are inserted as they were sent, so that numbers and
    repeated keys do not change.
    """
    shown = asdict(event)
    properties = shown.pop("properties")
    of_person = shown.pop("person_properties") or "null"
    shown["raw"] = event.raw.decode()
    shown["api_key"] = masked_key(event.api_key)
    shown["groups"] = event.groups
    shown["timestamp_note"] = event.timestamp_note
    return (
        f'{json.dumps(shown)[:-1]}, "person_properties": {of_person}, "properties": {properties}}}'
    )


def show_request(stored: StoredRequest) -> str:
    """A request as JSON."""
    shown: dict[str, Any] = asdict(stored)
    shown["api_key"] = masked_key(stored.api_key)
    for part in ("path", "query", "answer"):
        text = (
            shown[part]
            if stored.api_key is None
            else shown[part].replace(stored.api_key, masked_key(stored.api_key) or "")
        )
        shown[part] = mask_secrets(text)
    shown["not_ingested"] = [
        {"index": it.position, "reason": it.reason, "raw": it.raw.decode()}
        for it in stored.not_ingested
    ]
    return json.dumps(shown)


_WithKey: TypeAlias = (
    StoredPerson | StoredGroup | StoredWarning | SurveyUse | FlagUse | StoredImport
)


def _show(stored: _WithKey) -> str:
    return json.dumps(_masked(stored), default=_fields)


def _masked(stored: _WithKey) -> dict[str, Any]:
    return {**_fields(stored), "api_key": masked_key(stored.api_key)}


def _fields(record: Any) -> dict[str, Any]:
    """The fields of a record, not copied: `asdict` copies values recursively, and fails at a
    nesting that JSON allows.
    """
    return {one.name: getattr(record, one.name) for one in fields(record)}


def _show_conflict(conflict: StoredConflict) -> str:
    first = show_event(conflict.first)
    second = show_event(conflict.second)
    return f'{{"uuid": {json.dumps(conflict.second.uuid)}, "first": {first}, "second": {second}}}'


def listing(count: int, results: list[str]) -> web.Response:
    return web.Response(
        text=f'{{"count": {count}, "results": [{", ".join(results)}]}}',
        content_type="application/json",
    )


def event_filter(request: web.Request) -> EventFilter:
    query = request.query
    uuid = query.get("uuid")
    return EventFilter(
        event=query.get("event"),
        distinct_id=query.get("distinct_id"),
        uuid=None if uuid is None else parse_uuid(uuid) or uuid,
        api_key=query.get("api_key"),
        since=_time(request, "since"),
        until=_time(request, "until"),
        historical=_flag(request, "historical"),
        request=_integer(request, "request"),
        import_job=query.get("import"),
        arrivals=_flag(request, "arrivals") or False,
        person=query.get("person"),
        group_type=query.get("group_type"),
        group_key=query.get("group_key"),
        feature=query.get("feature"),
        survey_id=query.get("survey_id"),
        text=query.get("q") or None,
    )


def _import_filter(request: web.Request) -> ImportFilter:
    return ImportFilter(*_texts(request, "import", "api_key"))


def listing_page(request: web.Request) -> ListingPage:
    limit = _integer(request, "limit")
    offset = _integer(request, "offset")
    newest_first = request.query.get("order") == "newest"
    return ListingPage(
        LIMIT if limit is None else min(limit, MAXIMUM_LIMIT), offset or 0, newest_first
    )


def _texts(request: web.Request, *names: str) -> list[str | None]:
    return [request.query.get(name) for name in names]


def _integer(request: web.Request, name: str) -> int | None:
    text = request.query.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 15 else None


def _flag(request: web.Request, name: str) -> bool | None:
    return {"true": True, "1": True, "false": False, "0": False}.get(
        request.query.get(name, "").lower()
    )


def _time(request: web.Request, name: str) -> str | None:
    text = request.query.get(name)
    if text is None:
        return None
    time: datetime | None = parse_time(text.replace(" ", "+") if "T" in text else text)
    if time is None:
        raise web.HTTPBadRequest(text=f"{name} is not an ISO 8601 time")
    return format_time(time)
