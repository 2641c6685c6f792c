"""What answers hold, and what they should not."""

from __future__ import annotations

from typing import Any

import pytest

from forwarder.contract.endpoints import GET_DOMAIN, LIST_DOMAINS, PAUSE_BATCH_EXPORT
from tests.management.scripted import DOMAIN, ORGANIZATION, raw, refusal, said, talking
from tests.support.upstream import Answer

IDS = {"organization_id": ORGANIZATION, "id": DOMAIN}


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        (raw(b"", 200, ""), None),
        (raw(b"", 200, "text/html"), None),
        (raw(b"", 202, ""), None),
        (said({"paused": True}), {"paused": True}),
        (said({"paused": True}, 201), {"paused": True}),
        (said([{"id": 1}], 201), [{"id": 1}]),
        (said(None), None),
        (said("ok"), None),
        (raw(b"ok", 200, "text/plain"), None),
    ],
)
async def test_where_the_contract_has_no_body_there_may_be_one(answer: Answer, value: object) -> None:
    """What the service answers is returned, if it is an object or a list; anything else counts as nothing."""
    async with talking(None, answer) as (client, _):
        assert await client.call(PAUSE_BATCH_EXPORT, {"project_id": 1, "id": DOMAIN}) == value


@pytest.mark.parametrize("status", [200, 201, 202, 203])
async def test_any_status_of_success_is_one(status: int) -> None:
    """Service and contract may differ in the number."""
    async with talking(None, said({"id": DOMAIN}, status)) as (client, _):
        assert (await client.domains.create(ORGANIZATION, domain="example.com"))["id"] == DOMAIN


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (raw(b"", 200, ""), "the answer is empty, where a resource is due"),
        (raw(b"", 204, ""), "the answer is empty, where a resource is due"),
        (said([1]), "the answer isn't a resource: it begins '[1]'"),
        (raw(b'{"id":'), "the answer isn't a resource: it begins '{\"id\":'"),
        (raw(b'{"id":NaN}'), "the answer isn't a resource"),
        (raw(b"\xff\xfe", 200), "the answer isn't a resource"),
        (raw(b"[" * 100_000), "the answer isn't a resource"),
        (
            raw(b"<html><title>Welcome to the hotel</title>", 200, "text/html"),
            "a web page (Welcome to the hotel) was answered, not a resource",
        ),
        (raw(b"<!doctype html>", 200, "application/json"), "a web page was answered, not a resource"),
    ],
)
async def test_what_is_no_resource_is_an_error_that_says_so(answer: Answer, words: str) -> None:
    """Where a resource is due, anything else is an error; a web page is called one."""
    async with talking(None, answer) as (client, service):
        error = await refusal(client.domains.get(ORGANIZATION, DOMAIN))
    assert words in str(error)
    assert str(error).startswith(f"domains get: HTTP {answer.status}, but ")
    assert (error.status, error.type, error.code, error.unsure) == (answer.status, "answer_error", "unreadable", False)
    assert "`url`" in error.hint
    assert len(service.requests) == 1


@pytest.mark.parametrize(
    "body",
    [
        [],
        {},
        {"count": 1, "results": None},
        {"count": 1, "results": [1]},
        {"count": "1", "results": []},
        {"count": True, "results": []},
        {"count": 1, "results": [], "next": 7},
    ],
)
async def test_what_is_no_page_is_an_error(body: Any) -> None:
    """A list is answered as pages, and as nothing else."""
    async with talking(None, said(body)) as (client, _):
        error = await refusal(client.call(LIST_DOMAINS, {"organization_id": ORGANIZATION}))
    assert "the answer isn't a page of a list" in str(error)


async def test_what_a_newer_service_adds_is_kept() -> None:
    """Fields that the contract doesn't know come through, in resources and in pages; a page begins as every page."""
    page = {"results": [{"id": 1, "new": [{}]}], "newer": 7, "count": 1}
    async with talking(None, said({"id": DOMAIN, "new": 7}), said(page)) as (client, _):
        assert await client.call(GET_DOMAIN, IDS) == {"id": DOMAIN, "new": 7}
        answered = await client.call(LIST_DOMAINS, {"organization_id": ORGANIZATION})
    assert answered == {**page, "next": None, "previous": None}
    assert [*answered] == ["count", "next", "previous", "results", "newer"]


async def test_a_web_page_is_no_success_of_a_change() -> None:
    """What a captive portal answers to a change isn't taken for success."""
    async with talking(None, raw(b"<html><title>Log in</title>", 200, "text/html")) as (client, _):
        error = await refusal(client.domains.delete(ORGANIZATION, DOMAIN))
    assert "a web page (Log in) was answered" in str(error)
    assert error.unsure
