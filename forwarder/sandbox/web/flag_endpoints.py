"""Flags and cohorts for tests and people: to list, show, set, change and delete them, and who gets
what and why.

`PUT /sandbox/flags/{key}?api_key=phc_…` sets a flag in the service's own form,
`/sandbox/cohorts/{id}` a cohort, `/sandbox/group-types` the names of the types of groups
(`["company", …]`: a flag's `aggregation_group_type_index` counts them). A cohort with
`distinct_ids` is static and has these persons. An invalid definition is 400, with the place of the
fault in `attr`, in the management API's form of errors; so is one with a member that the service's
form doesn't have (`contract.flag_form`).

`PATCH /sandbox/flags?id=N` changes `active`, or `rollout_percentage` of every condition (with
`condition`, an index, of one).

What changes something is refused to pages of other sites (`queries`).
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final, TypeVar, cast

from aiohttp import web
from typing_extensions import TypedDict

from forwarder.contract.resources import ErrorType
from forwarder.core.near_names import propose_name
from forwarder.pages.hosts import reject_other_sites
from forwarder.sandbox.flags.definitions import InvalidDefinition
from forwarder.sandbox.flags.evaluation import FlagResult
from forwarder.sandbox.flags.forms import show_flag
from forwarder.sandbox.flags.members import reject_unknown_members
from forwarder.sandbox.flags.stored import (
    DefinitionKey,
    DefinitionKind,
    StoredDefinition,
    definition_of_row,
    delete_definition,
    find_definition,
    list_definitions,
    name_group_types,
    put_definition,
)
from forwarder.sandbox.flags.subjects import FlagQuestion, decide
from forwarder.sandbox.ingest.recording import IngestPolicy
from forwarder.sandbox.ingest.validation import check_key
from forwarder.sandbox.manage.validation import fault_of
from forwarder.sandbox.protocol.http import (
    ManagementError,
    RequestRejected,
    answer_early,
    invalid,
    management_error_response,
    masked_key,
    not_found,
    read_body,
)
from forwarder.sandbox.store.aggregates import flag_calls
from forwarder.sandbox.store.database import Store
from forwarder.sandbox.store.thread import StoreThread
from forwarder.sandbox.web.queries import listing, listing_page

T = TypeVar("T")
LARGEST_DEFINITION: Final = 10_000_000
"""Bytes of a body, exclusive."""
_CHANGES: Final = ("active", "rollout_percentage", "condition")
_LARGEST_ID: Final = 10**15
_PROJECTS: Final = (
    "SELECT api_token, id, json_extract(settings, '$.name'), organization FROM projects"
)


class FlagRow(TypedDict):
    """A flag in the listing."""

    id: int
    project: int | None
    """Its project in the management API."""
    project_name: str | None
    api_key: str
    """Masked."""
    key: str
    name: str
    active: bool
    definition: dict[str, Any]
    calls: int
    """How often it was checked (`$feature_flag_called`)."""
    created_at: str
    updated_at: str


class CohortRow(TypedDict):
    """A cohort in the listing."""

    id: int
    api_key: str
    """Masked."""
    definition: dict[str, Any]


class DecisionReason(TypedDict):
    """Why a flag is what it is, in the service's words."""

    code: str
    condition_index: int | None
    description: str | None


class ConditionOutcome(TypedDict):
    """What one condition of a flag says by itself, whichever decided."""

    matched: bool
    why: str


class FlagDecision(TypedDict):
    """What a person gets of a flag, and why."""

    id: int
    key: str
    name: str
    active: bool
    enabled: bool
    variant: str | None
    payload: str | None
    reason: DecisionReason
    conditions: list[ConditionOutcome]
    error: str | None
    """Why it can't be computed."""


class FlagEndpoints:
    """The endpoints of definitions. `now` is wall-clock time in seconds."""

    def __init__(self, thread: StoreThread, policy: IngestPolicy, now: Callable[[], float]) -> None:
        self._thread = thread
        self._policy = policy
        self._now = now

    def routes(self) -> list[web.AbstractRouteDef]:
        """The endpoints, for an application."""
        return [
            web.get("/sandbox/flags", _answering(self.list_flags)),
            web.patch("/sandbox/flags", _answering(self.change_flag)),
            web.get("/sandbox/flags/{key}", _answering(self.show)),
            web.put("/sandbox/flags/{key}", _answering(self.put)),
            web.delete("/sandbox/flags/{key}", _answering(self.delete)),
            web.get("/sandbox/cohorts", _answering(self.list_cohorts)),
            web.get("/sandbox/cohorts/{id}", _answering(self.show)),
            web.put("/sandbox/cohorts/{id}", _answering(self.put)),
            web.delete("/sandbox/cohorts/{id}", _answering(self.delete)),
            web.put("/sandbox/group-types", _answering(self.put_group_types)),
            web.get("/sandbox/evaluations", _answering(self.evaluate)),
        ]

    async def list_flags(self, request: web.Request) -> web.Response:
        """GET /sandbox/flags: the flags with their definitions, and how often each was checked."""
        wanted = request.query
        page = listing_page(request)
        flag_rows = await self._thread.ask(lambda store: _flag_rows(store, wanted))
        return listing(len(flag_rows), [json.dumps(row) for row in page.slice_of(flag_rows)])

    async def list_cohorts(self, request: web.Request) -> web.Response:
        """GET /sandbox/cohorts: the cohorts with their definitions."""
        api_key = request.query.get("api_key")
        page = listing_page(request)
        definitions = await self._thread.run(
            lambda store: list_definitions(store, DefinitionKind.COHORT, api_key)
        )
        rows = [
            CohortRow(
                id=int(row.name),
                api_key=masked_key(row.api_key) or "",
                definition=dict(row.content),
            )
            for row in definitions
        ]
        return listing(len(rows), [json.dumps(row) for row in page.slice_of(rows)])

    async def show(self, request: web.Request) -> web.Response:
        """GET /sandbox/flags/{key} and /sandbox/cohorts/{id}: the definition."""
        kind, name = _named(request)
        definition = await self._of_project(
            request,
            lambda store, api_key: find_definition(store, DefinitionKey(api_key, kind, name)),
        )
        return web.json_response(_there(definition).content)

    async def put(self, request: web.Request) -> web.Response:
        """PUT /sandbox/flags/{key} and /sandbox/cohorts/{id}: add or replace the definition, and
        show it.
        """
        reject_other_sites(request)
        (kind, name) = _named(request)
        content = await _body(request)
        reject_unknown_members(kind, content)
        now = self._time()
        stored = await self._of_project(
            request,
            lambda store, api_key: put_definition(
                store, DefinitionKey(api_key, kind, name), content, now
            ),
        )
        return web.json_response(stored.content)

    async def delete(self, request: web.Request) -> web.Response:
        """DELETE /sandbox/flags/{key} and /sandbox/cohorts/{id}."""
        reject_other_sites(request)
        kind, name = _named(request)
        if not await self._of_project(
            request,
            lambda store, api_key: delete_definition(store, DefinitionKey(api_key, kind, name)),
        ):
            raise not_found()
        return web.Response(status=204)

    async def put_group_types(self, request: web.Request) -> web.Response:
        """PUT /sandbox/group-types: name the types of a project's groups, from index 0 on."""
        reject_other_sites(request)
        names = await _body(request)
        now = self._time()
        if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
            raise InvalidDefinition("", "this is not a list of names")
        await self._of_project(
            request, lambda store, api_key: name_group_types(store, api_key, names, now)
        )
        return web.json_response(names)

    async def change_flag(self, request: web.Request) -> web.Response:
        """PATCH /sandbox/flags?id=N: turn a flag on or off, or change its
        rollout, and show its row.
        """
        reject_other_sites(request)
        number = _number(request.query.get("id", ""))
        changes = await _body(request)
        now = self._time()
        row = await self._thread.ask(lambda store: _change(store, number, changes, now))
        return web.json_response(row)

    async def evaluate(self, request: web.Request) -> web.Response:
        """GET /sandbox/evaluations: every flag of a project for a person, with the reason and what
        became of each condition.

        Without `limit` and `offset` it is all of them.
        """
        query = request.query
        now = self._time()
        question = FlagQuestion(
            distinct_id=query.get("distinct_id", ""),
            groups=_object(query, "groups"),
            person_properties=_object(query, "person_properties"),
            group_properties={
                name: members
                for name, members in _object(query, "group_properties").items()
                if isinstance(members, dict)
            },
        )
        if not (question.distinct_id or query.get("person")):
            raise invalid("distinct_id", "Name a person.", "required")
        results = await self._thread.ask(lambda store: _evaluations(store, query, question, now))
        shown = (
            listing_page(request).slice_of(results)
            if {"limit", "offset"} & query.keys()
            else results
        )
        return listing(len(results), [json.dumps(result) for result in shown])

    async def _of_project(self, request: web.Request, do: Callable[[Store, str], T]) -> T:
        """Run `do` for the project that the request names. Raises
        `ManagementError` if there is none.
        """
        api_key = request.query.get("api_key")

        def work(store: Store) -> T:
            try:
                return do(store, check_key(api_key, self._policy.keys))
            except RequestRejected as rejection:
                raise invalid("api_key", rejection.message) from None

        return await self._thread.run(work)

    def _time(self) -> datetime:
        return datetime.fromtimestamp(self._now(), UTC)


def _answering(
    handle: Callable[[web.Request], Awaitable[web.Response]],
) -> Callable[[web.Request], Awaitable[web.Response]]:
    """A handler whose errors are answered in the management API's form."""

    async def answer(request: web.Request) -> web.Response:
        try:
            return await handle(request)
        except InvalidDefinition as error:
            return management_error_response(invalid(error.path or None, error.what)).response()
        except ManagementError as error:
            response = management_error_response(error).response()
            return await answer_early(request, response) if error.status == 413 else response

    return answer


def _named(request: web.Request) -> tuple[DefinitionKind, str]:
    """What the path names. Raises `InvalidDefinition`."""
    key = request.match_info.get("key")
    if key is not None:
        return DefinitionKind.FLAG, key
    return DefinitionKind.COHORT, str(_number(request.match_info["id"]))


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or not 0 < int(text[:20]) < _LARGEST_ID:
        raise InvalidDefinition("id", "this is not an id: a number from 1 on")
    return int(text)


async def _body(request: web.Request) -> Any:
    """The JSON of a body. Raises `ManagementError`."""
    try:
        content = json.loads(await read_body(request, LARGEST_DEFINITION))
    except RequestRejected as rejection:
        if rejection.status == 413:
            raise ManagementError(
                413, ErrorType.INVALID_REQUEST, "request_too_large", rejection.message
            ) from None
        raise invalid(None, rejection.message) from None
    except (ValueError, RecursionError):
        raise invalid(None, "The body is not JSON.", "parse_error") from None
    if (fault := fault_of(content)) is not None:
        raise invalid(None, fault)
    return content


def _object(query: Mapping[str, str], name: str) -> dict[str, Any]:
    try:
        value = json.loads(query.get(name) or "{}")
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict) or fault_of(value) is not None:
        raise invalid(name, "This is not a JSON object.")
    return value


def _there(definition: StoredDefinition | None) -> StoredDefinition:
    if definition is None:
        raise not_found()
    return definition


def _flag_rows(store: Store, wanted: Mapping[str, str]) -> list[FlagRow]:
    """The rows of flags that match the parameters `id`, `api_key`, `project`,
    `organization` and `text`.
    """
    calls = {(use.api_key, use.flag): use.calls for use in flag_calls(store, wanted.get("api_key"))}
    projects = {api_key: place for api_key, *place in store.select(_PROJECTS, [])}
    text = wanted.get("text", "").lower()
    flag_rows = list[FlagRow]()
    for flag in list_definitions(store, DefinitionKind.FLAG, wanted.get("api_key")):
        number, name, organization = projects.get(flag.api_key, (None, None, None))
        place = {"id": str(flag.id), "project": str(number), "organization": organization}
        chosen = all(wanted.get(filter_, value) == value for filter_, value in place.items())
        if chosen and (text in flag.name.lower() or text in str(flag.content["name"]).lower()):
            flag_rows.append(_row(flag, number, name, calls.get((flag.api_key, flag.name), 0)))
    return flag_rows


def _row(
    flag: StoredDefinition, project: int | None, project_name: str | None, calls: int
) -> FlagRow:
    return {
        "id": flag.id,
        "project": project,
        "project_name": project_name,
        "api_key": masked_key(flag.api_key) or "",
        "key": flag.name,
        "name": str(flag.content["name"]),
        "active": flag.content["active"] is True,
        "definition": dict(flag.content),
        "calls": calls,
        "created_at": flag.created_at,
        "updated_at": flag.updated_at,
    }


def _change(store: Store, number: int, changes: Any, now: datetime) -> FlagRow:
    """Apply a change of a flag; its row afterwards."""
    flag = _there(definition_of_row(store, DefinitionKind.FLAG, number))
    if not isinstance(changes, dict):
        raise InvalidDefinition("", "this is not an object")
    unknown = next(
        (name for name in changes if name not in _CHANGES),
        None,
    )
    if unknown is not None:
        raise InvalidDefinition(
            unknown,
            f"can't be changed here, {propose_name(unknown, _CHANGES)}; set the flag as a whole",
        )
    content = {name: value for name, value in flag.content.items() if name != "version"}
    if "active" in changes:
        content["active"] = changes["active"]
    if "rollout_percentage" in changes:
        content["filters"] = _rolled_out(
            content["filters"], changes["rollout_percentage"], changes.get("condition")
        )
    put_definition(store, DefinitionKey(flag.api_key, DefinitionKind.FLAG, flag.name), content, now)
    return next(row for row in _flag_rows(store, {"api_key": flag.api_key}) if row["id"] == number)


def _rolled_out(
    filters: Mapping[str, Any], percentage: object, condition: object
) -> dict[str, Any]:
    if "groups" not in filters:
        raise InvalidDefinition(
            "rollout_percentage", "this flag has rules: set it as a whole to change their shares"
        )
    groups = list(filters["groups"]) or [{"properties": []}]
    if condition is not None and not (type(condition) is int and 0 <= condition < len(groups)):
        raise InvalidDefinition("condition", "this is not the index of a condition")
    changed = [
        {**group, "rollout_percentage": percentage} if condition in (None, index) else group
        for index, group in enumerate(groups)
    ]
    return {**filters, "groups": changed}


def _of_person(store: Store, person: str, question: FlagQuestion) -> tuple[str, FlagQuestion]:
    """The project of a person, and the question about the person. Raises `ManagementError` if
    there is no such person.
    """
    person_rows = store.select("SELECT api_key, distinct_id FROM persons WHERE uuid = ?", [person])
    if not person_rows:
        raise not_found()
    api_key, distinct_id = person_rows[0]
    return api_key, replace(question, distinct_id=question.distinct_id or distinct_id)


def _evaluations(
    store: Store, query: Mapping[str, str], question: FlagQuestion, now: datetime
) -> list[FlagDecision]:
    """What each flag is for a person; of the project of `person` (its uuid), of `flag` (a row's
    number), or of `api_key`.
    """
    api_key = query.get("api_key")
    if query.get("person"):
        api_key, question = _of_person(store, query["person"], question)
    elif query.get("flag"):
        flag = definition_of_row(store, DefinitionKind.FLAG, _number(query["flag"]))
        api_key = _there(flag).api_key
    if not api_key:
        raise invalid(
            "api_key",
            "Name a project by api_key, one of its flags by flag, or one of its persons by person.",
            "required",
        )
    evaluation = decide(store, api_key, question, now)
    decisions = list[FlagDecision]()
    for flag in list_definitions(store, DefinitionKind.FLAG, api_key):
        if flag.name in evaluation.results:
            decisions.append(_decision(flag, evaluation.results[flag.name], None))
        elif flag.name in evaluation.failed:
            decisions.append(_decision(flag, None, evaluation.failed[flag.name]))
        elif flag.name in evaluation.circular:
            decisions.append(_decision(flag, None, f"the flag {flag.name} depends on itself"))
    return decisions


def _decision(flag: StoredDefinition, result: FlagResult | None, error: str | None) -> FlagDecision:
    reason = DecisionReason(code="error", condition_index=None, description=error)
    return FlagDecision(
        id=flag.id,
        key=flag.name,
        name=str(flag.content["name"]),
        active=flag.content["active"] is True,
        enabled=result is not None and result.enabled,
        variant=None if result is None else result.variant,
        payload=None if result is None else result.payload,
        reason=reason if result is None else cast("DecisionReason", show_flag(result)["reason"]),
        conditions=[]
        if result is None
        else [
            ConditionOutcome(matched=condition.matched, why=condition.why)
            for condition in result.conditions
        ],
        error=error,
    )
