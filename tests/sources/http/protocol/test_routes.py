"""Which paths are taken, and what is counted."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from forwarder.sources.http import HttpPolicy
from forwarder.sources.http.passthrough.allowed import PassedRoutes
from forwarder.sources.http.protocol.routes import Routes, is_beacon, origin_form
from tests.support.cases import cases
from tests.support.listening import listening, post

PREFIXES = ("/ingest", "/api/events")
FIRST_PARTY = HttpPolicy(path_prefixes=PREFIXES)
PIECES = [
    "/",
    "//",
    "/batch",
    "/e",
    "/i/v0/e",
    "/i/v1/analytics/events",
    "/engage",
    "/static",
    "/array/x/config.js",
    "/flags",
    "/s",
    "/api",
    "/feature_flag/local_evaluation",
    "/ingest",
    "/ingestX",
    "/api/events",
    "/..",
    "/%2e%2e",
    "x",
    "?",
    "?a=/ingest/e",
    "#",
    "http://h",
]


@cases("path", ["/batch", "/i/v0/e", "/capture", "/e", "/track", "/engage"])
@cases("slash", ["", "/"])
async def test_accepted_routes(path: str, slash: str) -> None:
    """Each ingestion path is taken with and without its slash, never redirected."""
    async with listening() as to:
        reply = await to.ask(post(path + slash, b"abc"))
        assert (reply.status, reply.body) == (200, b'{"status":"Ok"}')
        assert reply.headers == {"content-type": "application/json", "content-length": "15"}
        assert to.intake.bodies == [b"abc"]
        assert to.listener.statistics().requests == {(path, 200): 1}


@cases(
    "path",
    [
        "/",
        "/api/projects/",
        "/batch//",
        "/Batch",
        "/e/x",
        "//e/x",
        "//",
        "/decide",
        "/%65/",
        "/i/v0/e/e",
        "/batch%2F",
    ],
)
async def test_not_found(path: str) -> None:
    """Any other path is 404, counted as `other`, and the connection continues."""
    async with listening() as to:
        client = await to.connect()
        reply = await client.ask(post(path, b"abc"))
        assert (reply.status, reply.headers["content-type"]) == (404, "text/plain; charset=utf-8")
        assert (await client.ask(post())).status == 200
        assert to.listener.statistics().requests == {("other", 404): 1, ("/batch", 200): 1}
        assert to.intake.bodies == [b"{}"]


@cases("method", ["GET", "HEAD", "PUT", "DELETE", "PATCH", "TRACE", "PROPFIND"])
async def test_method_not_allowed(method: str) -> None:
    """Only POST brings events: anything else on an ingestion path is 405 with Allow, GET with
    `data` too, and HEAD has no body.
    """
    async with listening() as to:
        client = await to.connect()
        reply = await client.ask(f"{method} /e/?data=e30= HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        assert (reply.status, reply.headers["allow"]) == (405, "POST, OPTIONS")
        assert (await client.ask(post())).status == 200
        assert to.listener.statistics().requests[("/e", 405)] == 1


async def test_connect() -> None:
    """CONNECT is refused, and what follows is not taken for requests."""
    async with listening() as to:
        client = await to.connect()
        reply = await client.ask(b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n" + post())
        assert (reply.status, reply.headers["connection"]) == (405, "close")
        assert await client.ended() == b""
        assert to.intake.accepted == []


@cases("target", ["http://a/batch/?x=1", "HTTPS://a:8/batch/?x=1", "/batch/?x=1"])
async def test_target_forms(target: str) -> None:
    """A target in absolute form names the same route, and the query is passed on as it was."""
    async with listening() as to:
        assert (await to.ask(post(target))).status == 200
        assert to.intake.accepted[0].query == b"x=1"


@cases(
    "target",
    ["//batch/", "//batch", "/////i/v0/e/?x=1", "http://a//batch/", "//batch/?u=http://b//c"],
)
async def test_slashes_at_the_beginning(target: str) -> None:
    """SDKs whose host ends with a slash post to `//batch/`: any number of slashes at the beginning
    counts as one, also in a known head.
    """
    async with listening() as to:
        client = await to.connect()
        for _ in range(3):
            assert (await client.ask(post(target))).status == 200
        assert set(to.listener.statistics().requests) == {
            ("/i/v0/e" if "v0" in target else "/batch", 200)
        }
        assert {incoming.query for incoming in to.intake.accepted} == {
            target.partition("?")[2].encode()
        }


@cases(
    ("query", "status"),
    [
        ("beacon=1", 204),
        ("a=b&beacon=1&c", 204),
        ("beacon=12", 200),
        ("xbeacon=1", 200),
        ("beacon=0", 200),
    ],
)
async def test_beacon(query: str, status: int) -> None:
    """A beacon gets 204 without a body."""
    async with listening() as to:
        for _ in range(3):
            client = await to.connect()
            await client.send(post(f"/e/?{query}", b"x"), post("/batch"))
            first = await client.reply()
            second = await client.reply()
            assert (first.status, second.status) == (status, 200)
            assert ("content-length" in first.headers) == (status == 200)
        assert is_beacon(query.encode()) == (status == 204)


def test_finding_is_total() -> None:
    """Whatever the target is, there is a route for it, and none is made up."""
    routes = Routes()
    for url in (
        b"",
        b"*",
        b"a:1",
        b"http://",
        b"http://a",
        b"http:///e/",
        b"?",
        b"/e?",
        b"/e/??",
        b"/e#?x",
    ):
        route, _ = routes.find(url)
        assert route.name in {"other", "/e"}
    assert routes.requests() == {}


@given(st.sampled_from(PREFIXES), st.lists(st.sampled_from(PIECES), max_size=5).map("".join))
@example("/ingest", "/e/?beacon=1")
@example("/ingest", "/ingest/e")
def test_a_prefix_changes_no_answer(prefix: str, rest: str) -> None:
    """Whatever a path means without a prefix, it means below one, in absolute form too; and paths
    without one mean what they did.
    """
    plain = Routes()
    prefixed = Routes(PREFIXES)
    allowed = PassedRoutes()
    target = ("/" + rest).encode()
    for scheme in (b"", b"http://h", b"HTTPS://h:8"):
        route, query = plain.find(scheme + target)
        prefixed_route, found_query = prefixed.find(scheme + prefix.encode() + target)
        assert (
            prefixed_route.name,
            prefixed_route.protocol,
            prefixed_route.event,
            found_query,
        ) == (
            route.name,
            route.protocol,
            route.event,
            query,
        )
        assert prefixed.target(scheme + prefix.encode() + target) == origin_form(target)
    if prefixed.target(target) == origin_form(target):
        assert prefixed.find(target)[0].name == plain.find(target)[0].name
        assert allowed.find(prefixed.target(target)) is allowed.find(target)


@cases(
    "path",
    [
        "/ingestX/e",
        "/ingest",
        "/ingest/",
        "/Ingest/e",
        "/inges/e",
        "/api/e",
        "/ingest/ingest/e",
        "/ingest%2Fe",
        "/x/ingest/e",
    ],
)
async def test_not_below_a_prefix(path: str) -> None:
    """A prefix ends where a segment does, is compared as it is, and is taken off once."""
    async with listening(FIRST_PARTY) as to:
        assert (await to.ask(post(path, b"abc"))).status == 404
        assert to.intake.accepted == []


@cases(
    "target",
    [
        "/ingest/batch",
        "/ingest/batch/",
        "/api/events/batch/",
        "http://a/ingest/batch",
        "//ingest//batch",
        "/batch",
    ],
)
async def test_below_a_prefix(target: str) -> None:
    """Events come in below each prefix as they do without one, counted by the path that follows
    it; a known head stays known.
    """
    async with listening(FIRST_PARTY) as to:
        client = await to.connect()
        for body in (b"a", b"bc", b"def"):
            reply = await client.ask(post(target + "?x=1", body))
            assert (reply.status, reply.body) == (200, b'{"status":"Ok"}')
        assert [(incoming.body, incoming.query) for incoming in to.intake.accepted] == [
            (body, b"x=1") for body in (b"a", b"bc", b"def")
        ]
        assert to.listener.statistics().requests == {("/batch", 200): 3}
        answer = await client.ask(f"GET {target} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        assert answer.status == 405
