"""Each vendor's export against a model of the vendor's rules: counts, events with their uuids,
times and ids, persons, groups and sessions. It is interrupted and resumed, and imported twice.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from uuid import UUID

import pytest

from tests.end_to_end.importing import Service, imported, manifest_of
from tests.end_to_end.vendor_models import (
    ModelledExport,
    amplitude,
    mixpanel,
    rudderstack,
    segment,
)
from tests.support.commands import command_line, environment

MODELS = (amplitude, mixpanel, segment, rudderstack)


def interrupt(service: Service, state: Path, key: str, *arguments: str) -> None:
    """Begin an import, and kill it when some of its events have arrived."""
    target = ("--upstream", service.url, "--api-key", key, "--state", str(state), "--yes")
    command = command_line(("import", *arguments, *target, "--rate", "700"))
    with subprocess.Popen(
        command,
        env={**environment(None), "FORWARDER_BATCH__MAX_EVENTS": "100"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        while service.ask(f"events?api_key={key}&limit=1")["count"] < 200:
            assert process.poll() is None, "it ended before it was interrupted"
        process.kill()


@pytest.mark.parametrize("made", MODELS, ids=lambda each: each.__name__)
def test_an_export_becomes_what_its_vendors_rules_say(
    made: Callable[[], ModelledExport], service: Service, tmp_path: Path
) -> None:
    """Interrupted by `kill -9` and resumed, all of it is there once; a second import of the same
    sends the same bytes, and changes no person and no group.
    """
    model = made()
    key = f"phc_model_{made.__name__:_<14}"
    source = tmp_path / "export.jsonl"
    source.write_text(model.lines())
    assert len(model.records) > 2_000
    command = (model.form, str(source), "--person-properties", "oldest", *model.options)
    interrupt(service, tmp_path / "state", key, *command)
    before = service.ask(f"events?api_key={key}&limit=1")["count"]
    assert 200 <= before < len(model.events)

    done = imported(service, tmp_path / "state", *command, key=key)
    assert done.code == (1 if model.refused else 0), done.err
    books = manifest_of(tmp_path / "state").books
    assert not books.difference
    assert (books.read, sum(books.refused.values())) == (len(model.records), model.refused)
    _check(service, key, model)
    persons = service.ask(f"persons?api_key={key}&limit=10000")

    again = imported(service, tmp_path / "again", *command, key=key)
    assert again.code == done.code, again.err
    assert service.ask(f"conflicts?api_key={key}")["count"] == 0
    _check(service, key, model)
    assert service.ask(f"persons?api_key={key}&limit=10000") == persons


def _check(service: Service, key: str, model: ModelledExport) -> None:
    """Compare all that the sandbox has with the model."""
    found = service.ask(f"events?api_key={key}&limit=10000")
    assert found["count"] == len(model.events) + model.joins
    events = {each["uuid"]: each for each in found["results"]}
    assert model.events.keys() <= events.keys()
    sessions: dict[str, set[str]] = {}
    for uuid, wanted in model.events.items():
        event = events[uuid]
        properties = event["properties"]
        assert (event["event"], event["distinct_id"]) == (wanted.event, wanted.distinct_id)
        assert datetime.fromisoformat(event["timestamp"]) == wanted.time
        assert properties.items() >= wanted.properties.items()
        if uuid in model.sessions:
            session = UUID(properties["$session_id"])
            assert session.version == 7
            start = int(model.sessions[uuid].rpartition(" ")[2])
            assert session.int >> 80 == start
            sessions.setdefault(model.sessions[uuid], set()).add(str(session))
        else:
            assert "$session_id" not in properties
    ids = [each for some in sessions.values() for each in some]
    assert len(ids) == len(set(ids)) == len(sessions)

    persons = service.ask(f"persons?api_key={key}&limit=10000")["results"]
    assert {frozenset(each["distinct_ids"]) for each in persons} == model.persons
    for who, wanted_properties in model.person_properties.items():
        assert service.person(key, who).items() >= wanted_properties.items()
    groups = service.ask(f"groups?api_key={key}&limit=1000")["results"]
    assert {
        (each["group_type"], each["group_key"]): each["properties"] for each in groups
    } == model.groups
