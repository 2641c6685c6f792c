"""Evaluation of a project's flags for a person, with the reasons: pure, without database and HTTP.

The rules, in the order in which they decide: a flag that depends on one that doesn't exist is off;
so is one that is not active; enrollment in an early access feature; the holdout; then the condition
sets in order, of which the first that matches decides. A set applies to the person, or to one of
the groups that the request names, and matches when each of its conditions does and the share of its
roll-out includes the identifier. Both shares, of roll-outs and variants, follow from a hash of the
flag's key and the identifier alone. Filters of version 2 have `rules` instead.

They are the service's (rust/feature-flags/src/flags/flag_matching.rs in PostHog/posthog, commit
0da8f8c35ac1, and v1_bucketing.rs, commit 1ea05ce0476f), as its corpus of cases pins them
(tests/fixtures/rules_v2_contract/1.2.0/corpus/v1_evaluation.json, commit df189ec75ca9).

A flag fails if the answer depends on what can't be computed: a condition on a failed flag, or one
of an unknown operator, fails it only if its other conditions would answer otherwise. A condition on
a cohort that doesn't exist, or needs such a one, fails it where evaluation comes to it. A flag
whose rules aren't evaluated fails, and is off for those that depend on it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from graphlib import CycleError, TopologicalSorter
from typing import Final, TypeVar

from forwarder.sandbox.conditions.values import CannotDecide, json_text
from forwarder.sandbox.flags.definitions import (
    Cohort,
    CohortGroup,
    CohortMembership,
    Condition,
    ConditionSet,
    Flag,
    FlagDependency,
    FlagHoldout,
    ImpossibleCondition,
    OwnProperty,
    UndecidableCondition,
)
from forwarder.sandbox.flags.dependencies import find_dependencies
from forwarder.sandbox.flags.flag_rules import (
    EXPERIMENT_PAUSED,
    HOLDOUT,
    NO_RULE_MATCH,
    ROLLOUT_MISS,
    TARGETING_MATCH,
    FlagRuleOutcome,
    FlagRules,
    UnsupportedRules,
)
from forwarder.sandbox.flags.hashing import bucket

T = TypeVar("T")
MAX_CHAIN: Final = 50
"""How many cohorts may depend on each other in a row."""
_EMPTY: Final[Mapping[str, object]] = {}


@dataclass(frozen=True, slots=True)
class Definitions:
    """A project's flags by key, its cohorts by id, and its types of groups by index."""

    flags: Mapping[str, Flag]
    cohorts: Mapping[int, Cohort]
    group_types: Sequence[str]


@dataclass(frozen=True, slots=True)
class Subject:
    """For whom flags are evaluated."""

    distinct_id: str
    person_properties: Mapping[str, object] = field(default_factory=dict)
    groups: Mapping[str, object] = field(default_factory=dict)
    """Keys by type."""
    group_properties: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """By type, also of types without a key."""
    hash_keys: Mapping[str, str] = field(default_factory=dict)
    """What is hashed instead of the distinct id, by flag: for flags that persons keep when they
    are identified.
    """
    request_hash_key: str | None = None
    """The anonymous id of this request, which holdouts hash for such flags."""
    static_cohorts: frozenset[int] = frozenset()
    device_id: str | None = None
    """For flags that bucket by device."""
    person_metadata: Mapping[str, object] = field(default_factory=dict)
    """What the service records of the person: `created_at`."""


@dataclass(frozen=True, slots=True)
class FlagReason:
    """Why a flag is on or off: the service's code, the index of the condition set that decided,
    and the service's description.
    """

    code: str
    condition_index: int | None
    description: str


@dataclass(frozen=True, slots=True)
class ConditionResult:
    """Whether a condition set matched, and why, for people."""

    matched: bool
    why: str


@dataclass(frozen=True, slots=True)
class FlagResult:
    """What a person gets of a flag."""

    flag: Flag
    enabled: bool
    variant: str | None
    payload: str | None
    """JSON text."""
    reason: FlagReason
    explain: Callable[[], tuple[ConditionResult, ...]] = field(
        repr=False, compare=False, default=tuple
    )
    by_rules: FlagRuleOutcome | None = None
    """What its rules decided, if it has rules."""

    @property
    def value(self) -> object:
        """What rules give, of the flag's own type; else the variant, else whether it is on."""
        return self.switch if self.by_rules is None else self.by_rules.value

    @property
    def switch(self) -> bool | str:
        """The variant, else whether the flag is on: what other flags can depend on."""
        return self.variant if self.enabled and self.variant is not None else self.enabled

    @property
    def conditions(self) -> tuple[ConditionResult, ...]:
        """What each condition set says by itself, whichever decided. It is computed here."""
        return self.explain()


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The results by flag, and why others couldn't be computed."""

    results: dict[str, FlagResult]
    failed: dict[str, str]
    circular: frozenset[str] = frozenset()
    """The flags that aren't evaluated because they depend on themselves: of the whole project,
    whichever are requested. As for the service they are no part of an answer, but make it one
    with errors.
    """

    @property
    def has_errors(self) -> bool:
        """Whether some flag could not be computed."""
        return bool(self.failed or self.circular)


def evaluate(
    definitions: Definitions, subject: Subject, now: datetime, keys: Collection[str] | None = None
) -> Evaluation:
    """Evaluate the flags for a subject. `now`: in the project's zone; `keys`: only these flags, and
    those on which they depend. Deleted flags are left out.
    """
    dependencies = find_dependencies(definitions.flags)
    evaluator = _Evaluator(definitions, subject, now, dependencies.incomplete)
    chosen = dependencies.order if keys is None else dependencies.with_needed(keys)
    results = {
        key: evaluator.result(definitions.flags[key]) for key in dependencies.order if key in chosen
    }
    circular = [key for key in dependencies.circular if definitions.flags[key].active]
    evaluation = Evaluation({}, {}, frozenset(circular))
    for key in definitions.flags:
        result = results.get(key)
        if isinstance(result, FlagResult):
            evaluation.results[key] = result
        elif result is not None:
            evaluation.failed[key] = result.why
    return evaluation


@dataclass(frozen=True, slots=True)
class _Identity:
    """To whom a condition set applies: what is hashed, and the properties."""

    identifier: str
    properties: Mapping[str, object]
    """For conditions without a type: those of the group before those of the person."""


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What a condition set says. If none matches, the highest rank is the flag's reason, and of
    equal ones the last.
    """

    rank: int
    code: str
    description: str


_MATCH: Final = _Outcome(4, "condition_match", "")
_OUT_OF_ROLLOUT: Final = _Outcome(3, "out_of_rollout_bound", "Out of rollout bound")
_NO_MATCH: Final = _Outcome(2, "no_condition_match", "No matching condition set")
_NO_GROUP: Final = _Outcome(1, "no_group_type", "No group type")
_GROUPS_NOT_EVALUATED: Final = (
    "No matching condition set (group conditions were not evaluated because no group type was "
    "provided)"
)
_MISSING_DEPENDENCY: Final = FlagReason(
    "missing_dependency", None, "Flag cannot be evaluated due to missing dependency"
)
_OF_RULES: Final = {
    TARGETING_MATCH: ("condition_match", "Matched condition set {}"),
    ROLLOUT_MISS: ("out_of_rollout_bound", "Out of rollout bound"),
    EXPERIMENT_PAUSED: ("no_condition_match", "No matching condition set"),
    HOLDOUT: ("holdout_condition_value", "Holdout condition value"),
    NO_RULE_MATCH: ("no_condition_match", "No matching condition set"),
}
"""The code and the description that the older form has for what rules decide."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a flag would be if only one condition set decided."""

    enabled: bool
    variant: str | None


_NO_ANSWER: Final = _Answer(enabled=False, variant=None)


class _BrokenCohort(CannotDecide):
    """A cohort doesn't exist, or refers to itself: its flag fails, whatever else it says."""


class _UnsupportedFlag(CannotDecide):
    """A flag's rules aren't evaluated: it fails, and is off for the flags that depend on it."""


class _Evaluator:
    """One evaluation for a subject. What is known of flags, cohorts and groups is kept."""

    def __init__(
        self,
        definitions: Definitions,
        subject: Subject,
        now: datetime,
        incomplete: Collection[str],
    ) -> None:
        self._definitions = definitions
        self._subject = subject
        self._now = now
        self._incomplete = incomplete
        self._person: Mapping[str, object] = {
            "distinct_id": subject.distinct_id,
            **subject.person_properties,
        }
        self._person_identity: Final = _Identity(subject.distinct_id, self._person)
        self._groups: dict[int, _Identity | None] = {}
        self._of_groups: Final[Mapping[str, Mapping[str, object]]] = {
            **subject.group_properties,
            **{
                kind: {"$group_key": key, **subject.group_properties.get(kind, _EMPTY)}
                for kind, key in subject.groups.items()
            },
        }
        self._knows_groups: Final = _names_groups(subject)
        self._places: dict[tuple[str, str], float] = {}
        self._results: dict[str, FlagResult | CannotDecide] = {}
        self._keys = {flag.id: key for key, flag in definitions.flags.items() if flag.id}
        self._memberships: dict[int, bool | CannotDecide] = {}
        self._depth = 0

    def result(self, flag: Flag) -> FlagResult | CannotDecide:
        """The result of a flag, or why it fails. The flags on which it depends come before it."""
        result: FlagResult | CannotDecide
        try:
            result = self._decide(flag)
        except CannotDecide as error:
            result = error
        self._results[flag.key] = result
        return result

    def _decide(self, flag: Flag) -> FlagResult:
        if flag.key in self._incomplete and flag.active:
            return self._off_for(flag, _MISSING_DEPENDENCY)
        if not flag.active:
            return self._off(flag, "flag_disabled", None, "Feature flag is disabled")
        if isinstance(flag.rules, UnsupportedRules):
            raise _UnsupportedFlag(flag.rules.why)
        if flag.rules is not None:
            outcome = flag.rules.decide(self._subject.distinct_id, self._person, self._now)
            return self._by_rules(flag, outcome)
        enrolled = self._enrolled(flag)
        if enrolled is not None:
            reason = FlagReason("super_condition_value", 0, "Super condition value")
            # The service gives the payload also to those who opted out.
            return self._give(flag, _Answer(enrolled, None), reason, flag.payloads.get("true"))
        if flag.holdout is not None and self._held_out(flag, flag.holdout):
            return self._on(
                flag,
                flag.holdout.variant,
                FlagReason("holdout_condition_value", None, "Holdout condition value"),
            )
        return self._first_match(flag)

    def _by_rules(self, flag: Flag, outcome: FlagRuleOutcome) -> FlagResult:
        """What rules decide, in the older form: a text is a variant, and what else isn't true or
        false is a payload.
        """
        value = outcome.value
        code, description = _OF_RULES[outcome.code]
        result = self._give(
            flag,
            _Answer(
                value is not None and value is not False,
                value if isinstance(value, str) else None,
            ),
            FlagReason(code, outcome.index, description.format((outcome.index or 0) + 1)),
            None if isinstance(value, str | bool | None) else json_text(value),
        )
        return replace(result, by_rules=outcome)

    def _first_match(self, flag: Flag) -> FlagResult:
        """The result by the condition sets: of the first that matches, else off for the most
        telling reason of the others. Raise `CannotDecide` if it would be another if a condition
        matched that can't be computed.
        """
        doubts: list[tuple[CannotDecide, _Answer]] = []
        outcome = _NO_GROUP
        at = None
        without_group = False
        for index, condition_set in enumerate(flag.sets):
            latest, failure = self._outcome(flag, condition_set)
            ends = latest is _MATCH or (flag.early_exit and latest is _OUT_OF_ROLLOUT)
            answer = (
                _Answer(enabled=True, variant=self._variant(flag, condition_set))
                if latest is _MATCH
                else _NO_ANSWER
            )
            if ends and failure is not None:
                doubts.append((failure, answer))
                if latest is _MATCH:
                    continue
            elif ends:
                _settle(doubts, answer)
                if latest is _MATCH:
                    description = f"Matched condition set {index + 1}"
                    reason = FlagReason("condition_match", index, description)
                    return self._on(flag, answer.variant, reason)
                return self._off(flag, latest.code, index, latest.description)
            without_group = without_group or latest is _NO_GROUP
            if latest.rank >= outcome.rank:
                outcome = latest
                at = index
        _settle(doubts, _NO_ANSWER)
        skipped = outcome is _NO_MATCH and without_group
        description = _GROUPS_NOT_EVALUATED if skipped else outcome.description
        return self._off(flag, outcome.code, at, description)

    def _outcome(
        self, flag: Flag, condition_set: ConditionSet
    ) -> tuple[_Outcome, CannotDecide | None]:
        """What a condition set says; and, of one that may match or be out of the roll-out, what
        can't be computed, on which that depends.
        """
        aggregation = condition_set.aggregation
        identity = self._identity(flag, aggregation)
        if identity is None:
            return _NO_GROUP, None
        if aggregation is None and self._lacks_device(flag, condition_set):
            return _OUT_OF_ROLLOUT, None
        holds, failure = self._all_hold(condition_set, identity)
        if not holds:
            return _NO_MATCH, None
        rollout = condition_set.rollout
        included = rollout >= 100 or self._place(flag, identity) <= rollout / 100
        return (_MATCH if included else _OUT_OF_ROLLOUT), failure

    def _all_hold(
        self, condition_set: ConditionSet, identity: _Identity
    ) -> tuple[bool, CannotDecide | None]:
        """Whether no condition of a set fails to match, and why one of them can't be computed."""
        failure: CannotDecide | None = None
        now = self._now
        cohorts = []
        for condition in condition_set.conditions:
            if isinstance(condition, CohortMembership):
                cohorts.append(condition)
                continue
            try:
                # Most conditions are of this kind: one call less.
                if isinstance(condition, OwnProperty) and not (
                    condition.group or condition.metadata
                ):
                    properties = self._person if condition.typed else identity.properties
                    holds = condition.condition.matches(properties, now)
                else:
                    holds = self._holds(condition, identity, condition_set.aggregation)
            except CannotDecide as error:
                failure = failure or error
                continue
            if not holds:
                return False, None
        # As in the service cohorts come last: one that is broken only counts if all else matches.
        holds = True
        for cohort in cohorts:
            try:
                holds = self._holds(cohort, self._person_identity, None) and holds
            except _BrokenCohort:
                raise
            except CannotDecide as error:
                failure = failure or error
        return holds, failure

    def _lacks_device(self, flag: Flag, condition_set: ConditionSet) -> bool:
        """Whether a set depends on a hash of the device, and the request names none."""
        if not flag.by_device or self._subject.device_id:
            return False
        chosen = self._pinned(flag, condition_set) is None and flag.variants
        return condition_set.rollout < 100 or bool(chosen)

    def _place(self, flag: Flag, identity: _Identity) -> float:
        """Where the roll-outs of a flag see the identifier: an empty one is in all of them."""
        if not identity.identifier:
            return 0.0
        which = (flag.key, identity.identifier)
        place = self._places.get(which)
        if place is None:
            place = self._places[which] = bucket(*which)
        return place

    def _holds(self, condition: Condition, identity: _Identity, aggregation: int | None) -> bool:
        match condition:
            case OwnProperty():
                properties = self._properties(condition, identity, aggregation)
                return properties is not None and condition.condition.matches(properties, self._now)
            case CohortMembership():
                return self._member(condition.cohort) is condition.member
            case FlagDependency():
                return self._evaluates_to(condition)
            case ImpossibleCondition():
                return False
            case UndecidableCondition():
                raise CannotDecide(condition.why)

    def _properties(
        self, condition: OwnProperty, identity: _Identity, aggregation: int | None
    ) -> Mapping[str, object] | None:
        """The properties that a condition is about. Without a type, they are those of whom the
        condition set applies to. None: of a group, but of which of those in the request isn't
        known, so that not even the absence of a property matches.
        """
        if condition.metadata:
            return self._subject.person_metadata
        if not condition.group:
            return self._person if condition.typed else identity.properties
        index = aggregation if condition.group_type_index is None else condition.group_type_index
        if index is None:
            return identity.properties
        kind = self._group_type(index)
        if kind is None:
            return None if self._knows_groups else _EMPTY
        return self._of_groups.get(kind, _EMPTY)

    def _evaluates_to(self, condition: FlagDependency) -> bool:
        """Whether another flag has the expected value: true stands for any variant, and variants
        compare with their case. Raise `CannotDecide` if that flag failed.
        """
        if condition.expected is None:
            return False
        result = self._result_of(condition.flag)
        if isinstance(result, CannotDecide) and not isinstance(result, _UnsupportedFlag):
            raise result
        value = isinstance(result, FlagResult) and result.switch
        if isinstance(value, str) and isinstance(condition.expected, bool):
            return condition.expected
        return type(value) is type(condition.expected) and value == condition.expected

    def _result_of(self, name: str) -> FlagResult | CannotDecide | None:
        """The result of the flag with a key, or with an id; None if there is no such flag."""
        key = name if name in self._results else self._keys.get(name, "")
        return self._results.get(key)

    def _member(self, cohort_id: int) -> bool:
        """Whether the person is in a cohort, also where a condition set applies to a group. Raise
        `CannotDecide`.
        """
        cohort = self._definitions.cohorts.get(cohort_id)
        if cohort is None or cohort.deleted:
            raise _BrokenCohort(f"the cohort {cohort_id} is unknown")
        if cohort.is_static:
            return cohort_id in self._subject.static_cohorts
        if cohort.group is None:
            return False
        if cohort_id not in self._memberships:
            self._check_cohort(cohort_id)
            self._memberships[cohort_id] = self._try(partial(self._group_holds, cohort.group))
        known = self._memberships[cohort_id]
        if isinstance(known, CannotDecide):
            raise known
        return known

    def _check_cohort(self, cohort_id: int) -> None:
        """Raise `_BrokenCohort` if a cohort, directly or not, needs itself or one that doesn't
        exist: whatever its other conditions say (`DependencyGraph` in
        rust/feature-flags/src/utils/graph_utils.rs of PostHog/posthog).
        """
        needs: dict[int, Collection[int]] = {}
        todo = [cohort_id]
        while todo:
            number = todo.pop()
            if number not in needs and number not in self._memberships:
                cohort = self._definitions.cohorts.get(number)
                if cohort is None or cohort.deleted:
                    raise _BrokenCohort(f"the cohort {number} is unknown")
                needs[number] = cohort.needs
                todo.extend(cohort.needs)
        try:
            TopologicalSorter(needs).prepare()
        except CycleError as error:
            raise _BrokenCohort(f"the cohort {min(error.args[1])} refers to itself") from None

    def _try(self, compute: Callable[[], T]) -> T | CannotDecide:
        """What is computed, or why it can't be: also if too much depends on each other."""
        too_long = _BrokenCohort(f"more than {MAX_CHAIN} cohorts depend on each other in a row")
        if self._depth >= MAX_CHAIN:
            return too_long
        self._depth += 1
        try:
            return compute()
        except CannotDecide as error:
            return error
        except RecursionError:
            return too_long
        finally:
            self._depth -= 1

    def _group_holds(self, group: CohortGroup) -> bool:
        """Whether a group of conditions holds. One that can't be computed counts
        only if no other decides.
        """
        failure: CannotDecide | None = None
        for member, negated in group.members:
            try:
                if isinstance(member, CohortGroup):
                    holds = self._group_holds(member)
                else:
                    holds = self._holds(member, self._person_identity, None)
            except _BrokenCohort:
                raise
            except CannotDecide as error:
                failure = failure or error
                continue
            if (holds is not negated) is not group.every:
                return not group.every
        if failure is not None:
            raise failure
        return group.every

    def _enrolled(self, flag: Flag) -> bool | None:
        """Whether a person enrolled in the early access feature of a flag;
        None if they never decided.
        """
        if not flag.enrollment:
            return None
        value = self._person.get(f"$feature_enrollment/{flag.key}", _EMPTY)
        return None if value is _EMPTY else value is True or value == "true"

    def _held_out(self, flag: Flag, holdout: FlagHoldout) -> bool:
        """Whether the holdout includes the subject: the same ones for all flags. A kept
        identifier counts only if this request names it, and without a group the hash is of
        nothing.
        """
        subject = self._subject
        if flag.aggregation is not None:
            group = self._group(flag.aggregation)
            identifier = "" if group is None else group.identifier
        elif flag.by_device and subject.device_id:
            identifier = subject.device_id
        elif flag.continuity:
            identifier = subject.request_hash_key or subject.distinct_id
        else:
            identifier = subject.distinct_id
        return (
            holdout.percentage >= 100
            or bucket("holdout", identifier, separator="-") <= holdout.percentage / 100
        )

    def _variant(self, flag: Flag, matched: ConditionSet) -> str | None:
        """The variant: of the condition set, if the flag has it, else by the hash; None if the
        shares of variants leave the subject out.
        """
        pinned = self._pinned(flag, matched)
        if pinned is not None:
            return pinned
        identity = self._identity(flag, matched.aggregation) if flag.variants else None
        if identity is None:
            return None
        identifier = identity.identifier
        place = bucket(flag.key, identifier, "variant") if identifier else 0.0
        upper = 0.0
        for variant in flag.variants:
            upper += variant.rollout / 100
            if place < upper:
                return variant.key
        return None

    def _pinned(self, flag: Flag, condition_set: ConditionSet) -> str | None:
        """The variant that a condition set names, if the flag has it."""
        named = condition_set.variant
        known = named is not None and any(named == variant.key for variant in flag.variants)
        return named if known else None

    def _identity(self, flag: Flag, aggregation: int | None) -> _Identity | None:
        """To whom a condition set applies; None if the request names no such group."""
        if aggregation is not None:
            return self._group(aggregation)
        subject = self._subject
        identifier = subject.distinct_id
        if flag.continuity:
            identifier = subject.hash_keys.get(flag.key, identifier)
        if flag.by_device and subject.device_id:
            identifier = subject.device_id
        return (
            self._person_identity
            if identifier == subject.distinct_id
            else _Identity(identifier, self._person)
        )

    def _group(self, index: int) -> _Identity | None:
        if index not in self._groups:
            kind = self._group_type(index)
            key = None if kind is None else self._subject.groups.get(kind)
            if kind is None or not _names_group(key):
                self._groups[index] = None
            else:
                properties = {**self._person, **self._of_groups[kind]}
                self._groups[index] = _Identity(json_text(key), properties)
        return self._groups[index]

    def _group_type(self, index: int) -> str | None:
        types = self._definitions.group_types
        return types[index] if index < len(types) else None

    def _on(self, flag: Flag, variant: str | None, reason: FlagReason) -> FlagResult:
        answer = _Answer(enabled=True, variant=variant)
        return self._give(flag, answer, reason, flag.payloads.get(variant or "true"))

    def _off(self, flag: Flag, code: str, index: int | None, description: str) -> FlagResult:
        return self._off_for(flag, FlagReason(code, index, description))

    def _off_for(self, flag: Flag, reason: FlagReason) -> FlagResult:
        return self._give(flag, _NO_ANSWER, reason, None)

    def _give(
        self, flag: Flag, answer: _Answer, reason: FlagReason, payload: str | None
    ) -> FlagResult:
        explain = partial(self._explain, flag)
        return FlagResult(flag, answer.enabled, answer.variant, payload, reason, explain)

    def _explain(self, flag: Flag) -> tuple[ConditionResult, ...]:
        if isinstance(flag.rules, FlagRules):
            rules = flag.rules.explain(self._subject.distinct_id, self._person, self._now)
            return tuple([ConditionResult(*rule) for rule in rules])
        return tuple([self._explain_set(flag, one_set) for one_set in flag.sets])

    def _explain_set(self, flag: Flag, condition_set: ConditionSet) -> ConditionResult:
        identity = self._identity(flag, condition_set.aggregation)
        if identity is None:
            index = condition_set.aggregation or 0
            kind = self._group_type(index) or index
            return ConditionResult(
                False, f"it applies to a group of the type {kind}: no, the request has none"
            )
        if condition_set.aggregation is None and self._lacks_device(flag, condition_set):
            return ConditionResult(False, "it applies to a device: no, the request has none")
        parts = [
            self._explain_condition(condition, identity, condition_set.aggregation)
            for condition in condition_set.conditions
        ]
        if condition_set.rollout < 100:
            place = self._place(flag, identity) * 100
            answer = "yes" if place <= condition_set.rollout else "no"
            parts.append(
                f"roll-out to {condition_set.rollout:g}%: {answer}, {identity.identifier[:80]} is "
                f"at {place:.2f}%"
            )
        try:
            matched = self._outcome(flag, condition_set) == (_MATCH, None)
        except CannotDecide:
            matched = False
        return ConditionResult(matched, "; ".join(parts) or "it applies to everyone")

    def _explain_condition(
        self, condition: Condition, identity: _Identity, aggregation: int | None
    ) -> str:
        try:
            match condition:
                case OwnProperty():
                    properties = self._properties(condition, identity, aggregation)
                    if properties is None:
                        key = condition.condition.key[:80]
                        return f"{key} of a group: no, no type of groups has its index"
                    return condition.condition.explain(properties, self._now)
                case CohortMembership():
                    cohort = self._definitions.cohorts.get(condition.cohort)
                    name = f' "{cohort.name[:80]}"' if cohort is not None and cohort.name else ""
                    answer = "yes" if self._holds(condition, identity, aggregation) else "no"
                    return (
                        f"{'in' if condition.member else 'not in'} cohort "
                        f"{condition.cohort}{name}: {answer}"
                    )
                case FlagDependency():
                    holds = self._evaluates_to(condition)
                    result = self._result_of(condition.flag)
                    value = (
                        json.dumps(result.switch) if isinstance(result, FlagResult) else "unknown"
                    )
                    return (
                        f"flag {condition.flag} is {json.dumps(condition.expected)}: "
                        f"{'yes' if holds else 'no'}, it is {value}"
                    )
                case ImpossibleCondition():
                    return f"matches no one: {condition.why}"
                case UndecidableCondition():
                    return f"can't be computed: {condition.why}"
        except CannotDecide as error:
            return f"can't be computed: {error.why}"


def _names_groups(subject: Subject) -> bool:
    """Whether a request names groups, or tells properties of some."""
    return any(map(_names_group, subject.groups.values())) or any(
        name != "$group_key" or _names_group(value)
        for properties in subject.group_properties.values()
        for name, value in properties.items()
    )


def _names_group(key: object) -> bool:
    """Whether this can be a group's key."""
    return isinstance(key, str | int | float) and not isinstance(key, bool) and key != ""


def _settle(doubts: Sequence[tuple[CannotDecide, _Answer]], answer: _Answer) -> None:
    """Raise `CannotDecide` if a flag would be another if a condition matched that can't be
    computed.
    """
    for failure, other in doubts:
        if other != answer:
            raise failure
