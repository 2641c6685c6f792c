"""Figures for a person."""

from __future__ import annotations

from forwarder.telemetry.readable import duration, line_excerpt, plural, relative, size
from tests.support.cases import cases


@cases(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (64 * 2**20, "64.0 MiB"),
        (3 * 2**30, "3.0 GiB"),
    ],
)
def test_sizes(count: int, text: str) -> None:
    """Sizes are reported in the largest unit that they fill."""
    assert size(count) == text


@cases(
    ("seconds", "text"),
    [
        (0, "0s"),
        (-5, "0s"),
        (59.6, "1m"),
        (61, "1m 1s"),
        (3600, "1h"),
        (93_784, "1d 2h"),
        (86_405, "1d 5s"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    """Durations are reported in their two largest parts, never negative (a clock may be
    set back).
    """
    assert duration(seconds) == text


@cases(
    ("count", "nouns", "text"),
    [
        (0, ("event",), "0 events"),
        (1, ("event",), "1 event"),
        (2000, ("event",), "2,000 events"),
        (2, ("property", "properties"), "2 properties"),
    ],
)
def test_plurals(count: int, nouns: tuple[str, ...], text: str) -> None:
    """One is singular, everything else plural; a noun whose plural isn't made by an s
    has it given.
    """
    assert plural(count, *nouns) == text


RELATIVE = [
    (0, "now"),
    (0.9, "now"),
    (1, "1s ago"),
    (59.9, "59s ago"),
    (60, "1m ago"),
    (3599, "59m ago"),
    (7200, "2h ago"),
    (86_400 * 30, "30d ago"),
    (86_400 * 31, "1 month ago"),
    (86_400 * 180, "5 months ago"),
    (86_400 * 366, "1 year ago"),
    (86_400 * 365 * 40, "39 years ago"),
    (-0.5, "now"),
    (-48, "in 48s"),
    (-86_400, "in 1d"),
]


@cases(("age", "text"), RELATIVE)
def test_moments_are_seen_from_now(age: float, text: str) -> None:
    """In one unit, the largest that fits, in the past and in the future."""
    assert relative(1_000_000_000.0 - age, 1_000_000_000.0) == text


@cases(
    ("line", "shown"),
    [
        (b"GET / 200", "GET / 200"),
        (b"a\tb\x1b[31mred\x00", "a b\N{REPLACEMENT CHARACTER}[31mred\N{REPLACEMENT CHARACTER}"),
        (b"\xff\xe2\x80\xaeabc", "\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}abc"),
        (
            b"key phc_abcdefghijklmnop from postgres://me:secret@db/x",
            "key phc_…mnop from postgres://…@db/x",
        ),
        (b"a" * 200, "a" * 200),
        (b"a" * 201, "a" * 197 + "…"),
        ("é".encode() * 150, "é" * 98 + "…"),
    ],
)
def test_lines_of_other_programs(line: bytes, shown: str) -> None:
    """A line is shown without what a terminal obeys, without secrets, and cut."""
    assert line_excerpt(line) == shown
    assert len(shown.encode()) <= 200


def test_a_secret_that_was_cut_off_is_no_longer_recognized_as_one() -> None:
    """An address whose credentials reach the cut isn't shown from there on: the sign that ends
    them is missing.
    """
    line = b"x" * 170 + b" postgres://me:secretsecretsecretsecretsecret@db/x"
    assert "secret" not in line_excerpt(line)
    assert "secret" not in line_excerpt(line[:200])
