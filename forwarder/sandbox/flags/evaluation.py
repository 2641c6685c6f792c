"""Evaluation of a project's flags for a person, with the reasons: pure, without database and HTTP.

The rules (wire facts: Flags), in the order in which they decide: a flag that is not active is off;
enrollment in an early access feature; the holdout; then the condition sets in order, of which the
first that matches decides. A set applies to the person, or to one of the groups that the request
names, and matches when each of its conditions does and the share of its roll-out includes the
identifier. Both shares, of roll-outs and variants, follow from a hash of the flag's key and the
identifier alone.

A condition that can't be computed fails its flag only if no other condition
decides, as in the SDKs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Final, TypeVar

from forwarder.sandbox.conditions.values import CannotDecide
from forwarder.sandbox.flags.definitions import (
    Cohort,
    CohortGroup,
    CohortMembership,
    Condition,
    ConditionSet,
    Flag,
    FlagDependency,
    FlagHoldout,
    OwnProperty,
    UndecidableCondition,
)

T = TypeVar("T")
MAX_CHAIN: Final = 50
"""How many flags and cohorts may depend on each other in a row."""
_SCALE: Final = float(0xFFFFFFFFFFFFFFF)
_TOO_LONG: Final = CannotDecide(
    f"more than {MAX_CHAIN} flags and cohorts depend on each other in a row"
)
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
    """By type."""
    hash_keys: Mapping[str, str] = field(default_factory=dict)
    """What is hashed instead of the distinct id, by flag: for flags that persons keep when they
    are identified.
    """
    static_cohorts: frozenset[int] = frozenset()
    device_id: str | None = None
    """For flags that bucket by device."""


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

    @property
    def value(self) -> bool | str:
        """The variant, else whether the flag is on."""
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


def evaluate(
    definitions: Definitions, subject: Subject, now: datetime, keys: Collection[str] | None = None
) -> Evaluation:
    """Evaluate the flags for a subject. `now`: with a zone; `keys`: only these flags. Deleted
    flags are left out.
    """
    evaluator = _Evaluator(definitions, subject, now)
    evaluation = Evaluation({}, {})
    for key, flag in definitions.flags.items():
        if flag.deleted or (keys is not None and key not in keys):
            continue
        try:
            evaluation.results[key] = evaluator.result(flag)
        except CannotDecide as error:
            evaluation.failed[key] = error.why
    return evaluation


def bucket(key: str, identifier: str, salt: str = "", separator: str = ".") -> float:
    """Where an identifier stands for a flag, from 0 to 1: the first 15
    hexadecimal digits of a SHA-1.
    """
    digest = hashlib.sha1(
        f"{key}{separator}{identifier}{salt}".encode(errors="surrogatepass"), usedforsecurity=False
    ).digest()
    return (int.from_bytes(digest[:8]) >> 4) / _SCALE


@dataclass(frozen=True, slots=True)
class _Identity:
    """To whom a condition set applies: what is hashed, and the properties."""

    identifier: str
    properties: Mapping[str, object]
    """Those of the group before those of the person, as the SDKs see a group alone."""
    own: Mapping[str, object]
    """Those of the group or the person alone."""


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
_MISSING_DEPENDENCY: Final = "missing_dependency"
_NO_CONDITIONS: Final = _Outcome(0, "no_condition_match", "No matching condition set")


class _MissingDependency(CannotDecide):
    """A condition names a flag that isn't there: if no other condition decides, its flag is off."""


class _Evaluator:
    """One evaluation for a subject. What is known of flags, cohorts and groups is kept."""

    def __init__(self, definitions: Definitions, subject: Subject, now: datetime) -> None:
        self._definitions = definitions
        self._subject = subject
        self._now = now
        self._person: Mapping[str, object] = {
            "distinct_id": subject.distinct_id,
            **subject.person_properties,
        }
        self._person_identity: Final = _Identity(subject.distinct_id, self._person, self._person)
        self._groups: dict[int, _Identity | None] = {}
        self._places: dict[tuple[str, str], float] = {}
        self._results: dict[str, FlagResult | CannotDecide | None] = {}
        """None: it is being evaluated."""
        self._memberships: dict[tuple[int, int | None], bool | CannotDecide | None] = {}
        self._depth = 0

    def result(self, flag: Flag) -> FlagResult:
        """The result of a flag. Raise `CannotDecide`."""
        if flag.key not in self._results:
            self._results[flag.key] = None
            self._results[flag.key] = self._try(partial(self._decide, flag))
        known = self._results[flag.key]
        if isinstance(known, FlagResult):
            return known
        raise CannotDecide(f"the flag {flag.key} depends on itself" if known is None else known.why)

    def _try(self, compute: Callable[[], T]) -> T | CannotDecide:
        """What is computed, or why it can't be: also if too much depends on each other."""
        if self._depth >= MAX_CHAIN:
            return _TOO_LONG
        self._depth += 1
        try:
            return compute()
        except CannotDecide as error:
            return error
        except RecursionError:
            return _TOO_LONG
        finally:
            self._depth -= 1

    def _decide(self, flag: Flag) -> FlagResult:
        if not flag.active:
            return self._off(flag, "flag_disabled", None, "Feature flag is disabled")
        enrolled = self._enrolled(flag)
        if enrolled is not None:
            reason = FlagReason("super_condition_value", 0, "Super condition value")
            return (
                self._on(flag, None, reason)
                if enrolled
                else self._off(flag, reason.code, 0, reason.description)
            )
        if flag.holdout is not None and self._held_out(flag, flag.holdout):
            return self._on(
                flag,
                flag.holdout.variant,
                FlagReason("holdout_condition_value", None, "Holdout condition value"),
            )
        return self._first_match(flag)

    def _first_match(self, flag: Flag) -> FlagResult:
        """The result by the condition sets: of the first that matches, else off for the most
        telling reason of the others.
        """
        failure: CannotDecide | None = None
        outcome = _NO_CONDITIONS
        at = None
        for index, each in enumerate(flag.sets):
            try:
                latest = self._outcome(flag, each)
            except CannotDecide as error:
                failure = failure or error
                continue
            if latest is _MATCH:
                reason = FlagReason("condition_match", index, f"Matched condition set {index + 1}")
                return self._on(flag, self._variant(flag, each), reason)
            if latest.rank >= outcome.rank:
                outcome = latest
                at = index
            if flag.early_exit and latest is _OUT_OF_ROLLOUT:
                break
        if isinstance(failure, _MissingDependency):
            return self._off(
                flag,
                _MISSING_DEPENDENCY,
                None,
                "Flag cannot be evaluated due to missing dependency",
            )
        if failure is not None:
            raise failure
        return self._off(flag, outcome.code, at, outcome.description)

    def _outcome(self, flag: Flag, condition_set: ConditionSet) -> _Outcome:
        """What a condition set says. A condition that can't be computed counts
        only if all others match.
        """
        identity = self._identity(flag, condition_set.aggregation)
        if identity is None:
            return _NO_GROUP if condition_set.aggregation is not None else _OUT_OF_ROLLOUT
        failure: CannotDecide | None = None
        properties = identity.properties
        now = self._now
        for condition in condition_set.conditions:
            try:
                # Most conditions are of this kind: one call less.
                if isinstance(condition, OwnProperty) and not condition.group:
                    holds = condition.condition.matches(properties, now)
                else:
                    holds = self._holds(condition, identity, condition_set.aggregation)
                if not holds:
                    return _NO_MATCH
            except CannotDecide as error:
                failure = failure or error
        if failure is not None:
            raise failure
        included = (
            condition_set.rollout >= 100
            or self._place(flag, identity) <= condition_set.rollout / 100
        )
        return _MATCH if included else _OUT_OF_ROLLOUT

    def _place(self, flag: Flag, identity: _Identity) -> float:
        """Where the roll-outs of a flag see the identifier."""
        which = (flag.key, identity.identifier)
        place = self._places.get(which)
        if place is None:
            place = self._places[which] = bucket(*which)
        return place

    def _holds(self, condition: Condition, identity: _Identity, aggregation: int | None) -> bool:
        match condition:
            case OwnProperty():
                return condition.condition.matches(
                    self._properties(condition, identity, aggregation), self._now
                )
            case CohortMembership():
                return self._member(condition.cohort, identity, aggregation) is condition.member
            case FlagDependency():
                return self._evaluates_to(condition)
            case UndecidableCondition():
                raise CannotDecide(condition.why)

    def _properties(
        self, condition: OwnProperty, identity: _Identity, aggregation: int | None
    ) -> Mapping[str, object]:
        """The properties that a condition is about. Without a type, they are those of whom the
        condition set applies to.
        """
        if not condition.group:
            return identity.properties
        index = aggregation if condition.group_type_index is None else condition.group_type_index
        if index is None:
            return identity.properties
        group = self._group(index)
        return _EMPTY if group is None else group.own

    def _evaluates_to(self, condition: FlagDependency) -> bool:
        """Whether another flag has the expected value: true stands for any variant, and variants
        compare with their case.
        """
        flag = self._flag(condition.flag)
        if flag is None:
            raise _MissingDependency(f"the flag {condition.flag} is unknown")
        result = self.result(flag)
        if result.reason.code == _MISSING_DEPENDENCY:
            raise _MissingDependency(f"the flag {condition.flag} depends on an unknown flag")
        value = result.value
        if isinstance(value, str) and isinstance(condition.expected, bool):
            return condition.expected
        return (
            condition.expected is not None
            and type(value) is type(condition.expected)
            and value == condition.expected
        )

    def _flag(self, key: str) -> Flag | None:
        """The flag with a key, or with an id."""
        flag = self._definitions.flags.get(key)
        if flag is None and key.isdecimal():
            flag = next((each for each in self._definitions.flags.values() if each.id == key), None)
        return None if flag is None or flag.deleted else flag

    def _member(self, cohort_id: int, identity: _Identity, aggregation: int | None) -> bool:
        """Whether the subject is in a cohort. Raise `CannotDecide`."""
        cohort = self._definitions.cohorts.get(cohort_id)
        if cohort is None or cohort.deleted:
            raise CannotDecide(f"the cohort {cohort_id} is unknown")
        if cohort.is_static:
            return cohort_id in self._subject.static_cohorts
        if cohort.group is None:
            return False
        which = (cohort_id, aggregation)
        if which not in self._memberships:
            self._memberships[which] = None
            self._memberships[which] = self._try(
                partial(self._group_holds, cohort.group, identity, aggregation)
            )
        known = self._memberships[which]
        if isinstance(known, bool):
            return known
        raise CannotDecide(
            f"the cohort {cohort_id} refers to itself" if known is None else known.why
        )

    def _group_holds(
        self, group: CohortGroup, identity: _Identity, aggregation: int | None
    ) -> bool:
        """Whether a group of conditions holds. One that can't be computed counts
        only if no other decides.
        """
        failure: CannotDecide | None = None
        for member, negated in group.members:
            try:
                if isinstance(member, CohortGroup):
                    holds = self._group_holds(member, identity, aggregation)
                else:
                    holds = self._holds(member, identity, aggregation)
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
        if flag.enrollment:
            value = self._person.get(f"$feature_enrollment/{flag.key}", _EMPTY)
            return None if value is _EMPTY else value is True or value == "true"
        if flag.super_set is None:
            return None
        keys = [
            condition.condition.key
            for condition in flag.super_set.conditions
            if isinstance(condition, OwnProperty)
        ]
        return (
            self._outcome(flag, flag.super_set) is _MATCH
            if any(key in self._person for key in keys)
            else None
        )

    def _held_out(self, flag: Flag, holdout: FlagHoldout) -> bool:
        """Whether the holdout includes the subject: the same ones for all flags."""
        identity = self._identity(flag, flag.aggregation)
        if identity is None:
            return False
        return (
            holdout.percentage >= 100
            or bucket("holdout", identity.identifier, separator="-") <= holdout.percentage / 100
        )

    def _variant(self, flag: Flag, matched: ConditionSet) -> str | None:
        """The variant: of the condition set, if the flag has it, else by the hash; None if the
        shares of variants leave the subject out.
        """
        if matched.variant is not None and any(
            matched.variant == variant.key for variant in flag.variants
        ):
            return matched.variant
        identity = self._identity(flag, matched.aggregation) if flag.variants else None
        if identity is None:
            return None
        place = bucket(flag.key, identity.identifier, "variant")
        upper = 0.0
        for variant in flag.variants:
            upper += variant.rollout / 100
            if place < upper:
                return variant.key
        return None

    def _identity(self, flag: Flag, aggregation: int | None) -> _Identity | None:
        """To whom a condition set applies; None if the request names no such group, or no device
        that the flag requires.
        """
        if aggregation is not None:
            return self._group(aggregation)
        subject = self._subject
        identifier = (
            subject.device_id
            if flag.by_device
            else subject.hash_keys.get(flag.key, subject.distinct_id)
        )
        if not identifier:
            return None
        return (
            self._person_identity
            if identifier == subject.distinct_id
            else _Identity(identifier, self._person, self._person)
        )

    def _group(self, index: int) -> _Identity | None:
        if index not in self._groups:
            types = self._definitions.group_types
            kind = types[index] if index < len(types) else None
            key = None if kind is None else self._subject.groups.get(kind)
            if (
                kind is None
                or isinstance(key, bool)
                or not isinstance(key, str | int | float)
                or key == ""
            ):
                self._groups[index] = None
            else:
                own = {"$group_key": key, **self._subject.group_properties.get(kind, _EMPTY)}
                self._groups[index] = _Identity(str(key), {**self._person, **own}, own)
        return self._groups[index]

    def _on(self, flag: Flag, variant: str | None, reason: FlagReason) -> FlagResult:
        return FlagResult(
            flag,
            True,
            variant,
            flag.payloads.get(variant or "true"),
            reason,
            partial(self._explain, flag),
        )

    def _off(self, flag: Flag, code: str, index: int | None, description: str) -> FlagResult:
        return FlagResult(
            flag,
            False,
            None,
            None,
            FlagReason(code, index, description),
            partial(self._explain, flag),
        )

    def _explain(self, flag: Flag) -> tuple[ConditionResult, ...]:
        return tuple([self._explain_set(flag, each) for each in flag.sets])

    def _explain_set(self, flag: Flag, condition_set: ConditionSet) -> ConditionResult:
        identity = self._identity(flag, condition_set.aggregation)
        if identity is None:
            index = condition_set.aggregation
            types = self._definitions.group_types
            kind = (
                "a device"
                if index is None
                else f"a group of the type {types[index] if index < len(types) else index}"
            )
            return ConditionResult(False, f"it applies to {kind}: no, the request has none")
        parts = [
            self._explain_condition(each, identity, condition_set.aggregation)
            for each in condition_set.conditions
        ]
        if condition_set.rollout < 100:
            place = self._place(flag, identity) * 100
            answer = "yes" if place <= condition_set.rollout else "no"
            parts.append(
                f"roll-out to {condition_set.rollout:g}%: {answer}, {identity.identifier[:80]} is "
                f"at {place:.2f}%"
            )
        try:
            matched = self._outcome(flag, condition_set) is _MATCH
        except CannotDecide:
            matched = False
        return ConditionResult(matched, "; ".join(parts) or "it applies to everyone")

    def _explain_condition(
        self, condition: Condition, identity: _Identity, aggregation: int | None
    ) -> str:
        try:
            match condition:
                case OwnProperty():
                    return condition.condition.explain(
                        self._properties(condition, identity, aggregation), self._now
                    )
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
                    flag = self._flag(condition.flag)
                    value = json.dumps(self.result(flag).value) if flag is not None else "unknown"
                    return (
                        f"flag {condition.flag} is {json.dumps(condition.expected)}: "
                        f"{'yes' if holds else 'no'}, it is {value}"
                    )
                case UndecidableCondition():
                    return f"can't be computed: {condition.why}"
        except CannotDecide as error:
            return f"can't be computed: {error.why}"
