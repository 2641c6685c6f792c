"""Polls for flag definitions, and the cache that answers them."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from forwarder.sources.http.passthrough.definitions import (
    ENTRY_OVERHEAD,
    MAX_ENTRY,
    ResponseCache,
    UpstreamResponse,
    cache_key,
    matches,
)
from forwarder.sources.http.passthrough.upstream import FAILURES
from tests.support.answered import RawAnswer, answered, asked, get
from tests.support.cases import cases
from tests.support.listening import RawConnection, listening, turns
from tests.support.origin import Asked, Handler, always, hang, ok, origin, through, whole

STALE = '110 - "Response is Stale"'
FAILED = '111 - "Revalidation Failed"'
DEFINITIONS = whole(b'{"flags":[]}', 'ETag: "one"', "Content-Type: application/json")


def poll(key: str = "a", path: str = "/flags/definitions?token=phc_x", *headers: str) -> bytes:
    """One poll."""
    return get(path, f"Authorization: Bearer {key}", *headers)


async def ask(client: RawConnection, *arguments: str) -> RawAnswer:
    """Poll."""
    return await asked(client, poll(*arguments))


async def definitions(request: Asked) -> None:
    """Answers as the service does: 304 to who has them."""
    if request.headers.get("if-none-match") == '"one"':
        await request.write(b'HTTP/1.1 304 Not Modified\r\nETag: "one"\r\n\r\n')
    else:
        await request.write(DEFINITIONS)


@cases(
    "path",
    [
        "/flags/definitions?token=phc_x",
        "/api/feature_flag/local_evaluation/?token=phc_x&send_cohorts",
        "/api/feature_flag/",
    ],
)
async def test_asked_once_while_fresh(path: str) -> None:
    """Polls within `definitions_max_age` get one answer, with its age, and the upstream is asked
    once; then it is asked for changes.
    """
    async with origin(definitions) as upstream, listening(passthrough=through(upstream)) as to:
        client = await to.connect()
        other = await to.connect()
        for age in range(10):
            got = await ask([client, other][age % 2], "a", path)
            assert (got.status, got.body, got.one("age"), got.one("etag")) == (
                200,
                b'{"flags":[]}',
                str(age),
                '"one"',
            )
            assert (got.one("content-type"), got.all("warning")) == ("application/json", [])
            await to.clock.advance(1)
        assert len(upstream.asked) == 1
        got = await ask(client, "a", path)
        assert (got.status, got.body, got.one("age")) == (200, b'{"flags":[]}', "0")
        assert [request.headers.get("if-none-match") for request in upstream.asked] == [
            None,
            '"one"',
        ]
        assert {request.headers["accept-encoding"] for request in upstream.asked} == {"identity"}
        assert to.passthrough is not None
        assert to.passthrough.statistics().cached == 1


async def test_a_served_answer_has_one_age_header() -> None:
    """The age that a cache before the upstream tells gives way to ours: two would be
    no age at all.
    """
    async with (
        origin(always(whole(b"[]", "Age: 7"))) as upstream,
        listening(passthrough=through(upstream)) as to,
    ):
        client = await to.connect()
        for age in ("0", "3"):
            assert (await ask(client)).one("age") == age
            await to.clock.advance(3)


async def test_credentials_for_this_hop_alone() -> None:
    """Credentials that `Connection` names aren't sent on, so what the upstream says then isn't
    kept as said to them.
    """

    async def whose(request: Asked) -> None:
        await request.write(whole(request.headers.get("authorization", "nobody").encode()))

    async with origin(whose) as upstream, listening(passthrough=through(upstream)) as to:
        client = await to.connect()
        reply = await ask(client, "a", "/flags/definitions", "Connection: Authorization")
        assert reply.body == b"nobody"
        assert (await ask(client, "a", "/flags/definitions")).body == b"Bearer a"


async def test_changed() -> None:
    """What the upstream says anew replaces what it said."""
    async with (
        origin(definitions) as upstream,
        listening(passthrough=through(upstream, definitions_max_age=0)) as to,
    ):
        client = await to.connect()
        assert (await ask(client)).one("etag") == '"one"'
        upstream.handler = always(whole(b"new", 'ETag: "two"'))
        got = await ask(client)
        assert (got.body, got.one("etag")) == (b"new", '"two"')


async def test_a_sender_that_has_them() -> None:
    """`If-None-Match` is answered 304 from the cache, without a body; with another
    tag, the whole.
    """
    async with origin(definitions) as upstream, listening(passthrough=through(upstream)) as to:
        client = await to.connect()
        first = await ask(client, "a", "/flags/definitions", 'If-None-Match: "one"')
        assert (first.status, upstream.asked[0].headers.get("if-none-match")) == (304, None)
        got = await ask(client, "a", "/flags/definitions", 'If-None-Match: "zero", W/"one"')
        assert (got.status, got.one("etag"), got.one("content-type"), got.one("age")) == (
            304,
            '"one"',
            None,
            "0",
        )
        got = await ask(client, "a", "/flags/definitions", 'If-None-Match: "zero"')
        assert (got.status, got.body) == (200, b'{"flags":[]}')
        assert len(upstream.asked) == 1


async def test_credentials_are_kept_apart() -> None:
    """No one gets what another's credentials got; a poll without any isn't answered
    from the cache.
    """

    async def by_key(request: Asked) -> None:
        await request.write(whole(request.headers.get("authorization", "none").encode()))

    async with origin(by_key) as upstream, listening(passthrough=through(upstream)) as to:
        client = await to.connect()
        for _ in range(2):
            assert [(await ask(client, key)).body for key in "abc"] == [
                b"Bearer a",
                b"Bearer b",
                b"Bearer c",
            ]
            assert (await asked(client, get("/flags/definitions?token=phc_x"))).body == b"none"
        assert len(upstream.asked) == 4


async def test_concurrent_polls_share_one_request() -> None:
    """Also if the one who caused it leaves."""
    go = asyncio.Event()

    async def slow(request: Asked) -> None:
        await asyncio.wait_for(go.wait(), 5)
        await request.write(DEFINITIONS)

    async with origin(slow) as upstream, listening(passthrough=through(upstream)) as to:
        clients = [await to.connect() for _ in range(5)]
        for client in clients:
            await client.send(poll())
        await to.until(lambda: len(upstream.asked) == 1)
        await clients[0].close()
        await turns(20)
        go.set()
        assert {(await answered(client)).body for client in clients[1:]} == {b'{"flags":[]}'}
        assert len(upstream.asked) == 1


async def reset(request: Asked) -> None:
    """Break off."""
    request.reset()
    raise ConnectionResetError


@cases(
    "handler",
    [reset, hang, always(whole(b"no", status="500 E")), always(whole(b"no", status="503 E"))],
)
async def test_served_stale_while_the_upstream_is_down(handler: Handler) -> None:
    """With its age and warnings, for as long as it takes, also while no one is let through to the
    upstream; then fresh ones again.
    """
    async with origin(definitions) as upstream, listening(passthrough=through(upstream)) as to:
        client = await to.connect()
        await ask(client)
        upstream.handler = handler
        age = 0
        for seconds in (10, 31, 60, 120, 240, 31, 31):
            await to.clock.advance(seconds)
            client = await to.connect()
            before = len(upstream.asked)
            await client.send(poll())
            if handler is hang:
                await to.until(lambda: len(upstream.asked) > before)  # noqa: B023
                await to.clock.advance(2)
                age += 2
            got = await answered(client)
            age += seconds
            assert (got.status, got.body, got.one("age"), got.all("warning")) == (
                200,
                b'{"flags":[]}',
                str(age),
                [STALE, FAILED],
            )
        if to.passthrough is not None and to.passthrough.statistics().failing:
            got = await ask(client)
            assert (got.status, got.all("warning")) == (200, [STALE])
            not_modified = await ask(
                client, "a", "/flags/definitions?token=phc_x", 'If-None-Match: "one"'
            )
            assert (not_modified.status, not_modified.all("warning")) == (304, [STALE])
        upstream.handler = definitions
        await to.clock.advance(31)
        got = await ask(await to.connect())
        assert (got.one("age"), got.all("warning")) == ("0", [])


async def test_nothing_to_serve() -> None:
    """Without an answer from before the failure is reported: 503, what the upstream said, 503 at
    once when it isn't asked any more.
    """
    async with origin(reset) as upstream, listening(passthrough=through(upstream)) as to:
        client = await to.connect()
        assert (await ask(client)).status == 503
        upstream.handler = always(whole(b"why", status="500 E"))
        assert (await ask(client)).body == b"why"
        upstream.handler = reset
        for _ in range(FAILURES):
            assert (await ask(client)).status == 503
        got = await ask(client)
        assert (got.status, got.one("retry-after")) == (503, "1")


@cases("status", [401, 403])
async def test_credentials_that_are_refused(status: int) -> None:
    """End what was kept under them, which isn't served stale either."""
    async with origin(definitions) as upstream, listening(passthrough=through(upstream)) as to:
        client = await to.connect()
        assert (await ask(client, "a")).status == (await ask(client, "b")).status == 200
        upstream.handler = always(whole(b"no", status=f"{status} No"))
        await to.clock.advance(11)
        for _ in range(2):
            got = await ask(client, "a")
            assert (got.status, got.body, got.one("age")) == (status, b"no", None)
        upstream.handler = reset
        assert (await ask(client, "a")).status == 503
        assert (await ask(client, "b")).status == 200


async def test_other_answers_are_passed_on_and_not_kept() -> None:
    """A limit that was reached, say; what was kept before is kept for when the upstream is down."""
    async with origin(definitions) as upstream, listening(passthrough=through(upstream)) as to:
        client = await to.connect()
        await ask(client)
        await to.clock.advance(11)
        upstream.handler = always(whole(b"wait", "Retry-After: 9", status="429 Slow"))
        got = await ask(client)
        assert (got.status, got.one("retry-after")) == (429, "9")
        upstream.handler = reset
        assert (await ask(client)).body == b'{"flags":[]}'


@cases("method", ["/flags", "/decide", "POST", "HEAD", "Cookie: a=b", "Range: bytes=0-1"])
async def test_persons_flags_are_never_cached(method: str) -> None:
    """Flags of persons, and polls that aren't plain ones, are asked each time."""
    async with origin(definitions) as upstream, listening(passthrough=through(upstream)) as to:
        client = await to.connect()
        path = method if method.startswith("/") else "/flags/definitions"
        headers = [method] if ":" in method else []
        for _ in range(3):
            await asked(
                client,
                get(
                    path,
                    "Authorization: a",
                    *headers,
                    method=method if method in ("POST", "HEAD") else "GET",
                ),
            )
        assert len(upstream.asked) == 3
        assert to.passthrough is not None
        assert to.passthrough.statistics().cached == 0


async def test_answers_that_cant_be_kept() -> None:
    """Too large, in a coding that not everyone reads, or with a cookie for one: they are passed
    through, each sender's its own.
    """
    large = whole(b"x" * (MAX_ENTRY + 1))
    for answer in (
        large,
        whole(b"packed", "Content-Encoding: gzip"),
        whole(b"x", "Set-Cookie: a=b"),
    ):
        async with (
            origin(always(answer)) as upstream,
            listening(passthrough=through(upstream)) as to,
        ):
            client = await to.connect()
            for _ in range(3):
                got = await asked(client, poll("a", "/flags/definitions", "Accept-Encoding: gzip"))
                assert got.body == answer.partition(b"\r\n\r\n")[2]
            assert [request.headers["accept-encoding"] for request in upstream.asked] == [
                "identity",
                "gzip",
                "gzip",
                "gzip",
            ]


@cases("header", ["Set-Cookie: balancer=a", "Content-Encoding: gzip"])
async def test_errors_that_cant_be_shared_take_nothing_away(header: str) -> None:
    """A gateway's error, with its own cookie or coding, ends no definitions that are kept, nor
    that they are kept from then on.
    """
    async with (
        origin(definitions) as upstream,
        listening(passthrough=through(upstream, definitions_max_age=0)) as to,
    ):
        client = await to.connect()
        await ask(client)
        upstream.handler = always(whole(b"no", header, status="503 Service Unavailable"))
        got = await ask(client)
        assert (got.status, got.body, got.all("warning"), got.one("set-cookie")) == (
            200,
            b'{"flags":[]}',
            [STALE, FAILED],
            None,
        )
        upstream.handler = always(whole(b"slower", header, status="429 Too Many Requests"))
        assert (await ask(client)).status == 429
        upstream.handler = definitions
        before = len(upstream.asked)
        got = await ask(client)
        assert (
            got.status,
            got.all("warning"),
            upstream.asked[before].headers.get("if-none-match"),
        ) == (200, [], '"one"')


async def test_a_refusal_with_a_cookie_ends_what_was_kept() -> None:
    """Credentials that are refused are refused, whatever else the answer brings."""
    async with (
        origin(definitions) as upstream,
        listening(passthrough=through(upstream, definitions_max_age=0)) as to,
    ):
        client = await to.connect()
        await ask(client)
        upstream.handler = always(whole(b"no", "Set-Cookie: balancer=a", status="401 Unauthorized"))
        assert (await ask(client)).status == 401
        assert to.passthrough is not None
        assert to.passthrough.statistics().cached == 0


async def test_an_upstream_that_was_asked_for_others_is_closed_in_time() -> None:
    """A request that no one waits for any more doesn't outlive the listener."""
    async with origin(hang) as upstream, listening(passthrough=through(upstream)) as to:
        client = await to.connect()
        await client.send(poll())
        await to.until(lambda: len(upstream.asked) == 1)
        await client.close()
    async with origin(ok) as upstream, listening(passthrough=through(upstream)) as to:
        assert (await ask(await to.connect())).body == b"ok"


def answer(body: bytes = b"", *lines: tuple[bytes, bytes]) -> UpstreamResponse:
    """An answer with this body."""
    return UpstreamResponse(200, b"OK", lines, body)


def test_keys() -> None:
    """Path but for its slash, query and credentials tell answers apart, wherever one ends and the
    next begins; nothing else does.
    """
    bearer = [(b"Authorization", b"Bearer a")]
    keys = {
        cache_key(b"/flags/definitions?token=a", bearer),
        cache_key(b"/flags/definitions?token=b", bearer),
        cache_key(b"/flags/definitions", bearer),
        cache_key(b"/flags/definitions?token=a", [(b"Authorization", b"Bearer b")]),
        cache_key(b"/flags/definitions?token=a", []),
        cache_key(b"/flags/definitions?token=aBearer", [(b"Authorization", b" a")]),
        cache_key(b"/api/feature_flag/local_evaluation?token=a", bearer),
    }
    assert len(keys) == 7
    same = cache_key(
        b"/flags/definitions/?token=a",
        [(b"user-agent", b"x"), (b"authorization", b"Bearer a"), (b"Accept", b"y")],
    )
    assert same == cache_key(b"/flags/definitions?token=a", bearer)


@cases(
    ("asked", "etag", "matching"),
    [
        (b'"a"', b'"a"', True),
        (b'W/"a"', b'"a"', True),
        (b'"a"', b'W/"a"', True),
        (b'"b", "a"', b'"a"', True),
        (b"*", b'"a"', True),
        (b'"b"', b'"a"', False),
        (b"", b'"a"', False),
        (b'"a"', b"", False),
        (b"*", b"", False),
        (b'"A"', b'"a"', False),
    ],
)
def test_if_none_match(asked: bytes, etag: bytes, matching: bool) -> None:
    """Tags are compared weakly, one by one; a star matches whatever has a tag."""
    assert matches(asked, etag) is matching


def test_the_entry_that_was_used_longest_ago_goes_first() -> None:
    """Using one keeps it."""
    cache = ResponseCache(max_entries=3)
    for name in (b"a", b"b", b"c"):
        cache.put(name, answer(name), 0.0)
    assert cache.get(b"a") is not None
    cache.put(b"d", answer(b"d"), 0.0)
    assert [cache.get(name) is not None for name in (b"a", b"b", b"c", b"d")] == [
        True,
        False,
        True,
        True,
    ]


def test_definitions_that_are_too_large_are_not_cached() -> None:
    """It replaces the old one by removing it, and drives out no other."""
    cache = ResponseCache(max_bytes=3 * ENTRY_OVERHEAD)
    cache.put(b"a", answer(), 0.0)
    cache.put(b"b", answer(), 0.0)
    cache.put(b"a", answer(b"x" * 3 * ENTRY_OVERHEAD), 0.0)
    assert (cache.get(b"a"), len(cache)) == (None, 1)


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(-1, 5000)), max_size=60))
def test_bounds(steps: list[tuple[str, int]]) -> None:
    """Bytes and number are within their bounds after each step, the bytes are those of the
    entries, and what was put last is there.
    """
    cache = ResponseCache(max_bytes=10_000, max_entries=4)
    for name, size in steps:
        key = name.encode()
        if size < 0:
            cache.drop(key)
        else:
            cache.put(key, answer(b"x" * size, (b"ETag", b"y")), 1.0)
            assert cache.get(key) is not None
        entries = [entry for entry in map(cache.get, (b"a", b"b", b"c", b"d", b"e", b"f")) if entry]
        assert cache.bytes == sum(entry.response.cost for entry in entries) <= 10_000
        assert len(cache) == len(entries) <= 4


def test_age() -> None:
    """In whole seconds, never negative."""
    cache = ResponseCache()
    cache.put(b"a", answer(), 10.0)
    entry = cache.get(b"a")
    assert entry is not None
    assert [entry.age(now) for now in (9.0, 10.0, 11.9, 100.0)] == [0, 0, 1, 90]
