"""The measurement of log sources: the floors build the same events, member for member, and nothing
is left out.
"""

from __future__ import annotations

import json

import msgspec
import pytest

from benchmarks.log_stages import (
    CASES,
    LogKind,
    access_events,
    events_of,
    json_events,
    log_files,
    select,
)
from benchmarks.log_stages import _by_strptime as by_strptime


@pytest.mark.parametrize("kind", LogKind)
def test_the_floor_builds_the_same_events(kind: LogKind) -> None:
    """Beside the uuid, which follows from the line's position."""
    with log_files([kind], 2_000) as files:
        path = files[kind]
        floor = (
            json_events(path, json.loads)
            if kind is LogKind.JSON
            else access_events(path, by_strptime)
        )
        expected = list(floor)
        events = [msgspec.json.decode(event) for batch in events_of(kind, path) for event in batch]
    assert len({event.pop("uuid") for event in events}) == len(events) == 2_000
    assert events == expected


def test_cases_are_chosen_by_name() -> None:
    """As all are."""
    assert [case.name for case in select(["log-json*"])] == [
        "log-json-stages-msgspec",
        "log-json-stages-json",
    ]
    assert select([]) == list(CASES)
