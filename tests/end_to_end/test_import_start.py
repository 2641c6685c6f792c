"""The start of an import: what it takes from the configuration and from the environment; and a
service that is unavailable, limits requests, or answers late: the command waits, as its deliveries
do.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.end_to_end.importing import RunningSandbox, forwarder_import, imported
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


def test_rules_of_the_configuration_hold(service: RunningSandbox, tmp_path: Path) -> None:
    """As for every other source: what is to be dropped or removed doesn't leave the machine."""
    key = "phc_import_with_rules_0001"
    config = tmp_path / "forwarder.yaml"
    config.write_text(
        "rules:\n"
        "- {name: noise, match: {source: import, event: noise}, drop: true}\n"
        "- {name: secrets, remove: [.properties.password]}\n"
    )
    noise, *expected = complete_events(4, 1)
    secret = [{**event, "properties": {"password": "hunter2"}} for event in expected]
    path = tmp_path / "events.jsonl"
    path.write_bytes(
        b"".join(as_json(event) + b"\n" for event in ({**noise, "event": "noise"}, *secret))
    )
    done = imported(service, tmp_path / "state", "native", path, "--config", config, key=key)
    assert done.code == 0, done.err
    events = service.ask(f"events?api_key={key}")["results"]
    assert {event["uuid"] for event in events} == {event["uuid"] for event in expected}
    assert not any("hunter2" in event["raw"] for event in events)
    assert "rule:noise" in done.out


def test_rules_and_variables(
    service: RunningSandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the environment alone, as in a job of a cluster: whom to send to, and where
    the state is.
    """
    key = "phc_import_by_variables_001"
    rules = tmp_path / "rules.yaml"
    rules.write_text("event: .name\ndistinct_id: .who\ntimestamp: .at\nproperties: {n: .n}\n")
    record = {"name": "e", "who": "u", "at": "2024-01-01T00:00:00Z"}
    path = tmp_path / "export.jsonl"
    path.write_text("".join(json.dumps({**record, "n": number}) + "\n" for number in range(3)))
    monkeypatch.setenv("FORWARDER_UPSTREAM__URL", service.url)
    monkeypatch.setenv("FORWARDER_IMPORT__API_KEY", key)
    monkeypatch.setenv("FORWARDER_IMPORT__STATE", str(tmp_path / "imports"))
    done = forwarder_import("mapping", path, "--mapping", rules, "--yes")
    assert done.code == 0, done.err
    events = service.ask(f"events?api_key={key}")["results"]
    assert sorted(event["properties"]["n"] for event in events) == [0, 1, 2]
    (folder,) = [entry for entry in (tmp_path / "imports").iterdir() if entry.is_dir()]
    assert folder.name.startswith("mapping-")
