"""The management API over HTTP, and its pages."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forwarder.contract.endpoints import LIST_MEMBERS
from forwarder.contract.resources import PageEnvelope
from forwarder.sandbox import SandboxOptions, app
from forwarder.sandbox.app import HANDLERS
from forwarder.sandbox.manage.call import Handler, Listing, ManagementCall, PageBounds, Result
from forwarder.sandbox.manage.endpoints import page_bounds, page_envelope
from forwarder.sandbox.store.thread import StoreThread
from tests.contract.calls import CalledSandbox, error_of, serving
from tests.sandbox.client import talking
from tests.support import management as seed
from tests.support.cases import cases

ORGANIZATION = f"/api/organizations/{seed.ORGANIZATION}"
AUTHORIZED = f"Bearer {seed.OWNER_KEY}"
READER = seed.scoped_key(LIST_MEMBERS.scope)
NEW = {"name": "New"}


async def raw(service: CalledSandbox, *sent: bytes) -> tuple[int, Mapping[str, str], bytes]:
    """Send bytes as they are on a connection of its own; status, headers and body of the answer."""
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", int(service.client.sandbox.url.rpartition(":")[2])
    )
    for part in sent:
        writer.write(part)
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = {
        name.lower(): value
        for name, _, value in (line.partition(": ") for line in head[1:] if line)
    }
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    writer.close()
    await writer.wait_closed()
    return int(head[0].split()[1]), headers, body


@cases(
    ("path", "body", "key", "expected"),
    [
        (f"{ORGANIZATION}/projects/", b"{", "phx_of_nobody_at_all", (401, "authentication_failed")),
        ("/api/organizations/nonsense/projects/", b"{", READER, (403, "permission_denied")),
        ("/api/organizations/nonsense/projects/", b"{", seed.MEMBER_KEY, (404, "not_found")),
        (f"/api/organizations/{seed.OTHER}/projects/", b"{", seed.MEMBER_KEY, (404, "not_found")),
        (f"{ORGANIZATION}/projects/", b"{", seed.MEMBER_KEY, (403, "permission_denied")),
        (f"{ORGANIZATION}/projects/", b"{", seed.ADMIN_KEY, (400, "parse_error")),
        (f"{ORGANIZATION}/projects/", b"[]", seed.ADMIN_KEY, (400, "invalid")),
        (
            f"{ORGANIZATION}/projects/",
            b'{"name": 5, "primary_dashboard": 99}',
            seed.ADMIN_KEY,
            (400, "invalid"),
        ),
        (
            f"{ORGANIZATION}/projects/",
            b'{"primary_dashboard": 99}',
            seed.ADMIN_KEY,
            (400, "does_not_exist"),
        ),
    ],
)
async def test_the_first_of_several_errors(
    tmp_path: Path, path: str, body: bytes, key: str, expected: tuple[int, str]
) -> None:
    """Key, scope, organization, level, body, rules: the first that fails is answered, and says
    nothing about the others.
    """
    async with serving(tmp_path) as service:
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        status, _, code, _ = error_of(await service.client.ask("POST", path, body, headers))
    assert (status, code) == expected


@cases(
    ("authorization", "code"),
    [
        (None, "not_authenticated"),
        ("", "not_authenticated"),
        ("Bearer", "not_authenticated"),
        ("Bearer  ", "not_authenticated"),
        (f"Basic {seed.OWNER_KEY}", "not_authenticated"),
        (seed.OWNER_KEY, "not_authenticated"),
        (f"Bearer {seed.OWNER_KEY}x", "authentication_failed"),
        (f"Bearer {seed.OWNER_KEY} {seed.OWNER_KEY}", "authentication_failed"),
        (f"Bearer {seed.TOKEN}", "authentication_failed"),
        ("Bearer schlüssel", "authentication_failed"),
        (AUTHORIZED, ""),
        (f"bearer   {seed.OWNER_KEY} ", ""),
    ],
)
async def test_who_calls(tmp_path: Path, authorization: str | None, code: str) -> None:
    """Only a personal key as a bearer counts, in any case of the word; a 401
    says how to authenticate.
    """
    async with serving(tmp_path) as service:
        headers = {} if authorization is None else {"Authorization": authorization}
        reply = await service.client.ask(
            "GET", f"{ORGANIZATION}/members/?personal_api_key={seed.OWNER_KEY}", None, headers
        )
    if code:
        assert error_of(reply)[::2] == (401, code)
        assert reply.headers["WWW-Authenticate"] == "Bearer"
    else:
        assert reply.status == 200


@pytest.mark.parametrize(
    "spelled", [seed.ORGANIZATION.upper(), seed.ORGANIZATION.replace("0", "%30")]
)
async def test_ids_are_the_same_however_they_are_spelled(tmp_path: Path, spelled: str) -> None:
    """A UUID in capitals, or percent-encoded, names the same thing, and so does a number with
    zeros before it.
    """
    async with serving(tmp_path) as service:
        reply = await service.ask("GET", f"/api/organizations/{spelled}/projects/0001")
        assert (reply.status, reply.json["organization"]) == (200, seed.ORGANIZATION)


async def test_what_cannot_be_an_id(tmp_path: Path) -> None:
    """Whatever stands instead of an id is looked for and not found."""
    anything = ["x", "%00", "%F0%9F%98%80", "%ff", "a%2Fb", "a%0Ab", "%2e%2e", "9" * 5000]
    organizations = [
        *anything,
        "1",
        seed.ORGANIZATION[:-1],
        seed.ORGANIZATION.replace("-", ""),
        f"{seed.ORGANIZATION}%0A",
    ]
    projects = [
        *anything,
        "-1",
        "+1",
        "1.0",
        "1%0A",
        "%31%00",
        "\u0663",
        "9" * 18,
        "9" * 19,
        seed.ORGANIZATION,
    ]
    paths = [f"/api/organizations/{organization}/members/" for organization in organizations]
    paths += [
        path
        for project in projects
        for path in (
            f"/api/environments/{project}/dashboards/",
            f"{ORGANIZATION}/projects/{project}",
        )
    ]
    async with serving(tmp_path) as service:
        for path in paths:
            assert error_of(await service.ask("GET", path)) == (
                404,
                "invalid_request",
                "not_found",
                None,
            ), path


@cases(
    "path",
    [
        "/api",
        "/api/",
        "/api/x",
        "/api//",
        "/api/organizations/",
        f"{ORGANIZATION}/members//",
        "/api/%ff",
        "/api/a%0Ab",
    ],
)
async def test_a_path_that_leads_nowhere(tmp_path: Path, path: str) -> None:
    """Below `/api/` what isn't there is said in the API's own form, for every
    method and without a key.
    """
    async with serving(tmp_path) as service:
        for method in ("GET", "POST", "PUT", "OPTIONS"):
            assert error_of(await service.ask(method, path, key=None)) == (
                404,
                "invalid_request",
                "not_found",
                None,
            )
        assert (await service.ask("GET", "/apiary", key=None)).status == 404


@cases(
    ("method", "path", "allowed"),
    [
        ("PUT", f"{ORGANIZATION}/domains/{seed.DOMAIN}/", "DELETE, GET, HEAD, PATCH"),
        ("OPTIONS", f"{ORGANIZATION}/domains", "GET, HEAD, POST"),
        ("GET", f"{ORGANIZATION}/invites/bulk/", "POST"),
        ("POST", "/api/surveys", "GET, HEAD, OPTIONS"),
        ("DELETE", "/api/feature_flag/local_evaluation/", "GET, HEAD, OPTIONS"),
        ("PATCH", "/api/projects/1/feature_flags/x/remote_config", "GET, HEAD, OPTIONS"),
    ],
)
async def test_another_method(tmp_path: Path, method: str, path: str, allowed: str) -> None:
    """The answer to a method that a path doesn't have names those it has, also where SDKs
    ask for flags and surveys.
    """
    async with serving(tmp_path) as service:
        reply = await service.ask(method, path, key=None)
        assert error_of(reply) == (405, "invalid_request", "method_not_allowed", None)
        assert reply.headers["Allow"] == allowed


async def test_what_sdks_ask_below_the_same_path(tmp_path: Path) -> None:
    """Flags, surveys and payloads of flags are answered as before, to a project's key or a
    personal one.
    """
    secret = {"Authorization": f"Bearer {seed.OWNER_KEY}"}
    async with serving(tmp_path) as service:
        assert (await service.client.ask("GET", f"/api/surveys/?token={seed.TOKEN}")).json == {
            "surveys": [],
            "survey_config": None,
        }
        definitions = await service.client.ask(
            "GET", f"/api/feature_flag/local_evaluation?token={seed.TOKEN}", None, secret
        )
        assert [flag["key"] for flag in definitions.json["flags"]] == [seed.FLAG]
        path = f"/api/projects/@current/feature_flags/x/remote_config?token={seed.TOKEN}"
        assert (await service.client.ask("GET", path, None, secret)).json["code"] == "not_found"
        assert (
            "Access-Control-Allow-Methods"
            in (await service.client.ask("OPTIONS", "/api/surveys/")).headers
        )


async def test_heads(tmp_path: Path) -> None:
    """HEAD is answered as GET is, without the body."""
    async with serving(tmp_path) as service:
        reply = await service.ask("HEAD", f"{ORGANIZATION}/members/")
        assert (reply.status, reply.text, reply.headers["Content-Type"]) == (
            200,
            "",
            "application/json; charset=utf-8",
        )
        assert (await service.ask("HEAD", f"{ORGANIZATION}/members/", key=None)).status == 401
        assert (await service.ask("HEAD", f"{ORGANIZATION}/invites/bulk/")).status == 405


@cases(
    ("headers", "expected"),
    [
        ({"Content-Type": "application/json"}, 201),
        ({"Content-Type": "Application/JSON; charset=utf-8"}, 201),
        ({"Content-Type": "application/json", "Content-Encoding": "identity"}, 201),
        ({"Content-Type": "application/json", "Content-Encoding": "gzip"}, 415),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({}, 415),
    ],
)
async def test_what_a_body_says_that_it_is(
    tmp_path: Path, headers: dict[str, str], expected: int
) -> None:
    """A body is JSON and not compressed, and says so."""
    async with serving(tmp_path) as service:
        reply = await service.client.ask(
            "POST",
            f"{ORGANIZATION}/projects/",
            json.dumps(NEW).encode(),
            {"Authorization": AUTHORIZED, **headers},
        )
    assert reply.status == expected
    assert expected == 201 or error_of(reply)[1:] == (
        "invalid_request",
        "unsupported_media_type",
        None,
    )


async def test_no_body_at_all(tmp_path: Path) -> None:
    """Nothing is the same as an empty object, whatever it is called; where no body is taken one is
    not looked at.
    """
    async with serving(tmp_path) as service:
        response = await service.ask("POST", f"{ORGANIZATION}/projects/")
        assert response.json["name"] == "Default project"
        headers = {"Authorization": AUTHORIZED, "Content-Type": "text/plain"}
        response = await service.client.ask("POST", f"{ORGANIZATION}/projects/", b"", headers)
        assert response.status == 201
        response = await service.client.ask(
            "GET", f"{ORGANIZATION}/projects/", b"{nonsense", headers
        )
        assert response.json["count"] == 4
        response = await service.client.ask(
            "DELETE", f"{ORGANIZATION}/domains/{seed.DOMAIN}/", b"{" * 1_000_001, headers
        )
        assert response.status == 204


@cases("size", [1_000_000, 1_000_001])
@cases("chunked", [False, True])
async def test_the_largest_body(tmp_path: Path, size: int, chunked: bool) -> None:
    """A megabyte is taken, a byte more is 413, with its length said and without; and that only to
    one who may call.
    """
    body = json.dumps(NEW).encode().ljust(size)
    sent = (
        [b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % size, body, b"\r\n0\r\n\r\n"]
        if chunked
        else [b"Content-Length: %d\r\n\r\n" % size, body]
    )
    for key, expected in (
        (seed.OWNER_KEY, 201 if size == 1_000_000 else 413),
        (seed.STRANGER_KEY, 404),
        ("phx_of_nobody", 401),
    ):
        head = (
            f"POST {ORGANIZATION}/projects/ HTTP/1.1\r\nHost: [::1]\r\nAuthorization: Bearer "
            f"{key}\r\nContent-Type: application/json\r\n"
        )
        async with serving(tmp_path) as service:
            status, _, answer = await raw(service, head.encode(), *sent)
        assert status == expected
        assert status == 201 or set(json.loads(answer)) == {"type", "code", "detail", "attr"}


async def test_a_body_that_is_cut_off(tmp_path: Path) -> None:
    """Anyone who goes away in the middle changes nothing, and no one else notices."""
    head = (
        f"POST {ORGANIZATION}/projects/ HTTP/1.1\r\nHost: localhost\r\nAuthorization: "
        f"{AUTHORIZED}\r\nContent-Type: application/json\r\n"
    )
    async with serving(tmp_path) as service:
        _, writer = await asyncio.open_connection(
            "127.0.0.1", int(service.client.sandbox.url.rpartition(":")[2])
        )
        writer.write(head.encode() + b'Content-Length: 100\r\n\r\n{"name": "x"')
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        assert len(await service.items("projects list")) == 2


async def test_an_empty_answer_has_no_type(tmp_path: Path) -> None:
    """Without a body there is nothing that could be of a type."""
    async with serving(tmp_path) as service:
        for reply in (
            await service.call("batch-exports pause"),
            await service.call("domains delete"),
        ):
            assert reply.text == ""
            assert "Content-Type" not in reply.headers


async def test_links_lead_to_the_host_that_was_asked(tmp_path: Path) -> None:
    """The next page is at the name by which the sandbox was asked, on the path that was asked,
    with all else that was asked.
    """
    path = f"{ORGANIZATION}/members?limit=1&x=%C3%A4&x=2&offset=1"
    head = (
        f"GET {path} HTTP/1.1\r\nHost: sandbox.localhost:80\r\nAuthorization: {AUTHORIZED}\r\n\r\n"
    )
    async with serving(tmp_path) as service:
        _, _, body = await raw(service, head.encode())
        stem = f"http://sandbox.localhost:80{ORGANIZATION}/members?x=%C3%A4&x=2&limit=1&offset="
        assert (json.loads(body)["next"], json.loads(body)["previous"]) == (f"{stem}2", f"{stem}0")
        for host in (b"Host: \r\n", b"Host: [\r\n", b"Host: \xff\xfe\r\n", b""):
            status, _, _ = await raw(
                service,
                f"GET {path} HTTP/1.0\r\nAuthorization: {AUTHORIZED}\r\n".encode(),
                host,
                b"\r\n",
            )
            assert status == (421 if host else 200)


def broken(_call: ManagementCall) -> Result:
    """A handler with a fault."""
    raise RuntimeError("a fault")


async def test_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What no one expected is 500 in the same form, is undone, and is logged without the key; the
    next call is answered.
    """
    handlers: dict[Any, Handler] = {**HANDLERS, LIST_MEMBERS: _writing_then(broken)}
    monkeypatch.setattr(app, "HANDLERS", handlers)
    async with serving(tmp_path) as service:
        with caplog.at_level(logging.ERROR):
            assert error_of(await service.call("members list"))[:3] == (
                500,
                "server_error",
                "error",
            )
        assert [item["name"] for item in await service.items("projects list")] == ["Shop", "App"]
        assert len(await service.items("domains list")) == 2
    assert "members list failed" in caplog.text
    assert "a fault" in caplog.text
    assert seed.OWNER_KEY not in caplog.text


def _writing_then(handler: Handler) -> Handler:
    def both(call: ManagementCall) -> Result:
        call.database.execute("DELETE FROM domains")
        return handler(call)

    return both


async def test_calls_leave_no_record(tmp_path: Path) -> None:
    """Calls aren't among the requests for events, and no key is in the file."""
    path = tmp_path / "x.db"
    async with serving(tmp_path, database=path) as service:
        await service.call("projects create", NEW)
        await service.call("projects create", {"name": 5})
        assert (await service.client.sandbox.summary()).requests == 0
    content = path.read_bytes()
    assert b"phx_" not in content
    assert b'"New"' in content


async def test_no_server_to_call(tmp_path: Path) -> None:
    """Without a seed there are no personal keys, so that everything is 401, and ingestion takes
    every well-formed key.
    """
    async with talking(SandboxOptions(database=tmp_path / "x.db")) as client:
        response = await client.ask(
            "GET", f"{ORGANIZATION}/members/", None, {"Authorization": AUTHORIZED}
        )
        assert response.status == 401
        event = {"event": "e", "distinct_id": "d"}
        response = await client.post(
            "/batch/", {"api_key": "phc_anything_at_all_000", "batch": [event]}
        )
        assert response.status == 200
        assert await client.sandbox.organizations() == 0


class ChangingDns:
    """A DNS that has the challenge, and during whose look-up something happens."""

    arrivals: StoreThread
    challenge: str

    def __init__(self, happens: str) -> None:
        self.happens = happens

    async def texts(self, _name: str) -> list[str]:
        await self.arrivals.run(lambda store: store.connection.execute(self.happens).rowcount)
        return [self.challenge]


@cases(
    "take_away",
    ["DELETE FROM personal_keys", "DELETE FROM members", "UPDATE members SET level = 1"],
)
async def test_a_waiting_call_is_authorized_again(tmp_path: Path, take_away: str) -> None:
    """Who may call when a call begins to wait may not when it continues, if key, membership or
    level are gone by then; nothing is written.
    """

    dns = ChangingDns(take_away)
    async with talking(seed.seeded(tmp_path, resolver=dns)) as client:
        arrivals = dns.arrivals = client.sandbox._thread
        headers = {"Authorization": AUTHORIZED}
        path = f"{ORGANIZATION}/domains/{seed.DOMAIN}/"
        response = await client.ask("GET", path, None, headers)
        dns.challenge = response.json["verification_challenge"]
        assert (await client.ask("POST", path + "verify/", None, headers)).status in (401, 403, 404)
        unverified = "SELECT 1 FROM domains WHERE id = ? AND verified_at IS NULL"
        assert await arrivals.run(lambda store: len(store.select(unverified, [seed.DOMAIN]))) == 1


URL = "http://sandbox.example/api/things/"


@cases(
    ("limit", "offset", "expected"),
    [
        (None, None, PageBounds(100, 0)),
        ("1", "2", PageBounds(1, 2)),
        ("0", "0", PageBounds(100, 0)),
        ("-1", "-1", PageBounds(100, 0)),
        ("x", "x", PageBounds(100, 0)),
        ("", "", PageBounds(100, 0)),
        ("1.5", "1e3", PageBounds(100, 0)),
        ("+1", " 1", PageBounds(100, 0)),
        ("٣", "²", PageBounds(100, 0)),
        ("10000", "10000", PageBounds(10_000, 10_000)),
        ("10001", "007", PageBounds(10_000, 7)),
        ("9" * 5000, "9" * 5000, PageBounds(10_000, 10**18)),
    ],
)
def test_which_page(limit: str | None, offset: str | None, expected: PageBounds) -> None:
    """A limit is 100 unless it is a number above 0, and 10,000 at most; an offset is 0 unless it
    is a number.
    """
    query = {
        name: value for name, value in (("limit", limit), ("offset", offset)) if value is not None
    }
    assert page_bounds(query) == expected


def page(
    items: list[int], bounds: PageBounds, query: list[tuple[str, str]]
) -> PageEnvelope[dict[str, int]]:
    """A page as it is answered."""
    shown = [{"n": item} for item in items[bounds.offset : bounds.offset + bounds.limit]]
    listing = Listing(len(items), shown)
    # The envelope's type doesn't say that its items are those of the listing.
    return page_envelope(listing, bounds, URL, query)  # type: ignore[return-value]


def followed(link: str | None) -> list[tuple[str, str]] | None:
    """The query of a link, which leads to the same list."""
    if link is None:
        return None
    assert link.startswith(URL + "?")
    return parse_qsl(urlsplit(link).query, keep_blank_values=True)


@given(
    st.integers(0, 30),
    st.integers(1, 12),
    st.lists(
        st.tuples(st.sampled_from(["x", "y", "limit", "ü&="]), st.text("aä&=+ %", max_size=3))
    ),
)
def test_following_the_links(count: int, limit: int, query: list[tuple[str, str]]) -> None:
    """`next` leads by every item once, in order, and `previous` all the way back; the rest of the
    query stays.
    """
    items = list(range(count))
    others = [(name, value) for name, value in query if name != "limit"]
    asked: list[tuple[str, str]] | None = [*others, ("limit", str(limit))]
    seen: list[int] = []
    offsets: list[int] = []
    while asked is not None:
        bounds = page_bounds(dict(asked))
        envelope = page(items, bounds, asked)
        assert envelope["count"] == count
        assert [
            parameter for parameter in asked if parameter[0] not in ("limit", "offset")
        ] == others
        seen += [item["n"] for item in envelope["results"]]
        offsets.append(bounds.offset)
        asked = followed(envelope["next"])
    assert seen == items
    while (back := followed(envelope["previous"])) is not None:
        bounds = page_bounds(dict(back))
        offsets.pop()
        assert bounds.offset == offsets[-1]
        envelope = page(items, bounds, back)
    assert offsets == [0]


def test_beyond_the_end() -> None:
    """A page beyond the last item is empty, has no next one, and a previous one."""
    envelope = page([1, 2, 3], PageBounds(2, 50), [])
    assert (envelope["count"], envelope["results"], envelope["next"]) == (3, [], None)
    assert envelope["previous"] == f"{URL}?limit=2&offset=48"
    assert page([1, 2, 3], PageBounds(2, 1), [])["previous"] == f"{URL}?limit=2&offset=0"
