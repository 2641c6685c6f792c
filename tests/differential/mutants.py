"""Mutants of the corpus: the same ones for the same seed."""

from __future__ import annotations

import base64
import gzip
import json
import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final
from urllib.parse import quote_plus

import brotli  # type: ignore[import-untyped]
import zstandard

from tests.differential.configurations import (
    CLUSTERS,
    KEY,
    LOGS,
    OTHER,
    OTLP_KEY,
    SHOP,
    WEIGHTS,
)
from tests.differential.corpus import (
    BODIES,
    UUID,
    event,
    log_line,
    otlp_body,
    record_value,
    v1_body,
)
from tests.differential.inputs import (
    FATES,
    KINDS,
    LINES,
    RECORDS,
    REQUESTS,
    Mutant,
    RecordInput,
    RequestInput,
)
from tests.support.lz64 import compress

SHARES: Final = {REQUESTS: 60, RECORDS: 25, LINES: 15}
"""How many of a hundred mutants are of each kind."""

_MARK: Final = "@@odd@@"
ODD: Final = (
    *("null", "true", "false", "0", "-0", "-1", "1.50", "1e999", "1E400", "-1e-999"),
    *("NaN", "Infinity", "-Infinity", "12345678901234567890123", "0.1e1", "01", "+1", "1."),
    *('""', '" "', r'"\ud800"', r'"\udc00x"', r'"a\u0000b"', r'"\u0024"', '"é😀"', '"\x01"'),
    *("[]", "{}", "[[[[]]]]", '[{"a":[{}]}]', '{"":{}}', '{"a":1,"a":2}', "[" * 600, "{" * 3),
    *("[" * 300 + "]" * 300, '{"a":' * 200 + "1" + "}" * 200, '"' + "x" * 300 + '"', "nul"),
    *('"2026-01-01T00:00:00Z"', '"2026-01-01"', "1767225600", '"phc_"', '"phc_a b"', '"null"'),
    *('1,"distinct_id":"twice"', '1,"event":"twice"', 'null,"properties":{"n":9}', "1,,2", "}"),
    *('"x","uuid":"x"', f'"{KEY}"', f'1,"api_key":"{SHOP}"', '"a","timestamp":null', " 1 ", ""),
    *('{"token":5}', '{"token":null}', '{"$ip":""}', "/*x*/1", "'x'", '"\\x"', '"\\u12"', '"'),
)
"""Values, and what isn't one, that an edit puts in the place of another."""
NAMES: Final = (
    *("event", "distinct_id", "uuid", "timestamp", "properties", "batch", "api_key", "token"),
    *("$token", "sent_at", "offset", "$set", "$ip", "data", "$distinct_id", "", "é", "options"),
    *("historical_migration", "type", "user", "$group_set", "n", "email", "code", "resourceLogs"),
)
PIECES: Final = (
    *(b'"', b"{", b"}", b"[", b"]", b",", b":", b" ", b"\n", b"\\", b"null", b"NaN", b"1e999"),
    *(b'"uuid":null,', b'"timestamp":"",', b'"offset":5,', b'"distinct_id":"",', b"\\ud800"),
    *(b'"event":"",', b'"properties":{}', b'"$ip":"x",', b'"batch":[],', b'"api_key":"p",', b"\0"),
    *(b"\xff", b"\xef\xbb\xbf", b"\xc3", b"\\u0024", b"\xed\xa0\x80", b"%", b"&", b"=", b"+"),
)


def mutants(seed: int, count: int, kinds: Sequence[str] = KINDS) -> Iterator[Mutant]:
    """So many mutants, of these kinds."""
    dice = random.Random(seed)
    names = list(WEIGHTS)
    weights = list(WEIGHTS.values())
    shares = [SHARES[kind] for kind in kinds]
    for _ in range(count):
        kind = dice.choices(kinds, shares)[0]
        configuration = dice.choices(names, weights)[0]
        yield _OF_KIND[kind](dice, configuration, dice.choice(FATES[kind]))


def damage(data: bytes, dice: random.Random, most: int = 3) -> bytes:
    """The bytes with a few of them changed, inserted, removed or repeated."""
    for _ in range(dice.randint(1, most)):
        at = dice.randrange(len(data) + 1)
        change = dice.random()
        if change < 0.25:
            data = data[:at] + data[at + dice.randint(1, 12) :]
        elif change < 0.4:
            data = data[:at] + bytes((dice.randrange(256),)) + data[at + 1 :]
        elif change < 0.5:
            data = data[:at] + data[max(0, at - dice.randint(1, 60)) :]
        else:
            comma = data.find(dice.choice((b",", b"{")), at) + 1
            if comma and dice.random() < 0.7:
                at = comma
            data = data[:at] + dice.choice(PIECES) + data[at + dice.choice((0, 0, 0, 1)) :]
    return data


def edited(value: Any, dice: random.Random) -> bytes:
    """A value as JSON text, with a few of its members removed, renamed or odd."""
    odd: list[str] = []
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        containers = _containers(value)
        if containers:
            _edit(dice.choice(containers), dice, odd)
    text = written(value, dice)
    for raw in odd:
        text = text.replace(b'"%b"' % _MARK.encode(), raw.encode("utf-8", "surrogatepass"), 1)
    return text


def written(value: Any, dice: random.Random) -> bytes:
    """A value as one of several writers writes it."""
    way = dice.random()
    if way < 0.6:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    elif way < 0.85:
        text = json.dumps(value)
    elif way < 0.95:
        text = json.dumps(value, separators=(",", ":"))
    else:
        text = json.dumps(value, indent=1, ensure_ascii=False)
    if way > 0.98:
        text = dice.choice(("\ufeff", " ", "\n", "\r\n\t")) + text + dice.choice(("", " ", "\n"))
    return text.encode("utf-8", "surrogatepass")


def _containers(value: Any) -> list[Any]:
    containers: list[Any] = []
    left = [value]
    while left:
        node = left.pop()
        if isinstance(node, dict):
            if node:
                containers.append(node)
            left += node.values()
        elif isinstance(node, list):
            if node:
                containers.append(node)
            left += node
    return containers


def _edit(container: Any, dice: random.Random, odd: list[str]) -> None:
    where = dice.choice(list(container)) if isinstance(container, dict) else None
    at = where if where is not None else dice.randrange(len(container))
    change = dice.random()
    if change < 0.25:
        del container[at]
    elif change < 0.8:
        container[at] = _MARK
        odd.append(dice.choice(ODD))
    elif isinstance(container, dict):
        container[dice.choice(NAMES)] = container.pop(at) if change < 0.9 else container[at]
    else:
        container.insert(at, container[dice.randrange(len(container))])


def _mutated(value: Any, dice: random.Random) -> bytes:
    """A value as text: as it is, edited, damaged or both."""
    way = dice.random()
    if way < 0.35:
        return written(value, dice)
    text = edited(value, dice) if way < 0.9 else written(value, dice)
    return damage(text, dice) if way > 0.82 else text


Wrapped = tuple[bytes, bytes, bytes, bytes]
"""A body, its query, content type and content encoding."""
_FORM: Final = b"application/x-www-form-urlencoded"
_ZSTD: Final = zstandard.ZstdCompressor(level=1)


def _deflated(text: bytes) -> bytes:
    return zlib.compress(text, 1)


def _base64_form(text: bytes) -> bytes:
    return b"data=" + quote_plus(base64.b64encode(text)).encode()


WRAPS: Final[Sequence[tuple[int, Callable[[bytes], Wrapped]]]] = (
    (50, lambda text: (text, b"", b"application/json", b"")),
    (6, lambda text: (text, b"ip=1&_=1767225600500&ver=1.2.3", b"text/plain", b"")),
    (6, lambda text: (_gzip(text), b"", b"application/json", b"gzip")),
    (4, lambda text: (_gzip(text), b"compression=gzip-js&ver=1", b"text/plain", b"")),
    (2, lambda text: (_gzip(text), b"", b"", b"")),
    (3, lambda text: (_base64_form(text), b"compression=base64", _FORM, b"")),
    (3, lambda text: (_base64_form(text) + b"&compression=base64", b"beacon=1", _FORM, b"")),
    (3, lambda text: (b"data=" + quote_plus(text).encode(), b"_=1767225600.5", _FORM, b"")),
    (2, lambda text: (b"", b"data=" + quote_plus(base64.b64encode(text)).encode(), b"", b"")),
    (2, lambda text: (base64.b64encode(text), b"compression=base64", b"text/plain", b"")),
    (2, lambda text: (base64.b64encode(_gzip(text)), b"", b"", b"")),
    (3, lambda text: (brotli.compress(text, quality=0), b"", b"application/json", b"br")),
    (3, lambda text: (_deflated(text), b"", b"application/json", b"deflate")),
    (3, lambda text: (_ZSTD.compress(text), b"", b"application/json", b"zstd")),
    (1, lambda text: (b"data=" + _lz64(text), b"compression=lz64", _FORM, b"")),
)


def _gzip(text: bytes) -> bytes:
    return gzip.compress(text, 1, mtime=0)


def _lz64(text: bytes) -> bytes:
    return quote_plus(compress(text[:600].decode("utf-8", "replace"))).encode()


_WRAPS: Final = [wrap for _, wrap in WRAPS]
_WRAP_WEIGHTS: Final = [weight for weight, _ in WRAPS]
_SHAPES: Final = [shape for _, shape in BODIES]
_SHAPE_WEIGHTS: Final = [weight for weight, _ in BODIES]
_QUERIES: Final = (
    b"compression=gzip",
    b"compression=lz64",
    b"compression=base64",
    b"data=",
    b"_=abc",
    b"_=-5",
    b"ip=0&_=1767225500000",
    b"data=%7B%7D",
    b"%zz",
    b"sent_at=2026-01-01T00%3A00%3A00Z",
)
_TYPES: Final = (b"", b"text/plain", _FORM, b"application/json; charset=utf-16", b"a/b")
_ENCODINGS: Final = (b"", b"gzip", b"br", b"deflate", b"zstd", b"GZIP", b"x", b"gzip, br", b"lz64")


def _classic(dice: random.Random) -> RequestInput:
    shape = dice.choices(_SHAPES, _SHAPE_WEIGHTS)[0]
    text = _mutated(shape(dice), dice)
    wrap = dice.choices(_WRAPS, _WRAP_WEIGHTS)[0]
    body, query, content_type, encoding = wrap(text)
    if wrap is not _WRAPS[0] and dice.random() < 0.12:
        body = damage(body, dice)
    if dice.random() < 0.03:
        body, _, _, encoding = dice.choices(_WRAPS, _WRAP_WEIGHTS)[0](body)
    if dice.random() < 0.05:
        query = dice.choice(_QUERIES)
    if dice.random() < 0.05:
        content_type = dice.choice(_TYPES)
    if dice.random() < 0.05:
        encoding = dice.choice(_ENCODINGS)
    return RequestInput(
        body,
        query,
        content_type,
        encoding,
        dice.choice(("8.8.8.8", "2001:4860::1")) if dice.random() < 0.3 else None,
        dice.choice(("memory", "disk", "delivered")) if dice.random() < 0.08 else None,
        b'"$identify"' if dice.random() < 0.05 else b"",
    )


_BEARERS: Final = (
    *(b"Bearer " + key.encode() for key in (KEY, KEY, KEY, KEY, SHOP, OTHER)),
    *(b"", b"Bearer ", b"Basic abc", b"bearer " + KEY.encode(), b"Bearer a b", b"Bearer \xff"),
)


def _v1(dice: random.Random) -> RequestInput:
    text = _mutated(v1_body(dice), dice)
    encoding = dice.choices((b"", b"gzip", b"zstd", b"deflate", b"br", b"x"), (12, 3, 1, 1, 1, 1))[
        0
    ]
    ways = {b"gzip": _gzip, b"zstd": _ZSTD.compress, b"deflate": _deflated, b"br": brotli.compress}
    body = ways[encoding](text) if encoding in ways and dice.random() < 0.95 else text
    head = (
        dice.choice(_BEARERS),
        dice.choice((b"", b"posthog-python/7.0", b"x", b"\xff")),
        dice.choice((b"", b"2026-01-01T00:00:10Z", b"yesterday")),
    )
    content_type = dice.choice((b"application/json",) * 8 + _TYPES)
    ack = "delivered" if dice.random() < 0.1 else None
    client = "8.8.8.8" if dice.random() < 0.3 else None
    return RequestInput(body, b"", content_type, encoding, client, ack, b"", head)


def _otlp(dice: random.Random) -> RequestInput:
    protobuf = dice.random() < 0.5
    body = otlp_body(dice, protobuf=protobuf)
    way = dice.random()
    if way < 0.3:
        body = damage(body, dice)
    elif way < 0.7 and not protobuf:
        body = edited(json.loads(body), dice)
    encoding = dice.choices((b"", b"gzip", b"x"), (8, 3, 1))[0]
    if encoding == b"gzip" and dice.random() < 0.95:
        body = _gzip(body)
    if dice.random() < 0.03:
        protobuf = not protobuf
    content_type = b"application/x-protobuf" if protobuf else b"application/json"
    bearer = dice.choice((b"", b"", b"Bearer " + OTLP_KEY.encode(), b"Bearer x", *_BEARERS[:2]))
    ack = "delivered" if dice.random() < 0.1 else None
    return RequestInput(body, b"", content_type, encoding, "8.8.8.8", ack, otlp=(bearer, protobuf))


def _replay(dice: random.Random) -> RequestInput:
    body = _mutated({"api_key": dice.choice((KEY, SHOP)), "batch": [event(dice)]}, dice)
    replayed = (
        7,
        dice.choice(("refused", "missing_event", "too_large", "rule_failed", "gave_up")),
        dice.choice((None, 1767220000.5)),
        dice.choice(("", UUID.format(1))),
        dice.random() < 0.5,
        dice.choice((None, "", KEY, SHOP)),
        dice.choice(("http", "kafka", "otlp", "")),
    )
    return RequestInput(body, replayed=replayed)


def _request(dice: random.Random) -> RequestInput:
    way = dice.random()
    if way < 0.7:
        return _classic(dice)
    if way < 0.84:
        return _v1(dice)
    return _otlp(dice) if way < 0.96 else _replay(dice)


def _requests(dice: random.Random, configuration: str, fate: str) -> Mutant:
    count = 1 if dice.random() < 0.95 else 2
    requests = [_request(dice) for _ in range(count)]
    return Mutant(REQUESTS, configuration, fate, requests)


def _records(dice: random.Random, configuration: str, fate: str) -> Mutant:
    policy = dice.choices(range(len(CLUSTERS)), (5, 3, 3, 1))[0]
    offset = 100
    records = []
    for _ in range(dice.choices((1, 2, 3, 5, 16), (9, 5, 4, 2, 1))[0]):
        offset += dice.choice((1, 1, 1, 1, 5))
        records.append(_record(dice, policy, offset))
    return Mutant(
        RECORDS, configuration, fate, (), records, b"", policy, given_up=dice.random() < 0.5
    )


def _record(dice: random.Random, policy: int, offset: int) -> RecordInput:
    way = dice.random()
    value: bytes | None = None
    if way > 0.04:
        made = record_value(dice, policy)
        value = _mutated(made, dice) if way < 0.4 else written(made, dice)
        if way > 0.97:
            value = dice.choice((_gzip, base64.b64encode, damage_all))(value)
    headers: list[tuple[str, bytes | None]] = []
    if dice.random() < 0.3:
        headers = [
            ("other", b"\xff"),
            ("project", dice.choice((SHOP.encode(), b"", b"\xff", None, b"a b", KEY.encode()))),
        ]
    return RecordInput(
        offset,
        dice.choices((1767225600123, 1795737600001, None, -1, 0), (6, 6, 1, 1, 1))[0],
        dice.choice((None, b"ann", b"", b"\xff\xfe", "zoë".encode())),
        value,
        headers,
    )


def damage_all(data: bytes) -> bytes:
    """Bytes that are no text."""
    return data[::-1] + b"\xff"


def _lines(dice: random.Random, configuration: str, fate: str) -> Mutant:
    policy = dice.randrange(len(LOGS))
    lines = [log_line(dice, policy) for _ in range(dice.choices((1, 2, 3, 6), (4, 3, 2, 1))[0])]
    for at in range(len(lines)):
        if dice.random() < 0.4:
            lines[at] = damage(lines[at], dice, 2)
    end = dice.choice((b"\n", b"\n", b"\n", b"\r\n", b"\n\n"))
    data = end.join(lines) + dice.choice((end, end, end, b""))
    if dice.random() < 0.05:
        data = dice.choice((b"\xef\xbb\xbf", b"\0\0\0", b"\n")) + data
    return Mutant(LINES, configuration, fate, (), (), data, policy, given_up=dice.random() < 0.5)


_OF_KIND: Final = {REQUESTS: _requests, RECORDS: _records, LINES: _lines}
