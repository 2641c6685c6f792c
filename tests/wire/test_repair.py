"""NaN, Infinity and lone surrogates: told apart from text that only looks like them."""

from __future__ import annotations

import json
import math
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forwarder.wire.repair import mask_lone_surrogates, null_non_finite_numbers

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["NaN", "Infinity", '"NaN', "\\", "-Infinity,"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5) | st.just("NaN"), inner, max_size=4),
    max_leaves=12,
)


def without_non_finite(value: Any) -> tuple[Any, int]:
    """The value as it should be read afterwards, and how many numbers are not finite."""
    if isinstance(value, float) and not math.isfinite(value):
        return None, 1
    if isinstance(value, list):
        pairs = [without_non_finite(each) for each in value]
        return [each for each, _ in pairs], sum(count for _, count in pairs)
    if isinstance(value, dict):
        members = {key: without_non_finite(each) for key, each in value.items()}
        return {key: each for key, (each, _) in members.items()}, sum(count for _, count in members.values())
    return value, 0


@given(VALUES, st.booleans())
def test_only_numbers_become_null(value: Any, ascii_only: bool) -> None:
    """What Python writes of any value is valid JSON afterwards, with null for each number that isn't finite, and its text untouched."""
    text = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    mended, count = null_non_finite_numbers(text)
    expected, expected_count = without_non_finite(value)

    def refuse(token: str) -> None:
        pytest.fail(f"left: {token}")

    assert json.loads(mended.decode("utf-8", "surrogatepass"), parse_constant=refuse) == expected
    assert count == expected_count


@pytest.mark.parametrize(
    "text", [b'{"a":1}', b'["NaN"]', b'["\\"NaN"]', b'["\\\\","Infinity"]', b'{"NaN":"-Infinity"}', b"[NaNcy]", b'["open NaN']
)
def test_text_is_left_alone(text: bytes) -> None:
    """Strings, keys, words that only begin so, and a string that never ends are as before, or at least no longer and no shorter."""
    mended, count = null_non_finite_numbers(text)
    assert mended == text or text.startswith(b'["open')
    assert count == 0 or text.startswith(b'["open')


@pytest.mark.parametrize(
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
    """Whatever surrogates a JSON string has, masked it is UTF-8, and all its other characters are there."""
    escaped = json.dumps(text).encode()
    masked = json.loads(mask_lone_surrogates(escaped))
    masked.encode()
    units = json.loads(escaped)
    assert masked == "".join("\ufffd" if 0xD800 <= ord(each) <= 0xDFFF else each for each in units)


@pytest.mark.parametrize(
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
