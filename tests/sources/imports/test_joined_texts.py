"""Texts that are kept joined are the same as a list of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forwarder.sources.imports.joined_texts import JoinedTexts


def joined(texts: list[bytes], longer: int = 0) -> JoinedTexts:
    """These texts, of which sizes were taken before `longer` bytes were put into each."""
    return JoinedTexts(b"".join(text + b"," for text in texts), [len(text) + 1 - longer for text in texts], longer)


@given(st.lists(st.binary(min_size=3, max_size=9), max_size=9), st.integers(0, 3), st.integers(-12, 12), st.integers(-12, 12))
def test_it_is_as_a_list(texts: list[bytes], longer: int, start: int, end: int) -> None:
    """One by one, in parts and parts of parts, and all together."""
    found = joined(texts, longer)
    assert (list(found), len(found), found.size, bytes(found.text)) == (texts, len(texts), sum(map(len, texts)), b",".join(texts))
    assert [found[index] for index in range(-len(texts), len(texts))] == texts * 2
    part = found[start:end]
    wanted = texts[start:end]
    assert (list(part), list(part[1:]), bytes(part.text), part.size) == (wanted, wanted[1:], b",".join(wanted), sum(map(len, wanted)))


def test_only_neighbours_can_be_taken() -> None:
    """And only texts that are there."""
    found = joined([b"a", b"b", b"c"])
    with pytest.raises(ValueError, match="neighbours"):
        _ = found[::2]
    with pytest.raises(IndexError):
        _ = found[3]
