"""What is kept of answers, and how much."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forwarder.sources.http.passthrough.definitions import ENTRY_OVERHEAD, ResponseCache, UpstreamResponse, cache_key, matches


def answer(body: bytes = b"", *lines: tuple[bytes, bytes]) -> UpstreamResponse:
    """An answer with this body."""
    return UpstreamResponse(200, "OK", lines, body)


def test_keys() -> None:
    """Path but for its slash, query and credentials tell answers apart, wherever one ends and the next begins; nothing else does."""
    bearer = [(b"Authorization", b"Bearer a")]
    keys = {
        cache_key(b"/flags/definitions?token=a", bearer),
        cache_key(b"/flags/definitions?token=b", bearer),
        cache_key(b"/flags/definitions", bearer),
        cache_key(b"/flags/definitions?token=a", [(b"Authorization", b"Bearer b")]),
        cache_key(b"/flags/definitions?token=a", []),
        cache_key(b"/flags/definitions?token=aBearer", [(b"Authorization", b" a")]),
        cache_key(b"/api/feature_flag/local_evaluation?token=a", bearer),
    }
    assert len(keys) == 7
    same = cache_key(b"/flags/definitions/?token=a", [(b"user-agent", b"x"), (b"authorization", b"Bearer a"), (b"Accept", b"y")])
    assert same == cache_key(b"/flags/definitions?token=a", bearer)


@pytest.mark.parametrize(
    ("asked", "etag", "matching"),
    [
        (b'"a"', b'"a"', True), (b'W/"a"', b'"a"', True), (b'"a"', b'W/"a"', True), (b'"b", "a"', b'"a"', True), (b"*", b'"a"', True),
        (b'"b"', b'"a"', False), (b"", b'"a"', False), (b'"a"', b"", False), (b"*", b"", False), (b'"A"', b'"a"', False),
    ],
)  # fmt: skip
def test_if_none_match(asked: bytes, etag: bytes, matching: bool) -> None:
    """Tags are compared weakly, one by one; a star matches whatever has a tag."""
    assert matches(asked, etag) is matching


def test_the_entry_that_was_used_longest_ago_goes_first() -> None:
    """Using one keeps it."""
    cache = ResponseCache(max_entries=3)
    for name in (b"a", b"b", b"c"):
        cache.put(name, answer(name), 0.0)
    assert cache.get(b"a") is not None
    cache.put(b"d", answer(b"d"), 0.0)
    assert [cache.get(name) is not None for name in (b"a", b"b", b"c", b"d")] == [True, False, True, True]


def test_one_that_is_too_large_is_not_kept() -> None:
    """It takes the place of the old one by removing it, and drives out no other."""
    cache = ResponseCache(max_bytes=3 * ENTRY_OVERHEAD)
    cache.put(b"a", answer(), 0.0)
    cache.put(b"b", answer(), 0.0)
    cache.put(b"a", answer(b"x" * 3 * ENTRY_OVERHEAD), 0.0)
    assert (cache.get(b"a"), len(cache)) == (None, 1)


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(-1, 5000)), max_size=60))
def test_bounds(steps: list[tuple[str, int]]) -> None:
    """Bytes and number are within their bounds after each step, the bytes are those of the entries, and what was put last is there."""
    cache = ResponseCache(max_bytes=10_000, max_entries=4)
    for name, size in steps:
        key = name.encode()
        if size < 0:
            cache.drop(key)
        else:
            cache.put(key, answer(b"x" * size, (b"ETag", b"y")), 1.0)
            assert cache.get(key) is not None
        entries = [entry for entry in map(cache.get, (b"a", b"b", b"c", b"d", b"e", b"f")) if entry]
        assert cache.bytes == sum(entry.response.cost for entry in entries) <= 10_000
        assert len(cache) == len(entries) <= 4


def test_age() -> None:
    """In whole seconds, never negative."""
    cache = ResponseCache()
    cache.put(b"a", answer(), 10.0)
    entry = cache.get(b"a")
    assert entry is not None
    assert [entry.age(now) for now in (9.0, 10.0, 11.9, 100.0)] == [0, 0, 1, 90]
