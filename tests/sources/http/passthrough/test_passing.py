"""Requests that are passed through, over real sockets: what arrives, what comes
back, and in which order.
"""

from __future__ import annotations

import asyncio
import gc

from forwarder.sources.http import HttpPolicy
from tests.support.answered import answered, asked, get
from tests.support.cases import cases
from tests.support.listening import chunked, listening, post, turns
from tests.support.origin import OK, Asked, always, origin, through, whole


async def test_a_call_goes_through_and_its_answer_comes_back() -> None:
    """Method, target, headers and body arrive as they were sent; status, headers and body come
    back as they were answered.
    """
    answer = whole(
        b'{"flags":{}}',
        "Content-Type: application/json",
        "X-Thing: a",
        "X-Thing: b",
        status="207 Some Of It",
    )
    async with origin(always(answer)) as upstream, listening(passthrough=through(upstream)) as to:
        client = await to.connect()
        request = post(
            "/flags/?v=2&ip=1&q=%20'a|b",
            b'{"distinct_id":"a"}',
            "User-Agent: sdk/1",
            "Authorization: Bearer x",
            "Cookie: a=b",
        )
        for _ in range(3):
            got = await asked(client, request)
            assert (got.status, got.reason, got.body) == (207, "Some Of It", b'{"flags":{}}')
            assert (got.one("content-type"), got.all("x-thing")) == ("application/json", ["a", "b"])
        first = upstream.asked[0]
        assert (first.method, first.target, first.body) == (
            "POST",
            "/flags/?v=2&ip=1&q=%20'a|b",
            b'{"distinct_id":"a"}',
        )
        assert first.lines == [
            ("host", f"127.0.0.1:{upstream.port}"),
            ("user-agent", "sdk/1"),
            ("authorization", "Bearer x"),
            ("cookie", "a=b"),
            ("x-forwarded-for", "127.0.0.1"),
            ("via", "1.1 forwarder"),
            ("content-length", "19"),
        ]
        assert upstream.connections == 1
        assert to.passthrough is not None
        assert to.passthrough.statistics().requests == {("/flags", 207): 3}
        assert to.listener.statistics().requests == {}
        assert to.intake.accepted == []


@cases("slash", ["", "/"])
@cases(
    "path",
    [
        "/decide",
        "/flags",
        "/flags/definitions",
        "/api/feature_flag/local_evaluation",
        "/s",
        "/i/v0/ai/batch",
    ],
)
async def test_paths(path: str, slash: str) -> None:
    """Each path goes through with and without its slash, by GET and POST."""
    async with origin() as upstream, listening(passthrough=through(upstream)) as to:
        client = await to.connect()
        assert (await asked(client, get(path + slash))).body == b"ok"
        assert (await asked(client, post(path + slash, b"x"))).body == b"ok"
        assert upstream.targets == [path + slash] * 2


@cases("target", ["//flags/?v=2", "////flags/?v=2", "http://h//flags/?v=2"])
async def test_slashes_at_the_beginning(target: str) -> None:
    """SDKs whose host ends with a slash ask for `//flags/`: the upstream is asked with
    one slash.
    """
    async with origin() as upstream, listening(passthrough=through(upstream)) as to:
        assert (await asked(await to.connect(), post(target, b"x"))).body == b"ok"
        assert upstream.targets == ["/flags/?v=2"]


@cases("slash", ["", "/"])
async def test_older_definitions_are_read_only(slash: str) -> None:
    """Where older SDKs list flags only GET and HEAD go through: a POST would create a flag."""
    async with origin() as upstream, listening(passthrough=through(upstream)) as to:
        client = await to.connect()
        assert (await asked(client, get(f"/api/feature_flag{slash}?token=x"))).body == b"ok"
        got = await asked(client, post(f"/api/feature_flag{slash}", b"{}"))
        assert (got.status, got.one("allow")) == (405, "GET, HEAD, OPTIONS")
        reply = await asked(
            client, f"OPTIONS /api/feature_flag{slash} HTTP/1.1\r\nHost: a\r\n\r\n".encode()
        )
        assert reply.status == 204
        assert upstream.targets == [f"/api/feature_flag{slash}?token=x"]


async def test_assets_go_to_their_own_address() -> None:
    """What is under /array/ and /static/ is asked of `assets_url`, the rest of `url`."""
    async with (
        origin() as upstream,
        origin() as assets,
        listening(passthrough=through(upstream, assets)) as to,
    ):
        client = await to.connect()
        for path in (
            "/array/phc_x/config.js",
            "/static/recorder.js?v=1.2",
            "/static/1.2.3/a-b_c.js",
            "/flags",
        ):
            assert (await asked(client, get(path))).status == 200
        assert assets.targets == [
            "/array/phc_x/config.js",
            "/static/recorder.js?v=1.2",
            "/static/1.2.3/a-b_c.js",
        ]
        assert upstream.targets == ["/flags"]


@cases(
    "target",
    [
        "/api/projects/",
        "/api/feature_flag/1/",
        "/array",
        "/array/",
        "/static/",
        "/i",
        "/",
        "/flags/x",
        "/Flags",
        "/decide//",
        "//api/x",
        "//decide//x",
        "/static/../api/x",
        "/static/..",
        "/i/./v0/e",
        "/static/%2e%2e/api",
        "/static/a%2fb",
        "/static/..;/x",
        "/static//x",
        "/static/a\\b",
        "/flags#x",
        "/static/...",
        "http://h/static/../api",
        "http://h//api",
        "*",
        "/i/v0/e/../x",
        "/flags%2fdefinitions",
        "/s/x",
    ],
)
async def test_nothing_else_goes_through(target: str) -> None:
    """No other path is passed on, nor one that could be read as another."""
    async with origin() as upstream, listening(passthrough=through(upstream)) as to:
        client = await to.connect()
        got = await asked(client, get(target))
        assert got.status in (400, 404)
        assert upstream.asked == []


async def test_a_target_in_absolute_form() -> None:
    """The host of a target in absolute form makes no difference: the upstream's is asked."""
    async with origin() as upstream, listening(passthrough=through(upstream)) as to:
        client = await to.connect()
        assert (await asked(client, get("http://evil.example/flags?v=2"))).status == 200
        assert upstream.targets == ["/flags?v=2"]
        assert upstream.asked[0].headers["host"] == f"127.0.0.1:{upstream.port}"


async def test_without_passthrough() -> None:
    """Without it these paths are 404, as all others."""
    async with listening() as to:
        assert (await to.ask(post("/flags", b"x"))).status == 404


async def test_events_are_still_accepted() -> None:
    """Events and calls that are passed through take turns on one connection, in order, heads that
    were seen before too.
    """
    async with origin() as upstream, listening(passthrough=through(upstream)) as to:
        client = await to.connect()
        for _ in range(3):
            assert (await asked(client, post("/batch/"))).body == b'{"status":"Ok"}'
            assert (await asked(client, post("/flags/", b"abc"))).body == b"ok"
        assert to.intake.bodies == [b"{}"] * 3
        assert len(upstream.asked) == 3


async def test_answers_keep_the_order_of_requests() -> None:
    """Pipelined: events behind a slow flag call, flag calls behind an event that isn't
    acknowledged yet, a fast call behind a slow one.
    """
    slow = asyncio.Event()

    async def handler(request: Asked) -> None:
        await request.read()
        if "slow" in request.target:
            await slow.wait()
        await request.write(whole(request.target.encode()))

    async with origin(handler) as upstream, listening(passthrough=through(upstream)) as to:
        to.intake.later = lambda incoming: incoming.body == b"late"
        client = await to.connect()
        mixed = [
            post("/batch", b"late"),
            get("/flags?slow"),
            post("/e"),
            get("/decide?fast"),
            post("/e", b"late"),
            get("/x"),
            get("/s/"),
        ]
        await client.send(b"".join(mixed))
        await to.until(lambda: len(upstream.asked) == 3)
        await turns(20)
        assert client.reader._buffer == b""  # type: ignore[attr-defined]
        slow.set()
        await turns(20)
        assert client.reader._buffer == b""  # type: ignore[attr-defined]
        to.intake.acknowledge(2)
        got = [await answered(client) for _ in range(7)]
        ok = b'{"status":"Ok"}'
        assert [one.body for one in got[:5]] == [ok, b"/flags?slow", ok, b"/decide?fast", ok]
        assert (got[5].status, got[6].body) == (404, b"/s/")


@cases("size", [0, 1, 5_000, 3_000_000])
async def test_bodies_in_chunks(size: int) -> None:
    """A body of unknown length continues in chunks, and an answer of unknown
    length comes back in chunks.
    """
    body = bytes(range(256)) * (size // 256 + 1)

    async def handler(request: Asked) -> None:
        await request.read()
        await request.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-A: b\r\n\r\n")
        for start in range(0, len(request.body), 100_000):
            piece = request.body[start : start + 100_000]
            await request.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        await request.write(b"0\r\n\r\n")

    async with origin(handler) as upstream, listening(passthrough=through(upstream)) as to:
        client = await to.connect()
        pieces = [body[start : start + 70_000] for start in range(0, size, 70_000)]
        got = await asked(
            client,
            chunked(*[piece[: size - 70_000 * n] for n, piece in enumerate(pieces)], path="/s/"),
        )
        assert got.body == body[:size]
        assert upstream.asked[0].headers["transfer-encoding"] == "chunked"
        assert "content-length" not in upstream.asked[0].headers
        assert (await asked(client, post("/s/", b"abc"))).body == b"abc"


async def test_answers_without_a_body() -> None:
    """HEAD keeps the length that the body would have; 204 and 304 have no body; the connection
    continues.
    """
    answers = {
        "HEAD": b"HTTP/1.1 200 OK\r\nContent-Length: 12345\r\nETag: x\r\n\r\n",
        "204": b"HTTP/1.1 204 No Content\r\n\r\n",
        "304": b"HTTP/1.1 304 Not Modified\r\nETag: x\r\nContent-Length: 77\r\n\r\n",
        "empty": b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    }

    async def handler(request: Asked) -> None:
        await request.write(answers[request.target.partition("?")[2]])

    async with origin(handler) as upstream, listening(passthrough=through(upstream)) as to:
        client = await to.connect()
        head = await asked(client, get("/static/a.js?HEAD", method="HEAD"))
        assert (head.status, head.one("content-length"), head.one("etag")) == (200, "12345", "x")
        assert (await asked(client, get("/static/a.js?204"))).lines == []
        not_modified = await asked(client, get("/static/a.js?304"))
        assert (not_modified.status, not_modified.one("content-length")) == (304, "77")
        assert (await asked(client, get("/static/a.js?empty"))).body == b""
        assert upstream.connections == 1


async def test_nothing_is_decoded() -> None:
    """Bodies in a coding go through untouched, in both directions, and redirects
    aren't followed.
    """
    packed = b"\x1f\x8b\x08not really gzip"
    answer = whole(packed, "Content-Encoding: gzip", "Location: /elsewhere", status="302 Found")
    async with origin(always(answer)) as upstream, listening(passthrough=through(upstream)) as to:
        client = await to.connect()
        got = await asked(
            client, post("/decide", packed, "Content-Encoding: gzip", "Accept-Encoding: gzip, br")
        )
        assert (got.status, got.body, got.one("content-encoding"), got.one("location")) == (
            302,
            packed,
            "gzip",
            "/elsewhere",
        )
        assert upstream.asked[0].body == packed
        assert (
            upstream.asked[0].headers["content-encoding"],
            upstream.asked[0].headers["accept-encoding"],
        ) == ("gzip", "gzip, br")
        assert len(upstream.asked) == 1


async def test_http_1_0() -> None:
    """A sender of HTTP/1.0 gets no chunks: the end of the connection is the end of the body; a
    length is kept where there is one.
    """
    streamed = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    async with origin(always(streamed)) as upstream, listening(passthrough=through(upstream)) as to:
        for headers in ((), ("Connection: keep-alive",)):
            client = await to.connect()
            got = await asked(client, post("/flags", b"x", *headers, version="1.0"))
            assert (got.body, got.one("transfer-encoding"), got.one("connection")) == (
                b"abc",
                None,
                "close",
            )
        upstream.handler = always(OK)
        client = await to.connect()
        got = await asked(client, post("/flags", b"x", version="1.0"))
        assert (got.body, got.one("content-length"), await client.ended()) == (b"ok", "2", b"")


async def test_connection_close() -> None:
    """A sender that says that it closes gets `Connection: close`, and the end after the answer."""
    async with origin() as upstream, listening(passthrough=through(upstream)) as to:
        client = await to.connect()
        got = await asked(client, post("/flags", b"x", "Connection: close"))
        assert (got.body, got.one("connection"), await client.ended()) == (b"ok", "close", b"")
        assert "connection" not in upstream.asked[0].headers


async def test_a_sender_that_closes_its_side() -> None:
    """Who still waits for events to be acknowledged gets all answers; who waits for the upstream
    alone is taken to have left.
    """
    async with origin() as upstream, listening(passthrough=through(upstream)) as to:
        to.intake.later = lambda incoming: incoming.body == b"late"
        client = await to.connect()
        await client.send(post("/e", b"late") + post("/flags", b"x"))
        await to.until(lambda: len(upstream.asked) == 1)
        client.writer.write_eof()
        await turns(20)
        to.intake.acknowledge()
        assert (await answered(client)).body == b'{"status":"Ok"}'
        assert (await answered(client)).body == b"ok"
        assert await client.ended() == b""


async def test_expect_100_continue() -> None:
    """The sender is asked to continue, and the upstream isn't asked to say so."""
    async with origin() as upstream, listening(passthrough=through(upstream)) as to:
        client = await to.connect()
        request = post("/flags", b"abc", "Expect: 100-continue")
        await client.send(request[:-3])
        assert await client.reader.readexactly(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
        await client.send(request[-3:])
        assert (await answered(client)).body == b"ok"
        assert upstream.asked[0].body == b"abc"
        assert "expect" not in upstream.asked[0].headers


async def test_an_offer_of_another_protocol_is_ignored() -> None:
    """A call with `Upgrade: h2c` goes through with all its other headers, as a request
    of HTTP/1.1.
    """
    async with origin() as upstream, listening(passthrough=through(upstream)) as to:
        client = await to.connect()
        offer = (
            "Connection: Upgrade, HTTP2-Settings",
            "Upgrade: h2c",
            "HTTP2-Settings: AAA",
            "Authorization: Bearer z",
            "X-Mine: 1",
        )
        assert (await asked(client, post("/flags", b"abc", *offer))).body == b"ok"
        seen = upstream.asked[0].headers
        assert (seen["authorization"], seen["x-mine"], upstream.asked[0].body) == (
            "Bearer z",
            "1",
            b"abc",
        )
        assert not {"upgrade", "connection", "http2-settings"} & set(seen)


@cases("method", ["PUT", "DELETE", "PATCH", "TRACE"])
async def test_other_methods(method: str) -> None:
    """Only GET, HEAD and POST go through."""
    async with origin() as upstream, listening(passthrough=through(upstream)) as to:
        client = await to.connect()
        got = await asked(client, post("/flags", b"abc").replace(b"POST", method.encode()))
        assert (got.status, got.one("allow")) == (405, "GET, HEAD, POST, OPTIONS")
        assert (await asked(client, get("/flags"))).status == 200
        assert len(upstream.asked) == 1


@cases(
    ("target", "arrives"),
    [
        ("/ingest/flags/?v=2", "/flags/?v=2"),
        ("http://a/ingest/array/phc_x/config.js", "/array/phc_x/config.js"),
        ("/ingest/static/recorder.js?v=1", "/static/recorder.js?v=1"),
        ("//ingest//flags", "/flags"),
        ("/ingest/s/?x=/ingest/s", "/s/?x=/ingest/s"),
        ("/s/?x=/ingest/s", "/s/?x=/ingest/s"),
    ],
)
async def test_below_a_prefix(target: str, arrives: str) -> None:
    """A prefix is known here alone: the upstream is asked for the path that follows it, and it is
    counted by that.
    """
    async with (
        origin() as upstream,
        listening(HttpPolicy(path_prefixes=("/ingest",)), passthrough=through(upstream)) as to,
    ):
        assert (await asked(await to.connect(), post(target, b"abc"))).body == b"ok"
        assert (upstream.targets, upstream.asked[0].body) == ([arrives], b"abc")
        assert to.passthrough is not None
        assert [path for path, _ in to.passthrough.statistics().requests] == [
            "/" + arrives.split("/")[1].partition("?")[0]
        ]


@cases(
    "target",
    [
        "/ingestX/flags",
        "/ingest/../flags",
        "/ingest/flags//x",
        "/ingest/api/projects",
        "/ingest/%2e%2e/flags",
    ],
)
async def test_paths_cannot_leave_a_prefix(target: str) -> None:
    """Below a prefix the same paths are 404 as without one."""
    async with (
        origin() as upstream,
        listening(HttpPolicy(path_prefixes=("/ingest",)), passthrough=through(upstream)) as to,
    ):
        assert (await asked(await to.connect(), post(target, b"abc"))).status == 404
        assert upstream.asked == []


async def test_a_recording_may_be_larger_than_events() -> None:
    """`max_body` of the listener is for events: what is passed through has a limit of its own, and
    a sender that is answered 503 stays.
    """
    async with (
        origin() as upstream,
        listening(HttpPolicy(max_body=10), passthrough=through(upstream, max_body=1000)) as to,
    ):
        client = await to.connect()
        assert (await asked(client, post("/s/", b"x" * 1000))).status == 200
        assert (await asked(client, chunked(b"x" * 1000, path="/s/"))).status == 200
        await upstream.stop()
        assert (await asked(client, post("/s/", b"x" * 1000))).status == 503
        assert (await asked(client, post("/e/", b"x" * 10))).status == 200
        assert (await asked(client, post("/e/", b"x" * 11))).status == 413


async def test_max_body() -> None:
    """A body over the limit is 413: by its length at once, in chunks when it is; the upstream
    doesn't take half of it for a whole.
    """
    async with origin() as upstream, listening(passthrough=through(upstream, max_body=1000)) as to:
        client = await to.connect()
        assert (await asked(client, post("/s/", b"x" * 1001))).status == 413
        client = await to.connect()
        await client.send(chunked(b"x" * 999, path="/s/")[:-5])
        await to.until(lambda: len(upstream.asked) == 1)
        await client.send(b"2\r\nxx\r\n")
        assert (await answered(client)).status == 413
        await asyncio.wait_for(upstream.asked[0].gone.wait(), 5)
        assert (await asked(await to.connect(), post("/s/", b"x" * 1000))).status == 200


async def test_a_call_leaves_nothing_to_the_garbage_collector() -> None:
    """What is made for it refers to nothing in a circle: collecting that took a fifth of what a
    call costs.
    """
    async with origin() as upstream, listening(passthrough=through(upstream)) as to:
        client = await to.connect()
        await asked(client, post("/flags", b"x"))
        gc.collect()
        gc.disable()
        try:
            for _ in range(10):
                assert (await asked(client, post("/flags", b"x"))).body == b"ok"
            assert gc.collect() < 10
        finally:
            gc.enable()
