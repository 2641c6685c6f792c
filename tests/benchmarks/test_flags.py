"""The flags whose cost is measured: each is decided by its last condition, and none fails."""

from __future__ import annotations

from datetime import UTC, datetime

from benchmarks.flags import (
    ALLOWED,
    CONDITIONS,
    FLAGS,
    NAME,
    DecideResult,
    decide_line,
    flag_project,
    visitor_properties,
)
from forwarder.sandbox.flags.definitions import parse_cohort, parse_flag
from forwarder.sandbox.flags.evaluation import Definitions, Subject, evaluate


def test_no_flag_is_decided_early() -> None:
    """Every visitor meets the last condition of every flag, and no other; the
    roll-out leaves some out.
    """
    project = flag_project()
    flags = (parse_flag(raw_flag) for raw_flag in project["flags"])
    cohorts = (parse_cohort(raw_cohort) for raw_cohort in project["cohorts"])
    definitions = Definitions(
        {flag.key: flag for flag in flags}, {cohort.id: cohort for cohort in cohorts}, ()
    )
    for number in (0, 1, 77):
        evaluation = evaluate(
            definitions, Subject(f"visitor-{number}", visitor_properties(number)), datetime.now(UTC)
        )
        assert (len(evaluation.results), evaluation.failed) == (FLAGS, {})
        reasons = {
            (result.enabled, result.reason.condition_index)
            for result in evaluation.results.values()
        }
        assert reasons == {(True, CONDITIONS - 1), (False, CONDITIONS - 1)}


def test_what_is_too_much_is_not_good() -> None:
    """Or if no flag is on: then nothing was measured."""
    assert DecideResult(NAME, ALLOWED / 2, 0.001, 160).good
    assert not DecideResult(NAME, ALLOWED / 2, 0.001, 0).good
    slow = DecideResult(NAME, ALLOWED * 2, 0.001, 160)
    assert not slow.good
    assert decide_line(slow).endswith("NOT GOOD")
