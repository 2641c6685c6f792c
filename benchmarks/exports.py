"""Made-up exports of other vendors, as files: a record an event, about 600 bytes each, in the
order of time. The same for the same seed.

Every record has the sink's marker once, in what becomes its event's name.
"""

from __future__ import annotations

import csv
import io
import json
import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from benchmarks.events import (
    BROWSERS,
    CITIES,
    MARKER,
    NAMED,
    NAMES,
    PAGES,
    PLANS,
    WORDS,
    EventMaker,
)

BEGINNING: Final = datetime(2024, 5, 1, tzinfo=UTC)
PAUSE: Final = 40
"""Milliseconds between two events, at most: some four million a day."""

Record = dict[str, Any]


class Export(StrEnum):
    """What is imported, by the format that reads it."""

    NATIVE = "native"
    AMPLITUDE = "amplitude"
    MIXPANEL = "mixpanel"
    SEGMENT = "segment"
    CSV = "csv"
    MAPPING = "mapping"

    @property
    def suffix(self) -> str:
        """Of its files."""
        return ".csv" if self is Export.CSV else ".jsonl"


def write(export: Export, path: Path, count: int, seed: int = 1) -> None:
    """Write a file with so many records."""
    with path.open("w", encoding="utf-8", newline="") as file:
        for text in _texts(export, count, seed):
            file.write(text)


def _texts(export: Export, count: int, seed: int) -> Iterator[str]:
    if export is Export.CSV:
        yield from _table([_row(maker) for maker in [_Maker(seed)] for _ in range(count)])
        return
    maker = _Maker(seed)
    make = _RECORDS[export]
    for _ in range(count):
        yield json.dumps(make(maker), ensure_ascii=False, separators=(",", ":")) + "\n"


class _Maker:
    """A stream of moments of many persons, each of whom does a few things in a row."""

    def __init__(self, seed: int) -> None:
        self.events = EventMaker(seed, BEGINNING)
        self.random = random.Random(seed)
        self.pick: Callable[[list[str]], str] = self.random.choice
        self.time = BEGINNING
        self.number = 0
        self.visit = 0
        """The number of the first moment of the person's visit."""
        self._person = 0

    def next(self) -> None:
        """The next moment."""
        self.number += 1
        self.time += timedelta(milliseconds=self.random.randrange(1, PAUSE))
        if self.random.random() < 0.25:
            self._person = self.random.randrange(200_000)
            self.visit = self.number

    @property
    def name(self) -> str:
        return f"{MARKER.decode()} {self.pick(NAMES)}"

    @property
    def person(self) -> str:
        return f"user-{self._person:08}"

    @property
    def device(self) -> str:
        return f"{self._person:08x}-d3f1-4c11-8a3c-0123456789ab"

    @property
    def address(self) -> str:
        return f"203.0.113.{self._person % 250}"

    @property
    def url(self) -> str:
        return (
            f"https://shop.example{self.pick(PAGES)}?ref={self.pick(WORDS)}-"
            f"{self.random.randrange(10**6)}"
        )

    def uuid(self) -> str:
        return str(UUID(int=self.random.getrandbits(128), version=4))


def _native(maker: _Maker) -> Record:
    return maker.events.event()


def _amplitude(maker: _Maker) -> Record:
    maker.next()
    time = maker.time.strftime("%Y-%m-%d %H:%M:%S.%f")
    return {
        "$insert_id": maker.uuid(),
        "city": maker.pick(CITIES),
        "country": "Germany",
        "device_id": maker.device,
        "device_type": "Mac",
        "event_id": maker.number,
        "event_properties": {
            "[Amplitude] Page URL": maker.url,
            "plan": maker.pick(PLANS),
            "total": maker.random.randrange(10**5) / 100,
        },
        "event_time": time,
        "event_type": maker.name,
        "ip_address": maker.address,
        "language": "German",
        "os_name": maker.pick(BROWSERS),
        "os_version": "121",
        "platform": "Web",
        "server_upload_time": time,
        "session_id": 1_714_521_600_000 + maker.visit,
        "user_id": maker.person,
        "user_properties": {"plan": maker.pick(PLANS), "name": f"{maker.pick(NAMED)} Ünal"},
        "uuid": maker.uuid(),
    }


def _mixpanel(maker: _Maker) -> Record:
    maker.next()
    properties = {
        "time": int(maker.time.timestamp() * 1000),
        "distinct_id": maker.person,
        "$insert_id": f"{maker.number:016x}",
        "$browser": maker.pick(BROWSERS),
        "$browser_version": 121,
        "$city": maker.pick(CITIES),
        "$current_url": maker.url,
        "$device_id": maker.device,
        "$lib_version": "2.48.1",
        "$mp_api_endpoint": "api.mixpanel.com",
        "$mp_api_timestamp_ms": 1_714_521_600_812,
        "$os": "Mac OS X",
        "$region": "Land Berlin",
        "$screen_height": 1080,
        "$screen_width": 1920,
        "mp_country_code": "DE",
        "mp_lib": "web",
        "mp_processing_time_ms": 1_714_521_601_640,
        "owner": {"name": f"{maker.pick(NAMED)} Ünal", "plan": maker.pick(PLANS)},
        "price": maker.random.randrange(10**5) / 100,
    }
    return {"event": maker.name, "properties": properties}


def _segment(maker: _Maker) -> Record:
    maker.next()
    time = maker.time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return {
        "anonymousId": maker.device,
        "context": {
            "ip": maker.address,
            "library": {"name": "analytics.js", "version": "next-1.66.0"},
            "page": {"path": "/pricing", "title": "Prices — 日本", "url": maker.url},
            "userAgent": "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7)",
        },
        "event": maker.name,
        "messageId": f"ajs-next-{maker.uuid()}",
        "originalTimestamp": time,
        "properties": {
            "plan": maker.pick(PLANS),
            "total": maker.random.randrange(10**5) / 100,
            "city": maker.pick(CITIES),
        },
        "receivedAt": time,
        "timestamp": time,
        "type": "track",
        "userId": maker.person,
    }


def _mapping(maker: _Maker) -> Record:
    maker.next()
    return {
        "what": maker.name,
        "who": {"id": maker.person, "plan": maker.pick(PLANS)},
        "when": maker.time.isoformat(timespec="milliseconds"),
        "id": maker.uuid(),
        "page": maker.url,
        "basket": [
            {
                "sku": f"{maker.pick(WORDS)}-{maker.random.randrange(10**5)}",
                "price": 1.5,
                "quantity": 2,
            }
            for _ in range(4)
        ],
        "city": maker.pick(CITIES),
        "owner": {"name": f"{maker.pick(NAMED)} Ünal", "device": maker.device, "ip": maker.address},
        "note": "first order of this person, brought by the campaign of that week "
        + maker.pick(WORDS),
    }


def _row(maker: _Maker) -> dict[str, str]:
    maker.next()
    return {
        "event": maker.name,
        "distinct_id": maker.person,
        "timestamp": maker.time.isoformat(timespec="milliseconds"),
        "uuid": maker.uuid(),
        "page": maker.url,
        "plan": maker.pick(PLANS),
        "amount": str(maker.random.randrange(10**5) / 100),
        "paid": maker.pick(["true", "false"]),
        "city": maker.pick(CITIES),
        "owner": f"{maker.pick(NAMED)} Ünal",
        "device": maker.device,
        "browser": maker.pick(BROWSERS),
        "ip": maker.address,
        "basket": json.dumps(
            [
                {"sku": f"{maker.pick(WORDS)}-{maker.random.randrange(10**5)}", "price": 1.5}
                for _ in range(3)
            ]
        ),
        "note": "first order of this person, brought by the campaign of that week, "
        + maker.pick(WORDS),
    }


def _table(rows: list[dict[str, str]]) -> Iterator[str]:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    for row in rows:
        writer.writerow(row)
        yield text.getvalue()
        text.seek(0)
        text.truncate()


_RECORDS: Final[dict[Export, Callable[[_Maker], Record]]] = {
    Export.NATIVE: _native,
    Export.AMPLITUDE: _amplitude,
    Export.MIXPANEL: _mixpanel,
    Export.SEGMENT: _segment,
    Export.MAPPING: _mapping,
}
