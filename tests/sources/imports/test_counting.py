"""Counting more keys than memory should hold."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from forwarder.sources.imports.counting import LONGEST, SampledKeys, TopCounts

KEYS = st.lists(st.sampled_from([*"abcdefghijklmnopqrstuvwxyz"]), max_size=200)
MARKED = st.lists(st.tuples(st.sampled_from([*"abcdefghijklmnop"]), st.integers(0, 1)), max_size=60)


@settings(deadline=None, max_examples=60)
@given(KEYS, st.integers(2, 30))
def test_counts_are_within_what_they_say(keys: list[str], capacity: int) -> None:
    """Nothing is lost from the total, memory keeps its bound, and the true count lies between a count and what it may have missed."""
    counts, true = TopCounts(capacity), Counter(keys)
    for key in keys:
        counts.add(key)
        assert len(counts) <= capacity
    top = counts.top(5)
    assert sum(each.count for each in top) + counts.other(5) == len(keys)
    assert all(each.count <= true[each.key] <= each.count + each.missed for each in top)
    if len(true) <= capacity:
        assert [(each.key, each.count) for each in counts.top(100)] == sorted(true.items(), key=lambda item: (-item[1], item[0]))


def test_frequent_keys_stay_exact_among_many_rare_ones() -> None:
    """What came from the first and often isn't pushed out by a flood of keys that come once."""
    counts = TopCounts(100)
    for number in range(10_000):
        counts.add("often")
        counts.add(f"rare-{number}")
    first = counts.top(1)[0]
    assert (first.key, first.count, first.missed) == ("often", 10_000, 0)
    assert counts.other(1) == 10_000


def test_long_keys_are_cut() -> None:
    """A key of a megabyte takes no more memory than any other."""
    counts = TopCounts(10)
    counts.add("x" * 1_000_000)
    counts.add("x" * 900_000)
    assert [(len(each.key), each.count) for each in counts.top(10)] == [(LONGEST, 2)]


@settings(deadline=None, max_examples=60)
@given(MARKED)
def test_a_sample_of_few_keys_is_exact(marked: list[tuple[str, int]]) -> None:
    """Under the limit keys, repeats and differing marks are what a plain count says."""
    sampled = SampledKeys(100)
    for key, mark in marked:
        sampled.add(key, mark)
    keys = {key for key, _ in marked}
    estimate = sampled.estimate()
    differing = sum(len({mark for each, mark in marked if each == key}) > 1 for key in keys)
    assert (estimate.keys, estimate.repeats, estimate.differing, estimate.scale) == (len(keys), len(marked) - len(keys), differing, 1)


@settings(deadline=None, max_examples=60)
@given(MARKED, st.randoms(use_true_random=False))
def test_a_sample_does_not_depend_on_the_order(marked: list[tuple[str, int]], shuffle: random.Random) -> None:
    """However keys come, the same ones are looked at, and all their repeats count."""
    shuffled = list(marked)
    shuffle.shuffle(shuffled)
    one, other = SampledKeys(4), SampledKeys(4)
    for first, second in zip(marked, shuffled, strict=True):
        one.add(*first)
        other.add(*second)
        assert len(one) <= 4
    assert one.estimate() == other.estimate()


def test_a_sample_of_many_keys_is_near() -> None:
    """Past the limit the estimate says its scale, keeps the bound and is within a tenth."""
    sampled = SampledKeys(2048)
    for number in range(20_000):
        sampled.add(f"key-{number}")
        if number % 4 == 0:
            sampled.add(f"key-{number}", 1)
    estimate = sampled.estimate()
    assert len(sampled) <= 2048
    assert estimate.scale == 16
    assert abs(estimate.keys - 20_000) < 2000
    assert abs(estimate.repeats - 5000) < 1000
    assert estimate.differing == estimate.repeats


def test_half_a_surrogate_pair_counts_like_any_key() -> None:
    """A key that isn't valid Unicode is counted, not an error."""
    sampled = SampledKeys(4)
    sampled.add("\ud800")
    assert sampled.estimate().keys == 1
