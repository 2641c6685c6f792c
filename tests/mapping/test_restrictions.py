"""What expressions of jq may not use, and that nothing else is taken from them."""

from __future__ import annotations

import json
from typing import Any

import jq
import pytest

from forwarder.core.errors import ConfigurationError
from forwarder.deadletter.editing import Edit
from forwarder.mapping.problems import Unmappable
from forwarder.mapping.restrictions import RESTRICTED, Restricted, bounds, check_restrictions
from tests.mapping.mapped import mapped
from tests.support.cases import cases

ENVIRONMENT = (
    "env",
    "$ENV",
    "$ENV.HOME",
    ".a | env",
    ".a//env",
    "-env",
    "..|env",
    "1|env",
    "env.HOME",
    ".[env]",
    "[1, env]",
    "try env",
    "$__prog_args",
    "{a: env}",
    "{a: 1 | env}",
    "{a: -env}",
    "{(env.HOME): 1}",
    "{$ENV}",
    '{"a": env}',
    '{a: 1, "b": env}',
    "{a: {b: 1, c: env}}",
    "{a: (1, env)}",
    r'"x\(env)"',
    r'@json "a\("b\(env)")"',
    r'.["\(env)"]',
    r'"\("a")" | env',
    r'"\\" | env',
    r'"\"" | env',
    r'"\(1)\(env)"',
    "{if: env}",
    "# comment\nenv",
    '# "\nenv # "',
    "{env: 1} | env",
    "{}|env",
    "(1)|env",
    ".a?|env",
    '"a" as $env | env',
    "def f: (1; 2); f; env",
    ". as {env: $x} | env",
    "reduce .[] as {env: $x} (env; .)",
    "if env then 1 else 2 end",
    "def env2: env; env2",
    "{a: [1, env]}",
)
INPUT_AND_PROCESS = (
    "input",
    "[inputs]",
    "first(inputs)",
    "input_filename",
    "input_line_number",
    "debug",
    'debug("x")',
    "stderr",
    "halt",
    "halt_error(1)",
    'import "a" as a; .',
    'import "a" as $a {search: "/etc"}; $a',
    'include "a"; .',
    "modulemeta",
    "get_search_list",
)
ENDLESS = (
    "repeat(1)",
    "limit(1; repeat(.))",
    "while(true; .)",
    "until(false; .)",
    "recurse(.a)",
    "recurse (.a; true)",
    "first(recurse(.))",
    "combinations",
    "def f: f; f",
    "def f: 1 + f; .",
    "def f: def g: f; g; f",
    "def f(x): x | f(x); f(.)",
    r'def f: "a\(f)"; f',
    "def f: {a: f}; f",
    "def f: .a | f; f",
    "def a: 1; def b: a | b; b",
    "def f($n): if $n == 0 then 0 else f($n - 1) end; f(9)",
    "reduce .[] as $x (0; repeat(.))",
)
AMBIGUOUS = ('# a \\\n" \nenv # "', "# a \\\r\nenv")
HARMLESS = (
    ".env",
    ".a.env.HOME",
    "{env}",
    "{env: 1}",
    "{a: 1, env}",
    '{"env": 1}',
    '."env"',
    '.["env"]',
    '"env"',
    '"repeat(1)"',
    "1 # env",
    '"# env"',
    ".input",
    ".a.while",
    "recurse",
    "[recurse | numbers]",
    "[..]",
    "{input: .a, until: 2}",
    '"a" as $env | $env',
    ". as {env: $x} | $x",
    r'"\(.env)"',
    "def f: 1; f",
    "def f: 1; def g: f; g",
    "def f(x): x; f(.)",
    "def f: 1; {f}",
    "def f: {f: 1}; f",
    "def f: .f; f",
    "def same: .; same",
    "range(length)",
    ".a # \\",
    ".environment",
    "map({sku, env})",
    "reduce .[] as $x (0; . + $x)",
    "with_entries(select(.value != null))",
)


@cases("expression", [*ENVIRONMENT, *INPUT_AND_PROCESS, *ENDLESS, *AMBIGUOUS])
def test_it_is_rejected_before_any_record(expression: str) -> None:
    """The configuration is rejected, and an edit is, with what can't be used and what can."""
    for use in (
        lambda: mapped("{}", event=expression),
        lambda: mapped("{}", where=expression),
        lambda: Edit(expression),
    ):
        with pytest.raises(ConfigurationError) as caught:
            use()
        assert caught.value.hint
        assert any(
            words in caught.value.message
            for words in ("can't be used", "calls itself", "ends in a backslash")
        )


@cases("expression", HARMLESS)
def test_what_only_looks_so_passes(expression: str) -> None:
    """Names of fields, keys, variables and functions of one's own, texts and comments
    are no calls.
    """
    check_restrictions(expression)
    jq.compile(expression)


@cases("name", sorted(RESTRICTED))
def test_the_message_names_it(name: str) -> None:
    """Who reads the error knows which word it is about."""
    with pytest.raises(Restricted) as caught:
        check_restrictions(f".a | {name}")
    assert f"{name} can't be used: " in str(caught.value)


def test_every_function_of_jq_is_known() -> None:
    """A newer jq may bring functions that read something else or never end: each is looked at
    before it is allowed.
    """
    (functions,) = jq.compile('[builtins | .[] | split("/")[0]] | unique').input_text("null").all()
    assert set(functions) - RESTRICTED.keys() == ALLOWED


LOOKED_AT = """
IN INDEX JOIN abs acos acosh add all any arrays ascii_downcase ascii_upcase asin asinh atan atan2 \
atanh booleans bsearch
builtins capture cbrt ceil contains copysign cos cosh del delpaths drem empty endswith erf erfc \
error exp exp10 exp2
explode expm1 fabs fdim finites first flatten floor fma fmax fmin fmod format frexp from_entries \
fromdate
fromdateiso8601 fromjson fromstream gamma getpath gmtime group_by gsub has have_decnum \
have_literal_numbers hypot
implode in index indices infinite inside isempty isfinite isinfinite isnan isnormal iterables j0 \
j1 jn join keys
keys_unsorted last ldexp length lgamma lgamma_r limit localtime log log10 log1p log2 logb ltrim \
ltrimstr map map_values
match max max_by min min_by mktime modf nan nearbyint nextafter nexttoward normals not now nth \
nulls numbers objects
path paths pick pow range recurse remainder reverse rindex rint round rtrim rtrimstr scalars \
scalb scalbln scan select
setpath significand sin sinh skip sort sort_by split splits sqrt startswith strflocaltime \
strftime strings strptime sub
tan tanh test tgamma to_entries toboolean todate todateiso8601 tojson tonumber tostream tostring \
transpose trim trimstr
trunc truncate_stream type unique unique_by utf8bytelength values walk with_entries y0 y1 yn
"""
ALLOWED = set(LOOKED_AT.split())


def evaluated(expression: str, record: Any = None) -> Any:
    """The result of an expression with its bounds."""
    return jq.compile(f"{bounds(expression)} {expression}").input_text(json.dumps(record)).all()


@cases(
    ("expression", "result"),
    [
        ("range(3)", [0, 1, 2]),
        ("range(2; 5)", [2, 3, 4]),
        ("range(0; 10; 3)", [0, 3, 6, 9]),
        ("range(5; 0; -2)", [5, 3, 1]),
        ("range(0.5; 3)", [0.5, 1.5, 2.5]),
        ("range(3; 1)", []),
        ("range(0; 1; 0)", []),
        ("range(0, 1; 3, 4)", [0, 1, 2, 0, 1, 2, 3, 1, 2, 1, 2, 3]),
        ("range(100000) | select(. == 99999)", [99999]),
        ("(1, 2) * (3, 4)", [3, 6, 4, 8]),
        ('"ab" * 3, 3 * "ab"', ["ababab", "ababab"]),
        ('"ab" * 0', [""]),
        ("{a: {b: 1}} * {a: {c: 2}}", [{"a": {"b": 1, "c": 2}}]),
        ("[1, 2] | .[] *= 3", [[3, 6]]),
        ('"x" * 1000000 | length', [1_000_000]),
    ],
)
def test_bounds_change_nothing_within_them(expression: str, result: list[Any]) -> None:
    """Ranges and products are jq's own."""
    assert evaluated(expression) == result
    assert jq.compile(expression).input_text("null").all() == result


@cases(
    "expression",
    [
        "[range(100001)]",
        "[range(1e18)]",
        "[range(infinite)]",
        "[range(nan)]",
        "[range(0; nan)]",
        "[range(0; 1; 1e-9)]",
        "[range(0; -infinite; -1)]",
        "[limit(3; range(infinite))]",
        '[range("a"; "b"; "x")]',
        "def f: range(1e9); [f]",
        '[500001] | "ab" * .[0]',
        '[1e9] | .[0] * "ab"',
        '"x" | . *= 1e8',
    ],
)
def test_beyond_the_bounds_is_an_error(expression: str) -> None:
    """Neither time nor memory are taken by numbers that a record or a rule makes up."""
    with pytest.raises(ValueError, match=r"range (of more than|needs)|a text of over"):
        evaluated(expression)


def test_a_hostile_record_is_unmappable() -> None:
    """A price that is a text, times a quantity of a billion, makes no text of a billion bytes."""
    assert (
        mapped('{"price": 2, "quantity": 3}', properties="{total: (.price * .quantity)}")
        is not None
    )
    with pytest.raises(Unmappable, match="a text of over 1000000 bytes"):
        mapped(
            '{"price": "12.5", "quantity": 1000000000}', properties="{total: (.price * .quantity)}"
        )
