"""How figures of several processes become one."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Annotated, Any, get_type_hints

from forwarder.telemetry.merging import (
    ANY,
    COMMON_PATH,
    FIRST,
    MAXIMUM,
    MINIMUM,
    SUM,
    SUM_BY_KEY,
    UNION,
    MergeRule,
    merge_figures,
    running,
)
from forwarder.telemetry.snapshot import (
    DestinationSnapshot,
    KafkaCluster,
    LaneSnapshot,
    LogSourceState,
    Snapshot,
)
from tests.support.cases import cases


@dataclass(frozen=True)
class MergedFigures:
    """A field of each kind."""

    name: Annotated[str, FIRST] = ""
    total: Annotated[int, SUM] = 0
    open: Annotated[int, running(SUM)] = 0
    by_key: Annotated[dict[str, int], SUM_BY_KEY] = field(default_factory=dict)
    earliest: Annotated[float | None, MINIMUM] = None
    latest: Annotated[float | None, MAXIMUM] = None
    refusing: Annotated[bool, running(ANY)] = False
    addresses: Annotated[tuple[str, ...], UNION] = ()
    path: Annotated[str, COMMON_PATH] = ""


ONE = MergedFigures(
    "one",
    1,
    10,
    {"a": 1},
    5.0,
    None,
    refusing=False,
    addresses=("x", "y"),
    path="/srv/state/worker-0",
)
OTHER = MergedFigures(
    "other",
    2,
    20,
    {"a": 2, "b": 3},
    None,
    7.0,
    refusing=True,
    addresses=("y", "z"),
    path="/srv/state/worker-1",
)


def test_each_field_is_merged_as_it_says() -> None:
    """Sums, bounds of what is known, unions and the directory above."""
    merged = merge_figures([(ONE, True), (OTHER, True)])
    assert merged == MergedFigures(
        "one",
        3,
        30,
        {"a": 3, "b": 3},
        5.0,
        7.0,
        refusing=True,
        addresses=("x", "y", "z"),
        path="/srv/state",
    )


def test_counters_of_ended_processes_stay_and_gauges_go() -> None:
    """A process that is away counts for what it did, and not for what is open; the first of those
    that run names the whole.
    """
    merged = merge_figures([(ONE, False), (OTHER, True)])
    assert (merged.name, merged.total, merged.open, merged.refusing) == ("other", 3, 20, True)
    nobody = merge_figures([(ONE, False), (OTHER, False)])
    assert (nobody.name, nobody.total, nobody.open, nobody.refusing) == ("one", 3, 0, False)


def test_a_single_process_is_unchanged() -> None:
    """Nothing changes for a single process."""
    assert merge_figures([(ONE, True)]) == ONE


@cases("kind", [Snapshot, DestinationSnapshot, LaneSnapshot, KafkaCluster, LogSourceState])
def test_every_field_says_how_it_is_merged(kind: type[Any]) -> None:
    """A field without a rule would be lost where a daemon has several workers."""
    types = get_type_hints(kind, include_extras=True)
    merge_rules = {
        struct_field.name: [
            rule for rule in types[struct_field.name].__metadata__ if isinstance(rule, MergeRule)
        ]
        for struct_field in fields(kind)
    }
    assert [name for name, rules in merge_rules.items() if len(rules) != 1] == []
