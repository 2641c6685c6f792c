"""Exports of every format, the same bytes on any machine, with everything that an import has to
get right: several files and days, repeats, records of several events, merges, records that are
refused for each reason, times without a zone, and whatever JSON allows.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
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
    as_json,
    halves,
    moments,
    packed,
    spread,
    zulu,
)
from tests.golden_imports.vendors import amplitude, mixpanel, profiles, segment

RULES: Final = {
    "event": '"order " + .state',
    "where": '.kind == "order"',
    "distinct_id": ".customer.id",
    "timestamp": {"from": ".placed", "format": "iso", "zone": "Europe/Berlin"},
    "uuid": ".number",
    "set": {"tier": ".customer.tier"},
    "properties": {"total": ".total", "items": ".items", "city": ".city"},
    "drop": [".customer.email"],
}
FLAT_RULES: Final = {
    "event": ".state",
    "distinct_id": ".customer",
    "timestamp": {"from": ".placed", "format": "iso", "zone": "Europe/Berlin"},
    "uuid": ".number",
    "set": {"tier": ".tier"},
    "properties": {"total": ".total", "city": ".city"},
}

_E: Final = b'"event":"e","distinct_id":"u1","timestamp":"2024-05-02T01:00:00Z"'
NATIVE_ODD: Final = (
    b'{"event":"cut","distinct_id":"u1","timest',
    (
        b'{"event":"no '
        b'number","distinct_id":"u1","timestamp":"2024-05-01T00:00:00Z","properties":{"bad":NaN,"n'
        b'":123456789012345678901}}'
    ),
    b'{"event":7,"distinct_id":"u1","timestamp":"2024-05-01T00:00:00Z"}',
    b'{"distinct_id":"u1","timestamp":"2024-05-01T00:00:00Z"}',
    b'{"event":"e","distinct_id":" ","timestamp":"2024-05-01T00:00:00Z"}',
    b'{"event":"e","distinct_id":"u1","properties":{"a":1}}',
    b'{"event":"e","distinct_id":"Anonymous","timestamp":"2024-05-01T00:00:00Z"}',
    (
        b'{"event":"large","distinct_id":"u1","timestamp":"2024-05-01T00:00:00Z","properties":{"x"'
        b':"%b"}}'
    )
    % LARGE.encode(),
    (
        b'{"batch":[{%b,"uuid":"0f8fad5b-d9cb-469f-a165-708677289501"},{"event":"e"},{%b,"uuid":"n'
        b'ot-a-uuid"},{"event":"e"}]}'
    )
    % (_E, _E),
    b'{"event":"caf\xe9","distinct_id":"u1","timestamp":"2024-05-01T00:00:00Z"}',
    (
        b' {"event": "spaces" , "distinct_id" : "u1", "timestamp" : "2024-05-01T00:00:00Z" , '
        b'"properties" : { "a" : 1.10 } } '
    ),
    b'{%b,"properties":{"n":1e400}}' % _E,
    b'{%b,"properties":{"half":"\\ud83d"}}' % _E,
    b'{%b,"properties":{"deep":%b}}' % (_E, b"[" * 600 + b"]" * 600),
    b'{%b,"properties":[1]}' % _E,
    (
        b'{"event":"e","distinct_id":12345678901234567890,"timestamp":"Wed, 01 May 2024 00:00:00 '
        b'GMT","properties":null}'
    ),
    b'{"event":"e","distinct_id":"u1","timestamp":"yesterday"}',
    b'{"event":"e","distinct_id":"u1","timestamp":"1969-12-31T23:59:59.999Z"}',
    b'{"event":"e","distinct_id":"u1","offset":5,"properties":{"a":1}}',
    b'[{%b},{%b,"properties":{"distinct_id":"[object Object]"},"distinct_id":null}]'
    % (_E, _E.replace(b'"distinct_id":"u1",', b"")),
    b'"a text"',
    b"[]",
    (
        b'{"event":"$identify","distinct_id":"u1","timestamp":"2024-05-02T02:00:00","properties":{'
        b'"$anon_distinct_id":"undefined"}}'
    ),
    (
        b'{%b,"$set":{"a":1},"$set_once":{"b":NaN},"$unset":["c"],"properties":{"$set":{"d":"\\u00'
        b'e9"},"$unset":["e"]}}'
    )
    % _E,
    (
        b'{%b,"uuid":"0F8FAD5B-D9CB-469F-A165-70867728950E","properties":{"":null,"$ip":"::1","$ge'
        b'oip_disable":false,"$import_job_id":"x"}}'
    )
    % _E,
)


def native(count: int) -> GoldenExport:
    """Events in every shape, alone, as arrays and as bodies of batches, in a plain file and a
    packed one.
    """
    dice = Dice(1)
    records: list[bytes] = []
    group: list[Record] = []
    before: list[Record] = []
    for number, time in enumerate(moments(dice, count)):
        event = (
            dice.pick(before[-30:])
            if before and dice.chance(0.03)
            else _native_event(dice, number, time)
        )
        if before and dice.chance(0.02):
            event = {**dice.pick(before[-60:]), "timestamp": zulu(time)}
        before.append(event)
        group.append(event)
        if len(group) > 4 or dice.chance(0.8):
            form = dice.below(8)
            if form == 0:
                records.append(
                    as_json(
                        {
                            "api_key": "key-of-another-project",
                            "batch": group,
                            "sent_at": "2024-05-02T00:00:00Z",
                        }
                    )
                )
            elif form == 1:
                records.append(as_json(group))
            else:
                records += [as_json(event, ascii_only=form == 2) for event in group]
            group = []
    first, second = halves(spread(records + [as_json(event) for event in group], NATIVE_ODD))
    return GoldenExport(
        {"events/a.jsonl": first, "events/b.jsonl.gz": packed(second)},
        ("native", "events", "--time-offset", "0"),
    )


def _native_event(dice: Dice, number: int, time: datetime) -> Record:
    event: Record = {
        "event": dice.pick(
            (
                "$pageview",
                "signed up",
                "Warenkorb geöffnet",
                "登録完了",
                'order "placed"',
                "{braces}",
            )
        ),
        "distinct_id": ONCE if number == ONE else f"user-{dice.below(60)}",
        "uuid": dice.uuid(),
        "timestamp": zulu(time),
        "properties": {
            "n": number,
            "text": dice.pick(TEXTS),
            "price": dice.below(9_999) / 100,
            "items": [{"properties": {"nested": True}}],
        },
    }
    properties = event["properties"]
    match dice.below(24):
        case 0:
            properties["distinct_id"] = event.pop("distinct_id")
        case 1:
            event["$distinct_id"] = event.pop("distinct_id")
        case 2 | 3:
            del event["uuid"]
        case 4:
            event["uuid"] = event["uuid"].upper()
        case 5:
            event["timestamp"] = event["timestamp"].rstrip("Z")
        case 6:
            event["$set"] = {"plan": "team"}
        case 7:
            event["properties"] |= {
                "$set": {"plan": dice.pick(TEXTS)},
                "$set_once": {"plan": "free", "first": 1},
                "$unset": ["old"],
            }
        case 8:
            event |= {"api_key": "key-of-another-project", "offset": 250}
        case 9:
            event |= {
                "event": "$identify",
                "properties": {
                    "$anon_distinct_id": f"user-{dice.below(60)}",
                    "$set": {"name": "ü"},
                },
            }
        case 10 | 11:
            merge = dice.pick(("$create_alias", "$merge_dangerously"))
            event |= {"event": merge, "properties": {"alias": f"user-{dice.below(60)}"}}
        case 12:
            event["timestamp"] = (
                int(time.timestamp() * 1000)
                if number % 2
                else (time + timedelta(minutes=330)).replace(tzinfo=None).isoformat() + "+05:30"
            )
    return event


CSV_ODD: Final[tuple[dict[str, str], ...]] = (
    {"event": ""},
    {"distinct_id": "  "},
    {"distinct_id": "NULL"},
    {"timestamp": ""},
    {"amount": "1,50"},
    {"note": LARGE},
    {"cart": "{'sku': 'x'}"},
    {"paid": "perhaps"},
    {"timestamp": "31/12/2023"},
    {"properties": "[1]"},
    {"uuid": ""},
    {"uuid": "row-17"},
    {"timestamp": "1714608000.999"},
    {"timestamp": "1714608000999"},
    {"cart": '{\n  "sku": "x",\r\n  "price": 1.50\n}'},
    {"properties": "null", "distinct_id": "123456"},
)


def tables(count: int) -> GoldenExport:
    """A table in two files, of which one is packed."""
    dice = Dice(6)
    rows: list[dict[str, str]] = []
    for number, time in enumerate(moments(dice, count)):
        if number % 12 == 11 and number // 12 < len(CSV_ODD):
            rows.append(_row(dice, time) | {"uuid": dice.uuid().upper()} | CSV_ODD[number // 12])
        elif rows and dice.chance(0.03):
            rows.append(dice.pick(rows[-10:]))
        elif rows and dice.chance(0.02):
            rows.append(dice.pick(rows[-60:]) | {"timestamp": time.isoformat()})
        else:
            rows.append(_row(dice, time))
    half = len(rows) // 2
    files = {"table/1.csv": _table(rows[:half]), "table/2.csv.gz": packed(_table(rows[half:]))}
    columns = (
        "--json-column",
        "cart",
        "--number-column",
        "amount",
        "--boolean-column",
        "paid",
        "--time-offset",
        "-01:30",
    )
    return GoldenExport(files, ("csv", "table", *columns))


def _row(dice: Dice, time: datetime) -> dict[str, str]:
    return {
        "event": dice.pick(("signed_up", "order_completed", "Page Viewed", "$pageview")),
        "distinct_id": f"user-{dice.below(60)}",
        "timestamp": dice.pick((time.isoformat(), zulu(time), time.strftime("%Y-%m-%d %H:%M:%S"))),
        "uuid": dice.uuid(),
        "amount": dice.pick(("", "0", "12.50", "-3", "1e3", "12345678901234567890")),
        "paid": dice.pick(("", "true", "FALSE", "1", "0")),
        "cart": json.dumps([{"sku": f"x-{dice.below(50)}", "price": dice.below(9_000) / 100}])
        if dice.chance(0.3)
        else "",
        "note": dice.pick(("two\nlines", "=1+1", " spaces ", *TEXTS)),
        "properties": json.dumps(
            {"$current_url": "https://example.com/", "deep": {"level": [1, None]}}
        )
        if dice.chance(0.5)
        else "",
    }


def _table(rows: Sequence[dict[str, str]], delimiter: str = ",") -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


_GOOD: Final = (
    '{"kind":"order","state":"paid","customer":{"id":"c1"},"placed":"2024-05-01T10:00:00","num'
    'ber":"n1"}'
)
MAPPED_ODD: Final = tuple(
    record.encode()
    for record in (
        _GOOD[:40],
        _GOOD.replace('"paid"', "7"),
        _GOOD.replace('"c1"', "null"),
        _GOOD.replace('"c1"', '"undefined"'),
        _GOOD.replace('"2024-05-01T10:00:00"', "null"),
        _GOOD.replace('"n1"', '"n2","city":"' + LARGE + '"'),
        "[{},{},{}]".format(_GOOD, _GOOD.replace('"n1"', "null"), _GOOD.replace('"c1"', '" "')),
        _GOOD.replace('"2024-05-01T10:00:00"', '"yesterday"'),
        '"order"',
        _GOOD.replace('"2024-05-01T10:00:00"', '"1931-05-01T10:00:00"'),
        _GOOD.replace('"n1"', "null"),
        _GOOD.replace('"c1"', "0"),
    )
)


def mapped(count: int) -> GoldenExport:
    """An application's own records, by rules of its own."""
    dice = Dice(7)
    records: list[Record] = []
    for number, time in enumerate(moments(dice, count)):
        if records and dice.chance(0.03):
            records.append(dice.pick(records[-30:]))
        elif records and dice.chance(0.02):
            records.append(
                {**dice.pick(records[-60:]), "placed": time.strftime("%Y-%m-%dT%H:%M:%S")}
            )
        else:
            records.append(_order(dice, number, time))
    first, second = halves(spread([as_json(record) for record in records], MAPPED_ODD))
    files = {
        "orders/1.jsonl": first,
        "orders/2.jsonl.gz": packed(second),
        "rules.yaml": as_json(RULES),
    }
    return GoldenExport(files, ("mapping", "orders", "--mapping", "rules.yaml"))


def _order(dice: Dice, number: int, time: datetime) -> Record:
    record: Record = {
        "kind": "visit" if dice.chance(0.1) else "order",
        "state": dice.pick(("placed", "paid", "zurückgegeben")),
        "number": f"2024-{number:06d}",
        "placed": time.strftime("%Y-%m-%dT%H:%M:%S"),
        "customer": {
            "id": dice.pick((f"c{dice.below(60)}", 100_000 + number)),
            "email": "c@example.org",
            "tier": dice.pick(("new", "gold")),
        },
        "total": dice.below(99_999) / 100,
        "items": [{"sku": f"s{dice.below(500)}", "count": 1} for _ in range(dice.below(3))],
        "city": dice.pick(("Łódź", None, *TEXTS)),
    }
    if dice.chance(0.2):
        del record["number"]
    return record


def mapped_table(count: int) -> GoldenExport:
    """The same kind of records as tables with semicolons."""
    dice = Dice(8)
    rows = []
    for number, time in enumerate(moments(dice, count)):
        order = _order(dice, number, time)
        row = {
            name: str(order.get(name) or "")
            for name in ("state", "placed", "number", "total", "city")
        }
        row |= {"customer": str(order["customer"]["id"]), "tier": order["customer"]["tier"]}
        odd: tuple[dict[str, str], ...] = (
            {"customer": ""},
            {"customer": "undefined"},
            {"placed": "yesterday"},
            {"placed": ""},
        )
        rows.append(row | odd[number // 20 % len(odd)] if number % 20 == 19 else row)
    half = len(rows) // 2
    files = {
        "orders/1.csv": _table(rows[:half], ";"),
        "orders/2.csv": _table(rows[half:], ";"),
        "rules.yaml": as_json(FLAT_RULES),
    }
    return GoldenExport(files, ("mapping", "orders", "--mapping", "rules.yaml", "--delimiter", ";"))


EXPORTS: Final[dict[str, Callable[[int], GoldenExport]]] = {
    "native": native,
    "amplitude": amplitude,
    "mixpanel": mixpanel,
    "mixpanel-profiles": profiles,
    "segment": segment,
    "csv": tables,
    "mapping": mapped,
    "mapping-csv": mapped_table,
}
