"""From bytes to JSON, by hints and by the bytes themselves."""

from __future__ import annotations

import base64
import gzip
import random
import tracemalloc
import zlib
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, quote_from_bytes, quote_plus, unquote_to_bytes

import brotli  # type: ignore[import-untyped]
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from forwarder.core.errors import InvalidRequest, RequestTooLarge
from forwarder.core.ports import Incoming
from forwarder.wire import encodings
from forwarder.wire.encodings import decode_body, gunzip, unquote
from tests.support.cases import cases
from tests.support.lz64 import compress

LIMIT = 1_000_000
FORM = b"application/x-www-form-urlencoded"
EVENT = '{"event":"über 😀","distinct_id":"x+y z%41","properties":{"k":"??>>~~ÿ"}}'
JSON = EVENT.encode()
BASE64 = base64.b64encode(JSON)
GZIP = gzip.compress(JSON)
GZIP_BASE64 = base64.b64encode(GZIP)
LZ64 = compress(EVENT)
ZSTD = zstandard.compress(JSON)
BROTLI = brotli.compress(JSON)
assert b"+" in BASE64  # the forms' trap needs one


def decode(body: bytes, limit: int = LIMIT, **hints: Any) -> bytes:
    """The JSON text of a body."""
    return decode_body(Incoming(body, **hints), limit)


@cases(
    ("body", "hints"),
    [
        pytest.param(JSON, {}, id="plain"),
        pytest.param(JSON, {"content_type": b"text/plain"}, id="plain, any content type"),
        pytest.param(b" \r\n" + JSON, {}, id="plain after white space"),
        pytest.param(GZIP, {"content_encoding": b"gzip"}, id="gzip by header"),
        pytest.param(GZIP, {"content_encoding": b"GZIP "}, id="gzip by header, odd spelling"),
        pytest.param(GZIP, {"query": b"compression=gzip"}, id="gzip by query"),
        pytest.param(
            GZIP, {"query": b"compression=gzip-js&_=1700000000000&ver=1.2"}, id="gzip-js by query"
        ),
        pytest.param(GZIP, {"content_type": b"text/plain"}, id="gzip by its magic bytes"),
        pytest.param(GZIP, {"query": b"compression=base64"}, id="gzip with a wrong hint"),
        pytest.param(GZIP, {"query": b"compression=lz64"}, id="gzip with another wrong hint"),
        pytest.param(GZIP, {"content_encoding": b"br"}, id="gzip with an unknown hint"),
        pytest.param(ZSTD, {"content_encoding": b"zstd"}, id="zstd by header"),
        pytest.param(ZSTD, {"query": b"compression=gzip"}, id="zstd by its magic bytes"),
        pytest.param(BROTLI, {"content_encoding": b"br"}, id="br by header"),
        pytest.param(BROTLI, {"content_encoding": b"BR"}, id="br by header, odd spelling"),
        pytest.param(zlib.compress(JSON), {"content_encoding": b"deflate"}, id="deflate by header"),
        pytest.param(BASE64, {"content_encoding": b"br"}, id="base64 with br's header"),
        pytest.param(JSON, {"content_encoding": b"br"}, id="plain with br's header"),
        pytest.param(JSON, {"content_encoding": b"deflate"}, id="plain with deflate's header"),
        pytest.param(JSON, {"content_encoding": b"zstd"}, id="plain with zstd's header"),
        pytest.param(JSON, {"content_encoding": b"gzip"}, id="plain with gzip's header"),
        pytest.param(JSON, {"query": b"compression=gzip-js"}, id="plain with gzip's query"),
        pytest.param(JSON, {"query": b"compression=lz64"}, id="plain with lz64's query"),
        pytest.param(JSON, {"query": b"compression=base64"}, id="plain with base64's query"),
        pytest.param(JSON, {"content_type": FORM}, id="plain with a form's content type"),
        pytest.param(BASE64, {}, id="base64 by its alphabet"),
        pytest.param(BASE64, {"query": b"compression=base64"}, id="base64 by query"),
        pytest.param(GZIP_BASE64, {}, id="base64 of gzip"),
        pytest.param(
            GZIP_BASE64, {"content_encoding": b"gzip"}, id="base64 of gzip with gzip's header"
        ),
        pytest.param(base64.b64encode(BASE64), {}, id="base64 twice"),
        pytest.param(base64.b64encode(GZIP_BASE64), {}, id="base64 twice of gzip"),
        pytest.param(gzip.compress(BASE64), {}, id="gzip of base64"),
        pytest.param(LZ64, {"query": b"compression=lz64"}, id="lz64 by query"),
        pytest.param(LZ64, {"query": b"compression=lz-string"}, id="lz-string by query"),
        pytest.param(LZ64, {"content_encoding": b"lz64"}, id="lz64 by header"),
        pytest.param(
            b"data=" + quote_plus(BASE64).encode(), {"content_type": FORM}, id="form with base64"
        ),
        pytest.param(
            b"data=" + BASE64,
            {"content_type": FORM},
            id="form with base64 not percent-encoded: + means a space",
        ),
        pytest.param(
            b"data=" + BASE64.replace(b"+", b" "),
            {"content_type": FORM},
            id="form with base64, + sent as a space",
        ),
        pytest.param(
            b"data=" + quote_plus(GZIP_BASE64).encode(),
            {"content_type": FORM},
            id="form with base64 of gzip",
        ),
        pytest.param(
            b"data=" + quote_plus(EVENT).encode(),
            {"content_type": FORM},
            id="form with JSON, spaces as +",
        ),
        pytest.param(
            b"data=" + quote(EVENT).encode(),
            {"content_type": FORM},
            id="form with JSON, percent-encoded",
        ),
        pytest.param(
            b"ip=1&data=" + quote_plus(BASE64).encode() + b"&x=2",
            {"content_type": FORM},
            id="form with other fields",
        ),
        pytest.param(
            b"data=" + quote_plus(BASE64).encode(),
            {"content_type": FORM + b"; charset=UTF-8"},
            id="form with parameters",
        ),
        pytest.param(
            b"data=" + quote_plus(BASE64).encode(),
            {"content_type": FORM, "query": b"compression=base64"},
            id="beacon",
        ),
        pytest.param(
            b"data=" + quote_plus(LZ64).encode() + b"&compression=lz64",
            {"content_type": FORM},
            id="form with lz64",
        ),
        pytest.param(
            b"data=" + LZ64.replace(b"+", b" ") + b"&compression=lz64",
            {"content_type": FORM},
            id="form with lz64, + as space",
        ),
        pytest.param(
            b"", {"query": b"data=" + quote_plus(BASE64).encode()}, id="query with base64"
        ),
        pytest.param(b"", {"query": b"ver=1&data=" + quote(EVENT).encode()}, id="query with JSON"),
        pytest.param(
            b"",
            {"query": b"data=" + quote_plus(LZ64).encode() + b"&compression=lz64"},
            id="query with lz64",
        ),
        pytest.param(
            b'{"event":"loser"}',
            {"query": b"data=" + quote_plus(BASE64).encode()},
            id="the query's data wins over the body",
        ),
        pytest.param(
            b"data=e30=",
            {"content_type": FORM, "query": b"data=" + quote_plus(BASE64).encode()},
            id="... and over a form",
        ),
        pytest.param(b"\xef\xbb\xbf" + JSON, {}, id="a byte order mark"),
        pytest.param(gzip.compress(b"\xef\xbb\xbf" + JSON), {}, id="a byte order mark in gzip"),
        pytest.param(JSON, {"query": b"mydata=1&data="}, id="an empty data field in the query"),
    ],
)
def test_every_encoding_gives_the_same_text(body: bytes, hints: dict[str, Any]) -> None:
    """However an event is wrapped, with right hints, wrong ones or none, its text comes out byte
    for byte.
    """
    assert decode(body, **hints).strip() == JSON


@pytest.mark.parametrize("text", [b'{\n  "event": "e"}', b'[\n  {"event": "e"}]'])
def test_indented_json_with_deflate_s_header(text: bytes) -> None:
    """Its first two bytes pass for a whole text in deflate; what follows them says
    that it is none.
    """
    assert decode(text, content_encoding=b"deflate") == text


def test_brotli_that_begins_like_json() -> None:
    """A body of over 64 KiB does, by its first byte: the header counts before the bytes."""
    text = JSON.replace(b"??", b"?" * 100_000)
    packed = brotli.compress(text)
    assert packed.startswith(b"[")
    assert decode(packed, content_encoding=b"br") == text


@cases(
    "body",
    [
        b"",
        b"  \r\n\t ",
        gzip.compress(b"", mtime=0),
        gzip.compress(b"  ", mtime=0),
        b"ICAg",
        b"\xef\xbb\xbf",
        compress(""),
    ],
)
def test_an_empty_body_is_refused(body: bytes) -> None:
    """Nothing, or nothing but white space, in whatever encoding, is refused."""
    with pytest.raises(InvalidRequest):
        decode(body, query=b"compression=lz64" if body == compress("") else b"")


@cases(
    ("body", "hints"),
    [
        pytest.param(GZIP[:-9], {}, id="gzip cut off"),
        pytest.param(GZIP[:12], {}, id="gzip cut off early"),
        pytest.param(GZIP[:-8] + b"\0\0\0\0" + GZIP[-4:], {}, id="gzip with a wrong check sum"),
        pytest.param(
            GZIP[:15] + b"\xff\xff\xff\xff" + GZIP[19:], {}, id="gzip broken in the middle"
        ),
        pytest.param(GZIP + GZIP[:-9], {}, id="a second member of gzip cut off"),
        pytest.param(b"\x1f\x8b", {}, id="gzip's magic alone"),
        pytest.param(b"abc=====", {}, id="no base64"),
        pytest.param(b"AAAAAAAA", {"query": b"compression=lz64"}, id="no lz64"),
        pytest.param(
            BASE64[: len(BASE64) // 8 * 4],
            {"query": b"compression=lz64"},
            id="plain base64 as lz64",
        ),
    ],
)
def test_a_broken_body_is_refused(body: bytes, hints: dict[str, Any]) -> None:
    """What says what it is and isn't that is refused, not passed on in part."""
    with pytest.raises(InvalidRequest):
        decode(body, **hints)


def test_gzip_of_several_members_is_joined() -> None:
    """A gzip file may have several members."""
    assert (
        gunzip(gzip.compress(b"[1,") + gzip.compress(b"") + gzip.compress(b"2]"), LIMIT) == b"[1,2]"
    )


@cases("behind", [b"\n", b"\r\n", b"\0\0\0", b"rubbish", b"\x1f"])
def test_what_follows_gzip_is_ignored(behind: bytes) -> None:
    """As by the service: a shell's `echo`, say, adds a newline."""
    assert gunzip(GZIP + behind, LIMIT) == gunzip(GZIP, LIMIT)
    assert gunzip(GZIP + GZIP + behind, LIMIT) == gunzip(GZIP, LIMIT) * 2


def test_gzip_of_many_members_is_refused() -> None:
    """Sixteen are taken; more would each cost a copy of a large body."""
    assert gunzip(gzip.compress(b"a") * 16, LIMIT) == b"a" * 16
    with pytest.raises(InvalidRequest, match="over 16 members"):
        gunzip(gzip.compress(b"a") * 17, LIMIT)


def test_the_limit_is_exact() -> None:
    """As many bytes as the limit are taken, one more is not."""
    assert gunzip(gzip.compress(b"x" * 1000), 1000) == b"x" * 1000
    with pytest.raises(RequestTooLarge):
        gunzip(gzip.compress(b"x" * 1001), 1000)


@given(st.binary(max_size=2000), st.integers(0, 3))
def test_gzip_round_trips(data: bytes, cuts: int) -> None:
    """Any bytes, in any number of members and at any level, come out as they went in."""
    step = len(data) // (cuts + 1) + 1
    members = [
        gzip.compress(data[at : at + step], compresslevel=cuts)
        for at in range(0, max(len(data), 1), step)
    ]
    assert gunzip(b"".join(members), LIMIT) == data


def peak_of(body: bytes, limit: int, **hints: Any) -> int:
    """The most memory that refusing a body takes, in bytes, beside the body."""
    tracemalloc.start()
    try:
        with pytest.raises((RequestTooLarge, InvalidRequest)):
            decode(body, limit, **hints)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def bomb(megabytes: int) -> bytes:
    """A gzip body a thousand times smaller than what is in it."""
    packer = zlib.compressobj(9, wbits=31)
    return b"".join([packer.compress(b" " * 1_000_000) for _ in range(megabytes)]) + packer.flush()


def test_a_gzip_bomb_is_cut_off_while_it_is_decompressed() -> None:
    """Of a body that would take 100 MB no more is decompressed than the limit."""
    assert peak_of(bomb(100), LIMIT) < 4 * LIMIT


def test_many_members_share_one_limit() -> None:
    """A bomb cut into members, each under the limit, is refused all the same; so is one of very
    many empty members.
    """
    assert peak_of(bomb(1) * 50, 3 * LIMIT) < 12 * LIMIT
    with pytest.raises(InvalidRequest, match="members"):
        decode(gzip.compress(b"") * (encodings._MAX_GZIP_MEMBERS + 1) + gzip.compress(b"[]"))


@cases("wrap", [gzip.compress, zstandard.compress], ids=["gzip", "zstd"])
@cases("between", [bytes, base64.b64encode], ids=["directly", "as base64"])
def test_what_is_compressed_twice_is_not_small(
    wrap: Callable[[bytes], bytes], between: Callable[[bytes], bytes]
) -> None:
    """Empty blocks by the million take long to decompress, and would be a few bytes in a second
    layer; real bodies hardly shrink again.
    """
    block = zlib.compressobj(9, wbits=31)
    slow = block.flush(zlib.Z_SYNC_FLUSH) + b"\0\0\0\xff\xff" * 30_000 + block.flush()
    assert decode(
        wrap(between(gzip.compress(random.Random(1).randbytes(200_000))))
    ) == random.Random(1).randbytes(200_000)
    with pytest.raises(InvalidRequest, match="twice"):
        decode(wrap(between(slow)))
    with pytest.raises(InvalidRequest, match="twice"):
        decode(brotli.compress(slow), content_encoding=b"br")


def test_nested_bombs_are_unwrapped_to_a_limit() -> None:
    """Only as many layers are unwrapped as senders are known to use; what is still wrapped then is
    left as it is, and is no JSON.
    """
    body = JSON
    for _ in range(6):
        body = gzip.compress(body)
    assert decode(body).startswith(b"\x1f\x8b")
    assert peak_of(base64.b64encode(gzip.compress(bomb(50))), LIMIT) < 4 * LIMIT


def test_an_lz64_bomb_is_cut_off() -> None:
    """A few kilobytes of lz64 that stand for a hundred times as many characters are refused at the
    limit.
    """
    body = compress("a" * 300_000)
    assert len(body) < 3_000
    assert peak_of(body, LIMIT // 10, query=b"compression=lz64") < 8 * (LIMIT // 10)


def test_an_lz64_body_counts_in_bytes() -> None:
    """The limit is on the bytes that come out, not on the characters: each of these takes three."""
    with pytest.raises(RequestTooLarge):
        decode(compress("中" * 4000), 10_000, query=b"compression=lz64")
    assert (
        decode(compress("中" * 3000), 10_000, query=b"compression=lz64") == ("中" * 3000).encode()
    )


def test_a_long_lz64_body_is_refused_unread() -> None:
    """Decompressing it would hold up everyone."""
    with pytest.raises(RequestTooLarge):
        decode(b"A" * (1024 * 1024 + 4), query=b"compression=lz64")


def test_percent_encoding_costs_no_multiple_of_the_body() -> None:
    """A form in which every character is escaped takes a few times its size, and not a hundred
    bytes an escape.
    """
    body = b"data=" + b"%5b" * 400_000
    tracemalloc.start()
    assert decode(body, content_type=FORM) == b"[" * 400_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 12 * len(body)


@given(st.text(max_size=300), st.integers(0, 70_000))
def test_percent_encoding_is_undone_across_pieces(text: str, shift: int) -> None:
    """No escape is lost where a long value is decoded piece by piece."""
    value = b"[" + b"x" * shift + text.encode()
    escaped = b"[" + b"x" * shift + quote(text, safe="").encode()
    assert decode(b"data=" + escaped, content_type=FORM) == value


@given(
    st.binary(max_size=300),
    st.sampled_from([b"", b"gzip", b"lz64", b"base64", b"x"]),
    st.sampled_from([b"", FORM]),
    st.binary(max_size=30),
)
def test_no_body_makes_another_error(
    body: bytes, hint: bytes, content_type: bytes, query: bytes
) -> None:
    """Rubbish is refused or passed on to be refused as JSON; nothing else comes of it."""
    for payload in (body, b"\x1f\x8b" + body, b"data=" + body):
        try:
            decoded = decode(
                payload, content_type=content_type, content_encoding=hint, query=b"data=" + query
            )
        except (InvalidRequest, RequestTooLarge):
            continue
        assert decoded.strip()


TOKENS = [
    b"%",
    b"=",
    b"\0",
    b"\r",
    b"\n",
    b"_",
    b" ",
    b"+",
    b"%41",
    b"%3d",
    b"%3D",
    b"%00",
    b"%4",
    b"%zz",
    b"g",
    b"F",
    b"\x18",
    b"\xff",
]
VALUES = st.lists(st.sampled_from(TOKENS) | st.binary(max_size=4), max_size=40).map(b"".join)


@given(VALUES)
def test_urllib_decodes_the_same(value: bytes) -> None:
    """Valid escapes are decoded, all other bytes stay."""
    assert unquote(value) == unquote_to_bytes(value)


@given(VALUES, st.integers(1, 40))
def test_pieces_decode_the_same(value: bytes, piece: int) -> None:
    """No escape is lost where a long value is decoded piece by piece, wherever it is cut."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encodings, "_PIECE_BYTES", piece + 3)
        assert unquote(value) == unquote_to_bytes(value)


@given(st.binary(max_size=500))
def test_any_bytes_round_trip(data: bytes) -> None:
    """What is escaped comes out as it was."""
    assert unquote(quote_from_bytes(data, safe="").encode()) == data
