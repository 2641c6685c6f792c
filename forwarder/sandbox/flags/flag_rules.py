"""Rules: the filters of a flag whose `version` is 2, and what they decide for a person.

    {"version": 2, "return_type": "boolean" | "string" | "number" | "object",
     "default_value": VALUE | null, "rules": [RULE]}

A RULE has `id` (a UUID), `rule_type`, `targeting: {properties: [CONDITION]}`, and by its type
- `targeted_release`: `value`;
- `percentage_rollout`: `value`, `rollout_percentage`, `on_rollout_miss` (`continue` or
  `return_default`), `seed`, `assignment_algorithm` (`sha1_60_v1`);
- `experiment`: `experiment_id: null`, `paused`, `variants: [{key, weight, value}]`, maybe `holdout:
  {id: null, seed, exclusion_percentage}`, and what a roll-out has, but for `value`.

The first rule whose conditions all match decides, unless a roll-out goes on to the next one. What
is hashed is the person's distinct id with the rule's seed, never a device or an earlier id, and an
empty id is in no roll-out. A condition whose value makes no sense fails the flag.

The source of these rules: rust/feature-flags/src/flags/config_v2.rs, config_v2/properties.rs and
evaluate_v2.rs in PostHog/posthog, commits 0da8f8c35ac1 and 3cd0b63a2784. As there, rules about
groups, cohorts and other flags, and those of an experiment with a row of its own, are known, but
not evaluated: their flag fails. So does one of a version that isn't known.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

from forwarder.sandbox.conditions.matching import PropertyCondition, is_regex, prepare_condition
from forwarder.sandbox.conditions.values import CannotDecide, number_of, shown, time_of
from forwarder.sandbox.conditions.versions import version_of
from forwarder.sandbox.flags.hashing import bucket

TARGETING_MATCH: Final = "targeting_match"
ROLLOUT_MISS: Final = "rollout_miss"
EXPERIMENT_PAUSED: Final = "experiment_paused"
HOLDOUT: Final = "holdout"
NO_RULE_MATCH: Final = "no_rule_match"
_DESCRIPTIONS: Final = {
    TARGETING_MATCH: "Matched rule {}",
    ROLLOUT_MISS: "Rule {} rollout miss",
    EXPERIMENT_PAUSED: "Rule {} is paused",
    HOLDOUT: "Rule {} holdout",
    NO_RULE_MATCH: "No rule matched",
}
MAX_RULES: Final = 100
MAX_CONDITIONS: Final = 100
"""Of one rule."""
_LONGEST_SEED: Final = 400
_DEEPEST_VALUE: Final = 20
_VARIANTS: Final = range(2, 21)
_SAFE_INTEGER: Final = 9_007_199_254_740_991
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_VARIANT_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")
_VERSION_NUMBERS: Final = re.compile(r"\s*\+?[0-9]+\s*")

_ALL_FIELDS: Final = frozenset(
    ("version", "return_type", "default_value", "rules", "aggregation_group_type_index")
)
_RULE: Final = frozenset(("id", "rule_type", "targeting", "description", "metadata"))
_ROLLOUT: Final = frozenset(
    ("rollout_percentage", "on_rollout_miss", "assignment_algorithm", "seed", "assign_by")
)
_RULE_FIELDS: Final[Mapping[str, frozenset[str]]] = {
    "targeted_release": _RULE | {"value"},
    "percentage_rollout": _RULE | _ROLLOUT | {"value"},
    "experiment": _RULE | _ROLLOUT | {"experiment_id", "paused", "variants", "holdout"},
}
_PROPERTY_FIELDS: Final = frozenset(
    (
        "key",
        "type",
        "value",
        "operator",
        "negation",
        "group_type_index",
        "cohort_name",
        "group_key_names",
        "label",
    )
)
_UNARY: Final = frozenset(("exact", "is_not", "is_set", "is_not_set"))
"""Operators that need no value."""
_NUMERIC: Final = frozenset(("gt", "gte", "lt", "lte"))
_TEXTUAL: Final = frozenset(
    (
        "regex",
        "not_regex",
        "icontains",
        "not_icontains",
        "starts_with",
        "not_starts_with",
        "ends_with",
        "not_ends_with",
    )
)
_LISTS: Final = frozenset(("icontains_multi", "not_icontains_multi"))


class InvalidRules(Exception):
    """Rules haven't the service's form. `path`: where in the filters; `what`: what is wrong."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(f"{path}: {what}")
        self.path: Final = path
        self.what: Final = what


class _Unsupported(Exception):
    """Rules that the service reads, but doesn't evaluate."""


@dataclass(frozen=True, slots=True)
class UnsupportedRules:
    """Filters that fail their flag."""

    why: str


@dataclass(frozen=True, slots=True)
class RuleVariant:
    """A variant of an experiment, its share in percent, and the value that it stands for."""

    key: str
    weight: float
    value: object


@dataclass(frozen=True, slots=True)
class RuleRollout:
    """The share of persons that a rule includes."""

    percentage: float
    seed: str
    ends: bool
    """Whether those who are left out get the default; else the following rules decide."""


@dataclass(frozen=True, slots=True)
class RuleExperiment:
    """What an experiment adds to a roll-out."""

    paused: bool
    variants: tuple[RuleVariant, ...]
    holdout: RuleRollout | None


@dataclass(frozen=True, slots=True)
class RuleCondition:
    """A condition on a property of the person."""

    condition: PropertyCondition
    negated: bool

    def matches(self, properties: Mapping[str, object], now: datetime) -> bool:
        """Whether the properties match. Raise `CannotDecide` if a value makes no sense."""
        condition = self.condition
        if condition.operator in ("regex", "not_regex") and not is_regex(str(condition.value)):
            raise CannotDecide(f"{shown(condition.value)} is not a regular expression")
        if condition.operator in _NUMERIC and condition.key in properties:
            for value in (condition.value, properties[condition.key]):
                if number_of(value) is None:
                    raise CannotDecide(f"{condition.key}: {shown(value)} is not a number")
        return condition.matches(properties, now) is not self.negated


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule."""

    id: str
    kind: str
    """Its `rule_type`."""
    conditions: tuple[RuleCondition, ...]
    value: object
    """What it gives; of an experiment the variants do."""
    rollout: RuleRollout | None
    """None: it includes everyone."""
    experiment: RuleExperiment | None


@dataclass(frozen=True, slots=True)
class FlagRules:
    """All rules of a flag."""

    default: object
    """What a person gets whom no rule includes. None: nothing."""
    rules: tuple[Rule, ...]

    def decide(
        self, distinct_id: str, properties: Mapping[str, object], now: datetime
    ) -> FlagRuleOutcome:
        """What a person gets. Raise `CannotDecide`."""
        for index, rule in enumerate(self.rules):
            if not all(condition.matches(properties, now) for condition in rule.conditions):
                continue
            code, value = _outcome(rule, distinct_id)
            if code == TARGETING_MATCH:
                return FlagRuleOutcome(code, index, rule, value)
            if code != ROLLOUT_MISS or (rule.rollout is not None and rule.rollout.ends):
                return FlagRuleOutcome(code, index, rule, self.default)
        return FlagRuleOutcome(NO_RULE_MATCH, None, None, self.default)

    def explain(
        self, distinct_id: str, properties: Mapping[str, object], now: datetime
    ) -> list[tuple[bool, str]]:
        """Of each rule by itself, whether it includes a person, and why."""
        return [_explain(rule, distinct_id, properties, now) for rule in self.rules]


@dataclass(frozen=True, slots=True)
class FlagRuleOutcome:
    """What rules decide, by the service's codes for them."""

    code: str
    index: int | None
    rule: Rule | None
    """The rule that decided, and its index."""
    value: object
    """None: nothing."""

    @property
    def description(self) -> str:
        """The service's description."""
        return _DESCRIPTIONS[self.code].format((self.index or 0) + 1)


def _outcome(rule: Rule, identifier: str) -> tuple[str, object]:
    """What a rule whose conditions match says: a code, and the value if it is a match."""
    experiment = rule.experiment
    if experiment is not None and experiment.paused:
        return EXPERIMENT_PAUSED, None
    holdout = None if experiment is None else experiment.holdout
    if holdout is not None and _includes(holdout, identifier, separator=""):
        return HOLDOUT, None
    if rule.rollout is None:
        return TARGETING_MATCH, rule.value
    if not _includes(rule.rollout, identifier):
        return ROLLOUT_MISS, None
    if experiment is None:
        return TARGETING_MATCH, rule.value
    return TARGETING_MATCH, _chosen(experiment, rule.rollout.seed, identifier).value


def _includes(share: RuleRollout, identifier: str, separator: str = ".") -> bool:
    return identifier != "" and (
        share.percentage == 100
        or bucket(share.seed, identifier, separator=separator) <= share.percentage / 100
    )


def _chosen(experiment: RuleExperiment, seed: str, identifier: str) -> RuleVariant:
    """The variant by the hash; the last one for what rounding leaves over."""
    place = bucket(seed, identifier, "variant")
    upper = 0.0
    for variant in experiment.variants:
        upper += variant.weight / 100
        if place < upper:
            return variant
    return experiment.variants[-1]


def _explain(
    rule: Rule, identifier: str, properties: Mapping[str, object], now: datetime
) -> tuple[bool, str]:
    parts = []
    matched = True
    for condition in rule.conditions:
        try:
            holds = condition.matches(properties, now)
        except CannotDecide as error:
            return False, f"can't be computed: {error.why}"
        matched = matched and holds
        why = condition.condition.explain(properties, now)
        parts.append(f"not ({why})" if condition.negated else why)
    if rule.rollout is not None and rule.rollout.percentage < 100:
        place = bucket(rule.rollout.seed, identifier) * 100
        parts.append(
            f"roll-out to {rule.rollout.percentage:g}%: {identifier[:80]} is at {place:.2f}%"
        )
    matched = matched and _outcome(rule, identifier)[0] == TARGETING_MATCH
    return matched, "; ".join(parts) or "it applies to everyone"


def parse_rules(document: Mapping[str, Any]) -> FlagRules | UnsupportedRules:
    """Validate and prepare filters of another version than 1. Raise `InvalidRules`."""
    version = document["version"]
    if isinstance(version, bool) or version != 2:
        return UnsupportedRules(f"filters of version {shown(version)} are unknown")
    _closed(document, _ALL_FIELDS, "")
    kind = document.get("return_type")
    accepts = _RETURN_TYPES.get(kind) if isinstance(kind, str) else None
    if accepts is None:
        raise InvalidRules("return_type", f"must be one of {', '.join(_RETURN_TYPES)}")
    default = _required(document, "default_value", "")
    if default is not None and not accepts(default):
        raise InvalidRules("default_value", "must be null or a value of return_type")
    if "aggregation_group_type_index" in document:
        if not _is_integer(document["aggregation_group_type_index"]):
            raise InvalidRules("aggregation_group_type_index", "must be an index")
        return UnsupportedRules("rules about groups are not evaluated")
    rules = _objects(document, "rules", "", MAX_RULES)
    try:
        parsed = tuple([_rule(rule, f"rules[{at}]", accepts) for at, rule in enumerate(rules)])
    except _Unsupported as unsupported:
        return UnsupportedRules(str(unsupported))
    if len({rule.id.lower() for rule in parsed}) < len(parsed):
        raise InvalidRules("rules", "two rules have the same id")
    return FlagRules(default, parsed)


_Accepts = Callable[[object], bool]


def _rule(rule: Mapping[str, Any], path: str, accepts: _Accepts) -> Rule:
    kind = rule.get("rule_type")
    fields = _RULE_FIELDS.get(kind) if isinstance(kind, str) else None
    if not isinstance(kind, str) or fields is None:
        raise InvalidRules(f"{path}.rule_type", f"must be one of {', '.join(_RULE_FIELDS)}")
    if kind == "experiment" and _is_integer(rule.get("experiment_id")):
        raise _Unsupported("rules of an experiment with a row of its own are not evaluated")
    _closed(rule, fields, path)
    number = _required(rule, "id", path)
    if not isinstance(number, str) or not _UUID.fullmatch(number):
        raise InvalidRules(f"{path}.id", "must be a UUID")
    for name, kinds in (("description", str), ("metadata", dict)):
        if name in rule and not isinstance(rule[name], kinds):
            raise InvalidRules(
                f"{path}.{name}", f"must be {'a text' if kinds is str else 'an object'}"
            )
    conditions = _targeting(rule, path)
    value = None if kind == "experiment" else _value(rule, path, accepts)
    rollout = None if kind == "targeted_release" else _rollout(rule, path)
    experiment = _experiment(rule, path, accepts) if kind == "experiment" else None
    return Rule(number, kind, conditions, value, rollout, experiment)


def _value(parent: Mapping[str, Any], path: str, accepts: _Accepts) -> object:
    value: object = _required(parent, "value", path)
    if not accepts(value):
        raise InvalidRules(f"{path}.value", "must be a value of return_type")
    return value


def _rollout(rule: Mapping[str, Any], path: str) -> RuleRollout:
    if _required(rule, "assignment_algorithm", path) != "sha1_60_v1":
        raise InvalidRules(f"{path}.assignment_algorithm", "must be sha1_60_v1")
    if rule.get("assign_by", "person") != "person":
        raise InvalidRules(f"{path}.assign_by", "must be person")
    miss = _required(rule, "on_rollout_miss", path)
    if miss not in ("continue", "return_default"):
        raise InvalidRules(f"{path}.on_rollout_miss", "must be continue or return_default")
    share = _percentage(rule, "rollout_percentage", path)
    return RuleRollout(share, _seed(rule, path), miss == "return_default")


def _seed(parent: Mapping[str, Any], path: str) -> str:
    seed = _required(parent, "seed", path)
    if not isinstance(seed, str) or not 0 < len(seed) <= _LONGEST_SEED:
        raise InvalidRules(f"{path}.seed", f"must be a text of 1 to {_LONGEST_SEED} characters")
    return seed


def _experiment(rule: Mapping[str, Any], path: str, accepts: _Accepts) -> RuleExperiment:
    if _required(rule, "experiment_id", path) is not None:
        raise InvalidRules(f"{path}.experiment_id", "must be null or a number")
    paused = _required(rule, "paused", path)
    if not isinstance(paused, bool):
        raise InvalidRules(f"{path}.paused", "must be true or false")
    holdout = _holdout(rule["holdout"], f"{path}.holdout") if "holdout" in rule else None
    return RuleExperiment(paused, _variants(rule, path, accepts), holdout)


def _holdout(holdout: object, path: str) -> RuleRollout:
    if not isinstance(holdout, dict):
        raise InvalidRules(path, "must be an object")
    _closed(holdout, frozenset(("id", "seed", "exclusion_percentage")), path)
    if _required(holdout, "id", path) is not None:
        raise InvalidRules(f"{path}.id", "must be null")
    share = _percentage(holdout, "exclusion_percentage", path)
    return RuleRollout(share, _seed(holdout, path), ends=True)


def _variants(rule: Mapping[str, Any], path: str, accepts: _Accepts) -> tuple[RuleVariant, ...]:
    here = f"{path}.variants"
    variants = []
    for at, entry in enumerate(_objects(rule, "variants", path, max(_VARIANTS))):
        at_path = f"{here}[{at}]"
        _closed(entry, frozenset(("key", "weight", "value")), at_path)
        key = _required(entry, "key", at_path)
        if not isinstance(key, str) or not _VARIANT_KEY.fullmatch(key):
            raise InvalidRules(f"{at_path}.key", "must be letters, digits, _ and -")
        weight = _percentage(entry, "weight", at_path)
        variants.append(RuleVariant(key, weight, _value(entry, at_path, accepts)))
    if len(variants) not in _VARIANTS or len({variant.key for variant in variants}) < len(variants):
        raise InvalidRules(here, "must be 2 to 20 variants with keys of their own")
    if sum(round(variant.weight * 100) for variant in variants) != 10_000:
        raise InvalidRules(here, "must have weights whose sum is 100")
    return tuple(variants)


def _targeting(rule: Mapping[str, Any], path: str) -> tuple[RuleCondition, ...]:
    targeting = _required(rule, "targeting", path)
    here = f"{path}.targeting"
    if not isinstance(targeting, dict):
        raise InvalidRules(here, "must be an object")
    _closed(targeting, frozenset(("properties",)), here)
    properties = _objects(targeting, "properties", here, MAX_CONDITIONS)
    return tuple(
        [_condition(entry, f"{here}.properties[{at}]") for at, entry in enumerate(properties)]
    )


def _condition(condition: Mapping[str, Any], path: str) -> RuleCondition:
    _closed(condition, _PROPERTY_FIELDS, path)
    kind = _required(condition, "type", path)
    if kind in ("cohort", "group", "flag"):
        raise _Unsupported(f"rules about a {kind} are not evaluated")
    if kind != "person":
        raise InvalidRules(f"{path}.type", "must be person")
    key = _required(condition, "key", path)
    if not isinstance(key, str) or not key:
        raise InvalidRules(f"{path}.key", "must be a text that is not empty")
    if condition.get("group_type_index") is not None:
        raise InvalidRules(f"{path}.group_type_index", "must be null for a person")
    negated = condition.get("negation")
    if not isinstance(negated, bool | None):
        raise InvalidRules(f"{path}.negation", "must be true or false")
    operator = "exact" if condition.get("operator") is None else condition["operator"]
    if not isinstance(operator, str) or operator not in _OPERATORS:
        raise InvalidRules(f"{path}.operator", "is unknown for rules")
    if not _fits(operator, condition.get("value")):
        raise InvalidRules(f"{path}.value", f"makes no sense for {operator}")
    return RuleCondition(prepare_condition(condition), negated is True)


def _fits(operator: str, value: object) -> bool:
    """Whether an operator can have a value."""
    if operator in _UNARY:
        return True
    if operator in _LISTS:
        return isinstance(value, list)
    if operator in _NUMERIC:
        return isinstance(value, str) or (number_of(value) is not None)
    if not isinstance(value, str):
        return False
    if operator in _TEXTUAL:
        return True
    if operator.startswith("is_date_"):
        return time_of(value, datetime.now(UTC)) is not None
    return _is_version(value.rstrip(".*") if operator == "semver_wildcard" else value)


def _is_version(text: str) -> bool:
    numbers = text.partition("-")[0].split(".")[:3]
    return all(map(_VERSION_NUMBERS.fullmatch, numbers)) and version_of(text) is not None


def _closed(parent: Mapping[str, Any], fields: frozenset[str], path: str) -> None:
    unknown = next((name for name in parent if name not in fields), None)
    if unknown is not None:
        raise InvalidRules(_at(path, unknown), "is unknown for rules")


def _required(parent: Mapping[str, Any], name: str, path: str) -> Any:
    if name not in parent:
        raise InvalidRules(_at(path, name), "is required")
    return parent[name]


def _objects(
    parent: Mapping[str, Any], name: str, path: str, most: int
) -> Sequence[Mapping[str, Any]]:
    values = _required(parent, name, path)
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise InvalidRules(_at(path, name), "must be a list of objects")
    if len(values) > most:
        raise InvalidRules(_at(path, name), f"has more than {most} members")
    return values


def _percentage(parent: Mapping[str, Any], name: str, path: str) -> float:
    value = _required(parent, name, path)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 100:
        raise InvalidRules(_at(path, name), "must be a number from 0 to 100")
    if Decimal(repr(value)) % Decimal("0.01"):
        raise InvalidRules(_at(path, name), "must have at most two decimal places")
    return float(value)


def _is_integer(value: object) -> bool:
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and float(value).is_integer()
    )


def _is_shallow(value: object, depth: int = 1) -> bool:
    """Whether containers aren't nested deeper than allowed."""
    if not isinstance(value, dict | list):
        return True
    members = value.values() if isinstance(value, dict) else value
    return depth <= _DEEPEST_VALUE and all(_is_shallow(member, depth + 1) for member in members)


def _is_safe_number(value: object) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and -_SAFE_INTEGER <= value <= _SAFE_INTEGER
    )


def _at(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


_RETURN_TYPES: Final[Mapping[str, _Accepts]] = {
    "boolean": lambda value: isinstance(value, bool),
    "string": lambda value: isinstance(value, str) and value != "",
    "number": _is_safe_number,
    "object": lambda value: isinstance(value, dict) and _is_shallow(value),
}
_OPERATORS: Final = (
    _UNARY
    | _NUMERIC
    | _TEXTUAL
    | _LISTS
    | {"is_date_exact", "is_date_after", "is_date_before"}
    | {
        f"semver_{name}"
        for name in ("eq", "neq", "gt", "gte", "lt", "lte", "tilde", "caret", "wildcard")
    }
)
