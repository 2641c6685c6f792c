"""LZ-String streams: known vectors, round trips, rubbish, and what can't be UTF-8."""

from __future__ import annotations

import base64
import binascii
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forwarder.wire.lz64 import CorruptError, TooLargeError, decompress
from tests.support.cases import cases
from tests.support.lz64 import compress

LIMIT = 1_000_000
LONE = "".join(chr(unit) for unit in (0xD800,))


@cases(
    ("text", "encoded"),
    [
        pytest.param("", b"Q===", id="nothing"),
        pytest.param("hello", b"BYUwNmD2Q===", id="ascii"),
        pytest.param(
            '{"event":"é中😀","n":[1,1,1,1,1]}',
            b"N4IgpgbmB2AuIC4QEvC0coXg3AAeyANCaiA2gIw6nlkC6AvkA===",
            id="all planes",
        ),
        pytest.param("aaaaaaaaaa", b"IY1o", id="one entry growing"),
    ],
)
def test_known_streams(text: str, encoded: bytes) -> None:
    """What the original library makes of a text is read, and the tests' encoder makes the same."""
    assert compress(text) == encoded
    assert decompress(encoded, LIMIT) == text.encode()


@given(st.text(max_size=400) | st.text(alphabet='ab"{}:', max_size=2000))
def test_any_text_round_trips(text: str) -> None:
    """Texts of all planes, and long ones of few characters (so that codes grow wide), come out as
    they went in.
    """
    assert decompress(compress(text), LIMIT) == text.encode()


def test_lines_and_padding_do_not_matter() -> None:
    """The digits may come in lines and without their padding."""
    encoded = compress("lines of text")
    assert decompress(encoded[:8] + b"\n" + encoded[8:].rstrip(b"="), LIMIT) == b"lines of text"


def test_a_lone_surrogate_becomes_its_escape() -> None:
    """JavaScript strings can hold half a character, UTF-8 can't; in JSON it has an escape, so that
    its event alone is refused later.
    """
    event = f'{{"event":"{LONE}"}}'
    assert decompress(compress(event), LIMIT) == b'{"event":"\\ud800"}'
    assert decompress(compress('{"event":"😀"}'), LIMIT) == '{"event":"😀"}'.encode()


@cases(
    "text",
    [b"", b"A", b"AAAA", b"AAAAAAAA", b"////", b"wwww", compress("hello world")[:-6], b"!!!!"],
)
def test_rubbish_is_corrupt(text: bytes) -> None:
    """A stream that ends in the middle, begins with a reference or names an entry that doesn't
    exist is corrupt.
    """
    with pytest.raises(CorruptError):
        decompress(text, LIMIT)


@given(st.binary(max_size=200), st.integers(0, 50))
def test_rubbish_ends(text: bytes, limit: int) -> None:
    """Whatever comes, it ends: as text within the limit or as one of the two errors."""
    try:
        assert len(decompress(text, limit)) <= limit
    except (CorruptError, TooLargeError):
        return


def one_by_one(text: bytes) -> str | None:
    """What the codes stand for, read bit by bit as the format's description says;
    None if it is no stream.
    """
    digits = text.replace(b"\n", b"").rstrip(b"=")
    try:
        data = binascii.a2b_base64(digits + b"A" * (-len(digits) % 4))
    except binascii.Error:
        return None
    bits = "".join(f"{byte:08b}" for byte in data)
    at = 0
    width = 2
    room = 2
    dictionary = ["", "", ""]
    written = [""]
    while at + width <= len(bits):
        code = int(bits[at : at + width][::-1], 2)
        at = at + width
        if code == 2:
            return "".join(written)
        if code < 2:
            unit = bits[at : at + 8 + 8 * code]
            if len(unit) < 8 + 8 * code:
                return None
            at += len(unit)
            dictionary.append(chr(int(unit[::-1], 2)))
            code = len(dictionary) - 1
            room = room - 1
            width, room = (width + 1, 1 << width) if room == 0 else (width, room)
        if code > len(dictionary) - (written == [""]):
            return None
        entry = dictionary[code] if code < len(dictionary) else written[-1] + written[-1][0]
        if written != [""]:
            dictionary.append(written[-1] + entry[0])
        written.append(entry)
        room -= 1
        width, room = (width + 1, 1 << width) if room == 0 else (width, room)
    return None


@given(
    st.binary(max_size=60).map(base64.b64encode) | st.text(max_size=60).map(compress),
    st.lists(st.sampled_from(b"ABZaz09+/=\n"), max_size=2),
)
def test_streams_are_read_as_bit_by_bit(text: bytes, changed: list[int]) -> None:
    """Whatever is in a stream, it stands for what its codes name, or is corrupt."""
    for at, digit in enumerate(changed, start=2):
        text = text[: at * 3] + bytes([digit]) + text[at * 3 + 1 :]
    expected = one_by_one(text)
    try:
        decompressed = decompress(text, LIMIT)
    except CorruptError:
        assert expected is None
    else:
        assert expected is not None
        units = expected.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        assert decompressed == units.encode("utf-8", "backslashreplace")


def test_the_limit_is_exact() -> None:
    """As many bytes as the limit come out, one more is too large."""
    assert decompress(compress("é" * 500), 1000) == ("é" * 500).encode()
    with pytest.raises(TooLargeError):
        decompress(compress("é" * 500 + "x"), 1000)


def test_a_batch_survives() -> None:
    """A body of many events is the same JSON afterwards."""
    body = json.dumps(
        [
            {"event": f"e{number}", "properties": {"n": number, "t": "Ω" * (number % 7)}}
            for number in range(300)
        ]
    )
    assert decompress(compress(body), LIMIT) == body.encode()
