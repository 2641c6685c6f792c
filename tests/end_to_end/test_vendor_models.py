"""Each vendor's export against a model of the vendor's rules: counts, events with their uuids,
times and ids, persons, groups and sessions, for each choice about persons. It is interrupted and
resumed, and imported twice.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest

from tests.end_to_end.importing import RunningSandbox, imported, interrupt_import, manifest_of
from tests.end_to_end.person_model import PersonOutcome, PersonUpdate, persons_after
from tests.end_to_end.vendor_models import (
    PLANS,
    ModelledExport,
    Wanted,
    amplitude,
    derived,
    mixpanel,
    rudderstack,
    segment,
)

LONG = pytest.mark.long
CASES = (
    pytest.param(amplitude, "oldest", "", marks=LONG),
    pytest.param(amplitude, "history", "", marks=LONG),
    (amplitude, "newest", "user-5@example.com"),
    pytest.param(segment, "oldest", "", marks=LONG),
    (segment, "history", ""),
    pytest.param(segment, "newest", "user-5", marks=LONG),
    (rudderstack, "oldest", ""),
    pytest.param(rudderstack, "history", "", marks=LONG),
    pytest.param(rudderstack, "newest", "user-5", marks=LONG),
    (mixpanel, "", ""),
)
"""A model, what becomes of persons (Mixpanel's events say nothing of them), and a live person."""


@pytest.mark.parametrize(("made", "choice", "live"), CASES)
def test_an_export_becomes_what_its_vendors_rules_say(
    made: Callable[[], ModelledExport],
    choice: str,
    live: str,
    service: RunningSandbox,
    tmp_path: Path,
) -> None:
    """Interrupted by `kill -9` and resumed, all of it is there once; a second import of the same
    sends the same bytes, and changes no person and no group.
    """
    model = made()
    key = f"phc_model_{made.__name__}_{choice or 'events'}"
    source = tmp_path / "export.jsonl"
    source.write_text(model.lines())
    assert 600 < len(model.records) < 1_100
    command = (model.form, str(source), *model.options)
    command += ("--person-properties", choice) if choice else ()
    is_sorted = choice == "history"
    command += ("--sort",) if is_sorted else ()
    before = _live(service, key, [live] if live else [])
    _import_interrupted(service, tmp_path, key, command, len(model.events))

    books = manifest_of(tmp_path / "state").books
    assert not books.difference
    assert (books.read, sum(books.refused.values())) == (len(model.records), model.refused)
    sent = model.sent(is_sorted=is_sorted)
    _check_events(service, key, model, len(before))
    outcome = persons_after(choice, {uuid: sent[uuid].said for uuid in sent}, before)
    _check_persons(service, key, outcome)
    _check_events_persons(service, key, outcome)
    groups = service.ask(f"groups?api_key={key}&limit=1000")["results"]
    assert {
        (group["group_type"], group["group_key"]): group["properties"] for group in groups
    } == model.groups(is_sorted=is_sorted)
    _import_again(service, tmp_path, key, command)


@pytest.mark.parametrize("choice", [pytest.param("history", marks=LONG), "newest"])
def test_profiles_of_mixpanel_end_as_chosen(
    choice: str, service: RunningSandbox, tmp_path: Path
) -> None:
    """Profiles of two days, unchanged ones among them, go to the persons that Mixpanel's merges
    have made, and the last one counts.
    """
    key = f"phc_model_mixpanel_profiles_{choice}"
    live = ["user-3", "user-4"] if choice == "newest" else []
    before = _live(service, key, live)
    joined = PersonUpdate("user-5", datetime.now(UTC), joins=("$device:5",))
    service.capture(
        {"api_key": key, "event": "$identify", "distinct_id": joined.distinct_id}
        | {"properties": {"$anon_distinct_id": "$device:5"}}
    )
    lines, profiles = _mixpanel_profiles()
    (source := tmp_path / "engage.jsonl").write_text("".join(lines))
    zone = ("--zone", "America/Los_Angeles")
    command = ("mixpanel-profiles", str(source), *zone, "--person-properties", choice)
    _import_interrupted(service, tmp_path, key, command, len(profiles))

    books = manifest_of(tmp_path / "state").books
    assert (books.read, sum(books.refused.values())) == (len(lines), 1)
    model = ModelledExport("mixpanel-profiles", events=profiles)
    _check_events(service, key, model, len(before) + 1)
    sent = {uuid: wanted.said for uuid, wanted in model.sent(is_sorted=True).items()}
    outcome = persons_after(choice, sent, [*before, joined])
    _check_persons(service, key, outcome)
    assert service.person(key, "$device:5") == outcome.ends["user-5"]
    _check_events_persons(service, key, outcome)
    _import_again(service, tmp_path, key, command)


def _mixpanel_profiles() -> tuple[list[str], dict[str, Wanted]]:
    """Lines of two exports, the later one first, and the events that they have to be."""
    lines: list[str] = []
    events: dict[str, Wanted] = {}
    for day in (1, 0):
        for number in range(350):
            is_seen = day == 1 and number % 3
            time = datetime(2024, 10, 20 + (3 if is_seen else 0), 12, tzinfo=UTC)
            time += timedelta(seconds=number)
            clock = time.astimezone(ZoneInfo("America/Los_Angeles")).replace(tzinfo=None)
            said: dict[str, Any] = {"plan": PLANS[(number + bool(is_seen)) % 3], "n": number}
            if number % 2 and not is_seen:
                said["first_day"] = True
            record = {
                "$distinct_id": f"user-{number}",
                "$properties": {
                    "$last_seen": clock.isoformat(),
                    "$email": f"u{number}@example.com",
                    "$city": "Oslo" if is_seen else "Rome",
                    **said,
                },
            }
            line = json.dumps(record)
            lines.append(line + "\n")
            digest = sha256(line.encode()).hexdigest()
            uuid = derived("mixpanel_profiles", f"user-{number}", digest)
            said["email"] = f"u{number}@example.com"
            said["$geoip_city_name"] = "Oslo" if is_seen else "Rome"
            said["$last_seen"] = clock.isoformat()
            events[uuid] = Wanted("$identify", f"user-{number}", time, set=said)
    lines.append(json.dumps({"$distinct_id": "never", "$properties": {"plan": "x"}}) + "\n")
    return lines, events


def _live(service: RunningSandbox, key: str, who: Sequence[str]) -> list[PersonUpdate]:
    """Let persons be there before the import, each with a property that the import has, too."""
    said = [
        PersonUpdate(distinct_id, datetime.now(UTC), set={"plan": "enterprise", "theme": "live"})
        for distinct_id in who
    ]
    for update in said:
        properties = {"$set": update.set}
        event = {"event": "live", "distinct_id": update.distinct_id, "properties": properties}
        service.capture({"api_key": key, **event})
    return said


def _config(folder: Path) -> tuple[str, str]:
    """One request at a time: events of several ids arrive in the order in which they are sent."""
    path = folder / "forwarder.yaml"
    path.write_text("delivery: {concurrency: 1}\nbatch: {max_events: 100}\n")
    return "--config", str(path)


def _import_interrupted(
    service: RunningSandbox, folder: Path, key: str, command: tuple[str, ...], count: int
) -> None:
    """Import, killed when some of the events have arrived, and resumed."""
    command += _config(folder)
    state = folder / "state"
    before = interrupt_import(service, state, key, *command)
    assert before < count
    done = imported(service, state, *command, key=key)
    refused = manifest_of(state).books.refused
    assert done.code == (1 if refused else 0), done.out + done.err


def _import_again(
    service: RunningSandbox, folder: Path, key: str, command: tuple[str, ...]
) -> None:
    """A second import of the same, which changes nothing."""
    asked = [f"{name}?api_key={key}&limit=10000" for name in ("persons", "groups")]
    before = [service.ask(query) for query in asked]
    count = service.ask(f"events?api_key={key}&limit=1")["count"]
    imported(service, folder / "again", *command, *_config(folder), key=key)
    assert manifest_of(folder / "again").complete
    assert service.ask(f"conflicts?api_key={key}")["count"] == 0
    assert service.ask(f"events?api_key={key}&limit=1")["count"] == count
    assert [service.ask(query) for query in asked] == before


def _check_events(service: RunningSandbox, key: str, model: ModelledExport, others: int) -> None:
    """Compare the sandbox's events with the model's; `others` are not of it."""
    answer = service.ask(f"events?api_key={key}&limit=10000")
    assert answer["count"] == len(model.events) + model.joins + others
    events = {event["uuid"]: event for event in answer["results"]}
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
    ids = [session_id for some in sessions.values() for session_id in some]
    assert len(ids) == len(set(ids)) == len(sessions)


def _check_persons(service: RunningSandbox, key: str, outcome: PersonOutcome) -> None:
    """Compare the sandbox's persons with the model's."""
    persons = service.ask(f"persons?api_key={key}&limit=10000")["results"]
    assert {frozenset(person["distinct_ids"]) for person in persons} == outcome.persons
    differing = {}
    for person in persons:
        who = person["distinct_ids"][0]
        actual, wanted = own_properties(person["properties"]), outcome.ends[who]
        if actual != wanted:
            differing[who] = actual, wanted
    assert not differing


def _check_events_persons(service: RunningSandbox, key: str, outcome: PersonOutcome) -> None:
    """Compare what each event's person had when it came."""
    events = service.ask(f"events?api_key={key}&limit=10000")["results"]
    actual = {event["uuid"]: own_properties(event["person_properties"] or {}) for event in events}
    wanted = outcome.at_events
    assert {uuid: actual[uuid] for uuid in wanted} == wanted


def own_properties(properties: dict[str, Any]) -> dict[str, Any]:
    """What a source said of a person: not what the service has taken from events."""
    said = {"$initial_referrer", "$geoip_city_name", "$last_seen"}
    return {
        name: value
        for name, value in properties.items()
        if name in said or not name.startswith(("$", "utm_"))
    }
