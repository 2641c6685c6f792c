"""Requests as they come in: heads and their rules, levels of acknowledgement, and bodies."""

from __future__ import annotations

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from forwarder.core.ack import AckLevel
from forwarder.sources.http import HttpPolicy
from forwarder.sources.http.protocol.request import BodyBuffer
from tests.support.cases import cases
from tests.support.listening import chunked, listening, post

_START = b"POST /e HTTP/1.1\r\nHost: a\r\n"
_CHUNKED = _START + b"Transfer-Encoding: chunked\r\n\r\n"

SMUGGLING = {
    "length and chunks": _START
    + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and length": _START
    + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "two lengths": _START + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
    "two equal lengths": _START + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
    "list of lengths": _START + b"Content-Length: 3, 3\r\n\r\nabc",
    "plus": _START + b"Content-Length: +3\r\n\r\nabc",
    "minus": _START + b"Content-Length: -3\r\n\r\nabc",
    "underscore": _START + b"Content-Length: 1_0\r\n\r\nabcabcabca",
    "space in length": _START + b"Content-Length: 1 0\r\n\r\nabcabcabca",
    "vertical tab": _START + b"Content-Length: \x0b3\r\n\r\nabc",
    "no length": _START + b"Content-Length:\r\n\r\n",
    "blank length": _START + b"Content-Length:  \r\n\r\n",
    "hexadecimal length": _START + b"Content-Length: 0x3\r\n\r\nabc",
    "huge length": _START + b"Content-Length: 99999999999999999999999\r\n\r\nabc",
    "coding before chunked": _START + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "nothing before chunked": _START + b"Transfer-Encoding: , chunked\r\n\r\n0\r\n\r\n",
    "nothing after chunked": _START + b"Transfer-Encoding: chunked,\r\n\r\n0\r\n\r\n",
    "xchunked": _START + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "identity": _START + b"Transfer-Encoding: identity\r\n\r\n",
    "chunked with parameter": _START + b"Transfer-Encoding: chunked;q=1\r\n\r\n0\r\n\r\n",
    "chunked after vertical tab": _START + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "chunked in quotes": _START + b'Transfer-Encoding: "chunked"\r\n\r\n0\r\n\r\n',
    "chunked twice": _START
    + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "no coding": _START + b"Transfer-Encoding:\r\n\r\n0\r\n\r\n",
    "chunks in HTTP/1.0": b"POST /e HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "plus in chunk size": _CHUNKED + b"+3\r\nabc\r\n0\r\n\r\n",
    "minus in chunk size": _CHUNKED + b"-3\r\nabc\r\n0\r\n\r\n",
    "0x in chunk size": _CHUNKED + b"0x3\r\nabc\r\n0\r\n\r\n",
    "underscore in chunk size": _CHUNKED + b"1_0\r\nabc\r\n0\r\n\r\n",
    "huge chunk size": _CHUNKED + b"ffffffffffffffff0\r\nabc\r\n0\r\n\r\n",
    "space after chunk size": _CHUNKED + b"3 \r\nabc\r\n0\r\n\r\n",
    "space before chunk size": _CHUNKED + b" 3\r\nabc\r\n0\r\n\r\n",
    "no chunk size": _CHUNKED + b"\r\nabc\r\n0\r\n\r\n",
    "LF after chunk size": _CHUNKED + b"3\nabc\r\n0\r\n\r\n",
    "LF in chunk extension": _CHUNKED + b"3;a\nabc\r\n0\r\n\r\n",
    "CR in chunk extension": _CHUNKED + b"3;a\rb\r\nabc\r\n0\r\n\r\n",
    "NUL in chunk extension": _CHUNKED + b"3;a\x00b\r\nabc\r\n0\r\n\r\n",
    "LF after chunk": _CHUNKED + b"3\r\nabc\n0\r\n\r\n",
    "chunk without end": _CHUNKED + b"3\r\nabc0\r\n\r\n",
    "chunk longer than its size": _CHUNKED + b"3\r\nabcd\r\n0\r\n\r\n",
    "LF at the end of chunks": _CHUNKED + b"3\r\nabc\r\n0\r\n\n",
    "length in trailer": _CHUNKED + b"3\r\nabc\r\n0\r\nContent-Length: 5\r\n\r\n",
    "folded header": _START + b"X: a\r\n b\r\n\r\n",
    "folded coding": _START + b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    "space before first header": b"POST /e HTTP/1.1\r\n Host: a\r\n\r\n",
    "LF alone": b"POST /e HTTP/1.1\nHost: a\n\n",
    "LF after header": _START + b"X: a\nY: b\r\n\r\n",
    "LF at the end": b"POST /e HTTP/1.1\r\nHost: a\r\n\n",
    "NUL in value": _START + b"X: a\x00b\r\n\r\n",
    "NUL in name": _START + b"X\x00: a\r\n\r\n",
    "CR in value": _START + b"X: a\rb\r\n\r\n",
    "CR in name": _START + b"X\r: a\r\n\r\n",
    "control character": _START + b"X: a\x01b\r\n\r\n",
    "space before colon": _START + b"Content-Length : 3\r\n\r\nabc",
    "tab before colon": _START + b"X\t: a\r\n\r\n",
    "no colon": _START + b"Xabc\r\n\r\n",
    "no name": _START + b": a\r\n\r\n",
    "no Host": b"POST /e HTTP/1.1\r\n\r\n",
    "two Hosts": _START + b"Host: a\r\n\r\n",
    "two Hosts in HTTP/1.0": b"POST /e HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n",
    "space in target": b"GET /a b HTTP/1.1\r\nHost: a\r\n\r\n",
    "NUL in target": b"GET /\x00 HTTP/1.1\r\nHost: a\r\n\r\n",
    "byte over 127 in target": b"GET /\xff HTTP/1.1\r\nHost: a\r\n\r\n",
    "unknown method": b"FOO /e HTTP/1.1\r\nHost: a\r\n\r\n",
    "small letters": b"post /e HTTP/1.1\r\nHost: a\r\n\r\n",
    "unknown version": b"POST /e HTTP/1.2\r\nHost: a\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
}


@cases("name", SMUGGLING)
@cases("pieces", ["whole", "bytes"])
async def test_smuggling(name: str, pieces: str) -> None:
    """What could be read in two ways is 400 and the end of the connection, however it arrives;
    what follows it is not read.
    """
    raw = SMUGGLING[name] + post("/batch")
    async with listening() as to:
        client = await to.connect()
        step = len(raw) if pieces == "whole" else 1
        await client.send(post("/track"), *[raw[at : at + step] for at in range(0, len(raw), step)])
        assert (await client.reply()).status == 200
        reply = await client.reply()
        assert (reply.status, reply.headers["connection"]) == (400, "close")
        assert await client.ended() == b""
        assert len(to.intake.accepted) == 1


@cases("length", ["3", "003", "3 ", "\t3\t", " 3"])
async def test_lengths(length: str) -> None:
    """A length is digits; white space around a header's value isn't part of it."""
    async with listening() as to:
        assert (await to.ask(_START + f"Content-Length:{length}\r\n\r\nabc".encode())).status == 200
        assert to.intake.bodies == [b"abc"]


@cases("coding", [b"chunked", b"Chunked", b"chunked "])
async def test_chunks(coding: bytes) -> None:
    """Chunks are joined; extensions and trailers are read over, and nothing in a trailer counts."""
    chunks = b'3;a="b"\r\nabc\r\n0a\r\n0123456789\r\n0\r\nHost: x\r\nContent-Encoding: gzip\r\n\r\n'
    request = _START + b"Transfer-Encoding: " + coding + b"\r\n\r\n" + chunks
    async with listening() as to:
        client = await to.connect()
        await client.send(request + request, post())
        assert [(await client.reply()).status for _ in range(3)] == [200, 200, 200]
        assert to.intake.bodies == [b"abc0123456789", b"abc0123456789", b"{}"]
        assert [incoming.content_encoding for incoming in to.intake.accepted] == [b"", b"", b""]


@cases("before", [b"", post("/track")])
@cases("pieces", ["whole", "bytes"])
async def test_preface_of_http_2(before: bytes, pieces: str) -> None:
    """A client that speaks HTTP/2 at once (gRPC, `curl --http2-prior-knowledge`) is answered 505
    in HTTP/1.1, which says what is spoken.
    """
    raw = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x12\4\0\0\0\0\0"
    async with listening() as to:
        client = await to.connect()
        step = len(raw) if pieces == "whole" else 1
        await client.send(before, *[raw[at : at + step] for at in range(0, len(raw), step)])
        replies = [await client.reply() for _ in range(2 if before else 1)]
        assert (replies[-1].status, replies[-1].headers["connection"]) == (505, "close")
        assert b"HTTP/1.1" in replies[-1].body
        assert await client.ended() == b""
        assert to.listener.statistics().requests[("other", 505)] == 1


@cases("version", ["0.9", "2.0"])
@cases("header", [[], ["Connection: keep-alive"]])
async def test_other_versions(version: str, header: list[str]) -> None:
    """Versions that the parser knows but that are not spoken here are refused."""
    async with listening() as to:
        reply = await to.ask(post("/e", b"", *header, version=version))
        assert (reply.status, reply.headers["connection"]) == (505, "close")


async def test_http_1_0() -> None:
    """HTTP/1.0 needs no Host and ends with its answer, unless the sender
    asks to keep the connection.
    """
    async with listening() as to:
        client = await to.connect()
        keep_alive = b"POST /e HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 1\r\n\r\n1"
        for _ in range(2):
            assert (await client.ask(keep_alive)).headers["connection"] == "keep-alive"
        answer = await client.ask(b"POST /e HTTP/1.0\r\nContent-Length: 1\r\n\r\n2")
        assert answer.headers["connection"] == "close"
        assert await client.ended() == b""
        assert to.intake.bodies == [b"1", b"1", b"2"]


async def test_connection_close() -> None:
    """After the answer to a request that says so the connection is closed, and what follows it is
    not read.
    """
    async with listening() as to:
        client = await to.connect()
        answer = await client.ask(post("/e", b"1", "Connection: close") + post())
        assert answer.headers["connection"] == "close"
        assert await client.ended() == b""
        assert to.intake.bodies == [b"1"]


async def test_header_limits() -> None:
    """As many and as large headers as allowed are taken, one more or one byte more is 431."""
    policy = HttpPolicy(max_headers=10, max_header_bytes=1000)
    async with listening(policy) as to:
        assert (await to.ask(post("/e", b"", *["X: y"] * 8))).status == 200
        assert (await to.ask(post("/e", b"", *["X: y"] * 9))).status == 431
        room = 1000 - len("Host: localhost\r\nContent-Length: 0\r\nX: \r\n")
        assert (await to.ask(post("/e", b"", "X: " + "y" * room))).status == 200
        assert (await to.ask(post("/e", b"", "X: " + "y" * (room + 1)))).status == 431


@cases(
    "endless",
    [b"POST /e HTTP/1.1\r\nX: ", b"POST /e HTTP/1.1\r\nX", b"POST /", b"POST /e HTTP/1.1\r\nX:"],
)
async def test_endless_heads(endless: bytes) -> None:
    """A head that doesn't end is cut off, whatever part of it continues."""
    async with listening(HttpPolicy(max_header_bytes=1000, max_url=1000)) as to:
        client = await to.connect()
        await client.send(endless, *[(b" " if endless.endswith(b":") else b"x") * 500] * 6)
        assert (await client.reply()).status == 431


async def test_url_too_long() -> None:
    """A target over the limit is 414; browsers get to see it."""
    async with listening(HttpPolicy(max_url=100)) as to:
        assert (await to.ask(post("/e/?" + "x" * 96))).status == 200
        reply = await to.ask(post("/e/?" + "x" * 97, b"", "Origin: https://a.example"))
        assert (reply.status, reply.headers["access-control-allow-origin"]) == (
            414,
            "https://a.example",
        )


@cases("upgrade", ["h2c", "websocket"])
async def test_upgrade_is_ignored(upgrade: str) -> None:
    """A request that offers another protocol is an ordinary one, its body and what follows it too,
    whole or cut anywhere.
    """
    headers = [
        "Connection: Upgrade, HTTP2-Settings",
        f"Upgrade: {upgrade}",
        "HTTP2-Settings: AAMAAABk",
        "Content-Type: text/x",
    ]
    asking = post("/e/?a=b", b"abc", *headers)
    host = b"Host: a\r\n"
    chunks = chunked(b"de", b"f").replace(host, host + "\r\n".join([*headers, ""]).encode())
    raw = asking + chunks + asking + post("/e", b"", *headers) + post("/track", b"last")
    async with listening() as to:
        for cut in range(0, len(raw), 7):
            to.intake.accepted.clear()
            client = await to.connect()
            await client.send(raw[:cut], raw[cut:])
            assert [(await client.reply()).status for _ in range(5)] == [200] * 5
            assert to.intake.bodies == [b"abc", b"def", b"abc", b"", b"last"]
            assert [
                (incoming.query, incoming.content_type) for incoming in to.intake.accepted[:2]
            ] == [
                (b"a=b", b"text/x"),
                (b"", b"text/x"),
            ]
            await client.close()


async def test_upgrade_and_close() -> None:
    """An offered upgrade doesn't hide what else the head says."""
    async with listening() as to:
        client = await to.connect()
        await client.send(
            post("/e", b"abc", "Connection: Upgrade, close", "Upgrade: h2c", "Expect: 100-continue")
        )
        assert (await client.reply()).status == 100
        assert (await client.reply()).headers["connection"] == "close"
        answer = await to.ask(post("/e", b"abc", "Host: b", "Connection: Upgrade", "Upgrade: h2c"))
        assert answer.status == 400
        refused = post(
            "/nowhere", b"abc", "Connection: Upgrade", "Upgrade: h2c", "Expect: 100-continue"
        )
        assert (await to.ask(refused)).status == 404


@cases(
    ("request_head", "status"),
    [
        (post("/e", b"abc", "Expect: 100-continue"), 100),
        (post("/e", b"abc", "Expect: 100-Continue"), 100),
        (post("/e", b"", "Expect: 100-continue"), 200),
        (post("/e", b"abc", "Expect: 200-ok"), 417),
        (post("/e", b"abc", "Expect: 100-continue", "Expect: 100-continue"), 417),
        (post("/nowhere", b"abc", "Expect: 100-continue"), 404),
        (post("/e", b"abc", "Expect: 100-continue").replace(b"POST", b"PUT"), 405),
        (post("/e", b"x" * 2000, "Expect: 100-continue"), 413),
        (post("/e", b"abc", "Expect: 100-continue", "Host: b"), 400),
    ],
)
async def test_expectations(request_head: bytes, status: int) -> None:
    """A sender is asked to continue only if its head is not refused already; then it is not to send
    the body.
    """
    head, _, body = request_head.partition(b"\r\n\r\n")
    async with listening(HttpPolicy(max_body=1000)) as to:
        client = await to.connect()
        reply = await client.ask(head + b"\r\n\r\n")
        assert reply.status == status
        if status == 100:
            assert (await client.ask(body)).status == 200
            assert to.intake.bodies == [body]
        elif status > 200:
            assert reply.headers["connection"] == "close"


async def test_expectation_in_http_1_0() -> None:
    """HTTP/1.0 knows no expectations."""
    async with listening() as to:
        answer = await to.ask(post("/e", b"abc", "Expect: 100-continue", version="1.0"))
        assert answer.status == 200


async def test_the_level_that_is_asked_for() -> None:
    """`Forwarder-Ack` is handed on, in any case of letters, and known heads
    keep it apart from others.
    """
    async with listening() as to:
        client = await to.connect()
        for _ in range(3):
            for header in (
                ["Forwarder-Ack: Delivered"],
                [],
                ["forwarder-ack:  disk "],
                ["FORWARDER-ACK: memory"],
            ):
                assert (await client.ask(post("/batch/", b"{}", *header))).status == 200
        asked = [incoming.ack for incoming in to.intake.accepted]
        assert asked == [AckLevel.DELIVERED, None, AckLevel.DISK, AckLevel.MEMORY] * 3


@cases("header", ["durable", "", "disk, disk", "disk\r\nForwarder-Ack: disk", "\xff"])
async def test_a_level_that_is_none(header: str) -> None:
    """Anything else is refused with the names of the three; the connection stays open, and nothing
    is offered.
    """
    async with listening() as to:
        client = await to.connect()
        for _ in range(2):
            reply = await client.ask(post("/batch/", b"{}", f"Forwarder-Ack: {header}"))
            assert reply.status == 400
            assert all(level.value.encode() in reply.body for level in AckLevel)
        assert (await client.ask(post())).status == 200
        assert to.intake.bodies == [b"{}"]


async def test_a_level_in_odd_places() -> None:
    """A trailer can't ask for one; beside an offer of another protocol it counts."""
    async with listening() as to:
        client = await to.connect()
        assert (await client.ask(chunked(b"{}", trailer=b"Forwarder-Ack: disk\r\n"))).status == 200
        upgrade = post("/e/", b"{}", "Connection: Upgrade", "Upgrade: h2c", "Forwarder-Ack: disk")
        assert (await client.ask(upgrade)).status == 200
        assert [incoming.ack for incoming in to.intake.accepted] == [None, AckLevel.DISK]


PIECES = st.one_of(
    st.binary(max_size=20),
    st.integers(4000, 4200).map(bytes),
    st.integers(600_000, 700_000).map(bytes),
)


@given(st.lists(PIECES, max_size=9))
def test_joined(pieces: list[bytes]) -> None:
    """The pieces, small and large, make the body in their order; a body that
    isn't kept is only measured.
    """
    body = BodyBuffer(keep=True)
    measured = BodyBuffer(keep=False)
    for piece in pieces:
        body.add(piece)
        measured.add(piece)
    assert body.joined() == b"".join(pieces)
    assert body.length == measured.length == len(b"".join(pieces))
    assert measured.joined() == b""


@cases(("size", "count"), [(1, 100_000), (1000, 900), (5000, 200), (65_536, 300)])
def test_pieces_take_little_more_than_their_bytes(size: int, count: int) -> None:
    """However small or many the pieces are; a large body neither while it is put together: it is
    never there twice.
    """
    tracemalloc.start()
    try:
        body = BodyBuffer(keep=True)
        for number in range(count):
            body.add(bytes([number % 256]) * size)
        received = tracemalloc.get_traced_memory()[0]
        whole = body.joined()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(whole) == size * count
    assert received < 1.15 * size * count
    assert peak < 1.15 * size * count + (1 << 20)


def test_one_large_piece_is_not_copied() -> None:
    """A single piece is passed on as it is."""
    piece = bytes(10_000)
    body = BodyBuffer(keep=True)
    body.add(piece)
    assert body.joined() is piece
