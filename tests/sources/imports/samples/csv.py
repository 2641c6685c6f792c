"""A table of events as a warehouse writes it, as a file and as the sources give its rows: JSON
objects of texts.
"""

from __future__ import annotations

import csv
import io
import json
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from uuid import UUID

from forwarder.core.ports import Reason
from forwarder.sources.imports.formats.csv import CsvOptions

COLUMNS = [
    "event",
    "distinct_id",
    "timestamp",
    "uuid",
    "plan",
    "amount",
    "paid",
    "cart",
    "note",
    "properties",
]
OPTIONS = CsvOptions(
    json=frozenset({"cart"}), numbers=frozenset({"amount"}), booleans=frozenset({"paid"})
)
FIRST = datetime(2023, 12, 30, 18, 0, 0, 250_125, tzinfo=UTC)
NOTES = [
    "",
    "plain",
    'quoted "and, comma"',
    "two\nlines",
    "Grüße — \u65e5\u672c \U0001f680",
    "\u2028",
    "=1+1",
    " spaces ",
]

ODD: list[tuple[dict[str, str | Callable[[str], str]], Reason | None]] = [
    ({"timestamp": "2024-01-01 00:00:00.000001"}, None),
    ({"timestamp": "1704067199.999"}, None),
    ({"timestamp": "1704067199999"}, None),
    ({"uuid": ""}, None),
    ({"uuid": "row-17"}, None),
    ({"uuid": str.upper}, None),
    ({"distinct_id": "123456"}, None),
    ({"amount": "", "paid": " ", "cart": "", "properties": "", "plan": "", "note": ""}, None),
    ({"cart": '{\n  "sku": "x",\r\n  "price": 1.50\n}'}, None),
    ({"properties": "null"}, None),
    ({"event": ""}, Reason.MISSING_EVENT),
    ({"distinct_id": "  "}, Reason.MISSING_DISTINCT_ID),
    ({"distinct_id": "NULL"}, None),
    ({"timestamp": ""}, Reason.MISSING_TIMESTAMP),
    ({"timestamp": "31/12/2023"}, Reason.MISSING_TIMESTAMP),
    ({"amount": "1,50"}, Reason.INVALID_EVENT),
    ({"paid": "perhaps"}, Reason.INVALID_EVENT),
    ({"cart": "{'sku': 'x'}"}, Reason.INVALID_EVENT),
    ({"properties": "[1]"}, Reason.INVALID_EVENT),
]


def sample(count: int = 2_400, seed: int = 1) -> list[tuple[bytes, Reason | None]]:
    """Rows as the sources give them, and why each is refused (None: it becomes an event). The same
    for the same seed.
    """
    return [(json.dumps(row, ensure_ascii=False).encode(), why) for row, why in rows(count, seed)]


def table(count: int = 2_400, seed: int = 1) -> str:
    """The same rows as a CSV file."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS)
    writer.writeheader()
    writer.writerows(row for row, _ in rows(count, seed))
    return text.getvalue()


def rows(count: int, seed: int) -> list[tuple[dict[str, str], Reason | None]]:
    """The cells of each row by column; each 40th row is an odd one."""
    draw = random.Random(seed)
    time = FIRST
    made: list[tuple[dict[str, str], Reason | None]] = []
    for number in range(count):
        time += timedelta(microseconds=draw.randrange(1_000, 90_000_000))
        change, why = ODD[number // 40 % len(ODD)] if number % 40 == 39 else ({}, None)
        row = _row(draw, time)
        made.append(
            (
                {
                    **row,
                    **{
                        name: cell if isinstance(cell, str) else cell(row[name])
                        for name, cell in change.items()
                    },
                },
                why,
            )
        )
    return made


def _numbered(change: dict[str, str], number: int) -> dict[str, str]:
    """A change whose uuid is the row's alone, if it has one."""
    return (
        {**change, "uuid": f"{change['uuid'][:-4]}{number:04X}"}
        if len(change.get("uuid", "")) == len(str(UUID(int=0)))
        else change
    )


def _row(draw: random.Random, time: datetime) -> dict[str, str]:
    cart = [
        {"sku": f"x-{draw.randrange(50)}", "price": draw.randrange(9_000) / 100}
        for _ in range(draw.randrange(3))
    ]
    return {
        "event": draw.choice(["signed_up", "order_completed", "Page Viewed", "$pageview"]),
        "distinct_id": f"user-{draw.randrange(300)}",
        "timestamp": time.isoformat(),
        "uuid": str(UUID(int=draw.getrandbits(128), version=4)),
        "plan": draw.choice(["free", "pro", ""]),
        "amount": draw.choice(["", "0", "12.50", "-3", "1e3", "12345678901234567890"]),
        "paid": draw.choice(["", "true", "FALSE", "1", "0"]),
        "cart": json.dumps(cart) if cart else "",
        "note": draw.choice(NOTES),
        "properties": json.dumps(
            {"$current_url": "https://example.com/", "deep": {"level": [1, None]}}
        )
        if draw.random() < 0.5
        else "",
    }
