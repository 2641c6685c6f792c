"""Flags, cohorts and visitors by chance, as plain data in the service's form: the same for the
same seed, but for dates near to today.

Versions and dates are in forms that SDKs read as the service does.

A flag's key begins with its family. `operator-gt-1` has one condition with one property,
`operator-gt-2` one with values that fit badly. The conditions of `mixed-…`, `group-…`, `cohort-…`,
`holdout-…` and `needs-…` can be decided for each visitor by the one who has the definitions, as can
`depends-…`, which needs one flag of a special kind each; those of `sparse-…` ask for what some
visitors don't have, and `device-…` for a device, which one in ten has not. `runtime-…` is for
where it says. With `simple` the conditions are those that older SDKs
understand too: posthog-go 1.5, posthog 3.7. The special kinds are there all the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, Final

Filter = dict[str, Any]
"""One property condition: key, operator, value, type."""
GROUP_TYPES: Final = ("company", "project")
NOW: Final = datetime.now(UTC)
"""Dates of visitors are days away from the bounds of relative conditions, so that a test may take
its time.
"""

EMAILS: Final = (
    "ann@example.com",
    "Bob@Example.org",
    "zoë@example.de",
    "ci+7@test.example.com",
    "nobody",
    "ANN@EXAMPLE.COM",
    "茶@example.jp",
)
PLANS: Final = ("free", "Pro", "TEAM", "enterprise", "pro", "true", "False", "Größe L", "")
VERSIONS: Final = (
    "1.2.3",
    "v1.2",
    "0.9.9",
    "0.0.3",
    "2.0.0",
    "1.2.4",
    "10.0",
    "1",
    " 1.4.0 ",
    "1.3.0",
    "0.9.10",
)
TRUTHS: Final = (True, False, "true", "FALSE", "yes", "", None)
SEATS: Final = (0, 1, 7, 12, -3, 2.5, 100, 41)
ODD_NUMBERS: Final = (
    "7",
    "12.5",
    "1e2",
    " 3 ",
    "abc",
    "",
    "-0",
    True,
    None,
    [7],
    7.0,
    10**15,
    "٣",
    "unlimited",
    "0x1f",
)
ODD_VALUES: Final[tuple[Any, ...]] = (
    None,
    [],
    ["tea", 1],
    {"b": [True, None], "a": "é"},
    1.0,
    1.5,
    -0.0,
    1e21,
    2**60,
    True,
    "茶 & milk",
    "[]",
    "null",
    "İI",
    "ß",
    "true",
)
ODD_VERSIONS: Final = (
    "abc",
    "01.2.3",
    "",
    None,
    2,
    1.2,
    "x1.2.3",
    "one",
    "v",
    "1.2.x",
    "latest",
    "-1.0.0",
    [1],
)
ODD_DATES: Final = (
    "soon",
    "",
    None,
    1_700_000_000,
    "2024-02-30",
    "12/31/2024",
    "never",
    True,
    ["2024-01-01"],
)
NICKNAMES: Final = ("kit", "Kim", "ann-b", "x")


def _days(days: float) -> str:
    return (NOW - timedelta(days=days)).isoformat()


DATES: Final = (
    *(_days(days) for days in (3, 20, 45, 100, 250, 500, 1500, -5)),
    "2023-12-31",
    "2024-01-01",
    "2024-01-01T00:00:00Z",
    "2023-12-31T23:30:00-02:00",
    "2024-05-06 07:08:09",
    "2024-01-01T00:00:00.001+00:00",
)

COLUMNS: Final[Mapping[str, Sequence[Any]]] = {
    "email": EMAILS,
    "plan": PLANS,
    "version": VERSIONS,
    "beta": TRUTHS,
    "seats": SEATS,
    "joined": DATES,
    "odd_number": ODD_NUMBERS,
    "odd_value": ODD_VALUES,
    "odd_version": ODD_VERSIONS,
    "odd_date": ODD_DATES,
}
"""What every visitor has: properties and their values."""
COMPANY: Final[Mapping[str, Sequence[Any]]] = {
    "tier": ("gold", "Silver", "none"),
    "size": (1, 20, 500, 2.5),
    "founded": DATES[:6],
}
"""What every group has."""

_TEXTS: Final = ("email", "plan")
_SEMVER: Final = ("1.2.3", "v1.2", "0.9.9", "2.0.0", "0.0.3", "1.3")
_REGEXES: Final = (
    r"^ann",
    r"example\.(com|org)$",
    r"[A-Z]{2,}",
    r"\d+",
    "^$",
    r"^(?:pro|TEAM|free)$",
    r"o{1,2}|x",
    "r[oi]",
    "",
)
_RELATIVE: Final = ("-30d", "-2w", "6m", "-1y", "-8760h", "10d")

Maker = Callable[[Random], tuple[str, Any]]
"""Gives a property and a value to compare it with."""


def _some(random: Random) -> tuple[str, Any]:
    """Of a text's values some, or one, in a spelling of its own."""
    column = random.choice(_TEXTS)
    values = random.sample(COLUMNS[column], random.randint(1, 5))
    spelled = [random.choice([value, value, value.upper(), value.lower()]) for value in values]
    return column, spelled if random.random() < 0.7 else spelled[0]


def _piece(random: Random) -> tuple[str, Any]:
    """A text with a piece of one of its values: from its beginning, from its end or from within."""
    column = random.choice(_TEXTS)
    value = random.choice(COLUMNS[column])
    piece = random.choice([value[:1], value[-1:], value[:3], value[-4:], value[2:5]])
    return column, random.choice([piece, piece.upper()])


def _plain_piece(random: Random) -> tuple[str, Any]:
    """The same in ASCII: posthog-go ignores the case of other letters too."""
    while not (made := _piece(random))[1].isascii():
        pass
    return made


_TEXT_OPERATORS: Final = (
    "icontains",
    "not_icontains",
    "starts_with",
    "not_starts_with",
    "ends_with",
    "not_ends_with",
)
_SEMVER_OPERATORS: Final = tuple(
    f"semver_{name}" for name in ("eq", "neq", "gt", "gte", "lt", "lte", "tilde", "caret")
)
_NUMBER_OPERATORS: Final = ("gt", "gte", "lt", "lte")
_ABSOLUTE: Final = (
    "2024-01-01",
    "2024-01-01T00:00:00Z",
    "2024-05-06 09:00:00",
    "2023-12-31T22:00:00-02:00",
)
_ODD_PIECES: Final = ("null", "[", "TRUE", "e", 1, "1", "İ", "Ss", True)
_ODD_REGEXES: Final = ("(", "[0-9", "null", r"^\[", 7, r"^\w+$", "(?=a)", r"a++")
_ODD_EQUALS: Final[tuple[Any, ...]] = (
    [],
    True,
    "true",
    [True, "true"],
    [7, "abc"],
    7,
    7.0,
    "7",
    "none",
    {"a": "é", "b": [True, None]},
    1.5,
    "ß",
    "null",
    [None],
    1e21,
)

SURE: Final[Mapping[str, Maker]] = {
    **dict.fromkeys(("exact", "is_not"), _some),
    "is_set": lambda random: (random.choice([*_TEXTS, "beta"]), "is_set"),
    "is_not_set": lambda random: (random.choice([*_TEXTS, "beta"]), "is_not_set"),
    **dict.fromkeys(_TEXT_OPERATORS, _piece),
    **dict.fromkeys(
        ("regex", "not_regex"), lambda random: (random.choice(_TEXTS), random.choice(_REGEXES))
    ),
    **dict.fromkeys(
        _NUMBER_OPERATORS, lambda random: ("seats", random.choice([7, 2.5, 0, "12", "-2", 40]))
    ),
    **dict.fromkeys(
        ("is_date_before", "is_date_after"),
        lambda random: ("joined", random.choice([*_ABSOLUTE, *_RELATIVE])),
    ),
    **dict.fromkeys(_SEMVER_OPERATORS, lambda random: ("version", random.choice(_SEMVER))),
    "semver_wildcard": lambda random: (
        "version",
        random.choice(["1.*", "1.2.*", "0.*", "v10.*", "0.9.*"]),
    ),
}
"""For each operator what makes a property and a value of which every visitor can be decided."""

ODD: Final[Mapping[str, Maker]] = {
    **dict.fromkeys(
        ("exact", "is_not"),
        lambda random: (
            random.choice(["odd_value", "odd_number", "beta", "seats"]),
            random.choice(_ODD_EQUALS),
        ),
    ),
    "is_set": lambda _: ("odd_value", ""),
    "is_not_set": lambda _: ("odd_date", None),
    **dict.fromkeys(
        _TEXT_OPERATORS,
        lambda random: (
            random.choice(["odd_value", "odd_number", "beta"]),
            random.choice(_ODD_PIECES),
        ),
    ),
    **dict.fromkeys(
        ("regex", "not_regex"),
        lambda random: (
            random.choice(["odd_value", "odd_number", "email"]),
            random.choice(_ODD_REGEXES),
        ),
    ),
    **dict.fromkeys(
        _NUMBER_OPERATORS, lambda random: ("odd_number", random.choice([7, "7", "1e1", 0, "seven"]))
    ),
    **dict.fromkeys(
        ("is_date_before", "is_date_after"),
        lambda random: (
            random.choice(["odd_date", "joined"]),
            random.choice([*_ABSOLUTE, "-90d", "-5000m", "tomorrow", "-1x"]),
        ),
    ),
    **dict.fromkeys(
        _SEMVER_OPERATORS,
        lambda random: ("odd_version", random.choice([*_SEMVER, "not.a.version", 2])),
    ),
    "semver_wildcard": lambda random: (
        random.choice(["odd_version", "version"]),
        random.choice(["3.*", "0.0.*", "*", "1.*.*", "2.*"]),
    ),
}
"""The same with values that fit badly, of which an SDK decides some visitors only."""

_SPELLED: Final = {"email": EMAILS[1:5], "plan": ("free", "TEAM", "enterprise", "true", "")}
"""Texts that no other one is when its spelling doesn't count."""
SIMPLE: Final[Mapping[str, Maker]] = {
    **dict.fromkeys(
        ("exact", "is_not"),
        lambda random: (column := random.choice(_TEXTS), random.sample(_SPELLED[column], 3)),
    ),
    "is_set": lambda random: (random.choice(_TEXTS), "is_set"),
    **dict.fromkeys(("icontains", "not_icontains"), _plain_piece),
    **dict.fromkeys(("regex", "not_regex"), SURE["regex"]),
    **dict.fromkeys(_NUMBER_OPERATORS, lambda random: ("seats", random.choice([7, 2.5, 0, 40]))),
}
"""The operators of posthog-go 1.5 and posthog 3.7, with texts in the spelling that they have and
numbers that are numbers.
"""


@dataclass(frozen=True, slots=True)
class Visitor:
    """A person who asks for flags, with all that an application tells about them."""

    distinct_id: str
    person_properties: dict[str, Any]
    groups: dict[str, str]
    group_properties: dict[str, dict[str, Any]]

    @property
    def request(self) -> dict[str, Any]:
        """What an SDK sends to ask for this visitor's flags, but for the key."""
        return {
            "distinct_id": self.distinct_id,
            "person_properties": self.person_properties,
            "groups": self.groups,
            "group_properties": self.group_properties,
            "geoip_disable": True,
        }


@dataclass(frozen=True, slots=True)
class FlagProject:
    """A project's definitions."""

    flags: list[dict[str, Any]]
    cohorts: list[dict[str, Any]]
    group_types: tuple[str, ...] = GROUP_TYPES
    by_key: dict[str, dict[str, Any]] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_key", {flag["key"]: flag for flag in self.flags})

    @property
    def answered(self) -> frozenset[str]:
        """The flags that the service answers a server: those that are on, and not for browsers
        alone.
        """
        return frozenset(
            flag["key"]
            for flag in self.flags
            if flag["active"] and flag.get("evaluation_runtime") != "client"
        )


def visitors(count: int, seed: int = 1) -> list[Visitor]:
    """So many visitors. Two in three belong to a company, one in three to a project too, and as
    many have a nickname.
    """
    random = Random(f"visitors {seed}")
    return [_visitor(random, number) for number in range(count)]


def _visitor(random: Random, number: int) -> Visitor:
    properties = {name: random.choice(values) for name, values in COLUMNS.items()}
    if random.random() < 1 / 3:
        properties["nickname"] = random.choice(NICKNAMES)
    if random.random() < 1 / 2:
        properties["$feature_enrollment/enrolled-1"] = random.choice([True, False, "true", "no"])
    if number % 3:
        properties["$feature_enrollment/enrolled-2"] = number % 2 == 0
    if number % 10:
        properties["$device_id"] = f"device-{number // 2}"
    groups = {}
    group_properties = {}
    for kind, share in (("company", 2 / 3), ("project", 1 / 3)):
        if random.random() < share:
            groups[kind] = f"{kind}-{random.randrange(200)}"
            known = {name: random.choice(values) for name, values in COMPANY.items()}
            group_properties[kind] = {"$group_key": groups[kind], **known}
    names = (
        f"person-{number}",
        f"zoë-{number}@example.com",
        f"018f{number:04x}-0000-7000-8000-{number:012x}",
    )
    return Visitor(names[number % 3], properties, groups, group_properties)


class FlagMaker:
    """Makes a project's flags."""

    def __init__(self, seed: int, *, simple: bool = False) -> None:
        self._random = Random(f"flags {seed}")
        self._simple = simple
        self._flags: list[dict[str, Any]] = []
        self._cohorts: list[dict[str, Any]] = []

    def project(self) -> FlagProject:
        """All families together."""
        self._make_cohorts()
        for number in (1, 2):
            for operator in SIMPLE if self._simple else SURE:
                self._operator(operator, number)
        families = {
            "mixed": 12,
            "group": 6,
            "cohort": 8,
            **({} if self._simple else {"holdout": 4, "sparse": 4, "needs": 8}),
        }
        for family, count in families.items():
            for number in range(1, count + 1):
                self._add(f"{family}-{number}", getattr(self, f"_{family}")())
        self._add(
            "switched-off",
            {"groups": [{"properties": [], "rollout_percentage": 100}]},
            active=False,
        )
        self._add(
            "enrolled-1",
            {
                "groups": [{"properties": [], "rollout_percentage": 0}],
                "feature_enrollment": True,
            },
        )
        self._add_special()
        return FlagProject(self._flags, self._cohorts)

    def _add_special(self) -> None:
        """Flags of kinds that only some SDKs and the service know, and one that needs each."""
        half = {"groups": [{"properties": [], "rollout_percentage": 50}]}
        self._add("enrolled-2", {**half, "feature_enrollment": True})
        for number in range(1, 5):
            self._add(f"device-{number}", self._mixed(), bucketing_identifier="device_id")
        for number, runtime in enumerate(("server", "all", "client"), start=1):
            self._add(f"runtime-{number}", half, evaluation_runtime=runtime)
        needed = ("switched-off", "enrolled-1", "enrolled-2", "device-1", "runtime-1", "runtime-2")
        for number, (key, value) in enumerate(
            [(key, value) for key in needed for value in (True, False)], start=1
        ):
            condition = {
                "key": key,
                "type": "flag",
                "value": value,
                "operator": "flag_evaluates_to",
            }
            group = {"properties": [condition], "rollout_percentage": 100, "variant": None}
            self._add(f"depends-{number}", {"groups": [group]})

    def _add(
        self, key: str, filters: dict[str, Any], *, active: bool = True, **more: object
    ) -> None:
        number = len(self._flags) + 1
        flag = {
            "id": number,
            "key": key,
            "name": f"Flag {number}",
            "active": active,
            "deleted": False,
            "version": 1,
            "filters": filters,
        }
        self._flags.append({**flag, "ensure_experience_continuity": False, **more})

    def _operator(self, operator: str, number: int) -> None:
        """The first one's payload is a value, the second one's a text; the second one is odd."""
        makers = SIMPLE if self._simple else ODD if number == 2 else SURE
        condition = {
            "properties": [self._filter(operator, makers)],
            "rollout_percentage": 100,
            "variant": None,
        }
        payload: Any = {"n": number} if number == 1 else json.dumps({"n": number})
        self._add(
            f"operator-{operator}-{number}",
            {"groups": [condition], "multivariate": None, "payloads": {"true": payload}},
        )

    def _filter(
        self, operator: str | None = None, makers: Mapping[str, Maker] | None = None
    ) -> Filter:
        makers = makers or (SIMPLE if self._simple else SURE)
        operator = operator or self._random.choice(sorted(makers))
        key, value = makers[operator](self._random)
        return {"key": key, "operator": operator, "value": value, "type": "person"}

    def _rollout(self) -> float | None:
        return self._random.choice(
            [None, 100, 50, 33, 80, 10, 0] if self._simple else [None, 100, 50, 33.3, 80, 12.5, 0]
        )

    def _condition(self, properties: list[Filter]) -> dict[str, Any]:
        # posthog-go 1.5 ignores the roll-out of a condition with properties
        rollout = 100 if self._simple and properties else self._rollout()
        return {"properties": properties, "rollout_percentage": rollout, "variant": None}

    def _variants(self, filters: dict[str, Any]) -> dict[str, Any]:
        """Give a flag variants, or none; some of the conditions name one, and there may be a
        payload for each value.
        """
        random = self._random
        shares: list[float] = random.choice(
            [[], [50, 50], [33, 33, 34], [10, 20, 30], [100], [0, 100], [25, 25, 25, 25]]
        )
        if not self._simple and random.random() < 0.3:
            shares = [33.3, 33.3, 33.4]
        names = [f"variant {letter}" for letter in "abcd"[: len(shares)]]
        if names:
            variants = [
                {"key": name, "name": name.title(), "rollout_percentage": share}
                for name, share in zip(names, shares, strict=True)
            ]
            filters["multivariate"] = {"variants": variants}
            # posthog-go 1.5 tries the conditions that name a variant first
            for condition in [] if self._simple else filters["groups"]:
                condition["variant"] = random.choice(
                    [None, None, names[-1], names[0], "no such variant"]
                )
        payloads = {
            name: json.dumps(random.choice([{"n": 1}, [1, "é"], "text", 7, None]))
            for name in [*names, "true"]
            if random.random() < 0.6
        }
        return {**filters, "payloads": payloads}

    def _mixed(self) -> dict[str, Any]:
        random = self._random
        groups = [
            self._condition([self._filter() for _ in range(random.choice([0, 1, 1, 2]))])
            for _ in range(random.randint(1, 4))
        ]
        filters: dict[str, Any] = {"groups": groups}
        if not self._simple and random.random() < 0.25:
            filters["early_exit"] = True
        return self._variants(filters)

    def _sparse(self) -> dict[str, Any]:
        wanted = [
            ("exact", ["kit", "kim"]),
            ("icontains", "a"),
            ("is_set", "is_set"),
            ("regex", "^[a-z]+$"),
        ]
        operator, value = self._random.choice(wanted)
        nickname = {"key": "nickname", "operator": operator, "value": value, "type": "person"}
        return self._variants(
            {"groups": [self._condition([nickname]), self._condition([self._filter()])]}
        )

    def _group(self) -> dict[str, Any]:
        """For companies, for projects, or with conditions for companies among those for persons."""
        index = self._random.choice([0, 0, 1, None] if not self._simple else [0, 1])
        groups = []
        for _ in range(self._random.randint(1, 3)):
            condition = self._condition(
                [
                    self._of_group(0 if index is None else index)
                    for _ in range(self._random.choice([0, 1, 2]))
                ]
            )
            groups.append(
                condition if index is not None else {**condition, "aggregation_group_type_index": 0}
            )
        if index is None:
            groups.append(self._condition([self._filter()]))
        return self._variants({"groups": groups, "aggregation_group_type_index": index})

    def _of_group(self, index: int) -> Filter:
        choices: list[tuple[str, str, Any]] = [
            ("tier", "exact", ["gold"]),
            ("tier", "is_not", "none"),
            ("tier", "icontains", "l"),
            ("size", "gte", 20),
        ]
        if not self._simple:
            choices += [
                ("founded", "is_date_before", "-60d"),
                ("$group_key", "ends_with", "7"),
                ("tier", "exact", "silver"),
            ]
        key, operator, value = self._random.choice(choices)
        return {
            "key": key,
            "operator": operator,
            "value": value,
            "type": "group",
            "group_type_index": index,
        }

    def _make_cohorts(self) -> None:
        """Two of persons, and some that combine these and one another."""
        for number in range(1, 7):
            alternatives = [
                {"type": "AND", "values": self._members(number)}
                for _ in range(self._random.randint(1, 3))
            ]
            if not self._simple and number % 3 == 0:
                alternatives = [
                    {
                        "type": "AND",
                        "values": [
                            {"type": "OR", "values": self._members(number)},
                            alternatives[0],
                        ],
                    }
                ]
            properties = {"type": self._random.choice(["OR", "AND"]), "values": alternatives}
            self._cohorts.append(
                {
                    "id": number,
                    "name": f"Cohort {number}",
                    "deleted": False,
                    "is_static": False,
                    "filters": {"properties": properties},
                }
            )

    def _members(self, number: int) -> list[Filter]:
        members = [
            {**self._filter(), "negation": self._random.random() < 0.3}
            for _ in range(self._random.randint(1, 2))
        ]
        if number > 2:
            members.append({**self._of_cohort(number - 1), "negation": self._random.random() < 0.3})
        return members

    def _of_cohort(self, last: int) -> Filter:
        operator = self._random.choice(["in"] if self._simple else ["in", "in", "not_in"])
        return {
            "key": "id",
            "type": "cohort",
            "value": self._random.randint(1, last),
            "operator": operator,
        }

    def _cohort(self) -> dict[str, Any]:
        random = self._random
        groups = [
            self._condition(
                [
                    self._of_cohort(len(self._cohorts)),
                    *([self._filter()] if random.random() < 0.3 else []),
                ]
            )
            for _ in range(random.randint(1, 3))
        ]
        return self._variants({"groups": groups})

    def _holdout(self) -> dict[str, Any]:
        holdout = {
            "id": self._random.randint(1, 9),
            "exclusion_percentage": self._random.choice([10, 33.3, 80, 0]),
        }
        return {**self._mixed(), "holdout": holdout}

    def _needs(self) -> dict[str, Any]:
        """Conditions on other flags, some of which have such conditions themselves."""
        return self._variants(
            {
                "groups": [
                    self._condition([self._of_flag()]) for _ in range(self._random.randint(1, 2))
                ]
            }
        )

    def _of_flag(self) -> Filter:
        others = [
            flag
            for flag in self._flags
            if flag["key"].startswith(("mixed", "cohort", "holdout", "needs", "operator-exact-1"))
        ]
        other = self._random.choice(others)
        variants = [
            variant["key"]
            for variant in (other["filters"].get("multivariate") or {}).get("variants", ())
        ]
        value = self._random.choice([True, True, False, *variants])
        return {
            "key": other["key"],
            "type": "flag",
            "value": value,
            "operator": "flag_evaluates_to",
        }
