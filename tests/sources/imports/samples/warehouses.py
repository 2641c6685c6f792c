"""Rows as warehouses and pipelines export them: Google Analytics 4 from BigQuery, Snowplow's
enriched events, Segment's warehouse. The same for the same seed, with the oddities of real ones.

GA4: the columns of https://support.google.com/analytics/answer/7029846, INT64 as texts, as BigQuery
writes them in JSON. Snowplow: "Enriched stream TSV file format" of snowplow/documentation.
Segment: the tables of https://segment.com/docs/connections/storage/warehouses/schema/.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from forwarder.sources.imports.formats.named import FOLDER, read_mapping

START: Final = datetime(2024, 5, 1, 9, tzinfo=UTC)
_NAMES: Final = ("page_view", "screen_view", "session_start", "purchase", "scroll", "sign_up")


def ga4_rows(count: int, seed: int = 4) -> Iterator[dict[str, Any]]:
    """Rows of `events_20240501`, in the order of time."""
    made = random.Random(seed)
    for number in range(count):
        micros = int((START + timedelta(seconds=number)).timestamp()) * 1_000_000 + number
        name = _NAMES[number % len(_NAMES)]
        user = number % 40
        params: list[dict[str, Any]] = [
            _param("ga_session_id", int_value=str(1_714_000_000 + user)),
            _param("page_location", string_value=f"https://shop.example.com/p/{number}?q=ä"),
            _param("page_title", string_value=f"Page {number}"),
            _param("engagement_time_msec", int_value=str(made.randrange(90_000))),
            _param("source", string_value="newsletter"),
            _param("score", double_value=0.5),
            _param("nothing"),
        ]
        params += [_param(f"custom_{at}", string_value=f"value {at}") for at in range(18)]
        row: dict[str, Any] = {
            "event_date": "20240501",
            "event_timestamp": str(micros),
            "event_name": name,
            "event_params": params,
            "event_bundle_sequence_id": str(-(number // 7) - 1),
            "user_pseudo_id": f"{1000 + user}.{1_700_000_000 + user}",
            "user_properties": [
                {"key": "plan", "value": {"string_value": "pro", "set_timestamp_micros": "17"}}
            ],
            "device": {
                "category": "mobile" if user % 2 else "desktop",
                "operating_system": "iOS",
                "operating_system_version": "17.1",
                "language": "en-us",
                "web_info": {"browser": "Chrome", "browser_version": "124.0"},
            },
            "geo": {"country": "Germany", "region": "Berlin", "city": "Berlin"},
            "traffic_source": {"name": "(direct)", "medium": "(none)", "source": "(direct)"},
            "collected_traffic_source": {"manual_campaign_name": "spring"},
            "stream_id": "4711",
            "platform": "WEB",
            "items": [],
        }
        if user < 20 and number >= 100:
            row["user_id"] = f"user-{user}"
        if name == "purchase":
            row["items"] = [{"item_id": "tea", "price": 4.5, "quantity": "2", "item_params": []}]
            row["ecommerce"] = {"purchase_revenue": 9.0, "transaction_id": f"t{number}"}
        yield row


def _param(key: str, **value: Any) -> dict[str, Any]:
    return {"key": key, "value": value}


def snowplow_columns() -> tuple[str, ...]:
    """The names of the columns, in their order."""
    table = read_mapping(FOLDER / "snowplow.yaml").table
    assert table is not None
    return tuple(table.reading["header"])


def snowplow_lines(count: int) -> Iterator[str]:
    """Lines of enriched events. One in a hundred has a title that begins with a quotation mark."""
    columns = snowplow_columns()
    for number in range(count):
        time = (START + timedelta(seconds=number)).strftime("%Y-%m-%d %H:%M:%S.") + "250"
        kind = ("page_view", "struct", "unstruct", "page_ping")[number % 4]
        cells = {
            "app_id": "shop",
            "platform": "web",
            "collector_tstamp": time,
            "derived_tstamp": time if number % 3 else "",
            "event": kind,
            "event_id": str(UUID(int=number + 1)),
            "event_vendor": "com.example",
            "event_name": {"struct": "event", "unstruct": "link_click"}.get(kind, kind),
            "event_format": "jsonschema",
            "v_tracker": "js-3.5.0",
            "user_id": f"user-{number % 9}" if number % 2 else "",
            "domain_userid": f"d-{number % 11}",
            "domain_sessionidx": "3",
            "page_url": f"https://shop.example.com/{number}",
            "page_title": '"Tea" and more' if number % 100 == 0 else f"Tea {number}",
            "br_cookies": "1",
            "dvce_ismobile": "0",
            "br_viewwidth": "1280",
            "contexts": json.dumps({"schema": "c", "data": [{"schema": "s", "data": {}}]}),
        }
        if kind == "struct":
            cells |= {"se_category": "cart", "se_action": "add", "se_value": "4.50"}
        if kind == "unstruct":
            cells["unstruct_event"] = json.dumps(
                {
                    "schema": "iglu:com.snowplowanalytics.snowplow/unstruct_event/jsonschema/1-0-0",
                    "data": {
                        "schema": "iglu:c/link_click/jsonschema/1-0-1",
                        "data": {"target": "#"},
                    },
                }
            )
        yield "\t".join(cells.get(name, "") for name in columns)


def segment_tables(count: int) -> dict[str, list[dict[str, Any]]]:
    """The rows of some tables by their names; `count` of the event's."""
    tables: dict[str, list[dict[str, Any]]] = {}

    def add(table: str, number: int, **more: Any) -> None:
        at = START + timedelta(seconds=number)
        time = at.strftime("%Y-%m-%d %H:%M:%S.") + f"{number % 1000:03} UTC"
        row = {
            "id": f"{table}-{number}",
            "received_at": time,
            "uuid": number,
            "uuid_ts": time,
            "timestamp": time if number % 5 else "",
            "original_timestamp": time,
            "anonymous_id": f"anon-{number % 30}",
            "user_id": f"user-{number % 30}" if number % 2 else "",
            "context_ip": "203.0.113.7",
            "context_library_name": "analytics.js",
            "context_page_url": "https://shop.example.com/start",
            "context_campaign_name": "spring",
        }
        tables.setdefault(table, []).append(row | more)

    for number in range(count):
        add(
            "order_completed",
            number,
            event="order_completed",
            event_text="Order Completed",
            total=5,
        )
        if number % 4 == 0:
            add(
                "pages",
                number,
                name="Home",
                url=f"https://shop.example.com/{number}",
                path="/",
                title="T",
            )
        if number % 20 == 1:
            add("identifies", number, name=f"Name {number}", email="a@example.com", plan="pro")
        if number % 50 == 1:
            add("groups", number, group_id=f"g{number % 3}", industry="tea")
            add("screens", number, name="Cart", category="shop")
        if number % 100 == 1:
            add("aliases", number, previous_id=f"old-{number}")
    return tables
