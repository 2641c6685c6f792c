"""Regular expressions of a configuration: the meaning that Python gives them, in linear time."""

from __future__ import annotations

import re
import sys
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forwarder.core.patterns import LinearPattern, PatternError
from tests.support.cases import cases

PATTERNS = (
    r"(?P<level>[A-Z]+) (?:user=(?P<user>\w+) )?(?P<message>.*)",
    r"^(?P<time>\S+) (?P<level>INFO|WARN(?:ING)?) (?P<rest>.+?)\s*$",
    r"(?P<number>\d+)(?P<unit>[^\W\d_]*)",
    r"(?P<word>[\w.]+)@(?P<host>[^\s@]+)\Z",
    r"(?P<quoted>\"(?:[^\"\\]|\\.)*\")",
    r"(?i)(?P<kind>error|stra[sß]e|kelvin|i)",
    r"(?i:(?P<letters>[a-k]+))(?P<rest>\W*)",
    r"(?P<lazy>.*?)(?P<space>\s+)(?P<greedy>.*)",
    r"(?s)(?P<first>.+)\n(?P<second>.*)",
    r"(?m)^(?P<line>at .*)$",
    r"(?a)(?P<word>\w+)\b",
    r"(?P<word>(?a:\b)\w{2,5}?(?a:\b))",
    r"(?x) (?P<a> a ) (?#comment) \ (?P<b> b+ )",
    r"(?:(?P<a>a)|(?P<b>b)|[cd])+(?P<end>$|\n)",
    r"(?P<pair>(?P<key>\w+)=(?P<value>[^;]*));?",
    r"(?P<never>[^\s\S])|(?P<any>[\d\D])",
    r"(?P<range>[\u0430-\u044f\u0451]+|[^ -~]+)",
    "(?P<größe>[0-9]+) (?P<x>[\U00010400-\U0001044f])",
)
LINES = (
    "2026-11-26T10:00:00Z INFO user=anna signed in  ",
    "WARNING user=änn größer als 5km",
    "x INFO ",
    "mail: änn.b@exämple.com",
    'say "a \\"quoted\\" text" end',
    "ERROR Error \u017ftra\u017fe STRASSE straße \u212aelvin \u0130\u0131I",
    "a bbb",
    "abcd",
    "a\nb c\nat one\nat two",
    "key=value;größe=12 x",
    "١٢٣ ²³ Ⅷ \u2028 \u00a0 \x1c \x85",
    "привет, Ёлка ЁЛКА",
    "größe 12 \U00010400 12 \U00010428",
    "😀",
    "",
)


@cases("pattern", PATTERNS)
def test_fields_are_those_that_python_finds(pattern: str) -> None:
    """Each pattern finds the same in each line, beyond ASCII too."""
    linear = LinearPattern(pattern)
    for line in LINES:
        assert linear.fields(line.encode()) == python_fields(pattern, line), line
        assert linear.search(line.encode()) == bool(re.search(pattern, line))
        assert linear.match(line.encode()) == bool(re.match(pattern, line))


def python_fields(pattern: str, line: str) -> dict[str, str] | None:
    """What Python finds."""
    match = re.search(pattern, line)
    if match is None:
        return None
    return {name: value for name, value in match.groupdict().items() if value is not None}


ATOMS = st.sampled_from(
    [
        *("a", "b", "é", " ", r"\d", r"\w", r"\W", r"\s", r"\S", ".", "[^a]", r"[^\W_]", "^", "$"),
        *("(?i:k)", "(?i:[a-f])", "(?s:.)", "(?m:^)", "(?m:$)", r"(?a:\b)", r"\n"),
    ]
)
REPEATS = st.sampled_from(["*", "+", "?", "*?", "+?", "??", "{2}", "{1,2}", "{0,3}?"])
TREES = st.recursive(
    ATOMS,
    lambda inner: (
        st.tuples(inner, inner).map("".join)
        | st.tuples(inner, inner).map("|".join).map("(?:{})".format)
        | st.tuples(inner.map("(?:{})".format), REPEATS).map("".join)
        | inner.map("(?P<NAME>{})".format)
    ),
    max_leaves=8,
)


@given(TREES, st.lists(st.text("aabkK\u017féÉ _-1٣\t\nßi", max_size=8), max_size=5))
def test_any_pattern_means_what_python_says(tree: str, lines: list[str]) -> None:
    """Whatever isn't refused finds the same in any line."""
    pieces = tree.split("NAME")
    pattern = pieces[0] + "".join(f"g{number}{piece}" for number, piece in enumerate(pieces[1:]))
    try:
        linear = LinearPattern(pattern)
    except PatternError:
        return
    for line in lines:
        text = line.rstrip("\n")
        assert linear.fields(text.encode()) == python_fields(pattern, text)


@pytest.mark.slow
@cases(
    ("flag", "members"),
    [
        *[("", members) for members in (r"\d", r"\w", r"\s", "[\U000f0000x]")],
        ("(?a)", r"\W"),
        ("(?i)", "[a-zß]"),
        ("(?i)", "[^k]"),
    ],
)
def test_classes_have_the_same_characters(flag: str, members: str) -> None:
    """Every character of Unicode is in a class, or isn't, as in Python; with either case too."""
    order = "le" if sys.byteorder == "little" else "be"
    codes = array("I", [*range(0xD800), *range(0xE000, sys.maxunicode + 1)])
    every = codes.tobytes().decode(f"utf-32-{order}")
    inside = "".join(re.findall(flag + members, every))
    outside = re.sub(f"{flag}{members}+", "", every)
    assert LinearPattern(rf"{flag}\A(?:{members})*\Z").search(inside.encode())
    assert not LinearPattern(flag + members).search(outside.encode())


@cases("start", [rb"^\d{4}-", rb"^\S", rb"(?i)^error\b", rb"[\xc3\xa4]$", b"^\\[", "^ä+".encode()])
def test_bytes_are_searched_as_python_does(start: bytes) -> None:
    """A pattern of bytes takes any bytes, each by itself."""
    linear = LinearPattern(start)
    for line in (b"2026-11", b" at", b"Error: x", b"errors", b"\xff\xa4", "ää".encode(), b"[", b""):
        assert linear.search(line) == bool(re.search(start, line)), line


@cases(
    ("pattern", "line"),
    [
        (r"(?P<a>(?:x+)+)$", b"x" * 100_000 + b"!"),
        (r"^(?P<a>(?:\w+\s*)+):", b"word " * 20_000),
        (r"(?P<a>(?:a|aa)+)$", b"a" * 100_000 + b"!"),
        (r"(?P<a>\w+)@", b"a" * 200_000),
        (r"(?P<a>.*)=(?P<b>.*)=(?P<c>.*)=(?P<d>.*)!", b"=" * 100_000),
        (r"(?P<a>\s+)$", b" " * 200_000 + b"!"),
    ],
)
@pytest.mark.timeout(120)
def test_patterns_take_linear_time(pattern: str, line: bytes) -> None:
    """Patterns that take Python minutes to years for such a line, because they can be tried in as
    many ways, or from as many places.
    """
    assert LinearPattern(pattern).fields(line) is None


@cases(
    ("pattern", "has", "instead"),
    [
        (r"(?P<a>\w+)(?=;)", "a lookahead, (?=…)", "beside the group"),
        (r"(?<==)(?P<a>\w+)", "a lookbehind, (?<=…)", "beside the group"),
        (r"(?P<a>(?:(?!;).)*)", "a negative lookahead, (?!…)", "[^;]*"),
        (r"(?<!x)(?P<a>\w+)", "a negative lookbehind, (?<!…)", "[^;]*"),
        (r"(?P<q>['\"])(?P<a>.*)(?P=q)", "a reference to a group", "write out"),
        (r"(?P<q>\[)?(?P<a>\w+)(?(q)\])", "a condition, (?(…)…)", "write both forms"),
        (r"(?P<a>\w++)", "a possessive repeat", "without the last +"),
        (r"(?>(?P<a>a|ab))c", "an atomic group, (?>…)", "(?:…)"),
        (r"\b(?P<a>\w+)", r"\b, which", r"(?a:\b)"),
        (r"(?a)\B(?P<a>\w+)", r"\B, which", "next to it"),
        (r"(?P<a>a{2000})", "more than 1000 times", "* or +"),
        (r"(?P<a>(?:\w{1,1000}){3})", "is too large", "smaller numbers"),
        (r"(?P<a>\w{1,900}\W{1,900}\w{1,900})", "is too large", "smaller numbers"),
        (r"(?P<a>(?:a*)+)", "may be empty", "at least one character"),
        ("(", "is no regular expression", "fix it"),
        (rb"(?L)\w", "the flag L", "leave it out"),
        (rb"^\d(?!x)", "a negative lookahead, (?!…)", "[^;]*"),
    ],
)
def test_other_patterns_say_what_to_write(pattern: str | bytes, has: str, instead: str) -> None:
    """What couldn't keep its meaning, or takes too long, is refused with its replacement."""
    with pytest.raises(PatternError) as caught:
        LinearPattern(pattern)
    message, _, fix = str(caught.value).partition(": ")
    assert has in message
    assert instead in fix
