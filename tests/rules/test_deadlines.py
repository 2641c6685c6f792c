"""Conditions with a deadline: one that takes too long fails for its event alone."""

from __future__ import annotations

from forwarder.mapping.expressions import Expressions
from forwarder.rules.costs import ConditionCost
from forwarder.rules.deadlines import DeadlinedConditions

ENDLESS = "if .n == 0 then [range(100000) as $a | range(100000)] | length > 0 else .n | . > 5 end"


def evaluated(
    conditions: DeadlinedConditions, expression: str, *events: bytes
) -> tuple[list[int], dict[int, str]]:
    """The indexes of the events that match, and why others failed."""
    condition = Expressions("rules[0].match")
    condition.only_where(expression)
    condition.compile()
    failed: dict[int, str] = {}
    cost = ConditionCost(expression)
    matched = conditions(condition, cost, events, lambda at, why: failed.update({at: str(why)}))
    return matched, failed


def test_an_event_that_a_condition_takes_too_long_for_fails_alone() -> None:
    """Those before it and behind it are decided."""
    conditions = DeadlinedConditions(event_seconds=0.05)
    events = [b'{"n":%d}' % number for number in (9, 0, 1, 8)]
    matched, failed = evaluated(conditions, ENDLESS, *events)
    assert matched == [0, 3]
    assert list(failed) == [1]
    assert failed[1] == "where: jq takes over 0.05 s of CPU, or all memory"


def test_conditions_of_a_job_have_a_time_limit() -> None:
    """Events that are left then fail at once, until the next job."""
    conditions = DeadlinedConditions(event_seconds=0.05, total=0.01)
    matched, failed = evaluated(conditions, ENDLESS, b'{"n":0}', b'{"n":9}')
    assert (matched, list(failed)) == ([], [0, 1])
    assert failed[1].startswith("where: jq has taken 0.01 s of CPU for other events")
    conditions.start()
    assert evaluated(conditions, ENDLESS, b'{"n":9}') == ([0], {})


def test_a_condition_that_fails_says_why() -> None:
    """As it would at once."""
    expression = '([range(3)] | length) > 2 and (.n | startswith("a"))'
    _, failed = evaluated(DeadlinedConditions(), expression, b'{"n":1}')
    assert failed[0].startswith("where: jq: startswith")


def test_short_conditions_need_no_child_process() -> None:
    """It is evaluated even where no time is left."""
    conditions = DeadlinedConditions(total=0.0)
    assert evaluated(conditions, ".n > 5", b'{"n":9}', b'{"n":1}') == ([0], {})


def test_the_time_limit_of_a_job_holds_in_a_child_process() -> None:
    """Many events, of which none takes too long by itself, end when all together do."""
    loop = "[range(100) as $a | range(100)] | length > 0"
    conditions = DeadlinedConditions(event_seconds=5.0, total=0.1)
    matched, failed = evaluated(conditions, loop, *[b"{}"] * 200)
    assert matched == list(range(len(matched)))
    assert list(failed) == list(range(len(matched), 200))
    assert all(reason.startswith("where: jq has taken 0.1 s of CPU") for reason in failed.values())
