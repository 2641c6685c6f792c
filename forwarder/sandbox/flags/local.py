"""A project's definitions as SDKs read them to evaluate flags by themselves (wire facts: Flags).

Flags of remote configuration and deleted ones are left out, as in the real service; inactive ones
are there. A condition on another flag names it by its key and has `dependency_chain`: the flags to
evaluate before it, the named one last; empty if one of them is missing or depends on itself.
`cohorts` has the conditions of the cohorts that the flags use, directly or within each other, but
of static ones, which no SDK can decide. An SDK that doesn't ask for cohorts gets none: a flag's
only cohort is written as conditions on the person, if that can be done without nesting. Payloads
are texts, as in the service, whatever the definition has: posthog-go reads nothing otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from forwarder.sandbox.flags.definitions import Cohort, Flag, FlagDependency
from forwarder.sandbox.flags.stored import ProjectDefinitions, group_types, project_definitions
from forwarder.sandbox.store.database import Store


def definitions_for_sdks(store: Store, api_key: str, *, send_cohorts: bool) -> dict[str, Any]:
    """`{flags, group_type_mapping, cohorts}` of a project, with all arrivals folded in."""
    project = project_definitions(store, api_key)
    flags = [flag for flag in project.flags.values() if not flag.deleted]
    keys = {flag.id: flag.key for flag in flags} | {flag.key: flag.key for flag in flags}
    needs = {flag.key: [keys.get(name, name) for name in _dependencies(flag)] for flag in flags}
    shown = [flag for flag in flags if flag.content.get("is_remote_configuration") is not True]
    cohorts = _cohorts([flag.content for flag in shown], project) if send_cohorts else {}
    contents = [
        {**flag.content, "filters": _filters(flag, keys, needs, project, expand=not send_cohorts)}
        for flag in shown
    ]
    types = {str(index): name for index, name in enumerate(group_types(store, api_key, project))}
    return {"flags": contents, "group_type_mapping": types, "cohorts": cohorts}


def _filters(
    flag: Flag,
    keys: Mapping[str, str],
    needs: Mapping[str, Sequence[str]],
    project: ProjectDefinitions,
    *,
    expand: bool,
) -> dict[str, Any]:
    filters: dict[str, Any] = flag.content["filters"]
    if flag.rules is not None:
        return filters
    groups = [dict(group) for group in filters["groups"]]
    used = {number for group in groups for number in _cohorts_in(group.get("properties"))}
    if expand and len(used) == 1:
        groups = _without_cohort(
            groups, [project.cohorts[number] for number in used if number in project.cohorts]
        )
    for group in groups:
        group["properties"] = [
            _condition(each, keys, needs) for each in group.get("properties") or []
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
        following = next((each for each in rest if each not in done), None)
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
        each.flag
        for group in flag.sets
        for each in group.conditions
        if isinstance(each, FlagDependency)
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
    found = dict[str, Any]()
    while todo:
        number = todo.pop()
        seen.add(number)
        cohort = project.cohorts.get(number)
        if cohort is not None and cohort.property_group is not None:
            found[str(number)] = cohort.property_group
            todo |= set(_cohorts_in(cohort.property_group)) - seen
    return dict(sorted(found.items(), key=lambda item: int(item[0])))


def _cohorts_in(conditions: object) -> Iterator[int]:
    """The ids of cohorts in conditions, at any depth."""
    todo = [conditions]
    while todo:
        each = todo.pop()
        if isinstance(each, list):
            todo.extend(each)
        elif isinstance(each, dict):
            todo.append(each.get("values"))
            if each.get("type") == "cohort" and str(each.get("value")).isdecimal():
                yield int(str(each["value"]))


def _without_cohort(
    groups: list[dict[str, Any]], cohorts: Sequence[Cohort]
) -> list[dict[str, Any]]:
    """Conditions with a cohort's in its place; unchanged if the cohort is
    static, nested, or negated.
    """
    choices = next((_choices(cohort) for cohort in cohorts), None)
    properties = [each for group in groups for each in group.get("properties") or []]
    if choices is None or any(
        each.get("type") == "cohort" and each.get("negation") for each in properties
    ):
        return groups
    expanded = list[dict[str, Any]]()
    for group in groups:
        others = [each for each in group.get("properties") or [] if each.get("type") != "cohort"]
        if len(others) == len(group.get("properties") or []):
            expanded.append(group)
        else:
            expanded += [{**group, "properties": [*others, *choice]} for choice in choices]
    return expanded


def _choices(cohort: Cohort) -> list[list[Any]] | None:
    """A cohort as alternatives, each of conditions that must all hold; None
    if it is not that simple.
    """
    tree = cohort.property_group or {}
    values = tree.get("values") or []
    if not values:
        return None
    branches: list[Any] = [
        each if isinstance(each.get("values"), list) else {"type": "AND", "values": [each]}
        for each in values
    ]
    leaves = [leaf for branch in branches for leaf in branch["values"]]
    if any(
        isinstance(leaf.get("values"), list) or leaf.get("type") == "cohort" or leaf.get("negation")
        for leaf in leaves
    ):
        return None
    if str(tree.get("type")).upper() == "AND":
        all_hold = all(
            str(branch.get("type")).upper() == "AND" or len(branch["values"]) == 1
            for branch in branches
        )
        return [leaves] if all_hold else None
    alternatives = list[list[Any]]()
    for branch in branches:
        alternatives += (
            [branch["values"]]
            if str(branch.get("type")).upper() == "AND"
            else [[leaf] for leaf in branch["values"]]
        )
    return alternatives
