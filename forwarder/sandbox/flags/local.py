"""A project's definitions as SDKs read them to evaluate flags by themselves: what the service puts
together in its module `products.feature_flags.backend.local_evaluation` (PostHog/posthog at
001522b75c41).

The flags of surveys, deleted ones and those with encrypted payloads are left out; inactive ones
are there. Each says whether an experiment uses it. A condition on another flag names it by its key
and has `dependency_chain`: the flags to evaluate before it, the named one last; empty if one of
them is missing or depends on itself. `cohorts` has the conditions of the cohorts that the flags
use, directly or within each other, but of static ones, which no SDK can decide. Payloads are
texts, as in the service, whatever the definition has: posthog-go reads nothing otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from forwarder.sandbox.flags.definitions import Flag, FlagDependency
from forwarder.sandbox.flags.forms import linked_to_experiment
from forwarder.sandbox.flags.stored import ProjectDefinitions, group_types, project_definitions
from forwarder.sandbox.store.database import Store

_SURVEY_FLAGS: Final = (
    "targeting_flag_key",
    "internal_targeting_flag_key",
    "internal_response_sampling_flag_key",
)
"""What a survey names its own flags by; that of `linked_flag_key` is somebody else's."""
_PROPERTY_MATCHING: Final = 1
"""The version of comparing properties that projects have unless the service's staff changes it."""


def definitions_for_sdks(store: Store, api_key: str) -> dict[str, Any]:
    """`{flags, group_type_mapping, cohorts}` of a project, with all arrivals folded in, and the
    settings that SDKs evaluate by.
    """
    project = project_definitions(store, api_key)
    of_surveys = {survey.get(name) for survey in project.surveys for name in _SURVEY_FLAGS}
    flags = [
        project.flags[key]
        for key in sorted(project.flags)
        if key not in of_surveys and _is_shown(project.flags[key])
    ]
    keys = {flag.id: flag.key for flag in flags} | {flag.key: flag.key for flag in flags}
    needs = {flag.key: [keys.get(name, name) for name in _dependencies(flag)] for flag in flags}
    experiments = linked_to_experiment(project)
    contents = [
        {
            **flag.content,
            "has_experiment": flag.key in experiments,
            "filters": _filters(flag, keys, needs),
        }
        for flag in flags
    ]
    types = {str(index): name for index, name in enumerate(group_types(store, api_key, project))}
    return {
        "flags": contents,
        "group_type_mapping": types,
        "cohorts": _cohorts([flag.content for flag in flags], project),
        "minimal_flag_called_events": False,
        "property_matching_version": _PROPERTY_MATCHING,
    }


def _is_shown(flag: Flag) -> bool:
    return not flag.deleted and flag.content.get("has_encrypted_payloads") is not True


def _filters(
    flag: Flag, keys: Mapping[str, str], needs: Mapping[str, Sequence[str]]
) -> dict[str, Any]:
    filters: dict[str, Any] = flag.content["filters"]
    if flag.rules is not None:
        return filters
    groups = [
        {
            **group,
            "properties": [
                _condition(entry, keys, needs) for entry in group.get("properties") or []
            ],
        }
        for group in filters["groups"]
    ]
    return {
        **filters,
        "groups": groups,
        **({"payloads": flag.payloads} if filters.get("payloads") else {}),
    }


def _condition(
    condition: Mapping[str, Any], keys: Mapping[str, str], needs: Mapping[str, Sequence[str]]
) -> Mapping[str, Any]:
    if condition.get("type") != "flag":
        return condition
    key = keys.get(str(condition.get("key")), str(condition.get("key")))
    return {**condition, "key": key, "dependency_chain": _chain(key, needs)}


def _chain(key: str, needs: Mapping[str, Sequence[str]]) -> list[str]:
    """The flags to evaluate, `key` last and each after those that it needs; empty if
    that can't be.
    """
    done: dict[str, None] = {}
    todo: list[tuple[str, Iterator[str]]] = [(key, iter(needs.get(key, ())))]
    opened = {key}
    while todo:
        name, rest = todo[-1]
        if name not in needs:
            return []
        following = next((needed for needed in rest if needed not in done), None)
        if following is None:
            todo.pop()
            opened.discard(name)
            done[name] = None
        elif following in opened:
            return []
        else:
            opened.add(following)
            todo.append((following, iter(needs.get(following, ()))))
    return list(done)


def _dependencies(flag: Flag) -> list[str]:
    """The keys or ids of the flags that conditions name."""
    return [
        condition.flag
        for group in flag.sets
        for condition in group.conditions
        if isinstance(condition, FlagDependency)
    ]


def _cohorts(contents: Sequence[Mapping[str, Any]], project: ProjectDefinitions) -> dict[str, Any]:
    """The conditions of the cohorts that flags use."""
    todo = {
        number
        for content in contents
        for group in content["filters"].get("groups") or ()
        for number in _cohorts_in(group.get("properties"))
    }
    seen = set[int]()
    groups = dict[str, Any]()
    while todo:
        number = todo.pop()
        seen.add(number)
        cohort = project.cohorts.get(number)
        if cohort is not None and cohort.property_group is not None:
            groups[str(number)] = cohort.property_group
            todo |= set(_cohorts_in(cohort.property_group)) - seen
    return dict(sorted(groups.items(), key=lambda item: int(item[0])))


def _cohorts_in(conditions: object) -> Iterator[int]:
    """The ids of cohorts in conditions, at any depth."""
    todo = [conditions]
    while todo:
        item = todo.pop()
        if isinstance(item, list):
            todo.extend(item)
        elif isinstance(item, dict):
            todo.append(item.get("values"))
            if item.get("type") == "cohort" and str(item.get("value")).isdecimal():
                yield int(str(item["value"]))
