"""The simulated world: its lives keep their promises, are the same each time, and would show a
defect.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.simulation.life import live
from tests.simulation.plan import Produce, Send, drawn
from tests.simulation.planted import lived
from tests.simulation.shrinking import shrunk, story

LIVES = 300
QUICK = 20
"""So many of them in the quick tests."""
FOUND = {
    "rules are skipped on the single event's way": 1,
    "an event that is rejected at receipt isn't kept": 2,
    "the second destination is forgotten": 2,
    "a body that never ends is waited for": 1,
    "two requests of a person are sent at once": 1,
}
"""Defects, each with a seed that finds it."""
ONCE_BROKEN = (486, 2318, 2540, 2857, 6913, 12084, 12480, 18336)
"""Seeds beyond the first ones that have found a fault of the product."""


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(first, marks=[pytest.mark.slow] if first > QUICK else [])
        for first in range(1, LIVES + 1, 10)
    ],
)
def test_lives_keep_their_promises(first: int) -> None:
    """Each event that was accepted is where it belongs, unchanged; the books balance; nothing is
    left behind.
    """
    for seed in range(first, first + 10):
        life = live(drawn(seed))
        assert life.broken is None, story(life, 60)
        assert life.trace.steps > 1


@pytest.mark.parametrize("seed", ONCE_BROKEN)
def test_a_life_that_found_a_fault_keeps_its_promises(seed: int) -> None:
    """What it has found stays repaired."""
    life = live(drawn(seed, calls=False))
    assert life.broken is None, story(life, 60)


def test_a_life_is_the_same_each_time() -> None:
    """In this process, and in others: also one that is drained, and one that ends while requests
    are answered.
    """
    seeds = (1, 2, 3, 36, 928)
    here = [live(drawn(seed)).trace.digest for seed in seeds]
    assert [live(drawn(seed)).trace.digest for seed in seeds] == here
    others = [
        subprocess.run(
            [
                sys.executable,
                "-m",
                "tests.simulation",
                "--digests",
                "--first",
                first,
                "--lives",
                "2",
            ],
            env={**os.environ, "PYTHONHASHSEED": "0"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for first in ("36", "36", "928", "928")
    ]
    assert others[0] == others[1]
    assert others[2] == others[3]
    assert [len(lines.splitlines()) for lines in others] == [2] * 4


def test_a_life_is_the_same_whatever_number_its_process_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A lock file is as long as it has digits, and what a loss of power leaves of it is drawn."""
    numbered: list[str] = []
    for number in (7, 31_000):
        monkeypatch.setattr(os, "getpid", lambda number=number: number)
        numbered.append(live(drawn(25)).trace.digest)
    assert numbered[0] == numbered[1]


@pytest.mark.parametrize("defect", FOUND)
def test_a_defect_is_found(defect: str) -> None:
    """One that is put into the product; without it the life keeps its promises."""
    plan = drawn(FOUND[defect])
    assert lived(plan, defect).broken is not None
    assert live(plan).broken is None


def test_the_story_of_a_defect_is_short() -> None:
    """Acts are left out of it as long as it breaks the same promise."""
    defect = next(iter(FOUND))
    smaller = shrunk(lived(drawn(FOUND[defect]), defect), lambda plan: lived(plan, defect))
    assert smaller.broken is not None
    assert len(smaller.plan.acts) <= 2
    assert any(isinstance(act, Send | Produce) for act in smaller.plan.acts)
    assert f"broken: {smaller.broken}" in story(smaller, 60)
