"""Sizes and times as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forwarder.config.units import (
    SIZES,
    TIMES,
    format_duration,
    format_size,
    parse_duration,
    parse_number,
    parse_size,
)
from tests.support.cases import cases


@cases(
    ("text", "size"),
    [
        ("20MB", 20_000_000),
        ("16MiB", 16_777_216),
        ("1.5kB", 1500),
        ("0", 0),
        (4096, 4096),
        ("20 mb", 20_000_000),
        ("3B", 3),
        ("1KB", 1000),
        ("64Mi", 64 * 1024**2),
        ("1.5gi", 1536 * 1024**2),
    ],
)
def test_reads_sizes(text: str | int, size: int) -> None:
    """Powers of 1000 and of 1024 are distinguished by the i; a plain number is bytes."""
    assert parse_size(text) == size


@cases(
    "text",
    [
        "",
        "MB",
        "20M",
        "20Mbit",
        "-1MB",
        "1e6",
        "1.5B",
        "0.0001kB",
        "20MB!",
        "\uff12\uff10MB",
        "nan",
        True,
    ],
)
def test_refuses_what_is_no_size(text: str) -> None:
    """A size that is ambiguous, negative or no whole number of bytes is an error that says so."""
    with pytest.raises(ValueError, match=r"size|whole number"):
        parse_size(text)


@cases(
    ("text", "number"),
    [("10k", 10_000), ("10K", 10_000), ("1.5M", 1_500_000), ("20_000", 20_000), ("20e3", 20_000)],
)
def test_reads_numbers(text: str, number: int) -> None:
    """Thousands and millions may be letters."""
    assert parse_number(text) == number
    assert parse_number(f"{text}/s", per_second=True) == number
    assert parse_number(f"{text}/s") is None


@cases("text", ["", "k", "10m", "10 kB", "-1", "nan", "10/min", "1,5", "_1"])
def test_rejects_invalid_numbers(text: str) -> None:
    """What could mean something else is none."""
    assert parse_number(text, per_second=True) is None


@cases(
    ("text", "seconds"),
    [
        ("30s", 30),
        ("500ms", 0.5),
        ("5m", 300),
        ("1h", 3600),
        ("1.5 h", 5400),
        ("2d", 172_800),
        (0, 0),
        ("0", 0),
        ("30S", 30),
    ],
)
def test_reads_times(text: str | int, seconds: float) -> None:
    """Times are seconds, whatever their unit."""
    assert parse_duration(text) == seconds


@cases("text", ["", "s", "-1s", "1w", "1min", "1m30s", "inf", "never", "30", 30, 0.5, True])
def test_rejects_invalid_times(text: str) -> None:
    """A time without unit could be seconds or milliseconds, and is refused."""
    with pytest.raises(ValueError, match="time"):
        parse_duration(text)


@given(st.integers(0, 2**50))
def test_sizes_survive_the_round_trip(size: int) -> None:
    """Formatting and parsing a size gives the same size."""
    assert parse_size(format_size(size)) == size


@given(st.integers(1, 10_000), st.sampled_from(sorted(SIZES)))
def test_a_size_with_its_unit_means_the_product(number: int, unit: str) -> None:
    """A number and a unit are the number of those units, in either case."""
    assert (
        parse_size(f"{number}{unit}")
        == parse_size(f"{number} {unit.lower()}")
        == number * SIZES[unit]
    )


@given(st.floats(1e-9, 1e9) | st.integers(0, 10**9).map(lambda number: number / 1000))
def test_times_survive_the_round_trip(seconds: float) -> None:
    """Formatting and parsing a time gives the same time, to the last bit."""
    assert parse_duration(format_duration(seconds)) == seconds


@given(st.integers(1, 10_000), st.sampled_from(sorted(TIMES)))
def test_a_time_with_its_unit_means_the_product(number: int, unit: str) -> None:
    """A number and a unit are the number of those units."""
    assert parse_duration(f"{number}{unit}") == float(number * TIMES[unit])


@cases(
    ("size", "text"),
    [(64 * 1024**2, "64MiB"), (20_000_000, "20MB"), (1024, "1KiB"), (999, "999"), (0, "0")],
)
def test_shows_sizes_in_the_unit_that_divides_them(size: int, text: str) -> None:
    """The largest unit that divides the size exactly is used."""
    assert format_size(size) == text


@cases(
    ("seconds", "text"),
    [
        (0.5, "500ms"),
        (90.0, "90s"),
        (300.0, "5m"),
        (0.0, "0s"),
        (None, "never"),
        (0.0001, "0.0001s"),
    ],
)
def test_shows_times_in_the_unit_that_divides_them(seconds: float | None, text: str) -> None:
    """The largest unit that divides the time exactly is used; no time at all is never."""
    assert format_duration(seconds) == text
