"""The floors of imports from other vendors: decode → map → encode, and nothing else, as anyone
would write it in an afternoon.

Each loop reads a file line by line, decodes a record, makes of it an event by the rules of its
format (the choice of its id, its time read, its own uuid or the one that follows from its key, the
properties that get another name, what is dropped), and encodes that. Of the records of `exports`
that is the event that an import sends, member for member. It checks nothing, refuses nothing,
looks for no repeats, brings no events of first times, keeps no batches and counts nothing.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks.exports import Export
from forwarder.sources.imports.countries import COUNTRIES
from forwarder.sources.imports.format import derived_uuid
from forwarder.sources.imports.sessions import session_uuid

Event = dict[str, Any]

JOB: Final = "5a5a5a5a-0000-5000-8000-000000000000"
_decode: Final = msgspec.json.Decoder().decode
_encode: Final = msgspec.json.Encoder().encode

_AMPLITUDE: Final = {
    "os_name": "$browser",
    "device_type": "$os",
    "ip_address": "$ip",
    "city": "$geoip_city_name",
    "region": "$geoip_subdivision_1_name",
    "country": "$geoip_country_name",
    "user_id": "$amplitude_user_id",
    "device_id": "$amplitude_device_id",
    "event_id": "$amplitude_event_id",
    "session_id": "$amplitude_session_id",
    "$insert_id": "amplitude_insert_id",
    "amplitude_id": "amplitude_id",
    **{
        name: f"amplitude_{name}"
        for name in (
            *(
                "platform",
                "language",
                "version_name",
                "start_version",
                "library",
                "device_family",
            ),
            *(
                "device_brand",
                "device_manufacturer",
                "device_model",
                "device_carrier",
                "dma",
                "location_lat",
                "location_lng",
            ),
            *("adid", "idfa", "paying", "user_creation_time"),
        )
    },
}
_AMPLITUDE_PLACE: Final = {name: _AMPLITUDE[name] for name in ("city", "region", "country")}
_AMPLITUDE_DEVICES: Final = {"Windows": "Desktop", "Linux": "Desktop", "Mac": "Desktop"} | {
    "iOS": "Mobile",
    "Android": "Mobile",
}
_AMPLITUDE_PAGE: Final = {
    "[Amplitude] Page URL": "$current_url",
    "[Amplitude] Page Domain": "$host",
    "[Amplitude] Page Path": "$pathname",
}
_AMPLITUDE_EVENTS: Final = {
    "[Amplitude] Page Viewed": "$pageview",
    "[Amplitude] Element Clicked": "$autocapture",
    "[Amplitude] Element Changed": "$autocapture",
}
_MIXPANEL: Final = {
    "$city": "$geoip_city_name",
    "$region": "$geoip_subdivision_1_name",
    "mp_country_code": "$geoip_country_code",
    "current_url_path": "$pathname",
    "current_domain": "$host",
    "mp_lib": "$lib",
}
_MIXPANEL_NOTES: Final = (
    "$mp_api_endpoint",
    "mp_processing_time_ms",
    "$geo_source",
    "$mp_api_timestamp_ms",
)
_MIXPANEL_EVENTS: Final = {"$mp_web_page_view": "$pageview"}
_SEGMENT_PAGE: Final = {
    "url": "$current_url",
    "path": "$pathname",
    "referrer": "$referrer",
    "title": "$title",
}
_SEGMENT_EVENTS: Final = {
    "page": "$pageview",
    "screen": "$screen",
    "identify": "$identify",
    "alias": "$create_alias",
}


def bare_loop(export: Export, path: Path) -> tuple[int, int]:
    """Run the loop over a file once: how many events, and how many bytes they have."""
    events = size = 0
    for event in bare_events(export, path):
        events += 1
        size += len(_encode(event))
    return events, size


def bare_events(export: Export, path: Path) -> Iterator[Event]:
    """The events of a file; of an event's time msgspec writes what the service wants."""
    if export is Export.CSV:
        yield from _of_table(path)
        return
    make = _MAKERS[export]
    with path.open("rb") as file:
        for line in file:
            if (event := make(_decode(line))) is not None:
                yield event


def _amplitude(record: dict[str, Any]) -> Event | None:
    name = record["event_type"]
    if name in ("session_start", "session_end"):
        return None
    properties = _named(_AMPLITUDE, record)
    place = _named(_AMPLITUDE_PLACE, record)
    device = record["device_id"]
    properties["$device_id"] = device
    version = record["os_version"]
    properties["$browser_version"] = int(version) if version.isdecimal() else version
    if kind := _AMPLITUDE_DEVICES.get(record["device_type"]):
        properties["$device_type"] = kind
    if (session := record["session_id"]) > 0:
        properties["$session_id"] = session_uuid(device, session)
    for theirs, value in record["event_properties"].items():
        properties[_AMPLITUDE_PAGE.get(theirs, theirs)] = value
    if said := record.get("user_properties"):
        properties["$set_once"] = place | said
    time = (
        record.get("event_time")
        or record.get("client_event_time")
        or record["server_received_time"]
    )
    who = record.get("user_id") or record["device_id"]
    return _event(_AMPLITUDE_EVENTS.get(name, name), who, record["uuid"], _time(time), properties)


def _mixpanel(record: dict[str, Any]) -> Event:
    name = record["event"]
    properties = record["properties"]
    time = properties.pop("time")
    who = properties.pop("distinct_id", None)
    uuid = derived_uuid(
        _text(
            "mixpanel",
            name,
            time * 1000 if time > 10_000_000_000 else time * 1_000_000,
            who,
            properties["$insert_id"],
        )
    )
    if who is None or who.startswith("$device:"):
        who = properties.get("$distinct_id_before_identity") or who
    for note in _MIXPANEL_NOTES:
        properties.pop(note, None)
    for theirs, ours in _MIXPANEL.items():
        if theirs in properties:
            properties[ours] = properties.pop(theirs)
    if country := COUNTRIES.get(properties["$geoip_country_code"]):
        properties["$geoip_country_name"] = country
    seconds = time / 1000 if time > 10_000_000_000 else time
    return _event(
        _MIXPANEL_EVENTS.get(name, name),
        who,
        uuid,
        datetime.fromtimestamp(seconds, UTC),
        properties,
    )


def _segment(record: dict[str, Any]) -> Event:
    context = record["context"]
    kind = record["type"]
    library = context.get("library", {})
    around = {
        "$ip": context.get("ip"),
        "$raw_user_agent": context.get("userAgent"),
        "$lib": library.get("name"),
        "$lib_version": library.get("version"),
    }
    properties = {name: value for name, value in around.items() if value is not None}
    properties |= _named(_SEGMENT_PAGE, context.get("page", {}))
    properties |= record.get("properties") or {}
    time = record.get("timestamp") or record["originalTimestamp"]
    user = record.get("userId")
    name = record["event"] if kind == "track" else _SEGMENT_EVENTS[kind]
    if kind == "identify":
        properties["$set_once"] = record["traits"]
        if user:
            properties["$anon_distinct_id"] = record["anonymousId"]
    elif kind == "alias":
        properties["alias"] = record["previousId"]
    uuid = derived_uuid(_text("segment", record["messageId"]))
    return _event(name, user or record["anonymousId"], uuid, _time(time), properties)


def _mapping(record: dict[str, Any]) -> Event:
    properties = {
        "page": record["page"],
        "basket": record["basket"],
        "city": record["city"],
        "owner": record["owner"],
    }
    who = record["who"]
    return _event(
        record["what"],
        who["id"],
        record["id"],
        _time(record["when"]),
        {**properties, "$set_once": {"plan": who["plan"]}},
    )


def _of_table(path: Path) -> Iterator[Event]:
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.reader(file)
        header = next(rows)
        for row in rows:
            properties: dict[str, Any] = {
                name: cell for name, cell in zip(header, row, strict=True) if cell
            }
            name, who, time, uuid = (
                properties.pop(column) for column in ("event", "distinct_id", "timestamp", "uuid")
            )
            properties["amount"] = float(properties["amount"])
            properties["paid"] = properties["paid"] == "true"
            properties["basket"] = _decode(properties["basket"])
            yield _event(name, who, uuid, _time(time), properties)


def _named(names: Mapping[str, str], fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that have a value, under other names."""
    return {
        ours: value for theirs, ours in names.items() if (value := fields.get(theirs)) is not None
    }


def _time(text: str) -> datetime:
    """ISO 8601; without a zone it is UTC."""
    time = datetime.fromisoformat(text)
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time


def _text(*parts: Any) -> str:
    """A key that no other parts give."""
    return _encode(parts).decode()


def _event(name: str, who: str, uuid: str, time: datetime, properties: dict[str, Any]) -> Event:
    properties["$geoip_disable"] = True
    properties["$import_job_id"] = JOB
    return {
        "event": name,
        "distinct_id": who,
        "uuid": uuid,
        "timestamp": time,
        "properties": properties,
    }


_MAKERS: Final[dict[Export, Callable[[dict[str, Any]], Event | None]]] = {
    Export.AMPLITUDE: _amplitude,
    Export.MIXPANEL: _mixpanel,
    Export.SEGMENT: _segment,
    Export.MAPPING: _mapping,
}
