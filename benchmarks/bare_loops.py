"""The floors of imports from other vendors: decode → map → encode, and nothing else, as anyone would write it in an afternoon.

Each loop reads a file line by line, decodes a record, makes of it an event by the essential rules of its format (which fields are name, id,
time and uuid, which properties get another name, which are dropped), and encodes that. It checks nothing, refuses nothing, looks for no
repeats, keeps no batches and counts nothing.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from hashlib import sha1
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks.exports import Export

Event = dict[str, Any]

_NAMESPACE: Final = bytes(range(16))
_JOB: Final = "5a5a5a5a-0000-5000-8000-000000000000"
_decode: Final = msgspec.json.Decoder().decode
_encode: Final = msgspec.json.Encoder().encode

_AMPLITUDE: Final = {
    "os_name": "$browser",
    "os_version": "$browser_version",
    "device_type": "$os",
    "ip_address": "$ip",
    "city": "$geoip_city_name",
    "region": "$geoip_subdivision_1_name",
    "country": "$geoip_country_name",
    "device_id": "$device_id",
    "session_id": "amplitude_session_id",
    "event_id": "amplitude_event_id",
    "$insert_id": "amplitude_insert_id",
    "platform": "amplitude_platform",
    "language": "amplitude_language",
}
_AMPLITUDE_PAGE: Final = {
    "[Amplitude] Page URL": "$current_url",
    "[Amplitude] Page Domain": "$host",
    "[Amplitude] Page Path": "$pathname",
}
_AMPLITUDE_EVENTS: Final = {"[Amplitude] Page Viewed": "$pageview", "[Amplitude] Element Clicked": "$autocapture"}
_MIXPANEL: Final = {"$city": "$geoip_city_name", "$region": "$geoip_subdivision_1_name", "mp_country_code": "$geoip_country_code"}
_MIXPANEL_NOTES: Final = ("$mp_api_endpoint", "mp_processing_time_ms", "$geo_source", "$mp_api_timestamp_ms")
_SEGMENT_EVENTS: Final = {"page": "$pageview", "screen": "$screen", "identify": "$identify", "alias": "$create_alias"}


def bare_loop(export: Export, path: Path) -> tuple[int, int]:
    """Run the loop over a file once: how many events, and how many bytes they have."""
    events = size = 0
    for event in _events(export, path):
        events += 1
        size += len(_encode(event))
    return events, size


def _events(export: Export, path: Path) -> Iterator[Event]:
    if export is Export.CSV:
        yield from _of_table(path)
        return
    make = _MAKERS[export]
    with path.open("rb") as file:
        for line in file:
            yield make(_decode(line))


def _amplitude(record: dict[str, Any]) -> Event:
    properties = {ours: value for theirs, ours in _AMPLITUDE.items() if (value := record.get(theirs)) is not None}
    for name, value in record["event_properties"].items():
        properties[_AMPLITUDE_PAGE.get(name, name)] = value
    if said := record.get("user_properties"):
        properties["$set_once"] = said
    name = record["event_type"]
    time = record["event_time"].replace(" ", "T") + "Z"
    return _event(_AMPLITUDE_EVENTS.get(name, name), record.get("user_id") or record["device_id"], record["uuid"], time, properties)


def _mixpanel(record: dict[str, Any]) -> Event:
    name, properties = record["event"], record["properties"]
    time, who = properties.pop("time"), properties.pop("distinct_id")
    uuid = _uuid(f"{name} {time} {who} {properties['$insert_id']}")
    for note in _MIXPANEL_NOTES:
        properties.pop(note, None)
    for theirs, ours in _MIXPANEL.items():
        if theirs in properties:
            properties[ours] = properties.pop(theirs)
    seconds = time / 1000 if time > 10_000_000_000 else time
    return _event(name, who, uuid, datetime.fromtimestamp(seconds, UTC).isoformat(), properties)


def _segment(record: dict[str, Any]) -> Event:
    context = record["context"]
    page, library = context.get("page", {}), context.get("library", {})
    properties = {
        "$ip": context.get("ip"),
        "$raw_user_agent": context.get("userAgent"),
        "$lib": library.get("name"),
        "$lib_version": library.get("version"),
        "$current_url": page.get("url"),
        "$pathname": page.get("path"),
        "$title": page.get("title"),
        **record["properties"],
    }
    kind = record["type"]
    name = record["event"] if kind == "track" else _SEGMENT_EVENTS[kind]
    return _event(name, record.get("userId") or record["anonymousId"], _uuid(record["messageId"]), record["timestamp"], properties)


def _mapping(record: dict[str, Any]) -> Event:
    properties = {"page": record["page"], "basket": record["basket"], "city": record["city"], "owner": record["owner"]}
    who = record["who"]
    return _event(record["what"], who["id"], record["id"], record["when"], {**properties, "$set_once": {"plan": who["plan"]}})


def _of_table(path: Path) -> Iterator[Event]:
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.reader(file)
        header = next(rows)
        for row in rows:
            properties: dict[str, Any] = dict(zip(header, row, strict=True))
            name, who, time, uuid = (properties.pop(column) for column in ("event", "distinct_id", "timestamp", "uuid"))
            properties["amount"] = float(properties["amount"])
            properties["paid"] = properties["paid"] == "true"
            properties["basket"] = _decode(properties["basket"])
            yield _event(name, who, uuid, time, properties)


def _uuid(key: str) -> str:
    text = sha1(_NAMESPACE + key.encode(), usedforsecurity=False).hexdigest()
    return f"{text[:8]}-{text[8:12]}-5{text[13:16]}-8{text[17:20]}-{text[20:32]}"


def _event(name: str, who: str, uuid: str, time: str, properties: dict[str, Any]) -> Event:
    properties["$geoip_disable"] = True
    properties["$import_job_id"] = _JOB
    return {"event": name, "distinct_id": who, "uuid": uuid, "timestamp": time, "properties": properties}


_MAKERS: Final[dict[Export, Callable[[dict[str, Any]], Event]]] = {
    Export.AMPLITUDE: _amplitude,
    Export.MIXPANEL: _mixpanel,
    Export.SEGMENT: _segment,
    Export.MAPPING: _mapping,
}
