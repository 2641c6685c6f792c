"""Exports as vendors give them: the same bytes for the same count."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from tests.golden_imports.making import (
    LARGE,
    ONCE,
    ONE,
    TEXTS,
    Dice,
    GoldenExport,
    Record,
    archive,
    as_json,
    halves,
    lines,
    moments,
    packed,
    spread,
    zulu,
)


def amplitude(count: int) -> GoldenExport:
    """The ZIP of packed files, and one more that was packed alone."""
    dice = Dice(2)
    records: list[Record] = []
    for number, time in enumerate(moments(dice, count)):
        if records and dice.chance(0.03):
            records.append(dice.pick(records[-30:]))
        elif records and dice.chance(0.02):
            records.append(
                dice.pick(records[-60:]) | {"event_time": time.strftime("%Y-%m-%d %H:%M:%S.%f")}
            )
        else:
            records.append(_amplitude_record(dice, number, time))
    written = [as_json(record, ascii_only=number % 2 == 0) for number, record in enumerate(records)]
    odd = [_amplitude_odd(change, dice.uuid()) for change in AMPLITUDE_ODD]
    made = spread(written, [b'{"event_type":"cut', b"[%b]" % written[0], *odd])
    third = len(made) // 3
    members = {
        f"12345/12345_2024-05-0{part}_7#0.json.gz": packed(
            lines(made[part * third : (part + 1) * third])
        )
        for part in range(2)
    }
    files = {"export.zip": archive(members), "late.json.gz": packed(lines(made[2 * third :]))}
    return GoldenExport(files, ("amplitude", "export.zip", "late.json.gz"))


AMPLITUDE_ODD: Final[tuple[Record, ...]] = (
    {"event_type": None},
    {"event_type": 5},
    {"user_id": None, "device_id": ""},
    {"user_id": "undefined"},
    {"event_time": "last Tuesday"},
    {
        "event_type": "$groupidentify",
        "groups": {"company": "c"},
        "group_properties": {"company": {"plan": "y"}},
    },
    {"event_properties": {"large": LARGE}},
    {
        "event_type": "$identify",
        "user_properties": {"$set": {"plan": "pro"}, "$unset": {"beta": "-"}},
    },
    {"event_time": None, "client_event_time": None},
    {"event_type": "$groupidentify", "groups": {}},
    {"user_id": None, "device_id": "Null"},
    {"uuid": "not-a-uuid"},
    {"uuid": None, "$insert_id": None},
    {
        "groups": {"company": ["a", "b"], "team": 7, "empty": ""},
        "group_properties": {"company": {"a": {"plan": "x"}}},
    },
    {"user_properties": [1]},
    {"groups": {"company": {"name": "x"}}},
    {"user_id": 4711, "event_time": "2024-05-01T01:30:00.5+03"},
    {"user_id": "same", "device_id": "same", "event_time": 1_714_600_000_123},
    {
        "event_properties": {
            "deep": [[[{"a": {"b": [None, True, 1e-7]}}]]],
            "": "empty",
            "big": 2**80,
            "$browser": "own",
        }
    },
    {"event_properties": None, "user_properties": None, "groups": None, "group_properties": None},
    {"user_id": "phone", "device_id": 4711, "event_type": "Grüße \u2028 \U0001f680"},
    {"event_properties": "{}"},
)


def _amplitude_odd(change: Record, uuid: str) -> bytes:
    usual = {
        "event_type": "Odd",
        "user_id": "odd-user",
        "device_id": "odd-device",
        "uuid": uuid,
        "event_time": "2024-05-02 10:00:00.000000",
        "client_event_time": "2024-05-02 10:00:00.000000",
    }
    return as_json(usual | change)


def _amplitude_record(dice: Dice, number: int, time: datetime) -> Record:
    person = dice.below(60)
    person_properties = {
        "plan": ("free", "pro")[person % 2],
        "name": dice.pick(TEXTS),
        "initial_referrer": "EMPTY",
        "initial_utm_source": "mail",
    }
    record: Record = {
        "$insert_id": dice.uuid(),
        "uuid": dice.uuid(),
        "amplitude_id": 700_000_000_000 + person,
        "event_id": number,
        "session_id": -1 if person % 9 == 0 else 1_714_600_000_000 + person,
        "device_id": f"{person:08x}-0000-4000-8000-00000000{dice.below(2):04x}",
        "user_id": ONCE
        if number == ONE
        else None
        if dice.chance(0.3)
        else f"user-{person}@example.com",
        "event_type": dice.pick(
            (
                "[Amplitude] Page Viewed",
                "session_start",
                "Order Completed",
                "[Amplitude] Element Clicked",
                "Level",
            )
        ),
        "event_properties": {
            "[Amplitude] Page URL": f"https://shop.example/{person}?q=ü",
            "total": dice.below(99_999) / 100,
            "tags": ["a"],
        },
        "user_properties": person_properties if dice.chance(0.6) else {},
        "groups": {"company": f"company {person % 7}"} if person % 3 == 0 else {},
        "group_properties": {"company": {"plan": "pro", "seats": 10 + dice.below(2)}}
        if person % 3 == 0
        else {},
        "platform": "Web",
        "os_name": dice.pick(("Chrome", "ios")),
        "device_family": dice.pick(("Mac", "Apple iPhone")),
        "ip_address": f"203.0.113.{person}" if number % 7 else "2001:db8::1",
        "city": dice.pick(("Québec", "東京", None)),
        "country": "Canada",
        "paying": dice.pick((None, True, False)),
        "client_event_time": time.strftime("%Y-%m-%d %H:%M:%S.%f"),
        "event_time": zulu(time) if number % 3 == 0 else time.strftime("%Y-%m-%d %H:%M:%S.%f"),
    }
    return record


_M: Final = b'"time":1714608000,"distinct_id":"u1"'
MIXPANEL_ODD: Final = (
    b'{"event":"Purchase","properties":{"time":171460',
    b'{"event":7,"properties":{%b}}' % _M,
    b'{"properties":{%b}}' % _M,
    b'{"event":"Purchase","properties":{"time":1714608000}}',
    b'{"event":"Purchase","properties":{"time":1714608000,"distinct_id":"$device:undefined"}}',
    b'{"event":"Purchase","properties":{"distinct_id":"u1"}}',
    b'{"event":"Large","properties":{%b,"x":"%b"}}' % (_M, LARGE.encode()),
    b'{"event":"Large number","properties":{%b,"n":123456789012345678901234567890,"x":1.10}}' % _M,
    b'{"event":"Emoji \\ud83d\\ude00","properties":{%b,"nested":{"a":[1,{"b":null}]}}}' % _M,
    b'{"event":"Half","properties":{%b,"half":"\\ud83d"}}' % _M,
    b'{"event":"Not a number","properties":{%b,"price":NaN}}' % _M,
    b'{"event":"Purchase","properties":["time",1714608000]}',
    b'{"event":"Purchase","properties":{"time":1714608000,"distinct_id":{"id":"u1"}}}',
    (
        b'{"event":"E","properties":{"time":1714608000,"distinct_id":"null","$distinct_id_before_i'
        b'dentity":"u1"}}'
    ),
    b'{"event":"Purchase","properties":{"time":-5,"distinct_id":"u1"}}',
    (
        b' { "event" : "Spaces" , "properties" : { "time" : 1714608000.25 , "distinct_id" : '
        b"12345678901234567890 } } "
    ),
    b'{"properties":{"distinct_id":"u1","time":"1714608000"},"event":"Text as time"}',
)


def mixpanel(count: int) -> GoldenExport:
    """The raw export as two files."""
    dice = Dice(3)
    records: list[Record] = []
    for number, time in enumerate(moments(dice, count)):
        if records and dice.chance(0.03):
            records.append(dice.pick(records[-30:]))
        elif records and dice.chance(0.02):
            again = dice.pick(records[-60:])
            records.append(
                {**again, "properties": {**again["properties"], "time": int(time.timestamp())}}
            )
        else:
            records.append(_mixpanel_record(dice, number, time))
    first, second = halves(
        spread(
            [as_json(record, ascii_only=number % 2 == 0) for number, record in enumerate(records)],
            MIXPANEL_ODD,
        ),
        0.3,
    )
    return GoldenExport(
        {"export/1.json": first, "export/2.json.gz": packed(second)},
        ("mixpanel", "export/1.json", "export/2.json.gz"),
    )


def _mixpanel_record(dice: Dice, number: int, time: datetime) -> Record:
    user = dice.below(60)
    micros = int(time.timestamp() * 1000)
    device = f"18c{user:05x}-0f{user * 7:06x}"
    ids = dice.pick(
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
        )
    )
    properties = {
        "time": micros // 1000 if dice.chance(0.5) else micros,
        **ids,
        "$insert_id": f"{number:016x}" if dice.chance(0.9) else None,
        "$city": dice.pick(("Berlin", "大阪市", None)),
        "mp_country_code": "DE",
        "mp_lib": dice.pick(("python", "web")),
        "$browser": "Chrome",
        "$current_url": "https://app.example.com/preise?utm_source=post",
        "$mp_api_timestamp_ms": micros + 812,
        "price": dice.pick((0, 9.90, 1e3, 12_345_678_901_234_567_890)),
        "text": dice.pick(TEXTS),
    }
    own = {**properties, "distinct_id": f"user-{user}"}
    merges = (
        {
            "event": "$identify",
            "properties": {
                **own,
                "$identified_id": f"user-{user}",
                "$anon_id": f"user-{dice.below(60)}",
            },
        },
        {"event": "$create_alias", "properties": {**own, "alias": f"user-{dice.below(60)}"}},
        {
            "event": "$merge",
            "properties": {**own, "$distinct_ids": [f"user-{user}", f"18c{dice.below(60):05x}"]},
        },
    )
    if dice.chance(0.06):
        return dict(dice.pick(merges))
    name = dice.pick(("$mp_web_page_view", "Sign Up", "Purchase", "Einkauf „groß“", "$session_end"))
    return {"event": name, "properties": properties}


def profiles(count: int) -> GoldenExport:
    """Profiles as two files, some of which were never seen."""
    dice = Dice(4)
    records = []
    for number, time in enumerate(moments(dice, count)):
        seen = {} if number % 30 == 29 else {"$last_seen": time.strftime("%Y-%m-%dT%H:%M:%S")}
        about = {
            "$created": "2023-12-12T11:20:47",
            "$email": f"u{number}@example.com",
            "$city": "Köln",
            "plan": dice.pick(TEXTS),
        }
        who = (
            number + 1
            if number % 7 == 0
            else "undefined"
            if number % 97 == 96
            else f"user-{number}"
        )
        records.append(
            as_json(
                {"$distinct_id": who, "$properties": {**seen, **about, "songs": dice.below(10_000)}}
            )
        )
        if number % 50 == 17:
            records.append(records[-1])
    odd = (
        b'{"$distinct_id":"u',
        b'{"$properties":{}}',
        b'{"$distinct_id":"u1","$properties":[]}',
        b'{"event":"e","properties":{}}',
    )
    first, second = halves(spread(records, odd))
    words = ("mixpanel-profiles", "profiles-1.jsonl", "profiles-2.jsonl", "--time-offset", "+02:00")
    return GoldenExport({"profiles-1.jsonl": first, "profiles-2.jsonl": second}, words)


SEGMENT_ODD: Final[tuple[Record, ...]] = (
    {"userId": None, "anonymousId": None},
    {"timestamp": None, "originalTimestamp": None},
    {"userId": "Undefined"},
    {"event": None},
    {"type": "delete"},
    {"properties": ["a"]},
    {"properties": {"large": LARGE}},
    {"type": None},
    {"type": "identify", "anonymousId": "null"},
    {"timestamp": "yesterday"},
    {"type": "alias", "previousId": None},
    {"messageId": None},
    {"messageId": "undefined"},
    {"context": {"library": "my own", "page": None, "ip": None}, "userId": 1_234_567},
    {"type": "alias", "previousId": 4711, "context": {}},
    {"type": "group", "userId": None, "groupId": "anonymous-member's", "traits": {}},
    {
        "event": "Grüße \u2028 \U0001f680",
        "properties": {"": None, "deep": [[{"a": 2**80}]], "$ip": "::1"},
    },
    {"timestamp": "2024-05-01T23:59:59.999999+05:30"},
    {"type": "page", "properties": {"url": "https://example.com/s", "title": "S"}, "name": "S"},
    {"type": "identify", "traits": None},
)


def segment(count: int) -> GoldenExport:
    """Packed files below a folder for each day, as they are in a bucket."""
    dice = Dice(5)
    records: list[Record] = []
    for time in moments(dice, count):
        if records and dice.chance(0.03):
            records.append(dice.pick(records[-30:]))
        elif records and dice.chance(0.02):
            records.append({**dice.pick(records[-60:]), "timestamp": zulu(time)})
        else:
            records.append(_segment_call(dice, time))
    usual = {
        "type": "track",
        "event": "Odd",
        "userId": "odd",
        "anonymousId": "odd-anonymous",
        "timestamp": "2024-05-02T10:00:00.123Z",
    }
    odd = [
        as_json(usual | {"messageId": dice.uuid(), "properties": {"a": 1e3}} | change)
        for change in SEGMENT_ODD
    ]
    written = [as_json(record, ascii_only=number % 2 == 0) for number, record in enumerate(records)]
    first, second = halves(spread(written, [b'{"type":"track"', b"[%b]" % written[0], *odd]))
    days = {
        f"segment-logs/{1714521600000 + day * 86_400_000}/calls.1.gz": packed(content)
        for day, content in enumerate((first, second))
    }
    return GoldenExport(days, ("segment", "segment-logs"))


def _segment_call(dice: Dice, time: datetime) -> Record:
    person = dice.below(60)
    traits = {
        "email": f"user{person}@example.com",
        "balance": 12_345_678_901_234_567_890,
        "text": dice.pick(TEXTS),
        "tags": ["a", None],
    }
    page = {
        "path": "/docs/über-uns",
        "referrer": "",
        "search": "",
        "title": dice.pick(TEXTS),
        "url": "https://example.com/docs",
    }
    call: Record = dice.pick(
        (
            {
                "type": "track",
                "event": "Button Clicked",
                "properties": {"label": dice.pick(TEXTS), "nested": {"a": [1, 1.50]}},
            },
            {
                "type": "track",
                "event": "Order Completed",
                "properties": {"total": dice.below(10_000) / 100, "currency": "EUR"},
            },
            {"type": "page", "name": dice.pick(("Home", None)), "properties": page},
            {"type": "screen", "name": "Cart", "properties": {"depth": 2}},
            {"type": "identify", "traits": traits},
            {"type": "group", "groupId": f"company-{person % 9}", "traits": {"plan": "pro"}},
            {"type": "alias", "previousId": f"user-{dice.below(60)}"},
        )
    )
    context = {
        "ip": f"203.0.113.{person}",
        "library": {"name": "analytics.js", "version": "1.66"},
        "locale": "de-DE",
        "page": page,
    }
    return {
        "messageId": dice.pick((f"ajs-next-{dice.uuid()}", dice.uuid())),
        "anonymousId": f"anonymous-{person}" if dice.chance(0.8) else None,
        "userId": f"user-{person}"
        if call["type"] in {"identify", "group", "alias"} or dice.chance(0.4)
        else None,
        **call,
        "context": context,
        "timestamp": zulu(time),
        "originalTimestamp": zulu(time - timedelta(seconds=3)),
        **({"anonymousId": f"anonymous-{person}"} if call["type"] == "track" else {}),
    }
