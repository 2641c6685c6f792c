"""Imports of every format are compared with golden files: uuid, timestamp and bytes of each event,
the order of each distinct_id, counts, digests, dead letters and reports. Forwarder 0.1.0 wrote the
files, when imports were a pipeline of their own. They change only when what is sent is meant to
change, by `python -m tests.golden_imports --write`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.golden_imports.recording import CASES, GoldenCase, load, run_case, without_messages

QUICK = {
    "native",
    "native_sort",
    "amplitude",
    "mixpanel",
    "segment",
    "csv",
    "mapping",
    "native_limit_70",
}
"""Those of `make check`."""
LONG = {case.name for case in CASES if case.options and case.export not in {"native", "amplitude"}}
"""Options do the same to the events of each format: the others are left to `make test-long`."""
PARTS = ("sources", "events", "letters", "manifest", "report", "preflight", "code")


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            case,
            id=case.name,
            marks=[]
            if case.name in QUICK
            else [pytest.mark.long if case.name in LONG else pytest.mark.slow],
        )
        for case in CASES
    ],
)
def test_an_import_is_as_it_was(case: GoldenCase, tmp_path: Path) -> None:
    """The first part that differs is shown; if it is the source, this test makes other records
    than those of the golden file.
    """
    golden = load(case)
    now = run_case(case, tmp_path)
    assert now["sources"] == golden["sources"], (
        "the source is not that of the golden file: write it anew with the code that wrote it"
    )
    assert _events(now) == _events(golden)
    for part in PARTS:
        assert _said(without_messages(now[part])) == _said(without_messages(golden[part])), part


def test_sorted_and_not_the_same_events_are_sent() -> None:
    """The golden files themselves: the order differs, and nothing else."""
    for case in CASES:
        if case.options == ("--sort",) and case.export != "amplitude":
            unsorted = load(GoldenCase(case.export, case.count))
            assert _events(load(case)) == _events(unsorted), case.name


def _said(part: Any) -> Any:
    """What doesn't depend on timing. An accepted event may be sent again, to show who is at fault
    (`ImportCheckpoint.witness`); of more refused records than are shown, other ones may come first.
    """
    if isinstance(part, list):
        return [
            _said(value)
            for at, value in enumerate(part)
            if not (isinstance(value, list) and value in part[:at])
        ]
    if isinstance(part, dict):
        return {
            name: _few(value) if name == "examples" else _said(value)
            for name, value in part.items()
        }
    return part


def _few(examples: Any) -> Any:
    return (
        {why: len(some) if isinstance(some, list) else some for why, some in examples.items()}
        if isinstance(examples, dict)
        else len(examples)
    )


def _events(recorded: dict[str, Any]) -> set[tuple[str, ...]]:
    """Of each event id, uuid, time and digest."""
    return {(who, *event) for who, sent in recorded["events"].items() for event in sent}
