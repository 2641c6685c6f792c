"""The drill's judgment: each thing that can be wrong makes it bad, and is named."""

from __future__ import annotations

from typing import Any

import pytest

from forwarder.demo.drill.checks import (
    AnswerCounts,
    Check,
    DrillVerdict,
    FlagCall,
    Step,
    answered_200,
    balanced_books,
    counted,
    flags_answered,
    flags_fail_fast,
    lane_of,
)
from forwarder.telemetry.snapshot import LaneSnapshot, Snapshot, State

GOOD = Step("All is well", "nothing", (Check("it is so", good=True, seen="1 of 1"),))
BAD = Step(
    "The upstream is down",
    "it was killed",
    (*GOOD.checks, Check("events wait", good=False, seen="1 of 2")),
)
OFF = Step(
    "A key is wrong",
    "it was sent",
    GOOD.checks,
    lanes=(LaneSnapshot("L", received={"http": 2}, delivered=1),),
)


def verdict(**changed: Any) -> DrillVerdict:
    """A good one, but for what is changed."""
    parts: dict[str, Any] = {
        "steps": (GOOD,),
        "sent": frozenset("ab"),
        "stored": frozenset("ab"),
        **changed,
    }
    return DrillVerdict(**parts)


def snapshot(*lanes: LaneSnapshot, **requests: int) -> Snapshot:
    """A forwarder's state; `requests` are answers to `/batch`, by `code_…`."""
    counts = {
        ("/batch", int(code.removeprefix("code_"))): count for code, count in requests.items()
    }
    return Snapshot(
        "1", State.RUNNING, 0.0, 0.0, lanes=lanes, http_requests={**counts, ("/flags", 503): 7}
    )


def test_all_there_is_good() -> None:
    """Every step good, every event there, nothing else, no conflict, books that balance."""
    assert verdict().good
    assert verdict().problems() == []


@pytest.mark.parametrize(
    ("changed", "reported"),
    [
        ({"steps": (GOOD, BAD)}, "The upstream is down: events wait (1 of 2)"),
        ({"steps": (GOOD, OFF)}, "A key is wrong: the books of L don't balance"),
        ({"stored": frozenset("a")}, "1 of 2 events are missing: b"),
        ({"stored": frozenset("abc")}, "1 event in the sandbox that the drill didn't send"),
        ({"conflicts": 3}, "3 events arrived changed"),
        ({"off": ("phc_…1234#abcdef",)}, "the books of phc_…1234#abcdef don't balance"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_each_fault_alone_is_reported(changed: dict[str, Any], reported: str) -> None:
    """One fault is enough, and it is the one that is named."""
    outcome = verdict(**changed)
    assert not outcome.good
    assert outcome.problems() == [reported]


def test_many_missing_events_are_counted() -> None:
    """Five are named, the rest counted."""
    outcome = verdict(sent=frozenset("abcdefgh"), stored=frozenset())
    assert outcome.problems() == ["8 of 8 events are missing: a, b, c, d, e and 3 more"]


def test_a_step_is_good_if_all_of_it_is() -> None:
    """One bad check makes a bad step."""
    assert GOOD.good
    assert not BAD.good


def test_answers_since_a_moment() -> None:
    """Requests of senders are compared by code; those for flags are no events."""
    before = AnswerCounts.of(snapshot(code_200=3))
    after = AnswerCounts.of(snapshot(code_200=5, code_503=1))
    assert after.since(before) == {200: 2, 503: 1}
    assert after.since(AnswerCounts()) == {200: 5, 503: 1}
    assert before.since(before) == {}


@pytest.mark.parametrize(
    ("answers", "good", "seen"),
    [
        ({200: 4}, True, "4 of 4"),
        ({200: 4, 503: 1}, False, "4 of 5, 503: 1"),
        ({503: 1}, False, "0 of 1, 503: 1"),
        ({}, False, "0 of 0"),
    ],
)
def test_only_200_is_an_answer_that_counts(answers: dict[int, int], good: bool, seen: str) -> None:
    """Another answer is a fault, and so is none at all."""
    check = answered_200(answers)
    assert (check.good, check.seen) == (good, seen)


@pytest.mark.parametrize(
    ("status", "good"), [(200, True), (503, False), (404, False), (None, False)]
)
def test_flags_that_are_answered(status: int | None, good: bool) -> None:
    """While the upstream is up a flag call is answered 200."""
    assert flags_answered(FlagCall(status, 0.01)).good is good


@pytest.mark.parametrize(
    ("last", "good"),
    [
        ((503, 0.01), True),
        ((502, 0.4), True),
        ((200, 0.01), False),
        ((404, 0.01), False),
        ((503, 3.2), False),
        ((None, 5.0), False),
    ],
)
def test_flags_that_fail_fast(last: tuple[int | None, float], good: bool) -> None:
    """Each call must fail, as the upstream's failure, sooner than an SDK would give up
    by itself.
    """
    assert flags_fail_fast([FlagCall(503, 0.01), FlagCall(*last)], 3.0).good is good


def test_a_figure_must_be_the_expected_one() -> None:
    """More is as wrong as less."""
    assert [counted("so many", seen, 2).good for seen in (1, 2, 3)] == [False, True, False]


def test_missing_books_prove_nothing() -> None:
    """Without a lane there are no books to balance; one that is off is named."""
    lane = LaneSnapshot("phc_…1234#abcdef", received={"http": 3}, delivered=2, buffered=1)
    off = LaneSnapshot("phc_…5678#fedcba", received={"http": 3}, delivered=2)
    assert balanced_books(snapshot(lane)).good
    assert not balanced_books(snapshot()).good
    assert balanced_books(snapshot(lane, off)).seen == "off: phc_…5678#fedcba"


def test_lanes_are_found_by_their_label() -> None:
    """One that isn't there yet is empty, and what waits is the sum over all."""
    lanes = LaneSnapshot("a", buffered=2), LaneSnapshot("b", buffered=3)
    assert lane_of(snapshot(*lanes), "b").buffered == 3
    assert lane_of(snapshot(*lanes), "c").buffered == 0
    assert snapshot(*lanes).buffered == 5
