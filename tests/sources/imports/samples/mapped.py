"""Records of an application's own, as a shop would export them for a mapping: the same for the
same seed, strange ones among them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from forwarder.core.ports import Reason
from forwarder.mapping import Mapping, MappingRules, TimestampRule
from forwarder.sources.files.record_blocks import RecordBlock, SourceFile

RULES: Final = MappingRules(
    event='"order " + .state',
    where='.kind == "order"',
    distinct_id=".customer.id",
    timestamp=TimestampRule(".placed", "iso", "Europe/Berlin"),
    uuid=".number",
    set={"tier": ".customer.tier"},
    properties={"total": ".total", "items": ".items", "city": ".city"},
    drop=(".customer.email",),
)
"""What makes events of the records."""

_START: Final = datetime(2024, 5, 1, tzinfo=UTC)
_GOOD: Final = (
    '{"kind":"order","state":"paid","customer":{"id":"c1"},"placed":"2024-05-01T10:00:00","num'
    'ber":"n1"}'
)


def _altered(old: str, new: str) -> bytes:
    """A good record of which a part is another."""
    if old not in _GOOD:
        raise AssertionError(old)
    return _GOOD.replace(old, new).encode()


STRANGE: Final[tuple[tuple[bytes, Reason | None], ...]] = (
    (_GOOD[:40].encode(), Reason.UNDECODABLE),
    (b"order 17 was paid", Reason.UNDECODABLE),
    (_GOOD.encode().replace(b"c1", b"c\xff"), Reason.UNDECODABLE),
    (b'"order"', Reason.UNMAPPABLE),
    (_altered('"paid"', "7"), Reason.UNMAPPABLE),
    (_altered('"2024-05-01T10:00:00"', '"yesterday"'), Reason.UNMAPPABLE),
    (_altered('"c1"', '{"nested":1}'), Reason.UNMAPPABLE),
    (_altered('"c1"', "null"), Reason.MISSING_DISTINCT_ID),
    (_altered('"c1"', '" "'), Reason.MISSING_DISTINCT_ID),
    (_altered('"2024-05-01T10:00:00"', "null"), Reason.MISSING_TIMESTAMP),
    (_altered('"2024-05-01T10:00:00"', '"1931-05-01T10:00:00"'), Reason.MISSING_TIMESTAMP),
    (_altered('"n1"', "null"), None),
    (b"[" + _GOOD.encode() + b"," + _altered('"n1"', "null") + b"]", None),
)
"""Records as bad exports have them, and why each is refused; None: it isn't."""


def mapping(rules: MappingRules = RULES) -> Mapping:
    """The rules, compiled."""
    return Mapping.compile(rules, "orders", "mapping")


def block(*records: bytes | object, first: int = 0) -> RecordBlock:
    """Records of one file; what isn't bytes is written as JSON."""
    written = [record if isinstance(record, bytes) else as_json(record) for record in records]
    return RecordBlock(
        SourceFile("orders.jsonl", "5eed" * 16),
        first,
        written,
        range(first + 1, first + len(written) + 1),
    )


def as_json(record: object) -> bytes:
    """A record as it is exported."""
    return json.dumps(record, separators=(",", ":"), ensure_ascii=False).encode()


def ordinary_records(count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Records of orders, all good."""
    dice = random.Random(seed)
    time = _START
    for number in range(count):
        time += timedelta(seconds=dice.randrange(1, 600))
        yield {
            "kind": "order",
            "state": dice.choice(["placed", "paid", "sent", "zurückgegeben"]),
            "number": f"2024-{number:06d}",
            "placed": time.replace(tzinfo=None).isoformat(),
            "customer": {
                "id": dice.choice([f"c{number // 3}", 100_000 + number]),
                "email": f"c{number}@example.org",
                "tier": dice.choice(["new", "gold"]),
            },
            "total": dice.randrange(100, 99_999) / 100,
            "items": [
                {"sku": f"s{dice.randrange(500)}", "count": dice.randrange(1, 5)}
                for _ in range(dice.randrange(1, 4))
            ],
            "city": dice.choice(["Łódź", "São Paulo", "Київ", None]),
        }


def sample(count: int = 2000, seed: int = 1) -> tuple[list[bytes], int, list[Reason]]:
    """Records, how many events they become, and why some are refused, in their order."""
    dice = random.Random(seed)
    records: list[bytes] = []
    refusals: list[Reason] = []
    events = 0
    for number, record in enumerate(ordinary_records(count, seed)):
        if number % 80 == 0:
            text, why = STRANGE[number // 80 % len(STRANGE)]
            records.append(text)
            refusals += [] if why is None else [why]
            events += 0 if why is not None else 2 if text.startswith(b"[") else 1
        if dice.random() < 0.1:
            record["kind"] = "visit"
        else:
            events += 1
            if dice.random() < 0.2:
                del record["number"]
        records.append(as_json(record))
    return records, events, refusals
