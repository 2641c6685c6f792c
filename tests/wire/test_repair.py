"""NaN, Infinity and lone surrogates: distinguished from text that only looks like them."""

from __future__ import annotations

import json
import math
import re
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forwarder.core.errors import InvalidRequest
from forwarder.wire import repair
from forwarder.wire.repair import join_surrogates, mask_lone_surrogates, null_non_finite_numbers
from tests.support.cases import cases

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["NaN", "Infinity", '"NaN', "\\", "-Infinity,"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=5) | st.just("NaN"), inner, max_size=4)
    ),
    max_leaves=12,
)


def without_non_finite(value: Any) -> tuple[Any, int]:
    """The value as it should be read afterwards, and how many numbers are not finite."""
    if isinstance(value, float) and not math.isfinite(value):
        return None, 1
    if isinstance(value, list):
        pairs = [without_non_finite(element) for element in value]
        return [cleaned for cleaned, _ in pairs], sum(count for _, count in pairs)
    if isinstance(value, dict):
        members = {key: without_non_finite(member) for key, member in value.items()}
        return {key: cleaned for key, (cleaned, _) in members.items()}, sum(
            count for _, count in members.values()
        )
    return value, 0


@given(VALUES, st.booleans())
def test_only_numbers_become_null(value: Any, ascii_only: bool) -> None:
    """What Python writes of any value is valid JSON afterwards, with null for each number that
    isn't finite, and its text untouched.
    """
    text = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    mended, count = null_non_finite_numbers(text)
    expected, expected_count = without_non_finite(value)

    def refuse(token: str) -> None:
        pytest.fail(f"left: {token}")

    assert json.loads(mended.decode("utf-8", "surrogatepass"), parse_constant=refuse) == expected
    assert count == expected_count


@cases(
    "text", [b'{"a":1}', b'["NaN"]', b'["\\"NaN"]', b'["\\\\","Infinity"]', b'{"NaN":"-Infinity"}']
)
def test_text_is_left_alone(text: bytes) -> None:
    """Strings and keys are as before."""
    assert null_non_finite_numbers(text) == (text, 0)


WORDS = [
    *repair._NON_FINITE,
    b"Infi",
    b"Na",
    b"-",
    b"1",
    b",",
    b":",
    b" ",
    b"{",
    b"}",
    b"[",
    b"]",
    b"\1",
    b"\2",
]
ESCAPES = [
    b"\\",
    b"\\\\",
    b'\\"',
    b"\\n",
    rb"\ud800",
    rb"\uD83D",
    rb"\uDE00",
    rb"\udc00",
    rb"\ud7ff",
    rb"\ue000",
    rb"\u",
]
TOKENS = [*WORDS, *ESCAPES, b'"', b"u", b"d800", b"dc00"]
TEXTS = st.lists(st.sampled_from(TOKENS), max_size=40).map(b"".join)
STRINGS = st.lists(st.sampled_from([*ESCAPES[1:-1], *WORDS[:-2], b"u", b"dc00"]), max_size=10).map(
    lambda parts: b'"%b"' % b"".join(parts)
)
VALID = st.lists(STRINGS | st.sampled_from(repair._NON_FINITE)).map(
    lambda values: b"[%b]" % b" ,".join(values)
)


def nulled_one_by_one(text: bytes) -> tuple[bytes, int]:
    """What `null_non_finite_numbers` promises, byte by byte."""
    done = b""
    at = 0
    count = 0
    within_string = False
    while at < len(text):
        word = (
            b""
            if within_string
            else next((word for word in repair._NON_FINITE if text.startswith(word, at)), b"")
        )
        if word:
            done = done + b"null"
            at = at + len(word)
            count = count + 1
            continue
        length = 2 if within_string and text[at : at + 1] == b"\\" else 1
        within_string ^= text[at : at + 1] == b'"'
        done = done + text[at : at + length]
        at = at + length
    return done, count


def masked_one_by_one(text: bytes) -> bytes:
    """What `mask_lone_surrogates` promises, escape by escape."""
    escape = re.compile(
        (
            rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[dD][89a-fA-F][0-9a-"
            rb"fA-F]{2}|.)"
        ),
        re.DOTALL,
    )
    return escape.sub(lambda match: rb"\ufffd" if len(match[0]) == 6 else match[0], text)


def is_json(text: bytes) -> bool:
    """Whether a text is JSON, strictly."""

    def refuse(token: str) -> None:
        raise ValueError(token)

    try:
        json.loads(text, parse_constant=refuse)
    except ValueError:
        return False
    return True


@given(TEXTS | VALID, st.integers(12, 60))
def test_numbers_become_null_as_one_by_one(text: bytes, piece: int) -> None:
    """Wherever the text is cut into pieces: the same bytes, unless the text can't become JSON, and
    then it does so neither way.
    """
    expected, count = nulled_one_by_one(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repair, "_PIECE_BYTES", piece)
        nulled = null_non_finite_numbers(text)
        marked, _ = null_non_finite_numbers(text, b"NULL")
    if is_json(expected) or is_json(nulled[0]):
        assert nulled == (expected, count)
    assert len(marked) == len(nulled[0])


@given(TEXTS | VALID, st.integers(1, 60))
def test_surrogates_are_masked_as_one_by_one(text: bytes, piece: int) -> None:
    """Wherever the text is cut into pieces: the same bytes, unless the text can't become JSON, and
    then it does so neither way.
    """
    expected = masked_one_by_one(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repair, "_PIECE_BYTES", piece)
        masked = mask_lone_surrogates(text)
    assert len(masked) == len(text)
    if is_json(expected) or is_json(masked):
        assert masked == expected


@cases(
    ("text", "masked"),
    [
        (rb'"\ud800"', rb'"\ufffd"'),
        (rb'"\uDFFF"', rb'"\ufffd"'),
        (rb'"\uD83D\uDE00"', rb'"\uD83D\uDE00"'),
        (rb'"\ud83d\ude00\ude00"', rb'"\ud83d\ude00\ufffd"'),
        (rb'"\ud83d\ud83d\ude00"', rb'"\ufffd\ud83d\ude00"'),
        (rb'"\ude00\ud83d"', rb'"\ufffd\ufffd"'),
        (rb'"\\ud800"', rb'"\\ud800"'),
        (rb'"\\\ud800"', rb'"\\\ufffd"'),
        (rb'"\ud800\n"', rb'"\ufffd\n"'),
        (rb'"\ud800\\udc00"', rb'"\ufffd\\udc00"'),
        (rb'"\ud7ff\ue000"', rb'"\ud7ff\ue000"'),
        (rb'{"\ud800":1}', rb'{"\ufffd":1}'),
    ],
)
def test_only_lone_surrogates_are_masked(text: bytes, masked: bytes) -> None:
    """Pairs, escaped backslashes and other escapes stay; the length never changes."""
    assert mask_lone_surrogates(text) == masked
    assert len(masked) == len(text)


@given(st.text(alphabet=st.characters(codec=None, categories=["Cs", "Lu", "So"]), max_size=20))
def test_masked_text_is_text(text: str) -> None:
    """Whatever surrogates a JSON string has, masked it is UTF-8, and all its
    other characters are there.
    """
    escaped = json.dumps(text).encode()
    masked = json.loads(mask_lone_surrogates(escaped))
    masked.encode()
    units = json.loads(escaped)
    assert masked == "".join("\ufffd" if 0xD800 <= ord(unit) <= 0xDFFF else unit for unit in units)


@cases(
    "text",
    [
        pytest.param(b'[NaN,"' + b"a" * 1_000_000 + b'"]', id="a long string"),
        pytest.param(b'[NaN,"' + b"\\n" * 500_000 + b'"]', id="a string of escapes"),
        pytest.param(b"[" + b"NaN," * 250_000 + b"1]", id="many numbers"),
        pytest.param(b'["' + b"\\ud800" * 160_000 + b'"]', id="many surrogates"),
    ],
)
def test_hostile_texts_cost_a_few_times_their_size(text: bytes) -> None:
    """Neither a long string nor very many tokens make the memory explode."""
    tracemalloc.start()
    mended, _ = null_non_finite_numbers(text)
    masked = mask_lone_surrogates(mended)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert json.loads(masked)
    assert peak < 6 * len(text)


def test_what_replaces_a_number_makes_no_other() -> None:
    """Both texts that v1 compares stay of one length, also where the body is no JSON."""
    assert {
        len(null_non_finite_numbers(b"Na-Infinity", null)[0]) for null in (b"null", b"NULL")
    } == {6}


@given(st.text())
def test_pairs_of_three_bytes_are_joined(text: str) -> None:
    """Text whose characters above U+FFFF are written as two halves of three bytes each (CESU-8) is
    as it was meant.
    """
    halves = text.encode("utf-16-le")
    units = [
        halves[at : at + 2].decode("utf-16-le", "surrogatepass") for at in range(0, len(halves), 2)
    ]
    cesu = b"".join(unit.encode("utf-8", "surrogatepass") for unit in units)
    assert join_surrogates(cesu) == text.encode()


def test_pairs_are_joined_wherever_a_large_text_is_cut() -> None:
    """No pair is torn apart by working in pieces."""
    pair = "😀".encode("utf-16-le")
    cesu = b"".join(
        pair[at : at + 2].decode("utf-16-le", "surrogatepass").encode("utf-8", "surrogatepass")
        for at in (0, 2)
    )
    for before in range(8):
        text = b"a" * before + (cesu * 5000 + b'","') * 5
        assert join_surrogates(text).decode() == "a" * before + ("😀" * 5000 + '","') * 5


@cases(
    "text",
    [b"\xed\xa0\xbd", b"\xed\xb8\x80\xed\xa0\xbd", b"\xff", b"\xed\xa0\xbdx\xed\xb8\x80", b"\xc3("],
)
def test_half_a_pair_is_no_text(text: bytes) -> None:
    """A half without its partner, and other bytes that aren't UTF-8, can't be read."""
    with pytest.raises(InvalidRequest, match="isn't UTF-8"):
        join_surrogates(text)
