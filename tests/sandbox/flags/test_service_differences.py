"""Where a sandbox for flags most easily differs from the service, and the tests by HTTP that hold
each: cases of `test_service_rows` (how a flag is evaluated) and of `test_service_answers` (who gets
which flags, in which form), by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tests.sandbox.flags import test_service_answers, test_service_rows

DIFFERENCES: Final[Mapping[str, tuple[str, ...]]] = {
    "1. `device_id` without `$`": ("a device is sent as device_id",),
    "2. an inactive flag": ("test_inactive_flags_are_in_no_answer_of_decide",),
    "3. `evaluation_runtime` of a flag": (
        "runtime_of_a_server_sdk",
        "runtime_of_a_browser",
        "runtime_by_a_header_of_browsers",
        "runtime_that_the_body_says",
        "a_flag_of_another_runtime_is_off_for_others",
    ),
    "4. `flag_keys_to_evaluate` of a flag that depends on another": (
        "a requested flag brings those on which it depends, directly or not",
    ),
    "5. a cohort by behavior": ("a cohort by behavior has nobody, which is no error",),
    "6. a flag that failed, in a map": (
        "a_failed_flag_is_false_in_maps",
        "a_failed_flag_is_false_in_maps_of_flags",
    ),
    "7. `/flags/definitions`": (
        "test_definitions_leave_out_flags_of_surveys_and_encrypted_ones",
        "test_definitions_always_have_the_cohorts",
        "test_definitions_have_a_weak_etag",
        "test_definitions_need_the_scope",
        "test_definitions_fail_as_the_service_lets_them",
    ),
    "8. remote configuration in definitions": (
        "test_definitions_leave_out_flags_of_surveys_and_encrypted_ones",
    ),
    "9. `POST /flags` without `v` and `config`": (
        "flags_without_version_are_objects",
        "flags_without_version_have_settings",
    ),
    "10. `/flags?v=3` and later": ("a_typed_record_from_version_3_on", "test_typed_records"),
    "11. `filters` of version 2": (
        "filters of version 2 are rules",
        "rules give values of their type",
        "rules that can't be evaluated fail, and never count as conditions",
    ),
    "12. the empty `distinct_id`": (
        "an empty id is in every roll-out, and gets the first variant",
    ),
    "13. `disable_flags` without `distinct_id`": ("disabled_flags_need_no_user",),
    "14. `evaluation_contexts: []`": ("no_contexts_are_no_filter",),
    "15. properties that are filled in": (
        "what a person has of the first visit is known by its other name",
        "the system is known by both names, here $os_name",
    ),
    "16. a condition on an unknown flag": (
        "a flag on one that doesn't exist is off, whatever else it says",
    ),
    "17. a flag of devices, without a device": (
        "without a device a flag of devices is what no hash can change",
    ),
    "18. who opted out of an early access feature": (
        "who opted out of an early access feature gets its payload",
    ),
    "19. the anonymous id, as a property or without `$`": (
        "an earlier id is sent as anon_distinct_id",
        "an earlier id is sent as person_properties",
        "a client without cookies has no earlier id",
    ),
    "20. over the quota": ("test_over_quota_there_are_no_flags",),
    "21. times without a zone, and relative ones": (
        "times without a zone are of the project's",
        "test_relative_times_count_from_the_projects_clock",
    ),
    "22. versions with pre-releases or four numbers": (
        "versions sort with their pre-releases, and have three numbers",
    ),
    "23. a `v` that isn't a number": (
        "a_version_that_is_no_number_is_the_first",
        "a_version_that_is_no_number_of_flags",
    ),
    "24. the fields of `/decide`": ("test_decide_by_the_contract_and_strictly",),
    "25. a flag without conditions": ("a flag without conditions is off for want of a group",),
    "26. `super_groups`, `holdout_groups`": (
        "the older forms of enrollment and holdout don't count",
    ),
    "27. empty cohorts, and other operators of cohorts": (
        "a cohort of any of nothing has nobody, one of all of nothing everybody",
        "a cohort is in or not in, and no other operator matches",
    ),
    "28. a group's key that is neither text nor number": (
        "a group whose key is true is none",
        'a group whose key is ["acme"] is none',
    ),
    "29. a private address first, and places that are null": (
        "test_the_first_address_alone_has_the_place",
    ),
    "30. a bad key, and NaN": (
        "test_a_bad_key_is_answered_in_json_strictly",
        "test_an_invalid_number_is_null",
    ),
    "31. flags in a circle": (
        "flags in a circle, and those behind them, aren't answered, but said to be missing",
        "a circle makes every answer incomplete, also about other flags",
    ),
    "32. flags of surveys alone, and the time at which a person was created": (
        "flags_of_surveys_alone",
        "test_when_a_person_was_created_is_not_a_property",
    ),
}


def test_each_difference_has_a_test() -> None:
    """None is left out, and each name is that of a test or of a case of one."""
    assert [difference.partition(".")[0] for difference in DIFFERENCES] == [
        str(n) for n in range(1, 33)
    ]
    known = {rule.name for rule in test_service_rows.TABLE} | set(test_service_answers.ROWS)
    for module in (test_service_rows, test_service_answers):
        known |= {name for name in vars(module) if name.startswith("test_")}
    assert [name for names in DIFFERENCES.values() for name in names if name not in known] == []
