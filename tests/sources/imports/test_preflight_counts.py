"""Counters of many keys, and how times are written."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from forwarder.sources.imports.format import FormatContext
from forwarder.sources.imports.formats.catalog import BY_NAME
from forwarder.sources.imports.preflight import LONGEST, SampledKeys, TopCounts, kind_of, time_kind
from forwarder.sources.imports.preflight_report import TimeKind
from forwarder.sources.imports.times import parse_time
from tests.support.cases import cases

KEYS = st.lists(st.sampled_from([*"abcdefghijklmnopqrstuvwxyz"]), max_size=200)
MARKED = st.lists(st.tuples(st.sampled_from([*"abcdefghijklmnop"]), st.integers(0, 1)), max_size=60)


@settings(deadline=None, max_examples=60)
@given(KEYS, st.integers(2, 30))
def test_counts_are_within_what_they_say(keys: list[str], capacity: int) -> None:
    """Nothing is lost from the total, memory keeps its bound, and the true count lies between a
    count and what it may have missed.
    """
    counts = TopCounts(capacity)
    true = Counter(keys)
    for key in keys:
        counts.add(key)
        assert len(counts) <= capacity
    top = counts.top(5)
    assert sum(key_count.count for key_count in top) + counts.other(5) == len(keys)
    assert all(
        key_count.count <= true[key_count.key] <= key_count.count + key_count.missed
        for key_count in top
    )
    if len(true) <= capacity:
        assert [(key_count.key, key_count.count) for key_count in counts.top(100)] == sorted(
            true.items(), key=lambda item: (-item[1], item[0])
        )


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
    assert [(len(key_count.key), key_count.count) for key_count in counts.top(10)] == [(LONGEST, 2)]


@settings(deadline=None, max_examples=60)
@given(MARKED)
def test_a_sample_of_few_keys_is_exact(marked: list[tuple[str, int]]) -> None:
    """Under the limit keys, repeats and differing marks are what a plain count says."""
    sampled = SampledKeys(100)
    for key, mark in marked:
        sampled.add(key, mark)
    keys = {key for key, _ in marked}
    estimate = sampled.estimate()
    differing = sum(
        len({mark for marked_key, mark in marked if marked_key == key}) > 1 for key in keys
    )
    assert (estimate.keys, estimate.repeats, estimate.differing, estimate.scale) == (
        len(keys),
        len(marked) - len(keys),
        differing,
        1,
    )


@settings(deadline=None, max_examples=60)
@given(MARKED, st.randoms(use_true_random=False))
def test_a_sample_does_not_depend_on_the_order(
    marked: list[tuple[str, int]], shuffle: random.Random
) -> None:
    """However keys come, the same ones are looked at, and all their repeats count."""
    shuffled = list(marked)
    shuffle.shuffle(shuffled)
    one = SampledKeys(4)
    other = SampledKeys(4)
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


@cases(
    ("value", "kind"),
    [
        ('"2024-01-31T12:00:00Z"', TimeKind.ZONE),
        ('"2024-01-31 12:00:00.123456+02:00"', TimeKind.ZONE),
        ('"2024-01-31T12:00:00-0530"', TimeKind.ZONE),
        ('"2024-01-31T12:00:00 +02"', TimeKind.ZONE),
        ('"2024-01-31 12:00:00 UTC"', TimeKind.ZONE),
        ('"2024-01-31T12:00:00z"', TimeKind.ZONE),
        ('"20240131T120000Z"', TimeKind.ZONE),
        ('"2024-01-31T12:00:00"', TimeKind.NO_ZONE),
        ('"2024-01-31 12:00:00.123"', TimeKind.NO_ZONE),
        ('"2024-01-31T12:00"', TimeKind.NO_ZONE),
        ('"2024-01-31"', TimeKind.NO_ZONE),
        ('"20240131"', TimeKind.NO_ZONE),
        ("1.712010112e9", TimeKind.SECONDS),
        ("1.712010112345E+12", TimeKind.MILLISECONDS),
        ("1712010112", TimeKind.SECONDS),
        ("1712010112.345", TimeKind.SECONDS),
        ('"1712010112"', TimeKind.SECONDS),
        ("10000000000", TimeKind.SECONDS),
        ("10000000001", TimeKind.MILLISECONDS),
        ("1712010112345", TimeKind.MILLISECONDS),
        ('"1712010112345"', TimeKind.MILLISECONDS),
        ("1712010112345678", TimeKind.MICROSECONDS),
    ],
)
def test_kinds_of_times(value: str, kind: TimeKind) -> None:
    """Zones, none, and epochs by their size; all of them are times that can be read."""
    assert kind_of(value.encode()) is kind
    parse_time(value.encode())


@cases(
    ("text", "kind"),
    [
        ("Wed, 31 Jan 2024 12:00:00 GMT", TimeKind.ZONE),
        ("31 Jan 2024 12:00:00 +0100", TimeKind.ZONE),
        ("Wed, 31 Jan 2024 12:00:00", TimeKind.NO_ZONE),
    ],
)
def test_kinds_of_dates_as_in_mail(text: str, kind: TimeKind) -> None:
    """Native records may have them."""
    assert kind_of(f'"{text}"'.encode()) is kind


@cases("value", ["null", "{}", "true", '""', '"soon"', "-5", "1e400", '"' + "9" * 30 + '"'])
def test_an_invalid_time_is_not_counted(value: str) -> None:
    """Where nothing is known, nothing is said."""
    assert kind_of(value.encode()) is None


@cases("value", ["1712010112", "10000000000", "10000000001", "9999999999999", "10000000000001"])
def test_units_are_those_that_times_are_read_in(value: str) -> None:
    """The bounds between seconds, milliseconds and microseconds are the reader's."""
    unit = {TimeKind.SECONDS: 1_000_000, TimeKind.MILLISECONDS: 1000, TimeKind.MICROSECONDS: 1}
    kind = kind_of(value.encode())
    assert kind is not None
    assert parse_time(value.encode()) == int(value) * unit[kind]


@cases(
    ("form", "record", "kind"),
    [
        (
            "amplitude",
            '{"event_time":null,"client_event_time":"2024-01-31 12:00:00","x":1}',
            TimeKind.NO_ZONE,
        ),
        ("mixpanel", '{"event":"a","properties":{"time":1712010112,"x":{}}}', TimeKind.SECONDS),
        ("mixpanel", '{"event":"a","properties":[]}', None),
        ("mixpanel", '{"event":"a"}', None),
        ("segment", '{"originalTimestamp":"2024-01-31T12:00:00Z"}', TimeKind.ZONE),
        ("native", '{"timestamp":"","event":"a"}', None),
        ("native", '{"timestamp":"2024-01-31T12', None),
        ("native", "[1]", None),
    ],
)
def test_each_format_has_its_fields(form: str, record: str, kind: TimeKind | None) -> None:
    """The first field that has a value counts; what can't be read says nothing."""
    known = BY_NAME[form]
    assert time_kind(record.encode(), known.times(known.options(), FormatContext())) is kind


def test_columns_may_be_called_anything() -> None:
    """Names with spaces, and names that mean something elsewhere, are found as they are."""
    assert (
        time_kind(b'{"the time":null,"class":"","f0":1712010112}', ("the time", "class", "f0"))
        is TimeKind.SECONDS
    )


def test_without_fields_nothing_is_looked_at() -> None:
    """A format whose time isn't known is no reason for an error."""
    assert time_kind(b'{"timestamp":1712010112}', ()) is None
