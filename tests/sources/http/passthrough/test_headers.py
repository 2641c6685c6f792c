"""Which headers go through."""

from __future__ import annotations

import pytest

from forwarder.sources.http import HttpPolicy
from forwarder.sources.http.passthrough.allowed import headers_for_upstream, lines_for_sender
from tests.support.answered import asked, get
from tests.support.listening import listening, post
from tests.support.origin import always, origin, through, whole

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
    """They end here, those that Connection names too, whatever their case; so do Host, Expect and what is for the forwarder."""
    ours = [(b"Host", b"a"), (b"Expect", b"100-continue"), (b"Content-Length", b"3"), (b"Forwarder-Ack", b"disk")]
    sent = headers_for_upstream([*HOP_BY_HOP, *ours, (b"Accept", b"a"), (b"accept", b"b"), (b"HTTP_X_FORWARDED_FOR", b"1.2.3.4")], None)
    assert list(sent.items()) == [("Accept", "a"), ("accept", "b"), ("HTTP_X_FORWARDED_FOR", "1.2.3.4"), ("Via", "1.1 forwarder")]


@pytest.mark.parametrize(
    ("said", "peer", "told"),
    [
        ([], None, None), ([], "8.8.8.8", "8.8.8.8"), ([b"1.1.1.1"], "127.0.0.1", "1.1.1.1, 127.0.0.1"),
        ([b"1.1.1.1, 2.2.2.2", b"", b"3.3.3.3"], "4.4.4.4", "1.1.1.1, 2.2.2.2, 3.3.3.3, 4.4.4.4"), ([b"1.1.1.1"], None, "1.1.1.1"),
    ],
)  # fmt: skip
def test_forwarded_for(said: list[bytes], peer: str | None, told: str | None) -> None:
    """What the sender says stays first; its own address is added at the end."""
    assert headers_for_upstream([(b"x-Forwarded-for", value) for value in said], peer).get("X-Forwarded-For") == told


def test_headers_of_an_answer() -> None:
    """Hop-by-hop headers end here, and what is said of the upstream's address; repeated ones are kept in order."""
    others = [(b"Set-Cookie", b"a=1"), (b"Set-Cookie", b"b=2"), (b"Access-Control-Allow-Origin", b"*"), (b"ETag", b"x")]
    theirs = [(b"Content-Length", b"3"), (b"Alt-Svc", b'h3=":443"'), (b"Strict-Transport-Security", b"max-age=1")]
    assert lines_for_sender([*HOP_BY_HOP, *theirs, *others], cross_origin=False) == others
    assert lines_for_sender([*HOP_BY_HOP, *theirs, *others], cross_origin=True) == [others[0], others[1], others[3]]


async def test_the_address_of_the_sender_on_the_wire() -> None:
    """The sender is named last, behind whom it speaks for; with `stamp_ip: never` nobody is named but by the sender."""
    async with origin() as upstream:
        for policy, alone, behind in (
            (HttpPolicy(), "127.0.0.1", "9.9.9.9, 127.0.0.1"),
            (HttpPolicy(stamp_ip=False), None, "9.9.9.9"),
        ):
            async with listening(policy, passthrough=through(upstream)) as to:
                client = await to.connect()
                assert (await asked(client, get("/flags"))).status == 200
                assert upstream.asked[-1].headers.get("x-forwarded-for") == alone
                assert (await asked(client, get("/flags", "X-Forwarded-For: 9.9.9.9"))).status == 200
                assert upstream.asked[-1].headers["x-forwarded-for"] == behind


async def test_a_header_that_is_no_text() -> None:
    """UTF-8 goes through; anything else is 400, and the connection goes on."""
    async with origin() as upstream, listening(passthrough=through(upstream)) as to:
        client = await to.connect()
        request = post("/flags", b"x", "X-Name: NAME")
        assert (await asked(client, request.replace(b"NAME", "José".encode()))).status == 200
        assert upstream.asked[0].headers["x-name"] == "José"
        assert (await asked(client, request.replace(b"NAME", b"Jos\xe9"))).status == 400
        assert (await asked(client, request)).status == 200


async def test_cors() -> None:
    """The upstream's rules for other origins are replaced by this listener's, so that none is said twice; a preflight isn't passed on."""
    theirs = ("Access-Control-Allow-Origin: *", "Access-Control-Expose-Headers: X", "Vary: Accept-Encoding")
    async with origin(always(whole(b"{}", *theirs))) as upstream, listening(passthrough=through(upstream)) as to:
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
    async with origin() as upstream, listening(HttpPolicy(cors_origins=("https://b.example",)), passthrough=through(upstream)) as to:
        got = await asked(await to.connect(), get("/flags", "Origin: https://a.example"))
        assert (got.status, got.one("access-control-allow-origin")) == (200, None)
