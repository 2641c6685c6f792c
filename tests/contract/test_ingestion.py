"""The tables of the ingestion API by plain HTTP: decide, capture and batch, what they take and
answer, and what events do.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from forwarder.sandbox import SandboxOptions
from forwarder.sandbox.store.aggregates import ResponseCount
from forwarder.sandbox.store.stored_records import StoredEvent
from tests.contract.calls import CalledSandbox, serving
from tests.contract.tables import misfits, plain, rows, spans
from tests.sandbox.client import SandboxClient, SandboxReply, talking
from tests.support import management as seed
from tests.support.cases import cases

ENDPOINTS: Final = {
    plain(row["call"]): {name: plain(cell) for name, cell in row.items()}
    for row in rows("Ingestion endpoints")
}
EVERY: Final = pytest.mark.parametrize("call", ENDPOINTS)
TIME: Final = "2026-01-31T12:00:00Z"
VALUES: Final[dict[str, Any]] = {
    "api_key": seed.TOKEN,
    "distinct_id": "ann",
    "event": "bought",
    "timestamp": TIME,
    "historical_migration": True,
    "groups": {"company": "acme"},
    "group_properties": {"company": {"size": 7}},
    "properties": {"price": 1.5, "distinct_id": "ann"},
    "person_properties": {"plan": "free", "age": None},
    "batch": [
        {"event": "bought", "distinct_id": "ann", "properties": {"a": [1]}, "timestamp": TIME}
    ],
}
"""Of every field of the tables of requests."""


def address(call: str) -> str:
    """Path and query as documented."""
    row = ENDPOINTS[call]
    return row["path"] + (f"?{row['query']}" if row["query"] else "")


def body_of(call: str, *, least: bool = False, **changes: Any) -> dict[str, Any]:
    """A body with all documented fields, or only those that are needed; a change to `...` takes a
    field away.
    """
    documented = {
        plain(row["field"]): VALUES[plain(row["field"])]
        for row in rows(ENDPOINTS[call]["body"])
        if not least or row["needed"] == "yes"
    }
    return {name: value for name, value in {**documented, **changes}.items() if value is not ...}


async def send(client: SandboxClient, call: str, body: Any, **headers: str) -> SandboxReply:
    """Send a body as JSON, or bytes as they are."""
    return await client.post(address(call), body, Content_Type="application/json", **headers)


@EVERY
@pytest.mark.parametrize("least", [False, True])
async def test_success(call: str, least: bool, tmp_path: Path) -> None:
    """With all documented fields, and with only those that are needed, it is the documented status
    and a body of the documented fields.
    """
    async with serving(tmp_path) as service:
        reply = await send(service.client, call, body_of(call, least=least))
        assert reply.status == int(ENDPOINTS[call]["status"])
        assert reply.headers["Content-Type"].startswith("application/json")
        assert misfits(reply.json, ENDPOINTS[call]["answer"]) == ""
        if ENDPOINTS[call]["answer"] == "Answer to events":
            assert reply.json["status"] == spans(rows("Answer to events")[0]["rule"])[0]


@EVERY
async def test_one_field_more(call: str, tmp_path: Path) -> None:
    """Each optional field is taken alone as well."""
    async with serving(tmp_path) as service:
        for row in rows(ENDPOINTS[call]["body"]):
            name = plain(row["field"])
            answer = await send(
                service.client, call, body_of(call, least=True, **{name: VALUES[name]})
            )
            assert answer.status == 200


@EVERY
async def test_post_only(call: str, tmp_path: Path) -> None:
    """Any method but POST is 405 and takes nothing."""
    async with serving(tmp_path) as service:
        assert ENDPOINTS[call]["method"] == "POST"
        for method in ("GET", "PUT", "PATCH", "DELETE"):
            reply = await service.client.ask(
                method,
                address(call),
                json.dumps(body_of(call)).encode(),
                {"Content-Type": "application/json"},
            )
            assert reply.status == 405
        assert await service.client.sandbox.events() == []


FAILING: Final[dict[str, Callable[[str], list[Any]]]] = {
    "The body isn't JSON": lambda _: [b"{", b"", b"\xff\xfe", b"[1, 2", b"7"],
    "No `distinct_id`": lambda call: [body_of(call, distinct_id=value) for value in (..., None)],
    "No project key": lambda call: [
        body_of(call, api_key=value)
        for value in (..., "", "phx_personal", "phc_nobody", "ä", "x" * 65)
    ],
    "The body has 20 MB": lambda _: [b'{"api_key":"' + b"x" * 20_000_000 + b'"}'],
}
FAILURES: Final = [(row, call) for row in rows("Failures") for call in row["of"].split(", ")]


@cases(
    ("row", "call"),
    FAILURES,
    ids=[f"{row['status']}-{row['when'][:20]}-{call}" for row, call in FAILURES],
)
async def test_failures(row: dict[str, str], call: str, tmp_path: Path) -> None:
    """What fails validation is refused whole with the documented status, in plain text, and
    nothing of it is ingested.
    """
    (bodies,) = (maker for begins, maker in FAILING.items() if row["when"].startswith(begins))
    async with serving(tmp_path) as service:
        for body in bodies(call):
            reply = await send(service.client, call, body)
            assert (reply.status, reply.headers["Content-Type"].partition(";")[0]) == (
                int(row["status"]),
                "text/plain",
            ), body
            assert "bought" not in reply.text
        assert await service.client.sandbox.events() == []


async def test_several_keys(tmp_path: Path) -> None:
    """Two keys in one request are 401."""
    async with serving(tmp_path) as service:
        events = [
            {"event": "a", "distinct_id": "ann", "token": token}
            for token in (seed.TOKEN, seed.SECOND_TOKEN)
        ]
        assert (await send(service.client, "batch", {"batch": events})).status == 401


@cases("strict", [False, True])
@cases(
    "change",
    [
        {"event": ...},
        {"event": ""},
        {"distinct_id": ...},
        {"distinct_id": ""},
        {"event": None},
        {"distinct_id": None},
    ],
    ids=str,
)
async def test_what_is_not_ingested(change: dict[str, Any], strict: bool, tmp_path: Path) -> None:
    """An event without a name or a distinct_id, or with an empty one, is 200 and not ingested, and
    the others are; strictly it is 400.
    """
    event = {"event": "bad", "distinct_id": "ann", "properties": {}, **change}
    bad = {name: value for name, value in event.items() if value is not ...}
    async with serving(tmp_path, strict=strict) as service:
        reply = await send(service.client, "capture", {"api_key": seed.TOKEN, **bad})
        batch = body_of("batch", batch=[bad, {"event": "good", "distinct_id": "ann"}, bad])
        replies = [reply, await send(service.client, "batch", batch)]
        assert [answer.status for answer in replies] == ([400, 400] if strict else [200, 200])
        assert [ingested.event for ingested in await service.client.sandbox.events()] == (
            [] if strict else ["good"]
        )
        if not strict:
            assert {answer.text for answer in replies} == {'{"status":"Ok"}'}


async def test_where_the_distinct_id_of_a_batch_stands(tmp_path: Path) -> None:
    """It may stand in the properties of an element; the element's own comes first."""
    async with serving(tmp_path) as service:
        batch = [
            {"event": "a", "properties": {"distinct_id": "ann"}},
            {"event": "b", "distinct_id": "bob", "properties": {"distinct_id": "ann"}},
        ]
        await send(service.client, "batch", body_of("batch", batch=batch))
        assert [event.distinct_id for event in await service.client.sandbox.events()] == [
            "ann",
            "bob",
        ]


async def test_fields_of_events_arrive(tmp_path: Path) -> None:
    """Name, distinct_id, properties and time of an event are what was sent, from a batch and
    alone; a migration is marked as one.
    """
    async with serving(tmp_path) as service:
        await send(service.client, "capture", body_of("capture"))
        await send(service.client, "batch", body_of("batch"))
        first, second = await service.client.sandbox.events()
        for event in (first, second):
            assert (event.event, event.distinct_id, event.timestamp[:19]) == (
                "bought",
                "ann",
                TIME[:19],
            )
        assert (json.loads(first.raw)["properties"], json.loads(second.raw)["properties"]) == (
            VALUES["properties"],
            {"a": [1]},
        )
        assert (first.historical, second.historical) == (False, True)


@pytest.mark.slow
async def test_limits_of_a_request(tmp_path: Path) -> None:
    """A body just below the documented size is taken, one of that size isn't; a batch may have any
    number of events.
    """
    limit = int(
        next(row["limit"] for row in rows("Limits") if row["what"] == "a request's body, ingestion")
        .split()[1]
        .replace(",", "")
    )
    start = (
        f'{{"api_key":"{seed.TOKEN}","event":"big","distinct_id":"a","properties":{{"x":"'.encode()
    )
    end = b'"}}'
    async with serving(tmp_path) as service:
        for size, status in ((limit - 1, 200), (limit, 413)):
            body = start + b"x" * (size - len(start) - len(end)) + end
            assert (len(body), (await send(service.client, "capture", body)).status) == (
                size,
                status,
            )
        many = body_of("batch", batch=[{"event": "one", "distinct_id": "a"}] * 10_000)
        assert (await send(service.client, "batch", many)).status == 200
        assert (await service.client.sandbox.summary()).events == 10_001


async def test_places(tmp_path: Path) -> None:
    """The documented header is taken, whatever stands in it, and so are
    the places as properties.
    """
    header = ENDPOINTS["decide"]["header"].replace("-", "_")
    places = {plain(row["property"]): "x" for row in rows("Places")}
    async with serving(tmp_path) as service:
        for value in ("203.0.113.7", "203.0.113.7, 10.0.0.1", "2001:db8::1", "nowhere"):
            reply = await send(
                service.client,
                "decide",
                body_of("decide", person_properties=places),
                **{header: value},
            )
            assert (reply.status, misfits(reply.json, "Decide answer")) == (200, "")


async def test_what_clients_may_compress_with(tmp_path: Path) -> None:
    """`supportedCompression` is the contract's, or strictly the service's, as documented."""
    rule = next(
        row["rule"]
        for row in rows("Decide answer")
        if plain(row["field"]) == "supportedCompression"
    )
    for strict, said in ((False, spans(rule)[:2]), (True, spans(rule.partition("`--strict`")[2]))):
        async with serving(tmp_path, strict=strict) as service:
            answer = await send(service.client, "decide", body_of("decide"))
            assert answer.json["supportedCompression"] == said


async def test_keys_of_projects(tmp_path: Path) -> None:
    """A project's token is taken from when the project is there; strictly, events for a key that
    isn't there are dropped without a word.
    """
    async with serving(tmp_path, strict=True) as service:
        token = (await service.call("projects create")).json["api_token"]
        assert [
            (await send(service.client, call, body_of(call, api_key=token))).status
            for call in ENDPOINTS
        ] == [200, 200, 200]
        statuses = [
            (await send(service.client, call, body_of(call, api_key="phc_nobody_at_all"))).status
            for call in ENDPOINTS
        ]
        assert statuses == [401, 200, 200]
        assert (await service.client.sandbox.summary()).events == 2


async def test_every_key_where_no_project_is(tmp_path: Path) -> None:
    """Without projects every well-formed key is taken."""
    async with talking(SandboxOptions()) as client:
        assert [(await send(client, call, body_of(call))).status for call in ENDPOINTS] == [
            200,
            200,
            200,
        ]


EVENTS: Final = rows("Events")
PROPERTIES: Final[dict[str, Any]] = {
    "$current_url": "https://example.com/",
    "$screen_name": "Start",
    "$set": {"plan": "free"},
    "alias": "main",
    "$group_type": "company",
    "$group_key": "acme",
    "$group_set": {"since": "2026-01-31"},
    "$groups": {"company": "acme"},
    "$survey_id": "s1",
    "$survey_response": "good",
    "$feature_flag": "beta",
    "$feature_flag_response": "on",
    "$feature/<flag_key>": "on",
    "$process_person_profile": False,
}


async def _effects(service: CalledSandbox) -> dict[str, Any]:
    sandbox = service.client.sandbox
    return {
        "persons": [(person.distinct_id, person.properties) for person in await sandbox.persons()],
        "groups": [
            (group.group_type, group.group_key, group.properties)
            for group in await sandbox.groups()
        ],
        "surveys": [
            (use.survey_id, use.sent, _counts(use.responses)) for use in await sandbox.surveys()
        ],
        "flags": [
            (use.flag, use.calls, _counts(use.responses)) for use in await sandbox.flag_calls()
        ],
    }


def _counts(responses: Sequence[ResponseCount]) -> dict[Any, int]:
    return {tally.response: tally.count for tally in responses}


_ANN: Final[list[tuple[str, dict[str, Any]]]] = [("ann", {})]
_SEEN: Final = "https://example.com/"
EFFECTS: Final[dict[str, dict[str, Any]]] = {
    "$current_url": {"persons": [("ann", {"$current_url": _SEEN, "$initial_current_url": _SEEN})]},
    "$set": {"persons": [("ann", {"plan": "free"})]},
    "alias": {"persons": [("main", {})]},
    "$group_type": {"persons": _ANN, "groups": [("company", "acme", {"since": "2026-01-31"})]},
    "$groups": {"persons": _ANN, "groups": []},
    "$survey_id": {"surveys": [("s1", 1, {"good": 1})]},
    "$feature_flag": {"flags": [("beta", 1, {"on": 1})]},
    "$process_person_profile": {"persons": []},
}
"""By a row's first property: what is there after its first event. Rows that aren't named here only
have their event recorded.
"""


@cases("row", EVENTS, ids=[plain(row["event"]) + plain(row["properties"])[:12] for row in EVENTS])
async def test_events(row: dict[str, str], tmp_path: Path) -> None:
    """Each documented event is ingested with its properties, alone and in a batch, and does what
    its row says.
    """
    properties = {
        name.replace("<flag_key>", "beta"): PROPERTIES[name] for name in spans(row["properties"])
    }
    names = spans(row["event"]) or ["any name \u4e2d"]
    async with serving(tmp_path) as service:
        sent = [{"event": name, "distinct_id": "ann", "properties": properties} for name in names]
        await send(service.client, "capture", {"api_key": seed.TOKEN, **sent[0]})
        effects = await _effects(service)
        assert {name: effects[name] for name in _expected(row)} == _expected(row)
        await send(service.client, "batch", body_of("batch", batch=sent))
        stored = await service.client.sandbox.events()
        assert [event.event for event in stored] == [names[0], *names]
        assert all(_has(event, properties) for event in stored)


def _expected(row: dict[str, str]) -> dict[str, Any]:
    named = spans(row["properties"])
    return EFFECTS.get(named[0], {"persons": _ANN}) if named else {"persons": _ANN}


def _has(event: StoredEvent, properties: dict[str, Any]) -> bool:
    return bool(json.loads(event.raw)["properties"] == properties)


async def test_what_events_need(tmp_path: Path) -> None:
    """An event without a property that its row needs is not ingested."""
    async with serving(tmp_path) as service:
        for row in EVENTS:
            for needed in [
                cell for cell in row["properties"].split(", ") if cell.endswith("(needed)")
            ]:
                properties = {
                    name: PROPERTIES[name]
                    for name in spans(row["properties"])
                    if name not in needed
                }
                for name in spans(row["event"]):
                    body = {
                        "api_key": seed.TOKEN,
                        "event": name,
                        "distinct_id": "ann",
                        "properties": properties,
                    }
                    assert (await send(service.client, "capture", body)).status == 200
        assert await service.client.sandbox.events() == []
