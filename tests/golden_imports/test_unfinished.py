"""Imports that forwarder 0.1.0 left unfinished, or finished with dead letters marked for a replay,
are resumed by the same command.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.golden_imports.recording import load, without_messages
from tests.golden_imports.unfinished import OLD, OldState, resume
from tests.support.cases import cases


@pytest.mark.slow
@cases("old", OLD, ids=lambda state: state.name)
def test_an_import_of_the_old_version_is_resumed(old: OldState, tmp_path: Path) -> None:
    """All is delivered with the same bytes, what was settled is not sent again, marked dead
    letters are replayed, and `verify` finds what it found (some sources use a uuid twice a day,
    which it reports); a further run sends nothing.
    """
    golden = load(old.golden)
    now = resume(old, tmp_path, golden["before"])
    before, expected, sent = (
        _events(by_id) for by_id in (golden["before"], golden["events"], now["events"])
    )
    assert sent | before == expected | before
    assert len(sent & before) <= len(before) - golden["settled"], "settled events are sent again"
    assert now["events"].keys() <= golden["events"].keys() | golden["before"].keys()
    for who, events in golden["events"].items():
        order = [event for event in events if event in now["events"].get(who, [])]
        assert [event for event in now["events"].get(who, []) if event in events] == order, who
    assert now["code"] == golden["code"]
    assert _comparable(now["letters"]) == _comparable(golden["letters"])
    assert now["verified"] == golden["verified"]
    assert _comparable(now["manifest"]) == _comparable(golden["manifest"])
    if not old.killed:
        assert len(sent) == golden["manifest"]["books"]["mended"], "only what was marked is sent"


def _comparable(value: Any) -> Any:
    """Without messages, the former word of a reason, which old dead letters keep beside today's,
    and what was repaired, which that version didn't say.
    """
    if isinstance(value, dict):
        return {
            name: _comparable(part)
            for name, part in without_messages(value).items()
            if name not in ("refused_as", "repaired")
        }
    return [_comparable(part) for part in value] if isinstance(value, list) else value


def _events(by_id: dict[str, Any]) -> set[tuple[str, ...]]:
    return {(who, *event) for who, events in by_id.items() for event in events}
