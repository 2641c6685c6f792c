"""Mappings by name, by the command alone: what becomes of each row is compared with the vendor's
documents, in a sandbox.
"""

from __future__ import annotations

import csv
import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any, Final

from tests.end_to_end.importing import Service, forwarder_import, imported, manifest_of
from tests.end_to_end.sent import events_of
from tests.sources.imports.samples.warehouses import ga4_rows, segment_tables, snowplow_lines

COUNT: Final = 3_000


def own(event: dict[str, Any]) -> dict[str, Any]:
    """What its source gave an event for properties."""
    added = ("$geoip_disable", "$import_job_id")
    return {name: value for name, value in event["properties"].items() if name not in added}


def done_once(service: Service, folder: Path, *command: str | Path) -> list[dict[str, Any]]:
    """The events of an import that is complete, refused nothing, and is the same a second time."""
    command = (*command, "--person-properties", "oldest")
    done = imported(service, folder / "state", *command)
    assert done.code == 0, done.out + done.err
    manifest = manifest_of(folder / "state")
    assert manifest.complete
    assert not manifest.books.refused
    assert service.counts(manifest.job.id) == (manifest.events, 0, 0)
    again = imported(service, folder / "other", *command)
    assert again.code == 0, again.err
    assert service.counts(manifest.job.id) == (manifest.events, manifest.events, 0)
    verified = forwarder_import("verify", "--state", folder / "state", "--sandbox", service.url)
    assert verified.code == 0, verified.out
    return events_of(service, manifest.job.id)


def test_ga4(service: Service, tmp_path: Path) -> None:
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


def test_snowplow(service: Service, tmp_path: Path) -> None:
    """131 columns without header and quotes: a title that begins with a quotation mark takes in no
    row. Fields of a self-describing event are properties.
    """
    folder = tmp_path / "good"
    folder.mkdir()
    with gzip.open(folder / "part-00000.gz", "wt") as file:
        file.writelines(line + "\n" for line in snowplow_lines(COUNT))
    events = done_once(service, tmp_path, "snowplow", folder / "part-00000.gz")
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


def test_segment_warehouse(service: Service, tmp_path: Path) -> None:
    """A file a table: rows of half of the persons have no user_id. What a call is, its file says,
    or its columns.
    """
    tables = segment_tables(COUNT)
    paths = []
    for table, rows in tables.items():
        path = tmp_path / f"{table}.csv"
        paths.append(path)
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
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
        name: [own(each) for each in events if each["event"] == name]
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
    service: Service, tmp_path: Path
) -> None:
    """A page has a property `group_id`, a person a trait `event`."""
    at = "2024-05-01 10:00:00"
    pages, identifies = tmp_path / "pages.csv", tmp_path / "identifies.csv"
    pages.write_text(f"id,user_id,timestamp,url,group_id\n1,u,{at},https://x.example/,g\n")
    identifies.write_text(f"id,user_id,anonymous_id,timestamp,event\n2,u,a,{at},signup\n")
    events = done_once(service, tmp_path, "segment-warehouse", pages, identifies)
    assert sorted(event["event"] for event in events) == ["$identify", "$pageview"]


def test_segment_rows_of_an_unknown_table_are_refused(service: Service, tmp_path: Path) -> None:
    """A row that neither its file nor its columns tell is no `$identify` by guess."""
    path = tmp_path / "rows.csv"
    path.write_text("id,user_id,timestamp,name\n1,u,2024-05-01 10:00:00,Cart\n")
    done = imported(service, tmp_path / "state", "segment-warehouse", path)
    assert done.code == 1
    assert "unmappable" in done.out
