"""Mixpanel exports as they look, written from the vendor's field lists: the same records for the
same seed, strange ones among them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from forwarder.core.ports import Reason
from forwarder.sources.files.record_blocks import RecordBlock, SourceFile

START: Final = 1_704_067_200_000
"""The first of January 2024, in milliseconds."""
_PLACES: Final = (
    ("Berlin", "Land Berlin", "DE"),
    ("São Paulo", "São Paulo", "BR"),
    ("大阪市", "Osaka", "JP"),
    (None, None, "US"),
)
_NAMES: Final = (
    "$mp_web_page_view",
    "$mp_web_page_view",
    "Sign Up",
    "Song Played",
    "Purchase",
    "Einkauf „groß“",
    "$session_end",
)
_DAY: Final = 86_400_000

STRANGE: Final[tuple[tuple[bytes, Reason | None], ...]] = (
    (b'{"event":"Purchase","properties":{"time":1704067', Reason.UNDECODABLE),
    (
        b'{"event":"Caf\xe9","properties":{"time":1704067200,"distinct_id":"u1"}}',
        Reason.UNDECODABLE,
    ),
    (
        b'{"event":"Half","properties":{"time":1704067200,"distinct_id":"u1","half":"\\ud83d"}}',
        Reason.UNDECODABLE,
    ),
    (
        b'{"event":"Not a number","properties":{"time":1704067200,"distinct_id":"u1","price":NaN}}',
        Reason.UNDECODABLE,
    ),
    (b'["event","Purchase"]', Reason.UNDECODABLE),
    (b'{"event":7,"properties":{"time":1704067200,"distinct_id":"u1"}}', Reason.INVALID_EVENT),
    (b'{"event":"Purchase","properties":["time",1704067200]}', Reason.INVALID_EVENT),
    (
        b'{"event":"Purchase","properties":{"time":1704067200,"distinct_id":{"id":"u1"}}}',
        Reason.INVALID_EVENT,
    ),
    (b'{"properties":{"time":1704067200,"distinct_id":"u1"}}', Reason.MISSING_EVENT),
    (b'{"event":" ","properties":{"time":1704067200,"distinct_id":"u1"}}', Reason.MISSING_EVENT),
    (
        b'{"$distinct_id":"u1","$properties":{"$last_seen":"2024-01-01T00:00:00"}}',
        Reason.MISSING_EVENT,
    ),
    (b'{"event":"Purchase"}', Reason.MISSING_DISTINCT_ID),
    (b'{"event":"Purchase","properties":{"time":1704067200}}', Reason.MISSING_DISTINCT_ID),
    (
        b'{"event":"Purchase","properties":{"time":1704067200,"distinct_id":null}}',
        Reason.MISSING_DISTINCT_ID,
    ),
    (
        b'{"event":"Purchase","properties":{"time":1704067200,"distinct_id":""}}',
        Reason.MISSING_DISTINCT_ID,
    ),
    (
        b'{"event":"Purchase","properties":{"time":1704067200,"distinct_id":" "}}',
        Reason.MISSING_DISTINCT_ID,
    ),
    (b'{"event":"Purchase","properties":{"distinct_id":"u1"}}', Reason.MISSING_TIMESTAMP),
    (
        b'{"event":"Purchase","properties":{"time":null,"distinct_id":"u1"}}',
        Reason.MISSING_TIMESTAMP,
    ),
    (b'{"event":"Purchase","properties":{"time":-5,"distinct_id":"u1"}}', Reason.MISSING_TIMESTAMP),
    (
        b'{"event":"Purchase","properties":{"time":"yesterday","distinct_id":"u1"}}',
        Reason.MISSING_TIMESTAMP,
    ),
    (b'{"properties":{"distinct_id":"u1","time":"1704067200"},"event":"Text as time"}', None),
    (
        (
            b' { "event" : "Spaces" , "properties" : { "time" : 1704067200.25 , "distinct_id" : '
            b"12345678901234567890 } } "
        ),
        None,
    ),
    (
        (
            b'{"event":"Large","properties":{"time":1704067200,"distinct_id":"u1","n":123456789012'
            b'345678901234567890,"x":1.10}}'
        ),
        None,
    ),
    (
        (
            b'{"event":"Emoji '
            b'\\ud83d\\ude00","properties":{"time":1704067200,"distinct_id":"u1","nested":{"a":[1,'
            b'{"b":null}]}}}'
        ),
        None,
    ),
)
"""Records as bad exports have them, and why each is refused; None: it isn't."""


def block(*records: bytes | object, first: int = 0) -> RecordBlock:
    """Records of one file; what isn't bytes is written as JSON."""
    written = [record if isinstance(record, bytes) else as_json(record) for record in records]
    return RecordBlock(
        SourceFile("export.json", "5eed" * 16), first, written, range(1, len(written) + 1)
    )


def as_json(record: object) -> bytes:
    """A record as the export writes it."""
    return json.dumps(record, separators=(",", ":"), ensure_ascii=False).encode()


def ordinary_events(count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Events of web, apps and servers, in the order of time, some of them twice."""
    chance = random.Random(seed)
    made: list[dict[str, Any]] = []
    for number in range(count):
        if made and chance.random() < 0.02:
            yield chance.choice(made[-20:])
            continue
        time = START + number * 30 * _DAY // count + chance.randrange(1000)
        name = chance.choice(_NAMES)
        properties = _properties(chance, number, time)
        record = (
            _merge(chance, number, properties)
            if number % 50 == 49
            else {"event": name, "properties": properties}
        )
        made.append(record)
        yield record


def event_export(count: int = 2_000, seed: int = 8) -> list[bytes]:
    """At least `count` lines of an export, the strange ones spread among them."""
    return _spread(
        [as_json(record) for record in ordinary_events(count, seed)],
        [record for record, _ in STRANGE],
    )


def profile_export(count: int = 2_000, seed: int = 8) -> list[bytes]:
    """Lines of a profile export; every tenth profile has no `$last_seen`."""
    chance = random.Random(seed)
    return [as_json(_profile(chance, number)) for number in range(count)]


def _properties(chance: random.Random, number: int, time: int) -> dict[str, Any]:
    city, region, country = chance.choice(_PLACES)
    server = chance.random() < 0.2
    return {
        "time": time // 1000 if chance.random() < 0.5 else time,
        **_identity(chance, server=server),
        "$insert_id": f"{number:016x}" if chance.random() < 0.95 else None,
        **({"$city": city, "$region": region} if city else {}),
        "mp_country_code": country,
        **({"mp_lib": "python", "$lib_version": "4.10.0"} if server else _browser(chance)),
        "$mp_api_endpoint": "api.mixpanel.com",
        "$mp_api_timestamp_ms": time + 812,
        "mp_processing_time_ms": time + 1_640,
        "plan": chance.choice(("free", "pro", None)),
        "price": chance.choice((0, 9.90, 1e3, 12_345_678_901_234_567_890)),
        "tags": chance.sample(("neu", "été", "\u2028", "a\\b", '"'), chance.randrange(3)),
    }


def _merge(chance: random.Random, number: int, properties: dict[str, Any]) -> dict[str, Any]:
    """One of Mixpanel's own events of its original way to merge ids."""
    own = {**properties, "distinct_id": f"user-{number}"}
    return chance.choice(
        (
            {
                "event": "$identify",
                "properties": {
                    **own,
                    "$identified_id": f"user-{number}",
                    "$anon_id": f"18c{number:05x}",
                },
            },
            {"event": "$create_alias", "properties": {**own, "alias": f"old-{number}"}},
            {
                "event": "$merge",
                "properties": {**own, "$distinct_ids": [f"user-{number}", f"18c{number:05x}"]},
            },
        )
    )


def _identity(chance: random.Random, *, server: bool) -> dict[str, Any]:
    """Ids as projects of both kinds of id merge have them."""
    user = chance.randrange(200)
    device = f"18c{user:05x}-0f{user * 7:06x}"
    if server:
        return {"distinct_id": f"user-{user}"}
    return chance.choice(
        (
            {"distinct_id": f"user-{user}", "$user_id": f"user-{user}", "$device_id": device},
            {"distinct_id": f"$device:{device}", "$device_id": device},
            {
                "distinct_id": f"$device:{device}",
                "$distinct_id_before_identity": f"user-{user}",
                "$device_id": device,
            },
            {"distinct_id": f"A0B1-{user:04X}", "$distinct_id_before_identity": f"user-{user}"},
            {"distinct_id": 1_000_000 + user},
            {"$distinct_id_before_identity": f"user-{user}"},
        )
    )


def _browser(chance: random.Random) -> dict[str, Any]:
    path = chance.choice(("/", "/preise", "/songs/1?utm_source=post"))
    return {
        "$browser": chance.choice(("Chrome", "Safari", "Firefox")),
        "$browser_version": chance.choice((119, 120)),
        "$current_url": f"https://app.example.com{path}",
        "$os": chance.choice(("Mac OS X", "Windows", "iOS")),
        "$screen_height": 1080,
        "$screen_width": 1920,
        "$referrer": "https://www.example.org/",
        "$geo_source": "ip_lookup",
        "mp_lib": "web",
        "$lib_version": "2.48.1",
        "$initial_referrer": "$direct",
        "$initial_referring_domain": "$direct",
        "utm_source": chance.choice(("newsletter", None)),
        "$mp_sdk_version": "2.48.1",
        "mp_sent_by_lib_version": "2.48.1",
    }


def _profile(chance: random.Random, number: int) -> dict[str, Any]:
    city, region, country = chance.choice(_PLACES)
    seen = (
        {}
        if number % 10 == 9
        else {"$last_seen": f"2024-01-{1 + number % 28:02}T{number % 24:02}:08:40"}
    )
    return {
        "$distinct_id": number + 1 if number % 7 == 0 else f"user-{number}",
        "$properties": {
            **seen,
            "$created": "2023-12-12T11:20:47",
            "$email": f"user-{number}@example.com",
            "$first_name": chance.choice(("Zoë", "Jan", "李")),
            "$city": city,
            "$region": region,
            "$country_code": country,
            "$geo_source": "reverse_geocoding",
            "plan": chance.choice(("free", "pro")),
            "songs": chance.randrange(10_000),
        },
    }


def _spread(records: Sequence[bytes], among: Iterable[bytes]) -> list[bytes]:
    """The same records, with others among them at even distances."""
    result = list(records)
    others = list(among)
    step = max(1, len(records) // (len(others) + 1))
    for place, other in enumerate(others, start=1):
        result.insert(place * (step + 1) - 1, other)
    return result
