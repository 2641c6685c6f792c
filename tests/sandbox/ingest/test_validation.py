"""What is taken: by the contract, and as the real service does, row by row."""

from __future__ import annotations

import json
from typing import Any

import pytest

from forwarder.sandbox import SandboxOptions
from tests.sandbox.client import KEY, UUID, batch, event, talking
from tests.support.cases import cases

OK = '{"status":"Ok"}'
OTHER = "phc_another_key_000000002"
BAD_KEYS = ["", "phx_personal_key", "x" * 65, "schlüssel", "nul\0", 5, ["k"]]
MISSING: dict[str, tuple[dict[str, Any], str]] = {
    "no name": (event(event=...), "no_name"),
    "name null": (event(event=None), "no_name"),
    "name empty": (event(event=""), "no_name"),
    "no distinct_id": (event(distinct_id=...), "no_distinct_id"),
    "distinct_id null": (event(distinct_id=None), "no_distinct_id"),
    "distinct_id empty": (event(distinct_id=""), "no_distinct_id"),
    "distinct_id white space": (event(distinct_id=" \t"), "no_distinct_id"),
    "distinct_id empty, one in the properties": (
        event(distinct_id="", properties={"distinct_id": "ann"}),
        "no_distinct_id",
    ),
}
WHOLE: dict[str, str] = {
    "duplicate key": (
        '{"event":"e","distinct_id":"a","timestamp":null,"timestamp":"2026-01-01T00:00:00Z"}'
    ),
    "duplicate by a synonym": '{"event":"e","distinct_id":"a","$distinct_id":"a"}',
    "uuid": '{"event":"e","distinct_id":"a","uuid":"not-a-uuid"}',
    "uuid number": '{"event":"e","distinct_id":"a","uuid":5}',
    "properties array": '{"event":"e","distinct_id":"a","properties":[]}',
    "properties null": '{"event":"e","distinct_id":"a","properties":null}',
    "timestamp number": '{"event":"e","distinct_id":"a","timestamp":5}',
    "offset text": '{"event":"e","distinct_id":"a","offset":"5"}',
    "$set text": '{"event":"e","distinct_id":"a","$set":"x"}',
    "number out of range": '{"event":"e","distinct_id":"a","properties":{"n":[1e999]}}',
    "long integer": f'{{"event":"e","distinct_id":"a","properties":{{"n":{"9" * 5000}}}}}',
    "lone surrogate": r'{"event":"e","distinct_id":"a","properties":{"n":"\ud83d"}}',
    "lone low surrogate": r'{"event":"e","distinct_id":"a","properties":{"n":"\\\uDE00"}}',
    "lone surrogate in a key": r'{"event":"e","distinct_id":"a","properties":{"\ud83dx":1}}',
}
FINE = {
    "properties absent": '{"event":"e","distinct_id":"a"}',
    "uuid empty": '{"event":"e","distinct_id":"a","uuid":""}',
    "uuid null": '{"event":"e","distinct_id":"a","uuid":null}',
    "uuid without hyphens": f'{{"event":"e","distinct_id":"a","uuid":"{UUID.replace("-", "")}"}}',
    "a pair of surrogates": (
        r'{"event":"e","distinct_id":"a","properties":{"n":"\ud83d\ude00 \\ud83d"}}'
    ),
    "duplicate of what the service doesn't read": (
        '{"event":"e","distinct_id":"a","x":1,"x":2,"properties":{"y":1,"y":2}}'
    ),
    "distinct_id number": '{"event":"e","distinct_id":5}',
    "distinct_id in the properties": '{"event":"e","properties":{"distinct_id":"a"}}',
    "$distinct_id": '{"event":"e","$distinct_id":"a"}',
    "timestamp that is none": '{"event":"e","distinct_id":"a","timestamp":"soon"}',
}
NOT_A_BODY = [
    b"",
    b"nonsense",
    b"5",
    b'"text"',
    b"null",
    b'{"batch":5}',
    b"[5]",
    b'[{"event":NaN}]',
    b'{"api_key":"phc_x","batch":[{}',
]


def body_of(raw: str) -> bytes:
    """A batch of a good event and the given one."""
    return f'{{"api_key":"{KEY}","batch":[{json.dumps(event(uuid=UUID))},{raw}]}}'.encode()


@cases("name", MISSING)
@cases("path", ["/batch", "/capture/"])
async def test_contract_an_event_without_name_or_id_is_not_ingested(path: str, name: str) -> None:
    """By the contract it is answered 200, alone or among others, and kept with its request and the
    reason; the others go in.
    """
    bad, reason = MISSING[name]
    async with talking() as client:
        for body in (batch(event(), bad, event()), {**bad, "api_key": KEY}):
            reply = await client.post(path, body)
            assert (reply.status, reply.text) == (200, OK)
        first, second = await client.sandbox.requests()
        assert [(it.position, it.reason, json.loads(it.raw)) for it in first.not_ingested] == [
            (1, reason, bad)
        ]
        assert [it.position for it in second.not_ingested] == [0]
        summary = await client.sandbox.summary()
    assert (summary.events, summary.not_ingested) == (2, 2)


@cases("name", MISSING)
async def test_strict_an_event_without_name_or_id_fails_its_request(name: str) -> None:
    """The real service answers 400 in plain text and takes nothing of the request."""
    bad, reason = MISSING[name]
    async with talking(SandboxOptions(strict=True)) as client:
        reply = await client.post("/batch/", batch(event(), bad))
        summary = await client.sandbox.summary()
    assert (reply.status, reply.text) == (400, f"event 1: {reason}")
    assert reply.headers["Content-Type"].startswith("text/plain")
    assert (summary.requests, summary.arrivals, summary.not_ingested) == (1, 0, 0)


@cases("name", WHOLE)
async def test_what_only_the_real_service_refuses(name: str) -> None:
    """Strict: 400 for the whole request, without a word of the event's in it. By the contract the
    event goes in, its bytes as they were.
    """
    async with talking(SandboxOptions(strict=True)) as strict, talking() as contract:
        refused = await strict.post("/batch/", body_of(WHOLE[name]))
        assert (await contract.post("/batch/", body_of(WHOLE[name]))).status == 200
        assert (await strict.sandbox.summary()).arrivals == 0
        stored_events = await contract.sandbox.events()
    assert refused.status == 400
    assert refused.text.startswith("event 1: ")
    assert stored_events[1].raw.decode() == WHOLE[name]


@cases("name", FINE)
@cases("strict", [True, False])
async def test_what_both_take(strict: bool, name: str) -> None:
    """These go in under both."""
    async with talking(SandboxOptions(strict=strict)) as client:
        reply = await client.post(
            "/batch/", f'{{"api_key":"{KEY}","batch":[{FINE[name]}]}}'.encode()
        )
        [stored_event] = await client.sandbox.events()
    assert (reply.status, reply.text) == (200, OK)
    assert stored_event.raw.decode() == FINE[name]
    assert len(stored_event.uuid) == 36


@cases("body", NOT_A_BODY)
@cases("strict", [True, False])
async def test_a_body_that_is_none(strict: bool, body: bytes) -> None:
    """What is not JSON, or not of a known shape, is 400 in plain text under both, and its record
    says why.
    """
    async with talking(SandboxOptions(strict=strict)) as client:
        reply = await client.post("/batch/", body)
        [request] = await client.sandbox.requests()
    assert reply.status == request.status == 400
    assert request.error == reply.text
    assert reply.headers["Content-Type"].startswith("text/plain")


@pytest.mark.parametrize("strict", [True, False])
async def test_a_batch_of_nothing(strict: bool) -> None:
    """A batch without events is rejected; a key that is missing or unknown comes first where one
    is named.
    """
    async with talking(SandboxOptions(strict=strict, api_keys=frozenset({KEY}))) as client:
        assert (await client.post("/batch/", batch())).status == 400
        assert (await client.post("/batch/", [])).status == 400
        assert (await client.post("/batch/", {**batch(), "api_key": "phc_unknown"})).status == (
            400 if strict else 401
        )


@cases("key", BAD_KEYS)
@cases("strict", [True, False])
async def test_malformed_keys(strict: bool, key: object) -> None:
    """No key, or one that can't be one, is 401 under both, on every endpoint."""
    async with talking(SandboxOptions(strict=strict)) as client:
        for path, body in (
            ("/batch/", {**batch(event()), "api_key": key}),
            ("/decide?v=3", {"api_key": key, "distinct_id": "a"}),
        ):
            assert (await client.post(path, body)).status == 401
        assert (await client.post("/batch/", [event()])).status == 401
        assert (await client.post("/decide?v=3", {"distinct_id": "a"})).status == 401
        assert (await client.sandbox.summary()).arrivals == 0


@pytest.mark.parametrize("strict", [True, False])
async def test_unknown_keys(strict: bool) -> None:
    """By the contract a key of no project fails validation; the real service answers 200 on
    /batch/ and drops, 401 on /decide.
    """
    async with talking(SandboxOptions(strict=strict, api_keys=frozenset({KEY}))) as client:
        reply = await client.post("/batch/", {**batch(event()), "api_key": OTHER})
        decision = await client.post("/decide?v=3", {"api_key": OTHER, "distinct_id": "a"})
        known = await client.post("/batch/", batch(event()))
        summary = await client.sandbox.summary()
        requests = await client.sandbox.requests()
    assert (reply.status, decision.status, known.status) == (200 if strict else 401, 401, 200)
    assert (summary.events, summary.not_ingested) == (1, 1 if strict else 0)
    assert [it.reason for it in requests[0].not_ingested] == (["unknown_key"] if strict else [])
    assert requests[0].api_key == OTHER


@pytest.mark.parametrize("strict", [True, False])
async def test_where_the_key_may_stand(strict: bool) -> None:
    """In the batch, in each event under three names, or in its properties; the batch's wins;
    several in one request are 401.
    """
    places: list[dict[str, Any]] = [
        {"token": KEY},
        {"$token": KEY},
        {"api_key": KEY},
        {"properties": {"token": KEY}},
    ]
    async with talking(SandboxOptions(strict=strict)) as client:
        for place in places:
            assert (await client.post("/e/", [event(**place)])).status == 200
        assert (await client.post("/e/", [event(**place) for place in places])).status == 200
        assert (await client.post("/batch/", batch(event(token=OTHER)))).status == 200
        assert {stored_event.api_key for stored_event in await client.sandbox.events()} == {KEY}
        assert (await client.post("/e/", [event(token=KEY), event(token=OTHER)])).status == 401
        assert (await client.sandbox.summary()).events == 9


@pytest.mark.parametrize(("size", "status"), [(1_048_576, 200), (1_048_577, 413)])
async def test_strict_a_large_event_fails_its_request(size: int, status: int) -> None:
    """An event over a megabyte is too much for the real service."""
    padding = "ä" * 300_000
    raw = json.dumps(event(properties={"p": padding}), ensure_ascii=False)
    raw = raw.replace(padding, padding + "x" * (size - len(raw.encode())))
    async with talking(SandboxOptions(strict=True)) as client:
        answer = await client.post("/batch/", f'{{"api_key":"{KEY}","batch":[{raw}]}}'.encode())
        assert answer.status == status


async def test_an_engage_event_is_an_identify() -> None:
    """On /engage the name may be left out."""
    async with talking() as client:
        answer = await client.post("/engage/", {"token": KEY, "distinct_id": "ann", "$set": {}})
        assert answer.status == 200
        [stored_event] = await client.sandbox.events()
    assert stored_event.event == "$identify"


@cases(
    ("sent", "expected"),
    [
        ("ann", "ann"),
        (5, "5"),
        (1.5, "1.5"),
        (True, "true"),
        ({"a": ["é"]}, '{"a":["é"]}'),
        ("a\0b", "a\ufffdb"),
        ("x" * 300, "x" * 200),
    ],
)
async def test_an_id_as_the_service_writes_it(sent: object, expected: str) -> None:
    """What is not text becomes JSON text, NUL becomes U+FFFD, 200 characters stay."""
    async with talking() as client:
        await client.post("/batch/", batch(event(distinct_id=sent)))
        [stored] = await client.sandbox.events()
    assert stored.distinct_id == expected
