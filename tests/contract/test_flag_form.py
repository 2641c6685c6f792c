"""Which members a flag and a cohort have, and what is proposed for others."""

from __future__ import annotations

from typing import Any

from forwarder.contract.flag_form import COHORT, FLAG, find_unknown_member
from tests.support.cases import cases


@cases(
    ("content", "path", "hint"),
    [
        ({"actve": True}, "actve", "did you mean active?"),
        ({"Active": True}, "Active", "did you mean active?"),
        ({"variants": []}, "variants", "did you mean filters.multivariate.variants?"),
        ({"variant": "a"}, "variant", "did you mean filters.groups[0].variant?"),
        ({"groups": []}, "groups", "did you mean filters.groups?"),
        ({"filters": {"group": []}}, "filters.group", "did you mean filters.groups?"),
        (
            {"filters": {"groups": [{}, {"rolout_percentage": 5}]}},
            "filters.groups[1].rolout_percentage",
            "did you mean filters.groups[1].rollout_percentage?",
        ),
        (
            {"filters": {"groups": [{"properties": [{"key": "a", "operatr": "exact"}]}]}},
            "filters.groups[0].properties[0].operatr",
            "did you mean filters.groups[0].properties[0].operator?",
        ),
        (
            {"filters": {"multivariate": {"variants": [{"key": "a", "percentage": 5}]}}},
            "filters.multivariate.variants[0].percentage",
            "did you mean filters.multivariate.variants[0].rollout_percentage?",
        ),
        ({"filters": {"holdout": {"share": 5}}}, "filters.holdout.share", "known here: "),
    ],
)
def test_an_unknown_member_of_a_flag(content: Any, path: str, hint: str) -> None:
    """The first of them, where it stands, with one that is like it."""
    unknown = find_unknown_member(content, FLAG)
    assert unknown is not None
    assert unknown.path == path
    assert unknown.hint.startswith(hint)


@cases(
    "content",
    [
        {},
        {"key": "a", "filters": {"groups": [{"properties": [], "rollout_percentage": 5}]}},
        {"filters": {"payloads": {"anything": 1}, "groups": None, "multivariate": None}},
        {"filters": {"version": 2, "rules": [{"anything": 1}]}},
        {"filters": {"version": 3, "whatever": []}},
        {"rollout_percentage": 50, "properties": [{"key": "a", "value": 1}]},
        {"filters": 5},
        [],
        None,
    ],
)
def test_what_has_no_unknown_member(content: Any) -> None:
    """Whether it is a flag is found by those who read it."""
    assert find_unknown_member(content, FLAG) is None


def test_cohorts() -> None:
    """They have a form of their own."""
    assert find_unknown_member({"id": 1, "is_static": True, "distinct_ids": []}, COHORT) is None
    unknown = find_unknown_member({"id": 1, "static": True}, COHORT)
    assert unknown == ("static", "did you mean is_static?")
