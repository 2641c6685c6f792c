"""The report of an import, by the command alone: reasons are those of the dead letters, repaired
records are marked, and what `import verify` found stands in it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from forwarder.cli import dead_letters
from tests.end_to_end.importing import RunningSandbox, forwarder_import, imported, manifest_of

GOOD = '{"event":"seen","distinct_id":"u%d","timestamp":"2024-05-01T00:00:%02dZ","properties":{}}\n'


def report(state: Path) -> tuple[dict[str, Any], str]:
    """The report for machines, and the page."""
    return json.loads((state / "report.json").read_text()), (state / "report.html").read_text()


def letters(*arguments: str | Path) -> str:
    """`forwarder dead-letters`, which succeeds."""
    done = CliRunner().invoke(dead_letters.app, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    return done.output


def test_report_has_the_reasons_repairs_and_the_verification(
    service: RunningSandbox, tmp_path: Path
) -> None:
    """Before, after a repair, and after a verification; one of other counts isn't shown."""
    path, state = tmp_path / "events.jsonl", tmp_path / "state"
    bad = '{"event":"seen","distinct_id":"u","properties":{}}\n{"event":"cut\n'
    path.write_text("".join(GOOD % (at, at) for at in range(50)) + bad)
    command = ("native", path, "--accept", "many-refused", "--accept", "cut-off-files")

    done = imported(service, state, *command)
    assert done.code == 1
    reasons = {"missing_timestamp": 1, "undecodable": 1}
    assert manifest_of(state).books.refused == reasons
    document, page = report(state)
    assert document["books"]["refused"] == reasons
    preflight = json.loads((state / "preflight.json").read_text())["report"]
    assert {refusal["reason"] for refusal in preflight["refused"]} == set(reasons)
    assert all(reason in page and reason in done.out for reason in reasons)
    assert all(reason in letters("ls", "--path", state) for reason in reasons)
    assert "verified" not in document

    verified = forwarder_import("verify", "--state", state, "--sandbox", service.url)
    assert verified.code == 0, verified.out
    document, page = report(state)
    assert document["verified"]["same"]
    assert document["verified"]["words"] == verified.out.splitlines()
    assert '<span class="pill good">verified</span>' in page
    assert service.url in page

    letters(
        *("replay", "--reason", "missing_timestamp", "--path", state, "--yes"),
        *("--edit", '.timestamp = "2024-05-01T01:00:00Z"'),
    )
    again = imported(service, state, *command)
    assert again.code == 1  # one is still refused
    assert "(repaired)" in again.out
    document, page = report(state)
    assert [
        example.get("repaired", False) for example in document["examples"]["missing_timestamp"]
    ] == [True]
    assert "repaired" not in document["examples"]["undecodable"][0]
    assert page.count('<span class="pill good">repaired</span>') == 1
    assert "verified" not in document  # that was of fewer events
