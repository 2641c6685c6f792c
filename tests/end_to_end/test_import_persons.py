"""What a person is today isn't what an old export says: the formats that set
properties of persons, by the command alone.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pytest
import yaml

from forwarder.sources.imports.persons import INDEX
from tests.crash.process import Killable
from tests.end_to_end.importing import (
    KEY,
    RunningSandbox,
    forwarder_import,
    imported,
    manifest_of,
    sandbox,
)
from tests.end_to_end.test_import_sort import is_settled
from tests.support.waiting import eventually

WHO: Final = "ann@example.com"
_TIME: Final = "2024-05-01T10:00:00Z"
_OLD: Final = {"plan": "free", "city": "Paris"}
RULES: Final = {
    "event": ".what",
    "distinct_id": ".who",
    "timestamp": {"from": ".at"},
    "set": {"plan": ".plan", "city": ".city"},
}
RECORDS: Final[dict[str, Any]] = {
    "native": {"event": "e", "distinct_id": WHO, "timestamp": _TIME, "$set": _OLD},
    "amplitude": {
        "event_type": "e",
        "user_id": WHO,
        "event_time": "2024-05-01 10:00:00.000000",
        "user_properties": _OLD,
    },
    "mixpanel-profiles": {
        "$distinct_id": WHO,
        "$properties": {"$last_seen": "2024-05-01T10:00:00", **_OLD},
    },
    "segment": {
        "type": "identify",
        "messageId": "m1",
        "userId": WHO,
        "timestamp": _TIME,
        "traits": _OLD,
    },
    "csv": (
        "event,distinct_id,timestamp,$set\n"
        f'e,{WHO},{_TIME},"{{""plan"":""free"",""city"":""Paris""}}"\n'
    ),
    "mapping": {"what": "e", "who": WHO, "at": _TIME, **_OLD},
}
"""Of each format, a record that sets two properties of a person."""
OPTIONS: Final = {"mixpanel-profiles": ["--time-offset", "0"], "csv": ["--json-column", "$set"]}


@pytest.mark.parametrize("form", RECORDS)
def test_a_live_property_outlives_an_import_unless_that_is_chosen(
    form: str, service: RunningSandbox, tmp_path: Path
) -> None:
    """What becomes of persons has to be said. `newest` and `oldest` only add what a person lacks,
    `none` adds nothing, and with `history` old values win.
    """
    source = tmp_path / ("export.csv" if form == "csv" else "export.jsonl")
    record = RECORDS[form]
    source.write_text(record if isinstance(record, str) else json.dumps(record) + "\n")
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(RULES))
    options = (
        ["--mapping", str(tmp_path / "rules.yaml")] if form == "mapping" else OPTIONS.get(form, [])
    )
    live = {"event": "live", "distinct_id": WHO, "properties": {"$set": {"plan": "enterprise"}}}
    command: tuple[str | Path, ...] = (form, source, *options)

    for choice, plan, city in (
        ("history", "free", "Paris"),
        ("newest", "enterprise", "Paris"),
        ("oldest", "enterprise", "Paris"),
        ("none", "enterprise", None),
    ):
        key = f"phc_persons_of_{form.replace('-', '_')}_{choice}"
        service.capture({"api_key": key, **live})
        undecided = imported(service, tmp_path / choice, *command, key=key)
        assert undecided.code == 1
        assert "--person-properties history|newest|oldest|none" in undecided.out
        chosen = (*command, "--person-properties", choice)
        done = imported(service, tmp_path / choice, *chosen, key=key)
        assert done.code == 0, done.err
        properties = service.person(key, WHO)
        assert (properties["plan"], properties.get("city")) == (plan, city)


def event(
    number: int, who: str, name: str = "seen", properties: dict[str, Any] | None = None
) -> dict[str, Any]:
    """An event of the day `number` of 2024."""
    time = datetime(2024, 1, 1, tzinfo=UTC) + timedelta(days=number)
    return {
        "event": name,
        "distinct_id": who,
        "uuid": str(UUID(int=number + 1, version=4)),
        "timestamp": time.isoformat(),
        "properties": properties or {},
    }


LIVES: Final = (
    event(1, "device", properties={"$set": {"plan": "free", "$initial_a": 1}}),
    event(2, "device", properties={"$set": {"plan": "free"}, "$set_once": {"first": "b"}}),
    event(3, "ann", "$identify", {"$anon_distinct_id": "device", "$set_once": {"first": "c"}}),
    event(4, "ann", properties={"$set": {"plan": "pro", "$initial_a": 2, "gone": 1}}),
    event(5, "ann", properties={"$unset": ["gone"]}),
    event(6, "bob", "$identify", {"$anon_distinct_id": "device", "$set": {"plan": "team"}}),
    event(7, "bob"),
    event(8, "carl", properties={"$set": {"plan": "team"}}),
    event(9, "carl", "$identify", {"$anon_distinct_id": "device"}),
    event(10, "dora", "$exception", {"$set": {"plan": "none"}}),
    event(11, "dora", properties={"$set": {"plan": "one"}}),
)
"""A device whose person ann and bob become, for bob wasn't seen before; carl was, and stays."""
ANN: Final = {"plan": "team", "first": "b"}
ENDS: Final[dict[str, dict[str, dict[str, Any]]]] = {
    "history": {
        "ann": {**ANN, "$initial_a": 2},
        "carl": {"plan": "team"},
        "dora": {"plan": "one"},
    },
    "newest": {
        "ann": {**ANN, "$initial_a": 1},
        "carl": {"plan": "team"},
        "dora": {"plan": "one"},
    },
    "oldest": {
        "ann": {"plan": "free", "first": "b", "gone": 1, "$initial_a": 1},
        "carl": {"plan": "team"},
        "dora": {"plan": "one"},
    },
    "none": {"ann": {}, "carl": {}, "dora": {}},
}


@pytest.mark.parametrize("choice", ENDS)
@pytest.mark.parametrize("order", ["in order", "sorted"])
def test_persons_end_as_chosen(
    choice: str, order: str, service: RunningSandbox, tmp_path: Path
) -> None:
    """By the service's rules for merges, in a project without live persons."""
    key = f"phc_ends_{choice}_{order.replace(' ', '_')}"
    lives = LIVES if order == "in order" else LIVES[::-1]
    source = tmp_path / "export.jsonl"
    source.write_text("".join(json.dumps(record) + "\n" for record in lives))
    options = ("--sort",) if order == "sorted" else ()
    done = imported(
        service, tmp_path / "state", "native", source, *options, "--person-properties", choice,
        "--config", write_config(tmp_path, "delivery: {concurrency: 1}\n"), key=key,
    )  # fmt: skip
    assert done.code == 0, done.out + done.err
    for who, properties in ENDS[choice].items():
        assert service.person(key, who) == properties
    assert service.person(key, "bob") == service.person(key, "ann")
    if choice == "newest":
        listed = service.ask(f"events?api_key={key}")["results"]
        shown = {
            (event["distinct_id"], (event["person_properties"] or {}).get("plan"))
            for event in listed
        }
        assert shown == {
            *(("device", "team"), ("ann", "team"), ("bob", "team"), ("carl", "team")),
            ("dora", "one"),
            ("dora", None),  # the error, which creates no person
        }


def write_config(folder: Path, text: str) -> Path:
    """A configuration."""
    path = folder / "forwarder.yaml"
    path.write_text(text)
    return path


def test_history_needs_the_order_of_time(service: RunningSandbox, tmp_path: Path) -> None:
    """The preflight says what to do; accepting it is no choice."""
    key = "phc_persons_in_no_order_1"
    source = tmp_path / "export.jsonl"
    source.write_text("".join(json.dumps(record) + "\n" for record in LIVES[::-1]))
    command = ("native", source, "--person-properties", "history")
    done = imported(service, tmp_path / "state", *command, "--accept", "history-unsorted", key=key)
    assert done.code == 1
    assert "Add: --sort" in done.out


def test_properties_that_no_event_can_carry_have_one_of_their_own(
    service: RunningSandbox, tmp_path: Path
) -> None:
    """With `newest` a person whose first event has no room gets a `$set` event, and it counts."""
    key = "phc_persons_without_room_1"
    source = tmp_path / "export.jsonl"
    wide = event(1, "eve", properties={"text": "x" * 9_000})
    later = event(2, "eve", properties={"$set": {"about": "y" * 5_000}})
    source.write_text(json.dumps(wide) + "\n" + json.dumps(later) + "\n")
    config = write_config(tmp_path, "upstream: {max_event: 12kB}\n")
    state = tmp_path / "state"
    done = imported(
        service, state, "native", source, "--person-properties", "newest", "--config", config,
        key=key,
    )  # fmt: skip
    assert done.code == 0, done.err
    assert service.person(key, "eve") == {"about": "y" * 5_000}
    assert manifest_of(state).events == 3
    assert service.counts(manifest_of(state).job.id) == (3, 0, 0)


def test_a_second_import_changes_nothing_that_was_set(
    service: RunningSandbox, tmp_path: Path
) -> None:
    """With `newest` the first import's values stay, and the preflight says so."""
    key = "phc_persons_imported_twice_1"
    for number, plan in enumerate(("free", "pro")):
        source = tmp_path / f"{number}.jsonl"
        source.write_text(
            json.dumps(event(number, "ann", properties={"$set": {"plan": plan, f"p{number}": 1}}))
        )
        command = ("native", source, "--person-properties", "newest")
        done = imported(service, tmp_path / str(number), *command, key=key)
        assert done.code == 0, done.err
        assert "also from an earlier import" in done.out
    assert service.person(key, "ann") == {"plan": "free", "p0": 1, "p1": 1}


@pytest.mark.parametrize("choice", ["history", "newest"])
def test_shards_cant_know_what_persons_get(choice: str, tmp_path: Path) -> None:
    """A shard that would send what follows from its own files alone is refused."""
    source = tmp_path / "export.jsonl"
    source.write_text(json.dumps(event(1, "ann")) + "\n")
    command = ("native", source, "--dry-run", "--shard", "0/2", "--person-properties", choice)
    done = forwarder_import(*command, "--state", tmp_path / "state")
    assert done.code == 2
    assert f"--shard can't be beside --person-properties {choice}" in done.err


def test_former_words_name_those_that_replace_them(tmp_path: Path) -> None:
    """`set` and `set_once` are refused, and nothing is guessed."""
    (tmp_path / "a.jsonl").touch()
    for former, current in (("set", "history"), ("set_once", "oldest")):
        done = forwarder_import(
            "native", tmp_path / "a.jsonl", "--dry-run", "--person-properties", former
        )
        assert done.code == 2
        assert f"It is called {current} now" in done.err


def has_settled(importer: Killable, state: Path, records: int) -> bool:
    """Whether so many records are settled, or it has ended."""
    return importer.ended or is_settled(state, records)


@pytest.mark.parametrize("choice", [pytest.param("history", marks=pytest.mark.long), "newest"])
async def test_killed_an_import_resumes_with_the_same_properties(
    choice: str, tmp_path: Path
) -> None:
    """Killed twice, each event is there once, and none came with other bytes. If the index of
    `newest` was lost, it is made again, and is the same.
    """
    count = 3_000
    source = tmp_path / "export.jsonl"
    with source.open("w") as file:
        for number in range(count):
            one = event(0, f"p{number % 300}", properties={"$set": {"n": number // 500, "same": 1}})
            one["uuid"] = str(UUID(int=number + 1, version=4))
            one["timestamp"] = f"2024-01-{number * 20 // count + 1:02}T00:00:00Z"
            file.write(json.dumps(one) + "\n")
    config = write_config(tmp_path, "delivery: {concurrency: 1}\nbatch: {max_events: 100}\n")
    state = tmp_path / "state"
    with sandbox("--database", str(tmp_path / "sandbox.db")) as service:
        command = [
            *("import", "native", str(source), "--person-properties", choice, "--yes"),
            *("--config", str(config), "--upstream", service.url, "--api-key", KEY),
            *("--state", str(state), "--rate", "1500"),
        ]
        for settled in (count // 5, count // 2):
            async with Killable.living(command, tmp_path / "log") as importer:
                await eventually(
                    partial(has_settled, importer, state, settled),
                    explain=(tmp_path / "log").read_text,
                )
                assert await importer.killed() == -9, (tmp_path / "log").read_text()
        before = (state / INDEX).read_bytes() if choice == "newest" else b""
        (state / INDEX).unlink(missing_ok=True)
        async with Killable.living(command, tmp_path / "log") as importer:
            assert await importer.code() == 0, (tmp_path / "log").read_text()
        assert choice == "history" or (state / INDEX).read_bytes() == before
        events, _, conflicts = service.counts(manifest_of(state).job.id)
        assert (events, conflicts) == (count, 0)
        for number in (0, 150, 299):
            last = max(range(number, count, 300))
            assert service.person(KEY, f"p{number}") == {"n": last // 500, "same": 1}


def amplitude(number: int, user: str | None, device: str, person: dict[str, Any]) -> dict[str, Any]:
    """An event of the day `number`, with all of its person as it was then, and of its group."""
    return {
        "event_type": "seen",
        "user_id": user,
        "device_id": device,
        "uuid": str(UUID(int=number, version=4)),
        "event_time": f"2024-01-{number:02} 10:00:00.000000",
        "user_properties": person,
        "groups": {"company": ["acme"]},
        "group_properties": {"company": {"acme": {"tier": ("gold", "silver")[number == 3]}}},
    }


SNAPSHOTS: Final = (
    amplitude(1, None, "device", {"plan": "free"}),
    amplitude(2, "ann", "device", {"plan": "free", "city": "Paris"}),
    amplitude(3, "ann", "device", {"plan": "pro", "city": "Paris"}),
    amplitude(4, "ann", "device", {"plan": "pro", "city": "Paris"}),
    amplitude(5, "ann", "phone", {"plan": "free", "city": "Paris"}),
)


@pytest.mark.parametrize("choice", ["history", "newest"])
@pytest.mark.parametrize("order", ["in order", "sorted"])
def test_snapshots_of_persons_and_groups_end_in_the_last_one(
    choice: str, order: str, service: RunningSandbox, tmp_path: Path
) -> None:
    """Amplitude's events each say all of a person. A value that returns is the last one, for
    persons and groups; what hasn't changed is sent once.
    """
    key = f"phc_snapshots_{choice}_{order.replace(' ', '_')}"
    source = tmp_path / "export.jsonl"
    records = SNAPSHOTS if order == "in order" else (*SNAPSHOTS[3:], *SNAPSHOTS[:3])
    source.write_text("".join(json.dumps(record) + "\n" for record in records))
    options = ("--sort",) if order == "sorted" else ()
    command = ("amplitude", source, *options, "--person-properties", choice)
    config = write_config(tmp_path, "delivery: {concurrency: 1}\n")
    done = imported(service, tmp_path / "state", *command, "--config", config, key=key)
    assert done.code == 0, done.out + done.err
    assert service.person(key, "ann") == {"plan": "free", "city": "Paris"}
    assert service.person(key, "ann") == service.person(key, "phone")
    [group] = service.ask(f"groups?api_key={key}")["results"]
    assert group["properties"] == {"tier": "gold"}
    sent = service.ask(f"events?api_key={key}&event=seen")["results"]
    seen = {event["timestamp"][8:10]: event for event in sent}
    plans = {day: event["person_properties"]["plan"] for day, event in seen.items()}
    said = {day: event["properties"].get("$set") for day, event in seen.items()}
    if choice == "history":
        assert [plans[f"{day:02}"] for day in range(1, 6)] == ["free", "free", "pro", "pro", "free"]
        assert said["03"] == {"plan": "pro"}
        # sorted, the first record of the source that has both ids merges them at its time
        assert said["04"] is None or order == "sorted"
    else:
        assert set(plans.values()) == {"free"}
        assert set(said.values()) == {None}


MIXPANEL_BEYOND: Final = [
    {
        "event": "seen",
        "properties": {"time": time, "$insert_id": f"i{time}", "$device_id": "tablet", **who},
    }
    for time, who in (
        (1_709_300_000, {"distinct_id": "bob", "$user_id": "bob"}),
        (1_704_200_000, {"distinct_id": "$device:tablet"}),
        (1_704_300_000, {"distinct_id": "ann", "$user_id": "ann"}),
    )
]


@pytest.mark.parametrize("choice", ["oldest", "newest"])
def test_events_from_until_on_leave_no_trace(
    choice: str, service: RunningSandbox, tmp_path: Path
) -> None:
    """Although they come first in the source: neither a device that is theirs, nor a group's newer
    state, nor what they say of a person.
    """
    key = f"phc_until_{choice}"
    source = tmp_path / "export.jsonl"
    late = {"groups": {"company": "acme"}, "group_properties": {"company": {"tier": "late"}}}
    records = [
        {**amplitude(1, "bob", "device", {"plan": "late"}), "event_time": "2024-03-01", **late},
        {**amplitude(2, "ann", "phone", {"plan": "late"}), "event_time": "2024-03-01", **late},
        *SNAPSHOTS,
    ]
    for number, record in enumerate(records):
        record["uuid"] = str(UUID(int=100 + number, version=4))
    source.write_text("".join(json.dumps(record) + "\n" for record in records))
    command = ("amplitude", source, "--until", "2024-02-01", "--person-properties", choice)
    done = imported(service, tmp_path / "state", *command, key=key)
    assert done.code == 0, done.out + done.err
    who = [service.person(key, distinct_id) for distinct_id in ("ann", "device", "phone")]
    assert who == [{"plan": "free", "city": "Paris"}] * 3
    assert service.ask(f"persons?api_key={key}&distinct_id=bob")["results"] == []
    [group] = service.ask(f"groups?api_key={key}")["results"]
    assert group["properties"] == {"tier": "gold"}
    source.write_text("".join(json.dumps(record) + "\n" for record in MIXPANEL_BEYOND))
    command = ("mixpanel", source, "--until", "2024-02-01", "--time-offset", "0")
    done = imported(service, tmp_path / "mixpanel", *command, key=f"{key}_mixpanel")
    assert done.code == 0, done.out + done.err
    [person] = service.ask(f"persons?api_key={key}_mixpanel")["results"]
    assert sorted(person["distinct_ids"]) == ["$device:tablet", "ann"]


def test_group_keys_of_a_mixpanel_project(service: RunningSandbox, tmp_path: Path) -> None:
    """They are said by an option; also in the next run they are what this import is about."""
    key = "phc_group_keys"
    source = tmp_path / "export.jsonl"
    said = {"time": 1_704_200_000, "$insert_id": "i", "distinct_id": "ann", "company_id": "acme"}
    source.write_text(json.dumps({"event": "seen", "properties": said}) + "\n")
    command = ("mixpanel", source, "--time-offset", "0", "--group-key", "company_id=company")
    done = imported(service, tmp_path / "state", *command, key=key)
    assert done.code == 0, done.out + done.err
    [event] = service.ask(f"events?api_key={key}")["results"]
    assert event["properties"]["$groups"] == {"company": "acme"}
    assert event["properties"]["company_id"] == "acme"
    other = imported(service, tmp_path / "state", *command[:-2], key=key)
    assert other.code != 0
    assert "group-key" in other.out + other.err
