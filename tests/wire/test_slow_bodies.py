"""A search for bodies that take long: work grows with their bytes, slowly, whatever is in them and
however they are wrapped.

Work is counted in interpreted instructions, not in time: where one runs for each escape, string or
number, a body of 20 MB takes seconds. C functions aren't seen so; for them there is a bound on the
processor's time that only what isn't linear exceeds.
"""

from __future__ import annotations

import base64
import gzip
import time
import zlib
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple
from urllib.parse import quote_from_bytes

import brotli  # type: ignore[import-untyped]
import zstandard
from hypothesis import example, given, target
from hypothesis import strategies as st

from forwarder.core.errors import ForwarderError
from forwarder.core.ports import Incoming, V1Head
from forwarder.wire import lz64
from forwarder.wire.encodings import decode_body
from forwarder.wire.shapes import read_request
from forwarder.wire.v1 import read_v1
from tests.support.lz64 import compress
from tests.support.steps import count_steps

LIMIT: Final = 20_000_000
FORM: Final = b"application/x-www-form-urlencoded"
SMALL = 20_000
LARGE = 100_000
STEPS_A_BYTE: Final = 0.5
"""Decompressing zstd in little pieces takes 0.2; one loop over all escapes takes 5 for each byte
of them.
"""
STEPS_AN_LZ64_BYTE: Final = 100
STEPS_AN_EVENT: Final = 2500
SPARE_STEPS: Final = 1000
"""For what is done once with a long text only."""
SECONDS_A_BYTE: Final = 2e-6
"""Forty times what the slowest takes on a slow machine."""


class GrowingBody(NamedTuple):
    """A body that grows: `unit` is repeated between `head` and `tail`."""

    head: bytes
    unit: bytes
    tail: bytes

    def text(self, size: int) -> bytes:
        """The text of about `size` bytes."""
        return self.head + self.unit * (size // len(self.unit) + 1) + self.tail


EVENT: Final = b'{"api_key":"k","event":"e","distinct_id":"d","properties":{"a":'
FRAMES: Final = [
    (EVENT + b'"', b'"}}'),
    (EVENT + b"[", b"1]}}"),
    (EVENT + b"[NaN,", b"1]}}"),
    (EVENT + b'["\\ud800",', b"1]}}"),
    (EVENT + b'[NaN,"\\ud800', b'"]}}'),
    (b'{"batch":[', b'],"api_key":"k"}'),
    (b'{"batch":[{}],"api_key":', b"}"),
    (b'{"sent_at":"', b'","batch":[{}]}'),
    (b'{"batch":[{"properties":{', b'"a":1}}]}'),
    (b"{", b""),
    (b"", b""),
]
TOKENS: Final = [
    *(
        b"%",
        b"%4",
        b"%41",
        b"%zz",
        b"+",
        b"=",
        b"&",
        b"data=",
        b" ",
        b"\r\n",
        b"\t",
        b"\0",
        b"\xef\xbb\xbf",
        b"\xff",
    ),
    *(
        b"NaN,",
        b"-Infinity,",
        b"Infinity",
        b'"",',
        b'"',
        b"\\\\",
        b'\\"',
        b"\\n",
        b"\\",
        b"[",
        b"]",
        b"[],",
        b"{},",
        b"1,",
        b"1",
        b"-",
        b"e9",
    ),
    *(
        b"\\ud800",
        b"\\ude00",
        b"\\ud83d\\ude00",
        b"\\u0041",
        b"\\u",
        b'"a":1,',
        b'"":{},',
        b'"token":"t",',
        b'"sent_at":1,',
    ),
    *(
        "é".encode(),
        "中".encode(),
        "😀".encode(),
        b"a",
        b"A",
        b"/",
        b"null,",
        b"true,",
        b"0.1,",
        b"1e999,",
    ),
]
SHAPES: Final = st.tuples(
    st.sampled_from(FRAMES), st.lists(st.sampled_from(TOKENS), min_size=1, max_size=4)
).map(lambda parts: GrowingBody(parts[0][0], b"".join(parts[1]), parts[0][1]))


def as_form(text: bytes) -> Incoming:
    """A form of a text as it is, whatever it means there."""
    return Incoming(b"data=" + text, content_type=FORM)


WRAPS: Final[dict[str, Callable[[bytes], Incoming]]] = {
    "plain": Incoming,
    "form": as_form,
    "escaped": lambda text: as_form(quote_from_bytes(text, safe="").encode()),
    "form of base64": lambda text: as_form(base64.b64encode(text)),
    "base64": lambda text: Incoming(base64.b64encode(text)),
    "base64 in lines": lambda text: Incoming(base64.encodebytes(text)),
    "base64 twice": lambda text: Incoming(base64.b64encode(base64.b64encode(text))),
    "gzip": lambda text: Incoming(gzip.compress(text, 1)),
    "gzip of base64": lambda text: Incoming(gzip.compress(base64.b64encode(text), 1)),
    "gzip in members": lambda text: Incoming(
        b"".join(gzip.compress(text[at::8], 1) for at in range(8))
    ),
    "gzip of a form": lambda text: as_form(gzip.compress(text, 1)),
    "zstd": lambda text: Incoming(zstandard.compress(text)),
    "br": lambda text: Incoming(brotli.compress(text, quality=1), content_encoding=b"br"),
    "br of a form": lambda text: Incoming(
        brotli.compress(b"data=" + text, quality=1), content_type=FORM, content_encoding=b"br"
    ),
    "deflate": lambda text: Incoming(zlib.compress(text, 1), content_encoding=b"deflate"),
    "wrong headers": lambda text: Incoming(
        text, content_type=FORM, content_encoding=b"deflate", query=b"compression=lz64"
    ),
}


def read(incoming: Incoming) -> None:
    """Read a request as far as its events, or reject it."""
    try:
        read_request(decode_body(incoming, LIMIT), 10)
    except ForwarderError:
        return


def copied(incoming: Incoming) -> Incoming:
    """The same request; reading changes it."""
    return Incoming(incoming.body, incoming.query, incoming.content_type, incoming.content_encoding)


def check_time(run: Callable[[], object], size: int) -> None:
    """The processor's time is bounded; of three tries the fastest counts."""

    def seconds() -> float:
        begun = time.thread_time()
        run()
        return time.thread_time() - begun

    assert any(seconds() < size * SECONDS_A_BYTE for _ in range(3))


@given(SHAPES, st.sampled_from(sorted(WRAPS)))
@example(GrowingBody(b"{", b"%", b""), "br of a form")
@example(GrowingBody(b"{", b"%4", b""), "form")
@example(GrowingBody(EVENT + b"[", b"NaN,", b"1]}}"), "gzip")
@example(GrowingBody(EVENT + b"[NaN,", b'"",', b"1]}}"), "plain")
@example(GrowingBody(EVENT + b'"', b"\\ud800", b'"}}'), "plain")
@example(GrowingBody(EVENT + b'"\\ud800', b"\\n", b'"}}'), "gzip")
@example(GrowingBody(EVENT + b'"', b"\\ud83d\\ude00", b'\\ud800"}}'), "zstd")
def test_no_text_takes_a_step_for_each_of_its_parts(shape: GrowingBody, wrap: str) -> None:
    """Decoding, decompressing and repairing are left to C, whatever the text is made of."""
    small = shape.text(SMALL)
    large = shape.text(LARGE)
    one = WRAPS[wrap](small)
    other = WRAPS[wrap](large)
    steps = (count_steps(lambda: read(copied(other))) - count_steps(lambda: read(copied(one)))) / (
        len(large) - len(small)
    )
    target(steps)
    assert steps < STEPS_A_BYTE
    check_time(lambda: read(copied(other)), len(large))


@given(SHAPES)
@example(GrowingBody(b'{"batch":[', b"{},", b"{}]}"))
@example(GrowingBody(b'{"batch":[NaN,', b'"\\ud800",', b"{}]}"))
def test_no_v1_text_takes_more_than_its_events(shape: GrowingBody) -> None:
    """Of the protocol with a result for each event, steps go with the events."""

    def run(text: bytes) -> None:
        try:
            read_v1(text, V1Head(b"Bearer k", b"lib/1"), 10_000)
        except ForwarderError:
            return

    small = shape.text(2000)
    large = shape.text(6000)
    steps = count_steps(lambda: run(large)) - count_steps(lambda: run(small))
    target(steps)
    assert steps < STEPS_AN_EVENT * (large.count(b",") - small.count(b",")) + SPARE_STEPS
    check_time(lambda: run(large), 100 * len(large))


@given(
    st.text(max_size=400) | st.text(alphabet='ab"{}:', max_size=2000),
    st.binary(max_size=300).map(base64.b64encode),
)
def test_no_lz64_text_takes_more_than_its_codes(text: str, rubbish: bytes) -> None:
    """The only loop that is left takes a few steps for each digit."""

    def run(stream: bytes) -> None:
        try:
            lz64.decompress(stream, LIMIT)
        except ValueError:
            return

    for stream in (compress(text), rubbish):
        steps = count_steps(partial(run, stream)) / (len(stream) + 20)
        target(steps, label="valid" if stream is not rubbish else "rubbish")
        assert steps < STEPS_AN_LZ64_BYTE
