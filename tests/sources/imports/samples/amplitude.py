"""An Amplitude export as its field list has it: visits of a site and an app, devices before and
after signing in, groups, odd records.
"""

from __future__ import annotations

import gzip
import io
import json
import random
import zipfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any
from uuid import UUID

from forwarder.core.ports import Reason

Record = dict[str, Any]
Change = Callable[[Record], bytes]

FIRST = datetime(2023, 12, 30, 18, 0, 0, 250_125, tzinfo=UTC)
HOUR = len("2023-12-30 18")
PLACES = [
    ("Berlin", "Land Berlin", "Germany"),
    ("Québec", "Quebec", "Canada"),
    ("東京", "Tokyo", "Japan"),
    (None, None, None),
]
BROWSERS = [("Chrome", "120", "Mac"), ("Firefox", "121", "Windows"), ("Safari", "17", "iPhone")]


def sample(count: int = 2_400, seed: int = 1) -> list[tuple[bytes, Reason | None]]:
    """Records in the order of their time, and why each is refused (None: it is not). Each 40th is
    odd. The same for the same seed.
    """
    draw = random.Random(seed)
    records: list[tuple[bytes, Reason | None]] = []
    for number, record in enumerate(islice(_visits(draw), count)):
        change, why = ODD[number // 40 % len(ODD)] if number % 40 == 39 else (_line, None)
        records.append((change(record), why))
    return records


def archive(count: int = 2_400, seed: int = 1) -> bytes:
    """The same records as they are downloaded: a ZIP of gzip files, one of each hour in which
    usual records were uploaded.

    What a phone uploads late is hours and days older than its neighbours; odd records are in the
    hour before.
    """
    hours: dict[str, list[bytes]] = {}
    hour = ""
    for record, why in sample(count, seed):
        hour = _hour(record) or hour if why is None else hour
        hours.setdefault(hour, []).append(record)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as made:
        for name, lines in hours.items():
            member = zipfile.ZipInfo(
                f"12345/12345_{name}#0.json.gz", date_time=(2024, 1, 1, 0, 0, 0)
            )
            made.writestr(member, gzip.compress(b"\n".join(lines) + b"\n", mtime=0))
    return out.getvalue()


def _hour(record: bytes) -> str:
    time = str(json.loads(record).get("server_upload_time") or "").replace("T", " ")
    return time[:HOUR].replace(" ", "_") if len(time) > HOUR else ""


def _line(record: Record) -> bytes:
    return json.dumps(
        record, ensure_ascii=record["event_id"] % 2 == 0, separators=(",", ":")
    ).encode()


def _visits(draw: random.Random) -> Iterator[Record]:
    time = FIRST
    event = 0
    while True:
        person = draw.randrange(150)
        visit = _site_visit if person % 3 else _app_visit
        begin = time
        session = list(visit(draw, person))
        late = timedelta(hours=draw.choice((0, 0, 0, 7, 31)) if visit is _app_visit else 0)
        for record in session:
            event += 1
            time += timedelta(microseconds=draw.randrange(1, 90_000_000))
            yield _common(draw, record, time, begin - late, event) | _happened(time - late, event)


def _site_visit(draw: random.Random, person: int) -> Iterator[Record]:
    browser, version, system = BROWSERS[person % len(BROWSERS)]
    device = {
        "device_id": f"{person:08x}-0000-4000-8000-00000000{draw.randrange(2):04x}",
        "platform": "Web",
        "library": "amplitude-ts/2.3.8",
    }
    device |= {
        "os_name": browser,
        "os_version": version,
        "device_type": system,
        "device_family": system,
    }
    page = {
        "[Amplitude] Page URL": f"https://shop.example/p/{person}?q=ü",
        "[Amplitude] Page Domain": "shop.example",
        "[Amplitude] Page Path": f"/p/{person}",
        "[Amplitude] Page Title": "Grüße — 日本",
        "referrer": "https://search.example/",
    }
    user = {
        "user_id": f"user-{person}@example.com",
        "user_properties": _person(person),
        "groups": {"company": f"company {person % 7}"},
    }
    user["group_properties"] = {"company": {"plan": "pro", "seats": 10 + person % 7}}
    yield {**device, "event_type": "session_start"}
    yield {**device, "event_type": "[Amplitude] Page Viewed", "event_properties": page}
    clicked = {**page, "[Amplitude] Element Tag": "button", "[Amplitude] Element Text": "Buy"}
    yield {
        **device,
        **user,
        "event_type": "[Amplitude] Element Clicked",
        "event_properties": clicked,
    }
    yield {
        **device,
        **user,
        "event_type": "[Amplitude] Element Changed",
        "event_properties": {**page, "[Amplitude] Element Tag": "input"},
    }
    order = {
        "total": draw.randrange(100_000) / 100,
        "items": draw.randrange(9),
        "order": 2**60 + draw.randrange(99),
        "gift": None,
        "tags": ["a"],
    }
    yield {**device, **user, "event_type": "Order Completed", "event_properties": order}


def _app_visit(draw: random.Random, person: int) -> Iterator[Record]:
    app: Record = {
        "device_id": f"{person:016X}R",
        "platform": "iOS",
        "library": "amplitude-swift/1.3.0",
        "version_name": "4.2.0",
        "os_name": "ios",
    }
    app |= {
        "os_version": "17.2.1",
        "device_type": "Apple iPhone",
        "device_brand": "Apple",
        "device_manufacturer": "Apple",
        "adid": None,
    }
    app |= {
        "user_id": person if person % 2 else None,
        "location_lat": draw.randrange(-90, 90) + 0.25,
        "location_lng": 13.4,
    }
    for name in ("session_start", "[Amplitude] Application Opened", "Level Finished"):
        yield {
            **app,
            "event_type": name,
            "event_properties": {"level": draw.randrange(99), "score": 1.5e3},
            "user_properties": _person(person),
        }


def _person(person: int) -> Record:
    reported = {
        "plan": ("free", "pro")[person % 2],
        "born": 1950 + person % 50,
        "name": f"Jürgen {person}",
        "beta": person % 5 == 0,
    }
    return reported | {
        "initial_referrer": "EMPTY",
        "initial_utm_source": "newsletter" if person % 3 else "EMPTY",
        "tags": ["a", "é"],
    }


def _common(
    draw: random.Random, record: Record, time: datetime, begin: datetime, event: int
) -> Record:
    city, region, country = PLACES[draw.randrange(len(PLACES))]
    fields: Record = {
        "$insert_id": str(UUID(int=draw.getrandbits(128), version=4)),
        "$schema": 13,
        "amplitude_id": 700_000_000_000 + draw.randrange(10**6),
        "app": 12345,
        "city": city,
        "region": region,
        "country": country,
        "client_upload_time": _written(time + timedelta(seconds=1), event),
        "data": {
            "path": "/2/httpapi",
            "group_first_event": {},
            "group_ids": {},
            "user_properties_updated": True,
        },
        "data_type": "event",
        "device_brand": None,
        "device_carrier": None,
        "device_manufacturer": None,
        "device_model": None,
        "dma": "New York, NY" if region == "Quebec" else None,
        "event_id": event,
        "global_user_properties": None,
        "idfa": None,
        "adid": None,
        "amplitude_attribution_ids": None,
        "amplitude_event_type": None,
        "partner_id": None,
        "plan": {},
        "source_id": None,
        "start_version": None,
        "version_name": None,
        "location_lat": None,
        "location_lng": None,
        "groups": {},
        "group_properties": {},
        "ip_address": f"203.0.113.{draw.randrange(256)}" if event % 7 else "2001:db8::1",
        "is_attribution_event": False,
        "language": "German",
        "paying": (None, True, False)[event % 3],
        "processed_time": _written(time + timedelta(seconds=3), event),
        "sample_rate": None,
        "server_received_time": _written(time + timedelta(seconds=2), event),
        "server_upload_time": _written(time + timedelta(seconds=2), event),
        "session_id": int(begin.timestamp() * 1000),
        "user_creation_time": _written(FIRST - timedelta(days=9), event),
        "user_id": None,
        "user_properties": {},
        "uuid": str(UUID(int=draw.getrandbits(128), version=1)),
        "event_properties": {},
    }
    return fields | record


def _happened(time: datetime, event: int) -> Record:
    """When it happened, by the server's clock and by the device's, which is a bit off."""
    return {
        "event_time": _written(time, event),
        "client_event_time": _written(time + timedelta(milliseconds=event % 900 - 450), event),
    }


def _written(time: datetime, event: int) -> str:
    """Both forms of a time that exports have."""
    if event % 3 == 0:
        return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return time.strftime("%Y-%m-%d %H:%M:%S.%f")


def _with(**changed: Any) -> Change:
    """An odd record of a usual one: some fields are others."""
    return lambda record: _line(record | {"event_type": "Odd"} | changed)


def _without(*names: str) -> Change:
    """An odd record of a usual one: some fields are missing."""
    return lambda record: _line(
        {
            name: value
            for name, value in (record | {"event_type": "Odd"}).items()
            if name not in names
        }
    )


ODD: list[tuple[Change, Reason | None]] = [
    (_without("uuid"), None),
    (_with(uuid="not-a-uuid"), None),
    (lambda record: _line(record | {"uuid": record["uuid"].upper()}), None),
    (_with(user_id=4711), None),
    (_with(user_id="", device_id="only-a-device"), None),
    (_with(user_id="same", device_id="same"), None),
    (_with(user_id="alone", device_id=None), None),
    (_with(user_id="known", device_id="null"), None),
    (_with(user_id="phone", device_id=4711), None),
    (_with(uuid="00000000-0000-0000-0000-000000000000"), None),
    (_with(event_time="2023-12-31T01:30:00.5+03"), None),
    (_with(event_time=1_703_980_800_123), None),
    (
        _with(
            event_type="$identify",
            user_properties={"$set": {"plan": "pro"}, "$unset": {"beta": "-"}},
        ),
        None,
    ),
    (
        _with(
            event_properties={
                "deep": [[[[{"a": {"b": [None, True, 1e-7]}}]]]],
                "": "empty name",
                "big": 2**80,
            }
        ),
        None,
    ),
    (_without("event_time"), None),
    (
        _with(
            event_time="", client_event_time=None, server_received_time="2023-12-31T23:59:59.999Z"
        ),
        None,
    ),
    (_with(event_properties=None, user_properties=None, groups=None, group_properties=None), None),
    (
        _with(
            event_properties={
                "$browser": "own",
                "$current_url": "own",
                "[Amplitude] Page URL": "theirs",
            }
        ),
        None,
    ),
    (
        _with(
            groups={"company": ["a", "b"], "team": 7, "empty": ""},
            group_properties={"company": {"a": {"plan": "x"}}},
        ),
        None,
    ),
    (_with(event_type="$identify", user_properties={"plan": "pro"}), None),
    (
        _with(
            event_type="$groupidentify",
            groups={"company": "c"},
            group_properties={"company": {"plan": "y"}},
        ),
        None,
    ),
    (_with(event_type="Grüße \u2028 \U0001f680"), None),
    (lambda record: _line(record)[:-40], Reason.UNDECODABLE),
    (
        lambda record: _line(record).replace(b'"event_id":', b'"event\xff_id":', 1),
        Reason.UNDECODABLE,
    ),
    (lambda record: b"[" + _line(record) + b"]", Reason.UNDECODABLE),
    (_with(event_type=None), Reason.MISSING_EVENT),
    (_with(event_type=" "), Reason.MISSING_EVENT),
    (_with(event_type=5), Reason.INVALID_EVENT),
    (_with(user_id=None, device_id=""), Reason.MISSING_DISTINCT_ID),
    (_with(user_id="undefined"), None),
    (_with(user_id=None, device_id="Null"), None),
    (_with(user_id={"id": 1}), Reason.INVALID_EVENT),
    (_without("event_time", "client_event_time", "server_received_time"), Reason.MISSING_TIMESTAMP),
    (_with(event_time="last Tuesday"), Reason.MISSING_TIMESTAMP),
    (_with(event_properties="{}"), Reason.INVALID_EVENT),
    (_with(user_properties=[1]), Reason.INVALID_EVENT),
    (_with(groups={"company": {"name": "x"}}), Reason.INVALID_EVENT),
    (_with(event_type="$groupidentify", groups={}), Reason.UNMAPPABLE),
]
