"""What goes through: requests and headers."""

from __future__ import annotations

import posixpath
from urllib.parse import unquote_to_bytes

from hypothesis import example, given
from hypothesis import strategies as st

from forwarder.sources.http import HttpPolicy
from forwarder.sources.http.passthrough.allowed import (
    PassedRoutes,
    lines_for_sender,
    lines_for_upstream,
)
from forwarder.sources.http.protocol.routes import origin_form
from tests.support.answered import asked, get
from tests.support.cases import cases
from tests.support.listening import listening, post
from tests.support.origin import always, origin, through, whole

PIECES = [
    b"/",
    b"//",
    b".",
    b"..",
    b"%2e",
    b"%2F",
    b"%5c",
    b"\\",
    b";",
    b"?",
    b"#",
    b"&",
    b"=",
    b"@",
    b":",
    b"http://h",
    b"x",
    b"decide",
    b"flags",
    b"definitions",
    b"api",
    b"feature_flag",
    b"local_evaluation",
    b"array",
    b"static",
    b"s",
    b"i",
    b"v0",
    b"e",
]
DEFINITIONS = {"/flags/definitions", "/api/feature_flag/local_evaluation", "/api/feature_flag"}
NAMES = {"/decide", "/flags", *DEFINITIONS, "/array", "/static", "/s", "/i"}


@given(st.lists(st.sampled_from(PIECES), max_size=9).map(b"".join))
@example(b"/static/%2e%2e/api")
@example(b"/static/..")
def test_paths_cannot_leave_the_allowed_prefixes(url: bytes) -> None:
    """What goes through is the same path however often it is decoded and normalised, and is on the
    list; no other name is counted.
    """
    passed = PassedRoutes().find(url)
    target = origin_form(url)
    if passed is None:
        return
    path = target.partition(b"?")[0].decode()
    decoded = unquote_to_bytes(unquote_to_bytes(path)).decode().replace("\\", "/")
    assert posixpath.normpath(decoded) == (path.rstrip("/") or "/")
    assert "//" not in path
    assert path.startswith(passed.route.name)
    assert passed.route.name in NAMES
    assert url.endswith(target)


@cases(
    ("url", "name"),
    [
        (b"/decide?v=3", "/decide"),
        (b"/flags/definitions/", "/flags/definitions"),
        (b"/static/array.js", "/static"),
        (b"/array/phc_x/config", "/array"),
        (b"/i/v0/ai/batch/", "/i"),
        (b"HTTP://h:1/s/?x", "/s"),
        (b"//flags/?v=2", "/flags"),
        (b"http://h////static/x", "/static"),
        (b"/api/feature_flag/?token=x", "/api/feature_flag"),
    ],
)
def test_names(url: bytes, name: str) -> None:
    """A route's name is its path without what follows it."""
    passed = PassedRoutes().find(url)
    assert passed is not None
    assert passed.route.name == name


def test_time_limits_of_passed_calls() -> None:
    """An app waits for flags and definitions; definitions alone are cached; assets alone have
    their own address.
    """
    urls = [name.encode() + end for name in NAMES for end in (b"", b"/x")]
    routes = {
        passed.route.name: passed for passed in map(PassedRoutes().find, urls) if passed is not None
    }
    assert set(routes) == NAMES
    assert {name for name, passed in routes.items() if passed.latency_sensitive} == NAMES - {
        "/array",
        "/static",
        "/s",
        "/i",
    }
    assert {name for name, passed in routes.items() if passed.definitions} == DEFINITIONS
    assert {name for name, passed in routes.items() if passed.reads} == {"/api/feature_flag"}
    assert {name for name, passed in routes.items() if passed.assets} == {"/array", "/static"}


HOP_BY_HOP = [
    (b"Connection", b"keep-alive, X-Private"),
    (b"connection", b"x-other"),
    (b"Keep-Alive", b"timeout=5"),
    (b"Proxy-Authorization", b"Basic x"),
    (b"Proxy-Authenticate", b"Basic"),
    (b"Proxy-Connection", b"keep-alive"),
    (b"TE", b"trailers"),
    (b"Trailer", b"X"),
    (b"Transfer-Encoding", b"chunked"),
    (b"Upgrade", b"h2c"),
    (b"X-PRIVATE", b"1"),
    (b"X-Other", b"2"),
]


def test_hop_by_hop_headers_of_a_request() -> None:
    """They end here, those that Connection names too, whatever their case; so do Host, Expect and
    what is for the forwarder.
    """
    ours = [
        (b"Host", b"a"),
        (b"Expect", b"100-continue"),
        (b"Content-Length", b"3"),
        (b"Forwarder-Ack", b"disk"),
    ]
    sent = lines_for_upstream(
        [
            *HOP_BY_HOP,
            *ours,
            (b"Accept", b"a"),
            (b"accept", b"b"),
            (b"HTTP_X_FORWARDED_FOR", b"1.2.3.4"),
        ],
        None,
    )
    assert (
        sent == b"Accept: a\r\naccept: b\r\nHTTP_X_FORWARDED_FOR: 1.2.3.4\r\nVia: 1.1 forwarder\r\n"
    )


@cases(
    ("said", "peer", "reported"),
    [
        ([], None, None),
        ([], "8.8.8.8", "8.8.8.8"),
        ([b"1.1.1.1"], "127.0.0.1", "1.1.1.1, 127.0.0.1"),
        ([b"1.1.1.1, 2.2.2.2", b"", b"3.3.3.3"], "4.4.4.4", "1.1.1.1, 2.2.2.2, 3.3.3.3, 4.4.4.4"),
        ([b"1.1.1.1"], None, "1.1.1.1"),
    ],
)
def test_forwarded_for(said: list[bytes], peer: str | None, reported: str | None) -> None:
    """What the sender says stays first; its own address is added at the end."""
    sent = lines_for_upstream([(b"x-Forwarded-for", value) for value in said], peer)
    assert (
        sent
        == (b"" if reported is None else b"X-Forwarded-For: %b\r\n" % reported.encode())
        + b"Via: 1.1 forwarder\r\n"
    )


def test_headers_of_an_answer() -> None:
    """Hop-by-hop headers end here, and what is said of the upstream's address; repeated ones are
    kept in order.
    """
    others = [
        (b"Set-Cookie", b"a=1"),
        (b"Set-Cookie", b"b=2"),
        (b"Access-Control-Allow-Origin", b"*"),
        (b"ETag", b"x"),
    ]
    theirs = [
        (b"Content-Length", b"3"),
        (b"Alt-Svc", b'h3=":443"'),
        (b"Strict-Transport-Security", b"max-age=1"),
    ]
    assert lines_for_sender([*HOP_BY_HOP, *theirs, *others], cross_origin=False) == others
    assert lines_for_sender([*HOP_BY_HOP, *theirs, *others], cross_origin=True) == [
        others[0],
        others[1],
        others[3],
    ]


async def test_the_address_of_the_sender_on_the_wire() -> None:
    """The sender is named last, behind whom it speaks for; with `stamp_ip: never` no one is named
    but by the sender.
    """
    async with origin() as upstream:
        for policy, alone, behind in (
            (HttpPolicy(), "127.0.0.1", "9.9.9.9, 127.0.0.1"),
            (HttpPolicy(stamp_ip=False), None, "9.9.9.9"),
        ):
            async with listening(policy, passthrough=through(upstream)) as to:
                client = await to.connect()
                assert (await asked(client, get("/flags"))).status == 200
                assert upstream.asked[-1].headers.get("x-forwarded-for") == alone
                answer = await asked(client, get("/flags", "X-Forwarded-For: 9.9.9.9"))
                assert answer.status == 200
                assert upstream.asked[-1].headers["x-forwarded-for"] == behind


async def test_a_header_that_is_no_text() -> None:
    """UTF-8 goes through; anything else is 400, and the connection continues."""
    async with origin() as upstream, listening(passthrough=through(upstream)) as to:
        client = await to.connect()
        request = post("/flags", b"x", "X-Name: NAME")
        assert (await asked(client, request.replace(b"NAME", "José".encode()))).status == 200
        assert upstream.asked[0].headers["x-name"] == "José"
        assert (await asked(client, request.replace(b"NAME", b"Jos\xe9"))).status == 400
        assert (await asked(client, request)).status == 200


async def test_cors() -> None:
    """The upstream's rules for other origins are replaced by this listener's, so that none is said
    twice; a preflight isn't passed on.
    """
    theirs = (
        "Access-Control-Allow-Origin: *",
        "Access-Control-Expose-Headers: X",
        "Vary: Accept-Encoding",
    )
    async with (
        origin(always(whole(b"{}", *theirs))) as upstream,
        listening(passthrough=through(upstream)) as to,
    ):
        client = await to.connect()
        got = await asked(client, post("/flags/?v=2", b"{}", "Origin: https://a.example"))
        assert got.one("access-control-allow-origin") == "https://a.example"
        assert got.one("access-control-expose-headers") == "Retry-After"
        assert got.all("vary") == ["Accept-Encoding", "Origin"]
        assert upstream.asked[0].headers["origin"] == "https://a.example"
        plain = await asked(client, post("/flags/?v=2", b"{}"))
        assert plain.one("access-control-allow-origin") == "*"
        wanted = "Access-Control-Request-Headers: content-type, authorization"
        headers = ("Origin: https://a.example", "Access-Control-Request-Method: POST", wanted)
        preflight = await asked(client, get("/flags/", *headers, method="OPTIONS"))
        assert (preflight.status, preflight.one("allow")) == (204, "GET, HEAD, POST, OPTIONS")
        assert preflight.one("access-control-allow-methods") == "GET, POST, OPTIONS"
        assert preflight.one("access-control-allow-headers") == "content-type, authorization"
        assert len(upstream.asked) == 2
    async with (
        origin() as upstream,
        listening(
            HttpPolicy(cors_origins=("https://b.example",)), passthrough=through(upstream)
        ) as to,
    ):
        got = await asked(await to.connect(), get("/flags", "Origin: https://a.example"))
        assert (got.status, got.one("access-control-allow-origin")) == (200, None)
