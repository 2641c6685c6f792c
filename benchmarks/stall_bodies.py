"""The bodies that take longest to read, as far as anybody has found them, each in the encodings
that its senders may use.
"""

from __future__ import annotations

import base64
import gzip
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote_from_bytes

import brotli  # type: ignore[import-untyped]
import zstandard

from benchmarks.bodies import API_KEY

LARGE: Final = 19_500_000
"""Bytes of JSON: a little less than a body may have."""
_KEY: Final = API_KEY.encode()
_FORM: Final = b"application/x-www-form-urlencoded"
_UUID: Final = b"0190a0a0-1111-7222-8333-444455556666"
_COMPLETE: Final = (
    b'{"event":"e","distinct_id":"d","uuid":"%b","timestamp":"2025-12-31T12:00:00Z"%b}'
)
_DIGITS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


@dataclass(frozen=True, slots=True)
class WorstBody:
    """One body, ready to be sent."""

    name: str
    data: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()
    path: bytes = b"/batch/"

    def request(self) -> bytes:
        """The whole request."""
        lines = b"".join([b"%b: %b\r\n" % header for header in self.headers])
        return b"POST %b HTTP/1.1\r\nHost: stall\r\n%bContent-Length: %d\r\n\r\n%b" % (
            self.path,
            lines,
            len(self.data),
            self.data,
        )


def texts() -> Iterator[tuple[str, bytes]]:
    """JSON that takes long for its size, by name."""
    yield "spaces", _batch(b" " * LARGE)
    yield "nan", _batch(_event(b"[%b]" % _repeated(b"NaN", LARGE)))
    yield "nan-events", _batch(_repeated(b"NaN", LARGE))
    yield "surrogates", _batch(_event(b'"%b"' % (b"\\ud800" * (LARGE // 6))))
    yield "surrogate-events", _batch(_repeated(b'{"event":"\\ud800","distinct_id":"d"}', 1_900_000))
    yield "nothing-200000", _batch(_repeated(b"{}", 600_000))
    yield "nothing-49000", _batch(_repeated(b"{}", 147_000))
    yield "unstamped-49000", _batch(_repeated(b'{"event":"e","distinct_id":"d"}', 1_560_000))
    yield "unstamped-realistic", _batch(_repeated(_event(b'"%b"' % (b"x" * 500)), LARGE))
    yield "complete", _batch(_repeated(_COMPLETE % (_UUID, b""), LARGE))
    yield "complete-but-one", _batch(_repeated(_COMPLETE % (_UUID, b""), 3_000_000) + b",{}")
    yield "own-keys", b"[%b]" % _repeated(_COMPLETE % (_UUID, b',"api_key":"%b"' % _KEY), 4_900_000)
    yield (
        "many-keys",
        b"[%b]"
        % b",".join(
            [_COMPLETE % (_UUID, b',"api_key":"phc_%032d"' % number) for number in range(1400)]
        ),
    )
    yield "deep", _batch(b"[" * LARGE)
    yield "openings", _batch(_repeated(b"[[]]", LARGE))
    yield "members", _batch(_event(b"{%b}" % _repeated(b'"":0', LARGE)))
    yield "escapes", _batch(_event(b'"%b"' % (b"\\n" * (LARGE // 2))))
    yield "not-ascii", _batch(_event(b'"%b"' % ("ü".encode() * (LARGE // 2))))
    yield (
        "digits",
        b'{"api_key":"%b","event":"e","distinct_id":"d","offset":%b}' % (_KEY, b"9" * 900_000),
    )
    yield (
        "long-id",
        b'{"api_key":"%b","event":"e","distinct_id":"%b"}' % (_KEY, b"\\u0000" * 160_000),
    )
    yield "just-inline", _batch(_repeated(b'{"event":"e","distinct_id":"d"}', 46_000))
    yield "just-inline-nan", _batch(_event(b"[%b]" % _repeated(b"NaN", 255_000)))
    yield "just-inline-complete", _batch(_repeated(_COMPLETE % (_UUID, b""), 1_040_000))


def bodies() -> Iterator[WorstBody]:
    """Each text as it is and compressed, and what only an encoding makes slow."""
    for name, text in texts():
        yield WorstBody(name, text)
        if len(text) > 1_000_000 and name in _ALSO_ENCODED:
            yield from _encoded(name, text)
    yield WorstBody("form-of-escapes", b"data={" + b"%" * LARGE, ((b"Content-Type", _FORM),))
    yield WorstBody("form-of-plus", b"data={" + b"+" * LARGE, ((b"Content-Type", _FORM),))
    bomb = brotli.compress(b"data={" + b"%" * LARGE, quality=1)
    yield WorstBody(
        "form-of-escapes-br", bomb, ((b"Content-Type", _FORM), (b"Content-Encoding", b"br"))
    )
    yield WorstBody(
        "base64-of-base64", base64.b64encode(base64.b64encode(b"A" * (LARGE * 9 // 16)))
    )
    stored = gzip.compress(b"", 0)[:10] + b"\x00\x00\x00\xff\xff" * (LARGE // 5)
    yield WorstBody("gzip-of-empty-blocks", stored)
    yield WorstBody("lz64", lz64("{" + "a" * 3_000_000), (), b"/batch/?compression=lz64")


def rules(salt: str) -> list[dict[str, Any]]:
    """A rule of each kind, for the project key and the name that the worst bodies have."""
    match = {"event": "e"}
    return [
        {"match": {**match, "where": '(.properties.b // 0) == "x"'}, "drop": True},
        {"match": {**match, "where": _NESTED}, "drop": True},
        {"match": {**match, "where": _REGULAR}, "drop": True},
        {"match": match, "sample": 1.0},
        {"match": match, "rename": {".properties.a.b": ".properties.a.c"}},
        {"match": match, "remove": [".properties.a.b", ".properties.a.d"]},
        {"match": match, "set": {".properties.x.y": 1}},
        {"match": match, "hash": {"field": ".properties.a", "salt_file": salt}},
    ]


_NESTED: Final = (
    '.properties.a | type == "array" and length < 1000 and '
    "([.[] as $x | .[] | . == $x] | length < 0)"
)
_REGULAR: Final = '.properties.a | type == "string" and test("(0+)+1")'


def ruled_values() -> dict[str, bytes]:
    """Values of a property `a` that rules take long for, by name; the largest nearly a megabyte."""
    size = 980_000
    deep = b"[" * 440 + b'"b",' + _repeated(b"[]", size - 2000) + b"]" * 440
    return {
        "flat": b"[%b]" % _repeated(b"0", size),
        "deep": deep,
        "members": b'{%b,"b":0}' % _repeated(b'"":0', size),
        "often": b"{%b}" % _repeated(b'"b":0', size),
        "objects": b"[%b]" % _repeated(b'{"b":0}', size),
        "text": b'"%b"' % (b"x" * size),
        "short": b"[%b]" % _repeated(b"0", 28_000),
        "nested": b"[%b]" % _repeated(b"0", 900),
        "match": b'"%b"' % (b"0" * 30),
    }


def ruled_bodies() -> Iterator[WorstBody]:
    """Bodies that rules take long for: one event of nearly a megabyte, and many small ones."""
    values = ruled_values()
    for name, value in values.items():
        yield WorstBody(f"rules-{name}", _batch(_event(value)))
    for name, count in (("short", 34), ("short", 600), ("nested", 300), ("match", 300)):
        packed = gzip.compress(_batch(b",".join([_event(values[name])] * count)))
        yield WorstBody(f"rules-{name}-{count}", packed, ((b"Content-Encoding", b"gzip"),))
    whole = _batch(b",".join([_event(values["members"])] * 18))
    yield WorstBody("rules-members-18", whole)
    for name in ("short", "nested", "text"):
        yield _exported(f"rules-otlp-{name}", [_otlp_value(values[name])] * 20)
    wide = [_attribute(b"r%d" % number, b'{"intValue":"1"}') for number in range(8000)]
    yield _exported("rules-otlp-wide", [_otlp_value(values["nested"])] * 90, wide)


OTLP_MAPPING: Final = {
    "event": ".attributes.e",
    "distinct_id": ".attributes.e",
    "properties": "{a: .body}",
}
LINE_MAPPING: Final = {
    "event": ".event",
    "distinct_id": ".distinct_id",
    "properties": ".properties",
}


def ruled_lines() -> Iterator[tuple[str, bytes]]:
    """The same as lines of a log in JSON: one, and many small ones."""
    values = ruled_values()
    for name, value in values.items():
        yield f"rules-{name}", _event(value)
    for name, count in (("short", 30), ("nested", 300), ("match", 300)):
        yield f"rules-{name}-{count}", b"\n".join([_event(values[name])] * count)


def ruled_records() -> Iterator[tuple[str, bytes]]:
    """The same as records of Kafka."""
    for body in ruled_bodies():
        if body.path == b"/batch/" and len(body.data) < 1_000_000:
            yield f"{body.name}-kafka", body.data


def _attribute(name: bytes, value: bytes) -> bytes:
    return b'{"key":"%b","value":%b}' % (name, value)


def _otlp_value(value: bytes) -> bytes:
    """A text, or a list of one number, in OTLP's JSON."""
    if value.startswith(b'"'):
        return b'{"stringValue":%b}' % value
    items = b",".join([b'{"intValue":"0"}'] * (value.count(b",") + 1))
    return b'{"arrayValue":{"values":[%b]}}' % items


def _exported(name: str, values: list[bytes], resource: Sequence[bytes] = ()) -> WorstBody:
    """Log records with these bodies, of a resource with these attributes."""
    text = (
        b'{"resourceLogs":[{"resource":{"attributes":[%b]},"scopeLogs":[{"logRecords":[%b]}]}]}'
        % (
            b",".join(resource),
            b",".join(
                [
                    b'{"attributes":[%b],"body":%b}'
                    % (_attribute(b"e", b'{"stringValue":"e"}'), value)
                    for value in values
                ]
            ),
        )
    )
    headers = (
        (b"Content-Type", b"application/json"),
        (b"Content-Encoding", b"gzip"),
        (b"Authorization", b"Bearer " + _KEY),
    )
    return WorstBody(name, gzip.compress(text), headers, b"/v1/logs")


_ALSO_ENCODED: Final = ("nan", "surrogates", "spaces", "unstamped-49000", "deep")


def _encoded(name: str, text: bytes) -> Iterator[WorstBody]:
    packed = gzip.compress(text, 6)
    yield WorstBody(f"{name}-gzip", packed, ((b"Content-Encoding", b"gzip"),))
    yield WorstBody(f"{name}-zstd", zstandard.compress(text), ((b"Content-Encoding", b"zstd"),))
    yield WorstBody(f"{name}-br", brotli.compress(text, quality=1), ((b"Content-Encoding", b"br"),))
    yield WorstBody(f"{name}-deflate", zlib.compress(text), ((b"Content-Encoding", b"deflate"),))
    yield WorstBody(f"{name}-base64-gzip", base64.b64encode(packed))
    yield WorstBody(
        f"{name}-form-gzip",
        b"data=" + quote_from_bytes(base64.b64encode(packed)).encode(),
        ((b"Content-Type", _FORM),),
    )
    if len(text) < LARGE:
        yield WorstBody(f"{name}-base64", base64.b64encode(text))
    v1 = (
        (b"Authorization", b"Bearer " + _KEY),
        (b"Content-Type", b"application/json"),
        (b"Content-Encoding", b"gzip"),
    )
    yield WorstBody(f"{name}-v1", packed, v1, b"/i/v1/analytics/events")


def records() -> Iterator[tuple[str, bytes]]:
    """Kafka records: below the megabyte that a broker takes, as they are or compressed."""
    for name, text in texts():
        if len(text) < 1_000_000:
            yield name, text
        elif name in _ALSO_ENCODED or name == "complete":
            yield f"{name}-gzip", gzip.compress(text, 6)
    yield "nan-million", _batch(_event(b"[%b]" % _repeated(b"NaN", 990_000)))


def _batch(events: bytes) -> bytes:
    return b'{"api_key":"%b","batch":[%b]}' % (_KEY, events)


def _event(value: bytes) -> bytes:
    return b'{"event":"e","distinct_id":"d","properties":{"a":%b}}' % value


def _repeated(item: bytes, size: int) -> bytes:
    return b",".join([item] * (size // (len(item) + 1)))


def lz64(text: str) -> bytes:
    """The text as older browser SDKs compress it (`wire/lz64.py` has the format)."""
    codes: dict[str, int] = {}
    fresh: set[str] = set()
    bits: list[str] = []
    width = 2
    room = 2

    def write(value: int, size: int) -> None:
        bits.append(format(value, f"0{size}b")[::-1])

    def used() -> None:
        nonlocal width, room
        room -= 1
        if room == 0:
            room = 1 << width
            width += 1

    def flush(entry: str) -> None:
        if entry in fresh:
            fresh.discard(entry)
            write(0, width)
            write(ord(entry), 8)
            used()
        else:
            write(codes[entry], width)
        used()

    entry = ""
    for unit in text:
        if unit not in codes:
            codes[unit] = len(codes) + 3
            fresh.add(unit)
        if entry + unit in codes:
            entry += unit
        else:
            flush(entry)
            codes[entry + unit] = len(codes) + 3
            entry = unit
    flush(entry)
    write(2, width)
    whole = "".join(bits)
    digits = [_DIGITS[int(whole[at : at + 6].ljust(6, "0"), 2)] for at in range(0, len(whole), 6)]
    encoded = "".join(digits)
    return (encoded + "=" * (-len(encoded) % 4)).encode()
