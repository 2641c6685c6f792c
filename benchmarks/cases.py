"""What is measured: the table of cases, each with the floor that it is held against and the share
of it that it should reach.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Final, Protocol, TypeVar

from benchmarks.bodies import Variant
from benchmarks.events import RARE

CONNECTIONS: Final = {1: 64, 50: 32, 1000: 8}
"""Keep-alive connections, by events in a body."""


class Named(Protocol):
    """A case of any kind."""

    @property
    def name(self) -> str:
        """For people, and for `--case`."""


NamedCase = TypeVar("NamedCase", bound=Named)


class Floor(StrEnum):
    """What a case is compared with."""

    BARE = "bare server"
    SPLIT = "split and join"


class Rules(StrEnum):
    """Rules that a case has."""

    NONE = ""
    NAMES = "names"
    """By events' names alone, which no event has."""
    WHERE = "where"
    """The same, and a condition in jq on the events of one name, one in twenty."""

    @property
    def settings(self) -> Mapping[str, str]:
        """As variables of the environment."""
        if self is Rules.NONE:
            return {}
        rules: list[dict[str, object]] = [
            {"match": {"event": ["$autocapture", "$web_vitals*"]}, "drop": True},
            {"match": {"event": "video frame"}, "sample": 0.1},
            {"rename_event": {"Signed Up": "user signed up"}},
        ]
        if self is Rules.WHERE:
            rules.append(
                {
                    "match": {"event": f"*{RARE}", "where": '.properties.city == "none"'},
                    "drop": True,
                }
            )
        return {"FORWARDER_RULES": json.dumps(rules)}


@dataclass(frozen=True, slots=True)
class Case:
    """One measurement of throughput."""

    variant: Variant
    events: int
    """In each body."""
    compression: str
    ordered: bool
    share: float | None
    """Of the floor (or of `base`, where that is another case) that is to be
    reached; None: only told.
    """
    disk: bool = False
    """With the disk buffer, each request answered once an fdatasync covers it; else with the
    memory buffer.
    """
    proxied: bool = False
    """By nginx in forwarder's place, which passes each request on as it is."""
    rules: Rules = Rules.NONE
    workers: int = 1
    """Processes, all on the one core that a single one has in the case that it is held against."""
    copies: int = 1
    """Destinations that each event goes to; all of them are the same sink."""
    by_name: bool = False
    """Whether routes look at each event's name for that."""

    @property
    def name(self) -> str:
        """For people, and for `--case`."""
        if self.proxied:
            return f"nginx-{self.events}"
        more = (
            ["ordered"] * self.ordered
            + ["disk"] * self.disk
            + ([f"rules-{self.rules}"] if self.rules else [])
        )
        more += [f"{self.workers}-workers"] if self.workers > 1 else []
        more += [f"to-{self.copies}"] if self.copies > 1 else []
        more += ["by-name"] * self.by_name
        return "-".join([f"{self.variant}-{self.events}-{self.compression}", *more])

    @property
    def floor(self) -> Floor:
        """The floor of this case."""
        return Floor.BARE if self.events == 1 else Floor.SPLIT

    @property
    def ordering(self) -> str:
        """The value of `delivery.ordering`."""
        return "per_distinct_id" if self.ordered else "none"

    @property
    def base(self) -> str:
        """The name of the case that it is held against: the same without order or rules, with the
        memory buffer, in one process, to one destination, through forwarder in nginx's place; its
        own, if it is that.
        """
        return f"{self.variant}-{self.events}-{self.compression}"


def _with_order(*cases: Case) -> tuple[Case, ...]:
    return tuple(
        variant
        for case in cases
        for variant in (
            case,
            Case(case.variant, case.events, case.compression, ordered=True, share=0.8),
        )
    )


CASES: Final = (
    *_with_order(
        Case(Variant.STAMPED, 1, "none", ordered=False, share=0.45),
        Case(Variant.STAMPED, 1, "gzip", ordered=False, share=0.45),
        Case(Variant.STAMPED, 50, "none", ordered=False, share=0.5),
        Case(Variant.STAMPED, 50, "gzip", ordered=False, share=0.35),
        Case(Variant.STAMPED, 1000, "none", ordered=False, share=0.5),
        Case(Variant.STAMPED, 1000, "gzip", ordered=False, share=0.35),
        Case(Variant.SDK, 50, "none", ordered=False, share=0.3),
        Case(Variant.SDK, 1000, "none", ordered=False, share=0.3),
    ),
    *(
        Case(
            Variant.STAMPED,
            events,
            compression,
            ordered=False,
            share=0.65 if events == 1 else 0.7,
            disk=True,
        )
        for events in CONNECTIONS
        for compression in ("none", "gzip")
    ),
    Case(Variant.STAMPED, 50, "none", ordered=False, share=0.8, rules=Rules.NAMES),
    Case(Variant.STAMPED, 50, "none", ordered=False, share=0.5, rules=Rules.WHERE),
    *(
        Case(Variant.STAMPED, events, "none", ordered=False, share=0.55, copies=2)
        for events in CONNECTIONS
    ),
    *(
        Case(Variant.STAMPED, events, "none", ordered=False, share=0.5, copies=2, by_name=True)
        for events in (1, 50)
    ),
    Case(Variant.SDK, 1, "none", ordered=False, share=None),
    *(
        Case(Variant.STAMPED, events, "none", ordered=False, share=0.9, workers=2)
        for events in CONNECTIONS
    ),
    Case(Variant.BARE, 1, "none", ordered=False, share=None),
    Case(Variant.BARE, 50, "none", ordered=False, share=None),
    Case(Variant.BARE, 1000, "none", ordered=False, share=None),
    *(
        Case(Variant.STAMPED, events, "none", ordered=False, share=None, proxied=True)
        for events in CONNECTIONS
    ),
)

MEMORY: Final = ("memory", "memory-dribble", "memory-tiny")
"""The names of the measurements of memory."""


BACKLOG: Final = ("backlog",)
"""The names of the measurements of a backlog on disk."""


def select(patterns: list[str]) -> tuple[list[Case], list[str]]:
    """The cases, of throughput, and of memory and backlogs, whose names match any of `patterns`;
    all if none are given.

    `*` and `?` mean what they mean in file names. A case that is held against another brings that
    one along.
    """
    patterns = patterns or ["*"]
    chosen = {case.name for case in CASES if _matches(case.name, patterns)}
    chosen |= {case.base for case in CASES if case.name in chosen}
    return [case for case in CASES if case.name in chosen], [
        name for name in (*MEMORY, *BACKLOG) if _matches(name, patterns)
    ]


def matching(cases: Iterable[NamedCase], patterns: list[str]) -> list[NamedCase]:
    """The cases of another kind whose names match any of `patterns`; all if none are given."""
    return [case for case in cases if _matches(case.name, patterns or ["*"])]


def _matches(name: str, patterns: list[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
