"""Mappings by name, by the command alone: what becomes of each row, and of persons, is compared
with the vendor's documents, in a sandbox. One import of each vendor is interrupted and resumed.
"""

from __future__ import annotations

import csv
import gzip
import json
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from tests.end_to_end.importing import (
    KEY,
    RunningSandbox,
    forwarder_import,
    imported,
    interrupt_import,
    manifest_of,
)
from tests.end_to_end.person_model import PersonUpdate, persons_after
from tests.end_to_end.sent import events_of
from tests.sources.imports.samples.warehouses import START, ga4_rows, segment_tables, snowplow_lines

COUNT: Final = 600
"""Six requests of an import that is interrupted after the second."""
PLANS: Final = ("free", "pro", "team")


def own(event: dict[str, Any]) -> dict[str, Any]:
    """What its source gave an event for properties."""
    added = ("$geoip_disable", "$import_job_id")
    return {name: value for name, value in event["properties"].items() if name not in added}


def done_once(
    service: RunningSandbox, folder: Path, *command: str | Path, interrupted: bool = False
) -> list[dict[str, Any]]:
    """The events of an import that is complete, refused nothing, and is the same a second time.
    `interrupted`: by `kill -9`, and resumed.
    """
    command = (*command, "--person-properties", "oldest")
    began = 0
    if interrupted:
        began = interrupt_import(service, folder / "state", KEY, *command)
    done = imported(service, folder / "state", *command)
    assert done.code == 0, done.out + done.err
    manifest = manifest_of(folder / "state")
    assert manifest.complete
    assert began < manifest.events
    assert not manifest.books.refused
    events, repeats, conflicts = service.counts(manifest.job.id)
    assert (events, conflicts) == (manifest.events, 0)
    assert repeats < manifest.events  # what was in flight when it was killed
    again = imported(service, folder / "other", *command)
    assert again.code == 0, again.err
    assert service.counts(manifest.job.id) == (manifest.events, manifest.events + repeats, 0)
    verified = forwarder_import("verify", "--state", folder / "state", "--sandbox", service.url)
    assert verified.code == 0, verified.out
    return events_of(service, manifest.job.id)


def test_ga4(service: RunningSandbox, tmp_path: Path) -> None:
    """Parameters are properties with their types, the time has microseconds, and events of one
    batch that only differ in a parameter are two.
    """
    rows = list(ga4_rows(COUNT))
    twin = json.loads(json.dumps(rows[-1]))
    twin["event_params"][0]["value"]["int_value"] = "7"
    path = tmp_path / "events_20240501.json.gz"
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in [*rows, twin])
    events = done_once(service, tmp_path, "ga4", path)
    assert len(events) == COUNT + 1
    names = Counter(event["event"] for event in events)
    assert names["$pageview"] == names["$screen"] == COUNT / 6
    assert not names["page_view"]
    assert {event["distinct_id"] for event in events} == {
        *(f"user-{user}" for user in range(20)),
        *(f"{1000 + user}.{1_700_000_000 + user}" for user in range(40)),
    }
    [first] = [event for event in events if event["timestamp"].startswith("2024-05-01T09:00:03.")]
    assert first["timestamp"].rstrip("Z0") == "2024-05-01T09:00:03.000003"
    assert first["event"] == "purchase"
    properties = own(first)
    assert {name: properties.pop(name) for name in ("$current_url", "$title", "ga_session_id")} == {
        "$current_url": "https://shop.example.com/p/3?q=ä",
        "$title": "Page 3",
        "ga_session_id": 1_714_000_003,
    }
    assert properties["score"] == 0.5
    assert properties["items"][0]["item_id"] == "tea"
    assert properties["ecommerce"] == {"purchase_revenue": 9.0, "transaction_id": "t3"}
    assert (properties["utm_source"], properties["utm_campaign"]) == ("newsletter", "spring")
    assert (properties["$device_type"], properties["$os"]) == ("Mobile", "iOS")
    assert not {"page_location", "source", "nothing", "event_params"} & properties.keys()
    [plan] = [value for name, value in properties.items() if name in ("$set", "$set_once")]
    assert plan["plan"] == "pro"


def test_snowplow(service: RunningSandbox, tmp_path: Path) -> None:
    """131 columns without header and quotes: a title that begins with a quotation mark takes in no
    row. Fields of a self-describing event are properties.
    """
    folder = tmp_path / "good"
    folder.mkdir()
    with gzip.open(folder / "part-00000.gz", "wt") as file:
        file.writelines(line + "\n" for line in snowplow_lines(COUNT))
    events = done_once(service, tmp_path, "snowplow", folder / "part-00000.gz", interrupted=True)
    assert Counter(event["event"] for event in events) == dict.fromkeys(
        ("$pageview", "add", "link_click", "page_ping"), COUNT / 4
    )
    assert {event["distinct_id"] for event in events} == {
        *(f"user-{number}" for number in range(9)),
        *(f"d-{number}" for number in range(11)),
    }
    assert sum(own(event)["$title"] == '"Tea" and more' for event in events) == COUNT / 100
    by_uuid = {event["uuid"]: event for event in events}
    struct = by_uuid["00000000-0000-0000-0000-000000000002"]
    assert struct["timestamp"].startswith("2024-05-01T09:00:01.25")
    properties = own(struct)
    assert (properties["se_value"], properties["br_cookies"], properties["dvce_ismobile"]) == (
        4.5,
        True,
        False,
    )
    assert properties["contexts"]["data"] == [{"schema": "s", "data": {}}]
    assert (properties["$viewport_width"], properties["domain_sessionidx"]) == (1280, 3)
    assert "page_url" not in properties
    click = own(by_uuid["00000000-0000-0000-0000-000000000003"])
    assert (click["target"], click["snowplow_schema"]) == (
        "#",
        "iglu:c/link_click/jsonschema/1-0-1",
    )
    assert "unstruct_event" not in click


def test_segment_warehouse(service: RunningSandbox, tmp_path: Path) -> None:
    """A file a table: rows of half of the persons have no user_id. What a call is, its file says,
    or its columns.
    """
    tables = segment_tables(COUNT)
    paths = write_tables(tmp_path, tables)
    events = done_once(service, tmp_path, "segment-warehouse", *paths, "--sort")
    assert Counter(event["event"] for event in events) == {
        "Order Completed": len(tables["order_completed"]),
        "$pageview": len(tables["pages"]),
        "$identify": len(tables["identifies"]),
        "$groupidentify": len(tables["groups"]),
        "$screen": len(tables["screens"]),
        "$create_alias": len(tables["aliases"]),
    }
    named = {
        name: [own(event) for event in events if event["event"] == name]
        for name in (
            "Order Completed",
            "$pageview",
            "$identify",
            "$groupidentify",
            "$screen",
            "$create_alias",
        )
    }
    order = named["Order Completed"][0]
    assert order == {
        "total": "5",
        "anonymous_id": order["anonymous_id"],
        "$ip": "203.0.113.7",
        "$lib": "analytics.js",
        "$current_url": "https://shop.example.com/start",
        "utm_campaign": "spring",
    }
    assert named["$pageview"][0]["$current_url"].startswith("https://shop.example.com/")
    assert named["$pageview"][0]["$current_url"] != "https://shop.example.com/start"
    identify = named["$identify"][0]
    [traits] = [value for name, value in identify.items() if name in ("$set", "$set_once")]
    assert sorted(set(traits) - {"$initial_os"}) >= ["email", "name", "plan"]
    assert traits["plan"] == "pro"
    assert not any(name.startswith("context_") or name in ("id", "user_id") for name in traits)
    assert identify["$anon_distinct_id"].startswith("anon-")
    assert named["$groupidentify"][0]["$group_set"] == {"industry": "tea"}
    assert named["$screen"][0]["$screen_name"] == "Cart"
    assert named["$create_alias"][0]["alias"].startswith("old-")
    assert {event["distinct_id"].partition("-")[0] for event in events} == {"user", "anon"}


def test_a_table_of_a_known_name_is_that_one_whatever_its_columns(
    service: RunningSandbox, tmp_path: Path
) -> None:
    """A page has a property `group_id`, a person a trait `event`."""
    at = "2024-05-01 10:00:00"
    pages, identifies = tmp_path / "pages.csv", tmp_path / "identifies.csv"
    pages.write_text(f"id,user_id,timestamp,url,group_id\n1,u,{at},https://x.example/,g\n")
    identifies.write_text(f"id,user_id,anonymous_id,timestamp,event\n2,u,a,{at},signup\n")
    events = done_once(service, tmp_path, "segment-warehouse", pages, identifies)
    assert sorted(event["event"] for event in events) == ["$identify", "$pageview"]


@pytest.mark.parametrize("choice", [pytest.param("history", marks=pytest.mark.long), "newest"])
def test_persons_of_ga4_end_as_chosen(choice: str, service: RunningSandbox, tmp_path: Path) -> None:
    """A user, and a browser that isn't one's yet, have the newest user properties; where they came
    from first stays.
    """
    live = PersonUpdate("user-5", START, set={"plan": "enterprise"})
    said = {}
    path = tmp_path / "events_20240501.json"
    with path.open("w") as file:
        for number, row in enumerate(ga4_rows(COUNT)):
            plan = PLANS[(number // 90 + number) % 3]
            row["user_properties"][0]["value"]["string_value"] = plan
            row["traffic_source"]["source"] = f"source-{number // 200}"
            if number % 50 == 7:
                row["user_properties"].append({"key": "level", "value": {"int_value": str(number)}})
            file.write(json.dumps(row) + "\n")
            level = {"level": number} if number % 50 == 7 else {}
            first = {"$initial_utm_source": f"source-{number // 200}"}
            first |= {"$initial_utm_medium": "(none)", "$initial_utm_campaign": "(direct)"}
            said[str(number)] = PersonUpdate(
                row.get("user_id") or row["user_pseudo_id"],
                START + timedelta(seconds=number, microseconds=number),
                {"plan": plan, **level},
                first,
            )
    check_persons(service, tmp_path, choice, said, live, "ga4", path)


@pytest.mark.parametrize("choice", ["history", pytest.param("newest", marks=pytest.mark.long)])
def test_persons_of_segments_warehouse_end_as_chosen(
    choice: str, service: RunningSandbox, tmp_path: Path
) -> None:
    """Traits are those of the last row in `identifies`, also of one without a user; its anonymous
    ids and the aliases' former ones become the user. Groups are as their last row says.
    """
    live = PersonUpdate("user-11", START, set={"plan": "enterprise"})
    tables = segment_tables(COUNT)
    for at, row in enumerate(tables["identifies"]):
        row |= {"plan": PLANS[at // 2 % 3], "size": at if at % 4 == 0 else ""}
        row["user_id"] = row["user_id"] if at % 4 != 1 else ""
    for at, row in enumerate(tables["groups"]):
        row["industry"] = ("tea", "cocoa", "tea")[at * 3 // len(tables["groups"])]
    said = {}
    for table, rows in tables.items():
        for row in rows:
            who = row["user_id"] or row["anonymous_id"]
            traits: dict[str, Any] = {}
            joins: tuple[str, ...] = ()
            if table == "identifies":
                traits = {name: row[name] for name in ("name", "email", "plan")}
                traits |= {"size": str(row["size"])} if row["size"] != "" else {}
                joins = (row["anonymous_id"],) if row["user_id"] else ()
            elif table == "aliases":
                joins = (row["previous_id"],)
            time = datetime.fromisoformat(row["original_timestamp"].replace(" UTC", "+00:00"))
            said[row["id"]] = PersonUpdate(who, time, traits, joins=joins)
    said = dict(sorted(said.items(), key=lambda item: item[1].time))
    paths = write_tables(tmp_path, tables)
    key = check_persons(
        service, tmp_path, choice, said, live, "segment-warehouse", *paths, "--sort"
    )
    last = {row["group_id"]: row["industry"] for row in tables["groups"]}
    groups = service.ask(f"groups?api_key={key}")["results"]
    assert {group["group_key"]: group["properties"]["industry"] for group in groups} == last


def test_snowplow_says_nothing_of_persons(service: RunningSandbox, tmp_path: Path) -> None:
    """So no choice is asked for, and none changes an event."""
    path = tmp_path / "part-00000"
    path.write_text("".join(line + "\n" for line in snowplow_lines(40)))
    sent = []
    for choice in ("", "history", "newest"):
        key = f"phc_snowplow_persons_{choice or 'unasked'}"
        command = ["--person-properties", choice] if choice else []
        done = imported(service, tmp_path / f"state{choice}", "snowplow", path, *command, key=key)
        assert done.code == 0, done.out + done.err
        events = service.ask(f"events?api_key={key}&limit=1000")["results"]
        sent.append(
            sorted((event["uuid"], sorted(own(event).items(), key=str)) for event in events)
        )
    assert len(sent[0]) == 40
    assert sent[0] == sent[1] == sent[2]


def check_persons(
    service: RunningSandbox,
    folder: Path,
    choice: str,
    said: dict[str, PersonUpdate],
    live: PersonUpdate,
    *command: str | Path,
) -> str:
    """Interrupt an import, resume it and import again: persons are those of the model, a live one
    has kept its values in `newest`. The project key.
    """
    key = f"phc_{str(command[0]).replace('-', '_')}_{choice}"
    before = [live] if choice == "newest" else []
    for live_event in before:
        properties = {"$set": live_event.set}
        event = {"event": "live", "distinct_id": live_event.distinct_id, "properties": properties}
        service.capture({"api_key": key, **event})
    config = folder / "forwarder.yaml"
    config.write_text("delivery: {concurrency: 1}\n")
    command = (*command, "--person-properties", choice, "--config", config)
    interrupt_import(service, folder / "state", key, *command)
    for state in ("state", "again"):
        done = imported(service, folder / state, *command, key=key)
        assert done.code == 0, done.out + done.err
        assert service.ask(f"conflicts?api_key={key}")["count"] == 0
        persons = service.ask(f"persons?api_key={key}&limit=10000")["results"]
        outcome = persons_after(choice, said, before)
        assert {frozenset(person["distinct_ids"]) for person in persons} == outcome.persons
        for person in persons:
            wanted = outcome.ends[person["distinct_ids"][0]]
            names = {name for name in person["properties"] if name[0] != "$" and name[:4] != "utm_"}
            assert names == {name for name in wanted if name[0] != "$"}
            assert person["properties"].items() >= wanted.items()
    assert manifest_of(folder / "state").events == len(said)
    return key


def write_tables(folder: Path, tables: dict[str, list[dict[str, Any]]]) -> list[Path]:
    """A CSV file of each table."""
    paths = []
    for table, rows in tables.items():
        path = folder / f"{table}.csv"
        paths.append(path)
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return paths


def test_segment_rows_of_an_unknown_table_are_refused(
    service: RunningSandbox, tmp_path: Path
) -> None:
    """A row that neither its file nor its columns tell is no `$identify` by guess."""
    path = tmp_path / "rows.csv"
    path.write_text("id,user_id,timestamp,name\n1,u,2024-05-01 10:00:00,Cart\n")
    done = imported(service, tmp_path / "state", "segment-warehouse", path)
    assert done.code == 1
    assert "unmappable" in done.out
