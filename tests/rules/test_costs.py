"""What rules are estimated to cost: more for each element, and for what an expression repeats."""

from __future__ import annotations

import pytest

from forwarder.rules.costs import ConditionCost, edit_cost, reading_cost
from forwarder.wire.effort import INLINE
from tests.support.cases import cases

EVENT = (
    b'{"event":"order","distinct_id":"a","properties":{"url":"https://example.com/shop/items","n":1'
    b',"plan":"b","items":[{"sku":"x","price":1},{"sku":"y","price":2}],"$lib":"web","$os":"b"}}'
)
SLICE = INLINE.ruled


@cases("items", [b"0", b"[]", b"{}", b'""', b"[[[[0]]]]", b'{"a":0}'])
def test_an_edit_costs_in_proportion_to_what_it_looks_at(items: bytes) -> None:
    """Twice the elements, twice the cost, whatever the elements are."""
    some = edit_cost(b"[%b]" % b",".join([items] * 10_000), 1)
    more = edit_cost(b"[%b]" % b",".join([items] * 20_000), 1)
    assert some > SLICE
    assert more == pytest.approx(2 * some, rel=0.01)


def test_an_edit_costs_in_proportion_to_its_passes() -> None:
    """Each path that is set or renamed is a pass."""
    assert edit_cost(EVENT, 5) == 5 * edit_cost(EVENT, 1)


@cases(
    "expression",
    [
        ".properties.n == 1",
        '(.properties.url // "") | startswith("https")',
        "[.properties.items[]?.sku] | length > 1",
        '.properties.items | any(.sku == "x")',
        '.properties.url | test("^https://[a-z]+\\\\.com/.*")',
        '.properties.url | test("\\\\.com/shop")',
        ".properties.n * 2 > 1",
        '.event | IN("order", "signup", "login")',
        '.event == "order" and (.properties.n > 3 or (.properties.plan | not))',
        '.properties.url | contains("shop")',
        '.properties.url | split("/")[2] == "example.com"',
        '.properties.plan | ascii_downcase == "b"',
        r'"\(.event)-\(.properties.plan)" == "order-b"',
        "(.properties.a // 0) + (.properties.b // 0) > 3",
        'if .event == "a" then .properties.n - 1 > 0 else .properties | has("url") end',
    ],
)
def test_usual_conditions_on_a_usual_batch_stay_on_the_loop(expression: str) -> None:
    """Fifty events."""
    assert ConditionCost(expression).of([EVENT] * 50) < SLICE


@cases(
    "expression",
    [
        '.properties.url | test("(a+)+b")',
        ".properties.url | test(.properties.plan)",
        '.properties.url | gsub("\\(.properties.plan)"; "x")',
        "[range(.properties.n)] | length > 1",
        ".properties.items[.properties.n] = 1 | .properties.n == 1",
        "(.properties.b | .[20000000]) = 1 | true",
        "def d: .,.; [d | d | d | d | d | d | d | d] | length > 1",
        f"[{' | '.join(['(.,.)'] * 20)}] | length > 1",
        '"x" * 1000000 | . + . + . + . | test("y")',
        f"{'tojson | ' * 20} length > 1",
        "[limit(100000; recurse(.))] | length > 1",
        'reduce .properties.items[] as $item ("x"; . + .) | length > 1',
        "what_a_later_jq_may_have",
    ],
)
def test_a_condition_that_is_slow_for_short_events_is_slow(expression: str) -> None:
    """One event is enough."""
    assert ConditionCost(expression).of([EVENT]) > SLICE


@cases(
    "expression",
    [
        "[.properties.a[] as $x | .properties.a[] | . == $x] | any",
        '.properties.a | tostring | test("0.*1")',
        ".properties.a | length > 3 and .properties.n == 1",
    ],
)
def test_a_large_event_is_too_much_for_a_condition(expression: str) -> None:
    """By what it repeats, or by reading it alone."""
    event = b'{"event":"e","distinct_id":"d","properties":{"a":[%b]}}' % b",".join([b"0"] * 25_000)
    assert ConditionCost(expression).of([event]) > SLICE


def test_a_text_that_a_condition_makes_may_be_as_long_as_the_event() -> None:
    """A regular expression on it counts so, whatever texts the event has."""
    event = b'{"event":"e","properties":{"a":[%b]}}' % b",".join([b'{"b":0}'] * 250)
    assert ConditionCost('.properties.a | tostring | test("0.*1")').of([event]) > SLICE
    assert ConditionCost('.properties.b | test("0.*1")').of([event]) < SLICE


TEXT = b'{"event":"e","properties":{"t":"%b"}}' % (b"a," * 1500)
LISTS = b'{"event":"e","properties":{"a":[%b],"b":[%b]}}' % ((b"0," * 1500 + b"1",) * 2)


@cases(
    ("expression", "event"),
    [
        ('.properties.t | gsub("a"; "b") | length > 0', TEXT),
        ('.properties.t | sub("a"; "b"; "g") | length > 0', TEXT),
        ('[.properties.t | scan(",")] | length > 3', TEXT),
        ('[.properties.t | splits("a")] | length > 3', TEXT),
        ('.properties.t | split("a"; null) | length > 3', TEXT),
        (".properties as $p | $p.t | split($p.x.y; null) | length > 3", TEXT),
        ('[.properties.t | match("a"; "g")] | length > 3', TEXT),
        ('[.properties.t | test("a"; .)] | length > 3', TEXT),
        (".properties.t | ascii_downcase | length > 3", TEXT),
        ("(.properties.a - .properties.b | length) > 0", LISTS),
        (".properties as $p | $p.a | contains($p.b)", LISTS),
        (".properties as $p | $p.a | inside($p.b)", LISTS),
        (".properties as $p | $p.a | indices($p.b) | length > 0", LISTS),
        (".properties as $p | $p.a[$p.b] | length > 0", LISTS),
        (".properties as $p | $p.a | values[$p.b] | length > 0", LISTS),
        (".properties as $p | [$p.a[] | IN($p.b[])] | any", LISTS),
        ("[.properties.a[] as $x | .properties.a | tojson] | length > 0", LISTS),
    ],
)
def test_quadratic_conditions_go_to_the_decoder_process(expression: str, event: bytes) -> None:
    """Some kilobytes are enough; what is usual goes through them once."""
    assert ConditionCost(expression).of([event]) > SLICE
    assert ConditionCost('.properties.t | test("^a")').of([event]) < SLICE
    assert ConditionCost('.properties.plan == "free"').of([event]) < SLICE


def test_a_usual_comparison_costs_what_reading_does() -> None:
    """Nothing is added for what it says."""
    for expression in ('.properties.city == "none"', '.event == "x"', ".properties.n > 3"):
        assert ConditionCost(expression).of([EVENT]) == reading_cost(EVENT)
