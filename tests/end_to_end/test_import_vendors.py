"""Vendors' exports with the oddities of real ones, by the command alone: who is who afterwards."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from zoneinfo import ZoneInfo

from tests.end_to_end.importing import RunningSandbox, imported

Record = dict[str, Any]
OLDEST: Final = ("--person-properties", "oldest")


def persons(service: RunningSandbox, key: str) -> dict[str, frozenset[str]]:
    """Of each distinct id of a project all ids of its person."""
    stored_persons = service.ask(f"persons?api_key={key}&limit=1000")["results"]
    ids = [frozenset(person["distinct_ids"]) for person in stored_persons]
    return {name: person_ids for person_ids in ids for name in person_ids}


def written(path: Path, records: Iterable[Record]) -> Path:
    """A file of JSON lines."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_an_amplitude_identify_without_a_user_identifies_no_one(
    service: RunningSandbox, tmp_path: Path
) -> None:
    """Of 42 users with 15 devices that were identified before anyone signed in, there are 42
    persons, and each has what its device was given.
    """
    records: list[Record] = []

    def add(name: str, user: str | None, device: str, **more: Any) -> None:
        number = len(records)
        records.append(
            {
                "event_type": name,
                "user_id": user,
                "device_id": device,
                "uuid": f"0f8fad5b-d9cb-469f-a165-{number:012x}",
                "event_time": f"2024-05-01 10:{number // 60:02}:{number % 60:02}.000000",
                **more,
            }
        )

    for number in range(42):
        user, device = f"user-{number}", f"device-{number}"
        if number < 15:
            add("$identify", None, device, user_properties={"$set": {"theme": "dark"}})
        add("Opened", None, device)
        add("Signed In", user, device)
        if number < 15:
            add("$identify", None, device, user_properties={"$unset": {"theme": "-"}})
    key = "phc_amplitude_null_user_01"
    source = written(tmp_path / "export.jsonl", records)
    done = imported(service, tmp_path / "state", "amplitude", source, *OLDEST, key=key)
    assert done.code == 0, done.err
    merged_ids = persons(service, key)
    assert len(set(merged_ids.values())) == 42
    assert all(
        merged_ids[f"user-{number}"] == {f"user-{number}", f"device-{number}"}
        for number in range(42)
    )
    assert service.person(key, "user-3")["theme"] == "dark"
    assert service.ask(f"warnings?api_key={key}")["count"] == 0
    names = {event["event"] for event in service.ask(f"events?api_key={key}&limit=1000")["results"]}
    assert names == {"$identify", "$set", "Opened", "Signed In"}


def test_rudderstacks_identify_sets_what_its_context_has(
    service: RunningSandbox, tmp_path: Path
) -> None:
    """Traits of 30 persons stand in `context.traits`; what each did before signing in is the
    person's, and what the context says of campaign, device and session is an event's.
    """
    records: list[Record] = []
    for number in range(30):
        context = {
            "traits": {"plan": f"plan-{number}", "email": f"u{number}@example.com"},
            "campaign": {"name": "spring", "source": "mail"},
            "os": {"name": "iOS", "version": "17"},
            "screen": {"width": 390, "height": 844, "density": 3},
            "locale": "de-DE",
            "groupId": f"company-{number % 3}",
            "sessionId": 1_714_557_600_000 + number,
        }
        usual = {"anonymousId": f"anonymous-{number}", "channel": "web", "rudderId": f"r{number}"}
        for second, call in enumerate(
            (
                {"type": "page", "userId": "", "context": {"traits": {}}},
                {"type": "identify", "userId": f"user-{number}", "context": context},
                {"type": "track", "userId": f"user-{number}", "context": context, "event": "Paid"},
            )
        ):
            when = f"2024-05-01T10:{number:02}:{second:02}.500Z"
            records.append(
                {**usual, **call, "messageId": f"m{len(records)}", "originalTimestamp": when}
            )
    key = "phc_rudderstack_traits_01"
    source = written(tmp_path / "rudder-logs.jsonl", records)
    done = imported(service, tmp_path / "state", "segment", source, *OLDEST, key=key)
    assert done.code == 0, done.err
    merged_ids = persons(service, key)
    assert len(set(merged_ids.values())) == 30
    for number in range(30):
        assert merged_ids[f"anonymous-{number}"] == {f"user-{number}", f"anonymous-{number}"}
        assert (
            service.person(key, f"user-{number}").items()
            >= {"plan": f"plan-{number}", "email": f"u{number}@example.com"}.items()
        )
    events = service.ask(f"events?api_key={key}&limit=1000")["results"]
    paid = [event["properties"] for event in events if event["event"] == "Paid"]
    assert len(paid) == 30
    for properties in paid:
        assert properties["utm_campaign"] == "spring"
        assert (properties["$os"], properties["$os_version"], properties["$locale"]) == (
            "iOS",
            "17",
            "de-DE",
        )
        assert (properties["$screen_width"], properties["$screen_density"]) == (390, 3)
        assert properties["$groups"]["segment_group"].startswith("company-")
    assert len({properties["$session_id"] for properties in paid}) == 30


def test_mixpanels_merges_make_the_persons_that_mixpanel_had(
    service: RunningSandbox, tmp_path: Path
) -> None:
    """By the first event of a device's user, by `$identify` of either id, by `$merge` of two users
    and by `$create_alias`; and profiles are of those persons.
    """
    records: list[Record] = []

    def add(name: str, **properties: Any) -> None:
        number = len(records)
        usual = {"time": 1_714_557_600 + number, "$insert_id": f"insert-{number}"}
        records.append({"event": name, "properties": {**usual, **properties}})

    for number in range(20):
        device, user = f"d{number}", f"user-{number}"
        add("Opened", distinct_id=f"$device:{device}", **{"$device_id": device})
        for _ in range(2):
            both = {"$device_id": device, "$user_id": user}
            add("Signed In", distinct_id=user, mp_country_code="DE", **both)
    for number in range(20, 30):
        device, user = f"D{number}-uuid", f"user-{number}"
        add("Opened", distinct_id=device)
        ids = {"$identified_id": user, "$anon_id": device}
        add("$identify", distinct_id=(user, device)[number % 2], **ids)
        add("Paid", distinct_id=user)
    add("Opened", distinct_id="ann")
    add("$identify", distinct_id="ann", **{"$anon_id": "ann-phone"})
    add("$identify", distinct_id="ann@work", **{"$anon_id": "ann-desk"})
    add("$merge", **{"$distinct_ids": ["ann", "ann@work"]})
    add("Opened", distinct_id="bob-device")
    add("$create_alias", distinct_id="bob-device", alias=4711)
    add("Paid", distinct_id=4711)
    profiles = [
        {"$distinct_id": f"user-{number}", "$properties": {"plan": "p"}} for number in range(3)
    ]
    key = "phc_mixpanel_merges_0001"
    source = written(tmp_path / "export.jsonl", records)
    done = imported(service, tmp_path / "state", "mixpanel", source, *OLDEST, key=key)
    assert done.code == 0, done.err
    more = written(tmp_path / "profiles.jsonl", profiles)
    command = ("mixpanel-profiles", more, "--default-time", "2024-06-01T00:00:00Z", *OLDEST)
    done = imported(service, tmp_path / "profiles", *command, key=key)
    assert done.code == 0, done.err
    merged_ids = persons(service, key)
    wanted = [{f"user-{number}", f"$device:d{number}"} for number in range(20)]
    wanted += [{f"user-{number}", f"D{number}-uuid"} for number in range(20, 30)]
    wanted += [{"ann", "ann-phone", "ann@work", "ann-desk"}, {"bob-device", "4711"}]
    assert set(merged_ids.values()) == set(map(frozenset, wanted))
    assert service.person(key, "$device:d2")["plan"] == "p"
    assert service.ask(f"warnings?api_key={key}")["count"] == 0
    events = service.ask(f"events?api_key={key}&limit=1000")["results"]
    signed = [event for event in events if event["event"] == "Signed In"]
    assert {event["properties"]["$geoip_country_name"] for event in signed} == {"Germany"}


def test_a_zone_hidden_in_mixpanels_epochs_is_named(
    service: RunningSandbox, tmp_path: Path
) -> None:
    """Epochs of Los Angeles' clock, of a year, stop the import with that zone to name; with it they
    are at their times, also those of the hour that comes twice in autumn.
    """
    zone = ZoneInfo("America/Los_Angeles")
    autumn = datetime(2023, 11, 5, 8, 10, tzinfo=UTC)  # 01:10, 50 minutes before clocks go back
    times = [
        datetime(2023, 3, 1, tzinfo=UTC) + timedelta(hours=9 * number) for number in range(900)
    ]
    times += [autumn + timedelta(minutes=10 * number) for number in range(12)]
    times.sort()
    records = []
    for number, time in enumerate(times):
        shown = time.astimezone(zone).replace(tzinfo=UTC)
        received = time + (timedelta(days=1) if number % 20 == 19 else timedelta(seconds=5))
        properties = {
            "time": int(shown.timestamp()),
            "distinct_id": f"user-{number % 7}",
            "$insert_id": f"insert-{number}",
            "mp_processing_time_ms": int(received.timestamp() * 1000),
        }
        records.append({"event": "Seen", "properties": properties})
    key = "phc_mixpanel_zones_00001"
    source = written(tmp_path / "export.jsonl", records)
    stopped = imported(service, tmp_path / "utc", "mixpanel", source, key=key)
    assert stopped.code == 1
    assert "wrong-zone" in stopped.out + stopped.err
    assert "--zone America/Los_Angeles" in " ".join((stopped.out + stopped.err).split())
    assert service.ask(f"events?api_key={key}")["count"] == 0

    command = ("mixpanel", source, "--zone", "America/Los_Angeles")
    done = imported(service, tmp_path / "zone", *command, key=key)
    assert done.code == 0, done.err
    events = service.ask(f"events?api_key={key}&limit=1000")["results"]
    stored_times = {
        event["properties"]["$insert_id"]: datetime.fromisoformat(event["timestamp"])
        for event in events
    }
    late = [f"insert-{number}" for number in range(19, len(times), 20)]
    wanted = {f"insert-{number}": time for number, time in enumerate(times)}
    assert {name for name, time in wanted.items() if stored_times[name] != time} <= set(late)
    assert len(stored_times) == len(times)
