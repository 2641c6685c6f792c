"""The start of an import meets a service that is unavailable, limits requests, or answers late:
the command waits, as its deliveries do.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.importing import RunningSandbox, imported
from tests.sources.imports.samples.native import as_json, complete_events


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"status": 503, "times": 2}, "HTTP 503"),
        ({"status": 429, "retry_after": 1}, "HTTP 429"),
        ({"delay": 12}, "no whole answer within"),
    ],
    ids=["unavailable", "limited", "late"],
)
def test_the_command_goes_through(
    service: RunningSandbox, tmp_path: Path, fault: dict[str, int], said: str
) -> None:
    """It says what it waits for, and sends everything in the end; a dry run asks once."""
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"".join(as_json(event) + b"\n" for event in complete_events(20, 1)))
    key = f"phc_starts_after_{said[-3:]}_{fault.get('delay', 0)}"
    service.fault({"path": ["/decide"], **fault})
    done = imported(service, tmp_path / "state", "native", path, key=key)
    assert done.code == 0, done.out + done.err
    assert f"doesn't answer whether it knows the project key: {said}" in done.err
    assert service.ask(f"events?api_key={key}")["count"] == 20

    service.fault({"path": ["/decide"], "status": 503})
    dry = imported(service, tmp_path / "dry", "native", path, "--dry-run", key=key)
    assert dry.code == 0, dry.out + dry.err
    assert "asked again" not in dry.err
